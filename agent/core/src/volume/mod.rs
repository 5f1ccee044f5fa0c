//! Volumes as plans: what of a pod's spec must be set up, and what a container sees of it.

pub mod layout;
pub mod mounts;
pub mod nested;
pub mod payload;
pub mod plan;

pub use layout::PodDirs;
pub use mounts::PlannedMount;
pub use payload::ContentError;
pub use plan::PodVolumes;
