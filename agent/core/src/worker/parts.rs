//! The parts of a worker's state: records of the runtime, the pod's end, failures, resizes, files of
//! volumes, the sync under way, the published status. Of all pods: lists of the runtime, and resizes
//! that wait for room.
//!
//! Plain data of [`Worker`](super::step::Worker) and [`Pods`](super::pods::Pods); their modules
//! read and write the parts directly. Bounds: the containers of one pod; the pods of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use crate::observed::{Evidence, ObservedPod};
use crate::resize::{PodResources, ResizeConditions};
use crate::shutdown::Window;
use crate::status::{PodVerdict, ProbeView, WaitingReason};
use crate::sync::backoff::{CrashLoop, Curve, Pause, Pauses};
use crate::sync::plan::ProbeVerdicts;
use crate::worker::Failure;
use crate::worker::garbage::Discards;
use crate::worker::resizes::ResizeRecord;
use crate::worker::step::{SyncRun, WorkerStage};
use pintle_api_types::ids::{ContainerId, Mono, PodUid, UnixNanos};
use pintle_api_types::pod::resources::Amounts;

/// What reads of the runtime and the kernel's notices have shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadState {
    /// The last record.
    #[serde(with = "crate::arc")]
    pub observed: Arc<ObservedPod>,
    /// When it was read.
    pub observed_at: Mono,
    pub observed_stamp: u64,
    /// A plan needs a record from a read that began after this stamp.
    pub need_stamp: u64,
    /// The stamp of the read under way.
    pub reading: Option<u64>,
    pub expected_exits: BTreeSet<ContainerId>,
    /// Containers for which the kernel reported a false exit.
    pub doubted: BTreeSet<ContainerId>,
    pub rereads: u32,
    pub failures: u32,
    pub evidence: BTreeMap<ContainerId, Evidence>,
    /// When each dead container ended.
    pub ends: BTreeMap<ContainerId, Mono>,
}

/// Why and by when the pod ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct EndState {
    /// Effective grace period in seconds once terminating; only shrinks.
    pub grace_seconds: Option<i64>,
    pub verdict: Option<PodVerdict>,
    /// The verdict is kept for a later agent.
    #[serde(default)]
    pub keeps_verdict: bool,
    /// The time by which an evicted pod should have ended.
    pub overdue_at: Option<Mono>,
    /// No source wants it any more.
    pub removed: bool,
    /// The same uid was wanted again after it was removed.
    #[serde(with = "crate::arc::option")]
    pub again: Option<Arc<Pod>>,
    /// When the pod has run as long as it may, for this start and this many seconds.
    pub deadline: Option<((UnixNanos, u64), Mono)>,
    /// It ends because the node is being shut down, in this group.
    #[serde(default)]
    pub ends_with: Option<Window>,
    /// When that shutdown began, until the first read shows whether the pod was over before.
    #[serde(default)]
    pub unjudged: Option<UnixNanos>,
}

/// Failures, and the pauses after them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RetryState {
    pub failures: u32,
    /// The next sync of the pod after a failure that affects all of it.
    pub retry_at: Option<Mono>,
    /// Containers that could not be started.
    pub pauses: Pauses,
    /// Of the removal of dead attempts.
    pub removal_pause: Option<Pause>,
    /// Containers that end again and again.
    pub crash_loop: CrashLoop,
    pub last_failure: Option<Failure>,
}

/// Resources that the pod has and wants.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResizeState {
    /// The node resources that the pod holds since it was admitted.
    pub requests: Option<Amounts>,
    /// The pod as its source has it, while it requests resources beyond its allocation.
    #[serde(with = "crate::arc::option")]
    pub wanted: Option<Arc<Pod>>,
    /// The resources that its containers were last given.
    pub actuated: PodResources,
    /// Containers of a failed resize: the runtime may have carried it out.
    pub uncertain: BTreeSet<String>,
    pub conditions: ResizeConditions,
    pub pause: Option<Pause>,
}

/// Files of the pod's volumes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FileState {
    pub prepared: bool,
    /// They are out of date.
    pub stale: bool,
    /// When they may be written again after that failed.
    pub refresh_at: Option<Mono>,
    pub refresh_failures: u32,
}

/// The sync under way, and what it needs from others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SyncState {
    pub run: Option<SyncRun>,
    /// Containers that the sync kills to start them again, until a read shows the result.
    pub replaced: BTreeMap<String, ContainerId>,
    /// How many ends of a container stay when it is started again.
    #[serde(default)]
    pub ends_kept: usize,
    /// The containers of it to remove.
    #[serde(default)]
    pub(super) discards: Option<Discards>,
}

/// The pod's status, and the probes and reasons that it is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StatusState {
    #[serde(with = "crate::arc")]
    pub status: Arc<PodStatus>,
    /// The last published status and stage.
    #[serde(with = "crate::arc::first")]
    pub published: (Arc<PodStatus>, WorkerStage),
    /// Why containers wait.
    pub waiting: BTreeMap<String, WaitingReason>,
    pub verdicts: BTreeMap<ContainerId, ProbeVerdicts>,
    pub probes: ProbeView,
    /// The last content of `Command::Probe`.
    pub probing: Option<(Vec<ContainerId>, Option<String>, bool)>,
}

/// Lists of all pods of the runtime.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ListState {
    /// One was complete.
    pub once: bool,
    /// One was complete since every source has delivered.
    pub since_ready: bool,
    /// When the next one is due.
    pub at: Mono,
    pub under_way: bool,
    /// An event was lost since the list under way began: another list follows it at once.
    pub again: bool,
    /// The first complete list of pods since every source has reported.
    pub ready_stamp: u64,
}

impl Default for ListState {
    fn default() -> Self {
        Self {
            once: false,
            since_ready: false,
            at: Mono::PAST,
            under_way: false,
            again: false,
            ready_stamp: 0,
        }
    }
}

/// Resizes that wait for room on the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResizeQueue {
    /// Records of an earlier run, for pods that have not come yet.
    pub records: BTreeMap<PodUid, ResizeRecord>,
    /// Pods with a pending resize, in the order in which it is tried again.
    pub pending: Vec<PodUid>,
    /// When they are tried again.
    pub at: Mono,
}

impl Default for ResizeQueue {
    fn default() -> Self {
        Self { records: BTreeMap::new(), pending: Vec::new(), at: Mono::NEVER }
    }
}

impl ReadState {
    /// Nothing was read yet.
    pub(super) fn new(uid: &PodUid, namespace: &str, name: &str) -> Self {
        Self {
            observed: Arc::new(ObservedPod::empty(uid.clone(), namespace, name)),
            observed_at: Mono::PAST,
            observed_stamp: 0,
            need_stamp: 1,
            reading: None,
            expected_exits: BTreeSet::new(),
            doubted: BTreeSet::new(),
            rereads: 0,
            failures: 0,
            evidence: BTreeMap::new(),
            ends: BTreeMap::new(),
        }
    }
}

impl RetryState {
    /// Nothing has failed yet.
    pub(super) fn new(curve: Curve) -> Self {
        Self {
            failures: 0,
            retry_at: None,
            pauses: Pauses::new(),
            removal_pause: None,
            crash_loop: CrashLoop::new(curve),
            last_failure: None,
        }
    }
}

impl SyncState {
    /// No sync was begun yet.
    pub(super) fn new() -> Self {
        Self { run: None, replaced: BTreeMap::new(), ends_kept: 1, discards: None }
    }
}

impl StatusState {
    /// Nothing was published yet.
    pub(super) fn new() -> Self {
        let status = Arc::<PodStatus>::default();
        Self {
            published: (Arc::clone(&status), WorkerStage::Waiting),
            status,
            waiting: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            probes: ProbeView::default(),
            probing: None,
        }
    }
}
