//! Seccomp and AppArmor profiles of a container.
//!
//! Input: the contexts of pod and container, the legacy annotation, the node's default. Output:
//! CRI's profiles. Pure.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext,
};
use pintle_cri_v1 as v1;
use v1::security_profile::ProfileType;

use super::{SecurityError, SecurityPolicy, contexts};
use pintle_api_types::pod;

pub(super) const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const APPARMOR_RUNTIME_DEFAULT: &str = "runtime/default";
const APPARMOR_UNCONFINED: &str = "unconfined";
const APPARMOR_LOCALHOST: &str = "localhost/";

// k8s: pkg/kubelet/kuberuntime/helpers.go getSeccompProfile
pub(crate) fn seccomp(
    of_pod: Option<&PodSecurityContext>,
    own: Option<&SecurityContext>,
    policy: &SecurityPolicy,
) -> Result<v1::SecurityProfile, SecurityError> {
    let set = own
        .and_then(|own| own.seccomp_profile.as_ref())
        .or(of_pod.and_then(|of_pod| of_pod.seccomp_profile.as_ref()));
    let Some(SeccompProfile { localhost_profile, type_ }) = set else {
        let default = if policy.seccomp_default {
            ProfileType::RuntimeDefault
        } else {
            ProfileType::Unconfined
        };
        return Ok(profile(default));
    };
    match type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Localhost" => {
            let name = localhost_profile.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or(SecurityError::SeccompProfile)?;
            let localhost_ref = format!("{}/{}", policy.seccomp_dir, name.trim_start_matches('/'));
            Ok(v1::SecurityProfile { localhost_ref, ..profile(ProfileType::Localhost) })
        }
        _ => Ok(profile(ProfileType::Unconfined)),
    }
}

/// The profile as CRI wants it, and in the old spelling for older runtimes.
// k8s: pkg/kubelet/kuberuntime/helpers.go getAppArmorProfile
pub(crate) fn apparmor(
    pod: &Pod,
    container: &Container,
) -> Result<Option<(v1::SecurityProfile, String)>, SecurityError> {
    let (of_pod, own) = contexts(pod, container);
    let annotated = || {
        let key = format!("{APPARMOR_ANNOTATION}{}", container.name);
        pod::annotation(pod, &key).and_then(apparmor_of_annotation)
    };
    let set = own
        .and_then(|own| own.app_armor_profile.clone())
        .or_else(annotated)
        .or_else(|| of_pod.and_then(|of_pod| of_pod.app_armor_profile.clone()));
    let Some(AppArmorProfile { localhost_profile, type_ }) = set else {
        return Ok(None);
    };
    Ok(Some(match type_.as_str() {
        "RuntimeDefault" => {
            (profile(ProfileType::RuntimeDefault), APPARMOR_RUNTIME_DEFAULT.to_owned())
        }
        "Unconfined" => (profile(ProfileType::Unconfined), APPARMOR_UNCONFINED.to_owned()),
        "Localhost" => {
            let name = localhost_profile.ok_or(SecurityError::AppArmorProfile)?;
            let old = format!("{APPARMOR_LOCALHOST}{name}");
            let new = profile(ProfileType::Localhost);
            (v1::SecurityProfile { localhost_ref: name, ..new }, old)
        }
        _ => return Err(SecurityError::AppArmorType(type_)),
    }))
}

// k8s: pkg/security/apparmor/helpers.go getProfileFromPodAnnotations
fn apparmor_of_annotation(value: &str) -> Option<AppArmorProfile> {
    let of = |type_: &str, name: Option<&str>| AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match value {
        APPARMOR_RUNTIME_DEFAULT => Some(of("RuntimeDefault", None)),
        APPARMOR_UNCONFINED => Some(of("Unconfined", None)),
        _ => value.strip_prefix(APPARMOR_LOCALHOST).map(|name| of("Localhost", Some(name))),
    }
}

pub(crate) fn profile(kind: ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}
