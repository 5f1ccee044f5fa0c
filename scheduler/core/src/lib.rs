//! Every decision of the scheduler, as plain functions and state of one thread.
//!
//! ```text
//!   watch_event ─> cache (columns, whole pods and nodes) ──────────────┐
//!        │  lean, prune: fields that decisions read                    v
//!        └─────> cycle ─ queue: which pod is next ─> diagnosis: filters, scores, preemption
//!                  │      groups, placement             │   plugins/{volumes, dynamicresources}
//!                  │                                    │   framework: out-of-tree plugins
//!                  v                                    v   extender: questions and answers
//!               Command, Fact (what is to be written and measured)   explain: the reasons
//! ```
//! Input: the configuration, watch events, how commands ended, the time. Output: commands, facts,
//! explanations. Owner: the program that feeds it, `pintle-scheduler`, on one thread. Bounds: those
//! of each module. Nothing here can write, wait or listen: the crate depends on no runtime and no
//! network, and `cargo xtask tidy` keeps it so. Clocks are given, except for the time that an attempt
//! has spent. [`shadow`] decides like another scheduler and compares; the `testing` feature adds
//! what only tests use.

#![forbid(unsafe_code)]

// Objects and events, as watches deliver them.
pub mod lean;
pub mod pod_fields;
pub mod prune;
pub mod uid;
pub mod watch_event;

// What decisions read.
pub mod cache;
pub mod declared;
pub mod groups;
pub mod kept;
mod packed;

// One pod: filters, scores, reasons.
pub mod diagnosis;
pub mod explain;
pub mod extender;
pub mod framework;
pub mod placement;
pub mod plugins;

// All pods: order, attempts, commands.
pub mod config;
pub mod cycle;
pub mod queue;
pub mod shadow;

// Tests.
#[cfg(any(test, feature = "testing"))]
pub mod allocatable_oracle;
pub mod fault;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
