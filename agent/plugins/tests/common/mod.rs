//! A plugin under a test's control: a registration socket and a driver's Node service on one path.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pintle_plugins_v1::csi::node_server::{Node, NodeServer};
use pintle_plugins_v1::csi::node_service_capability::rpc::Type as Rpc;
use pintle_plugins_v1::csi::node_service_capability::{Rpc as RpcMessage, Type};
use pintle_plugins_v1::csi::{self, *};
use pintle_plugins_v1::registration::registration_server::{Registration, RegistrationServer};
use pintle_plugins_v1::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// Longer than anything here takes, so that a failure is one and no hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what must come.
pub(crate) async fn patiently<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it comes in time")
}

/// How a plugin answers.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) info: PluginInfo,
    pub(crate) node: NodeGetInfoResponse,
    /// The method of that name never answers.
    pub(crate) hangs: Option<&'static str>,
    /// The method of that name fails.
    pub(crate) fails: Option<(&'static str, Status)>,
}

impl Script {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            info: PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: name.to_owned(),
                endpoint: String::new(),
                supported_versions: vec!["1.0.0".to_owned()],
            },
            node: NodeGetInfoResponse { node_id: "n1".to_owned(), ..Default::default() },
            hangs: None,
            fails: None,
        }
    }
}

/// What a plugin has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenCalls {
    pub(crate) calls: Vec<&'static str>,
    pub(crate) told: Vec<RegistrationStatus>,
}

/// A plugin that serves until it is dropped.
#[derive(Debug)]
pub(crate) struct ServedPlugin {
    path: PathBuf,
    script: Arc<Mutex<Script>>,
    seen: watch::Sender<SeenCalls>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl ServedPlugin {
    pub(crate) fn start(path: &Path, script: Script) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let script = Arc::new(Mutex::new(script));
        let seen = watch::Sender::new(SeenCalls::default());
        let face = Face { script: Arc::clone(&script), seen: seen.clone() };
        // A runtime of its own: with it end its connections, and calls in the middle, as of a kill.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("fake-plugin".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).expect("a socket");
                let serve = tonic::transport::Server::builder()
                    .add_service(RegistrationServer::new(face.clone()))
                    .add_service(NodeServer::new(face).max_encoding_message_size(usize::MAX))
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! {
                    _ = stopped => {} // sent or dropped: both mean stop
                    served = serve => served.expect("the plugin serves"),
                }
            });
        })?;
        Ok(Self { path: path.to_owned(), script, seen, thread: Some((stop, thread)) })
    }

    /// Changes how it answers.
    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until it has seen something.
    pub(crate) async fn until(&self, has: impl FnMut(&SeenCalls) -> bool) -> SeenCalls {
        let mut seen = self.seen.subscribe();
        patiently(seen.wait_for(has)).await.expect("the plugin is here").clone()
    }

    /// How often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.seen.borrow().calls.iter().filter(|name| **name == method).count()
    }
}

impl Drop for ServedPlugin {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        thread.join().expect("the plugin does not panic");
        let _ = std::fs::remove_file(&self.path); // the test may have done so
    }
}

#[derive(Clone, Debug)]
struct Face {
    script: Arc<Mutex<Script>>,
    seen: watch::Sender<SeenCalls>,
}

impl Face {
    async fn enter(&self, method: &'static str) -> Result<Script, Status> {
        let script = self.script.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.seen.send_modify(|seen| seen.calls.push(method));
        if script.hangs == Some(method) {
            return std::future::pending().await;
        }
        match &script.fails {
            Some((name, status)) if *name == method => Err(status.clone()),
            _ => Ok(script),
        }
    }

    async fn empty<T: Default>(&self, method: &'static str) -> Result<Response<T>, Status> {
        self.enter(method).await.map(|_| Response::new(T::default()))
    }
}

#[tonic::async_trait]
impl Registration for Face {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.enter("GetInfo").await?.info))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let answer = self.empty("NotifyRegistrationStatus").await;
        self.seen.send_modify(|seen| seen.told.push(request.into_inner()));
        answer
    }
}

macro_rules! empty {
    ($($name:ident $method:literal $request:ident $response:ident;)*) => {
        #[tonic::async_trait]
        impl Node for Face {
            $(async fn $name(
                &self,
                _: Request<csi::$request>,
            ) -> Result<Response<csi::$response>, Status> {
                self.empty($method).await
            })*

            async fn node_get_info(
                &self,
                _: Request<NodeGetInfoRequest>,
            ) -> Result<Response<NodeGetInfoResponse>, Status> {
                Ok(Response::new(self.enter("NodeGetInfo").await?.node))
            }

            async fn node_get_capabilities(
                &self,
                _: Request<NodeGetCapabilitiesRequest>,
            ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
                self.enter("NodeGetCapabilities").await?;
                let rpc = RpcMessage { r#type: Rpc::StageUnstageVolume.into() };
                let capability = NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) };
                Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: vec![capability] }))
            }
        }
    };
}

empty! {
    node_stage_volume "NodeStageVolume" NodeStageVolumeRequest NodeStageVolumeResponse;
    node_unstage_volume "NodeUnstageVolume" NodeUnstageVolumeRequest NodeUnstageVolumeResponse;
    node_publish_volume "NodePublishVolume" NodePublishVolumeRequest NodePublishVolumeResponse;
    node_unpublish_volume "NodeUnpublishVolume"
        NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse;
    node_get_volume_stats "NodeGetVolumeStats" NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse;
    node_expand_volume "NodeExpandVolume" NodeExpandVolumeRequest NodeExpandVolumeResponse;
}
