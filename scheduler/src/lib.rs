//! The scheduler's program around `pintle-scheduler-core`, which decides.
//!
//! ```text
//!   watch ─WatchEvent─> run ─> core: cache, queue, cycle ─Command─> dispatcher ─> API server
//!                  ^─────────────── how writes ended ─────────────┘
//!   daemon: flags, HTTPS port, metrics          framework: out-of-tree plugins
//!   simulate (a dump), explain (a live cluster), shadow (another scheduler): commands
//! ```
//! [`watch`] follows the kinds that decisions read, [`run`] feeds them to the core and holds the
//! lease, [`dispatcher`] sends the resulting writes, [`daemon`] has the flags and the HTTPS port,
//! [`framework`] is what a scheduler with plugins of its own uses. [`simulate`], [`explain`] and
//! [`shadow`] are commands that write nothing; [`command_line`] is the entry point of `main`. Only
//! `dispatcher` writes.
#![forbid(unsafe_code)]

pub mod watch;

pub mod run;

pub mod dispatcher;

pub mod daemon;
pub mod framework;

pub mod explain;
pub mod shadow;
pub mod simulate;

mod command_line;
mod output;

pub use self::command_line::command_line;
