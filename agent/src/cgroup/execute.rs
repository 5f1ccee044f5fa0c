//! Makes, limits and removes the cgroups above containers, on cgroup v1 (every hierarchy) and v2,
//! directly or through systemd.
//!
//! Input: names below the cgroup root (`kubepods/burstable/pod<uid>`) and final numbers
//! (`CgroupLimits`). Output: directories and their files; the directory whose inode the kernel
//! programs follow. Owner: the pod's worker for its own cgroup, the node loop for the tree above.
//! Bounds: a removal kills at most `KILL_ROUNDS` times and waits at most about 1.5 s.
//! File operations take microseconds each. What waits is a removal, and whatever systemd does:
//! with its driver a slice is made and limited by systemd first, and the same numbers are then
//! written to the files, because it knows neither every file nor every right time.
//!
//! Why cgroups-rs with own files beside it: the crate knows the hierarchies, fills v1 cpusets from
//! the parent and enables v2 controllers down the tree. It swallows a failing mkdir and cannot
//! remove a tree, so existence is checked afterwards and removal is done here, children first.
//! The container cgroups below belong to the runtime; they are touched by removal only.
//! A right that is missing (read-only file, no permission, file not there) costs a limit, not the
//! pod: it is warned about once per file name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use cgroups_rs::cpu::CpuController;
use cgroups_rs::hierarchies::{self, V1, V2};
use cgroups_rs::hugetlb::HugeTlbController;
use cgroups_rs::memory::MemController;
use cgroups_rs::pid::PidController;
use cgroups_rs::{Cgroup, Hierarchy, MaxValue};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::formulas::{SHARES_MIN, cpu_weight, hugepage_size_name};
use super::limits::{CgroupLimits, QosLimits};
use super::names::{CgroupDriver, CgroupSetup};
use super::systemd::{self, Systemd, SystemdError};
use super::unit;
use crate::pod::qos::QosClass;

/// How often processes found in a pod's cgroup are killed before the removal gives up.
// k8s: pkg/kubelet/cm/pod_container_manager_linux.go tryKillingCgroupProcesses
pub const KILL_ROUNDS: u32 = 5;
/// Wait after the first round; doubled each round.
const KILL_WAIT_FIRST: Duration = Duration::from_millis(50);
/// Controllers of v1 that pods are limited by.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];
/// Cgroup directories visited in one removal or listing: a runaway nesting is cut off.
const TREE_DIRS_MAX: usize = 10_000;

/// What went wrong with which cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Neither cgroup v2 nor a v1 controller is mounted.
    #[error("no cgroup hierarchy is mounted at /sys/fs/cgroup")]
    NotMounted,
    /// The configuration or the runtime wants systemd's slices where systemd does not run.
    #[error(
        "cgroupDriver is systemd, but systemd does not run on this host (/run/systemd/system is \
         missing); set cgroupDriver to cgroupfs here and in the container runtime"
    )]
    NoSystemd,
    /// systemd did not do its part.
    #[error("cgroup {name}")]
    Systemd {
        /// Cgroup below the root.
        name: String,
        /// Cause.
        source: SystemdError,
    },
    /// The name is absolute, empty or contains `..`.
    #[error("{0:?} is not a cgroup name")]
    BadName(String),
    /// A directory could not be made.
    #[error("cannot create cgroup {}", path.display())]
    Create {
        /// Directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A limit was refused.
    #[error("cannot set {what} of cgroup {name}")]
    Limit {
        /// The value's file or field.
        what: &'static str,
        /// Cgroup below the root.
        name: String,
        /// Cause.
        source: Box<cgroups_rs::error::Error>,
    },
    /// A limit's file was refused.
    #[error("cannot write {}", path.display())]
    Write {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Processes outlived every round of SIGKILL.
    #[error(
        "{count} processes of cgroup {name} survived {KILL_ROUNDS} rounds of SIGKILL, first pid {pid}"
    )]
    Survivors {
        /// Cgroup below the root.
        name: String,
        /// How many.
        count: usize,
        /// One of them.
        pid: i32,
    },
    /// A directory could not be removed.
    #[error("cannot remove cgroup {}", path.display())]
    Remove {
        /// Directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A directory could not be read.
    #[error("cannot read cgroup {}", path.display())]
    Read {
        /// Directory or file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// The node's cgroup hierarchies and the root below which everything of ours lives.
#[derive(Debug)]
pub struct Cgroups {
    v1: Option<V1>,
    root: String,
    /// `kubepods`, burstable, besteffort.
    tree: [String; 3],
    systemd: Option<Systemd>,
    mounts: Vec<Mount>,
    warned: Mutex<BTreeSet<String>>,
}

/// One hierarchy; v1 may carry several controllers (`cpu,cpuacct`).
#[derive(Debug)]
struct Mount {
    path: PathBuf,
    controllers: Vec<String>,
}

impl Cgroups {
    /// Finds the hierarchies. `root` is `cgroupRoot` of the configuration, such as `/`.
    pub fn open(root: &str) -> Result<Self, CgroupError> {
        Self::of(&CgroupSetup { root: root.to_owned(), ..CgroupSetup::default() })
    }

    /// Finds the hierarchies for cgroups of this layout.
    pub fn of(setup: &CgroupSetup) -> Result<Self, CgroupError> {
        let root = setup.root.trim_matches('/');
        if !root.is_empty() {
            check_name(root)?;
        }
        let of_systemd = setup.driver == CgroupDriver::Systemd;
        if of_systemd && !systemd::is_running() {
            return Err(CgroupError::NoSystemd);
        }
        let below = |path: String| setup.below_root(&path).to_owned();
        let (burstable, besteffort) =
            (setup.qos(QosClass::Burstable), setup.qos(QosClass::BestEffort));
        let mut this = Self {
            v1: None,
            root: if of_systemd { String::new() } else { root.to_owned() },
            tree: [setup.kubepods(), burstable, besteffort].map(below),
            systemd: of_systemd.then(Systemd::default),
            mounts: Vec::new(),
            warned: Mutex::default(),
        };
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

    /// A unified hierarchy in a folder, for tests that bring the files along.
    #[cfg(test)]
    pub(super) fn unified_at(path: &Path) -> Self {
        Self {
            v1: None,
            root: String::new(),
            tree: [String::new(), String::new(), String::new()],
            systemd: None,
            mounts: vec![Mount { path: path.to_owned(), controllers: Vec::new() }],
            warned: Mutex::default(),
        }
    }

    /// True on cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.v1.is_none()
    }

    /// True when systemd makes the cgroups.
    pub fn by_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// The cgroup root as the runtime's `cgroup_parent` wants it in front of a name: absolute.
    pub fn runtime_path(&self, name: &str) -> String {
        format!("/{}", self.below_root(name))
    }

    /// Directory of `name` in the hierarchy of `controller` (v1: `cpu`, `memory`, `pids`, …), or in
    /// the one there is (v2).
    pub fn dir(&self, name: &str, controller: &str) -> Option<PathBuf> {
        let mount = match &self.v1 {
            None => self.mounts.first()?,
            Some(_) => {
                self.mounts.iter().find(|m| m.controllers.iter().any(|c| c == controller))?
            }
        };
        Some(mount.path.join(self.below_root(name)))
    }

    /// Inode of that directory: the kernel's id of the cgroup within its hierarchy.
    pub fn id(&self, name: &str, controller: &str) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.dir(name, controller)?).ok().map(|m| m.ino())
    }

    /// True when the cgroup exists in every hierarchy that limits of ours are in.
    // k8s: pkg/kubelet/cm/cgroup_v1_manager_linux.go Validate
    pub fn exists(&self, name: &str) -> bool {
        let below = self.below_root(name);
        let ours = |mount: &&Mount| {
            self.is_v2() || mount.controllers.iter().any(|c| CONTROLLERS.contains(&c.as_str()))
        };
        self.mounts.iter().filter(ours).all(|mount| mount.path.join(&below).is_dir())
    }

    /// Makes `kubepods` and the classes in it when they are missing. What they may use is set by
    /// others, but for BestEffort pods, which always get the least.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go Start
    pub async fn ensure_tree(&self) -> Result<(), CgroupError> {
        let least = CgroupLimits { cpu_shares: Some(SHARES_MIN), ..CgroupLimits::default() };
        self.create_pod(&self.tree[0], &CgroupLimits::default()).await?;
        self.create_pod(&self.tree[1], &CgroupLimits::default()).await?;
        self.create_pod(&self.tree[2], &least).await
    }

    /// The cgroup of all pods, below the root.
    pub fn all_pods(&self) -> &str {
        &self.tree[0]
    }

    /// Sets limits of all pods together.
    pub async fn limit_all_pods(&self, limits: &CgroupLimits) -> Result<(), CgroupError> {
        self.create_pod(&self.tree[0], limits).await
    }

    /// Makes or updates `kubepods`, `kubepods/burstable` and `kubepods/besteffort`; called at start
    /// and whenever the sums over the pods change.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go Start, UpdateCgroups
    pub async fn ensure_qos(&self, limits: &QosLimits) -> Result<(), CgroupError> {
        let limits = [&limits.node, &limits.burstable, &limits.besteffort];
        for (name, limits) in self.tree.iter().zip(limits) {
            self.create_pod(name, limits).await?;
        }
        Ok(())
    }

    /// Makes the cgroup in every hierarchy when missing and sets its limits; idempotent.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go Create
    pub async fn create_pod(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        check_name(name)?;
        let is_new = !self.exists(name);
        if let Some(systemd) = self.systemd.as_ref().filter(|_| is_new) {
            let made = systemd.start(name, self.is_v2()).await;
            made.map_err(|source| CgroupError::Systemd { name: name.to_owned(), source })?;
        }
        let below = self.below_root(name);
        let cgroup = Cgroup::load(self.hierarchy(), &below);
        if is_new {
            // With systemd too: it hands down only the controllers that it needs itself.
            // The error of v1 never comes back from the crate: the directories tell.
            let made = cgroup.create();
            if let Some(path) = self.dirs(name).find(|dir| !dir.is_dir()) {
                let again = fs::create_dir_all(&path).err();
                let source = again.or_else(|| made.err().map(io::Error::other));
                if let Some(source) = source {
                    return Err(CgroupError::Create { path, source });
                }
            }
        }
        self.limit(name, limits).await
    }

    /// Sets the limits of an existing cgroup.
    pub async fn update_pod(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        check_name(name)?;
        self.limit(name, limits).await
    }

    /// systemd first: what it believes in it writes again on its next reload.
    async fn limit(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let mut limits = limits.clone();
        if let Some(systemd) = &self.systemd {
            let set = systemd.limit(name, &limits, self.is_v2()).await;
            set.map_err(|source| CgroupError::Systemd { name: name.to_owned(), source })?;
            limits.cpu_quota_us = limits
                .cpu_quota_us
                .map(|quota| unit::rounded_quota(quota, limits.cpu_period_us.unwrap_or_default()));
        }
        self.apply(&Cgroup::load(self.hierarchy(), self.below_root(name)), name, &limits)
    }

    /// Processes in the cgroup and below it, in any hierarchy.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go Pids
    pub fn pids(&self, name: &str) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for dir in self.dirs(name) {
            for dir in tree_of(&dir)? {
                let path = dir.join("cgroup.procs");
                match fs::read_to_string(&path) {
                    // 0 stands for a process outside our pid namespace: not ours to signal.
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

    /// Kills what is left inside and removes the cgroup with everything below it, in every
    /// hierarchy. Success when it is gone, also when it never was.
    // k8s: pkg/kubelet/cm/pod_container_manager_linux.go Destroy
    pub async fn remove_pod(&self, name: &str) -> Result<(), CgroupError> {
        check_name(name)?;
        let mut wait = KILL_WAIT_FIRST;
        let mut round = 0;
        loop {
            let pids = self.pids(name)?;
            let Some(first) = pids.first().copied() else { break };
            if round == KILL_ROUNDS {
                let (name, count) = (name.to_owned(), pids.len());
                return Err(CgroupError::Survivors { name, count, pid: first });
            }
            round += 1;
            for pid in pids {
                // ESRCH: it ended on its own. EPERM shows up as a survivor.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        if let Some(systemd) = self.systemd.as_ref().filter(|_| self.dirs(name).any(|d| d.exists()))
        {
            let stopped = systemd.stop(name).await;
            stopped.map_err(|source| CgroupError::Systemd { name: name.to_owned(), source })?;
        }
        self.remove_dirs(name).await
    }

    async fn remove_dirs(&self, name: &str) -> Result<(), CgroupError> {
        let mut wait = KILL_WAIT_FIRST / 10;
        let mut round = 0;
        loop {
            let mut dirs = self.dirs(name).chain(self.dirs_of_others(name));
            let result = dirs.try_for_each(|dir| remove_tree(&dir));
            match result {
                // An ended process keeps its cgroup busy until it is reaped.
                Err(CgroupError::Remove { ref source, .. })
                    if source.raw_os_error() == Some(nix::libc::EBUSY) && round < KILL_ROUNDS => {}
                done => return done,
            }
            round += 1;
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    fn below_root(&self, name: &str) -> String {
        match self.root.as_str() {
            "" => name.to_owned(),
            root => format!("{root}/{name}"),
        }
    }

    fn dirs(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        let below = self.below_root(name);
        self.mounts.iter().map(move |mount| mount.path.join(&below))
    }

    /// On v1 the runtime makes the pod's cgroup also in hierarchies that no limit of ours is in
    /// (`unified`, `systemd`); they are emptied with it.
    fn dirs_of_others(&self, name: &str) -> impl Iterator<Item = PathBuf> {
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

    fn apply(&self, cgroup: &Cgroup, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let check = |what, result| self.degrade(what, name, result);
        if let Some(cpu) = cgroup.controller_of::<CpuController>() {
            let share = |s| if self.is_v2() { cpu_weight(s) } else { s };
            if let Some(shares) = limits.cpu_shares {
                check("cpu.shares", cpu.set_shares(share(shares)))?;
            }
            // The period first: a quota is judged against it.
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

    /// A missing right costs the limit and one warning; everything else is an error.
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
            tracing::warn!(what, cgroup = name, %error, "cgroup limit cannot be set here; going on without it");
        }
    }
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    match name.split('/').all(plain) {
        true => Ok(()),
        false => Err(CgroupError::BadName(name.to_owned())),
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

/// `dir` and all directories below it, parents first; empty when it does not exist.
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

fn remove_tree(dir: &Path) -> Result<(), CgroupError> {
    for path in tree_of(dir)?.into_iter().rev() {
        match fs::remove_dir(&path) {
            Ok(()) => {}
            Err(source) if is_gone(&source) => {}
            Err(source) => return Err(CgroupError::Remove { path, source }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
