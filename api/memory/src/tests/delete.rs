//! Deletions: graces, finalizers, propagation, preconditions.

use pintle_api_types::kind;
use pintle_api_types::request::Propagation;
use serde_json::json;

use super::*;
use crate::Change;

fn changes(world: &ServerWorld, kind: Kind) -> Vec<Change> {
    let events = world.server.events_since(kind, 0).expect("nothing is compacted");
    events.iter().map(|event| event.change).collect()
}

#[test]
fn object_without_finalizers_is_deleted_at_once() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}}));
    let answer = world.delete(kind::CONFIG_MAPS, "x", DeleteOptions::default()).expect("deleted");
    assert_eq!(answer["status"], "Success");
    assert_eq!(answer["details"]["uid"], made["metadata"]["uid"]);
    let error = world.read(kind::CONFIG_MAPS, "x").expect_err("it is gone");
    assert_eq!(error.message, "configmaps \"x\" not found");
    assert_eq!(changes(&world, kind::CONFIG_MAPS), [Change::Added, Change::Deleted]);
}

#[test]
fn pod_on_a_node_is_marked_until_its_kubelet_removes_it() {
    let mut world = ServerWorld::new();
    world.made(kind::PODS, pod("x", "n"));
    let marked = world.delete(kind::PODS, "x", DeleteOptions::default()).expect("marked");
    assert_eq!(marked["metadata"]["deletionTimestamp"], "1970-01-01T00:00:30Z");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    let version = world.server.version();
    world.delete(kind::PODS, "x", DeleteOptions::default()).expect("pending");
    assert_eq!(world.server.version(), version, "a second deletion changes nothing");
    let now = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    world.delete(kind::PODS, "x", now).expect("removed");
    assert!(world.read(kind::PODS, "x").is_err());
    let wanted = [Change::Added, Change::Modified, Change::Modified, Change::Deleted];
    assert_eq!(changes(&world, kind::PODS), wanted);
}

#[test]
fn pod_without_a_node_is_removed_at_once() {
    let mut world = ServerWorld::new();
    world.made(kind::PODS, pod("x", ""));
    let answer = world.delete(kind::PODS, "x", DeleteOptions::default()).expect("removed");
    assert_eq!(answer["metadata"]["deletionGracePeriodSeconds"], 0);
    assert!(world.read(kind::PODS, "x").is_err());
}

#[test]
fn grace_that_runs_can_be_shortened() {
    let mut world = ServerWorld::new();
    world.made(kind::PODS, pod("x", "n"));
    world.delete(kind::PODS, "x", DeleteOptions::default()).expect("marked");
    world.wait(5);
    let shorter = DeleteOptions { grace_seconds: Some(10), ..DeleteOptions::default() };
    let marked = world.delete(kind::PODS, "x", shorter).expect("marked");
    assert_eq!(marked["metadata"]["deletionTimestamp"], "1970-01-01T00:00:10Z");
}

#[test]
fn removing_the_last_finalizer_deletes_the_object() {
    let mut world = ServerWorld::new();
    let body = json!({"metadata": {"name": "x", "finalizers": ["e.x/f"]}});
    world.made(kind::CONFIG_MAPS, body);
    let mut marked =
        world.delete(kind::CONFIG_MAPS, "x", DeleteOptions::default()).expect("marked");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    let mut with_another = marked.clone();
    with_another["metadata"]["finalizers"] = json!(["e.x/f", "e.x/g"]);
    let error = world.replace(kind::CONFIG_MAPS, "", &with_another).expect_err("none is added");
    assert!(error.is_invalid(), "{error}");
    marked["metadata"]["finalizers"] = json!([]);
    world.replace(kind::CONFIG_MAPS, "", &marked).expect("the last one goes");
    assert!(world.read(kind::CONFIG_MAPS, "x").is_err());
}

#[test]
fn propagation_becomes_a_finalizer_of_the_collector() {
    let mut world = ServerWorld::new();
    for (kind, propagation, finalizer) in [
        (kind::REPLICA_SETS, Some(Propagation::Foreground), "foregroundDeletion"),
        (kind::REPLICA_SETS, Some(Propagation::Orphan), "orphan"),
        (kind::REPLICATION_CONTROLLERS, None, "orphan"),
    ] {
        let mut body = workload("x");
        if kind == kind::REPLICATION_CONTROLLERS {
            body["spec"]["selector"] = json!({"app": "x"});
        }
        world.made(kind, body);
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        let mut marked = world.delete(kind, "x", options).expect("marked");
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
        marked["metadata"]["finalizers"] = json!([]);
        world.replace(kind, "", &marked).expect("removed");
        assert!(world.read(kind, "x").is_err());
    }
    world.made(kind::REPLICA_SETS, workload("x"));
    world.delete(kind::REPLICA_SETS, "x", DeleteOptions::default()).expect("removed");
    assert!(world.read(kind::REPLICA_SETS, "x").is_err(), "background is the default");
}

#[test]
fn failed_precondition_names_the_difference() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::REPLICA_SETS, workload("x"));
    let other = DeleteOptions { uid: Some("u".to_owned()), ..DeleteOptions::default() };
    let error = world.delete(kind::REPLICA_SETS, "x", other).expect_err("another object");
    assert!(error.is_conflict());
    assert_eq!(
        error.message,
        format!(
            "Operation cannot be fulfilled on ReplicaSet.apps \"x\": the UID in the precondition \
             (u) does not match the UID in record ({}). The object might have been deleted and \
             then recreated",
            made["metadata"]["uid"].as_str().expect("a UID")
        )
    );
}

#[test]
fn namespace_stays_until_it_is_finalized() {
    let mut world = ServerWorld::new();
    let marked = world.delete(kind::NAMESPACES, "a", DeleteOptions::default()).expect("marked");
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(marked["spec"]["finalizers"], json!(["kubernetes"]));
    world.delete(kind::NAMESPACES, "a", DeleteOptions::default()).expect("still there");
    let mut finalized = marked.clone();
    finalized["spec"]["finalizers"] = json!([]);
    world.replace(kind::NAMESPACES, "", &finalized).expect("a plain update changes no spec");
    assert!(world.read(kind::NAMESPACES, "a").is_ok());
    world.replace(kind::NAMESPACES, "finalize", &finalized).expect("finalized");
    assert!(world.read(kind::NAMESPACES, "a").is_err());
    let error =
        world.delete(kind::NAMESPACES, "default", DeleteOptions::default()).expect_err("immortal");
    assert_eq!(
        error.message,
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}
