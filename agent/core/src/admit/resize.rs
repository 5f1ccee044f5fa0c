//! Resizes that this node will never grant.
// k8s: pkg/kubelet/allocation/handlers.go podResizesAdmitHandler

use k8s_openapi::api::core::v1::{Container, Pod};

use super::AdmissionNode;
use crate::resize::allocation::same;
use pintle_api_types::pod;
use pintle_api_types::pod::qos::QosClass;
use pintle_api_types::pod::resources::{Side, of_container};
use pintle_api_types::quantity::Amount;

/// Why the resize from `given` to `wanted` is out of the question, and the metric's label for it.
pub fn infeasible(
    node: &AdmissionNode,
    wanted: &Pod,
    given: &Pod,
) -> Option<(&'static str, &'static str)> {
    if node.features.limited_swap && swap_changes(wanted, given) {
        let why = "In-place resize of containers with swap is not supported.";
        return Some((why, "swap_limitation"));
    }
    let (wanted, given) = (pod::spec(wanted), pod::spec(given));
    let level = !same(wanted.resources.as_ref(), given.resources.as_ref());
    if level && !node.features.pod_level_resize {
        let why = "InPlacePodLevelResourcesVerticalScaling is disabled";
        return Some((why, "plr_feature_gate_off"));
    }
    None
}

/// True when a container's share of the swap would change while it runs.
fn swap_changes(wanted: &Pod, given: &Pod) -> bool {
    pod::containers::all(pod::spec(wanted)).any(|(_, container)| {
        let found = pod::containers::find(pod::spec(given), &container.name);
        found.is_some_and(|(_, old)| {
            let mut policies = old.resize_policy.iter().flatten();
            let restarts = policies.any(|policy| {
                policy.resource_name == "memory" && policy.restart_policy == "RestartContainer"
            });
            memory(container, Side::Requests) != memory(old, Side::Requests)
                && !restarts
                && (swaps(wanted, container) || swaps(given, old))
        })
    })
}

// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go GetContainerSwapBehavior
fn swaps(pod: &Pod, container: &Container) -> bool {
    pod::qos::class_of(pod) == QosClass::Burstable
        && !pod::is_critical(pod)
        && memory(container, Side::Requests) != memory(container, Side::Limits)
}

fn memory(container: &Container, side: Side) -> Amount {
    of_container(container, side).get("memory").copied().unwrap_or(Amount::ZERO)
}
