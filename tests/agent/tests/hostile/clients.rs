//! Attacks of clients, known and unknown, on the agent's ports.
//!
//! All of them come from the bystander's own address: a limit by address must not hit it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pintle_testbed::TestNode;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{container, pod, script};
use pintle_testbed::node::NODE_NAME;
use xtask::node::agent::{HEALTH_PORT, READ_ONLY_PORT};
use xtask::node::http::{self, NodeHttpRequest};

use crate::ground::AttackedNode;
use crate::port::{H2_PREFACE, NodePort, Stream, Who};
use crate::support::{Flood, running};

attacks!(AttackedNode, "clients":
    seven_hundred_that_say_nothing,
    seven_hundred_idle_with_h2,
    heads_that_drip,
    idle_at_the_plain_ports,
    tokens_without_number,
    scrapes_all_at_once,
    followers_that_never_read,
    commands_and_ports_that_nobody_reads,
    numbers_in_questions,
);

/// Connections of an attack: more than any listener takes at once.
const CROWD: usize = 700;

/// How long new clients of a crowd are started: slower ones are not worth the wait.
const GATHER_MAX: Duration = Duration::from_secs(8);

/// Runs `one` in the node's network from several threads until there are so many results; those
/// that are refused are the node's good right.
fn crowd<T: Send>(
    ground: &AttackedNode,
    count: usize,
    one: impl Fn(&TestNode, &NodePort) -> Option<T> + Sync,
) -> Vec<T> {
    const THREADS: usize = 8;
    let (node, port, begin) = (&ground.node, &ground.port, Instant::now());
    thread::scope(|scope| {
        let some = || {
            let turns = (0..count / THREADS).take_while(|_| begin.elapsed() < GATHER_MAX);
            turns.filter_map(|_| one(node, port)).collect::<Vec<T>>()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
    })
}

/// Connections to the port without a single byte.
fn seven_hundred_that_say_nothing(ground: &mut AttackedNode) {
    let silent = crowd(ground, CROWD, |node, port| port.socket(node).ok());
    assert!(silent.len() > CROWD / 2, "{} of them were taken", silent.len());
    ground.answers("beside silent connections");
    ground.bystander("beside silent connections");
}

/// Connections that finish their handshake and send the preface of an h2 client, and no more.
fn seven_hundred_idle_with_h2(ground: &mut AttackedNode) {
    let idle = crowd(ground, CROWD, |node, port| {
        let socket = port.socket(node).ok()?;
        // A handshake without an answer is given up, and the next one begins.
        socket.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        let mut stream = port.on(socket, Who::NobodyWithH2).ok()?;
        stream.write_all(H2_PREFACE).ok()?;
        stream.flush().ok()?;
        Some(stream)
    });
    assert!(!idle.is_empty(), "none of them was taken");
    ground.answers("beside idle connections");
    ground.bystander("beside idle connections");
}

/// Requests that send their heads a byte at a time.
fn heads_that_drip(ground: &mut AttackedNode) {
    let mut streams: Vec<Stream> = crowd(ground, 304, |node, port| {
        let mut stream = port.connect(node, Who::Nobody).ok()?;
        stream.write_all(b"GET /pods HTTP/1.1\r\nX: ").ok()?;
        stream.flush().ok()?;
        Some(stream)
    });
    thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let streams = &mut streams;
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(200)).is_err() {
                streams.retain_mut(|s| s.write_all(b"x").and_then(|()| s.flush()).is_ok());
                if streams.is_empty() {
                    break;
                }
            }
        });
        // Sent, also when the bystander fails.
        struct Stop(std::sync::mpsc::Sender<()>);
        impl Drop for Stop {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let _stop = Stop(stop);
        ground.bystander("while heads drip");
    });
}

/// More connections than the plain ports take, idle or with half a request.
fn idle_at_the_plain_ports(ground: &mut AttackedNode) {
    let at = |node: &TestNode, port: u16| -> Option<TcpStream> {
        node.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).ok()
    };
    let silent = crowd(ground, 96, |node, _| at(node, HEALTH_PORT));
    let half = crowd(ground, 96, |node, _| {
        let mut stream = at(node, READ_ONLY_PORT)?;
        stream.write_all(b"GET /pods HTTP/1.1\r\nHost: ").ok()?;
        Some(stream)
    });
    ground.answers("beside them");
    ground.bystander("beside them");
    drop((silent, half));
}

/// Requests with invalid tokens, a new one each time, as fast as they are refused.
fn tokens_without_number(ground: &mut AttackedNode) {
    let streams = crowd(ground, 16, |node, port| port.connect(node, Who::Nobody).ok());
    let streams = std::sync::Mutex::new(streams);
    let flood = Flood::start(2, move || {
        let mut streams = streams.lock().expect("no panic");
        for (n, stream) in streams.iter_mut().enumerate() {
            let token = format!("{n}.{:?}", std::time::Instant::now());
            let token: String = token.chars().filter(char::is_ascii_alphanumeric).collect();
            let _ = write!(
                stream,
                "GET /pods HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {token}\r\n\r\n"
            );
            let _ = stream.flush();
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    ground.bystander("while tokens are refused");
    drop(flood);
}

/// Fifty scrapers of everything there is to scrape, all the time.
fn scrapes_all_at_once(ground: &mut AttackedNode) {
    let containers: Vec<_> =
        (0..10).map(|n| container(&format!("c{n}"), &["/box", "pause"])).collect();
    for n in 0..2 {
        ground.node.put(&format!("many{n}.json"), &pod(&format!("many{n}"), &containers));
    }
    for n in 0..2 {
        running(&ground.node, &format!("many{n}"), &["c0", "c9"]);
    }
    let paths = [
        "/metrics",
        "/pods",
        "/metrics/cadvisor",
        "/metrics/resource",
        "/metrics/probes",
        "/stats/summary",
    ];
    thread::scope(|scope| {
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        for n in 0..50 {
            let (is_over, node) = (is_over.clone(), &ground.node);
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = node.get(READ_ONLY_PORT, paths[n % paths.len()]);
                }
            });
        }
        struct AttackOver(Arc<std::sync::atomic::AtomicBool>);
        impl Drop for AttackOver {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let _over = AttackOver(is_over);
        ground.bystander("while everything is scraped");
    });
}

/// Two hundred clients that follow one loud log and never read a byte.
fn followers_that_never_read(ground: &mut AttackedNode) {
    ground.node.put("loud.json", &pod("loud", &[container("c", &["/box", "log", "1000000"])]));
    running(&ground.node, "loud", &["c"]);
    let path = format!("/containerLogs/default/loud-{NODE_NAME}/c?follow=true");
    let followers = crowd(ground, 200, |node, port| {
        let mut stream = port.connect(node, Who::Known).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").ok()?;
        stream.flush().ok()?;
        Some(stream)
    });
    assert_eq!(followers.len(), 200, "followers with a certificate are taken");
    ground.bystander("beside followers");
}

/// Commands that print without end, and forwarded ports that answer without end, all unread.
fn commands_and_ports_that_nobody_reads(ground: &mut AttackedNode) {
    let loud = pod(
        "loud",
        &[script("c", "exec /box pause"), container("rude", &["/box", "rude", "body=9001"])],
    );
    ground.node.put("loud.json", &loud);
    running(&ground.node, "loud", &["c", "rude"]);
    let exec = format!("/exec/default/loud-{NODE_NAME}/c?command=yes&output=1");
    let forward = format!("/portForward/default/loud-{NODE_NAME}?port=9001");
    let commands = crowd(ground, 24, |node, port| port.upgraded(node, &exec).ok());
    assert_eq!(commands.len(), 24, "commands run");
    let ports = crowd(ground, 24, |node, port| {
        let mut stream = port.connect(node, Who::Known).ok()?;
        write!(
            stream,
            "POST {forward} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\n\
            Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
        )
        .ok()?;
        stream.flush().ok()?;
        Some(stream)
    });
    ground.bystander("beside unread streams");
    drop((commands, ports));
}

/// Numbers in queries that are too large for every type, negative, or none.
fn numbers_in_questions(ground: &mut AttackedNode) {
    ground.node.put("web.json", &pod("web", &[script("c", "echo said; exec /box pause")]));
    running(&ground.node, "web", &["c"]);
    let log = |query: &str| ("GET", format!("/containerLogs/default/web-{NODE_NAME}/c?{query}"));
    let mut questions = Vec::new();
    for field in ["tailLines", "sinceSeconds", "limitBytes"] {
        for number in [
            "9223372036854775807",
            "-9223372036854775808",
            "0",
            "1e400",
            "99999999999999999999",
            "",
        ] {
            questions.push(log(&format!("{field}={number}")));
        }
    }
    questions.push(log("sinceTime=999999-01-01T00:00:00Z"));
    questions.push(log("sinceTime=0000-01-01T00:00:00Z"));
    questions.push(log("tailLines=9223372036854775807&limitBytes=1"));
    for timeout in ["1000000000000000000", "-1", "18446744073709551615", "x"] {
        questions
            .push(("POST", format!("/checkpoint/default/web-{NODE_NAME}/c?timeout={timeout}")));
    }
    questions.push(("GET", "/logs/../../../etc/shadow".to_owned()));
    questions.push(("GET", "/logs/%2e%2e/%2e%2e/etc/shadow".to_owned()));
    questions.push(("GET", "/logs/?query=kubelet&tailLines=9223372036854775807".to_owned()));
    questions.push(("GET", format!("/pods?{}", "a=b&".repeat(10_000))));
    questions.push(("GET", format!("/{}", "x/".repeat(20_000))));
    questions.push(("PUT", "/pods".to_owned()));
    for (method, path) in &questions {
        let stream = ground.port.connect(&ground.node, Who::Known).expect("it is taken");
        let request = NodeHttpRequest { method, path, content_type: "", body: "" };
        let answer = http::send(stream, request);
        let shown: String = path.chars().take(80).collect();
        let answer = answer.unwrap_or_else(|e| panic!("{method} {shown} is answered: {e:#}"));
        assert!(!answer.body.contains("root:"), "{shown}");
    }
    ground.bystander("after them");
}
