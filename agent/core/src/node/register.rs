//! Updates of a Node object that was there before this agent.
//!
//! Input: the object for registration and the one that exists. Output: the existing one changed in
//! place; whether anything did. Pure.
// k8s: pkg/kubelet/kubelet_node_status.go tryRegisterWithAPIServer

use k8s_openapi::api::core::v1::Node;

use super::status::CONTROLLER_ATTACH;

/// Labels that follow the configuration for the node's whole life.
const LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Carries over the fields that registration owns: the attach-detach annotation, default labels,
/// huge pages.
pub fn reconcile(initial: &Node, existing: &mut Node) -> bool {
    let annotation = reconcile_annotation(initial, existing);
    let labels = reconcile_labels(initial, existing);
    let resources = reconcile_resources(initial, existing);
    annotation || labels || resources
}

fn reconcile_annotation(initial: &Node, existing: &mut Node) -> bool {
    let of = |node: &Node| node.metadata.annotations.as_ref()?.get(CONTROLLER_ATTACH).cloned();
    let (wanted, present) = (of(initial), of(existing));
    if wanted.as_deref().unwrap_or_default() == present.as_deref().unwrap_or_default() {
        return false;
    }
    let annotations = existing.metadata.annotations.get_or_insert_default();
    match wanted {
        Some(value) => annotations.insert(CONTROLLER_ATTACH.to_owned(), value),
        None => annotations.remove(CONTROLLER_ATTACH),
    };
    true
}

fn reconcile_labels(initial: &Node, existing: &mut Node) -> bool {
    let wanted = initial.metadata.labels.as_ref();
    let labels = existing.metadata.labels.get_or_insert_default();
    let mut changed = false;
    for label in LABELS {
        let Some(value) = wanted.and_then(|labels| labels.get(label)) else { continue };
        let present = labels.get(label).map(String::as_str).unwrap_or_default();
        if present != value {
            changed = true;
            labels.insert(label.to_owned(), value.clone());
        }
        if value.is_empty() {
            labels.remove(label);
        }
    }
    changed
}

/// Lists that are missing are filled; huge pages become those that the machine has.
fn reconcile_resources(initial: &Node, existing: &mut Node) -> bool {
    let wanted = initial.status.clone().unwrap_or_default();
    let status = existing.status.get_or_insert_default();
    let mut changed = false;
    for (wanted, present) in
        [(wanted.capacity, &mut status.capacity), (wanted.allocatable, &mut status.allocatable)]
    {
        let wanted = wanted.unwrap_or_default();
        let Some(present) = present else {
            changed = true;
            *present = Some(wanted);
            continue;
        };
        let before = present.clone();
        present.retain(|name, _| !name.starts_with("hugepages-") || wanted.contains_key(name));
        let huge = wanted.into_iter().filter(|(name, _)| name.starts_with("hugepages-"));
        present.extend(huge);
        changed |= before != *present;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(labels: Value, annotations: Value, capacity: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"labels": labels, "annotations": annotations},
            "status": {"capacity": capacity, "allocatable": capacity},
        }))
        .expect("a node")
    }

    #[test]
    fn foreign_labels_are_kept_and_kubelet_labels_are_reconciled() {
        let initial = node(
            json!({"kubernetes.io/hostname": "a", "topology.kubernetes.io/zone": "", "own": "1"}),
            json!({CONTROLLER_ATTACH: "true"}),
            json!({"cpu": "2"}),
        );
        let mut existing = node(
            json!({"kubernetes.io/hostname": "b", "topology.kubernetes.io/zone": "z", "x": "y"}),
            json!({}),
            json!({"cpu": "1"}),
        );
        assert!(reconcile(&initial, &mut existing));
        let labels = serde_json::to_value(&existing.metadata.labels).expect("JSON");
        assert_eq!(labels, json!({"kubernetes.io/hostname": "a", "x": "y"}));
        let annotations = existing.metadata.annotations.clone().expect("annotations");
        assert_eq!(annotations[CONTROLLER_ATTACH], "true");
        assert!(!reconcile(&initial, &mut existing), "nothing is left to do");
        let none = node(json!({}), json!({}), json!({"cpu": "2"}));
        assert!(reconcile(&none, &mut existing));
        assert!(existing.metadata.annotations.is_some_and(|all| all.is_empty()));
    }

    #[test]
    fn huge_pages_follow_the_machine() {
        let initial = node(json!({}), json!({}), json!({"hugepages-2Mi": "4Mi", "cpu": "2"}));
        let capacity = json!({"hugepages-1Gi": "1Gi", "hugepages-2Mi": "0", "cpu": "1"});
        let mut existing = node(json!({}), json!({}), capacity);
        assert!(reconcile(&initial, &mut existing));
        let capacity = existing.status.clone().and_then(|s| s.capacity).expect("capacity");
        let text = serde_json::to_value(capacity).expect("JSON");
        assert_eq!(text, json!({"hugepages-2Mi": "4Mi", "cpu": "1"}));
        let mut empty = Node::default();
        assert!(reconcile(&initial, &mut empty));
        assert!(empty.status.is_some_and(|status| status.allocatable.is_some()));
    }
}
