//! Requests below an object: tokens, bindings, evictions.

use pintle_api_types::kind;
use pintle_api_types::request::Subresource;
use serde_json::json;

use super::*;

fn evict(world: &mut ServerWorld, name: &str) -> Answer {
    world.ask(&Request::Create {
        kind: kind::PODS,
        namespace: "a".to_owned(),
        below: Some(Subresource { name: name.to_owned(), sub: "eviction" }),
        body: json!({"metadata": {"name": name}}),
    })
}

/// A running, ready pod with the label that the budget selects.
fn running(world: &mut ServerWorld, name: &str) {
    let mut body = pod(name, "n");
    body["metadata"]["labels"] = json!({"app": "x"});
    let mut made = world.made(kind::PODS, body);
    made["status"] = json!({"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]});
    world.replace(kind::PODS, "status", &made).expect("a status");
}

#[test]
fn eviction_takes_a_disruption_that_the_budget_allows() {
    let mut world = ServerWorld::new();
    running(&mut world, "one");
    running(&mut world, "two");
    let budgets =
        Kind::interned("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true);
    let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}});
    let mut budget = world.made(budgets, json!({"metadata": {"name": "b"}, "spec": spec}));
    let error = evict(&mut world, "one").expect_err("the budget is not yet observed");
    assert_eq!((error.code, error.retry_after.map(|wait| wait.as_secs())), (429, Some(10)));
    budget["status"] = json!({"observedGeneration": 1, "disruptionsAllowed": 1});
    world.replace(budgets, "status", &budget).expect("a status");
    evict(&mut world, "one").expect("one disruption is allowed");
    let evicted = world.read(kind::PODS, "one").expect("it has a grace");
    assert_eq!(evicted["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(evicted["status"]["conditions"][1]["type"], "DisruptionTarget");
    let error = evict(&mut world, "two").expect_err("none is left");
    assert_eq!(error.causes, ["DisruptionBudget"]);
}

#[test]
fn template_of_a_daemon_set_is_counted_and_hidden_from_metadata() {
    let mut world = ServerWorld::new();
    let annotation = "deprecated.daemonset.template.generation";
    let mut made = world.made(kind::DAEMON_SETS, workload("x"));
    assert_eq!(made["metadata"]["annotations"][annotation], "1");
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    made["metadata"]["annotations"] = Value::Null;
    let made = world.replace(kind::DAEMON_SETS, "", &made).expect("updated");
    assert_eq!(made["metadata"]["annotations"][annotation], "2");
    let metadata = crate::metadata_of(kind::DAEMON_SETS, &made);
    assert!(metadata["metadata"]["annotations"].is_null());
}

#[test]
fn first_update_of_a_claim_is_always_a_change() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::PERSISTENT_VOLUME_CLAIMS, json!({"metadata": {"name": "x"}}));
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let first = world.replace(kind::PERSISTENT_VOLUME_CLAIMS, "", &made).expect("updated");
    assert_ne!(first["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let second = world.replace(kind::PERSISTENT_VOLUME_CLAIMS, "", &first);
    assert_eq!(second, Ok(first));
}

#[test]
fn update_in_a_deleted_namespace_is_rejected() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::CONFIG_MAPS, json!({"metadata": {"name": "x"}}));
    let mut gone =
        world.delete(kind::NAMESPACES, "a", DeleteOptions::default()).expect("it is marked");
    gone["spec"]["finalizers"] = json!([]);
    world.replace(kind::NAMESPACES, "finalize", &gone).expect("it goes");
    let error = world.replace(kind::CONFIG_MAPS, "", &made).expect_err("no namespace");
    assert_eq!(error.message, "namespaces \"a\" not found");
    world.delete(kind::CONFIG_MAPS, "x", DeleteOptions::default()).expect("deletions are allowed");
}

#[test]
fn strategic_patches_merge_lists_by_their_keys() {
    let mut world = ServerWorld::new();
    world.made(kind::DEPLOYMENTS, workload("x"));
    let containers = json!([{"name": "c", "image": "i:2"}, {"name": "d", "image": "i:3"}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let at = target(kind::DEPLOYMENTS, "x", "");
    let made = world.patch(at, PatchForm::Strategic, patch).expect("patched");
    let merged = &made["spec"]["template"]["spec"]["containers"];
    let images: Vec<_> =
        merged.as_array().expect("a list").iter().map(|one| &one["image"]).collect();
    assert_eq!(images, ["i:2", "i:3"]);
    let kind = Kind::interned("e.x", "v1", "foos", "Foo", true);
    world.made(kind, json!({"metadata": {"name": "x"}}));
    let error = world
        .patch(target(kind, "x", ""), PatchForm::Strategic, json!({}))
        .expect_err("custom resources have no merge keys");
    assert_eq!(error.code, 415);
}
