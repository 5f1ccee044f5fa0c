//! Volumes: from the pod's spec to directories, files and mounts below the pod's directory.
//!
//! ```text
//!   pod, node ─> plan ─> PodVolumes ──> execute::mount_all ──> empty_dir, host_path, payload + atomic
//!                   └─> mounts ─> PlannedMount ─> execute::prepare_container ─> sub_path
//!   claims ─> plan ─> claimed::mount_claimed ─> local + device, block
//!   end of the pod ─> execute::unmount_all, remove_pod_dir; orphan::sweep for what a crash left
//! ```
//! `plan`, `mounts`, `payload` and `layout` are pure. Everything that touches the disk is
//! idempotent and may be killed at any instruction: the next call, or the sweep, completes it.
//! Nothing is ever deleted across a mount, and the target of a hostPath volume is never touched.

pub mod atomic;
mod block;
pub mod claimed;
pub mod content;
mod device;
pub(crate) mod device_map;
pub mod dir_fd;
pub mod empty_dir;
pub mod error;
pub mod execute;
mod foreign;
pub mod host_path;
mod keyed_lock;
mod local;
pub mod mount;
pub mod nfs;
pub mod orphan;
pub mod ownership;
mod program;
pub mod project;
pub mod remove;
pub mod san;
pub mod sub_path;

pub use content::ContentSource;
pub use error::{Cause, IoFailure, MountNotice, VolumeError};
pub use local::expand as expand_local;

#[cfg(test)]
pub(crate) mod tests;

use pintle_agent_core::volume::*;
