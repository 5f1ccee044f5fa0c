//! The cluster as columns, and the deltas that keep them current.
//!
//! `cluster` is the only writer (with `workloads`, `placement`, `classes` and `sweep`); `view` is
//! the read side; [`crate::chunk`], [`crate::columns`] and `pods` are its tables; `objects` parses
//! API objects, `readable` drops their invalid parts, `template` has what pods of a workload have
//! in common. A filter or a score never sees an API object.

pub(crate) mod changes;
mod classes;
pub mod cluster;
pub mod counter_budget;
pub mod objects;
mod placement;
pub mod pods;
mod readable;
pub(crate) mod replica;
mod shared_programs;
mod sweep;
pub(crate) mod template;
pub mod view;
pub(crate) mod workloads;

pub use cluster::{Cluster, DeltaError};
pub use view::View;

#[cfg(test)]
mod counter_budget_tests;
#[cfg(test)]
mod own_names_tests;
#[cfg(test)]
pub(crate) mod tests;
