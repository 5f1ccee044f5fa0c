//! Cgroups of pods, as numbers and names: `formulas` turns amounts into limits, `names` a pod into
//! a path for either driver, `memory_qos` computes what is throttled and protected on v2, `classes`
//! what pods add to their classes, `reserve` what the node reserves for itself.

pub mod classes;
pub mod formulas;
pub mod limits;
pub mod memory_qos;
pub mod names;
pub mod reserve;

pub use limits::{CgroupLimits, QosLimits};
pub use memory_qos::{ClassRequests, MemoryQos};
