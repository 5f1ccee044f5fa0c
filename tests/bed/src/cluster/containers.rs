//! Sandboxes and containers in the nodes' runtimes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pintle_cri::v1::{ContainerState, ListContainersRequest};
use pintle_cri::{Client, Deadlines};
use tokio::runtime::Builder;

use super::TestCluster;

/// A container, running or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The node with it in its runtime.
    pub node: String,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's uid.
    pub uid: String,
    /// Its name in the pod.
    pub name: String,
    /// How many came before it.
    pub attempt: u32,
    /// The runtime's name for it.
    pub id: String,
    /// True if it runs.
    pub runs: bool,
}

impl TestCluster {
    /// Every container that the runtimes have, sorted.
    pub fn containers(&self) -> Result<Vec<Held>> {
        let mut held = Vec::new();
        for node in self.cluster().nodes() {
            held.extend(self.containers_on(node)?);
        }
        held.sort();
        Ok(held)
    }

    fn containers_on(&self, node: &str) -> Result<Vec<Held>> {
        let socket = self.cluster().node_root(node)?.join("run/containerd/containerd.sock");
        let endpoint = format!("unix://{}", socket.display());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(async {
            let client = Client::connect(&endpoint, Deadlines::default())?;
            anyhow::Ok(client.list_containers(ListContainersRequest::default()).await?)
        });
        let held = answer?.containers.into_iter().map(|container| {
            let label = |labels: &BTreeMap<String, String>, key: &str| {
                labels.get(&format!("io.kubernetes.{key}")).cloned().unwrap_or_default()
            };
            let of = container.metadata.context("a container has metadata")?;
            Ok(Held {
                node: node.to_owned(),
                pod: label(&container.labels, "pod.name"),
                uid: label(&container.labels, "pod.uid"),
                name: of.name,
                attempt: of.attempt,
                id: container.id,
                runs: container.state == ContainerState::ContainerRunning as i32,
            })
        });
        held.collect()
    }
}
