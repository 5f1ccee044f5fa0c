//! The HTTPS listener: handshakes, connections, and the bounds of each.
//!
//! Effects. Input: a bound listener, a TLS configuration, a `Handler`. HTTP/1.1 and h2. Accepting
//! never waits: `connections` finds room for a newcomer at once, and unknown connections give it.
//! Until a client has proved its name, it has little of everything: `FIRST_REQUEST_WAIT` for its
//! first request, `HEAD_BYTES_UNKNOWN` for a head, `UNKNOWN_BYTES_MAX` in all, `OPEN_ANSWER_MAX` to
//! take an answer. Handshakes have rates, `HANDSHAKES`, of all clients and of one address, and
//! begin in turns: a signature takes a quarter of a millisecond with a key of RSA (2,048 bits) and
//! a tenth of that with the key that is made, so that 200 take 5 % of the thread. Bounds beside
//! those: `LIMITS`, `HANDSHAKE_WAIT` for TLS, `HEAD_BYTES_KNOWN` a request's head, `IDLE_WAIT`
//! between two requests, `AGE_MAX` an answer and how long a connection takes requests,
//! `H2_STREAMS_MAX` requests on one h2 connection, `SEND_BYTES_MAX` and `TLS_BYTES_MAX` waiting for
//! a reader that stalls. Bodies of requests are not read. An upgraded stream leaves here and has
//! none of these bounds. Knows nothing of the served routes.
// k8s: pkg/kubelet/server/server.go ListenAndServeKubeletServer

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pintle_api_types::rate::Rate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

use super::answer::HttpAnswer;
use super::body::{self, Aging, Reply};
use super::connections::{
    Busy, ClassShare, Connection, ConnectionLimits, Connections, Metered, Over, Patience, PeerKey,
};
use super::secure::CertificateVerdict;
use super::turns::{TurnKind, TurnLimits};
use crate::tasks;

/// Connections open at the same time: unknown ones by address, known ones by name. The API server's
/// are those of all its users, so one name may have most of them; and as many handshakes at once as
/// users begin an exec must not displace each other, so an address may have more than a few.
pub const LIMITS: ConnectionLimits = ConnectionLimits {
    unknown: ClassShare { total: 384, per_peer: 192 },
    known: ClassShare { total: 512, per_peer: 384 },
};
/// Timeout of a handshake.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Handshakes that begin. A thousand clients that come at once are served within ten seconds; the
/// API server's come first once it has shown its certificate.
const HANDSHAKES: TurnLimits = TurnLimits {
    rate: Rate { per_second: 200.0, burst: 400 },
    peer_rate: Rate { per_second: 100.0, burst: 300 },
    under_way: usize::MAX,
    under_way_per_peer: usize::MAX,
    waiting_per_peer: LIMITS.unknown.per_peer,
};
/// Timeout of the first request, from the connection on.
// k8s: pkg/kubelet/server/server.go ReadHeaderTimeout
const FIRST_REQUEST_WAIT: Duration = Duration::from_secs(32);
/// Largest head of a request, with the commands of an exec, from a client with a valid certificate.
const HEAD_BYTES_KNOWN: usize = 256 * 1024;
/// Largest head of a request from any other client: room for a large bearer token.
const HEAD_BYTES_UNKNOWN: usize = 32 * 1024;
/// Bytes that a client may send before a request of its is allowed, with those of TLS.
const UNKNOWN_BYTES_MAX: usize = 64 * 1024;
/// Timeout of a connection without a request, and of a request's head.
// k8s: pkg/kubelet/server/server.go IdleTimeout
const IDLE_WAIT: Duration = Duration::from_secs(90);
/// Hard cap of every request. As old a connection takes no more of them, answers those it has, and
/// is gone when the youngest has had its time.
// k8s: pkg/kubelet/server/server.go ReadTimeout, WriteTimeout
const AGE_MAX: Duration = Duration::from_secs(4 * 3600);
/// Timeout of an answer to a client that has proved nothing: of an open path, a refusal.
pub(super) const OPEN_ANSWER_MAX: Duration = Duration::from_secs(10);
/// Requests at the same time on one h2 connection.
// k8s: golang.org/x/net/http2 defaultMaxStreams
const H2_STREAMS_MAX: u32 = 250;
/// Limits of unread bytes that a client may send on one stream, and on one connection: requests
/// have no bodies, and upgraded streams are HTTP/1.1.
const H2_WINDOWS: (u32, u32) = (16 * 1024, 64 * 1024);
/// Encrypted bytes that wait for a reader that stalls: one record. By default they are four.
const TLS_BYTES_MAX: usize = 16 * 1024;
/// Bytes of an answer that h2 holds for a reader that stalls.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// A silent h2 connection is asked whether it is alive, and given up after that.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// How long a connection that is closed for idleness may take to end.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
const PATIENCE: Patience =
    Patience { first_request: FIRST_REQUEST_WAIT, unknown: FIRST_REQUEST_WAIT, known: IDLE_WAIT };

/// Timeouts of an answer; a connection takes no more requests at the age of `admitted`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// For a request that was admitted, and any of a client that proved its name.
    pub(super) admitted: Duration,
    /// Any other, from when it is there on.
    pub(super) open: Duration,
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) limits: ConnectionLimits,
    pub(super) patience: Patience,
    pub(super) answers: AnswerTimes,
    /// Handshakes that begin, and how long one may take.
    pub(super) handshakes: TurnLimits,
    pub(super) handshake: Duration,
}

/// The bounds of the daemons.
pub(super) const BOUNDS: Bounds = Bounds {
    limits: LIMITS,
    patience: PATIENCE,
    answers: AnswerTimes { admitted: AGE_MAX, open: OPEN_ANSWER_MAX },
    handshakes: HANDSHAKES,
    handshake: HANDSHAKE_WAIT,
};

/// The other end of a connection.
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate and those that lead to the authority; not verified yet.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// The result of their verification.
    pub verdict: CertificateVerdict,
    /// Its place, by which shares are counted.
    pub connection: Arc<Connection>,
}

/// The service behind the listener.
pub trait Handler: Send + Sync + 'static {
    /// The name in the client's certificate, if that holds.
    fn name(&self, peer: &Peer) -> Option<String>;

    /// Answers a request. `busy` learns that the request is admitted, or its path is open. The
    /// connection stays busy until the last byte of the answer is handed over.
    fn reply(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
        busy: Arc<Busy>,
    ) -> BoxFuture<'static, Reply>;

    /// A connection was displaced or refused at a limit.
    fn on_limit_reached(&self);
}

/// Accepts connections for as long as the runtime lives.
pub async fn accept(listener: std::net::TcpListener, tls: ServerConfig, handler: Arc<dyn Handler>) {
    accept_within(listener, tls, handler, BOUNDS).await;
}

/// Accepts connections with bounds of the caller's.
pub(super) async fn accept_within(
    listener: std::net::TcpListener,
    tls: ServerConfig,
    handler: Arc<dyn Handler>,
    bounds: Bounds,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the HTTPS port cannot be served"),
    };
    let on_full = Arc::clone(&handler);
    let connections =
        Connections::new(bounds.limits, bounds.patience, move || on_full.on_limit_reached());
    let handshakes = TurnKind::new(bounds.handshakes, bounds.handshake);
    let server = Arc::new(ListenerState { tls: Arc::new(tls), handler, handshakes, bounds });
    loop {
        match listener.accept().await {
            Ok((socket, address)) => {
                // A client of IPv4 is one peer, also on a listener of IPv6.
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                let place = connections.open(PeerKey::of(address.ip()));
                let server = Arc::clone(&server);
                tasks::serve("HTTPS connection", async move {
                    // Boxed, here and below: a future that is given away takes its room twice.
                    Box::pin(server.connection(socket, address, place)).await;
                });
            }
            Err(error) => connections.refused(&error).await,
        }
    }
}

/// State that all connections of a listener share.
struct ListenerState {
    tls: Arc<ServerConfig>,
    handler: Arc<dyn Handler>,
    handshakes: TurnKind,
    bounds: Bounds,
}

impl ListenerState {
    async fn connection(&self, socket: TcpStream, address: SocketAddr, place: Arc<Connection>) {
        tune(&socket);
        let socket = Metered::new(socket, Arc::clone(&place), UNKNOWN_BYTES_MAX);
        let shaken =
            tokio::time::timeout(self.bounds.handshake, Box::pin(self.shake(socket, place.peer())));
        let shaken = tokio::select! {
            shaken = shaken => shaken,
            _ = place.over() => return tracing::debug!(%address, "a TLS handshake made room"),
        };
        let mut stream = match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, %address, "no TLS handshake"),
            Err(_) => return tracing::debug!(%address, "a TLS handshake took too long"),
        };
        stream.get_mut().1.set_buffer_limit(Some(TLS_BYTES_MAX));
        let shown = stream.get_ref().1;
        let h2 = shown.alpn_protocol() == Some(b"h2");
        let certificates = shown.peer_certificates().unwrap_or_default();
        let certificates = certificates.iter().map(|c| c.clone().into_owned()).collect();
        let verdict = CertificateVerdict::default();
        let peer = Arc::new(Peer { address, certificates, verdict, connection: place });
        let head_bytes = match self.handler.name(&peer) {
            Some(name) => {
                peer.connection.set_known(&name);
                self.handshakes.prove(peer.connection.peer());
                HEAD_BYTES_KNOWN
            }
            None => HEAD_BYTES_UNKNOWN,
        };
        let (handler, times) = (Arc::clone(&self.handler), self.bounds.answers);
        let ended = match h2 {
            true => Box::pin(serve_h2(stream, handler, peer, head_bytes, times)).await,
            false => Box::pin(serve_h1(stream, handler, peer, head_bytes, times)).await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %address, "a connection broke");
        }
    }

    /// The handshake. It waits for its turn between the client's hello, which costs nothing to
    /// read, and the signature.
    async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        peer: PeerKey,
    ) -> io::Result<TlsStream<S>> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        let turn = self.handshakes.turn(peer).await;
        let no_turn = |_| io::Error::other("too many handshakes begin");
        drop(turn.map_err(no_turn).inspect_err(|_| self.handler.on_limit_reached())?);
        hello.into_stream(Arc::clone(&self.tls)).await
    }
}

/// Small answers go at once, and peers that vanish without a word are found.
fn tune(socket: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    let _ = socket.set_nodelay(true);
    // k8s: Go's net.ListenConfig, defaultTCPKeepAliveIdle and -Interval
    let _ = setsockopt(socket, sockopt::KeepAlive, &true);
    let _ = setsockopt(socket, sockopt::TcpKeepIdle, &15);
    let _ = setsockopt(socket, sockopt::TcpKeepInterval, &15);
}

async fn serve_h1(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    handler: Arc<dyn Handler>,
    peer: Arc<Peer>,
    head_bytes: usize,
    times: AnswerTimes,
) -> hyper::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_WAIT).max_buf_size(head_bytes);
    let place = Arc::clone(&peer.connection);
    let answer =
        service_fn(move |request| reply(request, Arc::clone(&handler), Arc::clone(&peer), times));
    let served =
        std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer).with_upgrades());
    until_over(served, &place, times.admitted, |served| served.graceful_shutdown()).await
}

async fn serve_h2(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    handler: Arc<dyn Handler>,
    peer: Arc<Peer>,
    head_bytes: usize,
    times: AnswerTimes,
) -> hyper::Result<()> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .initial_stream_window_size(H2_WINDOWS.0)
        .initial_connection_window_size(H2_WINDOWS.1)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    let place = Arc::clone(&peer.connection);
    let answer =
        service_fn(move |request| reply(request, Arc::clone(&handler), Arc::clone(&peer), times));
    let served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), answer));
    until_over(served, &place, times.admitted, |served| served.graceful_shutdown()).await
}

/// Serves until the connection ends, its room is needed, or it was silent or is old for too long.
/// `farewell` has it take no more requests and end with the last of those that it has.
async fn until_over<S: Future<Output = hyper::Result<()>>>(
    mut served: Pin<&mut S>,
    place: &Connection,
    age: Duration,
    farewell: impl Fn(Pin<&mut S>),
) -> hyper::Result<()> {
    let mut aged = std::pin::pin!(tokio::time::sleep(age));
    let mut is_old = false;
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            over = place.over() => match over {
                Over::Displaced | Over::Overdue => return Ok(()),
                Over::Idle => break,
            },
            () = aged.as_mut() => {
                if is_old {
                    return Ok(()); // the client does not read its answer
                }
                is_old = true;
                aged.as_mut().reset(Instant::now() + age);
                farewell(served.as_mut());
            }
        }
    }
    farewell(served.as_mut());
    tokio::time::timeout(CLOSE_WAIT, served).await.unwrap_or(Ok(()))
}

/// A request that panics is answered as such, and its connection goes on. Every answer has an end.
async fn reply(
    request: Request<Incoming>,
    handler: Arc<dyn Handler>,
    peer: Arc<Peer>,
    times: AnswerTimes,
) -> Result<Response<Aging>, Infallible> {
    let end = Instant::now() + times.admitted;
    let busy = Arc::new(peer.connection.ask());
    let of_request = Arc::clone(&busy);
    let asked = async move { handler.reply(request, peer, of_request).await };
    let answered: Reply = tasks::caught(asked).await.unwrap_or_else(|panic| {
        tasks::counted("request");
        tracing::error!(task = "request", "{panic}; one request is lost");
        HttpAnswer::text(500, "internal server error\n").into()
    });
    let end = if busy.is_admitted() { end } else { Instant::now() + times.open };
    busy.end_by(end.into_std());
    Ok(answered.map(|body| body::until(body::holding(body, busy), end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::body::Bytes;
    use hyper::client::conn::http2 as client;
    use tokio::sync::mpsc;

    /// Answers each request with a stream that the test writes.
    struct TestStreams(mpsc::UnboundedSender<body::StreamSink>);

    impl Handler for TestStreams {
        fn name(&self, _: &Peer) -> Option<String> {
            None
        }

        fn reply(
            self: Arc<Self>,
            _: Request<Incoming>,
            _: Arc<Peer>,
            busy: Arc<Busy>,
        ) -> BoxFuture<'static, Reply> {
            busy.admit(Some("admin"));
            let (sink, body) = body::streamed();
            self.0.send(sink).expect("the test waits");
            Box::pin(async move { Response::new(body) })
        }

        fn on_limit_reached(&self) {}
    }

    fn peer() -> Arc<Peer> {
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let connections = Connections::new(LIMITS, PATIENCE, || {});
        let connection = connections.open(PeerKey::of(address.ip()));
        Arc::new(Peer {
            address,
            certificates: [].into(),
            verdict: CertificateVerdict::default(),
            connection,
        })
    }

    fn get() -> Request<Empty<Bytes>> {
        Request::new(Empty::new())
    }

    type Client = client::SendRequest<Empty<Bytes>>;
    type Served = tokio::task::JoinHandle<hyper::Result<()>>;

    /// A client with a window of that size, and a connection that grows old soon.
    async fn connect(
        window: u32,
        age: Duration,
    ) -> (Client, Served, mpsc::UnboundedReceiver<body::StreamSink>) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (streams, begun) = mpsc::unbounded_channel();
        let times = AnswerTimes { admitted: age, open: age };
        let served =
            serve_h2(ours, Arc::new(TestStreams(streams)), peer(), HEAD_BYTES_KNOWN, times);
        let served = tokio::spawn(served);
        let mut client = client::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(window);
        let opened = client.handshake(TokioIo::new(theirs)).await;
        let (client, connection) = opened.expect("a connection");
        tokio::spawn(connection);
        (client, served, begun)
    }

    #[tokio::test]
    async fn connection_over_its_age_accepts_no_new_requests_and_serves_pending_ones() {
        const AGE: Duration = Duration::from_secs(1);
        let (mut client, served, mut begun) = connect(1 << 16, AGE).await;
        tokio::time::sleep(AGE / 2).await;
        let answer = client.send_request(get()).await.expect("an answer");
        let sink = begun.recv().await.expect("a request");
        let mut body = answer.into_body();
        // Further ones are for a new connection from some time on.
        while client.send_request(get()).await.is_ok() {
            tokio::time::sleep(AGE / 100).await;
        }
        sink.send(Bytes::from_static(b"late")).await.expect("read");
        let frame = body.frame().await.expect("a piece").expect("whole");
        assert_eq!(frame.into_data().expect("data"), "late");
        // This one has had its time as well.
        assert!(body.frame().await.expect("no end").is_err());
        assert_eq!(sink.send(Bytes::new()).await, Err(body::Closed));
        served.await.expect("no panic").expect("ended as it should");
    }

    #[tokio::test]
    async fn connection_of_a_client_that_does_not_read_ends_at_its_age() {
        let (mut client, served, mut begun) = connect(1024, Duration::from_millis(100)).await;
        let answer = client.send_request(get()).await.expect("an answer");
        let sink = begun.recv().await.expect("a request");
        while sink.send(Bytes::from(vec![0; 1 << 16])).await.is_ok() {}
        served.await.expect("no panic").expect("ended as it should");
        drop(answer);
    }
}
