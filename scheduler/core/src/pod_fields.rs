//! Fields of pods that several modules read.
//!
//! Input: pods as observed. Output: single facts about them, and the reference by which commands
//! name a pod. Owner: pure functions.

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;

use crate::uid::Uid;

/// The pod that a command concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Uid.
    pub uid: Uid,
}

/// The scheduler that a pod names.
pub fn scheduler_name(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    name.filter(|name| !name.is_empty()).unwrap_or("default-scheduler")
}

/// The node of a pod.
pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|name| !name.is_empty())
}

/// The nominated node in a pod's status.
pub(crate) fn nominated_node(pod: &Pod) -> Option<&str> {
    let nominated = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
    nominated.filter(|name| !name.is_empty())
}

/// Returns true if the pod has ended and holds no resources.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns true if volumes or devices may tie the pod to nodes.
pub fn has_claims(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let mut volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
    let claims = spec.and_then(|s| s.resource_claims.as_ref());
    volumes.any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
        || claims.is_some_and(|c| !c.is_empty())
}
