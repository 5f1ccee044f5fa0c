//! The process when a plugin blocks its deciding thread, or panics.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Far longer than any step here takes.
const LONG: Duration = Duration::from_secs(120);

/// An API server with a node and some pods, on threads of its own; requests are sent to the
/// channel.
struct Server {
    url: String,
    asked: mpsc::Receiver<(String, Value)>,
}

fn pod(name: &str, stuck: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1",
            "labels": {"example.pintle.dev/stuck": stuck}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}]}})
}

impl Server {
    fn new(pods: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, asked) = mpsc::channel();
        let lease = Arc::new(Mutex::new(None));
        std::thread::spawn(move || {
            for peer in listener.incoming().map_while(Result::ok) {
                let (tell, pods, lease) = (tell.clone(), pods.clone(), Arc::clone(&lease));
                std::thread::spawn(move || talk(peer, &tell, (&pods, &lease)));
            }
        });
        Self { url, asked }
    }

    /// Waits for a request; returns its body.
    fn until(&self, what: &str) -> Value {
        let began = Instant::now();
        loop {
            let left = LONG.saturating_sub(began.elapsed());
            let (line, body) = self.asked.recv_timeout(left).unwrap_or_else(|_| panic!("{what}"));
            if line.contains(what) {
                return body;
            }
        }
    }
}

/// Answers one request after the other; a watch gets no answer.
fn talk(
    peer: TcpStream,
    tell: &mpsc::Sender<(String, Value)>,
    (pods, lease): (&[Value], &Mutex<Option<Value>>),
) {
    let mut writer = peer.try_clone().expect("a socket");
    let mut reader = BufReader::new(peer);
    while let Some((line, body)) = request(&mut reader) {
        // The test may be over.
        let _ = tell.send((line.clone(), body.clone()));
        let node = json!({"metadata": {"name": "n", "resourceVersion": "1"},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}});
        let items = match line.as_str() {
            _ if line.contains("watch=true") => continue,
            _ if line.starts_with("GET /api/v1/nodes?") => vec![node],
            _ if line.starts_with("GET /api/v1/pods?") => pods.to_vec(),
            _ => Vec::new(),
        };
        let (code, answer) = match line.as_str() {
            _ if line.contains("/leases/") && line.starts_with("GET") => {
                let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "no", "reason": "NotFound", "code": 404});
                let lease = lease.lock().expect("no panic").clone();
                lease.map_or((404, missing), |lease| (200, lease))
            }
            _ if line.starts_with("GET") => (
                200,
                json!({"kind": "List", "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"}, "items": items}),
            ),
            _ => {
                let mut made = body;
                made["metadata"]["resourceVersion"] = json!("2");
                if line.contains("/leases") {
                    *lease.lock().expect("no panic") = Some(made.clone());
                }
                (201, made)
            }
        };
        let text = answer.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        if writer.write_all((head + &text).as_bytes()).is_err() {
            return;
        }
    }
}

/// Returns method, path and query, and the body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut first, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.parse().expect("a number");
        }
        first.get_or_insert_with(|| line.to_owned());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first?, serde_json::from_slice(&body).unwrap_or_default()))
}

/// Starts the example's scheduler with the plugin; returns it with the lines of its log.
fn started(name: &str, server: &Server, elects: bool) -> (Child, mpsc::Receiver<String>) {
    let config = format!("{}/{name}.yaml", env!("CARGO_TARGET_TMPDIR"));
    let text = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": elects},
        "profiles": [{"schedulerName": "default-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": "Stuck"}]}}}]});
    std::fs::write(&config, text.to_string()).expect("a file");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pintle-own-plugins"))
        .args([&format!("--master={}", server.url), &format!("--config={config}")])
        .arg("--secure-port=0")
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (tell, lines) = mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            println!("log: {line}");
            // The test may be over.
            let _ = tell.send(line);
        }
    });
    (child, lines)
}

fn until_logged(lines: &mpsc::Receiver<String>, what: &str) {
    while !lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what}")).contains(what) {}
}

/// Waits for the end of the process; returns its exit code.
fn ended(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            return status.code();
        }
        if began.elapsed() > LONG {
            child.kill().expect("it is there");
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn terminate(child: &Child) {
    let sent = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status();
    assert!(sent.expect("kill is there").success());
}

#[test]
fn sigterm_ends_a_scheduler_whose_deciding_thread_is_stuck() {
    for signals in [1, 2] {
        let server = Server::new(vec![pod("bad", "blocks")]);
        let (mut child, lines) = started(&format!("sigterm-{signals}"), &server, false);
        until_logged(&lines, "Stuck blocks");
        let began = Instant::now();
        (0..signals).for_each(|_| {
            terminate(&child);
            // Two pending signals count as one.
            std::thread::sleep(Duration::from_millis(500));
        });
        assert_eq!(ended(&mut child), Some(1));
        if signals == 2 {
            assert!(began.elapsed() < Duration::from_secs(4), "a second one ends it at once");
        }
    }
}

#[test]
fn plugin_that_panics_costs_its_pod_alone() {
    let server = Server::new(vec![pod("bad", "panics"), pod("good", "")]);
    let (mut child, lines) = started("panics", &server, false);
    until_logged(&lines, "Stuck panics");
    let binding = server.until("POST /api/v1/namespaces/d/pods/good/binding");
    assert_eq!(binding["target"]["name"], "n");
    terminate(&child);
    assert_eq!(ended(&mut child), Some(0));
}

#[test]
#[ignore = "takes more than a minute"]
fn watchdog_ends_lease_and_process_when_the_deciding_thread_is_stuck() {
    let server = Server::new(vec![pod("bad", "blocks")]);
    let (mut child, lines) = started("watchdog", &server, true);
    let taken = server.until("POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases");
    assert!(taken["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()));
    until_logged(&lines, "Stuck blocks");
    let began = Instant::now();
    until_logged(&lines, "the deciding thread is stuck");
    assert!(began.elapsed() > Duration::from_secs(50), "{:?}", began.elapsed());
    assert_eq!(ended(&mut child), Some(1));
    let mut holders = Vec::new();
    while let Ok((line, body)) = server.asked.try_recv() {
        if line.contains("/leases/") && line.starts_with("PUT") {
            holders.push(body["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned());
        }
    }
    assert_eq!(holders.last().map(String::as_str), Some(""), "released: {holders:?}");
}
