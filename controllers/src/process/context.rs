//! Dependencies of controllers that the process provides.
//!
//! Owner: created after this process becomes the leader, and passed to the frame.

use std::sync::Arc;

use pintle_daemon::program::watchdog::DecisionTurns;
use pintle_daemon::serve::answer::HttpAnswer;
use tokio::sync::{mpsc, oneshot, watch};

use super::health::LoopHealth;
use super::metrics::ManagerMetrics;
use crate::clients::ControllerClients;
use crate::discovery::DiscoveryHandle;
use crate::options::Options;

/// Dependencies of controllers that the process provides.
pub struct ControllerContext {
    /// The command line.
    pub options: Arc<Options>,
    /// Clients by identity.
    pub clients: ControllerClients,
    /// The resources that there are, read again from time to time.
    pub discovery: DiscoveryHandle,
    /// When to end.
    pub stop: StopFlag,
    /// Requests for `/debug/controllers/` and `/pintle/`, to be answered by the deciding thread.
    pub questions: mpsc::Receiver<DecisionQuery>,
    /// The deciding thread marks each of its turns here, and says how many writes are under way.
    pub turns: Arc<DecisionTurns>,
    /// Families of metrics.
    pub metrics: Arc<ManagerMetrics>,
    /// The health of each controller.
    pub health: Arc<LoopHealth>,
}

/// Says when controllers have to end.
#[derive(Clone, Debug)]
pub struct StopFlag(watch::Receiver<bool>);

impl StopFlag {
    pub(super) fn new(requested: watch::Receiver<bool>) -> Self {
        Self(requested)
    }

    /// Waits until controllers have to end.
    pub async fn requested(&mut self) {
        if self.0.wait_for(|is_requested| *is_requested).await.is_err() {
            std::future::pending().await
        }
    }

    /// True once controllers must end.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}

/// Are there writes without an answer when controllers have ended?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritesUnderWay {
    /// All are answered: the lease may be released.
    None,
    /// Some may still take effect: the lease has to expire.
    Some,
}

/// A request that only the deciding thread can answer.
#[derive(Debug)]
pub struct DecisionQuery {
    /// The path: `/debug/controllers/NAME` or below, or below `/pintle/`.
    pub path: String,
    /// The query.
    pub query: String,
    /// The client asks for JSON.
    pub wants_json: bool,
    /// Receives the answer.
    pub answer: oneshot::Sender<HttpAnswer>,
}
