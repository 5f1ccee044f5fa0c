//! Which Deployments a change wakes.
// k8s: pkg/controller/deployment/deployment_controller_test.go

use std::time::Instant;

use pintle_api_types::kind::{DEPLOYMENTS, PODS, REPLICA_SETS};
use pintle_controllers_core::frame::{Controller, Now, Wakes};
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::{Value, json};

use super::super::DeploymentController;
use super::{ago, now};
use crate::stub_api::{put, remove};

fn deployment(name: &str, strategy: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
        "spec": {"selector": {"matchLabels": {"of": name}}, "strategy": {"type": strategy}}})
}

/// A set with the label of `label`, controlled by `owner` unless that is empty.
fn set(version: u64, label: &str, owner: &str) -> Value {
    let mut set = json!({"metadata": {"name": "set", "namespace": "n", "uid": "set",
        "resourceVersion": version.to_string(), "labels": {"of": label}}});
    if !owner.is_empty() {
        set["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1",
            "kind": "Deployment", "name": owner, "uid": owner, "controller": true}]);
    }
    set
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set",
            "uid": "set", "controller": true}]}})
}

/// Deployments one and two, and one that selects everything.
fn tables(strategy: &str) -> Tables {
    let mut tables = Tables::default();
    let mut all = deployment("all", strategy);
    all["spec"]["selector"] = json!({});
    for deployment in [deployment("one", strategy), deployment("two", strategy), all] {
        put(&mut tables, DEPLOYMENTS, &deployment);
    }
    tables
}

fn woken(tables: &Tables, changes: Vec<Change>) -> Vec<String> {
    let at = Now { instant: Instant::now(), wall: now() };
    let mut wakes = Wakes::default();
    for change in &changes {
        DeploymentController { workers: 1 }.handle_change(change, tables, at, &mut wakes);
    }
    wakes.waits().map(|(key, _)| key.name().to_owned()).collect()
}

/// The keys that a change of a set from one state to another wakes.
fn change(old: Option<Value>, new: Option<Value>) -> Vec<String> {
    let mut tables = tables("RollingUpdate");
    let mut changes = Vec::new();
    if let Some(old) = &old {
        changes = put(&mut tables, REPLICA_SETS, old);
        if new.is_none() {
            changes = remove(&mut tables, REPLICA_SETS, old);
        }
    }
    if let Some(new) = &new {
        changes = put(&mut tables, REPLICA_SETS, new);
    }
    woken(&tables, changes)
}

#[test]
fn deployment_change_wakes_the_deployment() {
    let mut tables = Tables::default();
    let value = deployment("one", "RollingUpdate");
    let changes = put(&mut tables, DEPLOYMENTS, &value);
    assert_eq!(woken(&tables, changes), ["one"]);
    let changes = remove(&mut tables, DEPLOYMENTS, &value);
    assert_eq!(woken(&tables, changes), ["one"]);
}

#[test]
fn new_set_wakes_its_controller_or_deployments_that_may_adopt_it() {
    assert_eq!(change(None, Some(set(1, "two", "one"))), ["one"]);
    assert_eq!(change(None, Some(set(1, "two", ""))), ["two"]);
    assert!(change(None, Some(set(1, "none", ""))).is_empty());
    let mut deleting = set(1, "one", "");
    deleting["metadata"]["deletionTimestamp"] = ago(1).into();
    assert!(change(None, Some(deleting.clone())).is_empty());
    deleting["metadata"]["ownerReferences"] =
        set(1, "", "one")["metadata"]["ownerReferences"].clone();
    assert_eq!(change(None, Some(deleting)), ["one"]);
    let mut other_kind = set(1, "one", "one");
    other_kind["metadata"]["ownerReferences"][0]["kind"] = "Rollout".into();
    assert!(change(None, Some(other_kind)).is_empty());
}

#[test]
fn changed_set_wakes_its_old_and_new_controllers() {
    let from = |label: &str, owner: &str| Some(set(1, label, owner));
    let to = |label: &str, owner: &str| Some(set(2, label, owner));
    assert_eq!(change(from("one", "one"), to("one", "one")), ["one"]);
    assert_eq!(change(from("one", "one"), to("one", "two")), ["one", "two"]);
    assert_eq!(change(from("one", "one"), to("two", "")), ["one", "two"]);
    assert_eq!(change(from("one", ""), to("two", "")), ["two"]);
    assert!(change(from("one", ""), to("one", "")).is_empty());
}

#[test]
fn deleted_set_wakes_its_controller() {
    assert_eq!(change(Some(set(1, "one", "one")), None), ["one"]);
    assert!(change(Some(set(1, "one", "")), None).is_empty());
}

#[test]
fn deletion_of_the_last_pod_wakes_a_recreate_deployment() {
    for (strategy, pods, expected) in [
        ("Recreate", &["a"][..], &["one"][..]),
        ("Recreate", &["a", "b"], &[]),
        ("RollingUpdate", &["a"], &[]),
    ] {
        let mut tables = tables(strategy);
        put(&mut tables, REPLICA_SETS, &set(1, "one", "one"));
        pods.iter().for_each(|name| drop(put(&mut tables, PODS, &pod(name))));
        let changes = remove(&mut tables, PODS, &pod("a"));
        assert_eq!(woken(&tables, changes), expected, "{strategy} {pods:?}");
    }
}

#[test]
fn pods_of_a_foreign_set_do_not_delay_a_recreate_deployment() {
    let mut tables = tables("Recreate");
    put(&mut tables, REPLICA_SETS, &set(1, "one", "one"));
    let mut foreign = set(1, "one", "two");
    foreign["metadata"]["name"] = "foreign".into();
    foreign["metadata"]["uid"] = "foreign".into();
    put(&mut tables, REPLICA_SETS, &foreign);
    let mut other = pod("b");
    other["metadata"]["ownerReferences"][0]["name"] = "foreign".into();
    other["metadata"]["ownerReferences"][0]["uid"] = "foreign".into();
    put(&mut tables, PODS, &other);
    put(&mut tables, PODS, &pod("a"));
    let changes = remove(&mut tables, PODS, &pod("a"));
    assert_eq!(woken(&tables, changes), ["one"]);
}

#[test]
fn pod_update_wakes_no_deployment() {
    let mut tables = tables("Recreate");
    put(&mut tables, REPLICA_SETS, &set(1, "one", "one"));
    let changes = put(&mut tables, PODS, &pod("a"));
    assert!(woken(&tables, changes).is_empty());
}
