//! The Node object and the objects beside it: what the node reports to the cluster.
//!
//! ```text
//!   machine, runtime_state, addresses, images ─> StatusFacts ─> update ─> patch ─> API server
//!                                       own (watch of the Node object) ──┘
//! ```
//! `own` watches the Node object, `report` and `lease` write, `task` polls the facts that they
//! write, `pleg` records when the runtime last listed its pods, `csi_node`, `csi_drivers` and
//! `csi_limits` keep the CSINode object. The core decides what is written.

pub mod csi_drivers;
pub mod csi_limits;
pub mod csi_node;
pub mod lease;
pub mod own;
pub mod pleg;
pub mod pod_cidr;
pub mod report;
pub mod task;

use pintle_agent_core::node::*;
use pintle_agent_core::request::runtime;
