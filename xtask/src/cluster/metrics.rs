//! metrics-server beside the control plane, for `kubectl top` and the pod autoscaler.
//!
//! Input: a running cluster. Output: a process on the control plane's machine that asks every
//! node's agent for `/metrics/resource`, and the objects by which the API server finds it: a
//! service without pods, whose endpoint is that machine. It is not among the usual parts: its
//! program is built and started only when a command names it.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::Cluster;
use super::control::command;
use super::layout::CONTROL;
use crate::upstream::Program;

/// The part's name.
pub(super) const PART: &str = "metrics";
/// Its port on the control plane's machine.
const PORT: u16 = 4443;
/// How long it may take until the API server reaches it: it waits for two readings of a node.
const READY_WAIT: Duration = Duration::from_secs(90);
/// Its rights and its place in the API, with address and port left open.
const OBJECTS: &str = include_str!("metrics.yaml");

/// Starts it and waits until the API server reaches it.
pub(super) fn start(cluster: &Cluster) -> Result<()> {
    let program = Program::MetricsServer.ensure()?;
    let objects = OBJECTS.replace("@ADDRESS@", &CONTROL.to_string());
    let path = cluster.layout.dir().join("metrics.yaml");
    fs::write(&path, objects.replace("@PORT@", &PORT.to_string()))?;
    cluster.kubectl(&["apply", "-f", &path.to_string_lossy()])?;
    cluster.processes.start(PART, command(cluster, &program)?.args(arguments(cluster)))?;
    cluster.processes.wait(PART, READY_WAIT, || {
        cluster.kubectl(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"]).map(drop)
    })
}

fn arguments(cluster: &Cluster) -> Vec<String> {
    let layout = &cluster.layout;
    let config = layout.kubeconfig("metrics-server");
    let config = config.display();
    vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        format!("--cert-dir={}", layout.dir().join("metrics").display()),
        format!("--secure-port={PORT}"),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        // Certificates of the nodes' ports are signed by themselves here.
        "--kubelet-insecure-tls".to_owned(),
        // The shortest resolution allowed; the request timeout must be shorter.
        "--metric-resolution=10s".to_owned(),
        "--kubelet-request-timeout=9s".to_owned(),
    ]
}
