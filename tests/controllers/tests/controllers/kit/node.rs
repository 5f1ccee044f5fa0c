//! A kubelet and a scheduler, played through the API.
//!
//! Input: which pods to run. Output: bindings and statuses as a kubelet writes them. A node is
//! Ready and has the taints of the case only. A terminating pod stays until the case removes it.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CaseNamespace, DeleteHow, NamespaceClient, condition, count, is_terminating, name};

/// How often the played kubelet looks.
const PERIOD: Duration = Duration::from_millis(250);

/// A time this many seconds ago, in the API's form.
pub fn ago(seconds: i64) -> String {
    text_of(before_now(seconds))
}

/// A time this many seconds ago.
pub fn before_now(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

fn text_of(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl CaseNamespace {
    /// Creates a Ready node with these taints; its name begins with the namespace's.
    pub async fn node(&self, suffix: &str, taints: Value) -> Result<String> {
        let node = format!("{}-{suffix}", self.namespace);
        let labels = json!({"kubernetes.io/hostname": node, "case": self.namespace});
        let metadata = json!({"labels": labels});
        self.create("Node", &node, json!({"metadata": metadata, "spec": {"taints": taints}}))
            .await?;
        self.nodes.borrow_mut().push(node.clone());
        let room = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "", "lastHeartbeatTime": ago(0), "lastTransitionTime": ago(0)}]);
        let status = json!({"capacity": room, "allocatable": room, "conditions": ready});
        self.patch_status("Node", &node, status).await?;
        // The API server taints each new node, and no controller here would remove that.
        self.patch("Node", &node, json!({"spec": {"taints": taints}})).await?;
        Ok(node)
    }

    /// Starts a kubelet that binds pods to the node, if there is one, and makes those Ready that
    /// `runs` accepts.
    pub fn kubelet(&self, node: Option<&str>, runs: impl Fn(&Value) -> bool + 'static) {
        let (requests, node) = (self.requests.clone(), node.map(str::to_owned));
        let work = async move {
            loop {
                // A pod may change or vanish between two requests: the next turn sees it.
                let _ = requests.run_pods(node.as_deref(), &runs).await;
                sleep(PERIOD).await;
            }
        };
        self.tasks.borrow_mut().push(tokio::task::spawn_local(work));
    }
}

impl NamespaceClient {
    async fn run_pods(&self, node: Option<&str>, runs: &impl Fn(&Value) -> bool) -> Result<()> {
        for pod in self.pods().await? {
            let is_over = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
            let is_ready = condition(&pod, "Ready", &["status"]) == json!(["True"]);
            if !is_over && !is_ready && runs(&pod) {
                if let Some(node) = node
                    && pod["spec"]["nodeName"].is_null()
                {
                    self.bind(&name(&pod), node).await?;
                }
                self.set_running(&name(&pod)).await?;
            }
        }
        Ok(())
    }

    /// Pods that are not being deleted, the oldest first.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let mut pods = self.list("Pod").await?;
        pods.retain(|pod| !is_terminating(pod));
        pods.sort_by_key(|pod| (pod["metadata"]["creationTimestamp"].to_string(), name(pod)));
        Ok(pods)
    }

    /// Names of the pods that are not being deleted, sorted.
    pub async fn pod_names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.pods().await?.iter().map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Binds a pod to a node.
    pub async fn bind(&self, pod: &str, node: &str) -> Result<()> {
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": target});
        self.create_sub("Pod", pod, "binding", &binding).await
    }

    /// The pod runs and is Ready.
    pub async fn set_running(&self, pod: &str) -> Result<()> {
        self.set_state(pod, &PodRun::default()).await
    }

    /// The pod runs as the arguments say.
    pub async fn set_state(&self, pod: &str, state: &PodRun) -> Result<()> {
        let since = text_of(state.since);
        let is_true = |is: bool| if is { "True" } else { "False" };
        let conditions: Vec<Value> = ["Initialized", "ContainersReady", "Ready"]
            .iter()
            .map(|kind| {
                let status = is_true(state.is_ready || *kind == "Initialized");
                json!({"type": kind, "status": status, "lastTransitionTime": since})
            })
            .collect();
        let container = json!({"name": "c", "image": "x", "imageID": "x", "ready": state.is_ready,
            "restartCount": state.restarts, "state": {"running": {"startedAt": since}}});
        let status = json!({"phase": "Running", "startTime": since, "conditions": conditions,
            "containerStatuses": [container]});
        self.patch_status("Pod", pod, status).await.map(drop)
    }

    /// The pod's container ended with this code, and the pod with it.
    pub async fn finish(&self, pod: &str, code: i32) -> Result<()> {
        let (phase, reason) =
            if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
        let terminated = json!({"exitCode": code, "finishedAt": ago(0), "startedAt": ago(2),
            "reason": reason});
        let container = json!({"name": "c", "image": "x", "imageID": "x", "ready": false,
            "restartCount": 0, "state": {"terminated": terminated}});
        let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": ago(0)});
        let status = json!({"phase": phase, "conditions": [ready],
            "containerStatuses": [container]});
        self.patch_status("Pod", pod, status).await.map(drop)
    }

    /// Deletes a pod as a kubelet does when it has ended.
    pub async fn remove_pod(&self, pod: &str) -> Result<()> {
        self.delete("Pod", pod, DeleteHow::NOW).await
    }

    /// How many replicas the workload's status counts in this field.
    pub async fn counted(&self, kind: &str, name: &str, field: &str) -> Result<Value> {
        Ok(count(&self.get(kind, name).await?, field).into())
    }
}

/// How a pod runs.
#[derive(Clone, Copy, Debug)]
pub struct PodRun {
    /// True if it is Ready.
    pub is_ready: bool,
    /// Restarts of its container.
    pub restarts: u32,
    /// It runs, and is Ready, since then.
    pub since: Timestamp,
}

impl Default for PodRun {
    fn default() -> Self {
        Self { is_ready: true, restarts: 0, since: Timestamp::now() }
    }
}
