//! Every decision of the node agent, as pure functions: no clock, no I/O, no async.
//!
//! ```text
//!   source ─> desired ─> admit ─> worker ─> sync ─> request, image, volume, cgroup ─> (effects)
//!                                  ^  │ resize, ledger, probe                            │
//!                                  │  └─> status ─> outbox, view ─> explain, timeline    │
//!                                  └───────────────── observed <─────────────────────────┘
//! ```
//! The modules stand in the order in which data flows. Cargo keeps this crate from acting: neither
//! an async runtime nor a network library nor system calls are among its dependencies. The same
//! code runs in the agent and, with a seed, in the simulator.

#![forbid(unsafe_code)]

pub mod types;

pub mod desired;
pub mod references;
pub mod source;

pub mod labels;
pub mod observed;

pub mod admit;
pub mod ledger;
pub mod node;
pub mod resize;

pub mod cgroup;
pub mod env;
pub mod image;
pub mod logs;
pub mod probe;
pub mod request;
pub mod sync;
pub mod volume;

pub mod status;
pub mod worker;

pub mod explain;
pub mod link;
pub mod outbox;
pub mod timeline;
pub mod view;

#[doc(hidden)]
pub mod testing;
