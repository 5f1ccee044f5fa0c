//! The scheduler around `pintle-sched-core`.
//!
//! ```text
//!   watch ─Told─> shadow ─> mirror (columns, steps) <─ diagnosis (decides, explains) ─> report
//!   watch ─Told─> cycle (mirror, queue) ─Command─> lanes ─> API server
//!                   ^──────────── how bindings ended ──┘
//!   a dump ─────> simulate
//! ```
//! [`watch`] follows the kinds that decisions read as [`watch_event`]s, [`mirror`] caches them as columns,
//! [`diagnosis`] asks the core about one pod, [`explain`] puts the answer into words, [`shadow`]
//! compares it with the decision of another scheduler, [`app`] is the daemon around them.
//! [`simulate`] answers questions about a dump. [`config`] reads the file that all share. [`queue`]
//! orders the pending pods, [`cycle`] decides them, with the out-of-tree plugins of [`framework`]
//! if any are linked in, and whole pod [`groups`] if their gate is on, each on a [`placement`].
//! [`lanes`] sends the resulting writes, [`run`] is the daemon around these, [`daemon`] its flags
//! and its HTTPS port, [`command_line`] the entry point of `main`. Only `lanes` writes.
#![forbid(unsafe_code)]

pub mod allocatable_oracle;
pub mod app;
mod command_line;
pub mod config;
pub mod cycle;
pub mod daemon;
pub mod declared;
mod devices;
pub mod diagnosis;
pub mod explain;
mod explain_command;
pub mod extender;
mod fault;
pub mod framework;
pub mod groups;
pub mod kept;
pub mod lanes;
pub mod lean;
pub mod mirror;
mod output;
mod packed;
pub mod placement;
pub mod pod_fields;
pub mod prune;
pub mod queue;
pub mod run;
pub mod shadow;
pub mod simulate;
pub mod volumes;
pub mod watch;
pub mod watch_event;

pub use self::command_line::command_line;
pub use self::devices::alone;
