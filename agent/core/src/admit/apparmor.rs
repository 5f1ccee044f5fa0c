//! A pod that requests AppArmor runs only where the kernel enforces it.
// k8s: pkg/security/apparmor/validate.go

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};

use super::{AdmissionNode, AdmissionRefusal};
use pintle_api_types::pod;

const UNCONFINED: &str = "Unconfined";
/// The annotation that came before the field, followed by a container's name.
pub(crate) const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Only pods that have not started yet are checked.
// k8s: pkg/kubelet/lifecycle/handlers.go appArmorAdmitHandler
pub(crate) fn check(node: &AdmissionNode, pod: &Pod) -> Result<(), AdmissionRefusal> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase.is_some_and(|phase| phase != crate::status::PENDING) || !asks(pod) {
        return Ok(());
    }
    let refuse = |why: &str| {
        Err(AdmissionRefusal::new("AppArmor", format!("Cannot enforce AppArmor: {why}")))
    };
    if !node.apparmor {
        return refuse("AppArmor is not enabled on the host");
    }
    let unnamed = profiles(pod).find(|profile| {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    });
    match unnamed {
        Some(_) => refuse("invalid empty AppArmor profile name: \"\""),
        None => Ok(()),
    }
}

fn asks(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut legacy = annotations.filter(|(key, _)| key.starts_with(ANNOTATION));
    profiles(pod).any(|profile| profile.type_ != UNCONFINED)
        || legacy.any(|(_, value)| value != "unconfined")
}

fn profiles(pod: &Pod) -> impl Iterator<Item = &AppArmorProfile> {
    let spec = pod::spec(pod);
    let of_pod = spec.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let contexts = pod::containers::all(spec)
        .map(|(_, container)| container.security_context.as_ref())
        .chain(ephemeral.map(|container| container.security_context.as_ref()));
    of_pod.into_iter().chain(contexts.flatten().filter_map(|own| own.app_armor_profile.as_ref()))
}
