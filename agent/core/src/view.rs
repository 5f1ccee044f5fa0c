//! The server's view: a snapshot of all pods, published by the driver after each turn.
//!
//! Everything in it is shared by reference, and a snapshot shares with the one before it all that has
//! not changed (`pod_map`).

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::eviction::report::Eviction;
use crate::observed::ObservedPod;
use crate::shutdown::Window;
use crate::status::pod_map::PodMap;
use crate::sync::plan::Action;
use crate::worker::{Failure, Pods, WorkerStage};
use pintle_api_types::ids::{Now, PodUid, UnixNanos};

/// One pod.
#[derive(Clone, Debug)]
pub struct PodView {
    /// As desired.
    pub pod: Arc<Pod>,
    /// As derived.
    pub status: Arc<PodStatus>,
    /// As observed.
    pub observed: Arc<ObservedPod>,
    /// The stage of its worker.
    pub stage: WorkerStage,
    /// No source wants it any more.
    pub removed: bool,
    /// The action under way, then those of its sync that follow.
    pub doing: Vec<Action>,
    /// Last failure, until a sync succeeds.
    pub failure: Option<Failure>,
    /// When its worker next wakes.
    pub wake_at: Option<UnixNanos>,
    /// It ends, or has ended, with the node's shutdown, in this group.
    pub ends_with: Option<Window>,
    /// Why this agent evicted it, if it did.
    pub evicted: Option<Arc<Eviction>>,
}

impl PodView {
    /// The current view of a pod; `None` for an unknown one, or one that only the runtime knows.
    pub fn of(pods: &Pods, uid: &PodUid, now: Now) -> Option<Self> {
        let worker = pods.worker(uid)?;
        Some(Self {
            pod: Arc::clone(worker.pod()?),
            status: Arc::clone(worker.status()),
            observed: Arc::clone(worker.observed()),
            stage: worker.stage(),
            removed: worker.is_removed(),
            doing: worker.current_actions().to_vec(),
            failure: worker.last_failure().cloned(),
            wake_at: worker.wake_at().map(|at| now.wall_at(at)),
            ends_with: worker.ending.ends_with,
            evicted: pods.eviction_of(uid).cloned().map(Arc::new),
        })
    }
}

/// All pods at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Pods that a source wants, or wanted until their end.
    pub pods: PodMap<PodView>,
    /// Pods that only the runtime knows and that are being stopped.
    pub orphans: Vec<Arc<ObservedPod>>,
    /// Pods that are wanted in a way that cannot be read.
    pub unreadable: BTreeSet<PodUid>,
    /// Every source has reported.
    pub sources_ready: bool,
}

impl Snapshot {
    /// True if this pod is wanted, or is being stopped because it is not.
    pub fn knows(&self, uid: &PodUid) -> bool {
        let is_wanted = self.pods.contains_key(uid) || self.unreadable.contains(uid);
        is_wanted || self.orphans.iter().any(|orphan| orphan.uid == *uid)
    }
}
