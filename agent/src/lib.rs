//! pintle-agent: a Kubernetes node agent, one page for the whole pipeline.
//!
//! ```text
//!   files, http ─> source ─> desired ─> admit ─> worker ─> runtime::plan ─> runtime::execute ─> cri
//!                                          ^        ^                        volume, cgroup, probe
//!                                          │        │
//!                                       observed <─ event <── eBPF, CRI events, probes, relist
//!                                          └─> status (derive, explain, timeline) ─> server
//! ```
//! The modules stand in the order in which data flows. Decisions are pure functions; effects live
//! in `execute.rs`, `task.rs` and `writer.rs` files.

#![forbid(unsafe_code)]

pub mod app;
pub mod blocking;
pub mod cgroup;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod driver;
pub mod durable;
pub mod event;
pub mod files;
pub mod http;
pub mod identity;
pub mod intake;
pub mod ledger;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod observed;
pub mod probe;
pub mod regular_file;
pub mod resolver;
pub mod runtime;
pub mod server;
pub mod source;
pub mod status;
pub mod tasks;
pub mod twice;
pub mod volume;

pub use pintle_agent_core::{admit, desired, resize, types};
pub use pintle_api_types::{pod, url};

/// The configuration, with what its types are made of.
pub mod config {
    pub use pintle_agent_config::*;
    pub use pintle_api_types::duration;
}

/// The state machines of pods.
pub mod worker {
    pub use pintle_agent_core::sync::backoff;
    pub use pintle_agent_core::worker::*;
}

use pintle_api_types::jitter as pace;
