//! Cgroups of pods: the quality-of-service tree, one cgroup per pod, limits, removal.
//!
//! Pure formulas decide the numbers; `execute` writes them.

pub mod execute;
pub mod limits;

pub use execute::{CgroupError, Cgroups};
pub use limits::{CgroupLimits, QosLimits};
