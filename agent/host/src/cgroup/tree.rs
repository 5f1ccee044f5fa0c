//! The files of cgroups: reads and writes in every hierarchy of the node.
//!
//! Input: names below the cgroup root. Output: created directories, limits, killed processes,
//! removed directories. Everything here blocks for as long as the kernel takes; `execute` calls it
//! in the pool. Processes are killed with `cgroup.kill` where the kernel has it (v2 from 5.14 on).
//! Elsewhere they are killed through pidfds, each opened before the cgroup is read again, because a
//! PID alone may belong to another process when the signal is sent.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cgroups_rs::cpu::CpuController;
use cgroups_rs::hierarchies::{self, V1, V2};
use cgroups_rs::hugetlb::HugeTlbController;
use cgroups_rs::memory::MemController;
use cgroups_rs::pid::PidController;
use cgroups_rs::{Cgroup, Hierarchy, MaxValue};
use pintle_ebpf::Process;

use super::execute::CgroupError;
use super::formulas::{cpu_weight, hugepage_size_name};
use super::limits::CgroupLimits;

/// Controllers of v1 that pods are limited by.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];
/// Most directories that one removal or listing visits; the rest of a larger tree is left out.
const TREE_DIRS_MAX: usize = 10_000;

/// Pidfds that are open at once while processes are killed.
const OPEN_MAX: usize = 256;

/// The node's cgroup hierarchies.
#[derive(Debug)]
pub struct CgroupTree {
    v1: Option<V1>,
    root: String,
    /// `kubepods`, burstable, besteffort.
    pub(super) classes: [String; 3],
    mounts: Vec<Mount>,
    warned: Mutex<BTreeSet<String>>,
}

/// One hierarchy; v1 may carry several controllers (`cpu,cpuacct`).
#[derive(Debug)]
struct Mount {
    path: PathBuf,
    controllers: Vec<String>,
}

impl CgroupTree {
    /// Finds the hierarchies.
    pub(super) fn find(root: String, classes: [String; 3]) -> Result<Self, CgroupError> {
        let (mounts, warned) = (Vec::new(), Mutex::default());
        let mut this = Self { v1: None, root, classes, mounts, warned };
        if hierarchies::is_cgroup2_unified_mode() {
            let path = PathBuf::from(hierarchies::UNIFIED_MOUNTPOINT);
            this.mounts = vec![Mount { path, controllers: Vec::new() }];
            return Ok(this);
        }
        let v1 = V1::new();
        let mut mounts: Vec<Mount> = Vec::new();
        for subsystem in v1.subsystems() {
            let path = subsystem.to_controller().path().to_owned();
            let controller = subsystem.controller_name();
            match mounts.iter_mut().find(|mount| mount.path == path) {
                Some(mount) => mount.controllers.push(controller),
                None => mounts.push(Mount { path, controllers: vec![controller] }),
            }
        }
        if mounts.is_empty() {
            return Err(CgroupError::NotMounted);
        }
        (this.v1, this.mounts) = (Some(v1), mounts);
        Ok(this)
    }

    /// A unified hierarchy in a folder.
    #[cfg(test)]
    pub(super) fn unified_at(path: &Path) -> Self {
        let mounts = vec![Mount { path: path.to_owned(), controllers: Vec::new() }];
        let (root, classes, warned) = Default::default();
        Self { v1: None, root, classes, mounts, warned }
    }

    /// Hierarchies of v1 that all have the same folder.
    #[cfg(test)]
    pub(super) fn legacy_at(path: &Path) -> Self {
        let controllers = ["cpu", "cpuacct", "memory", "pids"].map(str::to_owned).into();
        let mounts = vec![Mount { path: path.to_owned(), controllers }];
        let (root, classes, warned) = Default::default();
        Self { v1: Some(V1::new()), root, classes, mounts, warned }
    }

    /// True on cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.v1.is_none()
    }

    /// The path of `name` as the runtime's `cgroup_parent` needs it: absolute and with the cgroup
    /// root.
    pub fn runtime_path(&self, name: &str) -> String {
        format!("/{}", self.below_root(name))
    }

    /// Directory of `name` in the hierarchy of `controller` (v1: `cpu`, `memory`, `pids`, …), or in
    /// the only hierarchy (v2).
    pub fn dir(&self, name: &str, controller: &str) -> Option<PathBuf> {
        let mount = match &self.v1 {
            None => self.mounts.first()?,
            Some(_) => {
                self.mounts.iter().find(|m| m.controllers.iter().any(|c| c == controller))?
            }
        };
        Some(mount.path.join(self.below_root(name)))
    }

    /// Inode of the directory of [`Self::dir`]: the kernel's id of the cgroup in its hierarchy.
    pub fn id(&self, name: &str, controller: &str) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.dir(name, controller)?).ok().map(|m| m.ino())
    }

    /// True when the cgroup exists in every hierarchy in which the agent sets limits.
    // k8s: pkg/kubelet/cm/cgroup_v1_manager_linux.go Validate
    pub fn exists(&self, name: &str) -> bool {
        let below = self.below_root(name);
        let ours = |mount: &&Mount| {
            self.is_v2() || mount.controllers.iter().any(|c| CONTROLLERS.contains(&c.as_str()))
        };
        self.mounts.iter().filter(ours).all(|mount| mount.path.join(&below).is_dir())
    }

    /// Creates the cgroup in every hierarchy.
    pub(super) fn create(&self, name: &str) -> Result<(), CgroupError> {
        let cgroup = Cgroup::load(self.hierarchy(), self.below_root(name));
        // The crate swallows the errors of v1, so the directories are checked.
        let made = cgroup.create();
        let Some(path) = self.dirs(name).find(|dir| !dir.is_dir()) else { return Ok(()) };
        let again = fs::create_dir_all(&path).err();
        match again.or_else(|| made.err().map(io::Error::other)) {
            Some(source) => Err(CgroupError::Create { path, source }),
            None => Ok(()),
        }
    }

    /// Processes in the cgroup and below it, in any hierarchy.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go Pids
    pub fn pids(&self, name: &str) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for dir in self.dirs(name) {
            for dir in tree_of(&dir)? {
                let path = dir.join("cgroup.procs");
                match fs::read_to_string(&path) {
                    // 0 is a process outside the agent's PID namespace, which cannot be signalled.
                    Ok(text) => pids.extend(
                        text.lines().filter_map(|l| l.parse().ok()).filter(|pid: &i32| *pid > 0),
                    ),
                    Err(source) if is_gone(&source) => {}
                    Err(source) => return Err(CgroupError::Read { path, source }),
                }
            }
        }
        Ok(pids)
    }

    /// True if the cgroup exists and neither it nor one below has a process; `name` may begin with `/`.
    pub fn has_no_process(&self, name: &str) -> bool {
        let name = name.trim_start_matches('/');
        self.exists(name) && self.pids(name).is_ok_and(|pids| pids.is_empty())
    }

    /// Returns the processes that are in the cgroup; with `kill`, sends them SIGKILL.
    pub(super) fn end_all(&self, name: &str, kill: bool) -> Result<BTreeSet<i32>, CgroupError> {
        let pids = self.pids(name)?;
        if kill && !pids.is_empty() && !self.kill_as_one(name) {
            let all: Vec<i32> = pids.iter().copied().collect();
            for some in all.chunks(OPEN_MAX) {
                self.kill(name, some)?;
            }
        }
        Ok(pids)
    }

    /// Kills all processes in the cgroup and below it at once, by `cgroup.kill`.
    fn kill_as_one(&self, name: &str) -> bool {
        let dir = self.dirs(name).next().filter(|_| self.is_v2());
        dir.is_some_and(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok())
    }

    /// Sends SIGKILL to those of `pids` that are in the cgroup.
    pub(super) fn kill(&self, name: &str, pids: &[i32]) -> Result<(), CgroupError> {
        // A process that has exited is skipped. One that cannot be killed is in the next listing.
        let open = |pid: &i32| Some((*pid, Process::open(pid.unsigned_abs()).ok()?));
        let opened: Vec<(i32, Process)> = pids.iter().filter_map(open).collect();
        // A pidfd refers to the process that had the PID when it was opened, and the PID is not
        // reused while that process is alive. So a PID that is in the cgroup now is that process,
        // or that process has exited.
        let inside = self.pids(name)?;
        for (_, process) in opened.iter().filter(|(pid, _)| inside.contains(pid)) {
            let _ = process.kill();
        }
        Ok(())
    }

    /// Removes the cgroup's directories, and those below, in every hierarchy.
    pub(super) fn remove(&self, name: &str) -> Result<(), CgroupError> {
        let mut dirs = self.dirs(name).chain(self.dirs_of_others(name));
        dirs.try_for_each(|dir| remove_tree(&dir))
    }

    fn below_root(&self, name: &str) -> String {
        match self.root.as_str() {
            "" => name.to_owned(),
            root => format!("{root}/{name}"),
        }
    }

    pub(super) fn dirs(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let below = self.below_root(name);
        self.mounts.iter().map(move |mount| mount.path.join(&below))
    }

    /// The cgroup's directories in hierarchies in which the agent sets no limits: on v1 the runtime
    /// creates the cgroup there too (`unified`, `systemd`), and it is removed with the others.
    pub(super) fn dirs_of_others(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let below = self.below_root(name);
        let v1 = self.v1.is_some().then(|| fs::read_dir(hierarchies::UNIFIED_MOUNTPOINT));
        let folders = v1.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
        let others = folders.filter(|path| self.mounts.iter().all(|mount| mount.path != *path));
        others.map(move |path| path.join(&below)).filter(|dir| dir.is_dir())
    }

    fn hierarchy(&self) -> Box<dyn Hierarchy> {
        match &self.v1 {
            Some(v1) => Box::new(v1.clone()),
            None => Box::new(V2::new()),
        }
    }

    /// Sets limits.
    pub(super) fn apply(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let cgroup = Cgroup::load(self.hierarchy(), self.below_root(name));
        let check = |what, result| self.degrade(what, name, result);
        if let Some(cpu) = cgroup.controller_of::<CpuController>() {
            let share = |s| if self.is_v2() { cpu_weight(s) } else { s };
            if let Some(shares) = limits.cpu_shares {
                check("cpu.shares", cpu.set_shares(share(shares)))?;
            }
            // The period first, because the kernel validates a quota against it.
            if let Some(period) = limits.cpu_period_us {
                check("cpu.cfs_period_us", cpu.set_cfs_period(period))?;
            }
            if let Some(quota) = limits.cpu_quota_us {
                check("cpu.cfs_quota_us", cpu.set_cfs_quota(quota))?;
            }
        }
        if let (Some(memory), Some(limit)) =
            (cgroup.controller_of::<MemController>(), limits.memory_limit)
        {
            check("memory limit", memory.set_limit(limit))?;
        }
        if let (Some(pids), Some(max)) = (cgroup.controller_of::<PidController>(), limits.pids_max)
        {
            let max = if max > 0 { MaxValue::Value(max) } else { MaxValue::Max };
            check("pids.max", pids.set_pid_max(max))?;
        }
        if let Some(hugetlb) = cgroup.controller_of::<HugeTlbController>() {
            for (size, limit) in &limits.hugetlb {
                let size = hugepage_size_name(*size);
                if hugetlb.size_supported(&size) {
                    check("hugetlb limit", hugetlb.set_limit_in_bytes(&size, *limit))?;
                }
            }
        }
        self.apply_unified(name, limits)
    }

    fn apply_unified(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        if !self.is_v2() {
            return Ok(());
        }
        let Some(dir) = self.dirs(name).next() else { return Ok(()) };
        let cpus = limits.cpus.iter().map(|cpus| ("cpuset.cpus", cpus.as_str()));
        let others = limits.unified.iter().map(|(file, value)| (file.as_str(), value.as_str()));
        for (file, value) in cpus.chain(others) {
            let path = dir.join(file);
            match fs::write(&path, value) {
                Err(source) if is_missing_right(&source) => self.warn_once(file, name, &source),
                Err(source) => return Err(CgroupError::Write { path, source }),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Skips a limit that the agent may not set or that has no file, with one warning for each kind
    /// of limit. Any other failure is an error.
    fn degrade(
        &self,
        what: &'static str,
        name: &str,
        result: cgroups_rs::error::Result<()>,
    ) -> Result<(), CgroupError> {
        let Err(error) = result else { return Ok(()) };
        match cause_of(&error) {
            Some(cause) if is_missing_right(cause) => {
                self.warn_once(what, name, cause);
                Ok(())
            }
            _ => Err(CgroupError::Limit { what, name: name.to_owned(), source: Box::new(error) }),
        }
    }

    fn warn_once(&self, what: &str, name: &str, error: &io::Error) {
        let mut warned = self.warned.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if warned.insert(what.to_owned()) {
            tracing::warn!(what, cgroup = name, %error, "cannot set a cgroup limit; skipping it");
        }
    }
}

fn is_missing_right(error: &io::Error) -> bool {
    use nix::libc::{EACCES, ENOENT, EPERM, EROFS};
    matches!(error.raw_os_error(), Some(EACCES | EPERM | EROFS | ENOENT))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::ENOENT | nix::libc::ENODEV))
}

fn cause_of(error: &cgroups_rs::error::Error) -> Option<&io::Error> {
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        if let Some(io) = next.downcast_ref() {
            return Some(io);
        }
        cause = next.source();
    }
    None
}

/// `dir` and all directories below it, parents first, up to about `TREE_DIRS_MAX`; empty when `dir`
/// does not exist.
fn tree_of(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while next < found.len() && found.len() < TREE_DIRS_MAX {
        let path = found[next].clone();
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(source) if is_gone(&source) => {
                found.remove(next);
                continue;
            }
            Err(source) => return Err(CgroupError::Read { path, source }),
        };
        let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        found.extend(dirs.map(|e| e.path()));
        next += 1;
    }
    Ok(found)
}

pub(super) fn remove_tree(dir: &Path) -> Result<(), CgroupError> {
    for path in tree_of(dir)?.into_iter().rev() {
        match fs::remove_dir(&path) {
            Ok(()) => {}
            Err(source) if is_gone(&source) => {}
            Err(source) => return Err(CgroupError::Remove { path, source }),
        }
    }
    Ok(())
}
