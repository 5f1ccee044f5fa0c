//! A small HTTP client for servers in pods: probes and hooks. One request, one connection, HTTP/1.1
//! as Go speaks it (`http1`), or HTTP/2 where it is offered over TLS and chosen.
//!
//! No keep-alive, no proxy, no compression, TLS without verification (a pod's certificate is
//! self-signed as a rule, and the kubelet does not verify it either). The body is read up to
//! `body_bytes_max` and the rest dropped, the head up to `HEAD_BYTES_MAX` and `HEADERS_MAX` lines.
//! Redirects to the same host are followed, up to `REQUESTS_MAX` requests in all; one to another
//! host is returned as it is. No time limit here: callers have one, and see by a `Watch` how far a
//! request came within it.
// k8s: pkg/probe/http/http.go, pkg/kubelet/lifecycle/handlers.go

mod http1;
mod http2;
mod request;
mod target;
mod tls;
pub mod words;

use std::cell::Cell;
use std::time::Instant;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderName, HeaderValue, LOCATION, REFERER};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio_rustls::rustls;

use self::http1::BrokenResponse;
use self::request::Redirect;
pub use self::request::{Get, authority};

/// Requests made before giving up on redirects.
// k8s: pkg/probe/http/http.go RedirectChecker
const REQUESTS_MAX: usize = 10;
/// Longest head of an answer, and longest read of a body at once, in bytes; upstream takes 10 MiB.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most headers of an answer.
const HEADERS_MAX: usize = 256;
/// Statuses with a `Location` that is followed.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
    /// Status text, for messages.
    pub reason: &'static str,
    /// Why the body ended early; empty when it did not.
    pub body_error: String,
}

/// How far a request has come, for a caller that gives it up.
#[derive(Debug, Default)]
pub struct RequestProgress {
    /// When the last connection stood.
    pub connected: Cell<Option<Instant>>,
    /// When the last answer's status and headers were there.
    pub answered: Cell<Option<Instant>>,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is no URL.
    #[error("bad URL {url:?}")]
    Url {
        /// The URL.
        url: String,
    },
    /// No connection.
    #[error("dial tcp {address}")]
    Connect {
        /// The peer's address.
        address: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// No TLS session.
    #[error("TLS handshake with {address}")]
    Tls {
        /// The peer's address.
        address: String,
        /// The peer answered in plain HTTP.
        plain: bool,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke or its content is not HTTP.
    #[error("Get {url:?}")]
    Http1 {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: BrokenResponse,
    },
    /// The same with HTTP/2.
    #[error("Get {url:?}")]
    Http2 {
        /// The URL.
        url: String,
        /// Cause.
        #[source]
        source: hyper::Error,
    },
    /// A redirect that leads nowhere.
    #[error("{0}")]
    Redirect(String),
    /// Too many redirects.
    #[error("stopped after {REQUESTS_MAX} redirects")]
    Redirects,
}

impl Error {
    /// True when the peer answered a TLS handshake in plain HTTP.
    pub fn is_plain_text_answer(&self) -> bool {
        matches!(self, Self::Tls { plain: true, .. })
    }
}

/// Sends the request, following redirects to the same host.
pub async fn get(request: &Get) -> Result<HttpAnswer, Error> {
    get_watched(request, &RequestProgress::default()).await
}

/// As `get`; `watch` shows how far it has come.
pub async fn get_watched(request: &Get, watch: &RequestProgress) -> Result<HttpAnswer, Error> {
    let mut request = request.clone();
    for _ in 0..REQUESTS_MAX {
        let (answer, location) = once(&request, watch).await?;
        let location = location.filter(|to| REDIRECTS.contains(&answer.status) && !to.is_empty());
        let Some(location) = location else { return Ok(answer) };
        request = match request::redirect(&request, &location) {
            Redirect::Within(target) => *target,
            Redirect::Elsewhere => return Ok(answer),
            Redirect::Broken(error) => return Err(Error::Redirect(error)),
        };
    }
    Err(Error::Redirects)
}

async fn once(
    request: &Get,
    watch: &RequestProgress,
) -> Result<(HttpAnswer, Option<String>), Error> {
    let address = authority(&request.host, request.port);
    let url = request.url();
    let broken = |source| Error::Http1 { url: url.clone(), source };
    let wire = http1::request(request, &address).map_err(broken)?;
    let connected = request.resolver.connect(&request.host, request.port).await;
    let socket = connected.map_err(|source| Error::Connect { address: address.clone(), source })?;
    watch.connected.set(Some(Instant::now()));
    watch.answered.set(None);
    let _ = socket.set_nodelay(true);
    let limit = request.body_bytes_max;
    if request.tls {
        let name = rustls::pki_types::ServerName::try_from(request.host.clone())
            .map_err(|_| Error::Url { url: url.clone() })?;
        let opened = tls::open(name, socket, request.http2).await;
        let stream = opened.map_err(|tls::Refused { error, plain }| {
            let address = address.clone();
            Error::Tls { address, plain, source: error }
        })?;
        if tls::is_http2(&stream) {
            let uri: Option<Uri> = url.parse().ok();
            let wire = uri.and_then(|uri| build(request, &uri, &address));
            let wire = wire.and_then(http2::request).ok_or(Error::Url { url: url.clone() })?;
            let exchanged = http2::exchange(TokioIo::new(stream), wire, limit, watch).await;
            return exchanged.map_err(|source| Error::Http2 { url, source });
        }
        return http1::exchange(stream, &wire, limit, watch).await.map_err(broken);
    }
    http1::exchange(socket, &wire, limit, watch).await.map_err(broken)
}

/// The request for HTTP/2.
fn build(request: &Get, uri: &Uri, address: &str) -> Option<Request<Empty<Bytes>>> {
    let target = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut wire = Request::builder().method(Method::GET).uri(target);
    let headers = wire.headers_mut()?;
    for (name, value) in &request.headers {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
        else {
            continue;
        };
        headers.append(name, value);
    }
    if let Some(referer) = request.referer.as_deref().filter(|_| !headers.contains_key(REFERER)) {
        headers.insert(REFERER, HeaderValue::try_from(referer).ok()?);
    }
    if !headers.contains_key(HOST) {
        headers.insert(HOST, HeaderValue::try_from(address).ok()?);
    }
    wire.body(Empty::new()).ok()
}

/// Reads the answer while the connection is carried on.
async fn talk(
    asked: impl Future<Output = hyper::Result<Response<Incoming>>>,
    connection: impl Future<Output = hyper::Result<()>>,
    limit: usize,
    watch: &RequestProgress,
) -> Result<(HttpAnswer, Option<String>), hyper::Error> {
    let talk = async {
        let answer = asked.await?;
        watch.answered.set(Some(Instant::now()));
        let status = answer.status();
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|l| l.to_str().ok()).map(str::to_owned);
        let (body, body_error) = read_body(answer.into_body(), limit).await;
        let reason = status.canonical_reason().unwrap_or_default();
        Ok((HttpAnswer { status: status.as_u16(), body, reason, body_error }, location))
    };
    tokio::pin!(talk);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut talk => answer,
        ended = &mut connection => match ended {
            // The peer may close right after its answer.
            Ok(()) => talk.await,
            Err(error) => Err(error),
        },
    }
}

/// The first bytes of a body, and why it ended early if it did.
async fn read_body(body: Incoming, limit: usize) -> (Vec<u8>, String) {
    let mut bytes = Vec::new();
    let mut frames = Limited::new(body, limit.saturating_add(64 * 1024));
    let mut error = String::new();
    while bytes.len() < limit {
        match frames.frame().await {
            None => break,
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[], |d| &d[..])),
            Some(Err(cause)) => {
                error = cause.to_string();
                break;
            }
        }
    }
    bytes.truncate(limit);
    (bytes, error)
}
