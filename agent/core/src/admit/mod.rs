//! Admission: decides whether a pod may run on this node, and whether a resize is granted now.
//!
//! Pure. Input: the node's offer (`AdmissionNode`), the admitted pods that still hold their share,
//! and the candidate. Output: a `Grant`, perhaps with victims, or a `Refusal` with the kubelet's
//! text, which becomes the pod's terminal status. A resize makes the same checks; there a refusal
//! only means "not now". Owner: `worker::Pods` calls it when a pod appears and when a resize is
//! tried; it keeps the sums of the admitted pods in `Taken`. Bounds: the sums of the admitted pods,
//! and one pass over them to choose victims.
//!
//! The checks run in the kubelet's order, and the first refusal counts:
//! pressure, sysctls, devices, operating system, groups, room and placement, AppArmor, features,
//! shutdown.
// k8s: pkg/kubelet/allocation/allocation_manager.go canAdmitPod, pkg/kubelet/kubelet.go

mod apparmor;
mod devices;
mod fit;
mod node;
mod placement;
mod preempt;
mod resize;
mod taken;
#[cfg(test)]
mod tests;
mod update;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::request::sysctl::FORBIDDEN_REASON;
pub use crate::status::PREEMPTING;
use crate::status::{PodVerdict, REJECTED};
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod;
use pintle_api_types::pod::qos::QosClass;
use pintle_api_types::pod::resources::Amounts;

pub(crate) use apparmor::ANNOTATION as APPARMOR_ANNOTATION;
pub use devices::needed as needed_plugin_resource;
pub use node::{AdmissionNode, Allocatable, Features};
pub use preempt::EVENT_MESSAGE as PREEMPTED;
pub use resize::infeasible;
pub use taken::{Others, TakenResources};
pub use update::{LACKING, lacking};

/// A pod that was admitted and still holds its resources.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    /// Its uid.
    pub uid: &'a PodUid,
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// Its requests: the larger of the granted amounts and the amounts still in force.
    pub requests: &'a Amounts,
}

/// A pod to admit.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionCandidate<'a> {
    /// The pod, with the resources that it requests.
    pub pod: &'a Pod,
    /// Its requests.
    pub requests: &'a Amounts,
}

/// The pod may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Pods that have to end first, because this one is critical and there is no room.
    pub victims: Vec<PodUid>,
    /// The resource that was short, for the metric; empty when none was.
    pub starved: String,
}

/// The pod must not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// The kubelet's reason: `OutOfcpu`, `NodeAffinity`, …
    pub reason: String,
    /// The kubelet's sentence, as its event has it.
    pub message: String,
    /// Only the pod's node affinity excludes it.
    pub by_affinity_alone: bool,
}

impl AdmissionRefusal {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), by_affinity_alone: false }
    }

    /// The status of the refused pod.
    // k8s: pkg/kubelet/kubelet.go rejectPod
    pub fn verdict(&self) -> PodVerdict {
        PodVerdict {
            phase: crate::status::FAILED.to_owned(),
            reason: self.reason.clone(),
            message: format!("{REJECTED}{}", self.message),
        }
    }
}

/// Decides whether a pod may run next to the admitted ones.
pub fn admit(
    node: &AdmissionNode,
    others: &Others<'_>,
    candidate: &AdmissionCandidate<'_>,
) -> Result<Grant, AdmissionRefusal> {
    let pod = candidate.pod;
    under_pressure(node, pod)?;
    if let Err(error) = node.sysctls.admit(pod) {
        return Err(AdmissionRefusal::new(FORBIDDEN_REASON, error.to_string()));
    }
    devices::check(node, pod)?;
    operating_system(node, pod)?;
    supplemental_groups(node, pod)?;
    let mut failures = fit::shortages(node, others, candidate);
    let mismatches = placement::mismatches(node, others, pod);
    let grant = match (failures.first(), mismatches.first()) {
        (None, None) => Grant::default(),
        (Some(_), None) if pod::is_critical(pod) => {
            preempt::make_room(&others.each(), pod, &mut failures)?
        }
        // A critical pod is refused for a cause that no pod's end could remove.
        (Some(_), Some(first)) if pod::is_critical(pod) => return Err(first.clone()),
        (Some(first), _) => return Err(first.refusal()),
        (None, Some(first)) => {
            let by_affinity_alone = mismatches.iter().all(|m| m.reason == placement::AFFINITY);
            return Err(AdmissionRefusal { by_affinity_alone, ..first.clone() });
        }
    };
    apparmor::check(node, pod)?;
    features(node, pod)?;
    if node.shutting_down {
        return Err(node_shutdown());
    }
    Ok(grant)
}

/// Refuses every pod while the node is being shut down.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go Admit
pub fn node_shutdown() -> AdmissionRefusal {
    AdmissionRefusal::new("NodeShutdown", "Pod was rejected as the node is shutting down.")
}

/// Pods that would make a pressure worse. Critical pods are admitted, because the node needs them.
// k8s: pkg/kubelet/eviction/eviction_manager.go Admit
fn under_pressure(node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    if node.pressures.is_empty() || pod::is_critical(pod) {
        return Ok(());
    }
    if node.pressures == ["MemoryPressure"] {
        let spares = pod::qos::class_of(pod) != QosClass::BestEffort;
        if spares || placement::tolerates_memory_pressure(pod) {
            return Ok(());
        }
    }
    let conditions = node.pressures.join(" ");
    Err(AdmissionRefusal::new("Evicted", format!("The node had condition: [{conditions}]. ")))
}

// k8s: pkg/kubelet/lifecycle/predicate.go rejectPodAdmissionBasedOnOSSelector and OnOSField
fn operating_system(_node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    const OURS: &str = "linux";
    let labels = pod.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get("kubernetes.io/os"));
    if label.is_some_and(|label| label != OURS) {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(AdmissionRefusal::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if pod::spec(pod).os.as_ref().is_some_and(|os| os.name != OURS) {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(AdmissionRefusal::new("PodOSNotSupported", message));
    }
    Ok(())
}

// k8s: pkg/kubelet/lifecycle/predicate.go rejectPodAdmissionBasedOnSupplementalGroupsPolicy
fn supplemental_groups(node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    let context = pod::spec(pod).security_context.as_ref();
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !node.features.supplemental_groups_policy {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Err(AdmissionRefusal::new("SupplementalGroupsPolicyNotSupported", message));
    }
    Ok(())
}

/// Features of the agent that the pod needs.
// k8s: pkg/kubelet/lifecycle/features_linux.go isPodLevelResourcesSupported
// k8s: pkg/kubelet/lifecycle/handlers.go declaredFeaturesAdmitHandler
fn features(node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    let spec = pod::spec(pod);
    if spec.resources.as_ref().is_some_and(pod::qos::sets_any) && !node.features.pod_level_resources
    {
        let message = "PodLevelResources feature gate is disabled";
        return Err(AdmissionRefusal::new("PodLevelResourcesNotSupported", message));
    }
    if !node.features.declared {
        return Ok(());
    }
    let shares_network = spec.host_network == Some(true) && spec.host_users == Some(false);
    let mut missing = Vec::new();
    if pod::restart::may_restart_all(spec) && !node.features.restart_all_containers {
        missing.push("RestartAllContainersOnContainerExits");
    }
    if shares_network && !node.features.user_namespaces_host_network {
        missing.push("UserNamespacesHostNetworkSupport");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(AdmissionRefusal::new("PodFeatureUnsupported", unavailable(&missing)))
}

fn unavailable(features: &[&str]) -> String {
    format!("Pod requires node features that are not available: {}", features.join(", "))
}
