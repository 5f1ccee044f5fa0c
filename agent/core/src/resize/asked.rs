//! The resizes that a change of a pod's spec requests, for the counters. Pure.
// k8s: pkg/kubelet/kubelet.go recordContainerResizeOperations, resizeOperationForResources

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Serialize;

use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod;
use pintle_api_types::pod::containers;
use pintle_api_types::pod::resources::{Side, of_container};
use pintle_api_types::quantity::Amount;

/// One number of a container that is to be another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResizeRequest {
    /// `memory`, `cpu`.
    pub resource: &'static str,
    /// `requests`, `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase`, `decrease`.
    pub operation: &'static str,
}

/// The differences between two versions of a pod.
pub fn asked(before: &Pod, now: &Pod) -> Vec<ResizeRequest> {
    let is_resizable = |kind| matches!(kind, ContainerKind::Main | ContainerKind::Sidecar);
    let mut all = Vec::new();
    for (kind, old) in containers::all(pod::spec(before)).filter(|(kind, _)| is_resizable(*kind)) {
        let new = containers::find(pod::spec(now), &old.name);
        if let Some((_, new)) = new.filter(|(of, _)| *of == kind) {
            all.extend(of_one(old, new));
        }
    }
    all
}

fn of_one(old: &Container, new: &Container) -> impl Iterator<Item = ResizeRequest> {
    const ALL: [(&str, Side, &str); 4] = [
        ("memory", Side::Requests, "requests"),
        ("memory", Side::Limits, "limits"),
        ("cpu", Side::Requests, "requests"),
        ("cpu", Side::Limits, "limits"),
    ];
    ALL.into_iter().filter_map(|(resource, side, requirement)| {
        let of = |container| of_container(container, side).get(resource).copied();
        let operation = operation(of(old), of(new))?;
        Some(ResizeRequest { resource, requirement, operation })
    })
}

fn operation(old: Option<Amount>, new: Option<Amount>) -> Option<&'static str> {
    let there = |amount: Option<Amount>| amount.filter(|amount| !amount.is_zero());
    match (there(old), there(new)) {
        (None, None) => None,
        (Some(_), None) => Some("remove"),
        (None, Some(_)) => Some("add"),
        (Some(old), Some(new)) => match new.cmp(&old) {
            Ordering::Less => Some("decrease"),
            Ordering::Equal => None,
            Ordering::Greater => Some("increase"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(requests: Value, limits: Value) -> Pod {
        let resources = json!({"requests": requests, "limits": limits});
        let ephemeral = json!([{"name": "d", "image": "x"}]);
        serde_json::from_value(json!({"spec": {
            "ephemeralContainers": ephemeral,
            "initContainers": [{"name": "i", "resources": resources}],
            "containers": [{"name": "c", "resources": resources}],
        }}))
        .expect("a pod")
    }

    #[test]
    fn each_changed_resource_is_reported_with_its_direction() {
        let before = pod(json!({"cpu": "100m", "memory": "1Gi"}), json!({"cpu": "1"}));
        let now = pod(json!({"cpu": "0.1", "memory": "512Mi"}), json!({"memory": "2Gi"}));
        let one =
            |resource, requirement, operation| ResizeRequest { resource, requirement, operation };
        let expected = [
            one("memory", "requests", "decrease"),
            one("memory", "limits", "add"),
            one("cpu", "limits", "remove"),
        ];
        assert_eq!(asked(&before, &now), expected, "the init container is not resizable");
        let grown = pod(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "1"}));
        assert_eq!(asked(&before, &grown), [one("cpu", "requests", "increase")]);
        assert!(asked(&before, &before).is_empty());
    }
}
