//! The HTTPS listener: handshakes, connections, and the gate in front of every request.
//!
//! Effects. Input: a bound listener, a TLS configuration, the `Api`. HTTP/1.1 and h2. Bounds:
//! `CONNECTIONS_MAX` open connections (further ones wait in the kernel's queue), `HANDSHAKE_WAIT`
//! for TLS, `HEAD_BYTES_MAX` a request's head, `IDLE_WAIT` between two requests, `AGE_MAX` a
//! connection, `H2_STREAMS_MAX` requests on one h2 connection, `SEND_BYTES_MAX` waiting for a
//! reader that stalls.
// k8s: pkg/kubelet/server/server.go ListenAndServeKubeletServer

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::api::Api;
use super::secure::Peer;

/// Connections open at the same time.
const CONNECTIONS_MAX: usize = 512;
/// How long a handshake may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Largest head of a request; commands of an exec are in there.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// How long a connection may stay without a request, and how long a head may take.
// k8s: pkg/kubelet/server/server.go IdleTimeout
const IDLE_WAIT: Duration = Duration::from_secs(90);
/// Hard cap of every connection, and so of every stream.
// k8s: pkg/kubelet/server/server.go ReadTimeout, WriteTimeout
pub(super) const AGE_MAX: Duration = Duration::from_secs(4 * 3600);
/// Requests at the same time on one h2 connection.
// k8s: golang.org/x/net/http2 defaultMaxStreams
const H2_STREAMS_MAX: u32 = 250;
/// Bytes of an answer that h2 holds for a reader that stalls.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// A silent h2 connection is asked whether it is alive, and given up after that.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// Pause after the kernel refused a connection, as when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections for as long as the runtime lives.
pub(super) async fn accept(listener: std::net::TcpListener, tls: ServerConfig, api: Arc<Api>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTPS port cannot be served"),
    };
    let tls = TlsAcceptor::from(Arc::new(tls));
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        if turns.available_permits() == 0 {
            api.metrics().limit_hit("server connections");
        }
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, address)) => {
                let (tls, api) = (tls.clone(), Arc::clone(&api));
                tokio::spawn(async move {
                    let _ = socket.set_nodelay(true);
                    let _ =
                        tokio::time::timeout(AGE_MAX, connection(socket, address, tls, api)).await;
                    drop(turn);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    socket: TcpStream,
    address: std::net::SocketAddr,
    tls: TlsAcceptor,
    api: Arc<Api>,
) {
    let stream = match tokio::time::timeout(HANDSHAKE_WAIT, tls.accept(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, %address, "no TLS handshake"),
        Err(_) => return tracing::debug!(%address, "a TLS handshake took too long"),
    };
    let shown = stream.get_ref().1;
    let h2 = shown.alpn_protocol() == Some(b"h2");
    let certificates = shown.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|c| c.clone().into_owned()).collect();
    let peer = Arc::new(Peer { address, certificates });
    let ended =
        if h2 { serve_h2(stream, api, peer).await } else { serve_h1(stream, api, peer).await };
    if let Err(error) = ended {
        tracing::debug!(%error, %address, "a connection broke");
    }
}

async fn serve_h1(
    stream: TlsStream<TcpStream>,
    api: Arc<Api>,
    peer: Arc<Peer>,
) -> hyper::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_WAIT).max_buf_size(HEAD_BYTES_MAX);
    let answer = service_fn(move |request| reply(request, Arc::clone(&api), Arc::clone(&peer)));
    http.serve_connection(TokioIo::new(stream), answer).with_upgrades().await
}

async fn serve_h2(
    stream: TlsStream<TcpStream>,
    api: Arc<Api>,
    peer: Arc<Peer>,
) -> hyper::Result<()> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    let answer = service_fn(move |request| reply(request, Arc::clone(&api), Arc::clone(&peer)));
    http.serve_connection(TokioIo::new(stream), answer).await
}

async fn reply(
    request: Request<Incoming>,
    api: Arc<Api>,
    peer: Arc<Peer>,
) -> Result<super::body::Reply, Infallible> {
    debug_assert!(request.version() >= Version::HTTP_10);
    Ok(api.reply(request, &peer).await)
}
