//! The worker stage: one state machine per pod, all of them in `Pods`, without clock or I/O.
//!
//! `Pods::handle(now, Input) -> Vec<Command>` is the whole interface. The driver (`crate::driver`,
//! or the simulator in `tests/`) executes commands and feeds back their results. Because nothing
//! else decides, a run is a list of inputs and can be replayed.

mod admission;
#[cfg(test)]
mod admission_tests;
mod book;
mod content;
#[cfg(test)]
mod content_tests;
#[cfg(test)]
mod cost_tests;
mod decide;
#[cfg(test)]
mod ends_tests;
mod eviction;
#[cfg(test)]
mod eviction_ends_tests;
#[cfg(test)]
mod eviction_tests;
#[cfg(test)]
mod extremes_tests;
mod garbage;
#[cfg(test)]
mod garbage_tests;
mod index;
mod line;
#[cfg(test)]
mod list_tests;
mod lobby;
#[cfg(test)]
mod lobby_tests;
mod observe;
mod parts;
mod pods;
#[cfg(test)]
pub(crate) mod proptests;
pub mod reads;
#[cfg(test)]
mod replace_tests;
mod resizes;
#[cfg(test)]
mod retry_tests;
mod shown;
mod shutdown;
#[cfg(test)]
mod shutdown_tests;
mod state;
mod step;
mod syncs;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod visits;
mod waits;
#[cfg(test)]
mod waits_tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use crate::admit;
use crate::eviction::Settings as EvictionSettings;
use crate::eviction::observed::{Freed, Observation, Scope};
use crate::eviction::signal::Signal;
use crate::garbage::containers::DeadLimits;
use crate::node::conditions::{NodeEvent, Pressure};
use crate::observed::{ObservedPod, TaskExit};
pub use crate::probe::ProbeKind;
use crate::shutdown::{Notice, ShutdownRecord};
pub use crate::status::PodVerdict;
use crate::sync::backoff::Curve;
pub use crate::sync::plan::Action;
use crate::types::NodeFacts;
use pintle_api_types::ids::{ContainerId, PodUid, UnixNanos};
pub use pods::Pods;
pub use state::State;
pub use step::{Worker, WorkerStage};
pub use syncs::ATTACHMENT_LIMIT;
pub use waits::{RETRY_TOLD, Wait};

/// An input for the set of pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PodsInput {
    /// A source wants this pod, or wants it differently.
    Desired {
        /// The pod's uid.
        uid: PodUid,
        /// The pod, defaults applied, annotated with its source.
        #[serde(with = "crate::arc")]
        pod: Arc<Pod>,
    },
    /// Only fields of other writers differ: the pod's status, as the API server has it.
    Reconciled {
        /// The pod's uid.
        uid: PodUid,
        /// The pod.
        #[serde(with = "crate::arc")]
        pod: Arc<Pod>,
    },
    /// No source wants the pod any more.
    Removed {
        /// The pod's uid.
        uid: PodUid,
    },
    /// These pods are wanted, but cannot be read: their containers are no orphans.
    Unreadable(BTreeSet<PodUid>),
    /// Every source has reported once: pods that are not desired now may be removed.
    SourcesReady,
    /// The pod is to end with this verdict (eviction, refused admission, shutdown).
    Kill {
        /// The pod's uid.
        uid: PodUid,
        /// The verdict for its status.
        verdict: PodVerdict,
        /// Grace period in seconds, if shorter than the pod's own.
        grace_seconds: Option<i64>,
    },
    /// Answer to `Command::Read`.
    Observed {
        /// The pod's uid.
        uid: PodUid,
        /// The command's stamp.
        stamp: u64,
        /// The pod, or why it could not be read.
        result: Result<ObservedPod, ReadFailure>,
    },
    /// Answer to `Command::List`: a digest of every pod that the runtime knows.
    Listed {
        /// The command's stamp.
        stamp: u64,
        /// The pods, or why they could not be listed.
        result: Result<Vec<ListedPod>, ReadFailure>,
    },
    /// A pod may have changed.
    Hint {
        /// The pod's uid.
        uid: PodUid,
        /// The hint.
        hint: Hint,
    },
    /// A container may have changed, from a source that does not know its pod.
    ContainerHint {
        /// The container, or a sandbox.
        container: ContainerId,
        /// The hint.
        hint: Hint,
    },
    /// Action `index` of a sync ended.
    Progress {
        /// The pod's uid.
        uid: PodUid,
        /// The sync.
        ticket: u64,
        /// Index into the sync's actions.
        index: usize,
        /// How it ended.
        outcome: Result<(), Failure>,
    },
    /// A sync ended; no effect of it is under way any more.
    SyncDone {
        /// The pod's uid.
        uid: PodUid,
        /// The sync.
        ticket: u64,
    },
    /// A probe's thresholded result changed.
    Probed {
        /// The pod's uid.
        uid: PodUid,
        /// The container that was probed.
        container: ContainerId,
        /// Which probe.
        probe: ProbeKind,
        /// Its result.
        healthy: bool,
    },
    /// An object that the pod refers to changed or appeared.
    Content {
        /// The pod's uid.
        uid: PodUid,
        /// Its volumes show it, and must be written again.
        files: bool,
    },
    /// A user requests that the pod's waits end now.
    Retry {
        /// The pod's uid.
        uid: PodUid,
    },
    /// Facts of the node changed.
    Node(NodeFacts),
    /// The node's offer to pods, from its object or as known without one: labels, taints,
    /// allocatable amounts, pressure.
    Admission(#[serde(with = "crate::arc")] Arc<admit::AdmissionNode>),
    /// Answer to `Command::FetchNode`.
    NodeFetched {
        /// The command's.
        ticket: u64,
        /// The node as its object is now; `None` when it could not be read.
        #[serde(with = "crate::arc::option")]
        node: Option<Arc<admit::AdmissionNode>>,
    },
    /// The machine is about to shut down, or stays up after all.
    Shutdown(Notice),
    /// Answer to `Command::Measure`; values that could not be read are absent.
    Pressure {
        /// The command's.
        ticket: u64,
        /// The node's resources left.
        observation: Box<Observation>,
    },
    /// A `Command::Reclaim` makes progress: a part of it is done.
    Reclaiming {
        /// The command's.
        ticket: u64,
    },
    /// Answer to `Command::Reclaim`, once all of it has ended.
    Reclaimed {
        /// The command's.
        ticket: u64,
        /// The result.
        freed: Freed,
    },
    /// The kernel reports that memory gets short: measure it now.
    MemoryLow,
    /// A source of hints lost some: list everything now.
    Lost,
    /// Sets how often everything is listed: the sources of hints see more or less than before.
    RelistEvery(Duration),
    /// Time has passed: check everything that is due.
    Tick,
}

/// One pod as a list call shows it; compared with the known record to find pods worth a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPod {
    /// The pod's uid.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Sorted (id, state) of its sandboxes and containers.
    pub digest: Vec<(String, u8)>,
}

/// Why a pod may be worth a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hint {
    /// The kernel saw a container's first process end.
    Exited {
        /// The container, when the event source could name it.
        container: Option<ContainerId>,
        /// Exit code as a shell shows it; `None` when the source cannot know it.
        code: Option<i32>,
        /// When.
        at: UnixNanos,
    },
    /// The runtime reported a container's end, before it has cleaned up and shows it in its lists.
    TaskExit {
        /// The container.
        container: ContainerId,
        /// The end.
        end: TaskExit,
    },
    /// The OOM killer took a process.
    Oom {
        /// The container, when the event source could name it.
        container: Option<ContainerId>,
        /// True when it was the container's first process.
        init: bool,
        /// Pid in the node's namespace.
        pid: u32,
        /// Command name; may be empty.
        comm: String,
        /// When.
        at: UnixNanos,
    },
    /// Anything else: the runtime or the kernel reports a change.
    Changed,
}

/// Reason of the failure when a sandbox was made and the runtime does not report its status.
pub const NO_SANDBOX_STATUS: &str = "FailedPodSandBoxStatus";

/// The runtime's words when a pod could not be read, or the pods not listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(transparent)]
#[error("{0}")]
pub struct ReadFailure(pub String);

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// PascalCase reason for the container's waiting state or the pod's event.
    pub reason: String,
    /// Sentence for users.
    pub message: String,
    /// When to try again at the earliest, if the effect knows (image back-off).
    pub retry_after: Option<Duration>,
    /// True when the sync was cancelled rather than refused.
    pub cancelled: bool,
}

impl Failure {
    /// A failure with reason and message.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), retry_after: None, cancelled: false }
    }

    /// The action was given up because the sync was cancelled.
    pub fn cancelled() -> Self {
        Self { cancelled: true, ..Self::new("Cancelled", "given up because the pod ends") }
    }
}

/// A request of `Pods` to the code around it.
#[derive(Clone, Debug, Serialize)]
pub enum Command {
    /// Read the pod from the runtime, beginning not before now and `after`.
    Read {
        /// The pod's uid.
        uid: PodUid,
        /// To be returned with the answer.
        stamp: u64,
        /// How long to wait first.
        after: Duration,
    },
    /// List all pods of the runtime.
    List {
        /// To be returned with the answer.
        stamp: u64,
    },
    /// Read the node's object, beginning not before now.
    FetchNode {
        /// To be returned with the answer.
        ticket: u64,
    },
    /// Execute these actions in order.
    Run {
        /// The pod's uid.
        uid: PodUid,
        /// Names the sync.
        ticket: u64,
        /// The pod; `None` for a pod that only the runtime knows.
        #[serde(serialize_with = "crate::arc::option::serialize")]
        pod: Option<Arc<Pod>>,
        /// The record on which the sync was planned.
        #[serde(serialize_with = "crate::arc::serialize")]
        observed: Arc<ObservedPod>,
        /// The actions.
        actions: Vec<Action>,
    },
    /// End the sync early: give up waits, pulls and hooks. `SyncDone` still follows.
    Cancel {
        /// The pod's uid.
        uid: PodUid,
        /// The sync.
        ticket: u64,
    },
    /// Probe exactly these containers of the pod from now on.
    Probe {
        /// The pod's uid.
        uid: PodUid,
        /// The pod.
        #[serde(serialize_with = "crate::arc::metadata::serialize")]
        pod: Arc<Pod>,
        /// Its running containers.
        #[serde(serialize_with = "crate::arc::serialize")]
        observed: Arc<ObservedPod>,
        /// Its address, as its status has it.
        pod_ip: Option<String>,
        /// Readiness only, as the pod ends; nothing when `observed` has nothing running.
        terminating: bool,
    },
    /// The pod's status changed, or its worker came to another stage.
    Publish {
        /// The pod's uid.
        uid: PodUid,
        /// The pod.
        #[serde(serialize_with = "crate::arc::metadata::serialize")]
        pod: Arc<Pod>,
        /// Its status.
        #[serde(serialize_with = "crate::arc::serialize")]
        status: Arc<PodStatus>,
        /// The stage of its worker; once it is `Finished` the pod may be deleted.
        stage: WorkerStage,
    },
    /// Emit an event for users.
    Event {
        /// The pod's uid.
        uid: PodUid,
        /// `Normal` or `Warning`.
        warning: bool,
        /// Upstream's reason.
        reason: Cow<'static, str>,
        /// Upstream's text.
        message: String,
        /// The container it is about.
        container: Option<String>,
    },
    /// Nothing is left of the pod; its record is gone.
    Gone {
        /// The pod's uid.
        uid: PodUid,
    },
    /// An event that a metric counts.
    Count(DecisionCount),
    /// How far the shutdown of the node has come, to be kept for an agent that comes after this one.
    Shutdown(ShutdownRecord),
    /// Measure the node's resources left, beginning not before now.
    Measure {
        /// To be returned with the answer.
        ticket: u64,
        /// The pods to measure.
        pods: Scope,
        /// Measure their disk usage as well, which takes longer.
        disks: bool,
    },
    /// Free a resource without evicting a pod. Dead containers that are not needed are removed
    /// before.
    Reclaim {
        /// To be returned with the answer.
        ticket: u64,
        /// The scarce signal.
        signal: Signal,
        /// How many of them.
        containers: u32,
        /// Remove all unused images.
        images: bool,
    },
    /// The node's pressure conditions changed: for its object, now.
    Pressure(Pressure),
    /// Report an eviction to users: an event with annotations.
    Evicted {
        /// The pod's uid.
        uid: PodUid,
        /// Upstream's text.
        message: String,
        /// The event's annotations.
        notes: Vec<(&'static str, String)>,
    },
    /// Emit an event about the node.
    NodeEvent(NodeEvent),
}

/// The decisions that metrics count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DecisionCount {
    /// A pod was refused for this reason.
    Refused(String),
    /// A pod was evicted because this resource was short.
    Preempted(String),
    /// A resize will never be granted, for this reason.
    Infeasible(&'static str),
    /// A resize was granted that had been put off, because of this.
    Accepted(&'static str),
    /// A pod's spec requests a resize.
    Asked(crate::resize::ResizeRequest),
    /// The runtime had a pod that no source knew.
    Orphan,
    /// A pod is begun again under its uid; whether it is a static one.
    Restarted(bool),
    /// A pod was evicted for this signal, upstream's name.
    Evicted(&'static str),
    /// How old the figures of a signal were that pods were evicted upon.
    EvictionAge(Signal, Duration),
}

/// The part of the configuration that the workers need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How often a pod is synced without a reason (`syncFrequency`).
    pub sync_period: Duration,
    /// How often everything is listed: 60 s behind a healthy kernel source, else 1 s.
    pub relist_period: Duration,
    /// Waits of containers in a crash loop.
    pub crash_loop: Curve,
    /// Name of the runtime, the prefix of container ids in the status.
    pub node: NodeFacts,
    /// The node's offer to pods, as far as is known without its object.
    #[serde(with = "crate::arc")]
    pub admission: Arc<admit::AdmissionNode>,
    /// The node has an object at an API server: pods from there wait until it was read.
    pub has_node_object: bool,
    /// When pods are evicted so that the node has enough of everything.
    #[serde(default)]
    pub eviction: EvictionSettings,
    /// How many dead containers stay.
    #[serde(default)]
    pub garbage: DeadLimits,
}
