//! The node's own cgroup in every hierarchy of the host: made at the start, removed at the end.
//!
//! Works on cgroup v1, v2 and the mix of both. Only folders of our own name are touched; the host's
//! hierarchies are never mounted, unmounted or reconfigured, except that on v2 the controllers are
//! enabled down to our folder, because otherwise no limit would work.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process;

/// How long killed processes may take to leave their cgroups.
const EMPTY_WAIT: Duration = Duration::from_secs(10);

/// Mount points of all cgroup hierarchies, and whether each is v2.
pub fn hierarchies() -> Result<Vec<(PathBuf, bool)>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    Ok(parse(&mounts))
}

fn parse(mounts: &str) -> Vec<(PathBuf, bool)> {
    let fields = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let cgroup = fields.filter(|f| f.len() > 2 && matches!(f[2], "cgroup" | "cgroup2"));
    cgroup.map(|f| (PathBuf::from(f[1]), f[2] == "cgroup2")).collect()
}

/// Makes the cgroup `name` below the root of every hierarchy.
pub fn create(name: &str) -> Result<()> {
    for (mount, is_v2) in hierarchies()? {
        let dir = mount.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        if is_v2 {
            // Refused for a controller that this hierarchy lacks, as on a mixed host: then it is
            // one of the v1 hierarchies that limits.
            for controller in ["+cpuset", "+cpu", "+io", "+memory", "+pids"] {
                for at in [&mount, &dir] {
                    let _ = fs::write(at.join("cgroup.subtree_control"), controller);
                }
            }
        }
        // A v1 cpuset starts empty and takes no process until it has CPUs and memory.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(mount.join(file)) {
                fs::write(dir.join(file), value.trim()).with_context(|| format!("fill {file}"))?;
            }
        }
    }
    Ok(())
}

/// Kills what still runs below `name` and removes the folders of every hierarchy.
pub fn remove(name: &str) -> Result<()> {
    let deadline = Instant::now() + EMPTY_WAIT;
    for (mount, _) in hierarchies()? {
        let dir = mount.join(name);
        while dir.exists() {
            kill_in(&dir);
            match remove_tree(&dir) {
                Ok(()) => break,
                Err(e) if Instant::now() > deadline => {
                    return Err(e).with_context(|| format!("remove {}", dir.display()));
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }
    Ok(())
}

/// Removes the cgroups that test programs created and left behind: those at the top of a hierarchy
/// named `pintle-`, a word, the number of a process that has ended, and more.
pub fn sweep() -> Result<()> {
    for (mount, _) in hierarchies()? {
        for entry in fs::read_dir(&mount).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if maker_of(&name).is_some_and(|maker| !process::is_running(maker)) {
                remove(&name)?;
            }
        }
    }
    Ok(())
}

fn maker_of(name: &str) -> Option<i32> {
    let (_, rest) = name.strip_prefix("pintle-")?.split_once('-')?;
    rest.split('-').next()?.parse().ok()
}

/// Every folder below `name` in any hierarchy, as paths inside it, sorted, without repetition.
pub fn below(name: &str) -> Result<Vec<String>> {
    let mut found = std::collections::BTreeSet::new();
    for (mount, _) in hierarchies()? {
        let top = mount.join(name);
        for dir in tree(&top).into_iter().filter(|d| *d != top) {
            let inside = dir.strip_prefix(&top).expect("walked from top");
            found.insert(inside.to_string_lossy().into_owned());
        }
    }
    Ok(found.into_iter().collect())
}

/// Kills what runs below `name`.
pub(super) fn kill_below(name: &str) -> Result<()> {
    hierarchies()?.iter().for_each(|(mount, _)| kill_in(&mount.join(name)));
    Ok(())
}

/// Returns whether any hierarchy has the cgroup.
pub(super) fn exists(name: &str) -> Result<bool> {
    Ok(hierarchies()?.iter().any(|(mount, _)| mount.join(name).exists()))
}

fn kill_in(dir: &Path) {
    for dir in tree(dir) {
        // A frozen process takes its SIGKILL only after the thaw.
        let _ = fs::write(dir.join("freezer.state"), "THAWED");
        let _ = fs::write(dir.join("cgroup.freeze"), "0");
        let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in pids.lines().filter_map(|p| p.parse().ok()).filter(|p| *p > 1) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Parents before children.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        open.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        all.push(dir);
    }
    all
}

fn remove_tree(dir: &Path) -> std::io::Result<()> {
    tree(dir).iter().rev().try_for_each(fs::remove_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maker_pid_is_parsed_from_a_cgroup_name() {
        assert_eq!(maker_of("pintle-test-12-slices"), Some(12));
        assert_eq!(maker_of("pintle-node-34-0"), Some(34));
        for name in ["pintle-cluster-testx5-n1", "pintle-test-x-1", "pintle-7", "test-1-2"] {
            assert_eq!(maker_of(name), None, "{name}");
        }
    }

    #[test]
    fn both_kinds_of_hierarchies_are_found_among_other_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = parse(mounts);
        assert_eq!(
            found,
            [
                (PathBuf::from("/sys/fs/cgroup/cpu"), false),
                (PathBuf::from("/sys/fs/cgroup/unified"), true)
            ]
        );
    }
}
