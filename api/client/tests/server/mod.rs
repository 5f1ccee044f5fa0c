//! A small API server: TLS, HTTP/2 or 1.1, one node, pods, and switches for everything that goes
//! wrong. Not the API server in memory, because the tests are about connections and not about what
//! a server answers.

#[allow(dead_code)] // not every test follows pods
pub(crate) mod objects;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use socket2::{SockFilter, SockRef};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use objects::{PodStore, ServerReply};

/// The packet filter's instruction that returns how many bytes of a packet to keep.
const RETURN: u16 = 6;

/// A certificate authority.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// PEM of certificate and key.
    fn pair(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A request's content.
#[derive(Clone, Default)]
pub(crate) struct SeenRequest {
    pub(crate) path: String,
    pub(crate) user_agent: String,
    pub(crate) authorization: Option<String>,
    /// Common name of the client's certificate.
    pub(crate) client: Option<String>,
}

#[derive(Default)]
struct State {
    connections: AtomicUsize,
    requests: AtomicUsize,
    last: Mutex<SeenRequest>,
    hold: watch::Sender<bool>,
    refuse: Mutex<Option<(u16, Option<&'static str>)>>,
    line: watch::Sender<ConnectionFault>,
    leaves: watch::Sender<()>,
    pods: PodStore,
}

/// The state of the existing connections; new ones work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ConnectionFault {
    #[default]
    Open,
    /// The server neither reads nor writes, and the kernel acknowledges what arrives.
    Silent,
    /// No packet gets through, as when a machine or a router has gone.
    Lost,
}

/// The server; it ends with the test's runtime.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    authority: Authority,
    port: u16,
    state: Arc<State>,
}

impl Server {
    pub(crate) async fn start(authority: Authority) -> Self {
        Self::start_with(authority, [true, true]).await
    }

    pub(crate) async fn start_http1(authority: Authority) -> Self {
        Self::start_with(authority, [false, false]).await
    }

    /// Starts a server that speaks HTTP/2 from its second connection on.
    #[allow(dead_code)] // not every test looks at connections
    pub(crate) async fn start_http1_first(authority: Authority) -> Self {
        Self::start_with(authority, [false, true]).await
    }

    /// Starts a server; `http2` holds for its first connection, and for others.
    async fn start_with(authority: Authority, http2: [bool; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let acceptors = http2.map(|http2| TlsAcceptor::from(Arc::new(config(&authority, http2))));
        tokio::spawn(accept(listener, acceptors, Arc::clone(&state)));
        let dir = tempfile::tempdir().expect("a folder");
        let server = Self { dir, authority, port, state };
        std::fs::write(server.path("ca.crt"), server.authority.pem()).expect("written");
        server.write_certificate("first");
        let (cert, key) = (server.path("client.crt"), server.path("client.key"));
        let user = format!("client-certificate: {}, client-key: {}", cert.display(), key.display());
        server.write_kubeconfig(&user);
        server
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub(crate) fn write_certificate(&self, name: &str) {
        let (cert, key) = self.authority.pair(name);
        std::fs::write(self.path("client.key"), key).expect("written");
        std::fs::write(self.path("client.crt"), cert).expect("written");
    }

    pub(crate) fn write_kubeconfig(&self, user: &str) {
        let ca = format!("certificate-authority: {}", self.path("ca.crt").display());
        self.write(&ca, user);
    }

    pub(crate) fn write_kubeconfig_insecure(&self) {
        self.write("insecure-skip-tls-verify: true", "token: t");
    }

    fn write(&self, trust: &str, user: &str) {
        let text = format!(
            "current-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://127.0.0.1:{}', {trust}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n",
            self.port
        );
        std::fs::write(self.kubeconfig(), text).expect("written");
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn last(&self) -> SeenRequest {
        self.state.last.lock().expect("not poisoned").clone()
    }

    /// Holds every answer back.
    pub(crate) fn hold(&self, hold: bool) {
        self.state.hold.send_replace(hold);
    }

    /// Answers the next request with this code.
    pub(crate) fn refuse_once(&self, code: u16, retry_after: Option<&'static str>) {
        *self.state.refuse.lock().expect("not poisoned") = Some((code, retry_after));
    }

    #[allow(dead_code)] // not every test follows pods
    pub(crate) fn pods(&self) -> &PodStore {
        &self.state.pods
    }

    /// Stops reading and writing on the existing connections.
    pub(crate) fn silence(&self) {
        self.state.line.send_replace(ConnectionFault::Silent);
    }

    /// Takes no more requests on the existing connections.
    pub(crate) fn leave(&self) {
        self.state.leaves.send_replace(());
    }

    /// No packet of the existing connections gets through.
    pub(crate) fn lose(&self) {
        self.state.line.send_replace(ConnectionFault::Lost);
    }
}

fn config(authority: &Authority, http2: bool) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("a certificate");
    roots.add(ca).expect("an authority");
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let verifier = verifier.allow_unauthenticated().build().expect("a verifier");
    let (cert, key) = authority.pair("server");
    let cert = CertificateDer::from_pem_slice(cert.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![cert], key)
        .expect("a configuration");
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

/// Every connection goes through a pipe that can be stopped up.
async fn accept(listener: TcpListener, acceptors: [TlsAcceptor; 2], state: Arc<State>) {
    while let Ok((mut outside, _)) = listener.accept().await {
        let before = state.connections.fetch_add(1, Ordering::SeqCst);
        let (acceptor, state) = (acceptors[before.min(1)].clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let (inside, mut pipe) = tokio::io::duplex(64 << 10);
            let mut line = state.line.subscribe();
            tokio::spawn(serve(inside, acceptor, state));
            let copied = tokio::io::copy_bidirectional(&mut outside, &mut pipe);
            tokio::select! {
                _ = copied => return,
                changed = line.changed() => changed.expect("the server is there"),
            }
            if *line.borrow() == ConnectionFault::Lost {
                lose_packets(&outside).await;
            }
            // Kept open, and nothing comes through.
            std::future::pending::<()>().await;
        });
    }
}

/// Has the kernel drop what arrives, without acknowledging it. Earlier packets must have been
/// acknowledged before, or the kernel would send them again and be heard.
async fn lose_packets(stream: &TcpStream) {
    let port = |address: std::io::Result<SocketAddr>| address.expect("an address").port();
    let (local, peer) = (port(stream.local_addr()), port(stream.peer_addr()));
    while bytes_on_their_way(local, peer) != Some(0) {
        tokio::task::yield_now().await;
    }
    let nothing = [SockFilter::new(RETURN, 0, 0, 0)];
    SockRef::from(stream).attach_filter(&nothing).expect("a filter");
}

/// Bytes that the socket between these ports has sent and that are not acknowledged.
fn bytes_on_their_way(local: u16, peer: u16) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel's table");
    let ends = [format!(":{local:04X}"), format!(":{peer:04X}")];
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = rows.filter(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1]));
    u64::from_str_radix(rows.next()?[4].split(':').next()?, 16).ok()
}

async fn serve(stream: DuplexStream, acceptor: TlsAcceptor, state: Arc<State>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let client = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(name);
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn({
        let state = Arc::clone(&state);
        move |request| answer(request, client.clone(), Arc::clone(&state))
    });
    let io = TokioIo::new(stream);
    if http2 {
        let mut leaves = state.leaves.subscribe();
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(250)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            _ = &mut connection => return,
            _ = leaves.changed() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
    }
}

/// The common name stands in the certificate as plain text.
fn name(certificate: &CertificateDer<'_>) -> String {
    let has = |name: &str| certificate.windows(name.len()).any(|part| part == name.as_bytes());
    ["first", "second"].into_iter().find(|name| has(name)).unwrap_or("other").to_owned()
}

async fn answer(
    request: Request<Incoming>,
    client: Option<String>,
    state: Arc<State>,
) -> Result<Response<ReplyBody>, Infallible> {
    let header = |name: &str| {
        request.headers().get(name).map(|value| value.to_str().expect("text").to_owned())
    };
    *state.last.lock().expect("not poisoned") = SeenRequest {
        path: request.uri().path().to_owned(),
        user_agent: header("user-agent").unwrap_or_default(),
        authorization: header("authorization"),
        client,
    };
    state.requests.fetch_add(1, Ordering::SeqCst);
    let refused = state.refuse.lock().expect("not poisoned").take();
    if let Some((code, after)) = refused {
        let mut response = Response::builder().status(code);
        if let Some(after) = after {
            response = response.header("retry-after", after);
        }
        return Ok(response.body(ReplyBody::default()).expect("a response"));
    }
    let mut hold = state.hold.subscribe();
    let _ = hold.wait_for(|hold| !*hold).await;
    if request.uri().path() == "/api/v1/pods" {
        let (code, answer) = match state.pods.answer(request.uri().query().unwrap_or_default()) {
            ServerReply::Text(code, text) => {
                (code, ReplyBody { text: Some(text.into()), ..ReplyBody::default() })
            }
            ServerReply::Watch(lines) => {
                (200, ReplyBody { lines: Some(lines), ..ReplyBody::default() })
            }
        };
        return Ok(Response::builder().status(code).body(answer).expect("a response"));
    }
    let endless = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let body = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
    let response = Response::builder().header("content-type", "application/json");
    Ok(response
        .body(ReplyBody { text: Some(body.into()), endless, lines: None })
        .expect("a response"))
}

/// A text, or lines as they come; that of a watch of nodes never ends.
#[derive(Default)]
struct ReplyBody {
    text: Option<Bytes>,
    endless: bool,
    lines: Option<UnboundedReceiver<Bytes>>,
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(lines) = &mut self.lines {
            return lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))));
        }
        match self.text.take() {
            None if self.endless => Poll::Pending,
            text => Poll::Ready(text.map(|text| Ok(Frame::data(text)))),
        }
    }
}
