//! The runtime stage: from desired and observed to actions, and from actions to CRI calls.

pub mod plan;
mod plan_init;
pub mod restart;
