//! Devices of device plugins. No plugin can register here, so a pod that needs one is refused: it
//! must never run without its device.
//!
//! The resources are those that a kubelet's device checkpoint lists as registered; a resource
//! advertised by hand is counted like any other (`fit`).
// k8s: pkg/kubelet/cm/devicemanager/manager.go readCheckpoint, allocateContainerResources

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{AdmissionNode, AdmissionRefusal};
use pintle_api_types::pod;
use pintle_api_types::pod::containers;
use pintle_api_types::pod::resources::{Side, of_container};

/// Refuses a pod that needs a device of a plugin.
// k8s: pkg/kubelet/cm/admission/errors.go GetPodAdmitResult
pub(super) fn check(node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    if node.plugin_resources.is_empty() {
        return Ok(());
    }
    let all = containers::all(pod::spec(pod));
    let wanted = all.filter_map(|(_, container)| needed(&node.plugin_resources, container)).next();
    let Some(resource) = wanted else { return Ok(()) };
    let message = format!(
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices \
         {resource}, which is unexpected"
    );
    Err(AdmissionRefusal::new("UnexpectedAdmissionError", message))
}

/// The first of these plugins' resources that a container is limited to.
pub fn needed(plugin_resources: &[String], container: &Container) -> Option<String> {
    if plugin_resources.is_empty() {
        return None;
    }
    let limits = of_container(container, Side::Limits);
    limits.into_keys().find(|resource| plugin_resources.contains(resource))
}
