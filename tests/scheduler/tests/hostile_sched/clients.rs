//! Attacks of clients without credentials on the scheduler's HTTPS port.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use pintle_api::AnyServer;
use pintle_testbed::attacks;
use socket2::{Domain, Socket, Type};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::ground::AttackedCluster;
use crate::stand::PORT;

attacks!(AttackedCluster, "clients":
    answers_that_are_never_taken,
    silent_connections,
    heads_without_an_end,
    tokens_without_number,
);

/// Connections of an attack, from two addresses.
const CROWD: usize = 384;
/// How long a crowd may take to gather.
const GATHER_MAX: Duration = Duration::from_secs(20);
/// How long one connection waits for the server.
const WAIT: Duration = Duration::from_secs(2);

/// A connection with TLS.
type Stream = StreamOwned<ClientConnection, TcpStream>;

/// The preface of a client of HTTP/2, with a window of no bytes for each answer, and a request of
/// `/healthz`.
fn request_without_window() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS of 6 bytes: INITIAL_WINDOW_SIZE is 0.
    bytes.extend_from_slice(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // HEADERS of stream 1, complete: GET, https, a path and an authority as they are.
    let mut head = vec![0x82, 0x87, 0x04, 8];
    head.extend_from_slice(b"/healthz");
    head.extend_from_slice(&[0x01, 1, b's']);
    let length = u8::try_from(head.len()).expect("a short head");
    bytes.extend_from_slice(&[0, 0, length, 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&head);
    bytes
}

fn config(protocol: &[u8]) -> Arc<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let trusting = Arc::new(AnyServer::new(&provider));
    let builder = builder.dangerous().with_custom_certificate_verifier(trusting);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

/// A connection from one of this machine's addresses.
fn socket(from: u8) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let address = |last: u8, port: u16| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port));
    socket.bind(&address(from, 0).into())?;
    socket.connect_timeout(&address(1, PORT).into(), WAIT)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.set_write_timeout(Some(WAIT))?;
    Ok(socket.into())
}

fn connect(from: u8, config: &Arc<ClientConfig>) -> Result<Stream> {
    let mut socket = socket(from)?;
    let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut tls = ClientConnection::new(Arc::clone(config), name)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).context("shake hands")?;
    }
    Ok(StreamOwned::new(tls, socket))
}

/// Makes connections until there are enough, from addresses 127.0.0.2 and 127.0.0.3.
fn crowd<T: Send>(ground: &AttackedCluster, one: impl Fn(u8) -> Result<T> + Sync) -> Vec<T> {
    const THREADS: usize = 4;
    let begin = Instant::now();
    let some = || {
        let turns = (0..CROWD / THREADS).take_while(|_| begin.elapsed() < GATHER_MAX);
        turns.filter_map(|at| one(2 + u8::from(at % 2 == 0)).ok()).collect::<Vec<T>>()
    };
    let all = ground.stand.in_network(|| {
        thread::scope(|scope| {
            let one = |_| {
                // A new thread is in the network namespace of its creator.
                scope.spawn(some)
            };
            let threads: Vec<_> = (0..THREADS).map(one).collect();
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect::<Vec<T>>()
        })
    });
    eprintln!("    {} connections", all.len());
    all
}

fn answers_that_are_never_taken(ground: &mut AttackedCluster) {
    let (h2, request) = (config(b"h2"), request_without_window());
    let open = crowd(ground, |from| {
        let mut stream = connect(from, &h2)?;
        stream.write_all(&request)?;
        stream.flush()?;
        Ok(stream)
    });
    assert!(open.len() > CROWD / 4, "{} of them were taken", open.len());
    for _ in 0..9 {
        ground.assert_healthy();
    }
    ground.bystander("beside answers that are never taken");
    drop(open);
}

fn silent_connections(ground: &mut AttackedCluster) {
    let open = crowd(ground, socket);
    assert!(open.len() > CROWD / 4, "{} of them were taken", open.len());
    for _ in 0..9 {
        ground.assert_healthy();
    }
    ground.bystander("beside silent connections");
    drop(open);
}

fn heads_without_an_end(ground: &mut AttackedCluster) {
    let http1 = config(b"http/1.1");
    let open = crowd(ground, |from| {
        let mut stream = connect(from, &http1)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: s\r\nX: ")?;
        stream.flush()?;
        Ok(stream)
    });
    assert!(open.len() > CROWD / 4, "{} of them were taken", open.len());
    for _ in 0..9 {
        ground.assert_healthy();
    }
    ground.bystander("beside heads");
    drop(open);
}

/// Each request has another token, which the scheduler would have to send to the API server.
fn tokens_without_number(ground: &mut AttackedCluster) {
    let http1 = config(b"http/1.1");
    let stand = Arc::clone(&ground.stand);
    thread::scope(|scope| {
        let attack = scope.spawn(|| {
            stand.in_network(|| {
                let mut asked = 0;
                for at in 0..200 {
                    let Ok(mut stream) = connect(2, &http1) else { continue };
                    let head = format!(
                        "GET /metrics HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer t{at}\r\n\
                         Connection: close\r\n\r\n"
                    );
                    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.flush());
                    asked += usize::from(sent.is_ok());
                    // Refused or cut off: either is the server's good right.
                    let _ = stream.read(&mut [0; 1024]);
                }
                asked
            })
        });
        ground.assert_healthy();
        ground.bystander("beside tokens");
        assert!(attack.join().expect("no panic") > 0, "no request was sent");
    });
}
