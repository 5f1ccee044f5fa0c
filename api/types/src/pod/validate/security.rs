//! Security contexts of pod and containers.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use super::{Errors, FieldError, Path};

/// The largest user and group id.
const ID_MAX: i64 = i32::MAX as i64;
const ID_RANGE: &str = "must be between 0 and 2147483647, inclusive";

fn check_id(errors: &mut Errors, path: &Path, id: Option<i64>) {
    if let Some(id) = id.filter(|id| !(0..=ID_MAX).contains(id)) {
        errors.push(FieldError::invalid(path, id, ID_RANGE));
    }
}

// k8s: pkg/apis/core/validation/validation.go ValidateSecurityContext
pub(super) fn check_container(errors: &mut Errors, path: &Path, context: &SecurityContext) {
    check_id(errors, &path.child("runAsUser"), context.run_as_user);
    check_id(errors, &path.child("runAsGroup"), context.run_as_group);
    if let Some(proc_mount) = context.proc_mount.as_deref() {
        errors.one_of(&path.child("procMount"), Some(proc_mount), &["Default", "Unmasked"]);
    }
    check_seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    check_apparmor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
    if context.allow_privilege_escalation == Some(false) {
        let added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
        let is_admin = |name: &String| name == "CAP_SYS_ADMIN";
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::new(path, "Invalid value", detail));
        }
        if added.into_iter().any(is_admin) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and \
                          `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::new(path, "Invalid value", detail));
        }
    }
}

// k8s: pkg/apis/core/validation/validation.go validatePodSpecSecurityContext
pub(crate) fn check_pod(
    errors: &mut Errors,
    path: &Path,
    spec: &PodSpec,
    context: &PodSecurityContext,
) {
    check_id(errors, &path.child("runAsUser"), context.run_as_user);
    check_id(errors, &path.child("runAsGroup"), context.run_as_group);
    check_id(errors, &path.child("fsGroup"), context.fs_group);
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(errors, &path.child("supplementalGroups").index(index), Some(*group));
    }
    for (name, value, supported) in [
        (
            "fsGroupChangePolicy",
            &context.fs_group_change_policy,
            ["Always", "OnRootMismatch"].as_slice(),
        ),
        (
            "supplementalGroupsPolicy",
            &context.supplemental_groups_policy,
            ["Merge", "Strict"].as_slice(),
        ),
    ] {
        if let Some(value) = value {
            errors.one_of(&path.child(name), Some(value), supported);
        }
    }
    check_seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    check_apparmor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
    check_sysctls(errors, &path.child("sysctls"), spec, context);
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        let path = Path::root("spec").child("shareProcessNamespace");
        errors.push(FieldError::invalid(path, true, detail));
    }
}

/// With `hostUsers: false` the pod has a user namespace, which excludes the node's others.
// k8s: pkg/apis/core/validation/validation.go validateHostUsers
pub(super) fn check_host_users(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    if spec.host_users != Some(false) {
        return;
    }
    for (name, set) in
        [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)]
    {
        if set == Some(true) {
            errors.push(FieldError::forbidden(path.child(name), "when `hostUsers` is false"));
        }
    }
}

fn check_seccomp(errors: &mut Errors, path: &Path, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else {
        return;
    };
    let local = profile.localhost_profile.as_deref();
    let supported = ["Localhost", "RuntimeDefault", "Unconfined"];
    errors.one_of(&path.child("type"), Some(&profile.type_), &supported);
    match (&*profile.type_, local) {
        ("Localhost", None) => {
            let detail = "must be set when seccomp type is Localhost";
            errors.push(FieldError::required(path.child("localhostProfile"), detail));
        }
        ("Localhost", Some(local)) => {
            super::volume::check_local_path(errors, &path.child("localhostProfile"), local);
        }
        (_, Some(local)) => {
            let detail = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid(path.child("localhostProfile"), local, detail));
        }
        _ => {}
    }
}

fn check_apparmor(errors: &mut Errors, path: &Path, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else {
        return;
    };
    let local = profile.localhost_profile.as_deref();
    let supported = ["Localhost", "RuntimeDefault", "Unconfined"];
    errors.one_of(&path.child("type"), Some(&profile.type_), &supported);
    let path = path.child("localhostProfile");
    match (&*profile.type_, local) {
        ("Localhost", None) => {
            let detail = "must be set when AppArmor type is Localhost";
            errors.push(FieldError::required(path, detail));
        }
        ("Localhost", Some(local)) if local.trim() != local => {
            let detail = "must not be padded with whitespace";
            errors.push(FieldError::invalid(path, local, detail));
        }
        ("Localhost", Some("")) => {
            let detail = "must be set when AppArmor type is Localhost";
            errors.push(FieldError::required(path, detail));
        }
        (kind, Some(local)) if kind != "Localhost" => {
            let detail = "can only be set when AppArmor type is Localhost";
            errors.push(FieldError::invalid(path, local, detail));
        }
        _ => {}
    }
}

// k8s: pkg/apis/core/validation/validation.go validateSysctls
fn check_sysctls(errors: &mut Errors, path: &Path, spec: &PodSpec, context: &PodSecurityContext) {
    let mut seen = Vec::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.index(index).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let normal = name.replace('/', ".");
        if !is_sysctl(name) {
            let detail = "must have at most 253 characters and match regex \
                          ^([a-z0-9][-_a-z0-9]*[\\./])*[a-z0-9][-_a-z0-9]*$";
            errors.push(FieldError::invalid(path, name, detail));
        } else if seen.contains(&normal) {
            errors.push(FieldError::duplicate(path, name));
        } else if spec.host_network == Some(true) && normal.starts_with("net.") {
            let detail = "may not be specified when 'hostNetwork' is true";
            errors.push(FieldError::invalid(path, name, detail));
        } else if spec.host_ipc == Some(true)
            && ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."]
                .iter()
                .any(|prefix| normal.starts_with(prefix))
        {
            let detail = "may not be specified when 'hostIPC' is true";
            errors.push(FieldError::invalid(path, name, detail));
        }
        seen.push(normal);
    }
}

fn is_sysctl(name: &str) -> bool {
    let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            part.starts_with(first) && part.chars().all(|c| first(c) || c == '-' || c == '_')
        })
}
