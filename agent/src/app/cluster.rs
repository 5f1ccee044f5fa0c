//! The connection to the API server and everything that runs because of it.
//!
//! `Cluster` is what any stage is given that reads or writes objects. It is made before anything
//! else starts, so that a kubeconfig that cannot be used ends the agent with a sentence.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::watch;

use super::Parts;
use crate::config::Config;
use crate::node::context::Runtime;
use crate::node::own::{self, OwnNode};
use crate::node::task;
use crate::types::NodeFacts;

/// The cluster that this node is part of. Cheap to clone; the clients share their connections.
#[derive(Clone)]
pub struct Cluster {
    /// For everything but the heartbeat: limited by kubeAPIQPS and kubeAPIBurst.
    pub client: kube::Client,
    /// For the lease and the node's status only: a connection of its own, so that nothing else
    /// can delay it.
    pub heartbeat: kube::Client,
    /// Name of the Node object.
    pub node_name: Arc<str>,
    /// The Node object as the API server has it.
    pub node: watch::Receiver<OwnNode>,
}

/// The clients of `--kubeconfig`; `None` in standalone mode.
pub(super) async fn connect(config: &Config) -> Result<Option<Cluster>> {
    let Some(path) = &config.flags.kubeconfig else { return Ok(None) };
    let client = pintle_api::connect(path).await.context("--kubeconfig")?;
    let heartbeat = pintle_api::connect(path).await.context("--kubeconfig")?;
    let node_name: Arc<str> = config.node_name.as_str().into();
    let node = own::start(client.clone(), Arc::clone(&node_name));
    Ok(Some(Cluster { client, heartbeat, node_name, node }))
}

/// Starts what belongs to the cluster, each part in a task of its own.
pub(super) fn start(parts: &Parts, cluster: &Cluster, runtime: &Runtime, facts: NodeFacts) {
    let node = task::Parts {
        config: Arc::clone(&parts.config),
        cluster: cluster.clone(),
        runtime: parts.runtime.clone(),
        inputs: parts.inputs.clone(),
        worker_facts: facts,
        events: Rc::new(|event| tracing::info!(reason = event.reason, "{}", event.message)),
    };
    task::start(node, runtime);
}
