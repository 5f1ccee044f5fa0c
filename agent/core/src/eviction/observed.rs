//! The node's resources left, and its pods' usage: the input of eviction.
//!
//! Plain data that the flight recorder keeps, so it is small: usage of pods comes only on request.
//! A value that could not be read is absent.

use std::collections::{BTreeMap, BTreeSet};

use pintle_api_types::ids::{PodUid, UnixNanos};
use serde::{Deserialize, Serialize};

use super::signal::Signal;

/// One observation of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// When it was begun.
    pub at: UnixNanos,
    /// The reading of each signal.
    pub readings: BTreeMap<Signal, ResourceReading>,
    /// Which file systems are one.
    pub layout: DiskLayout,
    /// How much of the last ten seconds all that wanted to run waited for memory, in hundredths of a
    /// percent; `None` where the kernel does not count it.
    #[serde(default)]
    pub stall: Option<u16>,
    /// Bytes of page cache that count as used in the readings of memory, and could be had back.
    #[serde(default)]
    pub cache: BTreeMap<Signal, u64>,
    /// Usage of pods; `None` when it was not collected.
    pub pods: Option<BTreeMap<PodUid, PodUse>>,
}

/// The amount of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceReading {
    /// Bytes, inodes or process numbers left.
    pub available: u64,
    /// All there are.
    pub capacity: u64,
    /// When it was read.
    pub at: UnixNanos,
}

/// Which file systems are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLayout {
    /// Images do not lie on the file system of the agent's root folder.
    pub images_apart: bool,
    /// Writable layers do not lie on the file system of the images.
    pub layers_apart: bool,
}

/// Usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodUse {
    /// Bytes of memory that cannot be had back at once.
    pub working_set: Option<u64>,
    /// The processes of its running containers, without their threads.
    pub processes: Option<u64>,
    /// Its running containers by name.
    pub containers: BTreeMap<String, ContainerUse>,
    /// Its volumes by name.
    pub volumes: BTreeMap<String, VolumeUse>,
    /// The agent's own files of the pod.
    pub own_files: DiskUse,
    /// Parts of its disk usage that are missing above; none where disks were not requested.
    #[serde(default, skip_serializing_if = "Unread::is_none")]
    pub unread: Unread,
}

/// Parts of a pod's disk usage that could not be read, or not yet: they are unknown, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// The runtime does not report writable layers.
    pub layers: bool,
    /// A container was made since writable layers were last read from the runtime.
    #[serde(default)]
    pub new_layers: bool,
    /// The disk does not report the sizes of logs.
    pub logs: bool,
    /// Some volume is being counted for the first time, or for the first time in a long while.
    pub volumes: bool,
}

impl Unread {
    /// Everything could be read.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Usage of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUse {
    /// Bytes of memory that cannot be had back at once.
    pub working_set: Option<u64>,
    /// Its writable layer.
    pub layer: Option<DiskUse>,
    /// Its logs.
    pub logs: Option<DiskUse>,
}

/// Usage of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUse {
    /// The disk usage of its content.
    pub disk: DiskUse,
    /// It is not on a disk, but in memory.
    pub in_memory: bool,
}

/// Room on a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// The pods that an observation measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// None: the node alone.
    Nobody,
    /// These, because they have a disk limit.
    These(BTreeSet<PodUid>),
    /// All that run.
    All,
}

/// The result of an attempt to free a resource without evicting a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// Bytes held by the removed ones, as far as known; the disk may show it later.
    pub bytes: u64,
    /// Dead containers that were removed.
    pub containers: u32,
    /// Unused images that were removed.
    pub images: u32,
    /// The error, if there was one.
    pub error: Option<String>,
}
