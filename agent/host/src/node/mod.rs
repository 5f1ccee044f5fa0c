//! The machine, and the node's facts from it and the settings.
//!
//! `facts`, `host`, `oom` and `container_oom` read the machine, `iptables` keeps the chains that
//! other programs look for, `plugins` reads which device plugins a kubelet knew, `selinux` the label
//! of containers' files, `context` puts configuration and machine together for the core. The crate
//! `pintle-agent-cluster` reports it to the cluster.

pub mod container_oom;
pub mod context;
pub mod facts;
pub mod host;
pub mod iptables;
pub mod oom;
mod plugins;
pub mod selinux;

use pintle_agent_core::node::*;
