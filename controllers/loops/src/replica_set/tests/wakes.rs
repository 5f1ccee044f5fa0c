//! Which sets a change wakes.
// k8s: pkg/controller/replicaset/replica_set_test.go TestUpdatePods, TestAddPodBeingDeleted

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::kind::{PODS, REPLICA_SETS};
use pintle_controllers_core::frame::{Controller, Now, Wakes};
use pintle_controllers_core::kinds::ReplicaSet;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::{Value, json};

use super::super::ReplicaController;
use crate::stub_api::{put, remove};

fn set(name: &str, min_ready: i64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"of": name}}, "minReadySeconds": min_ready}
    })
}

/// A pod with the label of `label`, controlled by `owner` unless that is empty.
fn pod(version: u64, label: &str, owner: &str) -> Value {
    let mut pod = json!({"metadata": {"name": "pod", "namespace": "n", "uid": "pod",
        "resourceVersion": version.to_string(), "labels": {"of": label}}});
    if !owner.is_empty() {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1",
            "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true}]);
    }
    pod
}

/// Sets one and two, and one that selects everything.
fn tables() -> Tables {
    let mut tables = Tables::default();
    let mut all = set("all", 0);
    all["spec"]["selector"] = json!({});
    for set in [set("one", 0), set("two", 30), all] {
        put(&mut tables, REPLICA_SETS, &set);
    }
    tables
}

fn woken(tables: &Tables, changes: Vec<Change>) -> Vec<(String, u64)> {
    let wall = Timestamp::from_second(1_800_000_000).expect("a time");
    let now = Now { instant: Instant::now(), wall };
    let mut wakes = Wakes::default();
    for change in &changes {
        ReplicaController::<ReplicaSet>::new(1).handle_change(change, tables, now, &mut wakes);
    }
    let name = |(key, wait): (&pintle_api_types::key::ObjectKey, Duration)| {
        (key.name().to_owned(), wait.as_secs())
    };
    wakes.waits().map(name).collect()
}

fn now(name: &str) -> (String, u64) {
    (name.to_owned(), 0)
}

/// The keys that a change of a pod from one state to another wakes.
fn change(old: Option<Value>, new: Option<Value>) -> Vec<(String, u64)> {
    let mut tables = tables();
    let mut changes = Vec::new();
    if let Some(old) = &old {
        changes = put(&mut tables, PODS, old);
        if new.is_none() {
            changes = remove(&mut tables, PODS, old);
        }
    }
    if let Some(new) = &new {
        changes = put(&mut tables, PODS, new);
    }
    woken(&tables, changes)
}

#[test]
fn replica_set_change_wakes_the_set() {
    let mut tables = tables();
    let mut changed = set("one", 0);
    changed["metadata"]["resourceVersion"] = "2".into();
    let changes = put(&mut tables, REPLICA_SETS, &changed);
    assert_eq!(woken(&tables, changes), [now("one")]);
    let changes = remove(&mut tables, REPLICA_SETS, &changed);
    assert_eq!(woken(&tables, changes), [now("one")]);
}

#[test]
fn new_pod_wakes_its_controller_or_sets_that_may_adopt_it() {
    assert_eq!(change(None, Some(pod(1, "two", "one"))), [now("one")]);
    assert_eq!(change(None, Some(pod(1, "two", ""))), [now("two")]);
    assert_eq!(change(None, Some(pod(1, "none", ""))), []);
    let mut other_kind = pod(1, "one", "one");
    other_kind["metadata"]["ownerReferences"][0]["kind"] = "Job".into();
    assert_eq!(change(None, Some(other_kind)), []);
    let mut other_uid = pod(1, "one", "one");
    other_uid["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    assert_eq!(change(None, Some(other_uid)), []);
}

#[test]
fn new_orphan_being_deleted_wakes_no_set() {
    let mut deleting = pod(1, "one", "");
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(change(None, Some(deleting)), []);
}

#[test]
fn changed_pod_wakes_its_old_and_new_controllers() {
    let from = |label: &str, owner: &str| Some(pod(1, label, owner));
    let to = |label: &str, owner: &str| Some(pod(2, label, owner));
    assert_eq!(change(from("one", "one"), to("one", "one")), [now("one")]);
    assert_eq!(change(from("one", "one"), to("one", "two")), [now("one"), now("two")]);
    assert_eq!(change(from("one", "one"), to("two", "")), [now("one"), now("two")]);
    assert_eq!(change(from("one", ""), to("two", "")), [now("two")]);
    assert_eq!(change(from("one", ""), to("one", "")), []);
    assert_eq!(change(from("one", ""), to("one", "one")), [now("one")]);
}

#[test]
fn pod_that_became_ready_wakes_its_set_again_when_it_is_available() {
    let mut ready = pod(2, "two", "two");
    ready["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let woken = change(Some(pod(1, "two", "two")), Some(ready.clone()));
    assert_eq!(woken, [now("two"), ("two".to_owned(), 30)]);
    let mut still = ready.clone();
    still["metadata"]["resourceVersion"] = "3".into();
    assert_eq!(change(Some(ready), Some(still)), [now("two")]);
}

#[test]
fn deleted_pod_wakes_its_controller() {
    assert_eq!(change(Some(pod(1, "one", "one")), None), [now("one")]);
    assert_eq!(change(Some(pod(1, "one", "")), None), []);
    let mut deleting = pod(2, "two", "one");
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(change(Some(pod(1, "one", "one")), Some(deleting)), [now("one"), now("one")]);
}

#[test]
fn pod_of_the_same_name_and_another_uid_is_a_deletion_and_an_addition() {
    let mut recreated = pod(2, "two", "");
    recreated["metadata"]["uid"] = "another".into();
    assert_eq!(change(Some(pod(1, "one", "one")), Some(recreated)), [now("one"), now("two")]);
}
