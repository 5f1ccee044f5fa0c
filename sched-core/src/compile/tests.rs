//! Pods parsed by a template equal pods parsed alone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, from_value, json};

use crate::{Cluster, Profile};

/// A pod with a value in every field that a template compares.
fn rich() -> Value {
    json!({
        "metadata": {"name": "p", "uid": "u", "namespace": "d",
            "labels": {"app": "a", "apps.kubernetes.io/pod-index": "0"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o",
                "uid": "o", "controller": true}]},
        "spec": {
            "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 1, "hostPort": 2}],
                "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}}}],
            "initContainers": [{"name": "s", "image": "j:1", "restartPolicy": "Always",
                "resources": {"requests": {"memory": "1Gi"}}}],
            "volumes": [{"name": "v", "image": {"reference": "k:1"}}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}]}},
            "hostNetwork": true, "hostUsers": true, "nodeSelector": {"disk": "ssd"},
            "overhead": {"cpu": "1m"}, "resources": {"requests": {"cpu": "3"}}, "priority": 7,
            "schedulingGates": [{"name": "g"}], "tolerations": [{"operator": "Exists"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["app"]}]},
    })
}

/// Fields of a pod, with another value for each.
fn changes() -> Vec<(&'static str, Value)> {
    vec![
        ("/metadata/name", json!("q")),
        ("/metadata/uid", json!("v")),
        ("/metadata/namespace", json!("e")),
        ("/metadata/labels/app", json!("b")),
        ("/metadata/labels", json!({"app": "a"})),
        ("/metadata/labels/apps.kubernetes.io~1pod-index", json!("1")),
        ("/metadata/ownerReferences/0/kind", json!("DaemonSet")),
        ("/spec/containers/0/image", json!("i:2")),
        ("/spec/containers/0/ports/0/hostPort", json!(3)),
        ("/spec/containers/0/resources/requests/cpu", json!("2")),
        ("/spec/containers/0/resources/requests", json!({"cpu": "1", "example.com/tpu": "1"})),
        ("/spec/initContainers/0/restartPolicy", json!("Never")),
        ("/spec/initContainers/0/resources/requests/memory", json!("2Gi")),
        ("/spec/volumes/0/image/reference", json!("k:2")),
        ("/spec/affinity/podAntiAffinity", json!({})),
        ("/spec/hostUsers", json!(false)),
        ("/spec/nodeSelector/disk", json!("hdd")),
        ("/spec/overhead/cpu", json!("2m")),
        ("/spec/resources/requests/cpu", json!("4")),
        ("/spec/priority", json!(8)),
        ("/spec/schedulingGates/0/name", json!("h")),
        ("/spec/tolerations/0", json!({"key": "k", "operator": "Exists"})),
        ("/spec/topologySpreadConstraints/0/maxSkew", json!(2)),
        ("/spec", json!({"containers": [{"name": "c"}]})),
    ]
}

fn read(value: &Value) -> Pod {
    from_value(value.clone()).expect("a pod")
}

/// Prepares a pod, then again with empty templates.
fn assert_as_if_alone(cluster: &mut Cluster, pod: &Pod, what: &str) {
    let (program, spec) = cluster.prepare(pod).expect(what);
    assert!(Arc::ptr_eq(&program, &cluster.compile(pod).expect(what)), "{what}");
    assert_eq!(spec, cluster.read_pod(pod).expect(what), "{what}");
    cluster.templates.clear();
    assert_eq!(spec, cluster.read_pod(pod).expect(what), "{what}");
    cluster.templates.clear();
    assert_eq!(program, cluster.compile(pod).expect(what), "{what}");
}

#[test]
fn every_field_distinguishes_templates() {
    for (path, value) in changes() {
        let mut cluster = Cluster::new(Profile::default());
        let before = cluster.prepare(&read(&rich())).expect("a pod");
        let mut other = rich();
        *other.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        let other = read(&other);
        let after = cluster.prepare(&other).expect("a pod");
        assert!(!Arc::ptr_eq(&before.0, &after.0) || before.1 != after.1, "{path} changes nothing");
        assert_as_if_alone(&mut cluster, &other, path);
        assert_as_if_alone(&mut cluster, &read(&rich()), path);
    }
}

#[test]
fn status_and_the_node_are_each_pods_own() {
    let given = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "resources": {"requests": {"cpu": "9"}}}]});
    let started = json!({"startTime": "2024-01-01T00:00:00Z"});
    for (field, value) in [("status", given), ("status", started), ("node", json!("n"))] {
        let mut cluster = Cluster::new(Profile::default());
        cluster.prepare(&read(&rich())).expect("a pod");
        let mut other = rich();
        match field {
            "node" => other["spec"]["nodeName"] = value,
            _ => other[field] = value,
        }
        assert_as_if_alone(&mut cluster, &read(&other), field);
    }
}

#[test]
fn templates_follow_changes_of_services_namespaces_and_replica_sets() {
    let plain = |index: &str| {
        let mut pod = rich();
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(index);
        pod["spec"] = json!({"containers": [{"name": "c"}], "affinity": {"podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone",
                "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "t"}}}]}}});
        read(&pod)
    };
    let mut cluster = Cluster::new(Profile::default());
    let mut last = None;
    // A service, a selector of a single pod, a namespace, a replica set; each is removed again.
    let service = |selector: Value| {
        from_value(
            json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"selector": selector}}),
        )
        .expect("a service")
    };
    let space = |labels: Value| {
        from_value(json!({"metadata": {"name": "far", "labels": labels}})).expect("a namespace")
    };
    let set = json!({"metadata": {"name": "o", "namespace": "d"}, "spec": {
        "selector": {"matchLabels": {"app": "a"}}}});
    let set = from_value(set).expect("a replica set");
    for step in 0..9 {
        match step {
            1 => cluster.set_service(&service(json!({"app": "a"}))),
            2 => cluster.set_service(&service(json!({"apps.kubernetes.io/pod-index": "1"}))),
            3 => cluster.remove_service("d", "s"),
            4 => cluster.set_namespace(&space(json!({"team": "t"}))),
            5 => cluster.set_namespace(&space(json!({"team": "u"}))),
            6 => cluster.set_replica_set(&set),
            7 => cluster.remove_replica_set("d", "o"),
            8 => cluster.sweep(),
            _ => {}
        }
        for index in ["0", "1"] {
            let pod = plain(index);
            let program = cluster.prepare(&pod).expect("a pod").0;
            assert_as_if_alone(&mut cluster, &pod, &format!("step {step}, pod {index}"));
            let _ = cluster.prepare(&plain("0"));
            if index == "0" && [1, 4, 6].contains(&step) {
                assert_ne!(Some(&program), last.as_ref(), "step {step} changes nothing");
            }
            if index == "0" {
                last = Some(program);
            }
        }
    }
}
