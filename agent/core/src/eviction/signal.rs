//! What a node can run out of. Pure.
// k8s: pkg/kubelet/eviction/api/types.go, helpers.go

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
