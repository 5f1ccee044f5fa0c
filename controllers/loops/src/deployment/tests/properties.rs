//! Whole rollouts against sets with pods that become available at random: limits hold at each step,
//! and the rollout ends.

use std::collections::BTreeMap;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, REPLICA_SETS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::{Controller, Now, drive};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use pintle_controllers_core::tables::Tables;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::DeploymentController;
use super::super::limits::{max_replicas, max_unavailable};
use super::{available, deployment, now, scaled_for, set};
use crate::stub_api::{agree, kept, put};

/// A cluster of one Deployment; its sets create and delete pods at once.
struct DeploymentCluster {
    deployment: Value,
    sets: BTreeMap<String, Value>,
    version: u64,
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

impl DeploymentCluster {
    fn wanted(&self) -> i64 {
        self.sets.values().map(|set| number(&set["spec"]["replicas"])).sum()
    }

    /// Pods that stay available when the sets have deleted what they have to: those that are not
    /// available go first.
    fn available(&self) -> i64 {
        let of = |set: &Value| {
            number(&set["status"]["availableReplicas"]).min(number(&set["spec"]["replicas"]))
        };
        self.sets.values().map(of).sum()
    }

    /// Syncs the Deployment; says whether that asked for anything.
    fn sync(&mut self) -> bool {
        let mut tables = Tables::default();
        put(&mut tables, DEPLOYMENTS, &self.deployment);
        self.sets.values().for_each(|set| drop(put(&mut tables, REPLICA_SETS, set)));
        let at = Now { instant: std::time::Instant::now(), wall: now() };
        let key = ObjectKey::new("n", "foo");
        let mut controller = DeploymentController { workers: 1 };
        let snapshot = controller.snapshot(&key, &tables, at).expect("it is there");
        let driven = drive::<DeploymentController>(&snapshot, now(), agree);
        driven.outcome.expect("nothing fails");
        driven.requests.iter().for_each(|request| self.write(request));
        !driven.requests.is_empty()
    }

    fn write(&mut self, request: &Request) {
        self.version += 1;
        let (kind, mut body) = match request {
            Request::Create { kind, body, .. } => {
                let mut body = body.clone();
                body["metadata"]["uid"] = body["metadata"]["name"].clone();
                body["metadata"]["generation"] = 1.into();
                (*kind, body)
            }
            Request::Replace { target, body } => (target.kind, body.clone()),
            other => panic!("{other:?}"),
        };
        body["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
        if kind == DEPLOYMENTS {
            self.deployment = body;
        } else {
            self.sets.insert(name, body);
        }
    }

    /// The controller of the sets catches up; a part of the missing pods becomes available, and
    /// some that are available may be lost.
    fn settle(&mut self, percent: i64, lost: i64) {
        for set in self.sets.values_mut() {
            self.version += 1;
            let size = number(&set["spec"]["replicas"]);
            let ready = number(&set["status"]["availableReplicas"]).min(size);
            let gained = ((size - ready) * percent + 99) / 100;
            let ready = (ready + gained - lost).clamp(0, size);
            set["metadata"]["resourceVersion"] = self.version.to_string().into();
            set["status"] = json!({"replicas": size, "readyReplicas": ready,
                "availableReplicas": ready, "terminatingReplicas": 0,
                "observedGeneration": set["metadata"]["generation"]});
        }
    }

    fn change_template(&mut self, revision: i32) {
        self.deployment["spec"]["template"] = super::template(&format!("revision-{revision}"));
    }
}

fn cluster(replicas: i32, surge: Value, unavailable: Value) -> DeploymentCluster {
    let deployment = deployment(replicas, surge, unavailable);
    let first = available(set("first", "new", replicas, 100), replicas);
    let first = scaled_for(first, &deployment);
    DeploymentCluster { deployment, sets: [("first".to_owned(), first)].into(), version: 1_000_000 }
}

/// A limit as users write it.
fn limit() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..6_i32).prop_map(|n| json!(n)),
        (0..=100_i32).prop_map(|n| json!(format!("{n}%")))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn rollout_keeps_its_limits_and_ends(
        replicas in 1..20_i32,
        surge in limit(),
        unavailable in limit(),
        settled in prop::collection::vec((0..=100_i64, 0..2_i64, prop::bool::weighted(0.1)), 1..30),
    ) {
        let mut cluster = cluster(replicas, surge, unavailable);
        let facts: KeptObject<Deployment> = kept(&cluster.deployment);
        let most = i64::from(max_replicas(&facts.spec));
        let least = i64::from(replicas - max_unavailable(&facts.spec));
        cluster.change_template(0);
        for (at, (percent, lost, is_changed)) in (1..).zip(settled) {
            if is_changed {
                cluster.change_template(at);
            }
            let before = cluster.available();
            cluster.sync();
            prop_assert!(cluster.wanted() <= most, "{} of {most} pods", cluster.wanted());
            prop_assert!(cluster.available() >= least.min(before), "{} available", cluster.available());
            cluster.settle(percent, lost);
        }
        let mut steps = 0;
        cluster.settle(100, 0);
        while cluster.sync() {
            cluster.settle(100, 0);
            steps += 1;
            prop_assert!(steps < 200, "the rollout does not end");
        }
        let sizes = cluster.sets.values().map(|set| number(&set["spec"]["replicas"]));
        let sizes: Vec<_> = sizes.filter(|size| *size > 0).collect();
        prop_assert_eq!(sizes, vec![i64::from(replicas)]);
        prop_assert_eq!(number(&cluster.deployment["status"]["updatedReplicas"]), i64::from(replicas));
    }

    #[test]
    fn scaling_during_a_rollout_reaches_exactly_replicas_plus_surge(
        before in 1..30_i32,
        after in 0..60_i32,
        surge in 0..6_i32,
        percent in 0..=100_i64,
    ) {
        let mut cluster = cluster(before, json!(surge), json!(1));
        cluster.change_template(0);
        for _ in 0..4 {
            cluster.sync();
            cluster.settle(percent, 0);
        }
        let active = cluster.sets.values().filter(|set| number(&set["spec"]["replicas"]) > 0);
        let is_rolling = active.count() > 1;
        cluster.deployment["spec"]["replicas"] = after.into();
        cluster.sync();
        if is_rolling && after != before {
            let most = if after == 0 { 0 } else { i64::from(after + surge) };
            prop_assert_eq!(cluster.wanted(), most);
        }
    }
}
