//! The agent as a client of the API server: its identity, its Node, its pods and what they refer to.
//!
//! ```text
//!   identity  certificates ─> NodeCluster (connections) ─> pods      the pods of this node
//!                                    │                  ─> objects   what they refer to
//!                                    ├─> node       the Node object, lease, CSINode
//!                                    └─> status     statuses and events of pods
//! ```
//! [`NodeCluster`] is given to any stage that reads or writes objects.

#![forbid(unsafe_code)]

pub mod identity;
pub mod node;
pub mod objects;
pub mod pods;
pub mod status;

use std::error::Error;
use std::sync::Arc;

use pintle_agent_core::api_health::ApiHealth;
use pintle_api::{Access, events};
use tokio::sync::watch;

use crate::node::own::OwnNode;

/// The cluster that this node is part of. Cheap to clone; the clients share their connections.
#[derive(Clone)]
pub struct NodeCluster {
    /// A client for everything but the heartbeat: limited by kubeAPIQPS and kubeAPIBurst.
    pub client: kube::Client,
    /// A client for objects of single pods: behind everything else, and in turn by pod.
    pub objects: kube::Client,
    /// A client for the statuses of pods.
    pub writes: kube::Client,
    /// A client for the lease and the node's status only: a connection of its own, so that nothing
    /// else can delay it.
    pub heartbeat: kube::Client,
    /// Name of the Node object.
    pub node_name: Arc<str>,
    /// The Node object as the API server has it.
    pub node: watch::Receiver<OwnNode>,
    /// Access to the API server, for code that needs a connection on another thread.
    pub access: Access,
    /// Takes events for the API server.
    pub events: events::Recorder,
    /// Failing tasks of all these, for people.
    pub api_health: ApiHealth,
}

/// The API server's own words where it answered, else the whole chain of causes.
pub fn words(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            return status.message.clone();
        }
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = error.source();
    }
    text
}
