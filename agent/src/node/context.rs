//! The node's side of every request, from configuration, host and runtime.
//!
//! Built once at the start. Pure but for the facts of the host that `facts` reads.

use std::path::Path;

use pintle_cri::v1;

use crate::cgroup::formulas::LimitPolicy;
use crate::cgroup::names::{CgroupDriver, CgroupSetup, CgroupVersion};
use crate::config::duration::GoDuration;
use crate::config::{Config, modes};
use crate::node::capacity::Allocatable;
use crate::node::settings::NodeSettings;
use crate::node::{facts, machine};
use crate::runtime::dns::NodeDns;
use crate::runtime::request::{Gates, NodeContext, RuntimeHandler, SwapPolicy};
use crate::runtime::security::SecurityPolicy;
use crate::worker::backoff::Curve;

/// What the runtime says about itself.
#[derive(Clone, Debug, Default)]
pub struct Runtime {
    /// Name: `containerd`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Handlers; the one without a name is the default.
    pub handlers: Vec<RuntimeHandler>,
    /// It follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// The cgroup driver that it uses, if it tells.
    pub cgroup_driver: Option<CgroupDriver>,
}

/// The driver of containerd's default handler, from the verbose answer to Status: releases before
/// 2.0 know no RuntimeConfig. `None` for other runtimes and handlers.
pub fn driver_of_info(config: &str) -> Option<(String, CgroupDriver)> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    let containerd = &config["containerd"];
    let name = containerd["defaultRuntimeName"].as_str()?;
    let handler = &containerd["runtimes"][name];
    if handler["runtimeType"].as_str()? != "io.containerd.runc.v2" {
        return None;
    }
    let by_systemd = handler["options"]["SystemdCgroup"].as_bool().unwrap_or(false);
    let driver = if by_systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
    Some((name.to_owned(), driver))
}

impl Runtime {
    /// From the answers to Version, Status and RuntimeConfig.
    pub fn of(
        version: &v1::VersionResponse,
        status: Option<&v1::StatusResponse>,
        config: Option<&v1::RuntimeConfigResponse>,
    ) -> Self {
        let handlers = status.into_iter().flat_map(|s| &s.runtime_handlers).map(|handler| {
            let features = handler.features.as_ref();
            RuntimeHandler {
                name: handler.name.clone(),
                recursive_read_only: features.is_some_and(|f| f.recursive_read_only_mounts),
                user_namespaces: features.is_some_and(|f| f.user_namespaces),
            }
        });
        let linux = config.and_then(|c| c.linux.as_ref());
        let cgroup_driver = linux.map(|linux| match linux.cgroup_driver() {
            v1::CgroupDriver::Systemd => CgroupDriver::Systemd,
            v1::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        });
        Self {
            name: version.runtime_name.clone(),
            version: version.runtime_version.clone(),
            handlers: handlers.collect(),
            supplemental_groups_policy: status
                .and_then(|status| status.features.as_ref())
                .is_some_and(|features| features.supplemental_groups_policy),
            cgroup_driver,
        }
    }
}

/// The node's side of every request.
pub fn build(config: &Config, runtime: &Runtime) -> NodeContext {
    let kubelet = &config.kubelet;
    let default = runtime.handlers.iter().find(|handler| handler.name.is_empty());
    let mut facts = facts::read(&config.node_name, &config.flags.node_ips, &runtime.name);
    let machine = machine::read(&config.flags.root_dir);
    let left = Allocatable::of(&NodeSettings::of(config), &machine);
    facts.cpu_allocatable_millis = left.cpu_millis;
    facts.memory_allocatable_bytes = left.memory_bytes;
    facts.storage_allocatable_bytes = left.storage_bytes;
    facts.recursive_read_only = default.is_some_and(|handler| handler.recursive_read_only);
    facts.supplemental_groups_policy = runtime.supplemental_groups_policy;
    let cgroup = cgroup_setup(config, runtime);
    let version_2 = cgroup.version == CgroupVersion::V2;
    NodeContext {
        dns: NodeDns {
            cluster_servers: config.cluster_dns(),
            cluster_domain: kubelet.cluster_domain.clone(),
            resolv_conf: None,
        },
        limits: LimitPolicy {
            enforce_cpu_quota: kubelet.cpu_cfs_quota,
            cpu_period_us: kubelet.cpu_cfs_quota_period.as_nanos() / 1000,
            pids_max: kubelet.pod_pids_limit,
            hugepage_sizes: facts.hugepage_sizes.clone(),
        },
        swap: SwapPolicy {
            controller: version_2 || Path::new(V1_SWAP_FILE).exists(),
            limited: kubelet.memory_swap.swap_behavior == modes::SwapBehavior::LimitedSwap,
            capacity_bytes: facts::meminfo("SwapTotal:"),
        },
        security: SecurityPolicy {
            seccomp_dir: text(&config.flags.root_dir.join("seccomp")),
            seccomp_default: kubelet.seccomp_default,
            extra_masked_paths: throttle_paths(),
        },
        single_process_oom_kill: kubelet.single_process_oom_kill,
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        gates: Gates {
            env_files: config.gates.enabled("EnvFiles"),
            container_stop_signals: config.gates.enabled("ContainerStopSignals"),
        },
        root_dir: config.flags.root_dir.clone(),
        pod_logs_dir: kubelet.pod_logs_dir.trim_end_matches('/').to_owned(),
        cgroup,
        facts,
    }
}

/// Tells that cgroup v1 limits swap.
const V1_SWAP_FILE: &str = "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes";

fn text(path: &Path) -> String {
    path.to_string_lossy().trim_end_matches('/').to_owned()
}

/// `cgroupDriver`.
pub fn configured_driver(config: &Config) -> CgroupDriver {
    match config.kubelet.cgroup_driver {
        modes::CgroupDriver::Systemd => CgroupDriver::Systemd,
        modes::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
    }
}

/// How this host's cgroups are laid out.
pub fn cgroup_setup(config: &Config, runtime: &Runtime) -> CgroupSetup {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    CgroupSetup {
        root: config.kubelet.cgroup_root.clone(),
        driver: runtime.cgroup_driver.unwrap_or_else(|| configured_driver(config)),
        version: if unified { CgroupVersion::V2 } else { CgroupVersion::V1 },
        per_qos: config.kubelet.cgroups_per_qos,
    }
}

/// `thermal_throttle` of each CPU, which containers must not read.
fn throttle_paths() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let mut paths: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix("cpu")?;
            let path = entry.path().join("thermal_throttle");
            (number.parse::<u32>().is_ok() && path.exists())
                .then(|| path.to_string_lossy().into_owned())
        })
        .collect();
    paths.sort();
    paths
}

/// Waits of containers in a crash loop.
pub fn crash_loop(config: &Config) -> Curve {
    let max = config.kubelet.crash_loop_back_off.max_container_restart_period;
    let reduced = config.gates.enabled("ReduceDefaultCrashLoopBackOffDecay");
    Curve::new(reduced, max.map(GoDuration::to_std))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_before_2_0_tells_its_driver_among_its_settings() {
        let of = |name: &str, kind: &str, options: &str| {
            let handler = format!(r#"{{"runtimeType": "{kind}", "options": {options}}}"#);
            driver_of_info(&format!(
                r#"{{"containerd": {{"defaultRuntimeName": "{name}",
                    "runtimes": {{"runc": {handler}}}}}}}"#
            ))
        };
        let runc = "io.containerd.runc.v2";
        let told = |driver| Some(("runc".to_owned(), driver));
        assert_eq!(of("runc", runc, r#"{"SystemdCgroup": true}"#), told(CgroupDriver::Systemd));
        assert_eq!(of("runc", runc, r#"{"SystemdCgroup": false}"#), told(CgroupDriver::Cgroupfs));
        assert_eq!(of("runc", runc, "null"), told(CgroupDriver::Cgroupfs));
        assert_eq!(of("runc", "io.containerd.kata.v2", "null"), None);
        assert_eq!(of("other", runc, "null"), None);
        assert_eq!(driver_of_info("no JSON"), None);
    }
}
