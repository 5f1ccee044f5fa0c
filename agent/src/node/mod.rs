//! The node: what it is and has, and how the cluster is told.
//!
//! ```text
//!   machine, runtime_state, addresses, images ─> status::Facts ─> status::update ─> patch ─> API server
//!                                       own (watch of the Node object) ──┘
//! ```
//! Pure: `settings`, `capacity`, `conditions`, `status`, `patch`, `register`, `runtime_state`.
//! Effects: `facts` and `machine` read the host, `own` watches, `report` and `lease` write,
//! `task` polls, `oom` reads the kernel's log. Without a cluster only `context`, `facts` and `oom`
//! are used.

pub mod context;
pub mod csi_node;
pub mod facts;
pub mod host;
pub mod iptables;
pub mod lease;
pub mod oom;
pub mod own;
pub mod pleg;
pub mod pod_cidr;
pub mod report;
pub mod task;

pub use pintle_agent_core::node::*;
pub use pintle_agent_core::request::runtime;
