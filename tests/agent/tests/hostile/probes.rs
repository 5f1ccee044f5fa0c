//! Attacks by a tenant's probes and by the servers that answer them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;

use anyhow::ensure;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{With, container, pod};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::shell;

use crate::ground::AttackedNode;
use crate::support::running;

attacks!(AttackedNode, "probes":
    never_answered_and_never_given_up,
    of_names_that_hang,
    answered_without_end,
    by_commands_that_print_without_end,
    by_commands_that_never_end,
);

/// Containers of the crowd, two probes each.
const CROWD: usize = 136;
/// Pods that share them.
const CROWD_PODS: usize = 4;

/// How often each of their probes is to fail before it counts as a crowd that fails.
const ROUNDS: usize = 3;

/// Attempts that failed, of all probes, on a page of metrics.
fn failed(page: &str) -> usize {
    let lines = page.lines().filter(|line| line.starts_with("prober_probe_total{"));
    let lines = lines.filter(|line| line.contains("result=\"failed\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

/// A crowd of containers, each with this probe as readiness and liveness probe.
fn crowd(ground: &AttackedNode, probe: &Value) {
    let each = |n: usize| {
        let pause = container(&format!("c{n}"), &["/box", "pause"]);
        pause.with("readinessProbe", probe.clone()).with("livenessProbe", probe.clone())
    };
    let containers: Vec<Value> = (0..CROWD / CROWD_PODS).map(each).collect();
    for n in 0..CROWD_PODS {
        ground.node.put(&format!("crowd{n}.json"), &pod(&format!("crowd{n}"), &containers));
    }
    let last = format!("c{}", CROWD / CROWD_PODS - 1);
    for n in 0..CROWD_PODS {
        running(&ground.node, &format!("crowd{n}"), &["c0", &last]);
    }
}

/// A server that takes connections and never answers, and probes of it with endless timeouts.
fn never_answered_and_never_given_up(ground: &mut AttackedNode) {
    let rude = pod("rude", &[container("c", &["/box", "rude", "silent=9001"])])
        .with_spec("hostNetwork", json!(true));
    ground.node.put("rude.json", &rude);
    running(&ground.node, "rude", &["c"]);
    let probe = json!({"httpGet": {"host": "127.0.0.1", "port": 9001, "path": "/"},
        "periodSeconds": 1, "timeoutSeconds": i32::MAX});
    crowd(ground, &probe);
    ground.bystander("while they wait");
}

/// 272 probes a second of a host by its name, where DNS never answers.
fn of_names_that_hang(ground: &mut AttackedNode) {
    let dns = HangingDns::start(ground);
    let probe = json!({"httpGet": {"host": "hangs.example", "port": 80, "path": "/"},
        "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": i32::MAX});
    crowd(ground, &probe);
    // Until what piles up has piled up: each has run out of time again and again.
    until(LONG, "the probes have run out of time", || {
        let page = ground.node.get(10255, "/metrics/probes")?.body;
        let failed = failed(&page);
        ensure!(failed >= ROUNDS * 2 * CROWD, "{failed} attempts failed");
        Ok(())
    });
    ground.bystander("while names are asked for");
    drop(dns);
}

/// A name server inside the node that reads all questions and answers none.
struct HangingDns<'a> {
    ground: &'a AttackedNode,
    _socket: UdpSocket,
}

impl<'a> HangingDns<'a> {
    fn start(ground: &'a AttackedNode) -> Self {
        let node = ground.node.runtime_node();
        let bound =
            node.in_network(|| UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 53))));
        let socket = bound.expect("the node's network").expect("port 53 is free there");
        let file = ground.node.dir().join("hanging-resolv.conf");
        fs::write(&file, "nameserver 127.0.0.1\n").expect("written");
        let mut mount = node.command(Path::new("mount"));
        mount.arg("--bind").arg(&file).arg("/etc/resolv.conf");
        shell::run(&mut mount).expect("mounted in the node only");
        Self { ground, _socket: socket }
    }
}

impl Drop for HangingDns<'_> {
    fn drop(&mut self) {
        let mut umount = self.ground.node.runtime_node().command(Path::new("umount"));
        let _ = shell::run(umount.arg("/etc/resolv.conf"));
    }
}

/// Servers that drip, that send headers or bodies for ever, that redirect to themselves, that
/// speak no gRPC.
fn answered_without_end(ground: &mut AttackedNode) {
    let kinds = ["silent", "drip", "headers", "body", "redirect"];
    let ports: Vec<String> =
        kinds.iter().enumerate().map(|(n, kind)| format!("{kind}={}", 9001 + n)).collect();
    let mut args = vec!["/box", "rude"];
    args.extend(ports.iter().map(String::as_str));
    let rude = container("rude", &args);
    let mut containers = vec![rude];
    for n in 0..kinds.len() {
        let port = 9001 + n;
        let timing = json!({"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1000});
        let http = timing.clone().with("httpGet", json!({"port": port, "path": "/"}));
        let grpc = timing.with("grpc", json!({"port": port}));
        let twice = container(&format!("c{n}"), &["/box", "pause"]);
        containers.push(twice.with("readinessProbe", http).with("livenessProbe", grpc));
    }
    for n in 0..3 {
        ground.node.put(&format!("asked{n}.json"), &pod(&format!("asked{n}"), &containers));
    }
    for n in 0..3 {
        running(&ground.node, &format!("asked{n}"), &["rude", "c0", "c4"]);
    }
    ground.bystander("while they answer");
}

/// Exec probes that print a gigabyte.
fn by_commands_that_print_without_end(ground: &mut AttackedNode) {
    let probe = json!({"exec": {"command": ["sh", "-c", "yes | head -c 1000000000"]},
        "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1000});
    let loud =
        |name: &str| container(name, &["/box", "pause"]).with("readinessProbe", probe.clone());
    ground.node.put("loud.json", &pod("loud", &[loud("a"), loud("b")]));
    running(&ground.node, "loud", &["a", "b"]);
    ground.bystander("while they print");
}

/// Exec probes that never end and ignore SIGTERM.
fn by_commands_that_never_end(ground: &mut AttackedNode) {
    let probe = json!({"exec": {"command": ["sh", "-c", "trap '' TERM INT; while :; do sleep 9; done"]},
        "periodSeconds": 1, "timeoutSeconds": i32::MAX, "failureThreshold": 1000});
    let each = |n: usize| {
        container(&format!("c{n}"), &["/box", "pause"])
            .with("readinessProbe", probe.clone())
            .with("livenessProbe", probe.clone())
    };
    let containers: Vec<Value> = (0..10).map(each).collect();
    for name in ["slow1", "slow2"] {
        ground.node.put(&format!("{name}.json"), &pod(name, &containers));
        running(&ground.node, name, &["c0", "c9"]);
    }
    ground.bystander("while they run");
}
