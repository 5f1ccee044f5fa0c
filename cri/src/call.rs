//! Every call of CRI v1 in one table: method, request, reply, deadline class, subject.
//!
//! The table makes three things: the `Method` enum, the `CriCall` or `StreamCall` trait of each
//! request, and the client's methods. A call exists here or nowhere, so tests/surface.rs can
//! compare this table with the protocol.
//!
//! A subject names the call's object for people: the id of a sandbox or container where the request
//! carries one, else `namespace/pod`, `namespace/pod/container`, or an image. It is for `explain`
//! and errors, never for decisions.

use crate::{Client, Error, Replies, deadlines::DeadlineClass, v1::*};

/// A request with one reply.
pub trait CriCall: prost::Message + Default + 'static {
    /// The call of this request.
    const METHOD: Method;
    /// The runtime's reply.
    type Reply: prost::Message + Default + 'static;
    /// The class of the call.
    fn class(&self) -> DeadlineClass;
    /// The subject of the call.
    fn subject(&self) -> String;
}

/// A request with a stream of replies.
pub trait StreamCall: prost::Message + Default + 'static {
    /// The call of this request.
    const METHOD: Method;
    /// One item of the runtime's answer.
    type Reply: prost::Message + Default + 'static;
}

macro_rules! calls {
    (
        unary { $($name:ident $service:ident $method:ident($request:ident) -> $reply:ident
            = $class:expr, |$r:ident| $subject:expr;)* }
        stream { $($s_name:ident $s_service:ident $s_method:ident($s_request:ident)
            -> $s_reply:ident;)* }
    ) => {
        /// A call of CRI v1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", stringify!($method), "`")] $method,)*
            $(#[doc = concat!("`", stringify!($s_method), "`")] $s_method,)*
        }

        impl Method {
            /// Every call there is.
            pub const ALL: &[Method] = &[$(Method::$method,)* $(Method::$s_method,)*];

            /// The protocol's name of the call.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Method::$method => stringify!($method),)*
                    $(Method::$s_method => stringify!($s_method),)*
                }
            }

            /// True if the answer is a stream, held for as long as the caller likes.
            pub const fn is_stream(self) -> bool {
                matches!(self, $(Method::$s_method)|*)
            }

            /// The gRPC path of the call.
            pub const fn path(self) -> &'static str {
                match self {
                    $(Method::$method => concat!(
                        "/runtime.v1.", stringify!($service), "/", stringify!($method)
                    ),)*
                    $(Method::$s_method => concat!(
                        "/runtime.v1.", stringify!($s_service), "/", stringify!($s_method)
                    ),)*
                }
            }
        }

        $(impl CriCall for $request {
            const METHOD: Method = Method::$method;
            type Reply = $reply;
            fn class(&self) -> DeadlineClass {
                let $r = self;
                let _ = $r;
                $class
            }
            fn subject(&self) -> String {
                let $r = self;
                let _ = $r;
                $subject
            }
        })*

        $(impl StreamCall for $s_request {
            const METHOD: Method = Method::$s_method;
            type Reply = $s_reply;
        })*

        impl Client {
            $(#[doc = concat!("`", stringify!($method), "` of CRI v1.")]
            pub async fn $name(&self, request: $request) -> Result<$reply, Error> {
                self.call(request).await
            })*
            $(#[doc = concat!("`", stringify!($s_method), "` of CRI v1; items as they come.")]
            pub fn $s_name(&self, request: $s_request) -> Result<Replies<$s_reply>, Error> {
                self.stream(request)
            })*
        }
    };
}

calls! {
    unary {
        version RuntimeService Version(VersionRequest) -> VersionResponse
            = DeadlineClass::Read, |r| String::new();
        status RuntimeService Status(StatusRequest) -> StatusResponse
            = DeadlineClass::Read, |r| String::new();
        runtime_config RuntimeService RuntimeConfig(RuntimeConfigRequest) -> RuntimeConfigResponse
            = DeadlineClass::Read, |r| String::new();
        update_runtime_config RuntimeService
            UpdateRuntimeConfig(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse
            = DeadlineClass::Change, |r| String::new();

        run_pod_sandbox RuntimeService RunPodSandbox(RunPodSandboxRequest) -> RunPodSandboxResponse
            = DeadlineClass::Sandbox, |r| pod(r.config.as_ref());
        stop_pod_sandbox RuntimeService
            StopPodSandbox(StopPodSandboxRequest) -> StopPodSandboxResponse
            = DeadlineClass::Change, |r| r.pod_sandbox_id.clone();
        remove_pod_sandbox RuntimeService
            RemovePodSandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse
            = DeadlineClass::Change, |r| r.pod_sandbox_id.clone();
        pod_sandbox_status RuntimeService
            PodSandboxStatus(PodSandboxStatusRequest) -> PodSandboxStatusResponse
            = DeadlineClass::Read, |r| r.pod_sandbox_id.clone();
        list_pod_sandbox RuntimeService
            ListPodSandbox(ListPodSandboxRequest) -> ListPodSandboxResponse
            = DeadlineClass::Read, |r| r.filter.as_ref().map(|f| f.id.clone()).unwrap_or_default();
        update_pod_sandbox_resources RuntimeService
            UpdatePodSandboxResources(UpdatePodSandboxResourcesRequest)
            -> UpdatePodSandboxResourcesResponse
            = DeadlineClass::Change, |r| r.pod_sandbox_id.clone();

        create_container RuntimeService
            CreateContainer(CreateContainerRequest) -> CreateContainerResponse
            = DeadlineClass::Change, |r| container(r);
        start_container RuntimeService
            StartContainer(StartContainerRequest) -> StartContainerResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        stop_container RuntimeService StopContainer(StopContainerRequest) -> StopContainerResponse
            = DeadlineClass::Stop(r.timeout), |r| r.container_id.clone();
        remove_container RuntimeService
            RemoveContainer(RemoveContainerRequest) -> RemoveContainerResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        list_containers RuntimeService
            ListContainers(ListContainersRequest) -> ListContainersResponse
            = DeadlineClass::Read, |r| r.filter.as_ref().map(|f| f.id.clone()).unwrap_or_default();
        container_status RuntimeService
            ContainerStatus(ContainerStatusRequest) -> ContainerStatusResponse
            = DeadlineClass::Read, |r| r.container_id.clone();
        update_container_resources RuntimeService
            UpdateContainerResources(UpdateContainerResourcesRequest)
            -> UpdateContainerResourcesResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        reopen_container_log RuntimeService
            ReopenContainerLog(ReopenContainerLogRequest) -> ReopenContainerLogResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        checkpoint_container RuntimeService
            CheckpointContainer(CheckpointContainerRequest) -> CheckpointContainerResponse
            = DeadlineClass::Checkpoint(r.timeout), |r| r.container_id.clone();

        exec_sync RuntimeService ExecSync(ExecSyncRequest) -> ExecSyncResponse
            = DeadlineClass::Exec(r.timeout), |r| r.container_id.clone();
        exec RuntimeService Exec(ExecRequest) -> ExecResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        attach RuntimeService Attach(AttachRequest) -> AttachResponse
            = DeadlineClass::Change, |r| r.container_id.clone();
        port_forward RuntimeService PortForward(PortForwardRequest) -> PortForwardResponse
            = DeadlineClass::Change, |r| r.pod_sandbox_id.clone();

        container_stats RuntimeService
            ContainerStats(ContainerStatsRequest) -> ContainerStatsResponse
            = DeadlineClass::Stats, |r| r.container_id.clone();
        list_container_stats RuntimeService
            ListContainerStats(ListContainerStatsRequest) -> ListContainerStatsResponse
            = DeadlineClass::Stats, |r| r.filter.as_ref().map(|f| f.id.clone()).unwrap_or_default();
        pod_sandbox_stats RuntimeService
            PodSandboxStats(PodSandboxStatsRequest) -> PodSandboxStatsResponse
            = DeadlineClass::Stats, |r| r.pod_sandbox_id.clone();
        list_pod_sandbox_stats RuntimeService
            ListPodSandboxStats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse
            = DeadlineClass::Stats, |r| r.filter.as_ref().map(|f| f.id.clone()).unwrap_or_default();
        list_metric_descriptors RuntimeService
            ListMetricDescriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse
            = DeadlineClass::Stats, |r| String::new();
        list_pod_sandbox_metrics RuntimeService
            ListPodSandboxMetrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse
            = DeadlineClass::Stats, |r| String::new();

        list_images ImageService ListImages(ListImagesRequest) -> ListImagesResponse
            = DeadlineClass::Read, |r| r.filter.as_ref().map(|f| image(f.image.as_ref()))
                .unwrap_or_default();
        image_status ImageService ImageStatus(ImageStatusRequest) -> ImageStatusResponse
            = DeadlineClass::Read, |r| image(r.image.as_ref());
        pull_image ImageService PullImage(PullImageRequest) -> PullImageResponse
            = DeadlineClass::Pull, |r| image(r.image.as_ref());
        remove_image ImageService RemoveImage(RemoveImageRequest) -> RemoveImageResponse
            = DeadlineClass::Change, |r| image(r.image.as_ref());
        image_fs_info ImageService ImageFsInfo(ImageFsInfoRequest) -> ImageFsInfoResponse
            = DeadlineClass::Stats, |r| String::new();
    }
    stream {
        get_container_events RuntimeService
            GetContainerEvents(GetEventsRequest) -> ContainerEventResponse;
        stream_pod_sandboxes RuntimeService
            StreamPodSandboxes(StreamPodSandboxesRequest) -> StreamPodSandboxesResponse;
        stream_containers RuntimeService
            StreamContainers(StreamContainersRequest) -> StreamContainersResponse;
        stream_container_stats RuntimeService
            StreamContainerStats(StreamContainerStatsRequest) -> StreamContainerStatsResponse;
        stream_pod_sandbox_stats RuntimeService
            StreamPodSandboxStats(StreamPodSandboxStatsRequest) -> StreamPodSandboxStatsResponse;
        stream_pod_sandbox_metrics RuntimeService
            StreamPodSandboxMetrics(StreamPodSandboxMetricsRequest)
            -> StreamPodSandboxMetricsResponse;
        stream_images ImageService StreamImages(StreamImagesRequest) -> StreamImagesResponse;
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn pod(config: Option<&PodSandboxConfig>) -> String {
    config
        .and_then(|config| config.metadata.as_ref())
        .map(|metadata| format!("{}/{}", metadata.namespace, metadata.name))
        .unwrap_or_default()
}

fn container(request: &CreateContainerRequest) -> String {
    let pod = pod(request.sandbox_config.as_ref());
    match request.config.as_ref().and_then(|config| config.metadata.as_ref()) {
        Some(metadata) => format!("{pod}/{}", metadata.name),
        None => pod,
    }
}

fn image(spec: Option<&ImageSpec>) -> String {
    spec.map(|spec| spec.image.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_name_the_pod_the_container_or_the_image() {
        let sandbox = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: "web".into(),
                namespace: "shop".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let run =
            RunPodSandboxRequest { config: Some(sandbox.clone()), runtime_handler: String::new() };
        assert_eq!(run.subject(), "shop/web");
        let create = CreateContainerRequest {
            pod_sandbox_id: "s1".into(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
                ..Default::default()
            }),
            sandbox_config: Some(sandbox),
        };
        assert_eq!(create.subject(), "shop/web/main");
        let stop = StopContainerRequest { container_id: "c1".into(), timeout: 30 };
        assert_eq!((stop.subject(), stop.class()), ("c1".into(), DeadlineClass::Stop(30)));
        assert_eq!(PullImageRequest::default().subject(), "");
    }

    #[test]
    fn paths_name_the_service_and_the_method() {
        assert_eq!(Method::RunPodSandbox.path(), "/runtime.v1.RuntimeService/RunPodSandbox");
        assert_eq!(Method::StreamImages.path(), "/runtime.v1.ImageService/StreamImages");
        assert!(Method::ALL.len() <= 64, "one bit for each call is kept per connection");
    }
}
