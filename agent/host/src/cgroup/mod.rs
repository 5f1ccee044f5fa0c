//! Cgroups of pods: the quality-of-service tree, one cgroup per pod, limits, removal.
//!
//! `formulas` turns amounts into numbers and `names` turns a pod into a path for either driver,
//! both pure; `limits` has the values that `execute` applies through `tree`. With the systemd
//! driver `systemd` creates the slices first, with the properties that `unit` derives from a path
//! and its limits. `sweep` removes cgroups without a pod.

pub mod execute;
pub mod oom;
mod read;
pub mod stats;
pub mod sweep;
pub mod systemd;
pub mod tree;
pub mod unit;

use pintle_agent_core::cgroup::*;

pub use execute::{CgroupError, Cgroups};
