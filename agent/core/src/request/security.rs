//! A container's rights: user, groups, capabilities, profiles, namespaces, masked paths.
//!
//! Input: the pod's and the container's security context and the image's user. Output: CRI's
//! security context, or the refusal that keeps the container waiting. The container's settings win
//! over the pod's field by field. Pure.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, Pod, PodSecurityContext, SELinuxOptions, SecurityContext,
};
use pintle_cri_v1 as v1;
use v1::security_profile::ProfileType;

use pintle_api_types::pod;

mod profiles;

use profiles::{apparmor, profile, seccomp};

/// Highest user id that `runAsNonRoot` accepts of an image.
const USER_ID_MAX: i64 = i32::MAX as i64;

// k8s: pkg/securitycontext/util.go defaultMaskedPaths
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
// k8s: pkg/securitycontext/util.go defaultReadonlyPaths
const READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Why a container's rights cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// `runAsNonRoot` and user 0 in the spec.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        /// Container.
        container: String,
    },
    /// `runAsNonRoot` and an image that runs as root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: \
         {container})"
    )]
    ImageRunsAsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        /// Container.
        container: String,
    },
    /// `runAsNonRoot` and an image that names its user by name.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user \
         is non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserByName {
        /// The user.
        user: String,
        /// `name_namespace(uid)`.
        pod: String,
        /// Container.
        container: String,
    },
    /// `runAsNonRoot` and an image with an impossible user id.
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be \
         1-({USER_ID_MAX})): must be between 0 and 2147483647, inclusive (pod: {pod:?}, \
         container: {container})"
    )]
    ImageUserId {
        /// The id.
        uid: i64,
        /// `name_namespace(uid)`.
        pod: String,
        /// Container.
        container: String,
    },
    /// A local seccomp profile without a name.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfile,
    /// A local AppArmor profile without a name.
    #[error("missing localhost apparmor profile name")]
    AppArmorProfile,
    /// Not a kind of AppArmor profile.
    #[error("unknown apparmor profile type: {0:?}")]
    AppArmorType(String),
    /// Neither `Merge` nor `Strict`.
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    GroupsPolicy(String),
    /// A user namespace that the runtime cannot make.
    #[error("can't set `spec.hostUsers: false`, {0}")]
    UserNamespace(String),
}

/// The user that an image names, from `ImageStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// By number; an image that names none runs as 0.
    Id(i64),
    /// By name.
    Name(String),
}

impl ImageUser {
    /// Reads the runtime's answer. An image that is gone counts as one that runs as root.
    // k8s: pkg/kubelet/kuberuntime/helpers.go getImageUser
    pub fn of(image: Option<&v1::Image>) -> Self {
        match image {
            Some(image) if image.uid.is_some() => Self::Id(image.uid.map_or(0, |uid| uid.value)),
            Some(image) if !image.username.is_empty() => Self::Name(image.username.clone()),
            _ => Self::Id(0),
        }
    }
}

/// Ids of the node that a pod's user namespace is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id on the node.
    pub host_id: u32,
    /// How many.
    pub length: u32,
}

/// The node's side of rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityPolicy {
    /// Directory of local seccomp profiles, `<root>/seccomp`.
    pub seccomp_dir: String,
    /// `seccompDefault`: the runtime's profile where the pod names none.
    pub seccomp_default: bool,
    /// Paths of this host's CPUs to hide in addition to the usual ones:
    /// `/sys/devices/system/cpu/cpu<n>/thermal_throttle` where it exists.
    pub extra_masked_paths: Vec<String>,
}

/// Refuses root where the spec forbids it.
// k8s: pkg/kubelet/kuberuntime/security_context_others.go verifyRunAsNonRoot
pub fn verify_non_root(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
) -> Result<(), SecurityError> {
    let (of_pod, own) = contexts(pod, container);
    let wanted = own.and_then(|own| own.run_as_non_root);
    if wanted.or(of_pod.and_then(|of_pod| of_pod.run_as_non_root)) != Some(true) {
        return Ok(());
    }
    let (pod, container) = (pod::described(pod), container.name.clone());
    match (spec_user(of_pod, own), user) {
        (Some(0), _) => Err(SecurityError::RunAsRoot { pod, container }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Name(user)) => {
            Err(SecurityError::ImageUserByName { user: user.clone(), pod, container })
        }
        (None, ImageUser::Id(0)) => Err(SecurityError::ImageRunsAsRoot { pod, container }),
        (None, ImageUser::Id(uid)) if !(0..=USER_ID_MAX).contains(uid) => {
            Err(SecurityError::ImageUserId { uid: *uid, pod, container })
        }
        (None, ImageUser::Id(_)) => Ok(()),
    }
}

/// CRI's security context of a container, all but its namespaces.
// k8s: pkg/kubelet/kuberuntime/security_context.go determineEffectiveSecurityContext
pub fn container_security(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    policy: &SecurityPolicy,
    extra_groups: &[i64],
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    let (of_pod, own) = contexts(pod, container);
    let (run_as_user, run_as_username) = match (spec_user(of_pod, own), user) {
        (Some(uid), _) => (Some(uid), String::new()),
        (None, ImageUser::Id(uid)) => (Some(*uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let group = own.and_then(|own| own.run_as_group);
    let selinux = own.and_then(|own| own.se_linux_options.as_ref());
    let selinux = selinux.or(of_pod.and_then(|of_pod| of_pod.se_linux_options.as_ref()));
    let mut groups = of_pod.map(pod_groups).unwrap_or_default();
    groups.extend(extra_groups);
    let apparmor = apparmor(pod, container)?;
    let unmasked = own.and_then(|own| own.proc_mount.as_deref()) == Some("Unmasked");
    let (masked_paths, readonly_paths) =
        if unmasked { Default::default() } else { proc_paths(policy) };
    #[allow(deprecated)] // the old AppArmor field, for older runtimes
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: own.and_then(|own| own.capabilities.as_ref()).map(capability),
        privileged: own.and_then(|own| own.privileged).unwrap_or(false),
        selinux_options: selinux.map(selinux_options),
        run_as_user: run_as_user.map(int64),
        run_as_username,
        run_as_group: group.or(of_pod.and_then(|of_pod| of_pod.run_as_group)).map(int64),
        readonly_rootfs: own.and_then(|own| own.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups: groups,
        supplemental_groups_policy: groups_policy(of_pod)?,
        no_new_privs: own.and_then(|own| own.allow_privilege_escalation) == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(seccomp(of_pod, own, policy)?),
        apparmor_profile: apparmor.as_ref().map(|(_, old)| old.clone()).unwrap_or_default(),
        apparmor: apparmor.map(|(new, _)| new),
        ..Default::default()
    })
}

/// CRI's security context of a sandbox, all but its namespaces. The sandbox itself always runs
/// under the runtime's seccomp profile.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_sandbox.go generatePodSandboxLinuxConfig
pub fn sandbox_security(
    pod: &Pod,
    extra_groups: &[i64],
) -> Result<v1::LinuxSandboxSecurityContext, SecurityError> {
    let of_pod = pod::spec(pod).security_context.as_ref();
    let mut groups: Vec<i64> = of_pod.and_then(|of_pod| of_pod.fs_group).into_iter().collect();
    groups.extend(extra_groups);
    groups.extend(
        of_pod.and_then(|of_pod| of_pod.supplemental_groups.as_ref()).into_iter().flatten(),
    );
    let selinux = of_pod.and_then(|of_pod| of_pod.se_linux_options.as_ref());
    Ok(v1::LinuxSandboxSecurityContext {
        selinux_options: selinux.map(selinux_options),
        run_as_user: of_pod.and_then(|of_pod| of_pod.run_as_user).map(int64),
        run_as_group: of_pod.and_then(|of_pod| of_pod.run_as_group).map(int64),
        supplemental_groups: groups,
        supplemental_groups_policy: groups_policy(of_pod)?,
        privileged: has_privileged_container(pod),
        seccomp: Some(profile(ProfileType::RuntimeDefault)),
        ..Default::default()
    })
}

/// CRI's namespaces of a sandbox and, before `target_pid`, of its containers.
// k8s: pkg/kubelet/kuberuntime/util/util.go NamespacesForPod
pub fn namespaces(pod: &Pod, users: Option<IdRange>) -> Result<v1::NamespaceOption, SecurityError> {
    let spec = pod::spec(pod);
    let mode = |node: Option<bool>| {
        if node == Some(true) { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod }
    };
    let pid = if spec.host_pid == Some(true) {
        v1::NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    Ok(v1::NamespaceOption {
        network: mode(spec.host_network).into(),
        pid: pid.into(),
        ipc: mode(spec.host_ipc).into(),
        target_id: String::new(),
        userns_options: Some(user_namespace(spec.host_users, users)?),
    })
}

// k8s: pkg/kubelet/userns/userns_manager.go GetOrCreateUserNamespaceMappings
fn user_namespace(
    host_users: Option<bool>,
    users: Option<IdRange>,
) -> Result<v1::UserNamespace, SecurityError> {
    if host_users != Some(false) {
        let mode = v1::NamespaceMode::Node.into();
        return Ok(v1::UserNamespace { mode, ..Default::default() });
    }
    let missing = || "runtime does not support user namespaces".to_owned();
    let range = users.ok_or_else(|| SecurityError::UserNamespace(missing()))?;
    let ids = vec![v1::IdMapping { host_id: range.host_id, container_id: 0, length: range.length }];
    let mode = v1::NamespaceMode::Pod.into();
    Ok(v1::UserNamespace { mode, uids: ids.clone(), gids: ids })
}

// k8s: pkg/kubelet/container/helpers.go HasPrivilegedContainer
fn has_privileged_container(pod: &Pod) -> bool {
    let spec = pod::spec(pod);
    let privileged = |context: Option<&SecurityContext>| {
        context.and_then(|context| context.privileged) == Some(true)
    };
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    pod::containers::all(spec).any(|(_, c)| privileged(c.security_context.as_ref()))
        || ephemeral.map(|c| c.security_context.as_ref()).any(privileged)
}

fn contexts<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> (Option<&'a PodSecurityContext>, Option<&'a SecurityContext>) {
    (pod::spec(pod).security_context.as_ref(), container.security_context.as_ref())
}

fn spec_user(of_pod: Option<&PodSecurityContext>, own: Option<&SecurityContext>) -> Option<i64> {
    own.and_then(|own| own.run_as_user).or(of_pod.and_then(|of_pod| of_pod.run_as_user))
}

fn capability(list: &Capabilities) -> v1::Capability {
    v1::Capability {
        add_capabilities: list.add.clone().unwrap_or_default(),
        drop_capabilities: list.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    }
}

fn pod_groups(of_pod: &PodSecurityContext) -> Vec<i64> {
    let supplemental = of_pod.supplemental_groups.iter().flatten();
    of_pod.fs_group.iter().chain(supplemental).copied().collect()
}

fn groups_policy(of_pod: Option<&PodSecurityContext>) -> Result<i32, SecurityError> {
    match of_pod.and_then(|of_pod| of_pod.supplemental_groups_policy.as_deref()) {
        None | Some("Merge") => Ok(v1::SupplementalGroupsPolicy::Merge.into()),
        Some("Strict") => Ok(v1::SupplementalGroupsPolicy::Strict.into()),
        Some(other) => Err(SecurityError::GroupsPolicy(other.to_owned())),
    }
}

fn proc_paths(policy: &SecurityPolicy) -> (Vec<String>, Vec<String>) {
    let mut masked = MASKED_PATHS.map(str::to_owned).to_vec();
    masked.extend(policy.extra_masked_paths.iter().cloned());
    (masked, READONLY_PATHS.map(str::to_owned).to_vec())
}

fn selinux_options(options: &SELinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

fn int64(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

#[cfg(test)]
mod tests;
