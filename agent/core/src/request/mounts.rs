//! A container's mounts: volumes in the order of the spec, the hosts file, the termination log.

use std::path::Path;

use pintle_cri_v1 as v1;

use super::context::{ContainerContext, PodContext};
use crate::observed::termination;
use crate::request::hostname::{self, HostnameError};
use crate::request::hosts;
use crate::volume::mounts::{PlannedMount, Propagation};
use pintle_api_types::pod;

/// Text of the pod's hosts file, to be written to `PodDirs::etc_hosts` with mode 0644 before each
/// container is created; `node_file` is the node's own, used on the node's network only.
// k8s: pkg/kubelet/kubelet_pods.go ensureHostsFile
pub fn hosts_text(ctx: &PodContext<'_>, node_file: &str) -> Result<String, HostnameError> {
    let aliases = pod::spec(ctx.pod).host_aliases.as_deref().unwrap_or_default();
    if pod::uses_host_network(ctx.pod) {
        return Ok(hosts::host_network(node_file, aliases));
    }
    let name = hostname::pod_hostname(ctx.pod, &ctx.node.dns.cluster_domain)?;
    Ok(hosts::managed(ctx.ips(), &name, aliases))
}

/// True when the agent's hosts file is mounted: the pod has an address, and the container mounts
/// nothing of its own there.
// k8s: pkg/kubelet/kubelet_pods.go shouldMountHostsFile
pub fn mounts_hosts_file(ctx: &PodContext<'_>, container: &ContainerContext<'_>) -> bool {
    let mut mounts = container.container.volume_mounts.iter().flatten();
    let has_address = !ctx.ips().is_empty() || pod::uses_host_network(ctx.pod);
    has_address && !mounts.any(|mount| mount.mount_path == hosts::HOSTS_PATH)
}

/// All mounts of a container.
// k8s: pkg/kubelet/kubelet_pods.go makeMounts
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go makeMounts
pub(super) fn container_mounts(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
) -> Vec<v1::Mount> {
    let dirs = ctx.dirs();
    let own_file = |container_path: String, host_path: &Path| v1::Mount {
        container_path,
        host_path: text(host_path),
        selinux_relabel: ctx.node.selinux,
        ..Default::default()
    };
    let volumes = container.mounts.iter();
    let mut mounts: Vec<v1::Mount> =
        volumes.map(|planned| volume_mount(ctx, container, planned)).collect();
    if mounts_hosts_file(ctx, container) {
        mounts.push(own_file(hosts::HOSTS_PATH.to_owned(), &dirs.etc_hosts()));
    }
    let path = container.container.termination_message_path.as_deref().unwrap_or_default();
    if let Some(path) = termination::absolute(path) {
        let dir = dirs.container(&container.container.name);
        mounts.push(own_file(path, &dir.join(container.termination_file)));
    }
    mounts
}

fn volume_mount(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
    planned: &PlannedMount,
) -> v1::Mount {
    let propagation = match planned.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
    };
    let (image, image_sub_path) = match &planned.image {
        Some((reference, path)) => (Some(image_spec(ctx, container, reference)), path.clone()),
        None => (None, String::new()),
    };
    v1::Mount {
        container_path: planned.container_path.clone(),
        host_path: text(&planned.host_path),
        readonly: planned.readonly,
        selinux_relabel: planned.relabel && ctx.node.selinux,
        propagation: propagation.into(),
        recursive_read_only: planned.recursive_read_only,
        image,
        image_sub_path,
        ..Default::default()
    }
}

/// The handler is not sent: its gate, RuntimeClassInImageCriApi, is off.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go getImageVolumes
fn image_spec(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
    reference: &str,
) -> v1::ImageSpec {
    let id = container.images.get(reference).map_or(reference, String::as_str);
    v1::ImageSpec {
        image: id.to_owned(),
        user_specified_image: reference.to_owned(),
        annotations: ctx.pod.metadata.annotations.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// Paths come from the configuration and the API, both text.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
