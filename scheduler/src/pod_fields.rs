//! Fields of API objects that the mirror reads itself.
//!
//! Input: pods and nodes as observed. Output: single facts about them, for the mirror. Owner: pure
//! functions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::watch::Kind;

/// Returns true if annotations or the statuses of conditions differ.
// k8s: pkg/scheduler/framework/events.go NodeSchedulingPropertiesChange
pub(super) fn differs_beside_columns(old: &Node, new: &Node) -> bool {
    let conditions = |node: &Node| {
        let all = node.status.as_ref().and_then(|status| status.conditions.clone());
        let all = all.into_iter().flatten();
        all.map(|condition| (condition.type_, condition.status)).collect::<BTreeMap<_, _>>()
    };
    old.metadata.annotations != new.metadata.annotations || conditions(old) != conditions(new)
}

/// The scheduler that a pod names.
pub(crate) fn scheduler_name(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or("default-scheduler")
}

/// The node of a pod.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|name| !name.is_empty())
}

/// The nominated node in a pod's status.
pub(super) fn nominated_node(pod: &Pod) -> Option<&str> {
    let said = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
    said.filter(|name| !name.is_empty())
}

/// Returns true if the pod has ended and holds no resources.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns true if volumes or devices may tie the pod to nodes.
pub(crate) fn has_claims(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let mut volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
    let claims = spec.and_then(|s| s.resource_claims.as_ref());
    volumes.any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
        || claims.is_some_and(|c| !c.is_empty())
}

/// Returns true if objects of this kind describe volumes.
pub(super) fn is_of_volumes(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::PersistentVolume
            | Kind::PersistentVolumeClaim
            | Kind::StorageClass
            | Kind::CSINode
            | Kind::CSIDriver
            | Kind::CSIStorageCapacity
            | Kind::VolumeAttachment
    )
}

/// Returns true if objects of this kind describe devices.
pub(super) fn is_of_devices(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ResourceClaim | Kind::ResourceSlice | Kind::DeviceClass | Kind::DeviceTaintRule
    )
}
