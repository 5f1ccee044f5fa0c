//! The HTTPS port over real TLS against clients that give nothing: no window, no end of a head, no
//! reading. In each case clients from elsewhere are answered, and the attackers are cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request, Response};
use pintle_api::AnyServer;
use pintle_api_types::rate::Rate;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName,
};

use super::answer::HttpAnswer;
use super::body::{self, Reply};
use super::connections::{Busy, Patience};
use super::https::{self, AnswerTimes, BOUNDS, Bounds, Handler, LIMITS, Peer};
use super::listen::{Listener, Takes, accept};
use super::secure::serving::Serving;
use super::secure::tls::{Settings, server_config};
use super::turns::TurnLimits;

type Client = TlsStream<TcpStream>;

/// More than anything here takes on a busy machine: a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(60);
/// The bound that a test is about, where it is short.
const SOON: Duration = Duration::from_millis(300);
/// Newcomers that come during an attack.
const NEWCOMERS: usize = 20;
const BIG_BYTES: usize = 64 << 20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// SETTINGS_INITIAL_WINDOW_SIZE = 0.
const NO_WINDOW: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";
/// `GET /healthz` of `x`, as HPACK: without Huffman codes.
const GET_HEALTHZ: &[u8] = b"\x82\x87\x44\x08/healthz\x41\x01x";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A daemon with an open `/healthz`; a client with the trusted certificate has a name.
struct HealthDaemon {
    trusted: CertificateDer<'static>,
}

impl Handler for HealthDaemon {
    fn name(&self, peer: &Peer) -> Option<String> {
        (peer.certificates.first() == Some(&self.trusted)).then(|| "admin".to_owned())
    }

    fn reply(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
        busy: Arc<Busy>,
    ) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            match (request.uri().path(), self.name(&peer)) {
                ("/healthz", _) => {
                    busy.open();
                    HttpAnswer::text(200, "ok").into()
                }
                ("/big", _) => {
                    busy.open();
                    Response::new(body::whole(vec![b'x'; BIG_BYTES]))
                }
                (_, Some(name)) => {
                    busy.admit(Some(&name));
                    HttpAnswer::text(200, "secret").into()
                }
                _ => HttpAnswer::text(401, "Unauthorized").into(),
            }
        })
    }

    fn on_limit_reached(&self) {}
}

/// A certificate and its key.
fn pair(name: &str) -> (CertificateDer<'static>, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a pair");
    (made.cert.der().clone(), made.signing_key.serialize_der())
}

struct DaemonPort {
    address: SocketAddr,
    trusted: (CertificateDer<'static>, Vec<u8>),
}

impl DaemonPort {
    fn new(bounds: Bounds) -> Self {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        let address = listener.local_addr().expect("bound");
        let certificate = Arc::new(Serving::in_memory("node").expect("a pair"));
        let tls = server_config(Settings::default(), certificate).expect("TLS");
        let trusted = pair("admin");
        let handler = Arc::new(HealthDaemon { trusted: trusted.0.clone() });
        tokio::spawn(https::accept_within(listener, tls, handler, bounds));
        Self { address, trusted }
    }

    async fn tcp(&self, from: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0))).expect("bound");
        socket.connect(self.address).await.expect("connected")
    }

    async fn try_tls(
        &self,
        from: u8,
        shown: Option<&(CertificateDer<'static>, Vec<u8>)>,
        protocol: &str,
    ) -> std::io::Result<Client> {
        let provider = Arc::new(default_provider());
        let any_server = Arc::new(AnyServer::new(&provider));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(any_server);
        let mut config = match shown {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.clone()));
                config.with_client_auth_cert(vec![certificate.clone()], key).expect("usable")
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::try_from("node").expect("a name");
        let socket = self.tcp(from).await;
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, socket);
        timeout(LONG, shaken).await.expect("a handshake has an end")
    }

    async fn tls(&self, from: u8, protocol: &str) -> Client {
        self.try_tls(from, None, protocol).await.expect("a handshake")
    }

    /// An attacker that requested an answer that it will not take, and has the answer's head.
    async fn without_window(
        &self,
        from: u8,
        shown: Option<&(CertificateDer<'static>, Vec<u8>)>,
    ) -> Client {
        let mut client = self.try_tls(from, shown, "h2").await.expect("a handshake");
        let asked = [PREFACE, NO_WINDOW, &frame(1, 0x5, 1, GET_HEALTHZ)].concat();
        client.write_all(&asked).await.expect("sent");
        loop {
            let mut head = [0; 9];
            timeout(LONG, client.read_exact(&mut head)).await.expect("a frame").expect("whole");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).expect("small")];
            client.read_exact(&mut payload).await.expect("whole");
            assert_ne!(head[3], 0, "there is no window for data");
            if head[3] == 1 {
                return client;
            }
        }
    }
}

/// One request on a connection that is kept.
async fn ask(client: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str, end: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(end.as_bytes()) {
        let byte = timeout(LONG, client.read_u8()).await.expect("an answer");
        answer.push(byte.expect("whole"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
}

/// Reads until the server ends the connection.
async fn until_cut(client: &mut (impl AsyncRead + Unpin)) -> usize {
    let mut buffer = vec![0; 1 << 16];
    let mut all = 0;
    loop {
        match timeout(LONG, client.read(&mut buffer)).await.expect("the server ends it") {
            Ok(0) | Err(_) => return all,
            Ok(read) => all += read,
        }
    }
}

#[tokio::test]
async fn clients_that_do_not_read_open_answers_do_not_block_other_clients() {
    let port = DaemonPort::new(BOUNDS);
    let mut attackers = Vec::new();
    for from in [2, 3] {
        for _ in 0..LIMITS.unknown.per_peer {
            attackers.push(port.without_window(from, None).await);
        }
    }
    assert_eq!(attackers.len(), LIMITS.unknown.total);
    let forged = pair("admin");
    let mut known = port.try_tls(1, Some(&port.trusted), "http/1.1").await.expect("a handshake");
    for number in 0..NEWCOMERS {
        // A liveness probe is a connection of its own.
        ask(&mut port.tls(1, "http/1.1").await, "/healthz", "\r\n\r\nok").await;
        let another = port.try_tls(1, Some(&port.trusted), "http/1.1").await;
        ask(&mut another.expect("a handshake"), "/secret", "\r\n\r\nsecret").await;
        ask(&mut known, "/secret", "\r\n\r\nsecret").await;
        // The attackers replace displaced connections; an invalid certificate changes nothing.
        let shown = (number % 2 == 0).then_some(&forged);
        attackers.push(port.without_window(2, shown).await);
    }
}

#[tokio::test]
async fn unread_open_answer_ends_its_connection_unless_the_client_is_authenticated() {
    let answers = AnswerTimes { open: SOON, ..BOUNDS.answers };
    let port = DaemonPort::new(Bounds { answers, ..BOUNDS });
    let mut known = port.without_window(1, Some(&port.trusted)).await;
    let mut stalled = port.without_window(2, None).await;
    until_cut(&mut stalled).await;
    // The same over HTTP/1.1, where the kernel's buffers fill up.
    let mut reader = port.tls(2, "http/1.1").await;
    reader.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    tokio::time::sleep(2 * SOON).await;
    assert!(until_cut(&mut reader).await < BIG_BYTES, "what was not taken in time is not sent");
    assert!(timeout(SOON, known.read_u8()).await.is_err(), "it is bounded by its age");
}

/// Requests of a slow client, sent byte by byte, by protocol.
const SLOW: [(&str, &str, &[u8]); 5] = [
    ("a head", "http/1.1", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "),
    ("a preface", "h2", PREFACE),
    ("nothing behind the preface", "h2", b"\0"),
    ("headers without an end", "h2", b"\0\0\x0e\x01\x01\0\0\0\x01"),
    ("a body", "http/1.1", b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n"),
];

#[tokio::test]
async fn a_client_that_sends_byte_by_byte_is_cut_in_time() {
    let patience = Patience { first_request: SOON, unknown: SOON, known: SOON };
    let port = DaemonPort::new(Bounds { patience, handshake: SOON, ..BOUNDS });
    // No byte at all, and a hello that never ends.
    until_cut(&mut port.tcp(2).await).await;
    let mut hello = port.tcp(2).await;
    hello.write_all(b"\x16\x03\x01\x02\0\x01").await.expect("sent");
    until_cut(&mut hello).await;
    for (what, protocol, bytes) in SLOW {
        let mut client = port.tls(2, protocol).await;
        if protocol == "h2" && bytes != PREFACE {
            let begun = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
            client.write_all(&begun).await.expect("sent");
        }
        let (mut from, mut to) = tokio::io::split(client);
        let drip = async {
            for byte in bytes.iter().chain(std::iter::repeat(&b'x')) {
                tokio::time::sleep(SOON / 20).await;
                if to.write_all(&[*byte]).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            _ = until_cut(&mut from) => {}
            () = drip => panic!("{what}"),
        }
    }
    // The second head as well.
    let mut client = port.tls(2, "http/1.1").await;
    ask(&mut client, "/healthz", "\r\n\r\nok").await;
    client.write_all(b"GET /healthz HTTP/1.1\r\nX-Slow: ").await.expect("sent");
    until_cut(&mut client).await;
}

#[tokio::test]
async fn handshake_rate_of_an_address_does_not_delay_other_addresses() {
    let one = Rate { per_second: 0.001, burst: 1 };
    let many = Rate { per_second: 1000.0, burst: 1000 };
    let handshakes = TurnLimits { rate: many, peer_rate: one, ..BOUNDS.handshakes };
    let port = DaemonPort::new(Bounds { handshakes, handshake: SOON, ..BOUNDS });
    let first = port.try_tls(2, None, "http/1.1").await;
    ask(&mut first.expect("it has its turn"), "/healthz", "\r\n\r\nok").await;
    let second = port.try_tls(2, None, "http/1.1").await;
    assert!(second.is_err(), "there is no turn in time");
    ask(&mut port.tls(3, "http/1.1").await, "/healthz", "\r\n\r\nok").await;
}

/// The ports without credentials: all clients are unknown there, and a request protects no
/// connection.
#[tokio::test]
async fn readers_that_stall_do_not_shut_a_plain_port() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("set");
    let address = listener.local_addr().expect("bound");
    let service: super::listen::Service = Arc::new(|asked| {
        Box::pin(async move {
            match asked.path.as_str() {
                "/big" => HttpAnswer::text(200, "x".repeat(BIG_BYTES / 8)),
                _ => HttpAnswer::text(200, "ok"),
            }
        })
    });
    tokio::spawn(accept(Listener::Tcp(listener, address), Takes::Reads, service, || {}));
    let connect = |from: u8| async move {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0))).expect("bound");
        socket.connect(address).await.expect("connected")
    };
    let mut stalled = Vec::new();
    for from in [2, 3] {
        for _ in 0..48 {
            let mut client = connect(from).await;
            client.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
            let mut begun = [0; 12];
            if client.read_exact(&mut begun).await.is_ok() {
                stalled.push(client);
            }
        }
    }
    for _ in 0..NEWCOMERS {
        ask(&mut connect(1).await, "/healthz", "\r\n\r\nok").await;
    }
    assert!(stalled.len() >= 64, "{}", stalled.len());
}
