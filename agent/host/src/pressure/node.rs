//! Reads the node's resources for node-pressure eviction: memory, stall, disks, process ids.
//!
//! Input: the places of the agent's files, images and writable layers, and the cgroup of all pods.
//! Output: a [`NodeReading`]. Effects: reads of cgroup files, which stay open, and of `/proc`, a
//! `statvfs` and a `stat` for each file system, and the list of mounts where disks are of btrfs;
//! for a thread that may wait for a disk. An unreadable value is absent, never zero: a node without
//! figures is not a node without room.
// k8s: pkg/kubelet/eviction/helpers.go makeSignalObservations

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};
use pintle_agent_core::types::UnixNanos;
use pintle_daemon::clock;

use crate::cgroup::execute::CgroupError;
use crate::cgroup::stats::{Sample, Sampler, parse_pressure};
use crate::disk::{FileSystem, file_system};
use crate::node::facts::meminfo;
use crate::volume::mount::is_one_device;

/// The node's resources at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReading {
    /// When memory was read.
    pub at: UnixNanos,
    /// Memory of the whole node.
    pub memory: Option<CgroupMemory>,
    /// Memory of all pods together; absent without a cgroup for them.
    pub pods_memory: Option<CgroupMemory>,
    /// PSI `full` of memory over ten seconds, in hundredths of a percent: that of the node or of
    /// all pods, whichever is greater.
    pub stall: Option<u16>,
    /// The file system of `--root-dir`.
    pub node_fs: Option<FileSystem>,
    /// The file system of the images.
    pub image_fs: Option<FileSystem>,
    /// The file system of the containers' writable layers.
    pub container_fs: Option<FileSystem>,
    /// True if images do not lie on the file system of `--root-dir`.
    pub images_apart: bool,
    /// True if writable layers do not lie on the file system of the images.
    pub layers_apart: bool,
    /// Process ids: how many there may be, how many are in use.
    pub pids: Option<(u64, u64)>,
}

/// Memory of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Its capacity: its limit, or the node's memory.
    pub capacity: u64,
    /// Bytes in use less inactive page cache.
    pub working_set: u64,
    /// Bytes in use with all of the page cache.
    pub usage: u64,
    /// Active page cache, which `working_set` contains although the kernel can reclaim it.
    pub active_cache: u64,
}

impl CgroupMemory {
    /// The memory left.
    pub fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.working_set)
    }
}

/// The disks of images and writable layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeDisks {
    /// A path on the images' file system.
    pub images: Option<PathBuf>,
    /// A path on the writable layers' file system.
    pub layers: Option<PathBuf>,
}

/// Reads the node's resources.
#[derive(Debug)]
pub struct NodeReader {
    sampler: Sampler,
    root_dir: PathBuf,
    /// The cgroup of all pods.
    pods: String,
    memory_bytes: u64,
}

impl NodeReader {
    /// A reader for an agent with this `--root-dir` and this cgroup of all pods.
    ///
    /// # Errors
    /// There are no cgroups.
    pub fn new(root_dir: PathBuf, pods: String) -> Result<Self, CgroupError> {
        Ok(Self { sampler: Sampler::new()?, root_dir, pods, memory_bytes: meminfo("MemTotal:") })
    }

    /// True on cgroup v2.
    pub fn is_v2(&self) -> bool {
        self.sampler.is_v2()
    }

    /// Cgroup directories that account for the memory of the node and of all pods.
    pub fn memory_dirs(&self) -> [Option<PathBuf>; 2] {
        ["/", self.pods.as_str()].map(|path| self.sampler.memory_dir(path))
    }

    /// Reads everything again.
    pub fn read(&mut self, disks: &RuntimeDisks) -> NodeReading {
        let of = |path: &Option<PathBuf>| path.as_deref().and_then(file_system);
        NodeReading {
            node_fs: file_system(&self.root_dir),
            image_fs: of(&disks.images),
            container_fs: of(&disks.layers).or_else(|| of(&disks.images)),
            images_apart: apart(Some(&self.root_dir), disks.images.as_deref()),
            layers_apart: apart(disks.images.as_deref(), disks.layers.as_deref()),
            pids: pids(),
            ..self.read_memory()
        }
    }

    /// Reads memory and stall alone, and so never waits for a disk.
    pub fn read_memory(&mut self) -> NodeReading {
        self.sampler.begin();
        let pods = self.sampler.sample(&self.pods, false);
        let of_pods = pods.as_ref().and_then(|sample| sample.pressure.as_ref());
        // Absent on cgroup v1.
        let of_pods = of_pods.map(|[_, memory, _]| hundredths(memory.full.avg10));
        NodeReading {
            at: clock::now(),
            memory: self.sampler.sample("/", false).map(|sample| self.memory(&sample)),
            pods_memory: pods.map(|sample| self.memory(&sample)),
            stall: of_pods.max(stall()),
            ..NodeReading::default()
        }
    }

    fn memory(&self, sample: &Sample) -> CgroupMemory {
        let limit = sample.memory_limit_bytes.unwrap_or(self.memory_bytes);
        CgroupMemory {
            capacity: limit.min(self.memory_bytes),
            working_set: sample.working_set_bytes,
            usage: sample.memory_bytes,
            active_cache: sample.file_bytes.0,
        }
    }
}

/// The stall of the whole node.
fn stall() -> Option<u16> {
    // Opened each time: where PSI is disabled, the kernel refuses the read, not the open.
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    text.contains("full").then(|| hundredths(parse_pressure(&text).full.avg10))
}

/// A percentage in hundredths, as exact as the kernel prints it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn hundredths(percent: f64) -> u16 {
    (percent * 100.0).round() as u16
}

/// True if both paths are on different file systems; false when one of them cannot be read. On
/// btrfs each subvolume of a disk has its own device number, so the mounts decide.
// k8s: vendor/github.com/google/cadvisor/fs/fs.go GetDirFsDevice
fn apart(one: Option<&Path>, other: Option<&Path>) -> bool {
    let Some((one, other)) = one.zip(other) else { return false };
    let number = |path: &Path| fs::metadata(path).ok().map(|meta| meta.dev());
    let differ = number(one).zip(number(other)).is_some_and(|(one, other)| one != other);
    differ && !(is_btrfs(one) && is_btrfs(other) && is_one_device(one, other).unwrap_or(false))
}

fn is_btrfs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BTRFS_SUPER_MAGIC)
}

/// How many process ids there may be, and how many are in use.
// k8s: pkg/kubelet/stats/pidlimit/pidlimit_linux.go Stats
pub fn pids() -> Option<(u64, u64)> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let max = number("/proc/sys/kernel/pid_max")?;
    let max = number("/proc/sys/kernel/threads-max").map_or(max, |threads| max.min(threads));
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (_, all) = load.split(' ').nth(3)?.split_once('/')?;
    Some((max, all.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_of_this_node_has_every_resource() {
        let root = tempfile::tempdir().expect("a folder");
        let mut reader = NodeReader::new(root.path().to_owned(), "/no/such/cgroup".to_owned());
        let reader = reader.as_mut().expect("this host has cgroups");
        let disks = RuntimeDisks { images: Some(root.path().to_owned()), layers: None };
        let reading = reader.read(&disks);
        let memory = reading.memory.expect("of the node");
        assert!(memory.available() > 0 && memory.working_set > 0, "{memory:?}");
        let alone = reader.read_memory();
        assert!(alone.memory.is_some() && alone.node_fs.is_none());
        assert_eq!(reading.pods_memory, None, "there is no such cgroup");
        assert_eq!(reading.image_fs.map(|fs| fs.capacity_bytes), {
            reading.node_fs.map(|fs| fs.capacity_bytes)
        });
        assert!(!reading.images_apart && !reading.layers_apart);
        let (max, used) = reading.pids.expect("known");
        assert!(max > used && used > 0);
        let elsewhere = RuntimeDisks { images: Some("/proc".into()), layers: Some("/sys".into()) };
        let reading = reader.read(&elsewhere);
        assert!(reading.images_apart && reading.layers_apart);
    }

    #[test]
    fn stall_is_absent_only_where_the_kernel_counts_none() {
        let counts = fs::read_to_string("/proc/pressure/memory").is_ok();
        assert_eq!(stall().is_some(), counts);
        for (percent, expected) in [(0.0, 0), (0.88, 88), (10.0, 1_000), (100.0, 10_000)] {
            assert_eq!(hundredths(percent), expected);
        }
    }
}
