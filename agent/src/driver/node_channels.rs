//! Channels to the tasks that observe the node and write its object.
//!
//! Input: orders of the workers. Output: an order that its task has, or false, upon which the
//! driver answers itself. Owner: the driver. Bounds: those of the channels; nothing here waits.

use pintle_agent_core::node::conditions::Pressure;
use tokio::sync::{mpsc, watch};

use crate::pressure::PressureLook;

/// The node's channels.
pub(crate) struct NodeChannels {
    /// Reads of the Node object; `None` without an API server.
    pub reads: Option<mpsc::Sender<u64>>,
    /// Observations of the node; `None` where these are impossible.
    pub looks: Option<mpsc::Sender<PressureLook>>,
    /// The node's pressure conditions, for its object.
    pub pressure: watch::Sender<Pressure>,
}

impl NodeChannels {
    /// Orders a read of the Node object; false if no task takes it.
    pub(super) fn fetch(&self, ticket: u64) -> bool {
        self.reads.as_ref().is_some_and(|reads| reads.try_send(ticket).is_ok())
    }

    /// Orders an observation; false if no task takes it.
    pub(super) fn measure(&self, order: PressureLook) -> bool {
        self.looks.as_ref().is_some_and(|looks| looks.try_send(order).is_ok())
    }
}
