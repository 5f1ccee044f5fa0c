//! What pods left behind on a node: the things that must be gone once their pods are.
//!
//! Read from the kernel and the file system, never from the agent: a leak is what the agent does
//! not know of. Each list names what was found, so that a failed test says what leaked.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Node, cgroups};

/// Cgroups that stay when no pod is there: the quality-of-service tree.
const STANDING_CGROUPS: [&str; 3] = ["kubepods", "kubepods/besteffort", "kubepods/burstable"];

/// Lists of what is still there; all empty on a clean node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Pod and container cgroups, as paths below the node's own.
    pub cgroups: Vec<String>,
    /// Mount points below the agent's pods folder and containerd's state.
    pub mounts: Vec<String>,
    /// Sandbox ids of running shims.
    pub shims: Vec<String>,
    /// Entries of the agent's pods folder.
    pub pod_dirs: Vec<String>,
    /// Entries of the pod log folder.
    pub log_dirs: Vec<String>,
    /// Network namespaces of pods.
    pub netns: Vec<String>,
}

impl Leftovers {
    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn count(node: &Node, agent_root: &Path, pod_logs: &Path) -> Result<Leftovers> {
    let standing = |path: &String| STANDING_CGROUPS.contains(&path.as_str());
    let cgroups = cgroups::below(node.name())?.into_iter().filter(|p| !standing(p)).collect();
    let holder = node.holder_pid();
    let mounts = fs::read_to_string(format!("/proc/{holder}/mountinfo"));
    let mounts = mounts.context("read the node's mounts")?;
    let (pods, state) = (agent_root.join("pods"), node.state());
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(4));
    let ours = |p: &&str| Path::new(p).starts_with(&pods) || Path::new(p).starts_with(&state);
    let netns = Path::new("/proc").join(holder.to_string()).join("root/run/netns");
    Ok(Leftovers {
        cgroups,
        mounts: points.filter(ours).map(str::to_owned).collect(),
        shims: node.shims().into_iter().map(|s| s.sandbox_id).collect(),
        pod_dirs: entries(&pods),
        log_dirs: entries(pod_logs),
        netns: entries(&netns),
    })
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}
