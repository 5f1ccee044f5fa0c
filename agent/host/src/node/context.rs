//! The node's side of every request, from configuration, host and runtime.
//!
//! Built once at the start. Pure but for the facts of the host that `facts` reads.

use std::path::{Path, PathBuf};

use nix::unistd::{SysconfVar, sysconf};
use pintle_agent_config::{Config, modes};
use pintle_agent_core::admit;
use pintle_agent_core::cgroup::MemoryQos;
use pintle_agent_core::cgroup::formulas::LimitPolicy;
use pintle_agent_core::cgroup::names::{CgroupDriver, CgroupSetup, CgroupVersion};
use pintle_agent_core::node::capacity;
use pintle_agent_core::node::capacity::Allocatable;
use pintle_agent_core::node::machine::MachineFacts;
use pintle_agent_core::node::settings::CapacitySettings;
use pintle_agent_core::request::dns::NodeDns;
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::request::security::SecurityPolicy;
use pintle_agent_core::request::sysctl::AllowList;
use pintle_agent_core::request::{Gates, NodeContext, SwapPolicy};
use pintle_agent_core::sync::backoff::Curve;
use pintle_agent_core::types::{NodeFacts, PodCgroups};
use pintle_api_types::duration::GoDuration;

use crate::node::{facts, host};

/// The page of kernels that do not say theirs.
const PAGE_BYTES: i64 = 4096;

/// The node's side of every request.
pub fn build(config: &Config, runtime: &RuntimeFacts) -> NodeContext {
    let kubelet = &config.kubelet;
    let mut facts = facts::read(&config.node_name, &config.flags.node_ips, &runtime.name);
    let machine = host::read(&config.flags.root_dir);
    let left = Allocatable::of(&CapacitySettings::of(config), &machine);
    facts.cpu_allocatable_millis = left.cpu_millis;
    facts.memory_allocatable_bytes = left.memory_bytes;
    facts.storage_allocatable_bytes = left.storage_bytes;
    facts.plugin_resources.clone_from(&machine.plugin_resources);
    facts.take_runtime(runtime.handlers.clone(), runtime.supplemental_groups_policy);
    facts.stop_signals = config.gates.enabled("ContainerStopSignals");
    let cgroup = cgroup_setup(config, runtime);
    let version_2 = cgroup.version == CgroupVersion::V2;
    let cpu_period_us = kubelet.cpu_cfs_quota_period.as_nanos() / 1000;
    facts.pod_cgroups = cgroup.per_qos.then_some(PodCgroups {
        is_v2: version_2,
        enforce_cpu_quota: kubelet.cpu_cfs_quota,
        cpu_period_us,
    });
    NodeContext {
        dns: NodeDns {
            cluster_servers: config.cluster_dns(),
            cluster_domain: kubelet.cluster_domain.clone(),
            resolv_conf: None,
        },
        limits: LimitPolicy {
            enforce_cpu_quota: kubelet.cpu_cfs_quota,
            cpu_period_us,
            pids_max: kubelet.pod_pids_limit,
            hugepage_sizes: facts.hugepage_sizes.clone(),
            memory_qos: memory_qos(config, &machine).filter(|_| version_2),
        },
        swap: SwapPolicy {
            controller: swap_controller(Path::new("/sys/fs/cgroup"), &own_cgroup(), version_2),
            limited: kubelet.memory_swap.swap_behavior == modes::SwapBehavior::LimitedSwap,
            capacity_bytes: facts::meminfo("SwapTotal:"),
        },
        security: SecurityPolicy {
            seccomp_dir: text(&config.flags.root_dir.join("seccomp")),
            seccomp_default: kubelet.seccomp_default,
            extra_masked_paths: throttle_paths(),
        },
        single_process_oom_kill: kubelet.single_process_oom_kill,
        selinux: super::selinux::is_enabled(),
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

/// The node as the agent itself knows it, before or without an API server.
// k8s: pkg/kubelet/kubelet_getters.go getNodeAnyWay, initialNode
pub fn admission(config: &Config, facts: &NodeFacts, sysctls: AllowList) -> admit::AdmissionNode {
    let gate = |name| config.gates.enabled(name);
    let settings = CapacitySettings::of(config);
    let machine = host::read(&config.flags.root_dir);
    let capacity = capacity::capacity(&settings, &machine);
    let mut labels = config.flags.node_labels.clone();
    for (label, value) in [
        ("kubernetes.io/hostname", facts.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", machine.architecture),
    ] {
        labels.insert(label.to_owned(), value.to_owned());
    }
    admit::AdmissionNode {
        name: facts.name.clone(),
        labels,
        taints: Vec::new(),
        allocatable: admit::Allocatable::of(&capacity::allocatable(&settings, &capacity)),
        plugin_resources: machine.plugin_resources,
        sysctls,
        apparmor: has_apparmor(),
        features: admit::Features {
            supplemental_groups_policy: facts.supplemental_groups_policy,
            pod_level_resources: gate("PodLevelResources"),
            pod_level_resize: gate("InPlacePodLevelResourcesVerticalScaling"),
            init_container_resize: gate("InPlacePodVerticalScalingInitContainers"),
            limited_swap: config.kubelet.memory_swap.swap_behavior
                == modes::SwapBehavior::LimitedSwap
                && machine.swap_bytes > 0,
            declared: gate("NodeDeclaredFeatures"),
            restart_all_containers: gate("RestartAllContainersOnContainerExits"),
            user_namespaces_host_network: gate("UserNamespacesHostNetworkSupport"),
        },
        pressures: Vec::new(),
        shutting_down: false,
    }
}

/// What the gate `MemoryQoS` throttles and protects; `None` without it.
fn memory_qos(config: &Config, machine: &MachineFacts) -> Option<MemoryQos> {
    use modes::MemoryReservationPolicy::TieredReservation;
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(PAGE_BYTES);
    let left = capacity::enforced(&CapacitySettings::of(config), machine);
    config.gates.enabled("MemoryQoS").then(|| MemoryQos {
        throttling_factor: config.kubelet.memory_throttling_factor,
        is_tiered: config.kubelet.memory_reservation_policy == TieredReservation,
        allocatable_bytes: i64::try_from(left.memory_bytes).unwrap_or(i64::MAX),
        page_bytes,
    })
}

/// True when the kernel has AppArmor enabled.
fn has_apparmor() -> bool {
    let text = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    text.is_ok_and(|text| text.starts_with('Y'))
}

/// True if the kernel limits the swap of cgroups. With v2 the root has no such file: this reads the
/// agent's own cgroup, else any with the memory controller. Without such a cgroup the answer is
/// true.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go checkSwapControllerAvailability
fn swap_controller(root: &Path, own: &str, version_2: bool) -> bool {
    if !version_2 {
        return root.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    let others = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let own = root.join(own.trim_start_matches('/'));
    let counts = |folder: &PathBuf| folder.join("memory.max").exists();
    let found = std::iter::once(own).chain(others).find(counts);
    found.is_none_or(|folder| folder.join("memory.swap.max").exists())
}

/// This process's cgroup of the unified hierarchy; empty without one.
fn own_cgroup() -> String {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    path.unwrap_or_default().to_owned()
}

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
pub fn cgroup_setup(config: &Config, runtime: &RuntimeFacts) -> CgroupSetup {
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
    fn swap_is_limited_if_a_cgroup_with_the_memory_controller_has_a_swap_limit_file() {
        // (files, own cgroup, limited)
        let table: [(&[&str], &str, bool); 7] = [
            (&["a/memory.max", "a/memory.swap.max"], "/a", true),
            (&["a/memory.max"], "/a", false),
            (&["a/b/memory.max", "c/memory.max", "c/memory.swap.max"], "/a/b", false),
            // In the root, and where the own one lacks the memory controller, another one is read.
            (&["memory.stat", "a/cpu.max", "b/memory.max"], "/", false),
            (&["memory.stat", "a/cpu.max", "b/memory.max", "b/memory.swap.max"], "/a", true),
            // A namespace of cgroups begins at one that has them.
            (&["memory.max", "memory.swap.max", "a/cpu.max"], "/", true),
            (&["a/cpu.max"], "/", true),
        ];
        for (files, own, want) in table {
            let dir = tempfile::tempdir().expect("a folder");
            for file in files {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(path, "").expect("written");
            }
            assert_eq!(swap_controller(dir.path(), own, true), want, "{files:?} {own}");
            assert!(!swap_controller(dir.path(), own, false));
        }
    }
}
