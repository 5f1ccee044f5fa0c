//! Status: from desired and observed to the `PodStatus` that users see, to its write to the API
//! server, and to the sentence that explains why a pod is not running. Everything is pure but for
//! `writer`, which sends requests to the API server.

pub(crate) mod conditions;
mod container;
mod derive;
mod ended;
pub(crate) mod phase;
pub mod pod_map;
#[cfg(test)]
mod proptests;
mod read_back;
mod resources;
mod restarting;
#[cfg(test)]
mod size_tests;
mod task_exit;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde::{Deserialize, Serialize};

use crate::observed::ObservedPod;
use crate::resize::{PodResources, ResizeConditions};
use crate::types::NodeFacts;
use pintle_api_types::ids::{ContainerId, UnixNanos};

pub use conditions::sandbox_serves;
pub use derive::{derive, pod_ips, settled_phase};
pub use ended::{ContainerEnd, ended};
pub use phase::{FAILED, PENDING, PREEMPTING, RUNNING, SUCCEEDED, is_terminal};
pub use restarting::is_restarting;
pub use task_exit::ending;

/// The phase of the pod's worker; decides how far the status may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Containers may be started.
    Syncing,
    /// Being stopped; nothing is started any more.
    Terminating,
    /// Nothing of it runs any more.
    Terminated,
}

/// Why a container waits, kept since its last failed or delayed start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReason {
    /// PascalCase reason: `CrashLoopBackOff`, `ErrImagePull`, `CreateContainerConfigError`, …
    pub reason: String,
    /// Sentence for users.
    pub message: String,
}

/// The probe results, by container id, so that a result never leaks into the next attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeView {
    /// Readiness; a container without an entry and without a readiness probe is ready while it
    /// runs (and has started); with a probe and without an entry it is not.
    pub ready: BTreeMap<ContainerId, bool>,
    /// Startup: an entry only when the container has a startup probe or the state was carried
    /// over a restart of the agent.
    pub started: BTreeMap<ContainerId, bool>,
}

/// A verdict over the whole pod that overrides its containers' states: deadline, eviction, refused
/// admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodVerdict {
    /// `Failed` always; kept as text because it is the API's.
    pub phase: String,
    /// `DeadlineExceeded`, `Evicted`, …
    pub reason: String,
    /// Sentence for users.
    pub message: String,
}

/// Prefix of the message of a pod that was not admitted.
// k8s: pkg/kubelet/kubelet.go rejectPod
pub const REJECTED: &str = "Pod was rejected: ";

impl PodVerdict {
    /// True for one of admission: nothing of the pod ever began.
    pub fn is_rejection(&self) -> bool {
        self.message.starts_with(REJECTED)
    }
}

/// Input of `derive`.
#[derive(Clone, Copy, Debug)]
pub struct DeriveInput<'a> {
    /// The pod as desired (defaults applied).
    pub pod: &'a Pod,
    /// Its record from the runtime; `None` before the first read.
    pub observed: Option<&'a ObservedPod>,
    /// The last status that was derived or read back; source of sticky facts and times.
    pub previous: Option<&'a PodStatus>,
    /// The phase of the worker.
    pub lifecycle: Lifecycle,
    /// Waiting reasons by container name.
    pub waiting: &'a BTreeMap<String, WaitingReason>,
    /// Probe results.
    pub probes: &'a ProbeView,
    /// Verdict over the pod, if any.
    pub verdict: Option<&'a PodVerdict>,
    /// The state of its resize.
    pub resize: &'a ResizeConditions,
    /// The resources that its containers were last given.
    pub actuated: &'a PodResources,
    /// Facts of the node.
    pub node: &'a NodeFacts,
    /// Wall-clock time of this derivation.
    pub now: UnixNanos,
}

/// Container statuses by name.
type Statuses<'a> = HashMap<&'a str, &'a ContainerStatus>;

/// Items by a name of theirs, the first of each. A pod may have very many containers, mounts and
/// attempts: none is searched for in a list for each of the others.
fn first_by<'a, T>(
    items: impl IntoIterator<Item = &'a T>,
    name: impl Fn(&'a T) -> &'a str,
) -> HashMap<&'a str, &'a T> {
    let mut found = HashMap::new();
    for item in items {
        found.entry(name(item)).or_insert(item);
    }
    found
}
