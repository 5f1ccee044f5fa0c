//! The cluster as columns, and the deltas that keep them current.
//!
//! `cluster` is the only writer (with `workloads`, `placement`, `classes` and `sweep`); `view` is
//! the read side; `chunk`, `keys`, `sparse`, `counters` and `pods` are its tables; `objects` parses
//! API objects, `readable` drops their invalid parts. A filter or a score never sees an API object.

pub(crate) mod changes;
pub mod chunk;
mod classes;
pub mod cluster;
pub mod counter_budget;
mod counter_index;
pub mod counters;
pub mod domain_counts;
pub(crate) mod index;
pub mod keys;
pub mod objects;
mod placement;
pub mod pods;
mod readable;
pub(crate) mod replica;
pub mod row_counts;
pub mod sparse;
mod sweep;
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
