//! The order of eviction for a scarce resource.
//!
//! Input: the candidates, their usage, the scarce resource, the layout of disks. Output: the same
//! pods in order of eviction, each with the facts that decide its rank. Pure. Pods that tie are
//! ordered by uid, so that the same figures always name the same pod.
// k8s: pkg/kubelet/eviction/helpers.go rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Volume};
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod;
use pintle_api_types::pod::resources::{self, Side};
use pintle_api_types::quantity::Amount;
use serde::{Deserialize, Serialize};

use super::observed::{DiskLayout, DiskUse, PodUse, Unread};
use super::signal::{Signal, Starved};
use super::threshold::{shown, signed};

/// Pods' use, by uid.
pub type Uses = BTreeMap<PodUid, PodUse>;

/// A candidate for eviction.
#[derive(Clone, Copy, Debug)]
pub struct Evictable<'a> {
    /// Its uid.
    pub uid: &'a PodUid,
    /// The pod.
    pub pod: &'a Pod,
}

/// The facts that decide a pod's rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// There are figures of it.
    pub known: bool,
    /// It uses more than it requests.
    pub exceeds: bool,
    /// Its priority.
    pub priority: i32,
    /// How much more it uses than it requests; of process numbers how many it uses.
    pub over: Amount,
}

/// Why one pod is evicted before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvictionRule {
    /// Its usage is unknown.
    NoFigures,
    /// It uses more than it requests, and the other one does not.
    ExceedsRequest,
    /// Its priority is lower.
    Priority,
    /// It uses more over its request, or more process numbers.
    Usage,
    /// The two are equal.
    Tie,
    /// There is no other one.
    Alone,
    /// It exceeds a disk limit of its own, whatever other pods do.
    Limit,
}

/// Parts of a pod's use that lie on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskParts {
    logs: bool,
    volumes: bool,
    layers: bool,
}

impl EvictionRule {
    /// As users read it, for this shortage. Pods do not request process numbers.
    pub fn words(self, starved: Option<Starved>) -> &'static str {
        match self {
            Self::Usage if starved == Some(Starved::Pids) => "it has most processes",
            Self::NoFigures => "nothing is known of what it uses",
            Self::ExceedsRequest => "it uses more than it requests",
            Self::Priority => "its priority is the lowest of those that come into question",
            Self::Usage => "it uses most over its request",
            Self::Tie => "nothing tells it from the next one",
            Self::Alone => "no other pod may be evicted",
            Self::Limit => "it uses more of a disk than it may",
        }
    }
}

/// The first one to evict.
pub fn rank<'a>(
    pods: impl IntoIterator<Item = Evictable<'a>>,
    uses: &Uses,
    signal: Signal,
    layout: DiskLayout,
) -> Vec<(Evictable<'a>, Weight)> {
    let weighed = pods.into_iter().map(|of| {
        let weight = weight(of.pod, uses.get(of.uid), signal, layout);
        (of, weight)
    });
    let mut all: Vec<_> = weighed.collect();
    let starved = signal.starved();
    all.sort_by_cached_key(|(of, weight)| (key(starved, weight), of.uid.clone()));
    all
}

/// True if usage of this is known for some pod. Disks have many parts, and each is read for itself:
/// see `unread`.
pub fn has_usage(uses: &Uses, signal: Signal) -> bool {
    uses.values().any(|used| match signal.starved() {
        Starved::Memory => used.working_set.is_some(),
        Starved::Pids => used.processes.is_some(),
        Starved::EphemeralStorage | Starved::Inodes => true,
    })
}

/// The usage that counts for this signal and could not be read of some of these pods.
pub fn unread(pods: &[Evictable<'_>], uses: &Uses, signal: Signal, layout: DiskLayout) -> Unread {
    if !signal.is_of_disk() {
        return Unread::default();
    }
    let parts = parts(signal, layout);
    let of_pods = pods.iter().filter_map(|of| uses.get(of.uid)).map(|used| used.unread);
    of_pods.fold(Unread::default(), |all, of| Unread {
        layers: all.layers || of.layers && parts.layers,
        new_layers: all.new_layers || of.new_layers && parts.layers,
        logs: all.logs || of.logs && parts.logs,
        volumes: all.volumes || of.volumes && parts.volumes,
    })
}

/// Why the first comes before the second.
pub fn rule(starved: Starved, first: &Weight, second: Option<&Weight>) -> EvictionRule {
    let Some(second) = second else { return EvictionRule::Alone };
    let by_priority = first.priority != second.priority;
    if starved == Starved::Pids && by_priority {
        return EvictionRule::Priority;
    }
    if first.known != second.known {
        return EvictionRule::NoFigures;
    }
    if starved != Starved::Pids && first.exceeds != second.exceeds {
        return EvictionRule::ExceedsRequest;
    }
    if by_priority {
        return EvictionRule::Priority;
    }
    if first.over == second.over { EvictionRule::Tie } else { EvictionRule::Usage }
}

/// The sort key; the least is evicted first.
fn key(starved: Starved, of: &Weight) -> (i64, i64, Reverse<Amount>) {
    let (unknown, within) = (i64::from(of.known), i64::from(!of.exceeds));
    match starved {
        Starved::Pids => (of.priority.into(), unknown, Reverse(of.over)),
        _ => (if of.known { 1 + within } else { 0 }, of.priority.into(), Reverse(of.over)),
    }
}

fn weight(pod: &Pod, used: Option<&PodUse>, signal: Signal, layout: DiskLayout) -> Weight {
    let starved = signal.starved();
    let amount = used.map_or(0, |used| match starved {
        Starved::Memory => used.working_set.unwrap_or(0),
        Starved::Pids => used.processes.unwrap_or(0),
        Starved::EphemeralStorage => disk_use(pod, used, parts(signal, layout)).bytes,
        Starved::Inodes => disk_use(pod, used, parts(signal, layout)).inodes,
    });
    let amount = shown(starved, signed(amount));
    // Inodes cannot be requested; the excess is computed from requested bytes, as upstream does.
    let (requested, over) = match starved {
        Starved::Pids => (Amount::ZERO, amount),
        Starved::Memory => {
            let requested = request(pod, "memory");
            (requested, amount.minus(requested))
        }
        Starved::EphemeralStorage => {
            let requested = request(pod, "ephemeral-storage");
            (requested, amount.minus(requested))
        }
        Starved::Inodes => (Amount::ZERO, amount.minus(request(pod, "ephemeral-storage"))),
    };
    Weight {
        known: used.is_some(),
        exceeds: amount > requested,
        priority: pod::spec(pod).priority.unwrap_or(0),
        over: if used.is_some() { over } else { Amount::ZERO },
    }
}

/// The pod's request, plus overhead where it requests anything. If the pod has pod-level requests
/// or limits, a resource that only its containers request does not count.
// k8s: pkg/api/v1/resource/helpers.go GetResourceRequestQuantity
fn request(pod: &Pod, resource: &str) -> Amount {
    let spec = pod::spec(pod);
    let of = |amounts: &resources::Amounts| amounts.get(resource).copied().unwrap_or(Amount::ZERO);
    let overhead = of(&resources::amounts(spec.overhead.as_ref()));
    let all = match resources::has_pod_level(spec) {
        true => of(&resources::pod_level(spec, Side::Requests)) + overhead,
        false => of(&resources::pod_requests(pod)),
    };
    if all.minus(overhead).is_zero() { Amount::ZERO } else { all }
}

/// True when the content of volumes counts for this signal.
pub(super) fn counts_volumes(signal: Signal, layout: DiskLayout) -> bool {
    signal.is_of_disk() && parts(signal, layout).volumes
}

// k8s: pkg/kubelet/eviction/helpers.go buildSignalToRankFunc
fn parts(signal: Signal, layout: DiskLayout) -> DiskParts {
    let of_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    let of_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    match (layout.images_apart, layout.layers_apart) {
        (false, _) => DiskParts { logs: true, volumes: true, layers: true },
        (true, false) => DiskParts { logs: of_node, volumes: of_node, layers: !of_node },
        (true, true) => DiskParts { logs: !of_images, volumes: !of_images, layers: !of_images },
    }
}

// k8s: pkg/kubelet/eviction/helpers.go podDiskUsage
fn disk_use(pod: &Pod, used: &PodUse, parts: DiskParts) -> DiskUse {
    let containers = used.containers.values().flat_map(|container| {
        let layer = container.layer.filter(|_| parts.layers);
        layer.into_iter().chain(container.logs.filter(|_| parts.logs))
    });
    let volumes = local_volumes(pod, used).filter(|_| parts.volumes);
    sum(containers.chain(volumes))
}

/// The volumes of a pod that are directories of the node.
// k8s: pkg/kubelet/eviction/helpers.go localVolumeNames
pub(super) fn local_volumes<'a>(
    pod: &'a Pod,
    used: &'a PodUse,
) -> impl Iterator<Item = DiskUse> + 'a {
    let local = pod::spec(pod).volumes.iter().flatten().filter(|volume| is_local(volume));
    local.filter_map(|volume| used.volumes.get(&volume.name)).map(|volume| volume.disk)
}

// k8s: pkg/volume/util/util.go IsLocalEphemeralVolume
fn is_local(volume: &Volume) -> bool {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    volume.host_path.is_some()
        || volume.git_repo.is_some()
        || volume.config_map.is_some()
        || volume.empty_dir.as_ref().is_some_and(|dir| on_disk(&dir.medium))
}

pub(super) fn sum(uses: impl Iterator<Item = DiskUse>) -> DiskUse {
    uses.fold(DiskUse::default(), |sum, next| DiskUse {
        bytes: sum.bytes.saturating_add(next.bytes),
        inodes: sum.inodes.saturating_add(next.inodes),
    })
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;
