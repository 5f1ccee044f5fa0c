//! Clients that harm: silent ones, slow ones, floods. In each case an authorized client is answered
//! long before any of the attackers' own time is up, over connections that are made meanwhile and
//! over one that was there before. All come from one address, which is the worst case for shares.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pintle_agent_core::testing::{snapshot_of, view};
use pintle_daemon::serve::https::LIMITS;
use serde_json::json;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::https::{Secured, anybody, resident_kib};

/// More than the server keeps connections of any kind.
const ATTACKERS: usize = 700;
/// Longest delay of an authorized client by an attack, on top of what the machine is slow by
/// itself. No attacker's handshake or request is given up this early, so an answer did not wait for
/// that.
const PROMPT: Duration = Duration::from_secs(5);
/// Limit of an answer's time, as a multiple of the time of a server without an attack.
const SLOWER: u32 = 20;
/// Number of measured answers.
const ASKS: usize = 10;
/// Bytes of a flood that is not stopped.
const FLOOD_BYTES: usize = 256 << 20;

type Tls = StreamOwned<ClientConnection, TcpStream>;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";
/// `GET /` of `x`, as HPACK.
const GET: &[u8] = b"\x82\x84\x87\x41\x01x";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn with_h2(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// A server, a client that has asked before, and room for descriptors.
struct Attacked {
    secured: Secured,
    /// Another server, without an attack, on the same machine at the same time.
    quiet: Secured,
    before: Tls,
}

impl Attacked {
    fn new() -> Self {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
        let (secured, quiet) = (Secured::new(|_| {}), Secured::new(|_| {}));
        let before = secured.connect(secured.ca.user("admin"));
        let mut attacked = Self { secured, quiet, before };
        attacked.ask_again();
        attacked
    }

    fn raw(&self) -> TcpStream {
        TcpStream::connect(self.secured.server.https.expect("a port")).expect("connected")
    }

    /// After the handshake.
    fn tls(&self, config: ClientConfig) -> Option<Tls> {
        let mut stream = self.secured.connect(config);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).ok()?;
        }
        Some(stream)
    }

    /// Over the connection that was there before.
    fn ask_again(&mut self) {
        self.before.write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            let mut byte = [0];
            self.before.read_exact(&mut byte).expect("the connection is kept");
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }

    /// Authorized clients are served.
    fn check_served(&mut self) {
        let (mut quiet, mut attacked) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ASKS {
            let begun = Instant::now();
            ask(&self.quiet);
            quiet += begun.elapsed();
            let begun = Instant::now();
            ask(&self.secured);
            self.ask_again();
            attacked += begun.elapsed();
        }
        assert!(attacked < PROMPT + SLOWER * quiet, "{attacked:?}, without an attack {quiet:?}");
    }

    /// Runs floods on threads of their own while authorized clients are served.
    fn is_served_during(&mut self, config: &ClientConfig, bytes: &[u8]) -> Vec<bool> {
        let stop = Arc::new(AtomicBool::new(false));
        let floods: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = self.tls(config.clone()).expect("a handshake");
                stream.write_all(PREFACE).expect("sent");
                let (stop, bytes) = (Arc::clone(&stop), bytes.to_vec());
                std::thread::spawn(move || flood(&mut stream, &bytes, &stop))
            })
            .collect();
        self.check_served();
        stop.store(true, Ordering::Relaxed);
        floods.into_iter().map(|flood| flood.join().expect("no panic")).collect()
    }
}

/// Over connections of its own, with a certificate and with a token.
fn ask(server: &Secured) {
    let admin = server.ca.user("admin");
    assert_eq!(server.ask_as(admin, "GET /pods", "").status, 200);
    assert_eq!(server.ask("GET /pods", "admin").status, 200);
}

/// Sends without end; true when the server put an end to it.
fn flood(stream: &mut Tls, bytes: &[u8], stop: &AtomicBool) -> bool {
    stream.sock.set_write_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut sent = 0;
    while sent < FLOOD_BYTES {
        match stream.write_all(bytes).and_then(|()| stream.flush()) {
            Ok(()) => sent += bytes.len(),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
            Err(_) => return true,
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
    false
}

#[test]
fn silent_connections_do_not_block_other_clients() {
    let mut attacked = Attacked::new();
    let silent: Vec<_> = (0..ATTACKERS).map(|_| attacked.raw()).collect();
    attacked.check_served();
    // Those that are younger than the bound are still there, the others have made room.
    let open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("set");
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let open = silent.iter().filter(|stream| open(stream)).count();
    assert!(open <= LIMITS.unknown.per_peer, "{open}");
}

#[test]
fn unfinished_handshakes_do_not_block_other_clients() {
    let mut attacked = Attacked::new();
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from("node").expect("a name");
    let mut hello = ClientConnection::new(Arc::new(anybody()), name).expect("a client");
    let mut bytes = Vec::new();
    hello.write_tls(&mut bytes).expect("a hello");
    let halves: Vec<_> = (0..ATTACKERS)
        .map(|index| {
            let mut stream = attacked.raw();
            let _ = stream.write_all(&bytes[..bytes.len() * (index % 2 + 1) / 2]);
            stream
        })
        .collect();
    attacked.check_served();
    drop(halves);
}

#[test]
fn idle_h2_connections_do_not_block_other_clients() {
    let mut attacked = Attacked::new();
    let config = with_h2(anybody());
    let mut idle = Vec::new();
    for _ in 0..ATTACKERS {
        if let Some(mut stream) = attacked.tls(config.clone()) {
            let _ = stream.write_all(PREFACE);
            idle.push(stream);
        }
    }
    attacked.check_served();
    drop(idle);
}

#[test]
fn unfinished_requests_do_not_block_other_clients() {
    let mut attacked = Attacked::new();
    let mut halves = Vec::new();
    for _ in 0..ATTACKERS {
        if let Some(mut stream) = attacked.tls(anybody()) {
            let _ = stream.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\nX-Slow: ");
            halves.push(stream);
        }
    }
    attacked.check_served();
    drop(halves);
}

#[test]
fn connections_of_an_authenticated_user_do_not_block_other_users() {
    let mut attacked = Attacked::new();
    let config = attacked.secured.ca.user("eve");
    let mut idle = Vec::new();
    for _ in 0..ATTACKERS {
        idle.extend(attacked.tls(config.clone()));
    }
    attacked.ask_again();
    attacked.check_served();
    drop(idle);
}

#[test]
fn heads_without_end_are_cut() {
    let mut attacked = Attacked::new();
    let mut bombs = Vec::new();
    for _ in 0..LIMITS.unknown.per_peer {
        let Some(mut stream) = attacked.tls(anybody()) else { continue };
        let _ = stream.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n");
        for number in 0..512 {
            let line = format!("X-{number}: {}\r\n", "x".repeat(8000));
            if stream.write_all(line.as_bytes()).is_err() {
                break;
            }
        }
        bombs.push(stream);
    }
    attacked.check_served();
    for mut bomb in bombs {
        let mut answer = Vec::new();
        let _ = bomb.read_to_end(&mut answer); // reset: the sent bytes are not read to their end
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn frame_floods_of_unauthenticated_clients_are_cut_off() {
    let mut attacked = Attacked::new();
    let reset = |stream: u32| {
        let mut both = frame(1, 0x5, stream, GET);
        both.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
        both
    };
    let pings = PING.repeat(200);
    let settings = frame(4, 0, 0, &[]).repeat(200);
    let resets: Vec<u8> = (0..10_000).flat_map(|number| reset(2 * number + 1)).collect();
    let mut heads = frame(1, 0, 1, GET);
    heads.extend(frame(9, 0, 1, &[b'\0'; 1000]).repeat(100));
    let windows = frame(8, 0, 0, &1_u32.to_be_bytes()).repeat(200);
    let config = with_h2(anybody());
    for (what, bytes) in [
        ("pings", pings),
        ("settings", settings),
        ("resets", resets),
        ("continuations", heads),
        ("windows", windows),
    ] {
        let cut = attacked.is_served_during(&config, &bytes);
        assert_eq!(cut, [true; 4], "{what}");
    }
}

#[test]
fn frame_floods_of_an_authenticated_client_do_not_block_other_clients() {
    let mut attacked = Attacked::new();
    let config = with_h2(attacked.secured.ca.user("eve"));
    let requests: Vec<u8> =
        (0..20_000).flat_map(|number| frame(1, 0x5, 2 * number + 1, GET)).collect();
    for bytes in [PING.repeat(200), requests] {
        attacked.is_served_during(&config, &bytes);
    }
}

#[test]
fn clients_that_never_read_share_a_single_response_in_memory() {
    let mut attacked = Attacked::new();
    let text = "x".repeat(8 << 20);
    let pod = view(json!({"metadata": {"namespace": "default", "name": "web", "uid": "u",
        "annotations": {"a": text}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}));
    attacked.secured.world.parts.views.store(snapshot_of(vec![pod]));
    let config = attacked.secured.ca.user("admin");
    let before = resident_kib();
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let mut stream = attacked.tls(config.clone()).expect("a handshake");
        stream.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut first = [0; 12];
        stream.read_exact(&mut first).expect("an answer has begun");
        assert_eq!(&first, b"HTTP/1.1 200");
        stalled.push(stream);
    }
    attacked.check_served();
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 400 << 10, "{grown} KiB: the answer is held once, not for each reader");
}
