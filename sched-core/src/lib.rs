//! Filters and scores every node of a cluster for a pod, with upstream's results to the bit.
//!
//! API objects enter through [`snapshot::Cluster`], which keeps columns, bitsets and counters
//! current by deltas. [`Cluster::compile`](snapshot::Cluster::compile) turns a pod into a
//! [`program::Program`]; [`select::decide`] runs it over a [`snapshot::View`], an immutable epoch
//! that costs nothing to copy. [`filter`] and [`score`] hold one file a family of plugins, [`simd`]
//! the loops, [`explain`] the words. From below: chunk, simd, bits, columns, program, snapshot,
//! compile, filter, score, select; no module uses one above it.
//! Parity: Kubernetes 1.36, default profile; what differs is listed in docs/COMPAT.md.
#![deny(unsafe_code)]

pub mod attempt_budget;
mod balance;
pub mod bits;
pub mod chunk;
pub mod columns;
mod compile;
pub mod config;
pub mod explain;
pub mod filter;
pub mod hint;
pub mod intern;
pub mod logarithm;
pub mod names;
pub mod preempt;
pub mod program;
pub mod remedy;
pub mod repeat;
pub mod requests;
pub mod score;
pub mod select;
pub mod selector;
pub mod shared;
pub mod simd;
pub mod snapshot;
mod sync;

pub use config::{Plugin, Profile};
pub use select::{Outcome, Scratch, decide};
pub use snapshot::{Cluster, View};
