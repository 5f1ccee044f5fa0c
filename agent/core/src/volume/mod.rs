//! Volumes as plans: what of a pod's spec must be set up, and what a container sees of it.

pub mod claim;
pub mod csi_dirs;
pub mod devices;
pub mod doubled;
pub mod kind;
pub mod layout;
pub mod mounts;
pub mod nested;
pub mod payload;
pub mod plan;

pub use claim::{ClaimViews, ClaimedVolume, Claims};
pub use devices::PlannedDevice;
pub use kind::VolumeKind;
pub use layout::PodDirs;
pub use mounts::PlannedMount;
pub use payload::ContentError;
pub use plan::PodVolumes;
