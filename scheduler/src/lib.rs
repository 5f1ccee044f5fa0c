//! The scheduler around `pintle-sched-core`.
//!
//! ```text
//!   watch ─Told─> shadow ─> mirror (columns, steps) <─ diagnosis (decides, explains) ─> report
//!   a dump ─────> simulate
//! ```
//! [`watch`] follows the kinds that decisions read, [`mirror`] keeps what they are as columns,
//! [`diagnosis`] asks the core about one pod, [`explain`] says in words what comes of it, [`shadow`]
//! compares it with what another scheduler did, [`app`] is the daemon around them. [`simulate`]
//! answers questions about a dump. [`config`] reads the file that all share. [`queue`] is the order in
//! which pods are decided, for the daemon that will bind them. Nothing here writes to a cluster.
#![forbid(unsafe_code)]

pub mod app;
pub mod config;
pub mod cycle;
pub mod daemon;
pub mod diagnosis;
pub mod explain;
pub mod lanes;
pub mod mirror;
pub mod prune;
pub mod queue;
pub mod run;
pub mod shadow;
pub mod simulate;
pub mod watch;
