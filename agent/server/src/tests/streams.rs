//! Streams through the HTTPS port to a runtime: allowed and refused ones, and which of them wait.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pintle_agent_core::testing::{snapshot_of, view};
use pintle_cri::fake::FakeRuntime;
use serde_json::json;

use super::https::{Secured, anybody};

/// A runtime with the test as its streaming server.
struct Streaming {
    secured: Secured,
    listener: TcpListener,
    _runtime: FakeRuntime,
}

impl Streaming {
    fn new() -> Self {
        let secured = Secured::new(|_| {});
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = secured.world.dir.path().join("cri.sock");
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let started = tokio.expect("a runtime").block_on(FakeRuntime::start(&socket));
        let runtime = started.expect("a fake runtime");
        runtime.set_streaming_port(listener.local_addr().expect("bound").port());
        let mut pod = view(json!({"metadata": {"namespace": "default", "name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "x"}]}}));
        let mut observed = (*pod.observed).clone();
        observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
        pod.observed = Arc::new(observed);
        secured.world.parts.views.store(snapshot_of(vec![pod]));
        Self { secured, listener, _runtime: runtime }
    }

    /// The client's end of a port-forward after its request was sent.
    fn open(&self, headers: &str) -> impl std::io::Read + std::io::Write {
        let mut client = self.secured.connect(anybody());
        write!(
            client,
            "POST /portForward/default/web HTTP/1.1\r\nHost: x\r\n\
             Authorization: Bearer admin\r\nConnection: Upgrade\r\n{headers}\r\n"
        )
        .expect("sent");
        client
    }

    /// The runtime's end, and the head of the request that came.
    fn accept(&self) -> (TcpStream, String) {
        let (mut stream, _) = self.listener.accept().expect("the server connects");
        let head = head(&mut stream);
        (stream, head)
    }
}

fn head(stream: &mut impl std::io::Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text").to_ascii_lowercase()
}

const SPDY: &str = "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n";
const UPGRADED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n";

#[test]
fn spdy_is_proxied_unchanged_and_without_credentials() {
    let streaming = Streaming::new();
    let mut client = streaming.open(SPDY);
    let (mut runtime, asked) = streaming.accept();
    assert!(asked.starts_with("post /portforward/token http/1.1\r\n"), "{asked}");
    assert!(asked.contains("upgrade: spdy/3.1\r\n"), "{asked}");
    assert!(asked.contains("x-forwarded-for: 127.0.0.1\r\n"), "{asked}");
    assert!(!asked.contains("authorization"), "{asked}");
    // Bytes right behind the head belong to the stream.
    runtime.write_all(UPGRADED).expect("sent");
    runtime.write_all(b"from the runtime").expect("sent");
    let answer = head(&mut client);
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("x-stream-protocol-version: portforward.k8s.io\r\n"), "{answer}");
    let mut got = [0; 16];
    client.read_exact(&mut got).expect("bytes");
    assert_eq!(&got, b"from the runtime");
    client.write_all(b"from the client").expect("sent");
    client.flush().expect("sent");
    let mut got = [0; 15];
    runtime.read_exact(&mut got).expect("bytes");
    assert_eq!(&got, b"from the client");
    drop(runtime);
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    assert!(rest.is_empty(), "the runtime's end is the client's");
}

#[test]
fn a_token_among_the_protocols_lets_in_and_does_not_reach_the_runtime() {
    let streaming = Streaming::new();
    let open = |token: &str| {
        let mut client = streaming.secured.connect(anybody());
        write!(
            client,
            "GET /portForward/default/web?port=80 HTTP/1.1\r\nHost: x\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n{token}\r\n"
        )
        .expect("sent");
        client
    };
    let header = |token: &str| {
        format!("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{token}\r\n")
    };
    let good = header("YWRtaW4"); // admin
    let _client = open(&good);
    let (_runtime, asked) = streaming.accept();
    assert!(asked.contains("sec-websocket-protocol: v4.channel.k8s.io\r\n"), "{asked}");
    assert!(!asked.contains("bearer"), "{asked}");
    for bad in [header("YWRtaW4="), header("!"), format!("{good}{good}"), header("dW5rbm93bg")] {
        assert!(head(&mut open(&bad)).starts_with("http/1.1 401 "), "{bad}");
    }
}

#[test]
fn a_tunnel_is_a_websocket_to_the_client_and_spdy_to_the_runtime() {
    let streaming = Streaming::new();
    let mut client = streaming.open(
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n",
    );
    let (mut runtime, asked) = streaming.accept();
    assert!(asked.contains("upgrade: spdy/3.1\r\n") && !asked.contains("websocket"), "{asked}");
    runtime.write_all(UPGRADED).expect("sent");
    let answer = head(&mut client);
    assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    assert!(answer.contains("sec-websocket-protocol: spdy/3.1+portforward.k8s.io"), "{answer}");
    runtime.write_all(b"abc").expect("sent");
    let mut frame = [0; 5];
    client.read_exact(&mut frame).expect("a message");
    assert_eq!(&frame, b"\x82\x03abc");
}

#[test]
fn a_refusal_of_the_runtime_is_passed_on() {
    let streaming = Streaming::new();
    let mut client = streaming.open(SPDY);
    let (mut runtime, _) = streaming.accept();
    runtime.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\ntoken").expect("sent");
    assert!(head(&mut client).starts_with("http/1.1 404 "));
    let mut body = [0; 5];
    client.read_exact(&mut body).expect("a body");
    assert_eq!(&body, b"token");
}

#[test]
fn stalled_client_blocks_only_its_own_runtime_stream() {
    let streaming = Streaming::new();
    let mut client = streaming.open(SPDY);
    let (mut runtime, _) = streaming.accept();
    runtime.write_all(UPGRADED).expect("sent");
    head(&mut client);
    // Until no more is taken: kernel buffers and two of ours.
    runtime.set_write_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let (full, is_full) = mpsc::channel();
    let flood = std::thread::spawn(move || {
        let piece = [0; 64 * 1024];
        while runtime.write(&piece).is_ok() {}
        full.send(()).expect("the test waits");
        runtime.set_write_timeout(None).expect("no limit");
        while runtime.write(&piece).is_ok() {}
    });
    is_full.recv_timeout(Duration::from_secs(30)).expect("the stream holds up its runtime");
    assert_eq!(streaming.secured.ask("GET /pods", "admin").status, 200, "others are served");
    drop(client);
    flood.join().expect("ends when the client goes");
}

#[test]
fn a_request_that_asks_for_no_upgrade_gets_none() {
    let streaming = Streaming::new();
    let answer = streaming.secured.ask("POST /portForward/default/web", "admin");
    assert_eq!((answer.status, answer.body.as_str()), (500, "Upgrade request required\n"));
}
