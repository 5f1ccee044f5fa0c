//! gRPC face of the fake runtime: records each call, applies its fault, changes the state.
//!
//! Every unary call goes through `FakeCriServer::serve`: record, refuse calls that this flavor
//! lacks, the fault's part before the effect, the effect itself (a pure function of state.rs or
//! views.rs under the lock), the fault's part after it. Calls that wait for a container (stop,
//! exec) wait outside the lock. Owner: the server thread of `FakeRuntime`.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::{
    shared::FakeShared,
    state::{Nanos, State},
};
use crate::{CriCall, Method, v1::*};

/// Items in one message of a list-streaming call: few, so that tests see several messages.
const CHUNK_ITEMS: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct FakeCriServer(pub(super) Arc<FakeShared>);

type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl FakeCriServer {
    async fn serve<R: CriCall>(
        &self,
        request: R,
        effect: impl FnOnce(&mut State, R, Nanos) -> Result<R::Reply, Status> + Send,
    ) -> Result<Response<R::Reply>, Status> {
        let instant = |shared: Arc<FakeShared>, request| async move {
            shared.apply(|state, now| effect(state, request, now))
        };
        self.serve_slow(request, instant).await
    }

    /// Like `serve`, for an effect that takes time.
    async fn serve_slow<R: CriCall, F>(
        &self,
        request: R,
        effect: impl FnOnce(Arc<FakeShared>, R) -> F + Send,
    ) -> Result<Response<R::Reply>, Status>
    where
        F: Future<Output = Result<R::Reply, Status>> + Send,
    {
        let (mut record, fault) =
            self.0.enter(R::METHOD, request.subject(), request.encode_to_vec());
        let done = async {
            self.check(R::METHOD)?;
            if let Some(fault) = &fault {
                fault.before().await?;
            }
            let reply = effect(self.0.clone(), request).await?;
            if let Some(fault) = &fault {
                fault.after().await?;
            }
            Ok(reply)
        };
        let result: Result<R::Reply, Status> = done.await;
        record.ended(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        result.map(Response::new)
    }

    /// A list in pieces.
    async fn serve_list<R: prost::Message, I: Clone + Send + 'static, T: Send + 'static>(
        &self,
        method: Method,
        request: R,
        list: impl FnOnce(&mut State, R, Nanos) -> Vec<I> + Send,
        wrap: impl Fn(Vec<I>) -> T + Send + 'static,
    ) -> Result<Response<Items<T>>, Status> {
        let (mut record, fault) = self.0.enter(method, String::new(), request.encode_to_vec());
        self.check(method)?;
        if let Some(fault) = &fault {
            fault.before().await?;
        }
        let items = self.0.apply(|state, now| list(state, request, now));
        record.ended(Code::Ok);
        let chunks: Vec<_> = items.chunks(CHUNK_ITEMS).map(|c| Ok(wrap(c.to_vec()))).collect();
        Ok(Response::new(stream::iter(chunks).boxed()))
    }

    fn check(&self, method: Method) -> Result<(), Status> {
        match self.0.flavor.lacks(method) {
            true => Err(Status::unimplemented(format!("unknown method {method}"))),
            false => Ok(()),
        }
    }
}

async fn stop(
    shared: Arc<FakeShared>,
    request: StopContainerRequest,
) -> Result<StopContainerResponse, Status> {
    let id = &request.container_id;
    shared.apply(|state, now| state.signal_container(id, request.timeout, now));
    shared.until(|state| state.check_running(id).is_err()).await;
    Ok(StopContainerResponse {})
}

async fn exec(
    shared: Arc<FakeShared>,
    request: ExecSyncRequest,
) -> Result<ExecSyncResponse, Status> {
    let answer = shared.apply(|state, _| state.exec(&request.container_id, &request.cmd))?;
    if let Some(message) = answer.error {
        return Err(Status::unknown(message));
    }
    let limit = u64::try_from(request.timeout).ok().filter(|seconds| *seconds > 0);
    let limit = limit.map(Duration::from_secs);
    if let Some(limit) = limit.filter(|limit| *limit < answer.takes) {
        tokio::time::sleep(limit).await;
        let text = format!("failed to exec in container: timeout {limit:?} exceeded");
        return Err(Status::deadline_exceeded(text));
    }
    tokio::time::sleep(answer.takes).await;
    let (stdout, stderr, exit_code) = (answer.stdout, answer.stderr, answer.exit_code);
    Ok(ExecSyncResponse { stdout, stderr, exit_code })
}

fn image(spec: Option<ImageSpec>) -> String {
    spec.unwrap_or_default().image
}

fn url(state: &State, path: &str) -> String {
    format!("http://127.0.0.1:{}/{path}/token", state.streaming_port)
}

/// One arm per unary call; the attribute has to see the finished functions.
macro_rules! services {
    (
        runtime { $($name:ident($request:ident) -> $reply:ident = $effect:expr;)* }
        image { $($i_name:ident($i_request:ident) -> $i_reply:ident = $i_effect:expr;)* }
    ) => {
        #[tonic::async_trait]
        impl runtime_service_server::RuntimeService for FakeCriServer {
            $(async fn $name(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$reply>, Status> {
                self.serve(request.into_inner(), $effect).await
            })*

            async fn version(
                &self,
                request: Request<VersionRequest>,
            ) -> Result<Response<VersionResponse>, Status> {
                let (name, version) = self.0.flavor.version();
                self.serve(request.into_inner(), |_, _, _| Ok(VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: name.into(),
                    runtime_version: version.into(),
                    runtime_api_version: "v1".into(),
                })).await
            }

            async fn pod_sandbox_status(
                &self,
                request: Request<PodSandboxStatusRequest>,
            ) -> Result<Response<PodSandboxStatusResponse>, Status> {
                let full = self.0.flavor.sends_containers_with_sandbox();
                self.serve(request.into_inner(), |state, request, now| {
                    state.pod_sandbox_status(&request, now, full)
                }).await
            }

            async fn stop_container(
                &self,
                request: Request<StopContainerRequest>,
            ) -> Result<Response<StopContainerResponse>, Status> {
                self.serve_slow(request.into_inner(), stop).await
            }

            async fn exec_sync(
                &self,
                request: Request<ExecSyncRequest>,
            ) -> Result<Response<ExecSyncResponse>, Status> {
                self.serve_slow(request.into_inner(), exec).await
            }

            type GetContainerEventsStream = Items<ContainerEventResponse>;
            async fn get_container_events(
                &self,
                request: Request<GetEventsRequest>,
            ) -> Result<Response<Items<ContainerEventResponse>>, Status> {
                let method = Method::GetContainerEvents;
                let bytes = prost::Message::encode_to_vec(request.get_ref());
                let (mut record, fault) = self.0.enter(method, String::new(), bytes);
                self.check(method)?;
                if let Some(fault) = &fault {
                    fault.before().await?;
                }
                record.ended(Code::Ok);
                Ok(Response::new(UnboundedReceiverStream::new(self.0.subscribe()).boxed()))
            }

            type StreamPodSandboxesStream = Items<StreamPodSandboxesResponse>;
            async fn stream_pod_sandboxes(
                &self,
                request: Request<StreamPodSandboxesRequest>,
            ) -> Result<Response<Items<StreamPodSandboxesResponse>>, Status> {
                self.serve_list(
                    Method::StreamPodSandboxes,
                    request.into_inner(),
                    |state, r, _| state.list_pod_sandbox(r.filter.as_ref()),
                    |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes },
                ).await
            }

            type StreamContainersStream = Items<StreamContainersResponse>;
            async fn stream_containers(
                &self,
                request: Request<StreamContainersRequest>,
            ) -> Result<Response<Items<StreamContainersResponse>>, Status> {
                self.serve_list(
                    Method::StreamContainers,
                    request.into_inner(),
                    |state, r, _| state.list_containers(r.filter.as_ref()),
                    |containers| StreamContainersResponse { containers },
                ).await
            }

            type StreamContainerStatsStream = Items<StreamContainerStatsResponse>;
            async fn stream_container_stats(
                &self,
                request: Request<StreamContainerStatsRequest>,
            ) -> Result<Response<Items<StreamContainerStatsResponse>>, Status> {
                self.serve_list(
                    Method::StreamContainerStats,
                    request.into_inner(),
                    |state, r, now| state.container_stats(&r.filter.unwrap_or_default(), now),
                    |container_stats| StreamContainerStatsResponse { container_stats },
                ).await
            }

            type StreamPodSandboxStatsStream = Items<StreamPodSandboxStatsResponse>;
            async fn stream_pod_sandbox_stats(
                &self,
                request: Request<StreamPodSandboxStatsRequest>,
            ) -> Result<Response<Items<StreamPodSandboxStatsResponse>>, Status> {
                self.serve_list(
                    Method::StreamPodSandboxStats,
                    request.into_inner(),
                    |state, r, now| state.pod_sandbox_stats(&r.filter.unwrap_or_default(), now),
                    |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats },
                ).await
            }

            type StreamPodSandboxMetricsStream = Items<StreamPodSandboxMetricsResponse>;
            async fn stream_pod_sandbox_metrics(
                &self,
                request: Request<StreamPodSandboxMetricsRequest>,
            ) -> Result<Response<Items<StreamPodSandboxMetricsResponse>>, Status> {
                self.serve_list(
                    Method::StreamPodSandboxMetrics,
                    request.into_inner(),
                    |_, _, _| Vec::new(),
                    |pod_sandbox_metrics| StreamPodSandboxMetricsResponse { pod_sandbox_metrics },
                ).await
            }
        }

        #[tonic::async_trait]
        impl image_service_server::ImageService for FakeCriServer {
            $(async fn $i_name(
                &self,
                request: Request<$i_request>,
            ) -> Result<Response<$i_reply>, Status> {
                self.serve(request.into_inner(), $i_effect).await
            })*

            type StreamImagesStream = Items<StreamImagesResponse>;
            async fn stream_images(
                &self,
                request: Request<StreamImagesRequest>,
            ) -> Result<Response<Items<StreamImagesResponse>>, Status> {
                self.serve_list(
                    Method::StreamImages,
                    request.into_inner(),
                    |state, r, _| state.images.list(&image(r.filter.unwrap_or_default().image)),
                    |images| StreamImagesResponse { images },
                ).await
            }
        }
    };
}

services! {
    runtime {
        status(StatusRequest) -> StatusResponse = |state, _, _| Ok(state.status());
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse = |_, _, _| {
            let cgroup_driver = CgroupDriver::Cgroupfs.into();
            Ok(RuntimeConfigResponse { linux: Some(LinuxRuntimeConfiguration { cgroup_driver }) })
        };
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse
            = |state, r, _| {
                let network = r.runtime_config.unwrap_or_default().network_config;
                state.pod_cidr = network.unwrap_or_default().pod_cidr;
                Ok(UpdateRuntimeConfigResponse {})
            };
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse
            = |state, r, now| state.run_pod_sandbox(r, now);
        stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse = |state, r, now| {
            state.stop_pod_sandbox(&r.pod_sandbox_id, now);
            Ok(StopPodSandboxResponse {})
        };
        remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse
            = |state, r, now| {
                state.remove_pod_sandbox(&r.pod_sandbox_id, now);
                Ok(RemovePodSandboxResponse {})
            };
        list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse = |state, r, _| {
            Ok(ListPodSandboxResponse { items: state.list_pod_sandbox(r.filter.as_ref()) })
        };
        update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest)
            -> UpdatePodSandboxResourcesResponse = |_, _, _| {
                Ok(UpdatePodSandboxResourcesResponse {})
            };
        create_container(CreateContainerRequest) -> CreateContainerResponse
            = |state, r, now| state.create_container(r, now);
        start_container(StartContainerRequest) -> StartContainerResponse = |state, r, now| {
            state.start_container(&r.container_id, now).map(|()| StartContainerResponse {})
        };
        remove_container(RemoveContainerRequest) -> RemoveContainerResponse = |state, r, now| {
            state.remove_container(&r.container_id, now);
            Ok(RemoveContainerResponse {})
        };
        list_containers(ListContainersRequest) -> ListContainersResponse = |state, r, _| {
            Ok(ListContainersResponse { containers: state.list_containers(r.filter.as_ref()) })
        };
        container_status(ContainerStatusRequest) -> ContainerStatusResponse
            = |state, r, _| state.container_status(&r);
        update_container_resources(UpdateContainerResourcesRequest)
            -> UpdateContainerResourcesResponse = |state, r, _| {
                state.update_container_resources(r).map(|()| UpdateContainerResourcesResponse {})
            };
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse
            = |state, r, _| {
                state.check_running(&r.container_id).map(|()| ReopenContainerLogResponse {})
            };
        checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse
            = |state, r, _| {
                state.check_running(&r.container_id).map(|()| CheckpointContainerResponse {})
            };
        exec(ExecRequest) -> ExecResponse = |state, r, _| {
            state.check_running(&r.container_id).map(|()| ExecResponse { url: url(state, "exec") })
        };
        attach(AttachRequest) -> AttachResponse = |state, r, _| {
            state.check_running(&r.container_id).map(|()| AttachResponse { url: url(state, "attach") })
        };
        port_forward(PortForwardRequest) -> PortForwardResponse
            = |state, _, _| Ok(PortForwardResponse { url: url(state, "portforward") });
        container_stats(ContainerStatsRequest) -> ContainerStatsResponse = |state, r, now| {
            let filter = ContainerStatsFilter { id: r.container_id, ..Default::default() };
            let stats = state.container_stats(&filter, now).into_iter().next();
            Ok(ContainerStatsResponse { stats })
        };
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse
            = |state, r, now| {
                let stats = state.container_stats(&r.filter.unwrap_or_default(), now);
                Ok(ListContainerStatsResponse { stats })
            };
        pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse = |state, r, now| {
            let filter = PodSandboxStatsFilter { id: r.pod_sandbox_id, ..Default::default() };
            let stats = state.pod_sandbox_stats(&filter, now).into_iter().next();
            Ok(PodSandboxStatsResponse { stats })
        };
        list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse
            = |state, r, now| {
                let stats = state.pod_sandbox_stats(&r.filter.unwrap_or_default(), now);
                Ok(ListPodSandboxStatsResponse { stats })
            };
        list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse
            = |_, _, _| Ok(ListMetricDescriptorsResponse::default());
        list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse
            = |_, _, _| Ok(ListPodSandboxMetricsResponse::default());
    }
    image {
        list_images(ListImagesRequest) -> ListImagesResponse = |state, r, _| {
            let wanted = image(r.filter.unwrap_or_default().image);
            Ok(ListImagesResponse { images: state.images.list(&wanted) })
        };
        image_status(ImageStatusRequest) -> ImageStatusResponse = |state, r, _| {
            let found = state.images.find(&image(r.image)).cloned();
            Ok(ImageStatusResponse { image: found, info: Default::default() })
        };
        pull_image(PullImageRequest) -> PullImageResponse = |state, r, _| {
            let image_ref = state.images.pull(&image(r.image), r.auth.as_ref())?;
            Ok(PullImageResponse { image_ref })
        };
        remove_image(RemoveImageRequest) -> RemoveImageResponse = |state, r, _| {
            state.images.remove(&image(r.image));
            Ok(RemoveImageResponse {})
        };
        image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse
            = |state, _, now| Ok(state.image_fs_info(now));
    }
}
