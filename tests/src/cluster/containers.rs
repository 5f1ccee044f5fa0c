//! What the node's runtime has of pods.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pintle_cri::v1::{ContainerState, ListContainersRequest};
use pintle_cri::{Client, Deadlines};
use tokio::runtime::Builder;

use super::{NODE, TestCluster};

/// A container, running or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Its pod's name.
    pub pod: String,
    /// Its pod's uid.
    pub uid: String,
    /// Its name in the pod.
    pub name: String,
    /// How many came before it.
    pub attempt: u32,
    /// Whether it runs.
    pub runs: bool,
}

impl TestCluster {
    /// Every container that the runtime has, sorted.
    pub fn containers(&self) -> Result<Vec<Held>> {
        let socket = self.cluster().node_root(NODE)?.join("run/containerd/containerd.sock");
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
                pod: label(&container.labels, "pod.name"),
                uid: label(&container.labels, "pod.uid"),
                name: of.name,
                attempt: of.attempt,
                runs: container.state == ContainerState::ContainerRunning as i32,
            })
        });
        let mut held = held.collect::<Result<Vec<_>>>()?;
        held.sort();
        Ok(held)
    }
}
