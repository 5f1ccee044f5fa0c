//! Reads, watches and creates at the API server, with bounded bodies that never get into a log.
//!
//! The client of `kube` prints what it cannot parse; a secret or a token must not end there. So
//! requests go through its connection, but answers are read here: up to `BODY_BYTES_MAX` for a
//! body or one event. Each request is made in the share of the pod that needs it, so that a pod that
//! refers to thousands of objects holds up itself. Effects; no retries, which are the callers'.

use std::marker::PhantomData;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use pintle_agent_core::types::with_causes;
use pintle_api::Share;
use pintle_api_types::jitter as pace;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest answer, or event of a watch, in bytes. The API server takes objects of up to 3 MiB.
pub(super) const BODY_BYTES_MAX: usize = 8 << 20;

/// How much longer a wait may be, in parts of itself.
const SPREAD: f64 = 0.5;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 401 or 403: as a rule for a moment only, while the API server learns of a pod.
    #[error("{0}")]
    Forbidden(String),
    /// 410: the place from which to watch is gone.
    #[error("{0}")]
    Gone(String),
    /// 400 or 422: the request is not understood.
    #[error("{0}")]
    Refused(String),
    /// Anything else: no connection, an error of the server.
    #[error("{0}")]
    Failed(String),
}

impl WireError {
    fn of(code: u16, message: String) -> Self {
        match code {
            404 => Self::NotFound(message),
            401 | 403 => Self::Forbidden(message),
            410 => Self::Gone(message),
            400 | 422 => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }
}

/// An error of the API, which is an object too.
#[derive(Clone, Deserialize)]
struct StatusWire {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u16,
}

/// Reads one object.
pub(super) async fn read<T: DeserializeOwned>(
    client: &Client,
    share: &Share,
    path: &str,
) -> Result<T, WireError> {
    let request = Request::get(path).extension(share.clone());
    parse(&send(client, request.body(Body::empty())).await?)
}

/// Creates something and returns what came of it.
pub(super) async fn create<T: DeserializeOwned>(
    client: &Client,
    share: &Share,
    path: &str,
    body: Vec<u8>,
) -> Result<T, WireError> {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.extension(share.clone());
    parse(&send(client, request.body(Body::from(body))).await?)
}

async fn send(
    client: &Client,
    request: Result<Request<Body>, hyper::http::Error>,
) -> Result<Bytes, WireError> {
    collect(answer(client, request).await?).await
}

/// The answer's head; an error of the API is one here as well.
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
    let told = serde_json::from_slice::<StatusWire>(body).map(|told| told.message);
    told.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| status.to_string())
}

async fn collect(answer: Response<Body>) -> Result<Bytes, WireError> {
    let limited = Limited::new(answer.into_body(), BODY_BYTES_MAX);
    let body = limited.collect().await.map_err(|error| WireError::Failed(error.to_string()))?;
    Ok(body.to_bytes())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// Where, but not what: serde's own text may quote a value.
fn unreadable(error: &serde_json::Error) -> WireError {
    let (line, column) = (error.line(), error.column());
    WireError::Failed(format!("the API server's answer breaks off at {line}:{column}"))
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event<T> {
    /// Added or modified.
    Applied(T),
    /// Deleted.
    Deleted(T),
    /// Nothing happened up to this version; true at the end of the initial objects.
    Bookmark(String, bool),
}

/// An event on the wire.
#[derive(Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum Line<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    Bookmark(Mark),
    Error(StatusWire),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Mark {
    metadata: MarkMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MarkMeta {
    resource_version: String,
    annotations: std::collections::BTreeMap<String, String>,
}

/// Marks the bookmark behind the initial objects.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// An open watch.
pub(super) struct Events<T> {
    body: BoxStream<'static, Result<Bytes, kube::Error>>,
    held: Vec<u8>,
    /// Where in `held` no line end was found so far.
    scanned: usize,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> Events<T> {
    /// Opens a watch.
    pub(super) async fn open(
        client: &Client,
        share: &Share,
        path: &str,
    ) -> Result<Self, WireError> {
        let request = Request::get(path).header("accept-encoding", "identity");
        let request = request.extension(share.clone());
        let answer = answer(client, request.body(Body::empty())).await?;
        let body = answer.into_body().into_data_stream().boxed();
        Ok(Self { body, held: Vec::new(), scanned: 0, of: PhantomData })
    }

    /// The next event; `None` when the API server ended the watch.
    pub(super) async fn next(&mut self) -> Option<Result<Event<T>, WireError>> {
        loop {
            if let Some(end) = self.held[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let end = self.scanned + end;
                let event = event(&self.held[..end]);
                self.held.drain(..=end);
                self.scanned = 0;
                if self.held.is_empty() {
                    // One large object must not be held for as long as the watch lasts.
                    self.held = Vec::new();
                }
                return Some(event);
            }
            self.scanned = self.held.len();
            if self.scanned > BODY_BYTES_MAX {
                let text = format!("an event has more than {BODY_BYTES_MAX} bytes");
                return Some(Err(WireError::Failed(text)));
            }
            match self.body.next().await? {
                Ok(bytes) => self.held.extend_from_slice(&bytes),
                Err(error) => return Some(Err(WireError::Failed(with_causes(&error)))),
            }
        }
    }
}

fn event<T: DeserializeOwned>(line: &[u8]) -> Result<Event<T>, WireError> {
    let line: Line<T> = serde_json::from_slice(line).map_err(|error| unreadable(&error))?;
    Ok(match line {
        Line::Added(object) | Line::Modified(object) => Event::Applied(object),
        Line::Deleted(object) => Event::Deleted(object),
        Line::Bookmark(mark) => {
            let end = mark.metadata.annotations.contains_key(INITIAL_END);
            Event::Bookmark(mark.metadata.resource_version, end)
        }
        Line::Error(status) => return Err(WireError::of(status.code, status.message)),
    })
}

/// Waits that grow from the first to the longest, spread so that many tasks do not come at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    next: std::time::Duration,
    first: std::time::Duration,
    longest: std::time::Duration,
}

impl Pace {
    /// From `first`, doubling, to `longest`.
    pub(super) const fn new(first: std::time::Duration, longest: std::time::Duration) -> Self {
        Self { next: first, first, longest }
    }

    /// It went well: the next wait is short again.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Waits, longer each time.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(pace::jitter(self.next, SPREAD)).await;
        self.next = pace::doubled(self.next, self.longest);
    }
}
