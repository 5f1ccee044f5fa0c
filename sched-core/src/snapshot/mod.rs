//! The cluster as columns, and the deltas that keep them current.
//!
//! `cluster` is the only writer (with `classes`); `view` is what readers get; `chunk`, `keys`, `counters` and `pods`
//! are its tables; `objects` reads API objects. A filter or a score never sees an API object.

pub mod chunk;
mod classes;
pub mod cluster;
pub mod counters;
pub(crate) mod index;
pub mod keys;
pub mod objects;
pub mod pods;
pub mod view;

pub use cluster::{Cluster, DeltaError};
pub use view::View;
