//! exec, attach and port-forward: an upgraded connection joined to the runtime's own.
//!
//! ```text
//!   SPDY/3.1, WebSocket v1-v4          bytes as they are     proxy.rs    ──> runtime's URL
//!   WebSocket v5.channel.k8s.io        streams translated    remote.rs   ──> SPDY/3.1 v4
//!   WebSocket SPDY/3.1+portforward     SPDY bytes unwrapped  tunnel.rs   ──> SPDY/3.1
//! ```
//! `request` is pure: the parameters of the URL; `handshake` answers it, `websocket` and `spdy` are
//! the frames of either side. Nothing of a stream passes the main thread; every direction holds one
//! buffer of `proxy::BUFFER_BYTES`, so a client that stalls delays its own stream and nothing else.
// k8s: pkg/kubelet/server/server.go getExec, getAttach, getPortForward

mod handshake;
mod proxy;
mod remote;
mod request;
mod spdy;
mod tunnel;
mod websocket;

use hyper::Request;
use hyper::body::Incoming;
use pintle_agent_core::observed::{ObservedContainer, RunState};
use pintle_agent_core::view::PodView;
use pintle_api_types::pod::containers;
use pintle_cri::{Code, Error, v1};
use pintle_daemon::serve::answer::HttpAnswer;
use pintle_daemon::serve::body::Reply;
use pintle_daemon::serve::query::Query;

use super::api::{Api, StreamTurn};
use super::route::{MatchedRoute, PathWords, RouteKind};
use super::select;
use request::{StreamProtocol, StreamQueryError};
pub use spdy::fuzz as fuzz_spdy;
pub use websocket::fuzz as fuzz_websocket;

/// How long a client must wait when the runtime has too many streams that were not begun.
// k8s: staging/src/k8s.io/cri-streaming/pkg/streaming/request_cache.go cacheTTL
const RETRY_AFTER_SECONDS: u32 = 60;

/// A stream: the request and the URL of the runtime that answers it.
struct StreamRequest {
    request: Request<Incoming>,

    url: String,
    /// Held for as long as the stream lives.
    turn: StreamTurn,
    /// The client's address, passed to the runtime.
    peer: std::net::IpAddr,
}

/// A client's turn, and its address.
pub(super) struct StreamCaller {
    pub(super) turn: StreamTurn,
    pub(super) peer: std::net::IpAddr,
}

/// Answers exec, attach and port-forward.
pub(super) async fn stream(
    api: &Api,
    found: &MatchedRoute,
    query: &Query,
    request: Request<Incoming>,
    caller: StreamCaller,
) -> Reply {
    let (kind, StreamCaller { turn, peer }) = (found.kind, caller);
    let wire = request::wire(request.headers());
    let wanted = match url(api, kind, &found.words, query, wire).await {
        Ok(url) => StreamRequest { request, url, turn, peer },
        Err(answer) => return answer.into(),
    };
    match (kind, wire) {
        (RouteKind::PortForward, StreamProtocol::Tunnel) => {
            api.metrics().websocket_stream("portforward");
            tunnel::open(wanted).await
        }
        (RouteKind::Exec | RouteKind::Attach, StreamProtocol::Channels) => {
            api.metrics().websocket_stream(if kind == RouteKind::Exec { "exec" } else { "attach" });
            // Checked when the URL was asked for.
            match request::streams(query) {
                Ok(streams) => remote::open(wanted, streams).await,
                Err(error) => HttpAnswer::text(400, error.to_string()).into(),
            }
        }
        _ => proxy::open(wanted).await,
    }
}

/// The runtime's URL of the stream, or the refusal.
async fn url(
    api: &Api,
    kind: RouteKind,
    words: &PathWords,
    query: &Query,
    wire: StreamProtocol,
) -> Result<String, HttpAnswer> {
    let bad = |error: StreamQueryError| HttpAnswer::text(400, error.to_string());
    let streams = match kind {
        RouteKind::PortForward => None,
        _ => Some(request::streams(query).map_err(bad)?),
    };
    let ports = match (kind, wire) {
        (RouteKind::PortForward, StreamProtocol::Raw { websocket: true }) => {
            request::ports(query).map_err(bad)?
        }
        _ => Vec::new(),
    };
    let snapshot = api.views().load();
    let view = select::by_name(&snapshot, &words.namespace, &words.pod)
        .ok_or_else(|| HttpAnswer::text(404, "pod does not exist"))?;
    let Some(streams) = streams else {
        let request = port_forward(view, words, ports)?;
        return Ok(api.runtime().port_forward(request).await.map_err(refusal)?.url);
    };
    let same = words.uid.is_empty() || words.uid == select::uid(view);
    let found = Some(view).filter(|_| same).and_then(|view| running(view, &words.container));
    if kind == RouteKind::Attach {
        let missing = || {
            let (name, pod) = (&words.container, pintle_api_types::pod::full_name(&view.pod));
            HttpAnswer::text(500, format!("container {name} not found in pod {pod}"))
        };
        let container_id = found.ok_or_else(missing)?.id.as_str().to_owned();
        let tty = tty(view, &words.container).ok_or_else(missing)?;
        let (stdin, stdout, stderr) = (streams.stdin, streams.stdout, streams.stderr);
        let request = v1::AttachRequest { container_id, stdin, tty, stdout, stderr };
        return Ok(api.runtime().attach(request).await.map_err(refusal)?.url);
    }
    let missing = || HttpAnswer::text(500, format!("container not found ({:?})", words.container));
    let request = v1::ExecRequest {
        container_id: found.ok_or_else(missing)?.id.as_str().to_owned(),
        cmd: query.all("command").map(str::to_owned).collect(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    Ok(api.runtime().exec(request).await.map_err(refusal)?.url)
}

fn port_forward(
    view: &PodView,
    words: &PathWords,
    port: Vec<i32>,
) -> Result<v1::PortForwardRequest, HttpAnswer> {
    if !words.uid.is_empty() && words.uid != select::uid(view) {
        return Err(HttpAnswer::text(404, "pod not found"));
    }
    let ready = view.observed.sandboxes.iter().find(|sandbox| sandbox.ready);
    let missing = || {
        HttpAnswer::text(
            500,
            format!("pod not found ({:?})", pintle_api_types::pod::full_name(&view.pod)),
        )
    };
    let pod_sandbox_id = ready.ok_or_else(missing)?.id.as_str().to_owned();
    Ok(v1::PortForwardRequest { pod_sandbox_id, port })
}

/// The running container of that name.
// k8s: pkg/kubelet/kubelet_pods.go findContainer
pub(super) fn running<'a>(view: &'a PodView, name: &str) -> Option<&'a ObservedContainer> {
    let mut containers = view.observed.containers.iter();
    containers.find(|c| c.name == name && c.state == RunState::Running)
}

fn tty(view: &PodView, name: &str) -> Option<bool> {
    let spec = pintle_api_types::pod::spec(&view.pod);
    if let Some((_, container)) = containers::find(spec, name) {
        return Some(container.tty.unwrap_or(false));
    }
    let mut ephemeral = spec.ephemeral_containers.iter().flatten();
    ephemeral.find(|c| c.name == name).map(|c| c.tty.unwrap_or(false))
}

/// A refusal of the runtime, as the kubelet passes it on.
// k8s: staging/src/k8s.io/cri-streaming/pkg/streaming/errors.go WriteError
fn refusal(error: Error) -> HttpAnswer {
    refused(error.code, error.rpc_text())
}

fn refused(code: Code, text: String) -> HttpAnswer {
    let status = match code {
        Code::NotFound => 404,
        Code::ResourceExhausted => 429,
        _ => 500,
    };
    let retry_after_seconds = (status == 429).then_some(RETRY_AFTER_SECONDS);
    HttpAnswer { retry_after_seconds, ..HttpAnswer::text(status, text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::RETRY_AFTER;

    #[test]
    fn rate_limited_stream_request_gets_a_retry_after_header() {
        let header = |code| {
            let reply = Reply::from(refused(code, "no".to_owned()));
            let wait = reply.headers().get(RETRY_AFTER).cloned();
            (reply.status().as_u16(), wait.map(|wait| wait.to_str().unwrap_or("").to_owned()))
        };
        assert_eq!(header(Code::ResourceExhausted), (429, Some("60".to_owned())));
        assert_eq!(header(Code::NotFound), (404, None));
    }
}
