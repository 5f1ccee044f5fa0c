//! Workloads that cases create: small, and the same but for what a case is about.
//!
//! Input: a name and fields that replace those of the usual object, merged into its spec.

use anyhow::Result;
use serde_json::{Value, json};

use super::{DeleteHow, NamespaceClient, annotation, controller, image, name, uid};

/// A pod template with the label `app` and a grace period of 0; fields of the spec on top.
pub fn template(app: &str, image: &str, spec: Value) -> Value {
    let container = json!({"name": "c", "image": image});
    let usual = json!({"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
        "containers": [container]});
    json!({"metadata": {"labels": {"app": app}}, "spec": merged(usual, spec)})
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}

/// The patch that gives a workload's template another image.
fn image_patch(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

impl NamespaceClient {
    /// A Deployment with these replicas.
    pub async fn deployment(&self, name: &str, replicas: u32, spec: Value) -> Result<Value> {
        let usual = json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": template(name, "good", json!({}))});
        self.create("Deployment", name, json!({"spec": merged(usual, spec)})).await
    }

    /// A StatefulSet with these replicas.
    pub async fn stateful_set(&self, name: &str, replicas: u32, spec: Value) -> Result<Value> {
        let usual = json!({"replicas": replicas, "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "good", json!({}))});
        self.create("StatefulSet", name, json!({"spec": merged(usual, spec)})).await
    }

    /// A DaemonSet for the nodes of the case.
    pub async fn daemon_set(&self, name: &str, spec: Value) -> Result<Value> {
        let nodes = json!({"nodeSelector": {"case": self.namespace}});
        let usual = json!({"selector": {"matchLabels": {"app": name}},
            "template": template(name, "good", nodes)});
        self.create("DaemonSet", name, json!({"spec": merged(usual, spec)})).await
    }

    /// A Job with `restartPolicy: Never`.
    pub async fn job(&self, name: &str, spec: Value) -> Result<Value> {
        let pod = template(name, "good", json!({"restartPolicy": "Never"}));
        let usual = json!({"template": {"spec": pod["spec"]}});
        self.create("Job", name, json!({"spec": merged(usual, spec)})).await
    }

    /// Gives the workload's template another image.
    pub async fn set_image(&self, kind: &str, name: &str, image: &str) -> Result<Value> {
        self.patch(kind, name, image_patch(image)).await
    }

    /// The ReplicaSets of a Deployment, the oldest revision first.
    pub async fn sets(&self, deployment: &str) -> Result<Vec<Value>> {
        let owner = uid(&self.get("Deployment", deployment).await?);
        let mut sets = self.list("ReplicaSet").await?;
        sets.retain(|set| controller(set)["uid"] == owner.as_str());
        sets.sort_by_key(revision);
        Ok(sets)
    }

    /// Replicas of the Deployment's ReplicaSets by image, without those of none.
    pub async fn sizes(&self, deployment: &str) -> Result<Value> {
        let mut sizes = json!({});
        for set in self.sets(deployment).await? {
            if set["spec"]["replicas"] != 0 {
                sizes[image(&set["spec"]["template"])] = set["spec"]["replicas"].clone();
            }
        }
        Ok(sizes)
    }

    /// Pods of a Job, also those that are being deleted, by name.
    pub async fn job_pods(&self, job: &str) -> Result<Vec<Value>> {
        let selector = format!("batch.kubernetes.io/job-name={job}");
        let mut pods = self.list_with("Pod", &selector).await?;
        pods.sort_by_key(name);
        Ok(pods)
    }

    /// Names of an indexed Job's pods in the order of their indexes.
    pub async fn indexed_pods(&self, job: &str) -> Result<Vec<String>> {
        let key = "batch.kubernetes.io/job-completion-index";
        let index =
            |pod: &Value| annotation(pod, key).as_str().and_then(|index| index.parse::<u32>().ok());
        let mut pods = self.job_pods(job).await?;
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods.sort_by_key(index);
        Ok(pods.iter().map(name).collect())
    }

    /// A ConfigMap with these owners and finalizers.
    pub async fn config_map(&self, name: &str, owners: &[Value], hold: bool) -> Result<Value> {
        let finalizers = if hold { json!(["example.com/hold"]) } else { json!([]) };
        let metadata = json!({"ownerReferences": owners, "finalizers": finalizers});
        self.create("ConfigMap", name, json!({"metadata": metadata})).await
    }

    /// Deletes an object with a propagation policy.
    pub async fn delete_with(&self, kind: &str, name: &str, policy: &'static str) -> Result<()> {
        self.delete(kind, name, DeleteHow::with(policy)).await
    }
}

fn revision(set: &Value) -> u64 {
    let revision = annotation(set, "deployment.kubernetes.io/revision");
    revision.as_str().and_then(|revision| revision.parse().ok()).unwrap_or(0)
}
