//! The objects that a pod refers to.

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::references;
use pintle_agent_core::references::{ObjectName, ReferenceKind};
use serde_json::{Value, json};

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"namespace": "ns"}, "spec": spec})).expect("a pod")
}

#[test]
fn every_place_that_names_an_object_is_found_once() {
    let pod = pod(json!({
        "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
        "containers": [{"name": "c",
            "envFrom": [{"configMapRef": {"name": "from"}}, {"secretRef": {"name": "from"}}],
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "both", "key": "k"}}},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
        "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "init"}}]}],
        "ephemeralContainers": [{"name": "e", "envFrom": [{"configMapRef": {"name": "debug"}}]}],
        "volumes": [
            {"name": "a", "configMap": {"name": "volume"}},
            {"name": "b", "secret": {"secretName": "both"}},
            {"name": "c", "projected": {"sources": [
                {"secret": {"name": "projected"}}, {"configMap": {"name": "projected"}},
                {"serviceAccountToken": {"path": "token"}}]}},
            {"name": "d", "emptyDir": {}}]
    }));
    let found: Vec<_> = references::of(&pod)
        .into_iter()
        .map(|(key, usage)| {
            assert_eq!(key.namespace, "ns");
            assert_eq!(usage.pulls, key.name == "pull");
            (key.kind, key.name, usage.files)
        })
        .collect();
    let row = |kind, name: &str, files| (kind, name.to_owned(), files);
    assert_eq!(
        found,
        [
            row(ReferenceKind::ConfigMap, "debug", false),
            row(ReferenceKind::ConfigMap, "from", false),
            row(ReferenceKind::ConfigMap, "key", false),
            row(ReferenceKind::ConfigMap, "projected", true),
            row(ReferenceKind::ConfigMap, "volume", true),
            // By a variable and by a volume: the volume decides.
            row(ReferenceKind::Secret, "both", true),
            row(ReferenceKind::Secret, "from", false),
            row(ReferenceKind::Secret, "init", false),
            row(ReferenceKind::Secret, "projected", true),
            row(ReferenceKind::Secret, "pull", false),
        ]
    );
}

#[test]
fn a_pod_without_references_has_none() {
    assert!(references::of(&pod(json!({"containers": [{"name": "c"}]}))).is_empty());
    assert_eq!(ObjectName::new(ReferenceKind::Secret, "ns", "s").to_string(), "secret ns/s");
}
