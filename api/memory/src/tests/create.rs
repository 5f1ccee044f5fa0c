//! Creations: names, defaults, namespaces that are missing or terminating.

use pintle_api_types::kind;
use serde_json::json;

use super::*;

#[test]
fn created_deployment_has_system_fields_and_defaults() {
    let mut world = ServerWorld::new();
    let made = world.made(kind::DEPLOYMENTS, workload("x"));
    let meta = &made["metadata"];
    assert_eq!((&meta["generation"], &meta["namespace"]), (&json!(1), &json!("a")));
    assert_eq!(meta["creationTimestamp"], "1970-01-01T00:00:00Z");
    assert_eq!(meta["uid"].as_str().map(str::len), Some(36));
    assert_eq!(meta["resourceVersion"], world.server.version().to_string());
    let spec = &made["spec"];
    assert_eq!(spec["replicas"], 1);
    let rolling = json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
    assert_eq!(spec["strategy"], rolling);
    assert_eq!(spec["template"]["spec"]["terminationGracePeriodSeconds"], 30);
    assert!(spec["template"]["spec"]["enableServiceLinks"].is_null(), "only pods get it");
}

#[test]
fn second_object_of_a_name_already_exists() {
    let mut world = ServerWorld::new();
    world.made(kind::DEPLOYMENTS, workload("x"));
    let error = world.create(kind::DEPLOYMENTS, workload("x")).expect_err("it exists");
    assert!(error.is_already_exists());
    assert_eq!(error.message, "deployments.apps \"x\" already exists");
}

#[test]
fn generated_names_differ_and_repeat_with_the_seed() {
    let name = |world: &mut ServerWorld| {
        let body = json!({"metadata": {"generateName": "x-"}});
        let made = world.made(kind::CONFIG_MAPS, body);
        made["metadata"]["name"].as_str().expect("a name").to_owned()
    };
    let mut world = ServerWorld::new();
    let (one, two) = (name(&mut world), name(&mut world));
    assert!(one != two && one.len() == 7, "{one} {two}");
    assert_eq!(name(&mut ServerWorld::new()), one);
}

#[test]
fn creation_needs_a_namespace_that_stays() {
    let mut world = ServerWorld::new();
    let request = |namespace: &str| Request::Create {
        kind: kind::CONFIG_MAPS,
        namespace: namespace.to_owned(),
        below: None,
        body: json!({"metadata": {"name": "x"}}),
    };
    let error = world.ask(&request("b")).expect_err("no such namespace");
    assert_eq!(error.message, "namespaces \"b\" not found");
    world.delete(kind::NAMESPACES, "a", DeleteOptions::default()).expect("a namespace");
    let error = world.ask(&request("a")).expect_err("it is terminating");
    assert!(error.is_forbidden() && error.is_namespace_terminating());
    assert_eq!(
        error.message,
        "configmaps \"x\" is forbidden: unable to create new content in namespace a because it is \
         being terminated"
    );
}

#[test]
fn job_selects_its_pods_by_its_uid() {
    let mut world = ServerWorld::new();
    let body = json!({"metadata": {"name": "x"}, "spec": {"template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}}});
    let job = world.made(kind::JOBS, body);
    let uid = &job["metadata"]["uid"];
    let label = "batch.kubernetes.io/controller-uid";
    assert_eq!(&job["spec"]["selector"]["matchLabels"][label], uid);
    assert_eq!(&job["spec"]["template"]["metadata"]["labels"]["controller-uid"], uid);
    assert_eq!(job["metadata"]["labels"]["job-name"], "x");
    assert_eq!((&job["spec"]["backoffLimit"], &job["spec"]["completions"]), (&json!(6), &json!(1)));
}

#[test]
fn restored_object_keeps_its_fields_and_its_namespace_is_created() {
    let mut world = ServerWorld::new();
    let key = ObjectKey::new("new", "x");
    let said = json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}});
    let put = |world: &mut ServerWorld, object: Value| {
        world.server.put(kind::PODS, &key, object, Timestamp::UNIX_EPOCH)
    };
    let stored = put(&mut world, said);
    assert_eq!((&stored["metadata"]["uid"], &stored["kind"]), (&json!("u"), &json!("Pod")));
    assert_eq!(stored["status"], json!({"phase": "Running"}));
    let again = put(&mut world, json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(again["metadata"]["uid"], "u");
    assert_ne!(again["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"]);
    let namespace = ObjectKey::new("", "new");
    assert!(world.server.object(kind::NAMESPACES, &namespace).is_some());
}
