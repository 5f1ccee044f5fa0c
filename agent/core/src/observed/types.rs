//! The runtime's and the kernel's reports about one pod: plain data, no behaviour beyond look-ups.
//!
//! Input of `runtime::plan` and `status::derive`; built from CRI answers in `observed::read` and
//! changed only by `observed::store`. Lists are newest first, so "the current container of a name"
//! is the first hit.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::runtime_spec::SpecFacts;
use pintle_api_types::ids::{ContainerId, PodUid, SandboxId, UnixNanos, Version};

/// Everything observed about one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedPod {
    /// The pod's uid, from the labels of its sandboxes and containers.
    pub uid: PodUid,
    /// The pod's name, from the labels.
    pub name: String,
    /// The pod's namespace, from the labels.
    pub namespace: String,
    /// Counts the changes of this record.
    pub version: Version,
    /// Sandboxes, newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Containers of all sandboxes and attempts, newest first.
    pub containers: Vec<ObservedContainer>,
    /// Runtime specs of the sandboxes and containers that were there before this agent, by their
    /// ids, when the runtime reports them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub specs: BTreeMap<String, SpecFacts>,
}

/// One pod sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedSandbox {
    /// Runtime id.
    pub id: SandboxId,
    /// Ready or not.
    pub ready: bool,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Creation time.
    pub created_at: UnixNanos,
    /// Addresses in the runtime's order; empty with host network.
    pub ips: Vec<IpAddr>,
    /// True when its network namespace is the node's.
    pub host_network: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Runtime handler; empty for the default.
    pub runtime_handler: String,
}

/// CRI's container states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// One container, one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObservedContainer {
    /// Runtime id.
    pub id: ContainerId,
    /// Name within the pod.
    pub name: String,
    /// Sandbox in which it was created.
    pub sandbox_id: SandboxId,
    /// State.
    pub state: RunState,
    /// Restart count from the annotation `io.kubernetes.container.restartCount`.
    pub restart_count: u32,
    /// Container hash from the annotation; `None` when absent or unreadable.
    pub hash: Option<u32>,
    /// Creation time.
    pub created_at: UnixNanos,
    /// Start time; `NEVER` before.
    pub started_at: UnixNanos,
    /// End time; `NEVER` before.
    pub finished_at: UnixNanos,
    /// Exit code as CRI reports it, after `evidence` was applied.
    pub exit_code: i32,
    /// The runtime's reason: `Completed`, `Error`, `OOMKilled`, `StartError`, …
    pub reason: String,
    /// The runtime's message, or the termination message once it was read.
    pub message: String,
    /// Image as the runtime names it (a tag, else the reference in the pod's spec).
    pub image: String,
    /// `imageID` of the status: CRI's image ref, else its image id.
    pub image_id: String,
    /// Log file's absolute path on the node.
    pub log_path: String,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
    /// Mounts as created: (container path, host path, read-only, recursive read-only).
    pub mounts: Vec<ObservedMount>,
    /// The settings that the runtime applied, as far as it reports them.
    #[serde(flatten)]
    pub applied: AppliedSettings,
    /// Facts that only the kernel reported.
    pub evidence: Evidence,
}

/// Settings of a container that the runtime applied, each `None` when it does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedSettings {
    /// Resources.
    pub resources: Option<ObservedResources>,
    /// Its first user.
    pub user: Option<ObservedUser>,
    /// The signal that stops it, as the API names it.
    pub stop_signal: Option<String>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedMount {
    /// Path inside.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Read-only.
    pub readonly: bool,
    /// Recursively read-only.
    pub recursive_read_only: bool,
}

/// Resources that the runtime reports as in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedResources {
    /// CPU shares (v1 terms, also on v2).
    pub cpu_shares: i64,
    /// CFS quota in microseconds; 0 or -1 without one.
    pub cpu_quota: i64,
    /// CFS period in microseconds.
    pub cpu_period: i64,
    /// Memory limit in bytes; 0 without one.
    pub memory_limit_bytes: i64,
}

/// First user of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedUser {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// Supplemental groups.
    pub supplemental_groups: Vec<i64>,
}

/// Kernel facts of a container that CRI may have lost. Kept beside the CRI answer for good: a
/// recorded exit code never changes afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// End of the container's first process.
    pub exit: Option<KernelExit>,
    /// The same from the runtime's event, before the runtime has cleaned up and shows it in its
    /// lists.
    pub told: Option<TaskExit>,
    /// Processes that the OOM killer took: how many, and whether the first process was one.
    pub oom: Option<OomKill>,
}

/// End of a container's first process, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelExit {
    /// Exit code as a shell shows it: status, or 128 + signal.
    pub code: i32,
    /// When.
    pub at: UnixNanos,
}

/// A container's end as an event of the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExit {
    /// Exit code as a shell shows it.
    pub code: i32,
    /// The time that its lists will show.
    pub at: UnixNanos,
    /// The container's termination message; `None` until it can be read.
    pub words: Option<String>,
    /// True if no process of its pod had been an OOM victim by then, as the kernel counts them.
    #[serde(default)]
    pub no_oom_kill: bool,
}

/// OOM kills within a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKill {
    /// True when the container's first process was a victim.
    pub init: bool,
    /// Victims so far.
    pub count: u32,
    /// The last victim's pid in the node's namespace.
    pub pid: u32,
    /// The last victim's command name, when the kernel reported it; empty otherwise.
    pub comm: String,
    /// When the last one was marked.
    pub at: UnixNanos,
}

impl Evidence {
    /// The end, by the kernel if it reported one, else by the runtime.
    pub fn end(&self) -> Option<KernelExit> {
        let reported = || {
            self.told.as_ref().map(|reported| KernelExit { code: reported.code, at: reported.at })
        };
        self.exit.or_else(reported)
    }
}

impl ObservedContainer {
    /// The end of a container that runs by the last list, once the kernel does not contradict the
    /// runtime about it and nothing of it is missing. The status shows it; `status::ending` has the
    /// rules.
    pub fn certain_end(&self) -> Option<&TaskExit> {
        let Evidence { exit, told, oom } = &self.evidence;
        let reported = told.as_ref()?;
        let confirmed = match exit {
            Some(seen) => seen.code == reported.code,
            None => reported.no_oom_kill,
        };
        let whole = confirmed && reported.words.is_some() && oom.is_none();
        (whole && self.state == RunState::Running).then_some(reported)
    }
}

impl ObservedPod {
    /// A pod without any record in the runtime.
    pub fn empty(uid: PodUid, namespace: &str, name: &str) -> Self {
        Self {
            uid,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            version: Version(0),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            specs: BTreeMap::new(),
        }
    }

    /// Puts the newest first: by the number of the attempt, which only grows. The time at which
    /// it was made is one of the wall clock, which may have been set back since the last one.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| Reverse((s.attempt, s.created_at)));
        self.containers.sort_by_key(|c| Reverse((c.restart_count, c.created_at)));
    }

    /// The newest container of that name.
    pub fn latest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// All containers of that name, newest first.
    pub fn attempts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObservedContainer> {
        self.containers.iter().filter(move |c| c.name == name)
    }

    /// The newest sandbox.
    pub fn newest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first()
    }

    /// True while a container runs or may run.
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(|c| matches!(c.state, RunState::Running | RunState::Unknown))
    }
}

/// The digest that a list call would show of this record: sorted (id, state).
pub fn digest_of(pod: &ObservedPod) -> Vec<(String, u8)> {
    let sandboxes = pod.sandboxes.iter().map(|s| (s.id.as_str().to_owned(), u8::from(!s.ready)));
    let containers =
        pod.containers.iter().map(|c| (c.id.as_str().to_owned(), digest_code(c.state)));
    let mut digest: Vec<_> = sandboxes.chain(containers).collect();
    digest.sort_unstable();
    digest
}

/// CRI's number of a container state.
pub fn digest_code(state: RunState) -> u8 {
    match state {
        RunState::Created => 0,
        RunState::Running => 1,
        RunState::Exited => 2,
        RunState::Unknown => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::testing::container;

    #[test]
    fn applied_settings_are_recorded_among_the_fields_of_a_container() {
        let mut record = container("a", "1");
        let user = ObservedUser { uid: 1, gid: 2, supplemental_groups: vec![3] };
        record.applied.user = Some(user);
        let mut json = serde_json::to_value(&record).expect("plain data serialises");
        assert_eq!((&json["user"]["gid"], &json["stop_signal"]), (&2.into(), &().into()));
        // Recordings may lack a field.
        json.as_object_mut().expect("an object").remove("stop_signal");
        assert_eq!(serde_json::from_value::<ObservedContainer>(json).expect("it parses"), record);
    }
}
