//! Cgroups of a pod and its containers, and settings of their first processes.
//!
//! Settings only, no measurements; v1 and v2 alike: every hierarchy of the host is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::look::Subject;
use super::runtime::Containers;
use crate::node::cgroups::hierarchies;

/// The cgroups in which pods can be, below the node's.
const CLASSES: [&str; 3] = ["kubepods", "kubepods/besteffort", "kubepods/burstable"];
/// Files that are settings.
const SETTINGS: [&str; 20] = [
    "cpu.shares",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.weight",
    "cpu.max",
    "cpuset.cpus",
    "cpuset.mems",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.oom_control",
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.max",
    "memory.swap.max",
    "memory.oom.group",
    "pids.max",
    "hugetlb.2MB.limit_in_bytes",
    "hugetlb.2MB.max",
];
/// Lines of a process's status that are settings.
const STATUS: [&str; 11] = [
    "Uid",
    "Gid",
    "Groups",
    "NoNewPrivs",
    "Seccomp",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NSpid",
];

/// Settings by cgroup, and processes by container.
pub(super) fn of(root: &str, subject: &Subject, containers: &Containers) -> Value {
    let (mut groups, mut processes) = (json!({}), json!({}));
    for (mount, _) in hierarchies().unwrap_or_default() {
        for class in CLASSES {
            let pod = mount.join(root).join(class).join(format!("pod{}", subject.uid));
            if !pod.is_dir() {
                continue;
            }
            merge(&mut groups[format!("{class}/pod")], settings(&pod));
            for (id, name) in &containers.names {
                let dir = pod.join(id);
                if dir.is_dir() {
                    merge(&mut groups[format!("{class}/pod/{name}")], settings(&dir));
                    if let Some(process) = first_process(&dir) {
                        processes[name] = process;
                    }
                }
            }
        }
    }
    json!({"groups": groups, "processes": processes})
}

/// Returns whether the pod has a cgroup in any hierarchy.
pub(super) fn is_there(root: &str, subject: &Subject) -> bool {
    let mounts = hierarchies().unwrap_or_default();
    let pod = format!("pod{}", subject.uid);
    let mut places = mounts.iter().flat_map(|(mount, _)| CLASSES.map(|c| mount.join(root).join(c)));
    places.any(|class| class.join(&pod).is_dir())
}

fn merge(into: &mut Value, settings: BTreeMap<String, String>) {
    for (file, value) in settings {
        into[file] = json!(value);
    }
}

fn settings(dir: &Path) -> BTreeMap<String, String> {
    let read = |file: &&str| {
        let text = fs::read_to_string(dir.join(file)).ok()?;
        // `under_oom` is a state, not a setting.
        let lines =
            text.lines().filter(|l| !l.starts_with("under_oom") && !l.starts_with("oom_kill "));
        Some(((*file).to_owned(), lines.collect::<Vec<_>>().join(" ")))
    };
    SETTINGS.iter().filter_map(read).collect()
}

/// The process that was there first has the smallest pid.
fn first_process(dir: &Path) -> Option<Value> {
    let pids = fs::read_to_string(dir.join("cgroup.procs")).ok()?;
    let pid: u32 = pids.lines().filter_map(|p| p.parse().ok()).min()?;
    let proc = Path::new("/proc").join(pid.to_string());
    let status = fs::read_to_string(proc.join("status")).ok()?;
    let mut process = json!({});
    for (key, value) in status.lines().filter_map(|l| l.split_once(':')) {
        if STATUS.contains(&key) {
            let value: Vec<&str> = value.split_whitespace().collect();
            // How deep in process namespaces it is, not which number it has there.
            let value = if key == "NSpid" { value.len().to_string() } else { value.join(" ") };
            process[key] = json!(value);
        }
    }
    let adjustment = fs::read_to_string(proc.join("oom_score_adj")).unwrap_or_default();
    process["oom_score_adj"] = json!(adjustment.trim());
    Some(process)
}
