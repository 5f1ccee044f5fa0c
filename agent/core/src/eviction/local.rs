//! Pods above a limit of their own on disk usage, whatever the node has left.
//!
//! Input: a pod and its usage. Output: the exceeded limit, with the kubelet's text. Pure.
// k8s: pkg/kubelet/eviction/eviction_manager.go localStorageEviction

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::pod;
use pintle_api_types::pod::resources::{self, Side};
use pintle_api_types::quantity::Amount;

use super::observed::{ContainerUse, DiskLayout, PodUse};
use super::rank::{local_volumes, sum};
use super::threshold::signed;

const STORAGE: &str = "ephemeral-storage";

/// A limit that a pod exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// As the metric names it.
    pub signal: &'static str,
    /// Message of its status and event.
    pub message: String,
}

/// True for a pod with a limit on its disk usage, which has to be measured although nothing is
/// scarce.
pub fn is_limited(pod: &Pod) -> bool {
    let mut volumes = pod::spec(pod).volumes.iter().flatten();
    volumes.any(|volume| volume.empty_dir.as_ref().is_some_and(|dir| limit_of(dir).is_some()))
        || resources::pod_limits(pod).contains_key(STORAGE)
}

/// The limit that the pod exceeds first: of a volume, of the pod, or of one container.
pub fn excess(pod: &Pod, used: &PodUse, layout: DiskLayout) -> Option<Excess> {
    of_volumes(pod, used).or_else(|| of_pod(pod, used)).or_else(|| of_container(pod, used, layout))
}

fn limit_of(dir: &k8s_openapi::api::core::v1::EmptyDirVolumeSource) -> Option<Amount> {
    let limit = dir.size_limit.as_ref().and_then(|limit| Amount::parse(&limit.0));
    limit.filter(|limit| *limit > Amount::ZERO)
}

fn bytes(count: u64) -> Amount {
    Amount::from_bytes(signed(count))
}

// k8s: emptyDirLimitEviction
fn of_volumes(pod: &Pod, used: &PodUse) -> Option<Excess> {
    pod::spec(pod).volumes.iter().flatten().find_map(|volume| {
        let limit = limit_of(volume.empty_dir.as_ref()?)?;
        let name = &volume.name;
        let over = bytes(used.volumes.get(name)?.disk.bytes) > limit;
        over.then(|| Excess {
            signal: "emptydirfs.limit",
            message: format!(
                "Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ",
                limit.canonical()
            ),
        })
    })
}

// k8s: podEphemeralStorageLimitEviction
fn of_pod(pod: &Pod, used: &PodUse) -> Option<Excess> {
    let limit = *resources::pod_limits(pod).get(STORAGE)?;
    let of_container = |container: &ContainerUse| container.layer.into_iter().chain(container.logs);
    let containers = used.containers.values().flat_map(of_container);
    let all = sum(containers.chain(local_volumes(pod, used)).chain([used.own_files]));
    (bytes(all.bytes) > limit).then(|| Excess {
        signal: "ephemeralpodfs.limit",
        message: format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            limit.canonical()
        ),
    })
}

// k8s: containerEphemeralStorageLimitEviction
fn of_container(pod: &Pod, used: &PodUse, layout: DiskLayout) -> Option<Excess> {
    pod::spec(pod).containers.iter().find_map(|container| {
        let limit = *resources::of_container(container, Side::Limits).get(STORAGE)?;
        let of = used.containers.get(&container.name)?;
        let layer = of.layer.filter(|_| !layout.images_apart);
        let all = sum(of.logs.into_iter().chain(layer));
        let over = !limit.is_zero() && bytes(all.bytes) > limit;
        over.then(|| Excess {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                container.name,
                limit.canonical()
            ),
        })
    })
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
