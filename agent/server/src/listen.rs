//! Listeners and connections: binding, who may connect, and the bounds of each connection.
//!
//! Effects. Input: addresses and a `Service` for each listener. Bounds: `LIMITS` open connections a
//! listener (a further one takes the place of one that is idle), `HEAD_BYTES_MAX` a request's
//! head, `HEAD_WAIT` to send it or to take a piece of an answer, `CONNECTION_AGE` until a connection
//! is asked to end and `CLOSE_WAIT` until it is cut. Request bodies are never read. The socket is the agent's own
//! user's and root's: its mode says so and each peer's credentials are checked.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::ACCEPT_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use pintle_agent_metrics::Metrics;
use pintle_daemon::tasks;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::answer::Answer;
use crate::body;
use crate::body::Reply;
use crate::connections::{
    Connection, Connections, Limits, Metered, Over, Patience, PeerKey, Share,
};
use crate::secure::{AccessError, ServingCertError};

/// Connections open at the same time on one listener. Nobody is known here.
const SHARE: Share = Share { total: 64, per_peer: 48 };
const LIMITS: Limits = Limits { unknown: SHARE, known: SHARE };
/// Connections that the kernel keeps until they are accepted: a burst of many must not make an
/// honest client wait for its second attempt.
const BACKLOG: i32 = 1024;
/// Largest head of a request in bytes; the smallest bound that the HTTP library knows.
const HEAD_BYTES_MAX: usize = 8192;
/// How long a client may take to send a request's head, or stay silent between two requests.
const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Age at which a connection is closed after the answer under way.
const CONNECTION_AGE: Duration = Duration::from_secs(300);
/// How long an answer may take from then on.
const CLOSE_WAIT: Duration = Duration::from_secs(30);
const PATIENCE: Patience =
    Patience { first_request: HEAD_WAIT, unknown: HEAD_WAIT, known: HEAD_WAIT };

/// A request as routes see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) query: String,
    /// The answer may be compressed.
    pub(super) takes_gzip: bool,
}

impl Asked {
    /// What a request asks for.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let uri = request.uri();
        let offered = request.headers().get_all(ACCEPT_ENCODING).iter();
        let mut offered =
            offered.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
        Self {
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            // With any weight but none.
            takes_gzip: offered.any(|one| match one.trim().split_once(';') {
                None => one.trim() == "gzip",
                Some((name, weight)) => name.trim() == "gzip" && weight.trim() != "q=0",
            }),
        }
    }
}

/// Answers requests of one listener.
pub(super) type Service =
    Arc<dyn Fn(Asked) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port cannot be bound.
    #[error("{what} cannot listen on {address}: {reason}; {remedy}")]
    Port {
        /// `the health check` or `the read-only port`.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// In words.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The socket cannot be made.
    #[error("the command socket {path} cannot be made: {reason}; {remedy}", path = path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// In words.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The certificate that the HTTPS port shows.
    #[error("the HTTPS port has no certificate")]
    Certificate(#[from] ServingCertError),
    /// TLS cannot be set up.
    #[error(
        "the HTTPS port cannot be served: tlsMinVersion, tlsCipherSuites or \
        tlsCurvePreferences leave nothing to agree on"
    )]
    Tls(#[source] tokio_rustls::rustls::Error),
    /// The rules of access cannot be built.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The thread or its runtime cannot be made.
    #[error("the server's thread cannot be started")]
    Thread(#[source] io::Error),
}

/// Everything that is listened on.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) healthz: Option<Listener>,
    pub(super) read_only: Option<Listener>,
    pub(super) https: Option<(std::net::TcpListener, SocketAddr)>,
    pub(super) socket: Listener,
}

/// Where ports are listened on; `None` for those that are off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Addresses {
    pub(super) healthz: Option<SocketAddr>,
    pub(super) read_only: Option<SocketAddr>,
    pub(super) https: Option<SocketAddr>,
}

/// One listener, not yet served.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(std::net::TcpListener, SocketAddr),
    Unix(StdUnixListener),
}

impl Listeners {
    /// Binds all or nothing.
    pub(super) fn bind(at: Addresses, socket: &Path) -> Result<Self, ServeError> {
        let tcp = |what, field, address: Option<SocketAddr>| {
            address.map(|address| bind_tcp(what, field, address)).transpose()
        };
        let plain = |bound: Option<_>| bound.map(|(listener, at)| Listener::Tcp(listener, at));
        Ok(Self {
            healthz: plain(tcp("the health check", "healthzPort", at.healthz)?),
            read_only: plain(tcp("the read-only port", "readOnlyPort", at.read_only)?),
            https: tcp("the HTTPS server", "port", at.https)?,
            socket: Listener::Unix(bind_socket(socket)?),
        })
    }

    pub(super) fn healthz_address(&self) -> Option<SocketAddr> {
        self.healthz.as_ref().and_then(Listener::address)
    }

    pub(super) fn read_only_address(&self) -> Option<SocketAddr> {
        self.read_only.as_ref().and_then(Listener::address)
    }
}

impl Listener {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

fn bind_tcp(
    what: &'static str,
    field: &'static str,
    address: SocketAddr,
) -> Result<(std::net::TcpListener, SocketAddr), ServeError> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(BACKLOG)?)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| {
        let (reason, remedy) = match error.kind() {
            ErrorKind::AddrInUse => (
                "another process listens there".to_owned(),
                format!("stop that process (a kubelet?) or set {field} to another port, 0 for off"),
            ),
            ErrorKind::AddrNotAvailable => (
                "this host has no such address".to_owned(),
                "set an address of this host or 0.0.0.0".to_owned(),
            ),
            ErrorKind::PermissionDenied => (
                "permission denied".to_owned(),
                format!("run as root or set {field} to a port above 1023"),
            ),
            _ => (error.to_string(), format!("set {field} to another port, 0 for off")),
        };
        ServeError::Port { what, address, reason, remedy }
    })
}

fn bind_socket(path: &Path) -> Result<StdUnixListener, ServeError> {
    let fail =
        |reason: String, remedy| ServeError::Socket { path: path.to_owned(), reason, remedy };
    let io = |error: io::Error| fail(error.to_string(), "run as root or set --pintle-socket");
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        // Folders that are there keep their mode: the socket's own mode and the check of each
        // peer hold in any folder.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
    }
    match StdUnixStream::connect(path) {
        Ok(_) => {
            return Err(fail(
                "another agent answers there".to_owned(),
                "stop it, or set --root-dir or --pintle-socket to another place",
            ));
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // A file that is no socket refuses connections, too.
            if !fs::symlink_metadata(path).map_err(io)?.file_type().is_socket() {
                return Err(fail(
                    "there is a file that is no socket".to_owned(),
                    "remove it, or set --pintle-socket to another place",
                ));
            }
            fs::remove_file(path).map_err(io)?; // left behind by an agent that was killed
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    let listener = StdUnixListener::bind(path).map_err(io)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(io)?;
    listener.set_nonblocking(true).map_err(io)?;
    Ok(listener)
}

/// Accepts connections for as long as the runtime lives.
pub(super) async fn accept(listener: Listener, service: Service, metrics: Arc<Metrics>) {
    let opened = match listener {
        Listener::Tcp(listener, _) => TcpListener::from_std(listener).map(Open::Tcp),
        Listener::Unix(listener) => UnixListener::from_std(listener).map(Open::Unix),
    };
    let open = match opened {
        Ok(open) => open,
        Err(error) => return tracing::error!(%error, "a listener cannot be served"),
    };
    let connections =
        Connections::new(LIMITS, PATIENCE, move || metrics.limit_hit("server connections"));
    loop {
        match open.next().await {
            Ok(Some((stream, peer))) => {
                if let Some(place) = connections.open(peer) {
                    tasks::serve("connection", connection(stream, place, Arc::clone(&service)));
                }
            }
            Ok(None) => {}
            Err(error) => connections.refused(&error).await,
        }
    }
}

enum Open {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Open {
    /// The next connection; `None` for one that was turned away.
    async fn next(&self) -> io::Result<Option<(Box<dyn Stream>, PeerKey)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok(Some((Box::new(stream), PeerKey::of(address.ip()))))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
                    tracing::warn!(uid = peer, "a user without rights asked on the command socket");
                    return Ok(None);
                }
                Ok(Some((Box::new(stream), PeerKey::Local(peer))))
            }
        }
    }
}

async fn connection(stream: Box<dyn Stream>, place: Arc<Connection>, service: Service) {
    let asked = Arc::clone(&place);
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, mut busy) = (Arc::clone(&service), asked.ask());
        async move {
            busy.allow(); // whoever reaches this listener may ask
            let answer = Reply::from(respond(&request, &service).await);
            Ok::<_, std::convert::Infallible>(answer.map(|body| body::holding(body, busy)))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT).max_buf_size(HEAD_BYTES_MAX);
    let stream = Metered::new(stream, Arc::clone(&place), usize::MAX);
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    let over = tokio::time::timeout(CONNECTION_AGE, place.over());
    tokio::select! {
        _ = connection.as_mut() => return,
        over = over => match over {
            Ok(Over::Displaced) => return,
            Ok(Over::Idle) | Err(_) => connection.as_mut().graceful_shutdown(),
        }
    }
    let _ = tokio::time::timeout(CLOSE_WAIT, connection).await;
}

async fn respond(request: &Request<Incoming>, service: &Service) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Answer::not_allowed();
    }
    service(Asked::of(request)).await
}
