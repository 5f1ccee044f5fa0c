//! Which plugin's objects a kind describes, and changes of a node beside the columns.
//!
//! Input: kinds, nodes as observed. Output: one answer each, for the cache. Owner: pure functions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;

use crate::watch_event::WatchedKind;

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

/// Returns true if objects of this kind describe volumes.
pub(super) fn is_of_volumes(kind: WatchedKind) -> bool {
    matches!(
        kind,
        WatchedKind::PersistentVolume
            | WatchedKind::PersistentVolumeClaim
            | WatchedKind::StorageClass
            | WatchedKind::CSINode
            | WatchedKind::CSIDriver
            | WatchedKind::CSIStorageCapacity
            | WatchedKind::VolumeAttachment
    )
}

/// Returns true if objects of this kind describe devices.
pub(super) fn is_of_devices(kind: WatchedKind) -> bool {
    matches!(
        kind,
        WatchedKind::ResourceClaim
            | WatchedKind::ResourceSlice
            | WatchedKind::DeviceClass
            | WatchedKind::DeviceTaintRule
    )
}
