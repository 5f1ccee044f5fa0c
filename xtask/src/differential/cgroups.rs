//! Cgroups of a pod and its containers, and settings of their first processes.
//!
//! Settings only, no measurements; v1 and v2 alike: every hierarchy of the host is read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::observe::Subject;
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

/// How the cgroups of pods and containers are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CgroupNames {
    /// By the kubelet's driver `cgroupfs`, below a cgroup.
    Plain { root: String },
    /// By systemd, as slices and scopes.
    Systemd,
}

impl CgroupNames {
    /// The pod's cgroup in a class, below a hierarchy's mount point.
    fn pod(&self, class: &str, uid: &str) -> PathBuf {
        match self {
            Self::Plain { root } => Path::new(root).join(class).join(format!("pod{uid}")),
            Self::Systemd => {
                // A slice's name is its path.
                let prefix = class.replace('/', "-");
                let slices = prefix.match_indices('-').map(|(at, _)| &prefix[..at]);
                let parents: PathBuf =
                    slices.chain([&*prefix]).map(|name| format!("{name}.slice")).collect();
                parents.join(format!("{prefix}-pod{}.slice", uid.replace('-', "_")))
            }
        }
    }

    /// A container's cgroup in that of its pod.
    fn container(&self, id: &str) -> String {
        match self {
            Self::Plain { .. } => id.to_owned(),
            Self::Systemd => format!("cri-containerd-{id}.scope"),
        }
    }
}

/// Settings by cgroup, and processes by container.
pub(super) fn of(names: &CgroupNames, subject: &Subject, containers: &Containers) -> Value {
    let (mut groups, mut processes) = (json!({}), json!({}));
    for (mount, _) in hierarchies().unwrap_or_default() {
        for class in CLASSES {
            let pod = mount.join(names.pod(class, &subject.uid));
            if !pod.is_dir() {
                continue;
            }
            merge(&mut groups[format!("{class}/pod")], settings(&pod));
            for (id, name) in &containers.names {
                let dir = pod.join(names.container(id));
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
pub(super) fn is_there(names: &CgroupNames, subject: &Subject) -> bool {
    let mounts = hierarchies().unwrap_or_default();
    let pods = CLASSES.map(|class| names.pod(class, &subject.uid));
    mounts.iter().any(|(mount, _)| pods.iter().any(|pod| mount.join(pod).is_dir()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_of_a_pod_has_the_name_of_its_driver() {
        let plain = CgroupNames::Plain { root: "n1".to_owned() };
        for (names, class, pod, container) in [
            (&plain, "kubepods", "n1/kubepods/poda-b", "c1"),
            (
                &CgroupNames::Systemd,
                "kubepods",
                "kubepods.slice/kubepods-poda_b.slice",
                "cri-containerd-c1.scope",
            ),
            (
                &CgroupNames::Systemd,
                "kubepods/burstable",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
                "cri-containerd-c1.scope",
            ),
        ] {
            assert_eq!(names.pod(class, "a-b"), Path::new(pod));
            assert_eq!(names.container("c1"), container);
        }
    }
}
