//! The controller of volume snapshots beside the control plane.
//!
//! Input: a running cluster. Output: the kinds of snapshots at the API server, and a process on the
//! control plane's machine that binds snapshots to their content. It is not among the usual parts:
//! its program is built and started only when a command names it.

use anyhow::Result;

use super::Cluster;
use super::control::command;
use crate::upstream::{Program, Sidecar, snapshot_definitions};

/// The part's name.
pub(super) const PART: &str = "snapshots";

/// Defines the kinds and starts the controller; one that runs stays.
pub(super) fn start(cluster: &Cluster) -> Result<()> {
    if cluster.processes.pid(PART).is_some() {
        return Ok(());
    }
    let program = Program::Sidecar(Sidecar::SnapshotController).ensure()?;
    for file in snapshot_definitions()? {
        cluster.kubectl(&["apply", "-f", &file.to_string_lossy()])?;
    }
    let config = cluster.layout.kubeconfig("admin");
    let mut cmd = command(cluster, &program)?;
    cmd.arg(format!("--kubeconfig={}", config.display()));
    cluster.processes.start(PART, &mut cmd).map(drop)
}
