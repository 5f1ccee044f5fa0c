//! The connection to the API server and everything that runs because of it.
//!
//! `Cluster` is what any stage is given that reads or writes objects. It is made before anything
//! else starts, so that a kubeconfig that cannot be used ends the agent with a sentence.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::Parts;
use crate::config::Config;
use crate::node::context::Runtime;

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
}

/// The clients of `--kubeconfig`; `None` in standalone mode.
pub(super) async fn connect(config: &Config) -> Result<Option<Cluster>> {
    let Some(path) = &config.flags.kubeconfig else { return Ok(None) };
    let client = pintle_api::connect(path).await.context("--kubeconfig")?;
    let heartbeat = pintle_api::connect(path).await.context("--kubeconfig")?;
    Ok(Some(Cluster { client, heartbeat, node_name: config.node_name.as_str().into() }))
}

/// Starts what belongs to the cluster, each part in a task of its own.
pub(super) fn start(_parts: &Parts, cluster: &Cluster, _runtime: &Runtime) {
    tracing::info!(node = %cluster.node_name, "the node joins its cluster");
}
