//! Cgroups of pods, as numbers and names: `formulas` turns amounts into limits, `names` a pod into
//! a path for either driver, `reserve` computes what the node reserves for itself.

pub mod formulas;
pub mod limits;
pub mod names;
pub mod reserve;

pub use limits::{CgroupLimits, QosLimits};
