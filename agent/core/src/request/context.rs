//! Everything that a request depends on.
//!
//! `NodeContext` lives as long as the configuration, `PodContext` is gathered per pod and
//! `ContainerContext` per container, each by the executor right before the call.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_cri_v1 as v1;

use crate::cgroup::formulas::LimitPolicy;
use crate::cgroup::names::CgroupSetup;
use crate::env::variables::EnvSources;
use crate::request::dns::NodeDns;
use crate::request::security::{IdRange, ImageUser, SecurityPolicy};
use crate::types::{NodeFacts, RuntimeHandler};
use crate::volume::PlannedMount;
use crate::volume::layout::PodDirs;

/// The node's side of all requests.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeContext {
    /// Name, addresses, memory, huge page sizes, features of the runtime.
    pub facts: NodeFacts,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`, without a slash at the end.
    pub pod_logs_dir: String,
    /// DNS settings; the text of resolv.conf is read again for every pod.
    pub dns: NodeDns,
    /// Cgroup root, driver and version.
    pub cgroup: CgroupSetup,
    /// CPU quota, period, pids and huge page sizes.
    pub limits: LimitPolicy,
    /// Swap.
    pub swap: SwapPolicy,
    /// Seccomp and masked paths.
    pub security: SecurityPolicy,
    /// `singleProcessOOMKill`; `None` when not set, which on cgroup v2 means `false`.
    pub single_process_oom_kill: Option<bool>,
    /// SELinux is on: mounts are relabelled.
    pub selinux: bool,
    /// Feature gates that change requests.
    pub gates: Gates,
}

/// Feature gates that change requests, at their defaults of 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `EnvFiles`.
    pub env_files: bool,
    /// `ContainerStopSignals`.
    pub container_stop_signals: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self { env_files: true, container_stop_signals: false }
    }
}

/// How containers may use swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapPolicy {
    /// The kernel can limit swap per cgroup.
    pub controller: bool,
    /// `memorySwap.swapBehavior: LimitedSwap`.
    pub limited: bool,
    /// The node's swap.
    pub capacity_bytes: u64,
}

/// One pod.
#[derive(Clone, Copy)]
pub struct PodContext<'a> {
    /// The node.
    pub node: &'a NodeContext,
    /// The pod, with defaults.
    pub pod: &'a Pod,
    /// Attempt of its sandbox, from 0.
    pub attempt: u32,
    /// Its runtime handler.
    pub handler: &'a RuntimeHandler,
    /// Ids of its user namespace; needed with `hostUsers: false` only, where `None` means that
    /// the runtime cannot make one.
    pub users: Option<IdRange>,
    /// Groups that its volumes request.
    pub extra_groups: &'a [i64],
    /// Addresses of its sandbox in the runtime's order. Pods on the node's network get the
    /// node's instead. Not needed for the sandbox itself.
    pub pod_ips: &'a [IpAddr],
    /// It has cores of its own, which no quota must limit.
    pub exclusive_cpus: bool,
}

impl PodContext<'_> {
    /// The pod's directories on the node.
    pub fn dirs(&self) -> PodDirs {
        PodDirs::new(&self.node.root_dir, &pintle_api_types::pod::uid(self.pod))
    }

    /// Addresses that containers receive.
    pub fn ips(&self) -> &[IpAddr] {
        if pintle_api_types::pod::uses_host_network(self.pod) {
            &self.node.facts.host_ips
        } else {
            self.pod_ips
        }
    }
}

/// One container.
#[derive(Clone, Copy)]
pub struct ContainerContext<'a> {
    /// The container; an ephemeral one converted by `pod::containers::from_ephemeral`.
    pub container: &'a Container,
    /// Restarts before this attempt.
    pub restart_count: u32,
    /// Id of the image, as `ImageStatus` or `PullImage` gave it.
    pub image_ref: &'a str,
    /// The image's user.
    pub image_user: &'a ImageUser,
    /// For an ephemeral container with `targetContainerName`: that container's id.
    pub target_id: Option<&'a str>,
    /// Its mounts of volumes, planned with `container_environment` and prepared.
    pub mounts: &'a [PlannedMount],
    /// Ids of the images of image volumes, pulled, by their reference in the spec.
    pub images: &'a BTreeMap<String, String>,
    /// Name of the termination file: eight random hexadecimal digits.
    pub termination_file: &'a str,
    /// Config maps, secrets, services, files of variables.
    pub sources: &'a dyn EnvSources,
    /// Devices of block volumes and device plugins.
    pub devices: &'a [v1::Device],
    /// CDI devices.
    pub cdi_devices: &'a [v1::CdiDevice],
    /// Annotations of device plugins.
    pub annotations: &'a BTreeMap<String, String>,
    /// It has cores of its own.
    pub exclusive_cpus: bool,
}
