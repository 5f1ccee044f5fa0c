//! Volumes of drivers: what is attached, staged and published on this node, and what to do next.
//!
//! ```text
//!   a pod's claims ─> csi::Volume ─> Input::Wanted ─> Storage::handle ─> Command::{Stage, Publish, ..}
//!   the disk at start ─> Input::Found ──────────────────┘      ^                       │
//!                                                       Input::Done <──────────── (effects)
//! ```
//! A volume that is staged is shared by pods and outlives each of them, so it has a state machine of
//! its own beside those of pods: `Storage` knows each volume and its pods, and lets one call at a
//! time be under way for it. It has no clock and does nothing itself, as `worker::Pods`.
//! `csi` says what a volume is, `record` what the file beside it says; `volume::csi_dirs` where both lie.
// k8s: pkg/kubelet/volumemanager, pkg/volume/csi

pub mod csi;
pub mod disk;
pub mod driver;
pub mod expansion;
mod machine;
pub mod node_info;
pub mod record;
pub mod request;
pub mod selinux;

pub use machine::{
    Answer, Call, Command, Failure, FoundVolume, InUse, Input, Known, NodeVolumes, Outcome,
    Problem, Resync, Step, Storage, USED_BY_ANOTHER_POD, Waiting, Wanted,
};
