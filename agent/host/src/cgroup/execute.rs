//! Creates, limits and removes the cgroups above containers, on cgroup v1 (every hierarchy) and v2,
//! directly or through systemd.
//!
//! Input: names below the cgroup root (`kubepods/burstable/pod<uid>`) and final numbers
//! (`CgroupLimits`). Output: directories and their files; the inode of a pod's directory is the key
//! of the eBPF programs. Owner: the pod's worker for its own cgroup, the node loop for the tree
//! above. Bounds: a removal kills at most `KILL_ROUNDS` times and waits at most about 1.5 s. File
//! operations (`tree`) take microseconds each, unless the kernel is busy with many cgroups, so they
//! run in the pool for blocking work. Calls of systemd wait as well: with its driver, systemd first
//! creates and limits a slice, and the same numbers are then written to the files, because systemd
//! does not know every file and applies some limits late.
//!
//! Reason for cgroups-rs and own file operations together: the crate knows the hierarchies, fills
//! v1 cpusets from the parent and enables v2 controllers down the tree. It swallows a failing mkdir
//! and cannot remove a tree, so existence is checked afterwards and removal is done here, children
//! first. The container cgroups below belong to the runtime; only removal touches them. A missing
//! right (read-only file, no permission, missing file) costs a limit, not the pod: it is logged
//! once per file name.

use std::collections::BTreeSet;
use std::io;
use std::ops::Deref;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_core::types::PodUid;
use pintle_api_types::pod::qos::QosClass;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};

use super::formulas::SHARES_MIN;
use super::limits::{CgroupLimits, QosLimits};
use super::names::{CgroupDriver, CgroupSetup};
use super::systemd::{self, Systemd, SystemdError};
use super::tree::CgroupTree;
use super::unit;

/// How often processes found in a pod's cgroup are killed before the removal gives up.
// k8s: pkg/kubelet/cm/pod_container_manager_linux.go tryKillingCgroupProcesses
pub const KILL_ROUNDS: u32 = 5;
/// Wait after the first round; doubled each round.
const KILL_WAIT_FIRST: Duration = Duration::from_millis(50);

/// A failed operation on a cgroup.
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
    /// A call of systemd failed.
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
    /// A directory could not be created.
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
    /// An operation on the cgroup's files did not finish.
    #[error("cgroup {name}")]
    Blocked {
        /// Cgroup below the root.
        name: String,
        /// The cause.
        source: Blocked,
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

/// The node's cgroup hierarchies and the root of the agent's cgroups, created by the agent alone or
/// with systemd.
#[derive(Debug)]
pub struct Cgroups {
    tree: Arc<CgroupTree>,
    systemd: Option<Systemd>,
}

impl Deref for Cgroups {
    type Target = CgroupTree;

    fn deref(&self) -> &CgroupTree {
        &self.tree
    }
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
        let root = if of_systemd { String::new() } else { root.to_owned() };
        let tree = CgroupTree::find(root, [setup.kubepods(), burstable, besteffort].map(below))?;
        Ok(Self { tree: Arc::new(tree), systemd: of_systemd.then(Systemd::default) })
    }

    /// The hierarchies for one cgroup outside this agent's layout, and the cgroup's name.
    pub fn around(path: &str) -> Result<(Self, String), CgroupError> {
        let name = path.trim_start_matches('/');
        check_name(name)?;
        let driver = match name.ends_with(".slice") && systemd::is_running() {
            true => CgroupDriver::Systemd,
            false => CgroupDriver::Cgroupfs,
        };
        let layout = CgroupSetup { driver, ..CgroupSetup::default() };
        Ok((Self::of(&layout)?, name.to_owned()))
    }

    /// A unified hierarchy in a folder, for tests that supply the files.
    #[cfg(test)]
    pub(super) fn unified_at(path: &Path) -> Self {
        Self { tree: Arc::new(CgroupTree::unified_at(path)), systemd: None }
    }

    /// Hierarchies of v1 in a folder, for tests that supply the files.
    #[cfg(test)]
    pub(super) fn legacy_at(path: &Path) -> Self {
        Self { tree: Arc::new(CgroupTree::legacy_at(path)), systemd: None }
    }

    /// True when systemd creates the cgroups.
    pub fn by_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// Creates `kubepods` and the QoS classes in it when they are missing. Other callers set their
    /// limits, except the CPU shares of BestEffort, which are always the minimum.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go Start
    pub async fn ensure_tree(&self) -> Result<(), CgroupError> {
        let least = CgroupLimits { cpu_shares: Some(SHARES_MIN), ..CgroupLimits::default() };
        self.create_pod(&self.classes[0], &CgroupLimits::default()).await?;
        self.create_pod(&self.classes[1], &CgroupLimits::default()).await?;
        self.create_pod(&self.classes[2], &least).await
    }

    /// True when the configured root exists in every hierarchy in which the agent sets limits.
    // k8s: pkg/kubelet/cm/container_manager_linux.go NewContainerManager (cgroupManager.Validate)
    pub fn has_root(&self) -> bool {
        let above = self.all_pods().rsplit_once('/');
        self.exists(above.map_or("", |(above, _)| above))
    }

    /// The cgroup of all pods, below the root.
    pub fn all_pods(&self) -> &str {
        &self.classes[0]
    }

    /// Sets limits of all pods together.
    pub async fn limit_all_pods(&self, limits: &CgroupLimits) -> Result<(), CgroupError> {
        self.create_pod(&self.classes[0], limits).await
    }

    /// Creates or updates `kubepods`, `kubepods/burstable` and `kubepods/besteffort`; called at
    /// start and whenever the sums over the pods change.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go Start, UpdateCgroups
    pub async fn ensure_qos(&self, limits: &QosLimits) -> Result<(), CgroupError> {
        let limits = [&limits.node, &limits.burstable, &limits.besteffort];
        for (name, limits) in self.classes.iter().zip(limits) {
            self.create_pod(name, limits).await?;
        }
        Ok(())
    }

    /// Creates the cgroup in every hierarchy when missing and sets its limits; idempotent.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go Create
    pub async fn create_pod(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        check_name(name)?;
        let is_new = !self.on_disk(name, CgroupTree::exists).await?;
        if let Some(systemd) = self.systemd.as_ref().filter(|_| is_new) {
            let made = systemd.start(name, self.is_v2()).await;
            made.map_err(|source| CgroupError::Systemd { name: name.to_owned(), source })?;
        }
        if is_new {
            // With systemd too, because it enables only the controllers that it needs itself.
            self.on_disk(name, CgroupTree::create).await??;
        }
        self.limit(name, limits).await
    }

    /// Sets the limits of an existing cgroup.
    pub async fn update_pod(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        check_name(name)?;
        self.limit(name, limits).await
    }

    /// Sets limits through systemd first, because it writes its own values again at each reload.
    async fn limit(&self, name: &str, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let mut limits = limits.clone();
        if let Some(systemd) = &self.systemd {
            let set = systemd.limit(name, &limits, self.is_v2()).await;
            set.map_err(|source| CgroupError::Systemd { name: name.to_owned(), source })?;
            limits.cpu_quota_us = limits
                .cpu_quota_us
                .map(|quota| unit::rounded_quota(quota, limits.cpu_period_us.unwrap_or_default()));
        }
        self.on_disk(name, move |tree, name| tree.apply(name, &limits)).await?
    }

    /// Runs work on the files of one cgroup in the pool, so that it does not delay other pods:
    /// changes of a cgroup wait while the kernel moves or removes many.
    pub async fn on_disk<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&CgroupTree, &str) -> T + Send + 'static,
    ) -> Result<T, CgroupError> {
        let (tree, owned) = (Arc::clone(&self.tree), name.to_owned());
        // Each cgroup is its own place, so that a slow removal does not delay other cgroups.
        let place = JobPlace::change(&PodUid::from(name));
        let done = blocking::run(place, move || work(&tree, &owned)).await;
        done.map_err(|source| CgroupError::Blocked { name: name.to_owned(), source })
    }

    /// Kills the remaining processes and removes the cgroup with everything below it, in every
    /// hierarchy. Succeeds also when the cgroup does not exist.
    // k8s: pkg/kubelet/cm/pod_container_manager_linux.go Destroy
    pub async fn remove_pod(&self, name: &str) -> Result<(), CgroupError> {
        check_name(name)?;
        let mut wait = KILL_WAIT_FIRST;
        let mut round = 0;
        loop {
            let kill = round < KILL_ROUNDS;
            let pids = self.on_disk(name, move |tree, name| tree.end_all(name, kill)).await??;
            let Some(first) = pids.first().copied() else { break };
            if !kill {
                let (name, count) = (name.to_owned(), pids.len());
                return Err(CgroupError::Survivors { name, count, pid: first });
            }
            round += 1;
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        if let Some(systemd) = &self.systemd
            && self.on_disk(name, |tree, name| tree.dirs(name).any(|d| d.exists())).await?
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
            match self.on_disk(name, CgroupTree::remove).await? {
                // An exited process keeps its cgroup busy until it is reaped.
                Err(CgroupError::Remove { ref source, .. })
                    if source.raw_os_error() == Some(nix::libc::EBUSY) && round < KILL_ROUNDS => {}
                done => return done,
            }
            round += 1;
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// The hierarchies' files, for work in the pool.
    pub fn tree(&self) -> Arc<CgroupTree> {
        Arc::clone(&self.tree)
    }

    /// Names of the cgroups right below this one, and of files.
    pub async fn children(&self, name: &str) -> Result<BTreeSet<String>, CgroupError> {
        self.on_disk(name, CgroupTree::children).await
    }
}

impl CgroupTree {
    /// Moves a process into the cgroup, in every hierarchy.
    pub fn adopt(&self, name: &str, pid: i32) -> Result<(), CgroupError> {
        check_name(name)?;
        for dir in self.dirs(name) {
            let path = dir.join("cgroup.procs");
            let written = std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .and_then(|mut file| io::Write::write_all(&mut file, pid.to_string().as_bytes()));
            written.map_err(|source| CgroupError::Write { path, source })?;
        }
        Ok(())
    }

    /// Processes in the root cgroup of the hierarchy with memory limits.
    pub fn root_pids(&self) -> Vec<i32> {
        let Some(dir) = self.dir("", "memory") else { return Vec::new() };
        let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Names of the entries of the cgroup's directories in any hierarchy: an agent that died while
    /// it created or removed a cgroup has left it in some of them.
    fn children(&self, name: &str) -> BTreeSet<String> {
        let dirs = self.dirs(name).chain(self.dirs_of_others(name));
        let entries = dirs.flat_map(std::fs::read_dir).flat_map(Iterator::flatten);
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    match name.split('/').all(plain) {
        true => Ok(()),
        false => Err(CgroupError::BadName(name.to_owned())),
    }
}

#[cfg(test)]
mod tests;
