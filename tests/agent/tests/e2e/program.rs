//! The program as a stand-in: under the kubelet's name, with its flags and its ports.

use std::fs::File;

use anyhow::{Context, ensure};
use nix::fcntl::{Flock, FlockArg};
use pintle_testbed::manifest::{condition, container, pod};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::wait::{LONG, until};
use pintle_testbed::{Options, TestNode};
use serde_json::Value;

use crate::support::remove_all;

#[test]
fn agent_invoked_as_kubelet_with_its_flags_runs_pods_and_serves_its_ports() {
    let flags = ["--v=2", "--max_pods=20", "--registry-qps", "9"];
    let flags = flags.map(str::to_owned).to_vec();
    let name = Some("kubelet".to_owned());
    let node = TestNode::start(Options { name, flags, ..Options::default() });
    let args = xtask::node::process::arguments(node.agent_pid());
    assert!(args[0].ends_with("/kubelet"), "{args:?}");
    node.put("web.json", &pod("web", &[container("c", &["/box", "pause"])]));
    node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    for (port, path, part) in [
        (10248, "/healthz", "ok"),
        (10255, "/healthz", "ok"),
        (10255, "/pods", "web-node"),
        (10255, "/stats/summary", "ephemeral-storage"),
        (10255, "/metrics", "kubelet_running_pods"),
    ] {
        let answer = node.get(port, path).expect("answered");
        assert!(answer.status == 200 && answer.body.contains(part), "{path}: {answer:?}");
    }
    remove_all(&node);
}

#[test]
fn agent_start_is_logged_in_one_block_of_lines() {
    let node = TestNode::usual();
    let log = until(LONG, "the agent is up", || {
        let log = node.agent_log();
        ensure!(log.contains("events of containers: "), "{log}");
        Ok(log)
    });
    let mut lines = log.lines().skip_while(|line| !line.contains("] \"pintle-agent v1."));
    for part in [
        &format!(" is up as node {NODE_NAME}"),
        "API server: none",
        "runtime: containerd ",
        "cgroups: version ",
        "events of containers: ",
    ] {
        let line = lines.next().with_context(|| log.clone()).expect("the block is whole");
        assert!(line.contains(part), "{part}: {log}");
    }
    // Without a pod there is no record to be replayed.
    node.put("web.json", &pod("web", &[container("c", &["/box", "pause"])]));
    node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    remove_all(&node);
}

#[test]
fn cli_lists_pods_and_shows_explanation_timeline_and_plan_of_a_pod() {
    let node = TestNode::usual();
    node.put("web.json", &pod("web", &[container("c", &["/box", "pause"])]));
    node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    let full = format!("web-{NODE_NAME}");
    let pods = node.cli(&["pods"]).expect("answered");
    assert!(pods.contains(&full) && pods.contains("1/1") && pods.contains("Running"), "{pods}");
    let why = node.cli(&["explain", &full]).expect("answered");
    assert!(why.contains("Runs and is ready"), "{why}");
    let text = node.cli(&["timeline", &full, "-o", "json"]).expect("answered");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let entries = answer["entries"].as_array().expect("a list");
    let at: Vec<i64> = entries.iter().filter_map(|e| e["unixNanos"].as_i64()).collect();
    assert!(at.len() > 3 && at.is_sorted(), "{text}");
    assert_eq!(entries[0]["what"], "Seen", "{text}");
    let plan = node.cli(&["plan", &full]).expect("answered");
    assert!(plan.contains("Nothing to do"), "{plan}");
    let wrong = node.cli(&["explain", "nobody"]).expect_err("there is no such pod");
    assert!(format!("{wrong:#}").contains("nobody"), "{wrong:#}");
    remove_all(&node);
    let pods = node.cli(&["pods"]).expect("answered");
    assert!(pods.contains("no pods"), "{pods}");
}

#[test]
fn agent_waits_for_its_lock_file_and_exits_on_lock_contention() {
    let mut node = TestNode::start(Options { agent: false, ..Options::default() });
    let path = node.dir().join("agent.lock");
    let lock = |path| Flock::lock(File::create(path).expect("made"), FlockArg::LockExclusive);
    let other = lock(&path).map_err(|(_, error)| error).expect("it is free");
    let flags = ["--lock-file", &path.display().to_string(), "--exit-on-lock-contention"];
    node.add_flags(flags.map(str::to_owned).to_vec());
    node.spawn_agent().expect("the agent starts");
    until(LONG, "the agent says what it waits for", || {
        let log = node.agent_log();
        ensure!(log.contains("--lock-file: waiting for who has it locked"), "{log}");
        Ok(())
    });
    assert!(node.get(10248, "/healthz").is_err(), "it has not begun");
    drop(other);
    until(LONG, "the agent is healthy", || {
        ensure!(node.get(10248, "/healthz")?.status == 200, "{}", node.agent_log());
        Ok(())
    });
    // Opening the file requests the lock: the agent exits and releases it.
    drop(lock(&path).map_err(|(_, error)| error).expect("the agent makes way"));
    let status = node.wait_agent();
    assert!(status.success(), "{status}: {}", node.agent_log());
}
