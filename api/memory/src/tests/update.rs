//! Updates: conflicts, generations, status and scale, patches.

use pintle_api_types::kind;
use serde_json::json;

use super::*;

fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().expect("a generation")
}

#[test]
fn update_of_an_old_version_is_a_conflict() {
    let mut world = ServerWorld::new();
    let old = world.made(kind::REPLICA_SETS, workload("x"));
    let mut new = old.clone();
    new["spec"]["replicas"] = 2.into();
    world.replace(kind::REPLICA_SETS, "", &new).expect("the version is the stored one");
    let error = world.replace(kind::REPLICA_SETS, "", &new).expect_err("the version is old");
    assert!(error.is_conflict());
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on replicasets.apps \"x\": the object has been modified; \
         please apply your changes to the latest version and try again"
    );
}

#[test]
fn only_changes_of_the_spec_raise_the_generation() {
    let mut world = ServerWorld::new();
    let mut set = world.made(kind::REPLICA_SETS, workload("x"));
    set["metadata"]["annotations"] = json!({"a": "b"});
    set["status"]["replicas"] = 5.into();
    let mut set = world.replace(kind::REPLICA_SETS, "", &set).expect("updated");
    assert_eq!((generation(&set), &set["status"]), (1, &json!({"replicas": 0})));
    set["spec"]["replicas"] = 2.into();
    let set = world.replace(kind::REPLICA_SETS, "", &set).expect("updated");
    assert_eq!(generation(&set), 2);
}

#[test]
fn annotations_of_a_deployment_raise_its_generation() {
    let mut world = ServerWorld::new();
    let mut made = world.made(kind::DEPLOYMENTS, workload("x"));
    made["metadata"]["annotations"] = json!({"a": "b"});
    let made = world.replace(kind::DEPLOYMENTS, "", &made).expect("updated");
    assert_eq!(generation(&made), 2);
}

#[test]
fn update_without_effect_keeps_the_version() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::REPLICA_SETS, workload("x"));
    let version = world.server.version();
    let mut same = made.clone();
    same["status"]["readyReplicas"] = 0.into();
    same["metadata"]["annotations"] = json!({});
    same["metadata"]["generation"] = 7.into();
    for sub in ["", "status"] {
        assert_eq!(world.replace(kind::REPLICA_SETS, sub, &same), Ok(made.clone()), "{sub}");
    }
    assert_eq!(world.server.version(), version);
}

#[test]
fn status_update_replaces_annotations_and_keeps_spec_and_labels() {
    let mut world = ServerWorld::new();
    let mut body = workload("x");
    body["metadata"]["annotations"] = json!({"a": "b"});
    body["metadata"]["labels"] = json!({"a": "b"});
    let mut made = world.made(kind::DEPLOYMENTS, body);
    made["metadata"]["annotations"] = Value::Null;
    made["metadata"]["labels"] = Value::Null;
    made["spec"]["replicas"] = 9.into();
    made["status"]["replicas"] = 3.into();
    let made = world.replace(kind::DEPLOYMENTS, "status", &made).expect("updated");
    assert_eq!(made["status"]["replicas"], 3);
    assert_eq!(made["spec"]["replicas"], 1, "a status update keeps the spec");
    assert!(made["metadata"]["annotations"].is_null(), "it erases annotations");
    assert_eq!(made["metadata"]["labels"], json!({"a": "b"}), "a Deployment keeps its labels");
    assert_eq!(generation(&made), 1);
}

#[test]
fn status_update_of_a_custom_resource_changes_only_the_status() {
    let mut world = ServerWorld::new();
    let kind = Kind::interned("e.x", "v1", "foos", "Foo", true);
    let mut made = world.made(kind, json!({"metadata": {"name": "x"}, "a": 1}));
    made["a"] = 2.into();
    made["metadata"]["labels"] = json!({"a": "b"});
    made["status"] = json!({"s": 0});
    let made = world.replace(kind, "status", &made).expect("updated");
    assert_eq!((&made["a"], &made["status"]), (&json!(1), &json!({"s": 0})));
    assert!(made["metadata"]["labels"].is_null());
}

#[test]
fn scale_changes_replicas_and_generation() {
    let mut world = ServerWorld::new();
    world.made(kind::DEPLOYMENTS, workload("x"));
    let at = target(kind::DEPLOYMENTS, "x", "scale");
    let patch = json!({"spec": {"replicas": 4}});
    let scale = world.patch(at, PatchForm::Merge, patch).expect("scaled");
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(4)));
    assert_eq!(scale["status"], json!({"replicas": 0, "selector": "app=x"}));
    let made = world.read(kind::DEPLOYMENTS, "x").expect("it is there");
    assert_eq!((generation(&made), &made["spec"]["replicas"]), (2, &json!(4)));
    let at = target(kind::JOBS, "x", "scale");
    let error = world.patch(at, PatchForm::Merge, json!({})).expect_err("jobs have no scale");
    assert!(error.is_not_found());
}

#[test]
fn four_forms_of_patches_change_objects() {
    let mut world = ServerWorld::new();
    world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}, "data": {"a": "1"}}));
    let at = || target(kind::CONFIG_MAPS, "x", "");
    let apply = PatchForm::Apply { manager: "m" };
    for (form, patch, data) in [
        (PatchForm::Strategic, json!({"data": {"b": "2"}}), json!({"a": "1", "b": "2"})),
        (PatchForm::Merge, json!({"data": {"a": null}}), json!({"b": "2"})),
        (
            PatchForm::Json,
            json!([{"op": "test", "path": "/data/b", "value": "2"},
                {"op": "replace", "path": "/data/b", "value": "3"}]),
            json!({"b": "3"}),
        ),
        (apply.clone(), json!({"data": {"c": "4"}}), json!({"b": "3", "c": "4"})),
    ] {
        let made = world.patch(at(), form.clone(), patch).expect("patched");
        assert_eq!(made["data"], data, "{form:?}");
    }
    let test = json!([{"op": "test", "path": "/data/b", "value": "9"}]);
    let error = world.patch(at(), PatchForm::Json, test).expect_err("another value");
    assert!(error.is_invalid());
    let new = target(kind::CONFIG_MAPS, "y", "");
    let body = json!({"metadata": {"name": "y"}, "data": {"a": "1"}});
    world.patch(new, apply, body).expect("apply creates");
    let absent = target(kind::CONFIG_MAPS, "z", "");
    let error = world.patch(absent, PatchForm::Merge, json!({})).expect_err("only apply creates");
    assert!(error.is_not_found());
}

#[test]
fn patch_with_an_old_version_is_a_conflict() {
    let mut world = ServerWorld::new();
    world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}}));
    let at = target(kind::CONFIG_MAPS, "x", "");
    let patch = json!({"metadata": {"resourceVersion": "1"}, "data": {"a": "1"}});
    assert!(world.patch(at, PatchForm::Merge, patch).expect_err("old").is_conflict());
}

#[test]
fn kinds_without_unconditional_updates_need_a_version() {
    let mut world = ServerWorld::new();
    let lease = json!({"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}});
    world.replace(kind::LEASES, "", &lease).expect("a lease is created by an update");
    let error = world.replace(kind::LEASES, "", &lease).expect_err("no version is stated");
    assert_eq!(
        error.message,
        "leases.coordination.k8s.io \"x\" is invalid: metadata.resourceVersion: Invalid value: 0: \
         must be specified for an update"
    );
    world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}}));
    let body = json!({"metadata": {"name": "x"}, "data": {"a": "b"}});
    world.replace(kind::CONFIG_MAPS, "", &body).expect("a config map needs none");
}

#[test]
fn update_of_an_object_with_another_uid_is_a_conflict() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}}));
    let mut other = made.clone();
    other["metadata"]["uid"] = "u".into();
    let error = world.replace(kind::CONFIG_MAPS, "", &other).expect_err("another object");
    assert!(error.is_conflict());
    assert!(error.message.contains("Key: /registry/configmaps/a/x"), "{error}");
}
