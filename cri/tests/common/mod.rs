//! Shared by the integration tests: a fake runtime in a folder of its own, and short requests.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::time::Duration;

use pintle_cri::{Client, Deadlines, fake::*, v1::*};
use tempfile::TempDir;

/// A fake runtime, a client of it, and the folder that holds the socket.
pub(crate) struct FakeRuntimeClient {
    pub(crate) fake: FakeRuntime,
    pub(crate) client: Client,
    _folder: TempDir,
}

impl FakeRuntimeClient {
    pub(crate) async fn new() -> Self {
        Self::of(Flavor::default()).await
    }

    pub(crate) async fn of(flavor: Flavor) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cri.sock");
        let fake = FakeRuntime::start_as(&path, flavor).await.expect("the fake starts");
        fake.add_image("busybox");
        let client = Client::connect(&fake.endpoint(), Deadlines::default()).expect("valid");
        Self { fake, client, _folder: folder }
    }

    /// Runs a sandbox `test/<pod>` and returns its id.
    pub(crate) async fn sandbox(&self, pod: &str) -> String {
        let reply = self.client.run_pod_sandbox(run(pod)).await.expect("the sandbox starts");
        reply.pod_sandbox_id
    }

    /// Creates and starts a container of that name in a sandbox and returns its id.
    pub(crate) async fn container(&self, sandbox: &str, pod: &str, name: &str) -> String {
        let id = self.created(sandbox, pod, name).await;
        self.client.start_container(start(&id)).await.expect("the container starts");
        id
    }

    /// Creates a container.
    pub(crate) async fn created(&self, sandbox: &str, pod: &str, name: &str) -> String {
        let request = create(sandbox, pod, name);
        self.client.create_container(request).await.expect("created").container_id
    }

    pub(crate) async fn status(&self, id: &str) -> ContainerStatus {
        let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
        let reply = self.client.container_status(request).await.expect("a status");
        reply.status.expect("status is set")
    }
}

pub(crate) fn sandbox_config(pod: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.into(),
            uid: format!("uid-{pod}"),
            namespace: "test".into(),
            attempt: 0,
        }),
        hostname: pod.into(),
        log_directory: format!("/var/log/pods/test_{pod}"),
        labels: [("pod".to_owned(), pod.to_owned())].into(),
        ..Default::default()
    }
}

pub(crate) fn run(pod: &str) -> RunPodSandboxRequest {
    RunPodSandboxRequest { config: Some(sandbox_config(pod)), runtime_handler: String::new() }
}

pub(crate) fn create(sandbox: &str, pod: &str, name: &str) -> CreateContainerRequest {
    CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(ImageSpec { image: "busybox".into(), ..Default::default() }),
            log_path: format!("{name}/0.log"),
            ..Default::default()
        }),
        sandbox_config: Some(sandbox_config(pod)),
    }
}

pub(crate) fn start(id: &str) -> StartContainerRequest {
    StartContainerRequest { container_id: id.into() }
}

pub(crate) fn stop(id: &str, timeout: i64) -> StopContainerRequest {
    StopContainerRequest { container_id: id.into(), timeout }
}

pub(crate) fn exec(id: &str, command: &str, timeout: i64) -> ExecSyncRequest {
    let cmd = command.split(' ').map(str::to_owned).collect();
    ExecSyncRequest { container_id: id.into(), cmd, timeout }
}

/// Far beyond anything a test waits for; only there so that a broken one ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Ends a test that would wait for ever.
pub(crate) async fn patiently<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait).await.expect("what the test waits for happens")
}
