//! The process when a plugin blocks its deciding thread, or panics.
#![allow(missing_docs)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pintle_memory_http::{HttpServer, SharedServer};
use serde_json::{Value, json};

/// Far longer than any step here takes.
const LONG: Duration = Duration::from_secs(120);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/d/pods/{name}")
}

/// An API server with a node and some pods, by name and what a plugin does with them.
fn server(pods: &[(&str, &str)]) -> HttpServer {
    let server = HttpServer::start(SharedServer::new(1)).expect("a port and a thread");
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    server.put("/api/v1/nodes/n", json!({"status": {"allocatable": room}}));
    for (name, stuck) in pods {
        let pod = json!({"metadata": {"labels": {"example.pintle.dev/stuck": stuck}},
            "spec": {"schedulerName": "default-scheduler",
                "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Pending"}});
        server.put(&path(name), pod);
    }
    server
}

/// Waits until an object has a field.
fn until(server: &HttpServer, path: &str, has: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while !server.get(path).is_some_and(|object| has(&object)) {
        assert!(began.elapsed() < LONG, "{path}: {:?}", server.requests());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The identity that a lease has.
fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

/// Starts the example's scheduler with the plugin; returns it with the lines of its log.
fn started(name: &str, server: &HttpServer, elects: bool) -> (Child, mpsc::Receiver<String>) {
    let config = format!("{}/{name}.yaml", env!("CARGO_TARGET_TMPDIR"));
    let text = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": elects},
        "profiles": [{"schedulerName": "default-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": "Stuck"}]}}}]});
    std::fs::write(&config, text.to_string()).expect("a file");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pintle-own-plugins"))
        .args([&format!("--master={}", server.url()), &format!("--config={config}")])
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
        let server = server(&[("bad", "blocks")]);
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
fn panicking_plugin_fails_only_the_pod_under_decision() {
    let server = server(&[("bad", "panics"), ("good", "")]);
    let (mut child, lines) = started("panics", &server, false);
    until_logged(&lines, "Stuck panics");
    until(&server, &path("good"), |pod| pod["spec"]["nodeName"] == "n");
    terminate(&child);
    assert_eq!(ended(&mut child), Some(0));
}

#[test]
#[ignore = "takes more than a minute"]
fn watchdog_ends_lease_and_process_when_the_deciding_thread_is_stuck() {
    let server = server(&[("bad", "blocks")]);
    let (mut child, lines) = started("watchdog", &server, true);
    until(&server, LEASE, |lease| !holder(lease).is_empty());
    until_logged(&lines, "Stuck blocks");
    let began = Instant::now();
    until_logged(&lines, "the deciding thread is stuck");
    assert!(began.elapsed() > Duration::from_secs(50), "{:?}", began.elapsed());
    assert_eq!(ended(&mut child), Some(1));
    let lease = server.get(LEASE).expect("it was taken");
    assert_eq!(holder(&lease), "", "released: {lease}");
}
