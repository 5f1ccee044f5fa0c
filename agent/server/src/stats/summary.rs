//! `/stats/summary`: types of `stats.k8s.io/v1alpha1`, and the code that fills them. Pure.
//!
//! Input: a sweep, the snapshot, file systems. Output: a `Summary` whose JSON has the kubelet's
//! names, order and omissions.
// k8s: staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go, pkg/kubelet/stats/

use std::borrow::Cow;
use std::sync::Arc;

use pintle_agent_core::observed::{ObservedContainer, RunState};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_host::cgroup::stats::{Pressure, Sample};
use serde::Serialize;

use super::files::{FileSystem, FileUsage};
use super::layers::LayerSizes;
use super::network::Interface;
use super::sweep::{CgroupReading, Sweep};
use super::targets::CgroupOwner;
use super::volumes::{CountedVolume, PvcRef, Volumes};

/// The interface whose counters stand for the whole network.
// k8s: pkg/kubelet/stats/helper.go (defaultNetworkInterfaceName)
const DEFAULT_INTERFACE: &str = "eth0";

macro_rules! wire {
    ($($name:ident { $($(#[$a:meta])* $field:ident: $kind:ty,)* })*) => {$(
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        #[serde(rename_all = "camelCase")]
        #[allow(missing_docs)] // the names are the API's
        pub(super) struct $name {
            $($(#[$a])* pub(super) $field: $kind,)*
        }
    )*};
}

wire! {
    Summary { node: NodeStats, pods: Vec<PodStats>, }
    NodeStats {
        node_name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        start_time: String,
        cpu: CpuStats,
        memory: MemoryStats,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        swap: SwapStats,
    }
    RuntimeStats { image_fs: FsStats, container_fs: FsStats, }
    RlimitStats { time: String, maxpid: u64, curproc: u64, }
    PodStats {
        pod_ref: PodRef,
        start_time: String,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<VolumeStats>,
        #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
        ephemeral_storage: Option<FsStats>,
        #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
        process_stats: Option<ProcessStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    PodRef { name: String, namespace: String, uid: String, }
    ProcessStats { #[serde(rename = "process_count")] process_count: u64, }
    ContainerStats {
        name: String,
        start_time: String,
        cpu: CpuStats,
        memory: MemoryStats,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        swap: SwapStats,
    }
    CpuStats {
        time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        usage_core_nano_seconds: u64,
        psi: Psi,
    }
    MemoryStats {
        time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        usage_bytes: u64,
        working_set_bytes: u64,
        rss_bytes: u64,
        page_faults: u64,
        major_page_faults: u64,
        psi: Psi,
    }
    IoStats {
        time: String,
        psi: Psi,
    }
    Psi { full: PsiData, some: PsiData, }
    PsiData { total: u64, avg10: f64, avg60: f64, avg300: f64, }
    SwapStats {
        time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        swap_usage_bytes: u64,
    }
    NetworkStats {
        time: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_errors: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_errors: Option<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        interfaces: Vec<InterfaceStats>,
    }
    InterfaceStats {
        name: String,
        rx_bytes: u64,
        rx_errors: u64,
        tx_bytes: u64,
        tx_errors: u64,
    }
    VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
        #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
        claim: Option<PvcRef>,
        #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
        health: Option<VolumeHealth>,
    }
    VolumeHealth {
        abnormal: bool,
    }
    FsStats {
        /// `null` where the runtime reports nothing, as Go writes a zero time.
        time: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
}

/// The node's facts, and usage outside of cgroups.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeFigures {
    pub(super) name: String,
    pub(super) booted_at: UnixNanos,
    /// When the agent started.
    pub(super) started_at: UnixNanos,
    pub(super) memory_bytes: u64,
    pub(super) swap_bytes: u64,
    pub(super) pids_max: u64,
    pub(super) tasks: u64,
    pub(super) now: UnixNanos,
}

/// Everything about files; absent with `only_cpu_and_memory`.
#[derive(Clone, Debug, Default)]
pub(super) struct StorageStats {
    /// The file system of `--root-dir`.
    pub(super) node: FileSystem,
    /// The file system of images, if this node knows it, and their usage.
    pub(super) images: (Option<FileSystem>, FileUsage),
    /// Writable layers.
    pub(super) layers: Arc<LayerSizes>,
    /// Logs by container id.
    pub(super) logs: std::collections::HashMap<String, FileUsage>,
    /// `etc-hosts` and other files of the agent's own, by pod.
    pub(super) pods: std::collections::HashMap<String, FileUsage>,
    /// Usage of volumes, and of the file systems that they lie on.
    pub(super) volumes: Arc<Volumes>,
}

/// Puts a summary together.
pub(super) fn summary(
    snapshot: &Snapshot,
    sweep: &Sweep,
    node: &NodeFigures,
    storage: Option<&StorageStats>,
) -> Summary {
    let pods = snapshot.pods.values().filter_map(|view| pod(view, sweep, node, storage));
    Summary { pods: pods.collect(), node: node_stats(sweep, node, storage) }
}

fn node_stats(sweep: &Sweep, node: &NodeFigures, storage: Option<&StorageStats>) -> NodeStats {
    let nothing = CgroupReading::default();
    let root = sweep.cgroups.get(&CgroupOwner::Root).unwrap_or(&nothing);
    let whole = Some(node.memory_bytes);
    let time = time(root.sample.at);
    let full = storage.is_some();
    NodeStats {
        node_name: node.name.clone(),
        system_containers: system_containers(sweep, node, full),
        start_time: self::time(node.booted_at),
        cpu: cpu(root),
        memory: memory(&root.sample, whole),
        io: full.then(|| io(&root.sample)),
        network: full.then(|| network(&time, &sweep.node_network)),
        fs: storage.map(|storage| whole_disk(&storage.node, node.now)),
        runtime: storage.map(|storage| {
            let (fs, usage) = &storage.images;
            let fs = part_of(fs.as_ref(), node.now, Some(*usage));
            RuntimeStats { image_fs: fs.clone(), container_fs: fs }
        }),
        rlimit: full.then(|| RlimitStats {
            time: self::time(node.now),
            maxpid: node.pids_max,
            curproc: node.tasks,
        }),
        swap: swap(&root.sample, Some(node.swap_bytes)),
    }
}

// k8s: pkg/kubelet/server/stats/summary_sys_containers.go GetSystemContainersStats
fn system_containers(sweep: &Sweep, node: &NodeFigures, full: bool) -> Vec<ContainerStats> {
    let of = |name: &str, found: &CgroupReading, start_time, limit: Option<u64>| ContainerStats {
        name: name.to_owned(),
        start_time: time(start_time),
        cpu: cpu(found),
        memory: memory(&found.sample, limit),
        io: full.then(|| io(&found.sample)),
        rootfs: None,
        logs: None,
        swap: swap(&found.sample, None),
    };
    let each = sweep.cgroups.iter().filter_map(|(key, found)| match key {
        CgroupOwner::Pods => {
            let limit = found.sample.memory_limit_bytes.unwrap_or(node.memory_bytes);
            Some(of("pods", found, node.booted_at, Some(limit.min(node.memory_bytes))))
        }
        CgroupOwner::System(name) => {
            let began = if *name == "kubelet" { node.started_at } else { node.booted_at };
            Some(of(name, found, began, found.sample.memory_limit_bytes))
        }
        _ => None,
    });
    each.collect()
}

/// A pod of which something runs.
fn pod(
    view: &PodView,
    sweep: &Sweep,
    node: &NodeFigures,
    storage: Option<&StorageStats>,
) -> Option<PodStats> {
    let running = view.observed.containers.iter().filter(|c| c.state == RunState::Running);
    let containers: Vec<ContainerStats> =
        running.filter_map(|c| container(c, sweep, node, storage)).collect();
    let sandbox = view.observed.sandboxes.iter().find(|sandbox| sandbox.ready)?;
    if containers.is_empty() {
        return None;
    }
    let uid = view.observed.uid.clone();
    let found = sweep.pod(&view.observed);
    let (found, is_sum) = (found.as_deref(), matches!(found, Some(Cow::Owned(_))));
    let full = storage.is_some();
    let counted = storage.and_then(|storage| storage.volumes.get(&uid));
    let counted = counted.map(Vec::as_slice).unwrap_or_default();
    Some(PodStats {
        pod_ref: PodRef {
            name: view.observed.name.clone(),
            namespace: view.observed.namespace.clone(),
            uid: uid.as_str().to_owned(),
        },
        start_time: time(sandbox.created_at),
        cpu: found.map(cpu),
        memory: found.map(|f| memory(&f.sample, f.sample.memory_limit_bytes)),
        io: found.filter(|_| full).map(|found| io(&found.sample)),
        network: sweep
            .networks
            .get(&uid)
            .filter(|_| full)
            .map(|interfaces| network(&time(node.now), interfaces)),
        volumes: counted.iter().map(volume).collect(),
        ephemeral_storage: storage
            .map(|storage| ephemeral(uid.as_str(), &containers, counted, storage, node.now)),
        process_stats: sweep
            .processes(&view.observed)
            .filter(|_| full)
            .map(|process_count| ProcessStats { process_count }),
        swap: found
            .map(|found| swap(&found.sample, found.sample.swap_limit_bytes.filter(|_| is_sum))),
        containers,
    })
}

fn container(
    container: &ObservedContainer,
    sweep: &Sweep,
    node: &NodeFigures,
    storage: Option<&StorageStats>,
) -> Option<ContainerStats> {
    let id = container.id.as_str();
    let found = sweep.container(id)?;
    Some(ContainerStats {
        name: container.name.clone(),
        start_time: time(container.created_at),
        cpu: cpu(found),
        memory: memory(&found.sample, found.sample.memory_limit_bytes),
        io: storage.map(|_| io(&found.sample)),
        rootfs: storage.map(|storage| layer(id, storage)),
        logs: storage.and_then(|storage| {
            let usage = storage.logs.get(id).copied();
            usage.map(|usage| part_of(Some(&storage.node), node.now, Some(usage)))
        }),
        swap: swap(&found.sample, found.sample.swap_limit_bytes),
    })
}

/// Empty for a container that the runtime did not report.
// k8s: pkg/kubelet/stats/cri_stats_provider.go makeContainerStats
fn layer(id: &str, storage: &StorageStats) -> FsStats {
    let (fs, _) = &storage.images;
    let told = storage.layers.sizes.get(id);
    let layer = told.map(|usage| part_of(fs.as_ref(), storage.layers.asked_at, Some(*usage)));
    layer.unwrap_or_default()
}

fn volume(counted: &CountedVolume) -> VolumeStats {
    let fs = part_of(Some(&counted.fs), counted.at, Some(counted.usage));
    let health = counted.is_abnormal.map(|abnormal| VolumeHealth { abnormal });
    VolumeStats { fs, name: counted.name.clone(), claim: counted.claim.clone(), health }
}

/// Usage of writable layers and logs of running containers, the agent's own files of a pod, and the
/// volumes that lie on the node's disk, as far as it is known.
// k8s: pkg/kubelet/stats/helper.go calcEphemeralStorage
fn ephemeral(
    uid: &str,
    containers: &[ContainerStats],
    volumes: &[CountedVolume],
    storage: &StorageStats,
    now: UnixNanos,
) -> FsStats {
    let of_containers = containers.iter().flat_map(|c| [&c.rootfs, &c.logs]).flatten();
    let of_containers = of_containers
        .filter_map(|fs| Some(FileUsage { bytes: fs.used_bytes?, inodes: fs.inodes_used? }));
    let of_volumes = volumes.iter().filter(|volume| volume.is_ephemeral).map(|v| v.usage);
    let all = of_containers.chain(of_volumes).chain(storage.pods.get(uid).copied());
    let usage = all.reduce(|sum, more| FileUsage {
        bytes: sum.bytes.saturating_add(more.bytes),
        inodes: sum.inodes.saturating_add(more.inodes),
    });
    part_of(Some(&storage.node), now, usage)
}

fn cpu(found: &CgroupReading) -> CpuStats {
    CpuStats {
        time: time(found.sample.at),
        usage_nano_cores: found.nano_cores,
        usage_core_nano_seconds: found.sample.cpu_ns,
        psi: pressure(&found.sample, 0),
    }
}

/// Available memory is set where there is a limit.
fn memory(sample: &Sample, limit: Option<u64>) -> MemoryStats {
    MemoryStats {
        time: time(sample.at),
        available_bytes: limit.map(|limit| limit.saturating_sub(sample.working_set_bytes)),
        usage_bytes: sample.memory_bytes,
        working_set_bytes: sample.working_set_bytes,
        rss_bytes: sample.rss_bytes,
        page_faults: sample.faults.0,
        major_page_faults: sample.faults.1,
        psi: pressure(sample, 1),
    }
}

fn io(sample: &Sample) -> IoStats {
    IoStats { time: time(sample.at), psi: pressure(sample, 2) }
}

/// Zeros where the kernel has no figures, as the kubelet shows for each cgroup that cAdvisor
/// follows.
// k8s: pkg/kubelet/stats/helper.go cadvisorPSIToStatsPSI
fn pressure(sample: &Sample, which: usize) -> Psi {
    let Some(pressure) = sample.pressure else { return Psi::default() };
    let Pressure { some, full } = pressure[which];
    let data = |stall: pintle_agent_host::cgroup::stats::Stall| PsiData {
        // Microseconds, though the API's comment says nanoseconds: upstream does not convert the
        // kernel's.
        // k8s: github.com/opencontainers/cgroups fs2/psi.go parsePSIData
        total: stall.total_us,
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    Psi { full: data(full), some: data(some) }
}

fn swap(sample: &Sample, limit: Option<u64>) -> SwapStats {
    SwapStats {
        time: time(sample.at),
        swap_available_bytes: limit.map(|limit| limit.saturating_sub(sample.swap_bytes)),
        swap_usage_bytes: sample.swap_bytes,
    }
}

fn network(time: &str, interfaces: &[Interface]) -> NetworkStats {
    let whole = interfaces.iter().find(|interface| interface.name == DEFAULT_INTERFACE);
    NetworkStats {
        time: time.to_owned(),
        name: whole.map(|i| i.name.clone()).unwrap_or_default(),
        rx_bytes: whole.map(|i| i.received.bytes),
        rx_errors: whole.map(|i| i.received.errors),
        tx_bytes: whole.map(|i| i.sent.bytes),
        tx_errors: whole.map(|i| i.sent.errors),
        interfaces: interfaces
            .iter()
            .map(|interface| InterfaceStats {
                name: interface.name.clone(),
                rx_bytes: interface.received.bytes,
                rx_errors: interface.received.errors,
                tx_bytes: interface.sent.bytes,
                tx_errors: interface.sent.errors,
            })
            .collect(),
    }
}

/// A file system, with the usage of all its users.
fn whole_disk(fs: &FileSystem, at: UnixNanos) -> FsStats {
    let all = FileUsage {
        bytes: fs.capacity_bytes.saturating_sub(fs.free_bytes),
        inodes: fs.inodes.saturating_sub(fs.inodes_free),
    };
    part_of(Some(fs), at, Some(all))
}

/// Disk usage of one user of a file system, as far as either is known.
fn part_of(fs: Option<&FileSystem>, at: UnixNanos, usage: Option<FileUsage>) -> FsStats {
    FsStats {
        time: Some(time(at)),
        available_bytes: fs.map(|fs| fs.available_bytes),
        capacity_bytes: fs.map(|fs| fs.capacity_bytes),
        used_bytes: usage.map(|usage| usage.bytes),
        inodes_free: fs.map(|fs| fs.inodes_free),
        inodes: fs.map(|fs| fs.inodes),
        inodes_used: usage.map(|usage| usage.inodes),
    }
}

fn time(at: UnixNanos) -> String {
    at.to_rfc3339()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::testing::{sweep, world};
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// When the runtime was asked for layers.
    const ASKED_AT: &str = "1970-01-01T00:16:40Z";

    /// Every path of names in an object, lists taken as their first item.
    fn shape(value: &Value, path: &str, out: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    shape(value, &format!("{path}.{name}"), out);
                }
            }
            Value::Array(items) => {
                items.iter().for_each(|item| shape(item, &format!("{path}[]"), out));
            }
            _ => {
                out.insert(path.to_owned());
            }
        }
    }

    #[test]
    fn the_summary_has_the_recorded_fields() {
        let recorded = include_str!("../../../../tests/recorded/stats-summary.json");
        let recorded: Value = serde_json::from_str(recorded).expect("recorded");
        let (snapshot, node, storage) = world();
        let made = summary(&snapshot, &sweep(), &node, Some(&storage));
        let made = serde_json::to_value(&made).expect("JSON");
        let (mut theirs, mut ours) = (BTreeSet::new(), BTreeSet::new());
        shape(&recorded, "", &mut theirs);
        shape(&made, "", &mut ours);
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{missing:?}");
        // That runtime had another socket than the one at which cAdvisor looks for containers. It
        // followed cgroups only, so a container's usage is the runtime's, which has no pressure,
        // and networks and processes are missing. Those pods had no volumes, and no limits.
        let is_known = |path: &str| {
            let of_container = path.starts_with(".pods[].containers[]") && path.contains(".psi.");
            let parts = [".network", ".process_stats", ".volume", ".pods[].memory.availableBytes"];
            of_container || parts.iter().any(|part| path.contains(part))
        };
        let extra: Vec<_> = ours.difference(&theirs).filter(|path| !is_known(path)).collect();
        assert!(extra.is_empty(), "{extra:?}");
    }

    #[test]
    fn available_memory_is_reported_only_with_a_memory_limit() {
        let (snapshot, node, _) = world();
        let mut swept = sweep();
        let left = |swept: &Sweep| {
            let made = summary(&snapshot, swept, &node, None);
            made.pods[0].containers[0].memory.available_bytes
        };
        assert_eq!(left(&swept), Some((64 << 20) - 516_096));
        let own = CgroupOwner::Container("1".to_owned());
        swept.cgroups.get_mut(&own).expect("it is read").sample.memory_limit_bytes = None;
        assert_eq!(left(&swept), None);
    }

    #[test]
    fn stall_time_is_reported_in_microseconds() {
        use pintle_agent_host::cgroup::stats::Stall;
        let (snapshot, node, storage) = world();
        let mut swept = sweep();
        let some = Stall { total_us: 5, ..Stall::default() };
        let pressure = Some([Pressure { some, ..Pressure::default() }; 3]);
        swept.cgroups.values_mut().for_each(|found| found.sample.pressure = pressure);
        let made = summary(&snapshot, &swept, &node, Some(&storage));
        let made = serde_json::to_value(&made).expect("JSON");
        for of in [&made["node"], &made["pods"][0], &made["pods"][0]["containers"][0]] {
            for what in ["cpu", "memory", "io"] {
                assert_eq!(of[what]["psi"]["some"]["total"], 5, "{what} of {of}");
            }
        }
    }

    #[test]
    fn process_count_of_a_pod_excludes_threads() {
        let (snapshot, node, storage) = world();
        let count = |swept: &Sweep| {
            let made = summary(&snapshot, swept, &node, Some(&storage));
            made.pods[0].process_stats.as_ref().map(|stats| stats.process_count)
        };
        assert_eq!(count(&sweep()), Some(3), "it has 4000 threads");
    }

    #[test]
    fn pod_without_its_own_cgroup_is_reported_as_the_sum_of_its_containers() {
        let (snapshot, node, storage) = world();
        let mut swept = sweep();
        swept.cgroups.remove(&CgroupOwner::Pod("u".into())).expect("it was read");
        let made = summary(&snapshot, &swept, &node, Some(&storage));
        let (pod, own) = (&made.pods[0], &made.pods[0].containers[0]);
        assert_eq!(pod.memory.as_ref(), Some(&own.memory));
        assert_eq!(pod.cpu.as_ref(), Some(&own.cpu));
        assert_eq!(pod.swap.as_ref(), Some(&own.swap));
        let text = crate::stats::resource::exposition(&snapshot, Some(&swept));
        assert!(text.contains("pod_memory_working_set_bytes{"), "{text}");
    }

    #[test]
    fn only_cpu_and_memory_leaves_the_rest_out() {
        let (snapshot, node, _) = world();
        let made = summary(&snapshot, &sweep(), &node, None);
        let pod = &made.pods[0];
        assert!(pod.network.is_none() && pod.ephemeral_storage.is_none() && pod.io.is_none());
        assert!(pod.containers[0].rootfs.is_none() && made.node.fs.is_none());
        let of_system = &made.node.system_containers;
        assert!(!of_system.is_empty() && of_system.iter().all(|of| of.io.is_none()));
        assert_eq!(pod.containers[0].memory.working_set_bytes, 516_096);
    }

    #[test]
    fn system_containers_are_reported_next_to_the_pods() {
        let (snapshot, mut node, storage) = world();
        node.started_at = UnixNanos(7_000_000_000);
        let mut swept = sweep();
        let mut found = swept.cgroups[&CgroupOwner::Pods].clone();
        found.sample.memory_limit_bytes = None;
        swept.cgroups.insert(CgroupOwner::System("kubelet"), found.clone());
        swept.cgroups.insert(CgroupOwner::System("runtime"), found);
        let made = summary(&snapshot, &swept, &node, Some(&storage)).node.system_containers;
        let names: Vec<&str> = made.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["pods", "kubelet", "runtime"]);
        assert!(made[0].memory.available_bytes.is_some());
        assert_eq!(made[1].memory.available_bytes, None, "without a limit");
        assert_eq!(made[1].start_time, "1970-01-01T00:00:07Z", "when the agent started");
    }

    #[test]
    fn ephemeral_storage_of_a_pod_is_the_sum_of_its_parts_on_the_node_disk() {
        let (snapshot, node, storage) = world();
        let made = summary(&snapshot, &sweep(), &node, Some(&storage));
        let sum = made.pods[0].ephemeral_storage.as_ref().expect("there");
        let (bytes, inodes) = (24_576 + 4096 + 8192, 9 + 1 + 1 + 2);
        let told = (sum.used_bytes, sum.inodes_used);
        assert_eq!(told, (Some(bytes), Some(inodes)), "without the token");
    }

    #[test]
    fn unknown_disk_usage_is_not_reported_as_zero() {
        let (snapshot, node, storage) = world();
        let of = |storage: &StorageStats| {
            let made = summary(&snapshot, &sweep(), &node, Some(storage));
            serde_json::to_value(&made).expect("JSON")
        };
        let all = of(&storage);
        let rootfs = &all["pods"][0]["containers"][0]["rootfs"];
        assert_eq!((&rootfs["usedBytes"], &rootfs["time"]), (&24_576.into(), &ASKED_AT.into()));
        let told = LayerSizes { sizes: Default::default(), ..(*storage.layers).clone() };
        let storage = StorageStats {
            layers: Arc::new(told),
            images: (None, storage.images.1),
            logs: Default::default(),
            ..storage
        };
        let some = of(&storage);
        let (pod, container) = (&some["pods"][0], &some["pods"][0]["containers"][0]);
        assert_eq!(container["rootfs"], serde_json::json!({"time": null}));
        assert_eq!(container.get("logs"), None);
        assert_eq!(pod["ephemeral-storage"]["usedBytes"], 4096 + 8192, "of what is known");
        let images = &some["node"]["runtime"]["imageFs"];
        assert_eq!((&images["usedBytes"], images.get("capacityBytes")), (&7.into(), None));
    }

    #[test]
    fn volumes_are_reported_with_the_figures_of_their_file_system() {
        let (snapshot, node, storage) = world();
        let made = summary(&snapshot, &sweep(), &node, Some(&storage));
        let made = serde_json::to_value(&made.pods[0]).expect("JSON");
        let expected = serde_json::json!({
            "time": "1970-01-01T00:00:07Z", "availableBytes": 50, "capacityBytes": 100,
            "usedBytes": 8192, "inodesFree": 5, "inodes": 10, "inodesUsed": 2, "name": "disk",
        });
        assert_eq!(made["volume"][0], expected);
        assert_eq!(made["volume"][1]["name"], "token");
        let mut storage = storage;
        let of_pod = Arc::make_mut(&mut storage.volumes).values_mut().next().expect("a pod's");
        of_pod[0].is_abnormal = Some(false);
        let made = summary(&snapshot, &sweep(), &node, Some(&storage));
        let made = serde_json::to_value(&made.pods[0]).expect("JSON");
        assert_eq!(made["volume"][0]["volumeHealthStats"], serde_json::json!({"abnormal": false}));
    }
}
