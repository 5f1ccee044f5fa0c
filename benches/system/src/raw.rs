//! The lower bound of a start: the agent's own CRI calls made again without the agent.
//!
//! The requests are read back from the runtime, which keeps them and shows them in its verbose
//! status: labels, annotations, mounts, environment, limits and DNS are exactly the agent's. Only
//! what must differ does: names, cgroup, log folder. The mounts are those of the pod that served
//! as the template, so it must live as long as the copies.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow};
use futures_util::future::{join_all, try_join_all};
use pintle_cri::json::from_json;
use pintle_cri::{Client, v1};
use pintle_testbed::{RawCri, TestNode};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::Stamp;

/// The unit that takes turns: a call, or a whole pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnUnit {
    /// Each call waits for its turn: all sandboxes come before the first container.
    Call,
    /// A pod keeps its turn until its container runs.
    Pod,
}

/// Requests that create a pod like their template.
#[derive(Clone, Debug)]
pub struct RawRequests {
    sandbox: v1::PodSandboxConfig,
    container: v1::ContainerConfig,
    cgroup: String,
    logs: String,
}

impl RawRequests {
    /// Reads back how this container and its sandbox were made.
    pub fn of(cri: &RawCri, node: &TestNode, container_id: &str) -> Result<Self> {
        let sandbox_id = cri.block(sandbox_of(&cri.client, container_id))?;
        let request =
            v1::ContainerStatusRequest { container_id: container_id.to_owned(), verbose: true };
        let container = cri.block(cri.client.container_status(request))?.info;
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id, verbose: true };
        let sandbox = cri.block(cri.client.pod_sandbox_status(request))?.info;
        Ok(Self {
            sandbox: from_json(&config_in(sandbox)?).context("the sandbox's configuration")?,
            container: from_json(&config_in(container)?).context("the container's")?,
            cgroup: format!("/{}/raw", node.runtime_node().name()),
            logs: node.pod_logs().to_string_lossy().into_owned(),
        })
    }

    fn sandbox(&self, name: &str) -> v1::PodSandboxConfig {
        let mut config = self.sandbox.clone();
        let metadata = config.metadata.get_or_insert_default();
        metadata.name = name.to_owned();
        metadata.uid = format!("uid-{name}");
        config.hostname = name.to_owned();
        config.log_directory = format!("{}/{name}", self.logs);
        config.linux.get_or_insert_default().cgroup_parent = format!("{}/{name}", self.cgroup);
        // A label of the agent's would make it the agent's pod, to be removed as an orphan.
        config.labels = relabelled(&config.labels);
        config
    }

    fn container(&self) -> v1::ContainerConfig {
        let mut config = self.container.clone();
        config.labels = relabelled(&config.labels);
        config
    }
}

/// As many labels of the same size, none of them the agent's.
fn relabelled(labels: &std::collections::BTreeMap<String, String>) -> LabelMap {
    labels
        .iter()
        .map(|(key, value)| (key.replace("kubernetes", "k8ernetes"), value.clone()))
        .collect()
}

type LabelMap = std::collections::BTreeMap<String, String>;

/// A pod that was started.
#[derive(Clone, Debug)]
pub struct RawStarted {
    /// Its sandbox.
    pub sandbox_id: String,
    /// Its container.
    pub container_id: String,
}

/// Starts these pods at once, at most `parallel` in turn at the same time.
pub fn start_all(
    cri: &RawCri,
    template: &RawRequests,
    names: &[String],
    turn: TurnUnit,
    parallel: usize,
) -> Result<Vec<RawStarted>> {
    let turns = Semaphore::new(parallel);
    let starts = names.iter().map(|name| start(&cri.client, template, name, turn, &turns));
    cri.block(try_join_all(starts))
}

async fn start(
    client: &Client,
    template: &RawRequests,
    name: &str,
    turn: TurnUnit,
    turns: &Semaphore,
) -> Result<RawStarted> {
    let whole = match turn {
        TurnUnit::Pod => Some(turns.acquire().await?),
        TurnUnit::Call => None,
    };
    let one = async || -> Result<_> {
        Ok(if whole.is_some() { None } else { Some(turns.acquire().await?) })
    };
    let config = template.sandbox(name);
    let request =
        v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
    let held = one().await?;
    let sandbox_id = client.run_pod_sandbox(request).await?.pod_sandbox_id;
    drop(held);
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: sandbox_id.clone(),
        config: Some(template.container()),
        sandbox_config: Some(config),
    };
    let held = one().await?;
    let container_id = client.create_container(request).await?.container_id;
    drop(held);
    let held = one().await?;
    let request = v1::StartContainerRequest { container_id: container_id.clone() };
    client.start_container(request).await?;
    drop(held);
    Ok(RawStarted { sandbox_id, container_id })
}

/// Stops pods; their containers are killed without grace.
pub fn stop_all(cri: &RawCri, pods: &[RawStarted], parallel: usize) -> Result<()> {
    let turns = Semaphore::new(parallel);
    let stops = pods.iter().map(async |pod| -> Result<()> {
        let _held = turns.acquire().await?;
        let pod_sandbox_id = pod.sandbox_id.clone();
        cri.client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    });
    cri.block(join_all(stops)).into_iter().collect()
}

/// Stops and removes pods.
pub fn remove_all(cri: &RawCri, pods: &[RawStarted], parallel: usize) -> Result<()> {
    let turns = Semaphore::new(parallel);
    let removals = pods.iter().map(async |pod| -> Result<()> {
        let _held = turns.acquire().await?;
        let pod_sandbox_id = pod.sandbox_id.clone();
        cri.client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id }).await?;
        let pod_sandbox_id = pod.sandbox_id.clone();
        cri.client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id }).await?;
        Ok(())
    });
    cri.block(join_all(removals)).into_iter().collect()
}

/// When the runtime started the container, by its own stamp.
pub fn started_at(cri: &RawCri, container_id: &str) -> Result<Stamp> {
    let request =
        v1::ContainerStatusRequest { container_id: container_id.to_owned(), verbose: false };
    let status = cri.block(cri.client.container_status(request))?.status;
    let at = status.context("a status")?.started_at;
    anyhow::ensure!(at > 0, "{container_id} has not started");
    Ok(at)
}

async fn sandbox_of(client: &Client, container_id: &str) -> Result<String> {
    let all = client.list_containers(v1::ListContainersRequest { filter: None }).await?;
    let found = all.containers.into_iter().find(|c| c.id == container_id);
    found.map(|c| c.pod_sandbox_id).ok_or_else(|| anyhow!("no container {container_id}"))
}

/// `config` in the `info` of a verbose status.
fn config_in(info: impl IntoIterator<Item = (String, String)>) -> Result<Value> {
    let info: HashMap<String, String> = info.into_iter().collect();
    let text = info.get("info").context("a verbose status has `info`")?;
    let mut info: Value = serde_json::from_str(text)?;
    Ok(info["config"].take())
}
