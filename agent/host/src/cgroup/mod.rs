//! Cgroups of pods: the quality-of-service tree, one cgroup per pod, limits, removal.
//!
//! `formulas` turns amounts into numbers and `names` turns a pod into a path for either driver,
//! both pure; `limits` is what they hand to `execute`, which has `tree` write. With the systemd driver
//! `systemd` makes the slices first, from what `unit` makes of a path and its limits. `sweep` removes
//! those that no pod is behind.

pub mod execute;
mod read;
pub mod stats;
pub mod sweep;
pub mod systemd;
pub mod tree;
pub mod unit;

use pintle_agent_core::cgroup::*;

pub use execute::{CgroupError, Cgroups};
