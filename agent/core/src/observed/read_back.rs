//! CRI's answers as observed records.
//!
//! Input: the answers of ListPodSandbox, ListContainers and their Status calls. Output: the pod and
//! the record of `observed::types`. Sandboxes and containers without our labels belong to no pod
//! and give `None`. Pure; tolerant of every field being absent.

use std::net::IpAddr;

use pintle_cri_v1 as v1;

use crate::labels::{self, PodIdentity};
use crate::observed::{
    AppliedSettings, Evidence, ObservedContainer, ObservedMount, ObservedResources,
    ObservedSandbox, ObservedUser, RunState,
};
use crate::signal;
use pintle_api_types::ids::{ContainerId, SandboxId, UnixNanos};

/// A sandbox from its status.
pub fn sandbox(status: &v1::PodSandboxStatus) -> Option<(PodIdentity, ObservedSandbox)> {
    let owner = labels::identity(&status.labels)?;
    let namespaces = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
    let options = namespaces.and_then(|namespaces| namespaces.options.as_ref());
    let host_network = options.is_some_and(|options| options.network() == v1::NamespaceMode::Node);
    let record = ObservedSandbox {
        id: SandboxId::from(status.id.as_str()),
        ready: status.state() == v1::PodSandboxState::SandboxReady,
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        created_at: UnixNanos(status.created_at),
        ips: addresses(status.network.as_ref()),
        host_network,
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
        runtime_handler: status.runtime_handler.clone(),
    };
    Some((owner, record))
}

/// A container from its status. The status does not name the sandbox; the list does.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go toKubeContainerStatus
pub fn container(
    status: &v1::ContainerStatus,
    sandbox_id: &SandboxId,
) -> Option<(PodIdentity, ObservedContainer)> {
    let owner = labels::identity(&status.labels)?;
    let notes = labels::container_notes(&status.annotations);
    let known = status.metadata.as_ref().map(|metadata| metadata.name.as_str());
    let name = labels::container_name(&status.labels, known)?;
    let image = status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
    let image_id = if status.image_ref.is_empty() { &status.image_id } else { &status.image_ref };
    let record = ObservedContainer {
        id: ContainerId::from(status.id.as_str()),
        name,
        sandbox_id: sandbox_id.clone(),
        state: if is_cancelled(status) { RunState::Created } else { run_state(status.state()) },
        restart_count: notes.restart_count,
        hash: notes.hash,
        created_at: UnixNanos(status.created_at),
        started_at: UnixNanos(status.started_at),
        finished_at: UnixNanos(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        image,
        image_id: image_id.clone(),
        log_path: status.log_path.clone(),
        annotations: status.annotations.clone(),
        mounts: status.mounts.iter().map(mount).collect(),
        applied: applied(status),
        evidence: Evidence::default(),
    };
    Some((owner, record))
}

/// True if the caller of the start went away before anything ran, for example because the agent was
/// killed: containerd gives up and lists the container as ended. It is as good as never started.
fn is_cancelled(status: &v1::ContainerStatus) -> bool {
    status.state() == v1::ContainerState::ContainerExited
        && status.reason == "StartError"
        && status.message.starts_with("failed to create containerd task")
        && status.message.ends_with("context canceled")
}

/// CRI's state of a container.
pub fn run_state(state: v1::ContainerState) -> RunState {
    match state {
        v1::ContainerState::ContainerCreated => RunState::Created,
        v1::ContainerState::ContainerRunning => RunState::Running,
        v1::ContainerState::ContainerExited => RunState::Exited,
        v1::ContainerState::ContainerUnknown => RunState::Unknown,
    }
}

/// Addresses, the runtime's first one first. One that cannot be read makes all unknown.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_sandbox.go determinePodSandboxIPs
fn addresses(network: Option<&v1::PodSandboxNetworkStatus>) -> Vec<IpAddr> {
    let Some(network) = network else {
        return Vec::new();
    };
    let first = Some(network.ip.as_str()).filter(|ip| !ip.is_empty());
    let more = network.additional_ips.iter().map(|ip| ip.ip.as_str());
    let parsed: Result<Vec<IpAddr>, _> = first.into_iter().chain(more).map(str::parse).collect();
    parsed.unwrap_or_default()
}

fn mount(mount: &v1::Mount) -> ObservedMount {
    ObservedMount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
    }
}

fn applied(status: &v1::ContainerStatus) -> AppliedSettings {
    let linux = status.resources.as_ref().and_then(|resources| resources.linux.as_ref());
    let user = status.user.as_ref().and_then(|user| user.linux.as_ref());
    AppliedSettings {
        resources: linux.map(resources),
        user: user.map(|user| ObservedUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: user.supplemental_groups.clone(),
        }),
        stop_signal: signal::name(status.stop_signal()),
    }
}

fn resources(linux: &v1::LinuxContainerResources) -> ObservedResources {
    ObservedResources {
        cpu_shares: linux.cpu_shares,
        cpu_quota: linux.cpu_quota,
        cpu_period: linux.cpu_period,
        memory_limit_bytes: linux.memory_limit_in_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_api_types::ids::PodUid;
    use std::collections::BTreeMap;

    fn owned() -> BTreeMap<String, String> {
        let labels = [
            (labels::POD_NAME, "p"),
            (labels::POD_NAMESPACE, "ns"),
            (labels::POD_UID, "u"),
            (labels::CONTAINER_NAME, "c"),
        ];
        labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_sandbox_is_read_with_its_addresses_and_network() {
        let network = v1::PodSandboxNetworkStatus {
            ip: "10.0.0.2".to_owned(),
            additional_ips: vec![v1::PodIp { ip: "fd00::2".to_owned() }],
        };
        let options =
            v1::NamespaceOption { network: v1::NamespaceMode::Node.into(), ..Default::default() };
        let status = v1::PodSandboxStatus {
            id: "s".to_owned(),
            labels: owned(),
            network: Some(network),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: Some(options) }),
            }),
            ..Default::default()
        };
        let (owner, record) = sandbox(&status).expect("ours");
        assert_eq!(owner.uid, PodUid::from("u"));
        assert_eq!(record.ips.len(), 2);
        assert!(record.ready && record.host_network);
        let broken = v1::PodSandboxNetworkStatus {
            ip: "10.0.0.2".to_owned(),
            additional_ips: vec![v1::PodIp { ip: "x".to_owned() }],
        };
        assert_eq!(addresses(Some(&broken)), Vec::<IpAddr>::new());
    }

    #[test]
    fn container_is_read_with_its_annotations() {
        let annotations = [(labels::HASH, "582b8eef"), (labels::RESTART_COUNT, "4")];
        let status = v1::ContainerStatus {
            id: "i".to_owned(),
            state: v1::ContainerState::ContainerExited.into(),
            exit_code: 3,
            labels: owned(),
            annotations: annotations.map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            image_ref: "sha256:ref".to_owned(),
            image_id: "sha256:id".to_owned(),
            ..Default::default()
        };
        let (_, record) = container(&status, &SandboxId::from("s")).expect("ours");
        assert_eq!((record.hash, record.restart_count), (Some(0x582b_8eef), 4));
        assert_eq!((record.name.as_str(), record.image_id.as_str()), ("c", "sha256:ref"));
        assert_eq!((record.state, record.exit_code), (RunState::Exited, 3));
    }

    #[test]
    fn a_start_that_was_cancelled_before_anything_ran_is_none() {
        let state = |state: v1::ContainerState, reason: &str, message: &str| {
            let status = v1::ContainerStatus {
                state: state.into(),
                exit_code: 128,
                reason: reason.to_owned(),
                message: message.to_owned(),
                labels: owned(),
                ..Default::default()
            };
            container(&status, &SandboxId::from("s")).expect("ours").1.state
        };
        let cancelled =
            "failed to create containerd task: failed to create shim task: context canceled";
        let (exited, unknown) =
            (v1::ContainerState::ContainerExited, v1::ContainerState::ContainerUnknown);
        let started = "failed to start containerd task \"x\": context canceled";
        let broken = "failed to create containerd task: exec: \"x\": not found";
        for (runtime, reason, message, expected) in [
            (exited, "StartError", cancelled, RunState::Created),
            // Its process may have run.
            (exited, "StartError", started, RunState::Exited),
            (exited, "StartError", broken, RunState::Exited),
            (exited, "Error", cancelled, RunState::Exited),
            (unknown, "StartError", cancelled, RunState::Unknown),
        ] {
            assert_eq!(state(runtime, reason, message), expected, "{reason} {message}");
        }
    }

    #[test]
    fn sandboxes_and_containers_without_pod_labels_are_ignored() {
        assert_eq!(sandbox(&v1::PodSandboxStatus::default()), None);
        assert_eq!(container(&v1::ContainerStatus::default(), &"s".into()), None);
    }
}
