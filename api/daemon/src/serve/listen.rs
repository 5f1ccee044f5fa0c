//! Listeners and connections: binding, allowed clients, and the bounds of each connection.
//!
//! Effects. Input: addresses and a `Service` for each listener. Bounds: `LIMITS` open connections a
//! listener (a further one takes the place of another), `HEAD_BYTES_MAX` a request's head,
//! `HEAD_WAIT` to send it, `OPEN_ANSWER_MAX` to take an answer of a port, `CONNECTION_AGE` until a
//! connection is asked to end and `CLOSE_WAIT` until it is cut. Request bodies are never read. A
//! client of a port has proved nothing, so that no request protects its connection. The socket is
//! for the agent's own user and root: its mode restricts it, and each peer's credentials are
//! checked.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::ACCEPT_ENCODING;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;

use super::answer::HttpAnswer;
use super::body;
use super::body::Reply;
use super::connections::{
    ClassShare, Connection, ConnectionLimits, Connections, Metered, Over, Patience, PeerKey,
};
use super::https::OPEN_ANSWER_MAX;
use super::secure::tls::TlsError;
use super::secure::{AccessError, ServingCertError};
use crate::tasks;

/// Connections open at the same time on one listener. All clients are unknown here.
const SHARE: ClassShare = ClassShare { total: 64, per_peer: 48 };
const LIMITS: ConnectionLimits = ConnectionLimits { unknown: SHARE, known: SHARE };
/// Connections that the kernel keeps until they are accepted: a burst of many must not make an
/// honest client wait for its second attempt.
const BACKLOG: i32 = 1024;
/// Largest head of a request in bytes; the smallest bound that the HTTP library knows.
const HEAD_BYTES_MAX: usize = 8192;
/// Timeout of a request's head, and of silence between two requests.
const HEAD_WAIT: Duration = Duration::from_secs(30);
/// Age at which a connection is closed after the answer in flight.
const CONNECTION_AGE: Duration = Duration::from_secs(300);
/// Timeout of an answer from then on.
const CLOSE_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for an address in use. A process that was killed can leave it to a child for the
/// moment until the child's program is loaded.
const FREED_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts to take an address in use; the kernel has no event for it.
const FREED_PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Patience =
    Patience { first_request: HEAD_WAIT, unknown: HEAD_WAIT, known: HEAD_WAIT };

/// A request as routes see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest {
    /// The path, not decoded.
    pub path: String,
    /// The query behind `?`, not decoded.
    pub query: String,
    /// The answer may be compressed.
    pub takes_gzip: bool,
    /// Something is to be changed.
    pub is_post: bool,
}

/// The methods that a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// GET and HEAD: every client that can connect may read.
    Reads,
    /// POST as well: every client that can connect may do what the daemon's owner can. The service
    /// refuses it where it changes nothing.
    Changes,
}

impl Takes {
    fn has(self, method: &Method) -> bool {
        match *method {
            Method::GET | Method::HEAD => true,
            Method::POST => self == Self::Changes,
            _ => false,
        }
    }
}

impl RouteRequest {
    /// Method, path and query of a request.
    pub fn of<T>(request: &Request<T>) -> Self {
        let uri = request.uri();
        let offered = request.headers().get_all(ACCEPT_ENCODING).iter();
        let mut offered =
            offered.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
        Self {
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            is_post: request.method() == Method::POST,
            // With any weight but none.
            takes_gzip: offered.any(|one| match one.trim().split_once(';') {
                None => one.trim() == "gzip",
                Some((name, weight)) => name.trim() == "gzip" && weight.trim() != "q=0",
            }),
        }
    }
}

/// Answers requests of one listener.
pub type Service =
    Arc<dyn Fn(RouteRequest) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send>> + Send + Sync>;

/// Reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port cannot be bound.
    #[error("{what} cannot listen on {address}: {reason}; {remedy}")]
    Port {
        /// `the health check` or `the read-only port`.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The reason in words.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// The socket cannot be made.
    #[error("the command socket {path} cannot be made: {reason}; {remedy}", path = path.display())]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The reason in words.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// The certificate that the HTTPS port shows.
    #[error("the HTTPS port has no certificate")]
    Certificate(#[from] ServingCertError),
    /// TLS cannot be set up.
    #[error("the HTTPS port cannot be served")]
    Tls(#[source] TlsError),
    /// The rules of access cannot be built.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The thread or its runtime cannot be made.
    #[error("the server's thread cannot be started")]
    Thread(#[source] io::Error),
}

/// One listener, not yet served.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(std::net::TcpListener, SocketAddr),
    /// A socket in the file system.
    Unix(StdUnixListener),
}

impl Listener {
    /// The bound address, with the real port; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(_, address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

/// A port, in words for the user.
#[derive(Clone, Copy, Debug)]
pub struct PortName {
    /// `the health check`, `the HTTPS server`.
    pub what: &'static str,
    /// The setting that moves it.
    pub field: &'static str,
    /// The usual owner of the address: `a kubelet`.
    pub rival: &'static str,
}

/// Binds a port.
///
/// # Errors
/// When it is taken and stays so for `FREED_WAIT`, or the host has no such address.
pub fn bind_tcp(
    PortName { what, field, rival }: PortName,
    address: SocketAddr,
) -> Result<(std::net::TcpListener, SocketAddr), ServeError> {
    let listen = || {
        let listener = bind(address)?;
        listener.set_nonblocking(true)?;
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(BACKLOG)?)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let is_taken = |bound: &io::Result<_>| {
        bound.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    until_freed(listen, is_taken, pause).map_err(|error| {
        let (reason, remedy) = match error.kind() {
            ErrorKind::AddrInUse => (
                "another process listens there".to_owned(),
                format!("stop that process ({rival}?) or set {field} to another port, 0 for off"),
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

/// Repeats an attempt while the address is taken, for `FREED_WAIT` at most.
fn until_freed<T>(
    mut attempt: impl FnMut() -> T,
    is_taken: impl Fn(&T) -> bool,
    mut pause: impl FnMut(),
) -> T {
    for _ in 0..FREED_WAIT.as_millis() / FREED_PAUSE.as_millis() {
        let result = attempt();
        if !is_taken(&result) {
            return result;
        }
        pause();
    }
    attempt()
}

fn pause() {
    thread::sleep(FREED_PAUSE);
}

/// An address that is all of a host's is all of both families, as Go's listeners have it.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/serving.go CreateListener (Go: net.Listen)
fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    if !address.ip().is_unspecified() {
        return std::net::TcpListener::bind(address);
    }
    match bind_both(address.port()) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
        {
            // A host without IPv6.
            std::net::TcpListener::bind(address)
        }
        done => done,
    }
}

/// Binds a port of all addresses of IPv6 and, through it, of IPv4, also where the host's default
/// differs.
fn bind_both(port: u16) -> io::Result<std::net::TcpListener> {
    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn6, sockopt};
    let address = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
    socket::setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    socket::setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    socket::bind(socket.as_raw_fd(), &SockaddrIn6::from(address))?;
    Ok(socket.into())
}

/// Binds a socket for the daemon's own commands; `field` is the setting that moves it.
pub fn bind_socket(path: &Path, field: &'static str) -> Result<StdUnixListener, ServeError> {
    let fail = |reason: String, remedy: String| ServeError::Socket {
        path: path.to_owned(),
        reason,
        remedy,
    };
    let io = |error: io::Error| fail(error.to_string(), format!("run as root or set {field}"));
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        // Folders that are there keep their mode: the socket's own mode and the check of each
        // peer hold in any folder.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
    }
    match until_freed(|| StdUnixStream::connect(path), Result::is_ok, pause) {
        Ok(_) => {
            return Err(fail(
                "another process answers there".to_owned(),
                format!("stop it, or set {field} to another place"),
            ));
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // A file that is no socket refuses connections, too.
            if !fs::symlink_metadata(path).map_err(io)?.file_type().is_socket() {
                return Err(fail(
                    "there is a file that is no socket".to_owned(),
                    format!("remove it, or set {field} to another place"),
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

/// Accepts connections for as long as the runtime lives; calls `full` at the limit.
pub async fn accept(
    listener: Listener,
    takes: Takes,
    service: Service,
    full: impl Fn() + Send + Sync + 'static,
) {
    let opened = match listener {
        Listener::Tcp(listener, _) => TcpListener::from_std(listener).map(Open::Tcp),
        Listener::Unix(listener) => UnixListener::from_std(listener).map(Open::Unix),
    };
    let open = match opened {
        Ok(open) => open,
        Err(error) => return tracing::error!(%error, "a listener cannot be served"),
    };
    let connections = Connections::new(LIMITS, PATIENCE, full);
    loop {
        match open.next().await {
            Ok(Some((stream, peer))) => {
                let place = connections.open(peer);
                tasks::serve("connection", connection(stream, place, takes, Arc::clone(&service)));
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

trait ListenStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ListenStream for T {}

impl Open {
    /// The next connection; `None` for one that was turned away.
    async fn next(&self) -> io::Result<Option<(Box<dyn ListenStream>, PeerKey)>> {
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

async fn connection(
    stream: Box<dyn ListenStream>,
    place: Arc<Connection>,
    takes: Takes,
    service: Service,
) {
    let asked = Arc::clone(&place);
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, busy) = (Arc::clone(&service), asked.ask());
        let peer = asked.peer();
        async move {
            // All clients of this listener may ask; the kernel proves the user of a local socket.
            let time = match peer {
                PeerKey::Local(uid) => {
                    busy.admit(Some(&format!("uid {uid}")));
                    CONNECTION_AGE
                }
                _ => {
                    busy.open();
                    OPEN_ANSWER_MAX
                }
            };
            let answer = Reply::from(respond(&request, takes, &service).await);
            let end = Instant::now() + time;
            busy.end_by(end.into_std());
            let body = |body| body::until(body::holding(body, busy), end);
            Ok::<_, std::convert::Infallible>(answer.map(body))
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
            Ok(Over::Displaced | Over::Overdue) => return,
            Ok(Over::Idle) | Err(_) => connection.as_mut().graceful_shutdown(),
        }
    }
    let _ = tokio::time::timeout(CLOSE_WAIT, connection).await;
}

async fn respond(request: &Request<Incoming>, takes: Takes, service: &Service) -> HttpAnswer {
    if !takes.has(request.method()) {
        return HttpAnswer::not_allowed();
    }
    service(RouteRequest::of(request)).await
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpStream};

    use super::*;

    const PORT: PortName = PortName { what: "a test", field: "--port", rival: "another" };

    #[test]
    fn an_address_that_is_freed_during_the_wait_is_taken() {
        let mut held = Some(std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        let address = held.as_ref().expect("held").local_addr().expect("an address");
        let taken = |bound: &io::Result<_>| bound.is_err();
        let mut pauses = 0;
        let bound = until_freed(
            || bind(address),
            taken,
            || {
                pauses += 1;
                held.take_if(|_| pauses == 3);
            },
        );
        assert!(bound.is_ok());
        assert_eq!(pauses, 3);
    }

    #[test]
    fn wildcard_address_listens_on_both_families_and_a_single_address_on_its_own() {
        let (v4, v6) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        // Without IPv6 there is nothing to listen on beside the other family.
        let has_v6 = std::net::TcpListener::bind((v6, 0)).is_ok();
        for text in ["0.0.0.0:0", "[::]:0"].into_iter().take(if has_v6 { 2 } else { 1 }) {
            let (listener, bound) = bind_tcp(PORT, text.parse().expect("one")).expect("bound");
            let answers = [v4, v6].map(|ip| TcpStream::connect((ip, bound.port())).is_ok());
            assert_eq!(answers, [true, has_v6], "{text}");
            let again = bind_tcp(PORT, SocketAddr::new(v4, bound.port()));
            assert!(again.is_err_and(|error| error.to_string().contains("another process")));
            drop(listener);
        }
        let (_listener, bound) = bind_tcp(PORT, SocketAddr::new(v4, 0)).expect("bound");
        assert!(TcpStream::connect((v4, bound.port())).is_ok());
        assert!(TcpStream::connect((v6, bound.port())).is_err());
    }
}
