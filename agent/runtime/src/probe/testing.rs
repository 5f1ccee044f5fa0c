//! Shared setup of the tests of this stage: pods, records of them, and a driver that collects
//! inputs.

use std::sync::Arc;
use std::task::{Context, Poll};

use k8s_openapi::api::core::v1::Pod;
use pintle_cri::fake::FakeRuntime;
use pintle_cri::{Client, Deadlines, v1};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use super::attempt::Tools;
use super::grpc::{CheckRequest, CheckResponse};
use super::target::ProbeTarget;
pub(super) use super::testing_pods::{observed, pod};
use crate::resolver::Resolver;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::ContainerId;

/// A fake runtime in which container `c` of pod `shop/web` runs.
pub(crate) struct ProbedRuntime {
    pub(crate) fake: FakeRuntime,
    pub(crate) client: Client,
    id: String,
    _folder: tempfile::TempDir,
}

impl ProbedRuntime {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cri.sock");
        let fake = FakeRuntime::start(&path).await.expect("the fake starts");
        fake.add_image("busybox");
        let client = Client::connect(&fake.endpoint(), Deadlines::default()).expect("valid");
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".into(),
                uid: "uid-1".into(),
                namespace: "shop".into(),
                attempt: 0,
            }),
            ..Default::default()
        };
        let run = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
        let sandbox = client.run_pod_sandbox(run).await.expect("the sandbox starts");
        let create = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.pod_sandbox_id,
            config: Some(v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
                image: Some(v1::ImageSpec { image: "busybox".into(), ..Default::default() }),
                ..Default::default()
            }),
            sandbox_config: Some(config),
        };
        let id = client.create_container(create).await.expect("created").container_id;
        let start = v1::StartContainerRequest { container_id: id.clone() };
        client.start_container(start).await.expect("started");
        Self { fake, client, id, _folder: folder }
    }

    pub(super) fn tools(&self) -> Tools {
        let resolver = Resolver::default();
        Tools { client: self.client.clone(), recorder: Recorder::default(), resolver }
    }

    /// The pod, with these probes, and its record.
    pub(crate) fn pod(&self, container: &Value) -> (Arc<Pod>, ObservedPod) {
        let mut container = container.clone();
        container["name"] = json!("c");
        let pod = pod(json!({"containers": [container]}), json!({}));
        let mut record = observed(&pod, 1);
        record.containers[0].id = ContainerId::from(self.id.as_str());
        (pod, record)
    }

    pub(super) fn target(&self, container: &Value) -> ProbeTarget {
        let (pod, record) = self.pod(container);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        let target = ProbeTarget::new(&record.uid, container, &record.containers[0]);
        target.moved_to(&pod, Some("127.0.0.1"))
    }
}

/// How a health server behaves.
#[derive(Clone, Debug)]
pub(super) enum HealthServer {
    /// Statuses by service; others are not found.
    Says(Vec<(&'static str, i32)>),
    /// Does not have the protocol.
    Lacks,
    /// Never answers.
    Hangs,
}

impl HealthServer {
    async fn answer(self, service: &str) -> Result<Response<CheckResponse>, Status> {
        match self {
            Self::Says(statuses) => {
                let found = statuses.iter().find(|(name, _)| *name == service);
                let (_, status) = found.ok_or_else(|| Status::not_found("unknown service"))?;
                Ok(Response::new(CheckResponse { status: *status }))
            }
            Self::Lacks => Err(Status::unimplemented("unknown service grpc.health.v1.Health")),
            Self::Hangs => std::future::pending().await,
        }
    }
}

impl tonic::server::NamedService for HealthServer {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl tonic::server::UnaryService<CheckRequest> for HealthServer {
    type Response = CheckResponse;
    type Future = BoxFuture<Response<CheckResponse>, Status>;

    fn call(&mut self, request: tonic::Request<CheckRequest>) -> Self::Future {
        let health = self.clone();
        Box::pin(async move { health.answer(&request.into_inner().service).await })
    }
}

impl Service<http::Request<Body>> for HealthServer {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let health = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<CheckResponse, CheckRequest>::default();
            Ok(tonic::server::Grpc::new(codec).unary(health, request).await)
        })
    }
}

/// Serves until the test's runtime ends; returns the port.
pub(super) async fn health(health: HealthServer) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    port
}
