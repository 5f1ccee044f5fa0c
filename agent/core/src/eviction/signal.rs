//! The resources that a node can run out of. Pure.
// k8s: pkg/kubelet/eviction/api/types.go, helpers.go

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A signal of eviction, in upstream's order of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Signal {
    /// `memory.available`
    #[serde(rename = "memory.available")]
    MemoryAvailable,
    /// `allocatableMemory.available`
    #[serde(rename = "allocatableMemory.available")]
    AllocatableMemoryAvailable,
    /// `nodefs.available`
    #[serde(rename = "nodefs.available")]
    NodeFsAvailable,
    /// `nodefs.inodesFree`
    #[serde(rename = "nodefs.inodesFree")]
    NodeFsInodesFree,
    /// `imagefs.available`
    #[serde(rename = "imagefs.available")]
    ImageFsAvailable,
    /// `imagefs.inodesFree`
    #[serde(rename = "imagefs.inodesFree")]
    ImageFsInodesFree,
    /// `containerfs.available`
    #[serde(rename = "containerfs.available")]
    ContainerFsAvailable,
    /// `containerfs.inodesFree`
    #[serde(rename = "containerfs.inodesFree")]
    ContainerFsInodesFree,
    /// `pid.available`
    #[serde(rename = "pid.available")]
    PidAvailable,
}

/// A scarce resource, as messages and events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Starved {
    /// Bytes of memory.
    #[serde(rename = "memory")]
    Memory,
    /// Bytes on a disk.
    #[serde(rename = "ephemeral-storage")]
    EphemeralStorage,
    /// Inodes of a disk.
    #[serde(rename = "inodes")]
    Inodes,
    /// Process numbers.
    #[serde(rename = "pids")]
    Pids,
}

/// The pressure conditions of the Node object, in the order in which messages name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Condition {
    /// `MemoryPressure`
    MemoryPressure,
    /// `DiskPressure`
    DiskPressure,
    /// `PIDPressure`
    #[serde(rename = "PIDPressure")]
    PidPressure,
}

/// The node's pressure conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// Memory.
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

impl Pressure {
    /// By the conditions that hold.
    pub fn of(conditions: &BTreeSet<Condition>) -> Self {
        let has = |condition| conditions.contains(&condition);
        Self {
            memory: has(Condition::MemoryPressure),
            disk: has(Condition::DiskPressure),
            pid: has(Condition::PidPressure),
        }
    }
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::PidAvailable,
    ];

    /// As configuration and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// The resource that is scarce when it is met.
    // k8s: pkg/kubelet/eviction/helpers.go signalToResource
    pub fn starved(self) -> Starved {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Starved::Memory,
            Self::NodeFsAvailable | Self::ImageFsAvailable | Self::ContainerFsAvailable => {
                Starved::EphemeralStorage
            }
            Self::NodeFsInodesFree | Self::ImageFsInodesFree | Self::ContainerFsInodesFree => {
                Starved::Inodes
            }
            Self::PidAvailable => Starved::Pids,
        }
    }

    /// Room or inodes of a disk are scarce.
    pub fn is_of_disk(self) -> bool {
        matches!(self.starved(), Starved::EphemeralStorage | Starved::Inodes)
    }

    /// The condition of the Node object when it is met.
    // k8s: pkg/kubelet/eviction/helpers.go signalToNodeCondition
    pub fn condition(self) -> Condition {
        match self.starved() {
            Starved::Memory => Condition::MemoryPressure,
            Starved::EphemeralStorage | Starved::Inodes => Condition::DiskPressure,
            Starved::Pids => Condition::PidPressure,
        }
    }
}

impl Starved {
    /// As messages name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl Condition {
    /// Its type in the Node object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_is_serialized_as_its_name() {
        for signal in Signal::ALL {
            assert_eq!(Signal::parse(signal.as_str()), Some(signal));
            assert_eq!(serde_json::json!(signal), signal.as_str());
            assert_eq!(serde_json::json!(signal.starved()), signal.starved().as_str());
            assert_eq!(serde_json::json!(signal.condition()), signal.condition().as_str());
        }
        assert_eq!(Signal::parse("memory"), None);
    }
}
