//! Tables of the nodes by column: labels, counters, extended resources, ports, taints.
//!
//! Input: changes by the writer of a cluster. Output: rows and counts that filters and scores read.
//! Owner: `snapshot`, which holds all tables of one epoch. Bounds: by table, in its file. Why below
//! programs: a compiled pod refers to columns and counters by id, and a snapshot keeps programs.

pub(crate) mod counter_index;
pub mod counters;
pub mod domain_counts;
pub(crate) mod index;
pub mod keys;
pub mod ports;
pub mod row_counts;
pub mod sparse;
pub mod taints;
