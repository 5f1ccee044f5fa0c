//! Writes of both sides, matched.

use std::time::{Duration, Instant};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{PODS, REPLICA_SETS};
use pintle_api_types::request::{DeleteOptions, Request, Target};
use pintle_controllers_core::frame::Now;
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

use super::*;
use crate::testing::at;

const SETS: &str = "replicaset-controller";
const COLLECTOR: &str = "garbage-collector-controller";
const DEPLOYMENTS: &str = "deployment-controller";

struct ShadowCluster {
    tables: Tables,
    ledger: Ledger,
    now: Now,
    again: Vec<(&'static str, ObjectKey)>,
}

impl ShadowCluster {
    fn new() -> Self {
        let mut cluster = Self {
            tables: Tables::default(),
            ledger: Ledger::new([SETS, COLLECTOR, DEPLOYMENTS]),
            now: at(0),
            again: Vec::new(),
        };
        cluster.set(pintle_api_types::kind::NAMESPACES, json!({"metadata": {"name": "n"}}));
        cluster
    }

    fn set(&mut self, kind: pintle_api_types::kind::Kind, object: Value) {
        let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
        self.apply(WatchEvent::Set(object));
    }

    fn apply(&mut self, event: WatchEvent) {
        for change in self.tables.apply(event) {
            self.ledger.note_change(&change, &self.tables, self.now);
        }
    }

    fn decide(&mut self, controller: &'static str, writes: &[Request]) {
        let key = "n/s".to_owned();
        self.ledger.decide(controller, key, writes, &self.tables, self.now);
    }

    fn pass(&mut self, seconds: u64) {
        let wait = Duration::from_secs(seconds);
        self.now = Now { instant: self.now.instant + wait, wall: self.now.wall + wait };
        // Once for what is synced again, once for what is missing.
        let again = self.ledger.tick(self.now, &self.tables);
        self.ledger.tick(self.now, &self.tables);
        self.again.extend(again);
    }

    fn counts(&self, controller: &str, reason: &str) -> ReasonCounts {
        let reasons = self.ledger.report().counts.get(controller);
        reasons.and_then(|reasons| reasons.get(reason)).cloned().unwrap_or_default()
    }
}

fn pod(name: &str, hash: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": name,
        "resourceVersion": version.to_string(), "labels": {"pod-template-hash": hash},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "s", "uid": "s", "controller": true}]}})
}

fn create(hash: &str) -> Request {
    let mut body = pod("x", hash, 1);
    body["metadata"]["generateName"] = json!("s-");
    body["metadata"].as_object_mut().expect("an object").remove("name");
    Request::Create { kind: PODS, namespace: "n".to_owned(), below: None, body }
}

fn set(replicas: i64, version: u64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "s",
        "namespace": "n", "uid": "s", "resourceVersion": version.to_string(),
        "ownerReferences": [{"kind": "Deployment", "name": "d", "uid": "d", "controller": true}]},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": {}}})
}

fn delete(name: &str) -> Request {
    let target = Target::object(PODS, ObjectKey::new("n", name));
    let options = DeleteOptions { uid: Some(name.to_owned()), ..DeleteOptions::default() };
    Request::Delete { target, options }
}

#[test]
fn created_pods_match_by_owner_and_hash() {
    let mut cluster = ShadowCluster::new();
    cluster.decide(SETS, &[create("h"), create("h")]);
    cluster.set(PODS, pod("a", "h", 5));
    cluster.decide(SETS, &[create("h")]);
    cluster.set(PODS, pod("b", "h", 6));
    cluster.decide(SETS, &[]);
    cluster.pass(20);
    assert_eq!(
        cluster.counts(SETS, "create pods"),
        ReasonCounts { same: 2, ..ReasonCounts::default() }
    );
    // A pod of another template is not what was wanted.
    cluster.decide(SETS, &[create("h")]);
    cluster.set(PODS, pod("c", "other", 7));
    cluster.pass(20);
    let found = cluster.counts(SETS, "create pods");
    assert_eq!((found.same, found.ours_only, found.theirs_only), (2, 1, 1));
    assert_eq!(cluster.ledger.take_fresh().len(), 2);
    // A difference is reported once.
    cluster.pass(20);
    assert_eq!(cluster.ledger.report().different(), 2);
}

#[test]
fn write_that_is_not_wanted_any_more_is_no_difference() {
    let mut cluster = ShadowCluster::new();
    cluster.decide(SETS, &[create("h")]);
    cluster.pass(5);
    cluster.decide(SETS, &[]);
    cluster.pass(20);
    assert_eq!(
        cluster.counts(SETS, "create pods"),
        ReasonCounts { overtaken: 1, ..ReasonCounts::default() }
    );
    assert_eq!(cluster.ledger.report().different(), 0);
}

#[test]
fn scales_are_compared_by_their_size() {
    let mut cluster = ShadowCluster::new();
    cluster.set(REPLICA_SETS, set(1, 5));
    let scale = |size| {
        let target = Target::object(REPLICA_SETS, ObjectKey::new("n", "s"));
        Request::Replace { target, body: set(size, 5) }
    };
    cluster.decide(DEPLOYMENTS, &[scale(3)]);
    cluster.set(REPLICA_SETS, set(3, 6));
    cluster.decide(DEPLOYMENTS, &[]);
    assert_eq!(cluster.counts(DEPLOYMENTS, "scale replicasets").same, 1);
    cluster.set(REPLICA_SETS, set(2, 7));
    cluster.pass(20);
    let counts = cluster.counts(DEPLOYMENTS, "scale replicasets");
    assert_eq!((counts.same, counts.theirs_only), (1, 1));
}

#[test]
fn deletion_is_compared_by_uid_and_a_users_is_not_ours_to_judge() {
    let mut cluster = ShadowCluster::new();
    cluster.set(REPLICA_SETS, set(1, 2));
    ["a", "b", "c"].iter().for_each(|name| cluster.set(PODS, pod(name, "h", 5)));
    let gone = |cluster: &mut ShadowCluster, name| {
        cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", name)));
    };
    cluster.decide(SETS, &[delete("a")]);
    gone(&mut cluster, "a");
    cluster.decide(SETS, &[]);
    assert_eq!(
        cluster.counts(SETS, "delete pods"),
        ReasonCounts { same: 1, ..ReasonCounts::default() }
    );
    gone(&mut cluster, "b");
    cluster.pass(20);
    assert_eq!(cluster.ledger.report().unattributed_deletions, 1);
    assert_eq!(cluster.counts(SETS, "delete pods").theirs_only, 0);
    // Without its owner only the collector deletes it.
    cluster.apply(WatchEvent::DeletedUnreadable(REPLICA_SETS, ObjectKey::new("n", "s")));
    gone(&mut cluster, "c");
    cluster.pass(20);
    assert_eq!(cluster.counts(COLLECTOR, "delete pods").theirs_only, 1);
}

#[test]
fn deletion_that_is_withdrawn_is_a_difference() {
    let mut cluster = ShadowCluster::new();
    cluster.set(PODS, pod("a", "h", 5));
    cluster.decide(COLLECTOR, &[delete("a")]);
    cluster.decide(COLLECTOR, &[]);
    assert_eq!(cluster.counts(COLLECTOR, "delete pods").withdrawn, 1);
    let found = cluster.ledger.take_fresh();
    let text =
        "garbage-collector-controller: the shadow would have, and later not, delete pods n/a";
    assert_eq!(found.first().map(ToString::to_string).as_deref(), Some(text));
}

#[test]
fn pod_chosen_by_the_other_instead_of_ours_is_a_difference() {
    let mut cluster = ShadowCluster::new();
    cluster.set(REPLICA_SETS, set(1, 2));
    for (name, second) in [("a", 1), ("b", 2), ("c", 1)] {
        let mut pod = pod(name, "h", 5);
        pod["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{second}Z"));
        cluster.set(PODS, pod);
    }
    // Pods of one age have no order.
    cluster.decide(SETS, &[delete("a")]);
    cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", "c")));
    assert_eq!(cluster.counts(SETS, "delete pods").same, 1);
    cluster.decide(SETS, &[delete("a")]);
    cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", "b")));
    cluster.decide(SETS, &[]);
    cluster.pass(20);
    let counts = cluster.counts(SETS, "delete pods");
    assert_eq!((counts.same, counts.theirs_only, counts.overtaken), (1, 1, 1));
    assert_eq!(counts.withdrawn, 0);
}

#[test]
fn deletion_wanted_after_a_live_read_is_the_same() {
    let mut cluster = ShadowCluster::new();
    cluster.set(REPLICA_SETS, set(1, 2));
    cluster.set(PODS, pod("a", "h", 5));
    cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", "a")));
    cluster.decide(COLLECTOR, &[delete("a")]);
    cluster.pass(20);
    let counts = cluster.counts(COLLECTOR, "delete pods");
    assert_eq!(counts, ReasonCounts { same: 1, ..ReasonCounts::default() });
    assert_eq!(cluster.ledger.report().unattributed_deletions, 0);
}

#[test]
fn finalizer_removal_in_shadow_is_matched_by_the_deletion_of_its_object() {
    let mut cluster = ShadowCluster::new();
    let mut going = pod("a", "h", 5);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    cluster.set(PODS, going);
    let target = Target::object(PODS, ObjectKey::new("n", "a"));
    let form = pintle_api_types::request::PatchForm::Merge;
    cluster.decide(COLLECTOR, &[Request::Patch { target, form, body: json!({}) }]);
    cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", "a")));
    cluster.pass(20);
    let counts = cluster.counts(COLLECTOR, "update pods");
    assert_eq!(counts, ReasonCounts { same: 1, ..ReasonCounts::default() });
}

#[test]
fn collection_without_objects_and_creation_in_a_terminating_namespace_are_no_differences() {
    let mut cluster = ShadowCluster::new();
    let namespace = json!({"metadata": {"name": "n", "resourceVersion": "9",
        "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    cluster.set(pintle_api_types::kind::NAMESPACES, namespace);
    let all =
        Request::DeleteCollection { kind: PODS, namespace: "n".to_owned(), propagation: None };
    cluster.decide(COLLECTOR, &[all]);
    cluster.decide(SETS, &[create("h")]);
    cluster.pass(20);
    assert_eq!(cluster.ledger.report().different(), 0);
    assert_eq!(cluster.counts(SETS, "create pods").refused, 1);
}

#[test]
fn key_with_a_missing_write_is_synced_again_once() {
    let mut cluster = ShadowCluster::new();
    cluster.decide(SETS, &[create("h")]);
    cluster.pass(4);
    assert_eq!(cluster.again, []);
    cluster.pass(2);
    cluster.pass(20);
    assert_eq!(cluster.again, [(SETS, ObjectKey::new("n", "s"))]);
    assert_eq!(cluster.counts(SETS, "create pods").ours_only, 1);
}

#[test]
fn victim_of_an_earlier_state_is_the_same() {
    let mut cluster = ShadowCluster::new();
    cluster.set(REPLICA_SETS, set(1, 2));
    ["a", "b"].iter().for_each(|name| cluster.set(PODS, pod(name, "h", 5)));
    cluster.decide(SETS, &[delete("a")]);
    cluster.decide(SETS, &[delete("b")]);
    cluster.apply(WatchEvent::DeletedUnreadable(PODS, ObjectKey::new("n", "a")));
    let counts = cluster.counts(SETS, "delete pods");
    assert_eq!((counts.same, counts.overtaken), (1, 0));
}

#[test]
fn statuses_are_compared_without_times() {
    let mut cluster = ShadowCluster::new();
    let status = |ready: i64, at: &str, version| {
        let mut set = set(1, version);
        set["status"] = json!({"readyReplicas": ready, "replicas": 0,
            "conditions": [{"type": "A", "lastTransitionTime": at}]});
        set
    };
    cluster.set(REPLICA_SETS, status(0, "2026-01-01T00:00:00Z", 5));
    let target = Target::status(REPLICA_SETS, ObjectKey::new("n", "s"));
    let body = status(1, "2026-01-01T00:00:01Z", 5);
    cluster.decide(SETS, &[Request::Replace { target, body }]);
    cluster.set(REPLICA_SETS, status(1, "2026-01-01T00:00:02Z", 6));
    cluster.decide(SETS, &[]);
    let counts = cluster.counts(SETS, "update the status of replicasets");
    assert_eq!(counts, ReasonCounts { same: 1, ..ReasonCounts::default() });
}

#[test]
fn oracle_answers_with_the_object_and_no_version() {
    let mut cluster = ShadowCluster::new();
    let mut oracle = Oracle::default();
    let answer = oracle.answer(&create("h"), &cluster.tables).expect("a write");
    let object = answer.expect("it is created");
    assert_eq!(object["metadata"]["name"], "s-shadow1");
    assert_eq!(object["metadata"]["resourceVersion"], "shadow");
    cluster.set(REPLICA_SETS, set(1, 5));
    let target = Target::object(REPLICA_SETS, ObjectKey::new("n", "s"));
    let read = Request::Read { target: target.clone(), only_metadata: true };
    let read_meta = oracle.answer(&read, &cluster.tables).expect("a table has it");
    assert_eq!(read_meta.expect("it is there")["metadata"]["resourceVersion"], "5");
    let missing = Target::object(REPLICA_SETS, ObjectKey::new("n", "t"));
    let read = Request::Read { target: missing, only_metadata: true };
    assert_eq!(oracle.answer(&read, &cluster.tables), None);
    assert_eq!(oracle.answer_writes(&[read], &cluster.tables), None);
}

#[test]
fn shadow_decides_before_a_write_of_the_other_is_applied() {
    use crate::replica_set::ReplicaController;
    use pintle_controllers_core::kinds::ReplicaSet;
    let mut frame = Frame::default();
    frame.add(ReplicaController::<ReplicaSet>::new(5));
    let mut shadow = Shadow::new(frame, at(0));
    for kind in [REPLICA_SETS, PODS] {
        for event in [WatchEvent::ListBegun(kind), WatchEvent::ListComplete(kind)] {
            assert!(shadow.take(event, at(0)).is_empty());
        }
    }
    let mut take = |kind, object: Value| {
        let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
        shadow.take(WatchEvent::Set(object), at(1))
    };
    let mut owner = set(1, 5);
    owner["spec"]["selector"] = json!({"matchLabels": {"pod-template-hash": "h"}});
    owner["spec"]["template"] = json!({"metadata": {"labels": {"pod-template-hash": "h"}}});
    // The pod comes first, because its watch is faster.
    assert!(take(PODS, pod("a", "h", 6)).is_empty());
    assert!(take(REPLICA_SETS, owner).is_empty());
    assert!(shadow.settle(at(60)).is_empty());
    let counts = shadow.report().counts.get(SETS).and_then(|reasons| reasons.get("create pods"));
    assert_eq!(counts, Some(&ReasonCounts { same: 1, ..ReasonCounts::default() }));
    assert!(Instant::now() >= at(0).instant);
}
