//! A watch that shows nothing for very long, while the API server takes every write.
//!
//! Upstream's expectations expire after five minutes, and then pods are created twice (k#129795).
//! Here no time-out acts: a key waits until its own writes are seen.

use std::collections::BTreeMap;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    DAEMON_SETS, DEPLOYMENTS, JOBS, Kind, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
};
use pintle_api_types::request::{DeleteOptions, PatchForm, Request, Target};
use pintle_memory_api::Identity;
use serde_json::{Value, json};

use crate::checks;
use crate::users::NAMESPACE;
use crate::world::{FaultRates, ManagerWorld};

const SILENCE: Duration = Duration::from_secs(20 * 60);
/// Kinds, and how many pods each workload wants; there are three nodes.
const WORKLOADS: [(Kind, usize); 6] = [
    (DEPLOYMENTS, 4),
    (REPLICA_SETS, 4),
    (REPLICATION_CONTROLLERS, 4),
    (STATEFUL_SETS, 4),
    (DAEMON_SETS, 3),
    (JOBS, 4),
];

fn workload(kind: Kind, count: usize) -> Value {
    let labels = json!({"app": kind.plural});
    let pod = json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let mut spec = json!({"template": template, "selector": {"matchLabels": labels},
        "replicas": count, "serviceName": "s", "podManagementPolicy": "Parallel"});
    if kind == REPLICATION_CONTROLLERS {
        spec["selector"] = labels;
    }
    if kind == JOBS {
        spec = json!({"template": spec["template"], "parallelism": count, "completions": count});
        spec["template"]["spec"]["restartPolicy"] = "Never".into();
        spec["template"]["metadata"]["labels"]["behaviour"] = "succeed".into();
    }
    json!({"metadata": {"name": "w"}, "spec": spec})
}

impl ManagerWorld {
    fn user(&mut self, request: &Request) {
        self.ask(&Identity::Admin, request).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    }

    fn create_workloads(&mut self) {
        for (kind, count) in WORKLOADS {
            let (namespace, body) = (NAMESPACE.to_owned(), workload(kind, count));
            self.user(&Request::Create { kind, namespace, below: None, body });
        }
    }

    /// Pods by the value of their label.
    fn pods(&self) -> BTreeMap<String, usize> {
        let mut pods = BTreeMap::new();
        for (_, pod) in self.server.objects(PODS, NAMESPACE) {
            let labels = &pod["metadata"]["labels"];
            let app = labels["app"].as_str().expect("a label").to_owned();
            *pods.entry(app).or_default() += 1;
        }
        pods
    }
}

fn wanted() -> BTreeMap<String, usize> {
    WORKLOADS.iter().map(|(kind, count)| (kind.plural.to_owned(), *count)).collect()
}

#[test]
fn watch_of_pods_that_is_silent_for_20_minutes_creates_no_pod_twice() {
    for seed in 0..5 {
        let mut world = ManagerWorld::new(seed, FaultRates::none());
        world.user_steps = 0;
        world.pass(Duration::from_secs(10));
        world.silent.insert(PODS);
        world.create_workloads();
        world.pass(SILENCE);
        assert_eq!(world.pods(), wanted(), "seed {seed}");
        world.silent.clear();
        world.pass(Duration::from_secs(60));
        assert_eq!(world.pods(), wanted(), "seed {seed}");
        checks::check_end(&world.server);
    }
}

/// Deletions and a new size while nothing is seen: no more pods than wanted at any time, which
/// `Checks` looks at, and the right number once the watch moves.
#[test]
fn watch_of_pods_that_is_silent_while_pods_are_deleted_ends_with_the_right_number() {
    for seed in 0..5 {
        let mut world = ManagerWorld::new(seed, FaultRates::none());
        world.user_steps = 0;
        world.create_workloads();
        world.pass(Duration::from_secs(60));
        world.silent.insert(PODS);
        let all: Vec<ObjectKey> =
            world.server.objects(PODS, NAMESPACE).map(|(key, _)| key.clone()).collect();
        for key in all.iter().step_by(2) {
            let target = Target::object(PODS, key.clone());
            world.user(&Request::Delete { target, options: DeleteOptions::default() });
        }
        for kind in [DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS] {
            let target = Target::object(kind, ObjectKey::new(NAMESPACE, "w"));
            let body = json!({"spec": {"replicas": 2}});
            world.user(&Request::Patch { target, form: PatchForm::Merge, body });
        }
        world.pass(SILENCE);
        world.silent.clear();
        world.pass(Duration::from_secs(600));
        checks::check_end(&world.server);
    }
}
