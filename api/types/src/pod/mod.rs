//! Facts about a pod's spec: everything that follows from the spec alone.
//!
//! Input: `v1::Pod`. Output: names, kinds, QoS class, resource sums, restart decisions, hashes,
//! defaults and validation errors. Pure functions, no state; `source` uses the defaults and the
//! validation, `runtime`, `status` and `admit` the rest. Nothing here knows what the runtime has.

pub mod claims;
pub mod containers;
pub mod defaults;
pub mod hash;
pub mod image_name;
pub mod qos;
pub mod resources;
pub mod restart;
pub mod validate;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::ids::PodUid;

/// Annotation: which source a pod came from (`file`, `http`, `api`).
pub const ANNOTATION_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when the source first saw the pod, RFC 3339 with nanoseconds.
pub const ANNOTATION_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: the static pod's hash, equal to its uid.
pub const ANNOTATION_HASH: &str = "kubernetes.io/config.hash";
/// Annotation: on a mirror pod, the hash of the static pod it mirrors.
pub const ANNOTATION_MIRROR: &str = "kubernetes.io/config.mirror";

/// Priority from which a pod is critical to the cluster.
const PRIORITY_SYSTEM_CRITICAL: i32 = 2_000_000_000;
/// Grace period of a pod that names none, in seconds.
const GRACE_SECONDS_DEFAULT: i64 = 30;
/// Longest grace period in seconds, a year: the API sets no bound, and computations with it must
/// not overflow.
pub const GRACE_SECONDS_MAX: i64 = 365 * 24 * 3600;
/// A pod that had to go is overdue after half its grace period more, and not before this.
const OVERDUE_SECONDS_MIN: u64 = 10;

/// How long a pod may take to terminate before other pods no longer wait for it: its grace period
/// and half of it again.
// k8s: pkg/kubelet/pod_workers.go killPodNow
pub fn patience(grace_seconds: i64) -> Duration {
    let grace = grace_seconds.clamp(0, GRACE_SECONDS_MAX).unsigned_abs();
    Duration::from_secs((grace + grace / 2).max(OVERDUE_SECONDS_MIN))
}

/// The pod's spec; an object without one has an empty spec.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// The pod's uid.
pub fn uid(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// `name_namespace`, which identifies a static pod.
// k8s: pkg/kubelet/container/runtime.go GetPodFullName
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// `name_namespace(uid)`, as messages and events name a pod.
// k8s: pkg/kubelet/util/format/pod.go Pod
pub fn described(pod: &Pod) -> String {
    format!("{}({})", full_name(pod), pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The value of an annotation.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// True for a pod that comes from a file or a URL.
// k8s: pkg/kubelet/types/pod_update.go IsStaticPod
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, ANNOTATION_SOURCE).is_some_and(|source| source != "api")
}

/// True for the API object that mirrors a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, ANNOTATION_MIRROR).is_some()
}

/// True for a pod that eviction and admission must spare.
// k8s: pkg/kubelet/types/pod_update.go IsCriticalPod
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror(pod)
        || spec(pod).priority.is_some_and(|priority| priority >= PRIORITY_SYSTEM_CRITICAL)
}

/// True for a pod that the OOM killer spares.
// k8s: pkg/kubelet/types/pod_update.go IsNodeCriticalPod
pub fn is_node_critical(pod: &Pod) -> bool {
    is_critical(pod) && spec(pod).priority_class_name.as_deref() == Some("system-node-critical")
}

/// True when the pod uses the node's network namespace.
pub fn uses_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

/// True once the API server was asked to delete the pod.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Grace period of the pod's stop in seconds: the deletion's when one was asked for, else the
/// spec's.
pub fn grace_seconds(pod: &Pod) -> i64 {
    let own = spec(pod).termination_grace_period_seconds.unwrap_or(GRACE_SECONDS_DEFAULT);
    let asked = pod.metadata.deletion_grace_period_seconds.filter(|_| is_deleted(pod));
    asked.unwrap_or(own).clamp(0, GRACE_SECONDS_MAX)
}

/// Grace period after a failed liveness or startup probe: the probe's own, else the pod's.
pub fn probe_grace_seconds(pod: &Pod, probe: Option<&k8s_openapi::api::core::v1::Probe>) -> i64 {
    probe
        .and_then(|probe| probe.termination_grace_period_seconds)
        .unwrap_or_else(|| spec(pod).termination_grace_period_seconds.unwrap_or(30))
        .clamp(0, GRACE_SECONDS_MAX)
}
