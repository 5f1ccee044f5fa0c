//! Every decision of the node agent, as pure functions: no clock, no I/O, no async.
//!
//! ```text
//!   source ─> desired ─> admit ─> worker ─> sync ─> request, image, volume, cgroup ─> (effects)
//!                                  ^  │ resize, ledger, probe                            │
//!                                  │  └─> status ─> status queue, view ─> explain, timeline    │
//!                                  └───────────────── observed <─────────────────────────┘
//! ```
//! The modules stand in the order in which data flows. Cargo keeps this crate from acting: neither
//! an async runtime nor a network library nor system calls are among its dependencies. The same
//! code runs in the agent and, with a seed, in the simulator.

#![forbid(unsafe_code)]

// Names and quantities.
mod arc;
mod fnv;
pub mod signal;
pub mod types;

// Desired state.
pub mod desired;
pub mod references;
pub mod source;

// Observed state.
pub mod labels;
pub mod observed;

// Resources of the node, admission, allocations.
pub mod admit;
pub mod ledger;
pub mod node;
pub mod resize;
pub mod shutdown;

// Plans and requests for effects.
pub mod cgroup;
pub mod env;
pub mod image;
pub mod logs;
pub mod probe;
pub mod request;
pub mod storage;
pub mod sync;
pub mod volume;

// The status for users, and the state machines that decide all of it.
pub mod status;
pub mod worker;

// Writes and reports.
pub mod api_health;
pub mod eviction;
pub mod explain;
pub mod flight;
pub mod garbage;
pub mod intake;
pub mod status_queue;
pub mod timeline;
pub mod view;

#[doc(hidden)]
pub mod testing;
