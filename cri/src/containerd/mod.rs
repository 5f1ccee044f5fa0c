//! containerd's own API, beside CRI on the same socket, for functions that CRI does not offer.
//!
//!   hints      its task events: starts, exits, OOM kills, pauses, sooner than CRI's events
//!   import     an image archive into its store, to preload images without a registry
//!   containers whether an id is known at all
//!   ingests    bytes that pulls have fetched so far, which CRI does not report
//!   task       the end of a task that CRI has forgotten
//!
//! All of it is optional: a runtime that is not containerd, or an old one, answers Unimplemented
//! and the caller goes on without. Hints are hints: nothing is ever decided from one alone.
//! Owner: the agent's event stage and image stage. One connection, made when first needed.

mod hints;
mod import;
mod task;

use std::{sync::Arc, time::Duration};

use containerd_client::services::v1::{
    GetContainerRequest, ListStatusesRequest, SubscribeRequest,
    containers_client::ContainersClient, content_client::ContentClient,
};
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};

pub use hints::{Hint, HintKind, Hints};
pub use import::ImportError;

use crate::{
    error::code_name,
    transport::{EndpointError, Link, SocketEndpoint},
};

/// The namespace in which containerd's CRI keeps its things.
pub const NAMESPACE: &str = "k8s.io";

/// A question about state answers from memory; longer means that containerd is stuck.
const READ_DEADLINE: Duration = Duration::from_secs(10);

/// A failed call of containerd's own API.
#[derive(Debug, thiserror::Error)]
#[error("containerd {operation}: {}: {message}", code_name(*code))]
pub struct ContainerdError {
    /// The requested operation.
    pub operation: &'static str,
    /// containerd's code.
    pub code: Code,
    /// containerd's words.
    pub message: String,
}

impl ContainerdError {
    /// This runtime has no such API: do without, until it is replaced.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    fn new(operation: &'static str, status: &Status) -> Self {
        Self { operation, code: status.code(), message: status.message().to_owned() }
    }
}

/// Bytes of one blob that containerd is fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// containerd's name of the transfer, which contains the blob's digest.
    pub reference: String,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Bytes in all, 0 when unknown.
    pub total_bytes: u64,
}

/// containerd behind its socket. Clones are cheap and share the connection.
#[derive(Clone, Debug)]
pub struct Containerd {
    channel: Channel,
    link: Arc<Link>,
}

impl Containerd {
    /// Connects with the first call. Must be called inside a tokio runtime.
    pub fn connect(endpoint: &str) -> Result<Self, EndpointError> {
        let link = Link::new(SocketEndpoint::parse(endpoint)?);
        Ok(Self { channel: link.channel(), link })
    }

    /// Subscribes to task events. Events before the subscription are not replayed.
    pub fn hints(&self) -> Hints {
        let request = SubscribeRequest { filters: hints::filters(NAMESPACE) };
        Hints::new(self.clone(), request)
    }

    /// The downloads of containerd at this moment. Growing bytes mean that a pull makes progress.
    pub async fn ingests(&self) -> Result<Vec<Ingest>, ContainerdError> {
        let request = self.bounded(ListStatusesRequest::default());
        let mut content = ContentClient::new(self.channel.clone());
        let statuses = self.answer("ListStatuses", content.list_statuses(request).await)?;
        let ingest = |status: containerd_client::services::v1::Status| Ingest {
            reference: status.r#ref,
            fetched_bytes: u64::try_from(status.offset).unwrap_or(0),
            total_bytes: u64::try_from(status.total).unwrap_or(0),
        };
        Ok(statuses.into_inner().statuses.into_iter().map(ingest).collect())
    }

    /// True if containerd has a record of a container or sandbox of this id, CRI's or not.
    pub async fn has_container(&self, id: &str) -> Result<bool, ContainerdError> {
        let request = self.bounded(GetContainerRequest { id: id.to_owned() });
        let mut containers = ContainersClient::new(self.channel.clone());
        match self.answer("GetContainer", containers.get(request).await) {
            Ok(_) => Ok(true),
            Err(error) if error.code == Code::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let namespace = MetadataValue::from_static(NAMESPACE);
        request.metadata_mut().insert("containerd-namespace", namespace);
        request
    }

    /// A request that is answered from memory.
    fn bounded<T>(&self, message: T) -> Request<T> {
        let mut request = self.request(message);
        request.set_timeout(READ_DEADLINE);
        request
    }

    /// Learns from an answer, also from an error, that the connection works.
    fn answer<T>(
        &self,
        operation: &'static str,
        answer: Result<T, Status>,
    ) -> Result<T, ContainerdError> {
        let error = answer.as_ref().err();
        if error.is_none_or(|status| std::error::Error::source(status).is_none()) {
            self.link.answered();
        }
        answer.map_err(|status| ContainerdError::new(operation, &status))
    }
}
