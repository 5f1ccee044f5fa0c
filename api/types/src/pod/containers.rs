//! Walks a pod's containers with their kinds.
//!
//! Init containers come first in their order, then main containers, then ephemeral ones: the order
//! in which upstream's visitors walk. An ephemeral container is seen through its common fields.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use crate::ids::ContainerKind;
use k8s_openapi::api::core::v1::ContainerPort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Kind of an entry of `initContainers`.
// k8s: pkg/api/v1/pod/util.go IsRestartableInitContainer
pub fn init_kind(container: &Container) -> ContainerKind {
    if container.restart_policy.as_deref() == Some("Always") {
        ContainerKind::Sidecar
    } else {
        ContainerKind::Init
    }
}

/// True for an init container with `restartPolicy: Always`.
pub fn is_sidecar(container: &Container) -> bool {
    init_kind(container) == ContainerKind::Sidecar
}

/// Init containers with their kinds.
pub fn init(spec: &PodSpec) -> impl DoubleEndedIterator<Item = (ContainerKind, &Container)> {
    spec.init_containers.iter().flatten().map(|container| (init_kind(container), container))
}

/// Init and main containers with their kinds.
pub fn all(spec: &PodSpec) -> impl Iterator<Item = (ContainerKind, &Container)> {
    init(spec).chain(spec.containers.iter().map(|container| (ContainerKind::Main, container)))
}

/// An init or main container by name.
pub fn find<'a>(spec: &'a PodSpec, name: &str) -> Option<(ContainerKind, &'a Container)> {
    all(spec).find(|(_, container)| container.name == name)
}

/// An ephemeral container as a container.
pub fn from_ephemeral(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

/// A port's number, looked up by name among the container's ports.
pub fn port_number(port: &IntOrString, ports: &[ContainerPort]) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => ports
            .iter()
            .find(|p| p.name.as_deref() == Some(name))
            .map(|p| p.container_port)
            .or_else(|| name.parse().ok()),
    };
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
}
