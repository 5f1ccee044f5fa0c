//! The connection to the API server and everything that runs because of it.
//!
//! `Cluster` is what any stage is given that reads or writes objects. It is made before anything
//! else starts, so that a kubeconfig that cannot be used ends the agent with a sentence.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ObjectReference;
use pintle_api::events;
use tokio::sync::{mpsc, watch};

use super::Parts;
use crate::admit;
use crate::config::Config;
use crate::node::context::Runtime;
use crate::node::own::{self, OwnNode};
use crate::node::task;
use crate::types::NodeFacts;
use crate::worker::Input;

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
    /// Takes events for the API server.
    pub events: events::Recorder,
}

/// The clients of `--kubeconfig`; `None` in standalone mode.
pub(super) async fn connect(config: &Config) -> Result<Option<Cluster>> {
    let Some(path) = &config.flags.kubeconfig else { return Ok(None) };
    let client = pintle_api::connect(path).await.context("--kubeconfig")?;
    let heartbeat = pintle_api::connect(path).await.context("--kubeconfig")?;
    let node_name: Arc<str> = config.node_name.as_str().into();
    let node = own::start(client.clone(), Arc::clone(&node_name));
    let events = start_events(config, &client);
    Ok(Some(Cluster { client, heartbeat, node_name, node, events }))
}

/// The kubelet's name as the source: people and tools look for it.
fn start_events(config: &Config, client: &kube::Client) -> events::Recorder {
    let limits = events::Limits {
        per_second: f64::from(config.kubelet.event_record_qps),
        burst: u32::try_from(config.kubelet.event_burst).unwrap_or(0),
    };
    let name = &config.node_name;
    let (recorder, sink) = events::recorder(client.clone(), "kubelet", name, limits);
    tokio::task::spawn_local(sink.run());
    recorder
}

/// Events about the node: by name, because its object may not be there yet.
// k8s: pkg/kubelet/kubelet.go NewMainKubelet nodeRef
fn about_node(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    let kind = Some("Node".to_owned());
    ObjectReference { kind, uid: name.clone(), name, ..ObjectReference::default() }
}

/// Starts what belongs to the cluster, each part in a task of its own.
pub(super) fn start(
    parts: &Parts,
    cluster: &Cluster,
    runtime: &Runtime,
    facts: NodeFacts,
    offered: Arc<admit::Node>,
) {
    let (recorder, about) = (cluster.events.clone(), about_node(&cluster.node_name));
    let node = task::Parts {
        config: Arc::clone(&parts.config),
        cluster: cluster.clone(),
        runtime: parts.runtime.clone(),
        inputs: parts.inputs.clone(),
        worker_facts: facts,
        events: Rc::new(move |event| {
            let kind = if event.warning { events::Kind::Warning } else { events::Kind::Normal };
            tracing::info!(reason = event.reason, "{}", event.message);
            recorder.event(about.clone(), kind, event.reason, &event.message);
        }),
    };
    task::start(node, runtime);
    tokio::task::spawn_local(offer(cluster.node.clone(), offered, parts.inputs.clone()));
}

/// Tells admission what the Node object says whenever that changes: labels, taints, allocatable.
async fn offer(
    mut own: watch::Receiver<OwnNode>,
    mut offered: Arc<admit::Node>,
    inputs: mpsc::Sender<Input>,
) {
    while own.changed().await.is_ok() {
        let Some(object) = own.borrow_and_update().object().cloned() else { continue };
        let now = offered.with_object(&object);
        if now == *offered {
            continue;
        }
        offered = Arc::new(now);
        if inputs.send(Input::Admission(Arc::clone(&offered))).await.is_err() {
            return;
        }
    }
}
