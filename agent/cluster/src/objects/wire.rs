//! Reads, creates and patches at the API server, with bounded bodies that are never logged.
//!
//! `kube::Client` logs an answer that it cannot decode, which must not happen to a secret or a
//! token. So requests use the client's connection, but answers are decoded here, up to
//! `BODY_BYTES_MAX`; watches are made by the informers. Each request is made in the share of the
//! pod that needs it, so that a pod with thousands of references delays only itself, and waits at
//! most `ANSWER_WAIT_MAX` for an answer. Effects; retries are left to the callers.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use pintle_agent_core::types::with_causes;
use pintle_api::{AnswerWithin, TenantShare};
use pintle_api_types::jitter as pace;
use pintle_api_types::request::PatchForm;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest answer, in bytes. The API server takes objects of up to 3 MiB.
pub(super) const BODY_BYTES_MAX: usize = 8 << 20;

/// The longest wait for the head of an answer. The API server times out after the same time.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);
/// Jitter of a wait, as a fraction of the wait.
const SPREAD: f64 = 0.5;

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 401 or 403: usually transient, until the API server's authorizer has observed the pod.
    #[error("{0}")]
    Forbidden(String),
    /// Anything else: no connection, an error of the server.
    #[error("{0}")]
    Failed(String),
}

impl WireError {
    fn of(code: u16, message: String) -> Self {
        match code {
            404 => Self::NotFound(message),
            401 | 403 => Self::Forbidden(message),
            _ => Self::Failed(message),
        }
    }
}

/// The `Status` object of an API error.
#[derive(Clone, Deserialize)]
struct StatusWire {
    #[serde(default)]
    message: String,
}

/// Reads one object.
pub(super) async fn read<T: DeserializeOwned>(
    client: &Client,
    share: &TenantShare,
    path: &str,
) -> Result<T, WireError> {
    send(client, share, Request::get(path), Vec::new()).await
}

/// Creates an object and returns the server's answer.
pub(super) async fn create<T: DeserializeOwned>(
    client: &Client,
    share: &TenantShare,
    path: &str,
    body: Vec<u8>,
) -> Result<T, WireError> {
    let request = Request::post(path).header("content-type", "application/json");
    send(client, share, request, body).await
}

/// Patches an object and returns the changed object.
pub(super) async fn patch<T: DeserializeOwned>(
    client: &Client,
    share: &TenantShare,
    path: &str,
    patch: &serde_json::Value,
) -> Result<T, WireError> {
    let request = Request::patch(path).header("content-type", PatchForm::Strategic.content_type());
    send(client, share, request, patch.to_string().into_bytes()).await
}

async fn send<T: DeserializeOwned>(
    client: &Client,
    share: &TenantShare,
    request: Builder,
    body: Vec<u8>,
) -> Result<T, WireError> {
    let request = request.extension(share.clone()).extension(AnswerWithin(ANSWER_WAIT_MAX));
    parse(&collect(answer(client, request.body(Body::from(body))).await?).await?)
}

/// Sends a request and returns the head of the answer; a status of failure becomes an error.
async fn answer(
    client: &Client,
    request: Result<Request<Body>, hyper::http::Error>,
) -> Result<Response<Body>, WireError> {
    let request = request.map_err(|error| WireError::Failed(error.to_string()))?;
    let answer =
        client.send(request).await.map_err(|error| WireError::Failed(with_causes(&error)))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = collect(answer).await?;
    Err(WireError::of(status.as_u16(), message(status, &body)))
}

fn message(status: StatusCode, body: &[u8]) -> String {
    let wire = serde_json::from_slice::<StatusWire>(body).map(|wire| wire.message);
    wire.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| status.to_string())
}

async fn collect(answer: Response<Body>) -> Result<Bytes, WireError> {
    let limited = Limited::new(answer.into_body(), BODY_BYTES_MAX);
    let body = limited.collect().await.map_err(|error| WireError::Failed(error.to_string()))?;
    Ok(body.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| {
        // The position, but not the text: serde's own message may quote a value.
        let (line, column) = (error.line(), error.column());
        WireError::Failed(format!("the API server's answer cannot be decoded at {line}:{column}"))
    })
}

/// Waits that grow from the first to the longest, with jitter so that tasks do not retry together.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPace {
    next: Duration,
    first: Duration,
    longest: Duration,
}

impl RetryPace {
    /// From `first`, doubling, to `longest`.
    pub(super) const fn new(first: std::time::Duration, longest: std::time::Duration) -> Self {
        Self { next: first, first, longest }
    }

    /// A request succeeded: the next wait is short again.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Waits, longer each time.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(pace::jitter(self.next, SPREAD)).await;
        self.next = pace::doubled(self.next, self.longest);
    }
}
