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

pub mod admit;
pub mod app;
pub mod blocking;
pub mod cgroup;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod desired;
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
mod pace;
pub mod pod;
pub mod probe;
pub mod resize;
pub mod resolver;
pub mod runtime;
pub mod server;
pub mod source;
pub mod status;
pub mod tasks;
pub mod types;
pub mod url;
pub mod volume;
pub mod worker;
