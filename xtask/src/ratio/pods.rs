//! The pods of the comparison: created by `kubectl`, on the one node, with the defaults of every
//! pod (a token volume, 30 s of grace) and a process that waits and ends on SIGTERM.

use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::image::set::BOX;

/// The namespace of all of them.
pub(super) const NAMESPACE: &str = "bench";
/// The node.
pub(super) const NODE: &str = "n1";

/// Workload of a pod of the comparison besides waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadKind {
    /// Nothing.
    Idle,
    /// A command in its container every second.
    Probed,
}

/// Names of `count` pods that sort as they are numbered.
pub(super) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:03}")).collect()
}

/// A pod that is not restarted, so that its terminated status stays.
fn pod(name: &str, kind: WorkloadKind, node_network: bool) -> Value {
    let mut container = json!({
        "name": "main", "image": BOX, "command": ["/box", "pause"],
        "imagePullPolicy": "IfNotPresent",
    });
    if kind == WorkloadKind::Probed {
        // Generous for slow machines: a failed probe would restart the measured container.
        container["livenessProbe"] = json!({
            "exec": {"command": ["/box", "exit", "0"]},
            "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1000,
        });
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": NODE, "restartPolicy": "Never", "hostNetwork": node_network,
            "containers": [container],
        },
    })
}

/// Creates pods, one request after the other; on the node's network if the pod network is too
/// small.
pub(super) fn create(
    cluster: &Cluster,
    names: &[String],
    kind: WorkloadKind,
    node_network: bool,
) -> Result<()> {
    let items: Vec<Value> = names.iter().map(|name| pod(name, kind, node_network)).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let mut cmd = cluster.kubectl_command()?;
    cmd.args(["create", "--validate=false", "-f", "-"]).stdin(Stdio::piped());
    let mut child = cmd.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().expect("piped").write_all(list.as_bytes())?;
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "create: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

/// Deletes every pod, in one request.
pub(super) fn delete_all(cluster: &Cluster) -> Result<()> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    cluster.kubectl(&["delete", "--raw", &path]).context("delete the pods").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probed_pods_have_a_probe() {
        let probe = |kind| pod("a", kind, false)["spec"]["containers"][0]["livenessProbe"].clone();
        assert!(probe(WorkloadKind::Idle).is_null());
        assert_eq!(probe(WorkloadKind::Probed)["periodSeconds"], 1);
    }
}
