//! gRPC probes: `grpc.health.v1.Health/Check` without TLS, well when the answer is SERVING.
//!
//! A connection that is refused, or that ends before the server has spoken HTTP/2, is tried again
//! within the limit, as upstream's client does. Every
//! error is a failure. The two messages are written here: the protocol has not changed since 2016.
// k8s: pkg/probe/grpc/grpc.go

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::Service;

use k8s_openapi::api::core::v1::GRPCAction;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::attempt::AttemptVerdict;
use super::http::USER_AGENT;
use super::patience::patiently;
use super::target::ProbeTarget;
use super::words::{self, Spent};

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Wait before a connection that failed is tried again.
const RECONNECT: Duration = Duration::from_secs(1);
/// Bytes of a frame's head, the position of its type, and the type of a server's first frame.
const FRAME_HEAD: usize = 9;
const FRAME_TYPE: usize = 3;
const SETTINGS: u8 = 4;
/// The method.
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The status of a healthy server.
pub(super) const SERVING: i32 = 1;

/// The request.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckRequest {
    /// Name of the service; empty for the whole server.
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckResponse {
    /// A `ServingStatus`.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// Makes one attempt.
pub(super) async fn probe(
    target: &ProbeTarget,
    grpc: &GRPCAction,
    limit: Duration,
) -> AttemptVerdict {
    let host = match target.host_or(None) {
        Ok(host) => host,
        Err(error) => return AttemptVerdict::unknown(error.to_string()),
    };
    let address = match u16::try_from(grpc.port) {
        Ok(port) => words::address(&host, port),
        Err(_) => return AttemptVerdict::unknown(format!("invalid port number: {}", grpc.port)),
    };
    let service = grpc.service.clone().unwrap_or_default();
    let greeted = RefCell::new(Greeted::default());
    let began = Instant::now();
    let waited = patiently(limit, ask(&address, &service, &greeted)).await;
    let text = words::seconds(limit);
    let connected = greeted.borrow().get().copied();
    match (waited.done, connected) {
        (Some(Ok(Ok(answer))), _) => judge(answer.status),
        (Some(Ok(Err(status))), _) => AttemptVerdict::Failure(refusal(&status)),
        (Some(Err(error)), _) => {
            let error: tonic::transport::Error = error;
            let address = format!("{address:?}");
            AttemptVerdict::Failure(format!(
                "error: failed to connect service at {address}: {error}"
            ))
        }
        (None, connected) => {
            let connect = connected.map(|at| at.duration_since(began).min(limit));
            let answer = limit.saturating_sub(connect.unwrap_or_default());
            let spent = Spent { connect, answer, delay: waited.delay };
            let what = match connect {
                Some(_) => format!("timeout: health rpc did not complete within {text}"),
                None => format!(
                    "timeout: failed to connect service {address:?} within {text}: context \
                     deadline exceeded"
                ),
            };
            AttemptVerdict::TimedOut(what, spent)
        }
    }
}

/// When the server has spoken HTTP/2 on a connection.
type Greeted = Arc<OnceLock<Instant>>;

/// Makes new connections until a server has answered with HTTP/2 on one; only an invalid address is
/// an error. The answer of that server counts.
// Go: google.golang.org/grpc http2Client (reader waits for the server's settings), WithBlock
async fn ask(
    address: &str,
    service: &str,
    greeted: &RefCell<Greeted>,
) -> Result<Result<CheckResponse, Status>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.user_agent(USER_AGENT)?;
    loop {
        let own = Greeted::default();
        greeted.replace(Arc::clone(&own));
        let dial = Dial { address: address.to_owned(), greeted: Arc::clone(&own) };
        match endpoint.connect_with_connector(dial).await {
            Ok(channel) => match check(channel, service.to_owned()).await {
                Err(status) if own.get().is_none() => {
                    tracing::trace!(address, %status, "a peer of a probe that speaks no HTTP/2");
                }
                answer => return Ok(answer),
            },
            Err(error) => tracing::trace!(address, %error, "no connection for a probe"),
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Makes connections that record when the peer has sent its first frame.
#[derive(Clone, Debug)]
struct Dial {
    address: String,
    greeted: Greeted,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<WatchedSocket>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, greeted } = self.clone();
        Box::pin(async move {
            let socket = TcpStream::connect(&address).await?;
            let _ = socket.set_nodelay(true);
            Ok(TokioIo::new(WatchedSocket { socket, head: [0; FRAME_HEAD], heard: 0, greeted }))
        })
    }
}

/// A socket that checks the first frame it receives.
struct WatchedSocket {
    socket: TcpStream,
    head: [u8; FRAME_HEAD],
    heard: usize,
    greeted: Greeted,
}

impl AsyncRead for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        for byte in &buffer.filled()[before..] {
            let at = self.heard;
            let Some(slot) = self.head.get_mut(at) else { break };
            *slot = *byte;
            self.heard += 1;
        }
        if self.heard == FRAME_HEAD && self.head[FRAME_TYPE] == SETTINGS {
            let _ = self.greeted.set(Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

async fn check(channel: Channel, service: String) -> Result<CheckResponse, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<CheckRequest, CheckResponse>::default();
    let request = Request::new(CheckRequest { service });
    let answer = grpc.unary(request, PathAndQuery::from_static(CHECK), codec).await?;
    Ok(answer.into_inner())
}

fn judge(status: i32) -> AttemptVerdict {
    let name = match status {
        SERVING => return AttemptVerdict::Success,
        0 => "UNKNOWN".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    };
    AttemptVerdict::Failure(format!("service unhealthy (responded with {name:?})"))
}

fn refusal(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): {message}"
        ),
        code => {
            let code = pintle_cri::code_name(code);
            format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_a_success_and_any_other_status_is_named() {
        assert_eq!(judge(SERVING), AttemptVerdict::Success);
        for (status, name) in [(0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN"), (7, "7")]
        {
            let text = format!("service unhealthy (responded with \"{name}\")");
            assert_eq!(judge(status), AttemptVerdict::Failure(text));
        }
    }

    #[test]
    fn grpc_errors_are_reported_in_upstreams_wording() {
        for (status, text) in [
            (
                Status::unimplemented("unknown service grpc.health.v1.Health"),
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
            ),
            (
                Status::not_found("unknown service"),
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ] {
            assert_eq!(refusal(&status), text);
        }
    }
}
