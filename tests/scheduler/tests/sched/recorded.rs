//! Recorded clusters of the real scheduler: where they are, and how they become a `Cluster`.
//!
//! Input: `PINTLE_RECORDED`, or the folder in the repository; gzipped JSON lines. Output: parsed
//! lines. A file that is not there fails, unless the folder says that it was not recorded.

use std::process::Command;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use pintle_sched_core::{Cluster, Profile};
use serde::Deserialize;
use serde_json::Value;

/// One recorded cluster.
#[derive(Deserialize)]
pub(crate) struct ClusterRecording {
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) nodes: Vec<Node>,
    #[serde(default)]
    pub(crate) pods: Vec<Pod>,
    #[serde(default)]
    pub(crate) namespaces: Vec<Namespace>,
    #[serde(default)]
    pub(crate) services: Vec<Service>,
    #[serde(default)]
    pub(crate) replicasets: Vec<ReplicaSet>,
    #[serde(default)]
    pub(crate) statefulsets: Vec<StatefulSet>,
    #[serde(default)]
    pub(crate) replicationcontrollers: Vec<ReplicationController>,
    #[serde(default)]
    pub(crate) poddisruptionbudgets: Vec<PodDisruptionBudget>,
    pub(crate) cases: Vec<Value>,
}

impl ClusterRecording {
    /// The cluster, built by deltas in the recorded order.
    pub(crate) fn cluster(&self, profile: Profile) -> Cluster {
        let mut cluster = Cluster::new(profile);
        self.namespaces.iter().for_each(|n| cluster.set_namespace(n));
        self.services.iter().for_each(|s| cluster.set_service(s));
        self.replicasets.iter().for_each(|s| cluster.set_replica_set(s));
        self.statefulsets.iter().for_each(|s| cluster.set_stateful_set(s));
        self.replicationcontrollers.iter().for_each(|c| cluster.set_replication_controller(c));
        for node in &self.nodes {
            cluster.set_node(node).expect("recorded node");
        }
        for pod in &self.pods {
            cluster.set_pod(pod).expect("recorded pod");
        }
        cluster
    }
}

/// The lines of a recording; `None` when it was not recorded.
pub(crate) fn load(name: &str) -> Option<Vec<ClusterRecording>> {
    let path = pintle_testbed::recorded::path(name)?;
    let output = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip runs");
    assert!(output.status.success(), "{} is not gzip", path.display());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let parse = |line: &str| serde_json::from_str(line).expect("recorded line");
    Some(text.lines().filter(|l| !l.is_empty()).map(parse).collect())
}
