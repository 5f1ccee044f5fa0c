//! Raw CRI calls on a node's containerd, without the agent: the minimal cost of a pod, and the
//! runtime's state.
//!
//! Blocking, because tests read as a sequence: one current-thread runtime drives the connection.
//! The requests are the smallest that create a pod in the node's own cgroup and log folder, so that
//! everything is removed with the node.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pintle_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, LinuxContainerConfig,
    LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest,
    StartContainerRequest, StatusRequest,
};
use pintle_cri::{Client, Deadlines};
use tokio::runtime::{Builder, Runtime};
use xtask::image::set;

use crate::TestNode;
use crate::wait::{LONG, until};

/// A connection to a node's containerd.
pub struct RawCri {
    runtime: Runtime,
    /// The typed client; use it inside `block`.
    pub client: Client,
    logs: PathBuf,
    cgroup: String,
}

/// A sandbox made by `RawCri`.
#[derive(Clone, Debug)]
pub struct RawPod {
    /// The sandbox's id.
    pub id: String,
    /// Its configuration; containers repeat it.
    pub config: PodSandboxConfig,
}

impl RawCri {
    /// Connects and waits until runtime and network are ready.
    pub fn connect(node: &TestNode) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = format!("unix://{}", node.runtime_node().socket().display());
        let connect = async { Client::connect(&endpoint, Deadlines::default()) };
        let client = runtime.block_on(connect)?;
        let cgroup = node.runtime_node().cgroup("");
        let cri = Self { runtime, client, logs: node.pod_logs(), cgroup };
        until(LONG, "the runtime is ready", || cri.check_ready());
        Ok(cri)
    }

    /// Runs a future to its end.
    pub fn block<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    fn check_ready(&self) -> Result<()> {
        let answer = self.block(self.client.status(StatusRequest { verbose: false }))?;
        let conditions = answer.status.context("a status")?.conditions;
        // A third condition is false on cgroup v1: containerd warns of its end from 2.2 on.
        let is_true = |kind: &str| conditions.iter().any(|c| c.r#type == kind && c.status);
        let is_ready = is_true("RuntimeReady") && is_true("NetworkReady");
        anyhow::ensure!(is_ready, "{conditions:?}");
        Ok(())
    }

    /// The pod's own cgroup, or the node's slice, in which systemd makes those of containers.
    fn parent_of(&self, name: &str) -> String {
        let is_slice = self.cgroup.ends_with(".slice");
        if is_slice { self.cgroup.clone() } else { format!("{}/{name}", self.cgroup) }
    }

    /// RunPodSandbox for a pod called `name`.
    pub fn run_pod(&self, name: &str) -> Result<RawPod> {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "raw".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: self.logs.join(name).to_string_lossy().into_owned(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.parent_of(name),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request =
            RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let id = self.block(self.client.run_pod_sandbox(request))?.pod_sandbox_id;
        Ok(RawPod { id, config })
    }

    /// CreateContainer and StartContainer of the box image with these arguments; returns the id.
    pub fn run_container(&self, pod: &RawPod, name: &str, args: &[&str]) -> Result<String> {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec { image: set::BOX.to_owned(), ..Default::default() }),
            command: args.iter().map(|a| (*a).to_owned()).collect(),
            log_path: format!("{name}.log"),
            labels: BTreeMap::from([("test".to_owned(), name.to_owned())]),
            linux: Some(LinuxContainerConfig::default()),
            ..Default::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let id = self.block(self.client.create_container(request))?.container_id;
        let start = StartContainerRequest { container_id: id.clone() };
        self.block(self.client.start_container(start))?;
        Ok(id)
    }
}
