//! Which nodes run a daemon pod.
// k8s: pkg/controller/daemon/daemon_controller_test.go TestNodeShouldRunDaemonPod

use pintle_controllers_core::kinds::{DaemonSet, Node};
use serde_json::json;

use super::super::nodes::Placement;
use super::super::template::fit_of;
use super::*;

fn placement(spec: Value, node: Value) -> Placement {
    let set = json!({"metadata": {"name": "ds"}, "spec": {"template": {"spec": spec}}});
    let set: DaemonSet = serde_json::from_value(set).expect("a set");
    let node: Node = serde_json::from_value(node).expect("a node");
    Placement::of(&fit_of(&set), &node)
}

fn node(taints: Value) -> Value {
    json!({"metadata": {"name": "a", "labels": {"disk": "ssd"}}, "spec": {"taints": taints}})
}

#[test]
fn node_is_chosen_by_name_selector_and_affinity() {
    let affinity = |values: &[&str]| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": values});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [field]}]}}}})
    };
    for (spec, placed) in [
        (json!({}), Placement::Run),
        (json!({"nodeName": "a"}), Placement::Run),
        (json!({"nodeName": "b"}), Placement::Leave),
        (json!({"nodeSelector": {"disk": "ssd"}}), Placement::Run),
        (json!({"nodeSelector": {"disk": "hdd"}}), Placement::Leave),
        (affinity(&["a"]), Placement::Run),
        (affinity(&["b"]), Placement::Leave),
        // Ports and resources are the scheduler's concern.
        (json!({"containers": [{"name": "c", "ports": [{"hostPort": 666}]}]}), Placement::Run),
    ] {
        assert_eq!(placement(spec.clone(), node(json!([]))), placed, "{spec}");
    }
}

#[test]
fn taint_keeps_new_pods_away_and_no_execute_also_old_ones() {
    for (effect, placed) in [
        ("NoSchedule", Placement::Stay),
        ("PreferNoSchedule", Placement::Run),
        ("NoExecute", Placement::Leave),
    ] {
        let taints = node(json!([{"key": "k", "value": "v", "effect": effect}]));
        assert_eq!(placement(json!({}), taints.clone()), placed, "{effect}");
        for toleration in [
            json!({"key": "k", "value": "v", "operator": "Equal"}),
            json!({"key": "k", "operator": "Exists", "effect": effect}),
            json!({"operator": "Exists"}),
        ] {
            let spec = json!({"tolerations": [toleration]});
            assert_eq!(placement(spec.clone(), taints.clone()), Placement::Run, "{spec}");
        }
    }
}

#[test]
fn problems_of_the_node_are_tolerated() {
    for (key, effect, on_host) in [
        ("node.kubernetes.io/not-ready", "NoExecute", Placement::Run),
        ("node.kubernetes.io/unreachable", "NoExecute", Placement::Run),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", Placement::Run),
        ("node.kubernetes.io/memory-pressure", "NoSchedule", Placement::Run),
        ("node.kubernetes.io/pid-pressure", "NoSchedule", Placement::Run),
        ("node.kubernetes.io/unschedulable", "NoSchedule", Placement::Run),
        ("node.kubernetes.io/network-unavailable", "NoSchedule", Placement::Run),
        ("node.kubernetes.io/out-of-service", "NoExecute", Placement::Leave),
    ] {
        let taints = node(json!([{"key": key, "effect": effect}]));
        assert_eq!(placement(json!({"hostNetwork": true}), taints.clone()), on_host, "{key}");
        let only_on_host = key == "node.kubernetes.io/network-unavailable";
        let off_host = if only_on_host { Placement::Stay } else { on_host };
        assert_eq!(placement(json!({}), taints), off_host, "{key}");
    }
}
