//! Names and quantities that every stage shares, and the node facts that the decisions know.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use pintle_api_types::ids::*;

/// How the node limits pods by cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCgroups {
    /// cgroup v2, else v1.
    pub is_v2: bool,
    /// `cpuCFSQuota`.
    pub enforce_cpu_quota: bool,
    /// CFS period in microseconds.
    pub cpu_period_us: i64,
}

/// The facts about the node that the pod and status functions need; they change rarely.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The node's name, lower-cased.
    pub name: String,
    /// Name of the container runtime, the scheme of container ids in a status: `containerd`.
    pub runtime_name: String,
    /// Handlers of the runtime and their features; the one without a name is the default.
    #[serde(default)]
    pub handlers: Vec<RuntimeHandler>,
    /// The default handler can make mounts recursively read-only.
    pub recursive_read_only: bool,
    /// The runtime follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// The first `--node-ip` is one of IPv6: so is a pod's first address.
    pub prefers_v6: bool,
    /// The node's addresses, the primary family first. Empty when none is known.
    pub host_ips: Vec<std::net::IpAddr>,
    /// Memory capacity in bytes, for `oom_score_adj`.
    pub memory_capacity_bytes: u64,
    /// Allocatable CPU in millicores, for `resourceFieldRef` of an unset limit.
    pub cpu_allocatable_millis: u64,
    /// Allocatable memory in bytes, for `resourceFieldRef` of an unset limit.
    pub memory_allocatable_bytes: u64,
    /// Allocatable ephemeral storage in bytes.
    pub storage_allocatable_bytes: u64,
    /// Huge page sizes of the node in bytes, in the order in which the kernel lists them.
    pub hugepage_sizes: Vec<u64>,
    /// When this agent began.
    pub agent_started_at: UnixNanos,
    /// Statuses name the stop signal (`ContainerStopSignals`).
    pub stop_signals: bool,
    /// Why the runtime cannot connect pods; `None` while it can.
    pub network_error: Option<String>,
    /// Resources of device plugins that registered with a kubelet of this node; none has devices.
    #[serde(default)]
    pub plugin_resources: Vec<String>,
    /// How pods are limited by cgroups; `None` where pods have none (`cgroupsPerQOS` is off).
    #[serde(default)]
    pub pod_cgroups: Option<PodCgroups>,
}

impl NodeFacts {
    /// Takes in the features that the runtime reports.
    pub fn take_runtime(&mut self, mut all: Vec<RuntimeHandler>, supplemental_groups_policy: bool) {
        // In one order, so that another order of the runtime is no change.
        all.sort_by(|a, b| a.name.cmp(&b.name));
        self.handlers = all;
        self.recursive_read_only = self.handler("").recursive_read_only;
        self.supplemental_groups_policy = supplemental_groups_policy;
    }

    /// A runtime handler by its name, empty for the default; an unknown one has no features.
    pub fn handler(&self, name: &str) -> RuntimeHandler {
        let known = self.handlers.iter().find(|handler| handler.name == name);
        let unknown = || RuntimeHandler { name: name.to_owned(), ..RuntimeHandler::default() };
        known.cloned().unwrap_or_else(unknown)
    }
}

/// A handler of the runtime, which pods name by their RuntimeClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeHandler {
    /// Name; empty for the default.
    pub name: String,
    /// It can make mounts recursively read-only.
    pub recursive_read_only: bool,
    /// It can give pods users of their own.
    pub user_namespaces: bool,
}

/// A container that began less than this before the agent counts as new.
// k8s: pkg/kubelet/prober/prober_manager.go kubeletRestartGracePeriod
const RESTART_MARGIN: Duration = Duration::from_secs(10);

/// True if a container began so long before the agent that it keeps the state that an earlier agent
/// observed.
pub fn is_from_before(started_at: UnixNanos, agent_started_at: UnixNanos) -> bool {
    started_at.is_set() && started_at.plus(RESTART_MARGIN) < agent_started_at
}
