//! A server with switchable health, for probes: HTTP, TCP and gRPC share one state.
//!
//! HTTP answers any path: 200 when healthy, 503 when not, never while it hangs. These paths switch:
//! `/set/healthy`, `/set/unhealthy`, `/set/hang`; `/exit/CODE` ends the program; `/count` returns
//! the number of health requests. When unhealthy the TCP port is closed and gRPC says NOT_SERVING.
//! The server starts healthy, after `delay` milliseconds.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::{Outcome, grpc, pause};

/// How long a hanging answer takes: longer than any probe's timeout.
const HANG: Duration = Duration::from_secs(3600);
/// How often the TCP port follows the state.
const TCP_POLL: Duration = Duration::from_millis(20);

/// The server's current state.
#[derive(Default)]
pub(crate) struct ServedHealth {
    mode: AtomicU8,
    requests: AtomicU64,
}

const HEALTHY: u8 = 0;
const UNHEALTHY: u8 = 1;
const HANGING: u8 = 2;

impl ServedHealth {
    /// Waits while hanging, counts the request, and says whether it is healthy.
    pub(crate) fn ask(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.mode.load(Ordering::Relaxed) == HANGING {
            thread::sleep(HANG);
        }
        self.mode.load(Ordering::Relaxed) == HEALTHY
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::Relaxed);
    }
}

pub(crate) fn run(options: &[&str]) -> Outcome {
    let health = Arc::new(ServedHealth::default());
    let value = |name: &str| options.iter().find_map(|o| o.strip_prefix(name)?.strip_prefix('='));
    if let Some(ms) = value("delay") {
        thread::sleep(Duration::from_millis(ms.parse()?));
    }
    if let Some(port) = value("http") {
        let listener = TcpListener::bind(format!("[::]:{port}"))?;
        let health = health.clone();
        thread::spawn(move || each(&listener, &health, http));
    }
    if let Some(port) = value("grpc") {
        let listener = TcpListener::bind(format!("[::]:{port}"))?;
        let health = health.clone();
        thread::spawn(move || each(&listener, &health, grpc::serve));
    }
    if let Some(port) = value("tcp") {
        let address = format!("[::]:{port}");
        let health = health.clone();
        thread::spawn(move || tcp(&address, &health));
    }
    println!("serving");
    pause()
}

/// One thread a connection.
fn each(
    listener: &TcpListener,
    health: &Arc<ServedHealth>,
    answer: fn(TcpStream, &ServedHealth) -> std::io::Result<()>,
) {
    for stream in listener.incoming().flatten() {
        let health = health.clone();
        thread::spawn(move || {
            let _ = answer(stream, &health); // a client that went away is no failure of ours
        });
    }
}

fn http(stream: TcpStream, health: &ServedHealth) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut headers = String::new();
    while let Some(line) = lines.next().transpose()?.filter(|l| !l.is_empty()) {
        headers.push_str(&line);
        headers.push('\n');
    }
    let path = request.split(' ').nth(1).unwrap_or("/");
    let (status, body) = match path {
        "/set/healthy" => (200, set(health, HEALTHY)),
        "/set/unhealthy" => (200, set(health, UNHEALTHY)),
        "/set/hang" => (200, set(health, HANGING)),
        "/count" => (200, health.requests.load(Ordering::Relaxed).to_string()),
        "/headers" => (200, headers),
        "/hostname" => (200, std::fs::read_to_string("/etc/hostname").unwrap_or_default()),
        "/redirect" => return redirect(stream),
        _ if path.starts_with("/exit/") => {
            std::process::exit(path["/exit/".len()..].parse().unwrap_or(0))
        }
        _ if health.ask() => (200, "healthy".to_owned()),
        _ => (503, "unhealthy".to_owned()),
    };
    let length = body.len();
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status} {}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}",
        if status == 200 { "OK" } else { "Service Unavailable" }
    )
}

fn redirect(mut stream: TcpStream) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 302 Found\r\nLocation: /healthy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

fn set(health: &ServedHealth, mode: u8) -> String {
    health.set(mode);
    "set".to_owned()
}

/// Listens only while healthy.
fn tcp(address: &str, health: &ServedHealth) {
    let mut listener: Option<TcpListener> = None;
    loop {
        let is_healthy = health.mode.load(Ordering::Relaxed) == HEALTHY;
        match (&listener, is_healthy) {
            (None, true) => {
                listener = TcpListener::bind(address).ok();
                if let Some(l) = &listener {
                    let _ = l.set_nonblocking(true);
                }
            }
            (Some(_), false) => listener = None,
            (Some(l), true) => drop(l.accept()),
            (None, false) => {}
        }
        thread::sleep(TCP_POLL);
    }
}
