//! `/metrics/cadvisor`: the families of cAdvisor that dashboards select. Pure.
//!
//! Input: a sweep with everything, the snapshot, the machine. Output: the exposition. One table has
//! each family's name, type and figure; docs/COMPAT.md lists the omitted ones with reasons.
// k8s: github.com/google/cadvisor metrics/prometheus.go, prometheus_machine.go;
//      pkg/kubelet/server/server.go containerPrometheusLabelsFunc

use std::collections::{HashMap, HashSet};

use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_agent_host::cgroup::stats::{DeviceIo, More};

use super::machine::{MachineStats, MountedDisk};
use super::network::Interface;
use super::sweep::{CgroupReading, Sweep};
use super::targets::CgroupOwner;
use super::text::{FamilyText, labels};

const NANOS: f64 = 1e9;
const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// The owner of a cgroup, in labels.
#[derive(Clone, Debug, Default)]
struct OwnerLabels {
    container: String,
    image: String,
    name: String,
    namespace: String,
    pod: String,
    started_at_seconds: f64,
}

struct CadvisorRow<'a> {
    key: &'a CgroupOwner,
    found: &'a CgroupReading,
    names: OwnerLabels,
    at_ms: i64,
}

impl CadvisorRow<'_> {
    /// The labels in their order, with one more in its place.
    fn labels(&self, more: &[(&str, &str)]) -> String {
        let names = &self.names;
        let mut pairs = vec![
            ("container", names.container.as_str()),
            ("id", self.found.path.as_str()),
            ("image", names.image.as_str()),
            ("name", names.name.as_str()),
            ("namespace", names.namespace.as_str()),
            ("pod", names.pod.as_str()),
        ];
        pairs.extend(more);
        pairs.sort_unstable();
        labels(&pairs)
    }

    fn more(&self) -> Option<&More> {
        self.found.sample.more.as_ref()
    }

    fn devices(&self) -> &[DeviceIo] {
        self.more().map_or(&[], |more| &more.devices)
    }
}

/// The exposition.
pub(super) fn exposition(snapshot: &Snapshot, sweep: &Sweep, machine: &MachineStats) -> String {
    let mut text = FamilyText::default();
    let named = names(snapshot);
    let rows = rows(sweep, &named);
    version(&mut text, machine);
    plain(&mut text, &rows);
    special(&mut text, &rows);
    networks(&mut text, &rows, sweep, snapshot);
    disks(&mut text, &rows, machine);
    transfers(&mut text, &rows, machine);
    machine_figures(&mut text, machine);
    text.family("container_scrape_error", GAUGE);
    text.sample("container_scrape_error", "", 0.0, None);
    text.into_string()
}

/// Each cgroup once, also when several names share it: all pods may be in the root, and the runtime
/// with the agent. Pods that went since the sweep are left out, as without their names they would
/// be others.
fn rows<'a>(sweep: &'a Sweep, named: &HashMap<CgroupOwner, OwnerLabels>) -> Vec<CadvisorRow<'a>> {
    let mut paths = HashSet::new();
    let rows = sweep.cgroups.iter().filter_map(|(key, found)| {
        let names = match key {
            CgroupOwner::Pod(_) | CgroupOwner::Container(_) => named.get(key)?.clone(),
            _ => OwnerLabels::default(),
        };
        let at_ms = found.sample.at.0 / 1_000_000;
        paths.insert(found.path.as_str()).then_some(CadvisorRow { key, found, names, at_ms })
    });
    rows.collect()
}

fn names(snapshot: &Snapshot) -> HashMap<CgroupOwner, OwnerLabels> {
    let mut names = HashMap::new();
    for (uid, view) in &snapshot.pods {
        let observed = &view.observed;
        let pod = OwnerLabels {
            namespace: observed.namespace.clone(),
            pod: observed.name.clone(),
            ..OwnerLabels::default()
        };
        for sandbox in &observed.sandboxes {
            let id = sandbox.id.as_str().to_owned();
            let started_at_seconds = seconds(sandbox.created_at.0);
            let sandbox = OwnerLabels { name: id.clone(), started_at_seconds, ..pod.clone() };
            names.insert(CgroupOwner::Container(id), sandbox);
        }
        for container in &observed.containers {
            let id = container.id.as_str().to_owned();
            let of = OwnerLabels {
                container: container.name.clone(),
                image: container.image.clone(),
                name: id.clone(),
                started_at_seconds: seconds(container.started_at.0),
                ..pod.clone()
            };
            names.insert(CgroupOwner::Container(id), of);
        }
        names.insert(CgroupOwner::Pod(uid.clone()), pod);
    }
    names
}

#[allow(clippy::cast_precision_loss)] // below 2^53 in every unit used here
fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS
}

#[allow(clippy::cast_precision_loss)] // bytes and counts below 2^53 are exact
fn float(value: u64) -> f64 {
    value as f64
}

type Figure = (&'static str, &'static str, fn(&CadvisorRow<'_>) -> Option<f64>);

/// Families of one sample for each cgroup.
const FIGURES: &[Figure] = &[
    ("container_cpu_system_seconds_total", COUNTER, |r| {
        Some(float(r.found.sample.cpu_system_ns) / NANOS)
    }),
    ("container_cpu_user_seconds_total", COUNTER, |r| {
        Some(float(r.found.sample.cpu_user_ns) / NANOS)
    }),
    ("container_cpu_cfs_periods_total", COUNTER, |r| r.more()?.throttled.map(|t| float(t.0))),
    ("container_cpu_cfs_throttled_periods_total", COUNTER, |r| {
        r.more()?.throttled.map(|t| float(t.1))
    }),
    ("container_cpu_cfs_throttled_seconds_total", COUNTER, |r| {
        r.more()?.throttled.map(|t| float(t.2) / NANOS)
    }),
    ("container_last_seen", GAUGE, |r| Some(seconds(r.found.sample.at.0).floor())),
    ("container_memory_cache", GAUGE, |r| Some(float(r.found.sample.cache_bytes))),
    ("container_memory_failcnt", COUNTER, |r| Some(float(r.more()?.memory_failures))),
    ("container_memory_kernel_usage", GAUGE, |r| Some(float(r.found.sample.kernel_bytes))),
    ("container_memory_mapped_file", GAUGE, |r| Some(float(r.found.sample.mapped_bytes))),
    ("container_memory_max_usage_bytes", GAUGE, |r| Some(float(r.more()?.memory_max_bytes))),
    ("container_memory_rss", GAUGE, |r| Some(float(r.found.sample.rss_bytes))),
    ("container_memory_swap", GAUGE, |r| Some(float(r.found.sample.swap_bytes))),
    ("container_memory_total_active_file_bytes", GAUGE, |r| {
        Some(float(r.found.sample.file_bytes.0))
    }),
    ("container_memory_total_inactive_file_bytes", GAUGE, |r| {
        Some(float(r.found.sample.file_bytes.1))
    }),
    ("container_memory_usage_bytes", GAUGE, |r| Some(float(r.found.sample.memory_bytes))),
    ("container_memory_working_set_bytes", GAUGE, |r| {
        Some(float(r.found.sample.working_set_bytes))
    }),
    ("container_oom_events_total", COUNTER, |r| Some(float(r.more()?.oom_kills))),
    ("container_processes", GAUGE, |r| Some(float(r.more()?.holds.processes))),
    ("container_file_descriptors", GAUGE, |r| Some(float(r.more()?.holds.descriptors))),
    ("container_sockets", GAUGE, |r| Some(float(r.more()?.holds.sockets))),
    ("container_threads", GAUGE, |r| Some(float(r.found.sample.tasks))),
    ("container_threads_max", GAUGE, |r| Some(float(r.more()?.tasks_max))),
    ("container_spec_cpu_period", GAUGE, |r| Some(float(r.more()?.cpu_period_us))),
    ("container_spec_cpu_quota", GAUGE, |r| r.more()?.cpu_quota_us.map(float)),
    ("container_spec_cpu_shares", GAUGE, |r| Some(float(r.more()?.cpu_shares))),
    ("container_spec_memory_limit_bytes", GAUGE, |r| {
        Some(float(r.found.sample.memory_limit_bytes.unwrap_or(0)))
    }),
    ("container_spec_memory_reservation_limit_bytes", GAUGE, |r| {
        Some(float(r.more()?.memory_reservation_bytes))
    }),
    ("container_spec_memory_swap_limit_bytes", GAUGE, |r| Some(float(r.more()?.swap_limit_bytes))),
    ("container_start_time_seconds", GAUGE, |r| {
        Some(r.names.started_at_seconds).filter(|at| *at > 0.0)
    }),
    ("container_pressure_cpu_waiting_seconds_total", COUNTER, |r| stall(r, 0, false)),
    ("container_pressure_cpu_stalled_seconds_total", COUNTER, |r| stall(r, 0, true)),
    ("container_pressure_memory_waiting_seconds_total", COUNTER, |r| stall(r, 1, false)),
    ("container_pressure_memory_stalled_seconds_total", COUNTER, |r| stall(r, 1, true)),
    ("container_pressure_io_waiting_seconds_total", COUNTER, |r| stall(r, 2, false)),
    ("container_pressure_io_stalled_seconds_total", COUNTER, |r| stall(r, 2, true)),
];

fn stall(row: &CadvisorRow<'_>, which: usize, full: bool) -> Option<f64> {
    let pressure = row.found.sample.pressure?[which];
    let stall = if full { pressure.full } else { pressure.some };
    Some(float(stall.total_us) / 1e6)
}

fn plain(text: &mut FamilyText, rows: &[CadvisorRow<'_>]) {
    for (name, kind, figure) in FIGURES {
        let samples: Vec<_> = rows.iter().filter_map(|row| Some((row, figure(row)?))).collect();
        if samples.is_empty() {
            continue;
        }
        text.family(name, kind);
        for (row, value) in samples {
            text.sample(name, &row.labels(&[]), value, Some(row.at_ms));
        }
    }
}

/// Families with a label more.
fn special(text: &mut FamilyText, rows: &[CadvisorRow<'_>]) {
    let name = "container_cpu_usage_seconds_total";
    text.family(name, COUNTER);
    for row in rows {
        let value = float(row.found.sample.cpu_ns) / NANOS;
        text.sample(name, &row.labels(&[("cpu", "total")]), value, Some(row.at_ms));
    }
    let name = "container_memory_failures_total";
    text.family(name, COUNTER);
    for row in rows {
        let (all, major) = row.found.sample.faults;
        for (kind, value) in [("pgfault", all), ("pgmajfault", major)] {
            for scope in ["container", "hierarchy"] {
                let labels = row.labels(&[("failure_type", kind), ("scope", scope)]);
                text.sample(name, &labels, float(value), Some(row.at_ms));
            }
        }
    }
    limits(text, rows);
}

/// Limits of a container's first process; cgroups that are no container's have none.
fn limits(text: &mut FamilyText, rows: &[CadvisorRow<'_>]) {
    let name = "container_ulimits_soft";
    text.family(name, GAUGE);
    for row in rows.iter().filter(|row| matches!(row.key, CgroupOwner::Container(_))) {
        let limit = row.more().and_then(|more| more.holds.files_soft_limit);
        let value = match limit {
            Some(limit @ 0..) => float(limit.unsigned_abs()),
            Some(_) => -1.0,
            None => continue,
        };
        let labels = row.labels(&[("ulimit", "max_open_files")]);
        text.sample(name, &labels, value, Some(row.at_ms));
    }
}

type Traffic = (&'static str, fn(&Interface) -> u64);

fn networks(text: &mut FamilyText, rows: &[CadvisorRow<'_>], sweep: &Sweep, snapshot: &Snapshot) {
    const TRAFFIC: [Traffic; 8] = [
        ("receive_bytes", |i| i.received.bytes),
        ("receive_errors", |i| i.received.errors),
        ("receive_packets_dropped", |i| i.received.dropped),
        ("receive_packets", |i| i.received.packets),
        ("transmit_bytes", |i| i.sent.bytes),
        ("transmit_errors", |i| i.sent.errors),
        ("transmit_packets_dropped", |i| i.sent.dropped),
        ("transmit_packets", |i| i.sent.packets),
    ];
    let of_sandbox = sandboxes(snapshot);
    for (what, traffic) in TRAFFIC {
        let name = format!("container_network_{what}_total");
        text.family(&name, COUNTER);
        for row in rows {
            let interfaces = match row.key {
                CgroupOwner::Root => Some(&sweep.node_network),
                CgroupOwner::Container(id) => {
                    of_sandbox.get(id.as_str()).and_then(|uid| sweep.networks.get(*uid))
                }
                _ => None,
            };
            for interface in interfaces.into_iter().flatten() {
                let labels = row.labels(&[("interface", &interface.name)]);
                text.sample(&name, &labels, float(traffic(interface)), Some(row.at_ms));
            }
        }
    }
}

/// A pod's traffic is reported on its sandbox.
fn sandboxes(snapshot: &Snapshot) -> HashMap<&str, &PodUid> {
    let ready = snapshot.pods.iter().flat_map(|(uid, view)| {
        let sandboxes = view.observed.sandboxes.iter().filter(|sandbox| sandbox.ready);
        sandboxes.map(move |sandbox| (sandbox.id.as_str(), uid))
    });
    ready.collect()
}

type DiskFigure = (&'static str, &'static str, fn(&MountedDisk) -> f64);

/// The node's disks, on the root cgroup.
fn disks(text: &mut FamilyText, rows: &[CadvisorRow<'_>], machine: &MachineStats) {
    const DISK: [DiskFigure; 15] = [
        ("container_fs_inodes_free", GAUGE, |d| float(d.fs.inodes_free)),
        ("container_fs_inodes_total", GAUGE, |d| float(d.fs.inodes)),
        ("container_fs_limit_bytes", GAUGE, |d| float(d.fs.capacity_bytes)),
        ("container_fs_usage_bytes", GAUGE, |d| {
            float(d.fs.capacity_bytes.saturating_sub(d.fs.free_bytes))
        }),
        ("container_fs_reads_total", COUNTER, |d| float(d.io[0])),
        ("container_fs_reads_merged_total", COUNTER, |d| float(d.io[1])),
        ("container_fs_sector_reads_total", COUNTER, |d| float(d.io[2])),
        ("container_fs_read_seconds_total", COUNTER, |d| float(d.io[3]) / 1e3),
        ("container_fs_writes_total", COUNTER, |d| float(d.io[4])),
        ("container_fs_writes_merged_total", COUNTER, |d| float(d.io[5])),
        ("container_fs_sector_writes_total", COUNTER, |d| float(d.io[6])),
        ("container_fs_write_seconds_total", COUNTER, |d| float(d.io[7]) / 1e3),
        ("container_fs_io_current", GAUGE, |d| float(d.io[8])),
        ("container_fs_io_time_seconds_total", COUNTER, |d| float(d.io[9]) / 1e3),
        ("container_fs_io_time_weighted_seconds_total", COUNTER, |d| float(d.io[10]) / 1e3),
    ];
    let Some(root) = rows.iter().find(|row| *row.key == CgroupOwner::Root) else { return };
    for (name, kind, figure) in &DISK {
        text.family(name, kind);
        for disk in &machine.disks {
            let labels = root.labels(&[("device", &disk.device)]);
            text.sample(name, &labels, figure(disk), Some(root.at_ms));
        }
        let operation = match *name {
            "container_fs_reads_total" => "Read",
            "container_fs_writes_total" => "Write",
            _ => continue,
        };
        // The root's are its disks' own counts.
        for row in rows.iter().filter(|row| *row.key != CgroupOwner::Root) {
            for io in row.devices() {
                let value = float(io.operations.get(operation).copied().unwrap_or(0));
                let labels = row.labels(&[("device", device_name(machine, io))]);
                text.sample(name, &labels, value, Some(row.at_ms));
            }
        }
    }
}

/// Bytes that each cgroup read and wrote, where the kernel counts them.
fn transfers(text: &mut FamilyText, rows: &[CadvisorRow<'_>], machine: &MachineStats) {
    let used = || rows.iter().flat_map(|row| row.devices().iter().map(move |io| (row, io)));
    if used().next().is_none() {
        return;
    }
    let families =
        [("container_fs_reads_bytes_total", "Read"), ("container_fs_writes_bytes_total", "Write")];
    for (name, operation) in families {
        text.family(name, COUNTER);
        for (row, io) in used() {
            let value = float(io.bytes.get(operation).copied().unwrap_or(0));
            let labels = row.labels(&[("device", device_name(machine, io))]);
            text.sample(name, &labels, value, Some(row.at_ms));
        }
    }
    let name = "container_blkio_device_usage_total";
    text.family(name, COUNTER);
    for (row, io) in used() {
        let (major, minor) = (io.device.0.to_string(), io.device.1.to_string());
        for (operation, bytes) in &io.bytes {
            let device = device_name(machine, io);
            let more = [
                ("device", device),
                ("major", &*major),
                ("minor", &*minor),
                ("operation", *operation),
            ];
            text.sample(name, &row.labels(&more), float(*bytes), Some(row.at_ms));
        }
    }
}

fn device_name<'a>(machine: &'a MachineStats, io: &DeviceIo) -> &'a str {
    machine.devices.get(&io.device).map(String::as_str).unwrap_or_default()
}

fn version(text: &mut FamilyText, machine: &MachineStats) {
    text.family("cadvisor_version_info", GAUGE);
    let labels = labels(&[
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &machine.host.kernel_version),
        ("osVersion", &machine.host.os_image),
    ]);
    text.sample("cadvisor_version_info", &labels, 1.0, None);
}

fn machine_figures(text: &mut FamilyText, machine: &MachineStats) {
    let labels = labels(&[
        ("boot_id", &machine.host.boot_id),
        ("machine_id", &machine.host.machine_id),
        ("system_uuid", &machine.host.system_uuid),
    ]);
    let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
    for (name, value) in [
        ("machine_cpu_cores", machine.cores),
        ("machine_cpu_physical_cores", machine.physical_cores),
        ("machine_cpu_sockets", machine.sockets),
        ("machine_memory_bytes", bytes(machine.host.memory_bytes)),
        ("machine_swap_bytes", bytes(machine.host.swap_bytes)),
    ] {
        text.family(name, GAUGE);
        text.sample(name, &labels, float(value), None);
    }
    text.family("machine_scrape_error", GAUGE);
    text.sample("machine_scrape_error", "", 0.0, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::testing::{families, recorded, sweep, world};

    /// Left out on purpose; docs/COMPAT.md has the reasons.
    const LEFT_OUT: [&str; 8] = [
        "container_cpu_load_average_10s",
        "container_cpu_load_d_average_10s",
        "container_health_state",
        "container_tasks_state",
        "machine_cpu_books",
        "machine_cpu_drawers",
        "machine_nvm_avg_power_budget_watts",
        "machine_nvm_capacity",
    ];

    #[test]
    fn families_types_and_labels_are_the_recorded_ones() {
        let (snapshot, ..) = world();
        let machine =
            MachineStats { disks: vec![MountedDisk::default()], ..MachineStats::default() };
        let text = exposition(&snapshot, &sweep(), &machine);
        let (ours, theirs) = (families(&text), recorded("/metrics/cadvisor"));
        for (name, family) in theirs.iter().filter(|(n, _)| !LEFT_OUT.contains(&n.as_str())) {
            assert_eq!(ours.get(name), Some(family), "{name}");
        }
        let documented = include_str!("../../../../docs/COMPAT.md");
        for name in LEFT_OUT {
            assert!(!ours.contains_key(name) && documented.contains(name), "{name}");
        }
    }

    #[test]
    fn container_descriptors_processes_ulimits_and_disk_io_are_exported() {
        let (snapshot, ..) = world();
        let devices = [((254, 0), "/dev/vda".to_owned())].into();
        let disks = vec![MountedDisk { device: "/dev/vda".to_owned(), ..MountedDisk::default() }];
        let machine = MachineStats { disks, devices, ..MachineStats::default() };
        let text = exposition(&snapshot, &sweep(), &machine);
        let of = |name: &str, more: &str| {
            let prefix = format!("{name}{{container=\"c\",");
            let mut lines = text.lines().filter(|line| line.starts_with(&prefix));
            let line = lines.find(|line| line.contains(more)).expect("a sample");
            line.split_once("} ").and_then(|(_, rest)| rest.split(' ').next()).map(str::to_owned)
        };
        let value = |name: &str, more: &str| of(name, more).expect("a value");
        assert_eq!(value("container_file_descriptors", ""), "9");
        assert_eq!(value("container_sockets", ""), "2");
        assert_eq!(value("container_processes", ""), "1");
        assert_eq!(value("container_ulimits_soft", "ulimit=\"max_open_files\""), "-1");
        let device = "device=\"/dev/vda\"";
        assert_eq!(value("container_fs_reads_bytes_total", device), "4096");
        assert_eq!(value("container_fs_reads_total", device), "3");
        assert_eq!(value("container_fs_writes_total", device), "0");
        let blkio = "major=\"254\",minor=\"0\",name=\"1\",namespace=\"ns\",operation=\"Read\"";
        assert_eq!(value("container_blkio_device_usage_total", blkio), "4096");
        assert!(!text.contains("container_ulimits_soft{container=\"\",id=\"/\""), "the root");
    }

    #[test]
    fn each_cgroup_is_exported_once_and_cgroups_of_unknown_owners_never() {
        let (snapshot, ..) = world();
        let mut swept = sweep();
        swept.cgroups.get_mut(&CgroupOwner::Pods).expect("read").path = "/".to_owned();
        for name in ["kubelet", "runtime"] {
            let podruntime = CgroupReading {
                path: "/podruntime.slice".to_owned(),
                ..swept.cgroups[&CgroupOwner::Root].clone()
            };
            swept.cgroups.insert(CgroupOwner::System(name), podruntime);
        }
        let gone =
            CgroupReading { path: "/gone".to_owned(), ..swept.cgroups[&CgroupOwner::Root].clone() };
        swept.cgroups.insert(CgroupOwner::Container("gone".to_owned()), gone.clone());
        swept.cgroups.insert(CgroupOwner::Pod("gone".into()), gone);
        let text = exposition(&snapshot, &swept, &MachineStats::default());
        let series = text.lines().filter_map(|line| line.split_once("} ")).map(|(of, _)| of);
        let mut once = HashSet::new();
        series.for_each(|of| assert!(once.insert(of), "{of}"));
        assert!(text.contains("id=\"/podruntime.slice\"") && !text.contains("gone"), "{text}");
        assert!(text.contains("container_network_receive_bytes_total{container=\"\",id=\"/\""));
    }

    #[test]
    fn container_sample_is_labelled_with_its_container_and_pod() {
        let (snapshot, ..) = world();
        let text = exposition(&snapshot, &sweep(), &MachineStats::default());
        let line = "container_memory_working_set_bytes{container=\"c\",\
            id=\"/kubepods/besteffort/podu/1\",image=\"busybox\",name=\"1\",namespace=\"ns\",\
            pod=\"p\"} 516096 ";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("container_network_receive_bytes_total{container=\"\""), "{text}");
    }
}
