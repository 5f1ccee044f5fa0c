//! Leftovers of pods on a node: resources that must be gone once their pods are.
//!
//! Read from the kernel and the file system, never from the agent: an agent does not know its
//! leaks. Each list names the leftovers, so that a failed test shows what leaked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cgroups;
use super::process::{self, Shim};

/// Cgroups that stay without pods: the quality-of-service tree.
const STANDING_CGROUPS: [&str; 3] = ["kubepods", "kubepods/besteffort", "kubepods/burstable"];

/// Lists of leftovers; all empty on a clean node.
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

    /// Takes out running shims and the mounts of their sandboxes: containerd leaves them behind when
    /// the caller of RunPodSandbox dies in the middle of it.
    pub fn forgive_abandoned_sandboxes(&mut self) {
        let shims = std::mem::take(&mut self.shims);
        self.mounts.retain(|mount| !shims.iter().any(|id| mount.contains(id.as_str())));
    }
}

/// Places where a node's pods leave traces; folders are named as the node sees them.
pub(crate) struct Places<'a> {
    /// The node's own cgroup.
    pub(crate) cgroup: &'a str,
    /// Mark that the node's processes carry, see `process`.
    pub(crate) mark: &'a str,
    /// The agent's folder of pods.
    pub(crate) pods: PathBuf,
    /// containerd's state folder.
    pub(crate) state: PathBuf,
    /// The pods' logs.
    pub(crate) logs: PathBuf,
}

/// Counts leftovers on the node that has the namespaces of the process `holder`.
pub(crate) fn count(holder: u32, places: &Places<'_>) -> Result<Leftovers> {
    let cgroups = cgroups::below(places.cgroup)?.into_iter().filter(|p| !is_standing(p)).collect();
    let mounts = fs::read_to_string(format!("/proc/{holder}/mountinfo"));
    let mounts = mounts.context("read the node's mounts")?;
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(4)).map(Path::new);
    let ours = |p: &&Path| p.starts_with(&places.pods) || p.starts_with(&places.state);
    let seen = |dir: &Path| {
        let inside = dir.strip_prefix("/").unwrap_or(dir);
        entries(&Path::new("/proc").join(holder.to_string()).join("root").join(inside))
    };
    let mounts_of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = mounts_of(holder);
    let here = |shim: &Shim| u32::try_from(shim.pid).is_ok_and(|pid| mounts_of(pid) == own);
    let shims = process::shims(places.mark).into_iter().filter(here);
    Ok(Leftovers {
        cgroups,
        mounts: points.filter(ours).map(|p| p.to_string_lossy().into_owned()).collect(),
        shims: shims.map(|s| s.sandbox_id).collect(),
        pod_dirs: seen(&places.pods),
        log_dirs: seen(&places.logs),
        netns: seen(Path::new("/run/netns")),
    })
}

/// Whether a cgroup stays without pods; slices end with the names that cgroupfs has.
fn is_standing(path: &str) -> bool {
    let plain = |part: &str| match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next().unwrap_or(slice).to_owned(),
        None => part.to_owned(),
    };
    let parts: Vec<String> = path.split('/').map(plain).collect();
    STANDING_CGROUPS.contains(&&*parts.join("/"))
}

fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_classes_stay_and_those_of_pods_do_not() {
        for path in ["kubepods", "n-kubepods.slice/n-kubepods-burstable.slice"] {
            assert!(is_standing(path), "{path}");
        }
        let of_pods = ["kubepods/podu", "n-kubepods.slice/n-kubepods-podu.slice"];
        for path in [of_pods[0], of_pods[1], "n-kubepods.slice/x.scope", "other"] {
            assert!(!is_standing(path), "{path}");
        }
    }

    #[test]
    fn leftovers_without_abandoned_sandboxes_keep_the_mounts_of_other_sandboxes() {
        let mount = |id: &str| format!("/run/containerd/k8s.io/{id}/rootfs");
        let mut left = Leftovers {
            shims: vec!["abandoned".to_owned()],
            mounts: vec![mount("abandoned"), mount("other")],
            ..Leftovers::default()
        };
        left.forgive_abandoned_sandboxes();
        assert_eq!(left, Leftovers { mounts: vec![mount("other")], ..Leftovers::default() });
    }
}
