//! Privileged containers that misuse cgroup v2 below their own pod: other pods start as before, the
//! agent stays small, and nothing is left when the pod is gone.

use std::time::{Duration, Instant};

use anyhow::ensure;
use pintle_uml_tests::{TestNode, container_id, is_ready, pod, sleeper, slice};
use serde_json::{Value, json};

/// Cgroups that one container makes.
const CGROUPS: usize = 10_000;
/// What the agent may take more with them.
const MORE_KIB_MAX: u64 = 8 << 10;

/// A privileged pod, whose container sees the node's whole tree, in the folder of its own cgroup.
fn privileged(name: &str, text: &str) -> Value {
    let script = format!("cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && {text}");
    let mut pod = pod(name, &["sh", "-c", &script], &json!({}));
    pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    pod
}

/// How long a pod takes until it is ready.
fn start_of(node: &TestNode, name: &str) -> Duration {
    let begin = Instant::now();
    node.put(&sleeper(name, &json!({})));
    node.pod_until(name, "is ready", is_ready);
    begin.elapsed()
}

/// Memory of the agent's process in KiB.
fn agent_kib(node: &TestNode) -> u64 {
    let pid = node.property("pintle-agent", "MainPID");
    let line = node.sh(&format!("grep VmRSS /proc/{pid}/status"));
    let number = line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    number.expect("a number of KiB")
}

fn until_no_slice_is_left(node: &TestNode) {
    node.until("no slice of a pod is left", || {
        let left = node.slices();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
}

#[test]
fn ten_thousand_cgroups_of_a_container_delay_no_other_pod_and_are_removed_with_it() {
    let node = TestNode::start(&json!({}));
    let quiet = start_of(&node, "before");
    let kib = agent_kib(&node);
    let text = format!("mkdir own && cd own && seq 1 {CGROUPS} | xargs mkdir && exec /box pause");
    node.put(&privileged("maker", &text));
    let maker = node.pod_until("maker", "is ready", is_ready);
    let path = slice(&maker, "besteffort");
    node.until("all cgroups are made", || {
        let stat = node.try_cgroup(&path, "cgroup.stat")?;
        let made = stat.lines().find_map(|line| line.strip_prefix("nr_descendants "));
        let made: usize = made.and_then(|number| number.parse().ok()).unwrap_or(0);
        ensure!(made > CGROUPS, "{made}");
        Ok(())
    });
    let busy = start_of(&node, "beside");
    assert!(busy < quiet * 3 + Duration::from_secs(5), "{busy:?}, {quiet:?} before");
    node.until("its statistics are served", || {
        let answer = node.node().get("/stats/summary")?;
        let summary: Value = serde_json::from_str(&answer.body)?;
        let uid = &maker["metadata"]["uid"];
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.iter().find(|pod| pod["podRef"]["uid"] == *uid);
        let used = found.and_then(|pod| pod["memory"]["workingSetBytes"].as_u64());
        ensure!(used > Some(0), "{found:?}");
        Ok(())
    });
    let more = agent_kib(&node).saturating_sub(kib);
    println!("a pod is ready after {quiet:?}, with {CGROUPS} cgroups {busy:?}; agent +{more} KiB");
    assert!(more < MORE_KIB_MAX, "{more} KiB more than {kib}");
    for name in ["maker", "before", "beside"] {
        node.remove(name);
    }
    until_no_slice_is_left(&node);
}

#[test]
fn pod_that_freezes_its_own_slice_can_still_be_removed() {
    let node = TestNode::start(&json!({}));
    let text = "cd .. && sleep 1 && echo 1 >cgroup.freeze && exec /box pause";
    node.put(&privileged("frozen", text));
    let pod = node.pod_until("frozen", "is ready", is_ready);
    let path = slice(&pod, "besteffort");
    node.until("it is frozen", || {
        let events = node.try_cgroup(&path, "cgroup.events")?;
        ensure!(events.contains("frozen 1"), "{events}");
        Ok(())
    });
    start_of(&node, "beside");
    for name in ["frozen", "beside"] {
        node.remove(name);
    }
    until_no_slice_is_left(&node);
}

#[test]
fn memory_limit_set_by_a_container_below_its_cgroup_kills_only_processes_there() {
    let node = TestNode::start(&json!({}));
    let text = "mkdir own rest && echo 0 >rest/cgroup.procs && echo +memory >cgroup.subtree_control \
                && echo 16M >own/memory.max && while :; do \
                sh -c 'echo 0 >own/cgroup.procs && exec /box hog 64'; sleep 1; done";
    node.put(&privileged("inner", text));
    let pod = node.pod_until("inner", "is ready", is_ready);
    let scope = format!("cri-containerd-{}.scope", container_id(&pod));
    let own = format!("{}/{scope}/own", slice(&pod, "besteffort"));
    node.until("children were killed", || {
        let events = node.try_cgroup(&own, "memory.events")?;
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let kills: u64 = kills.and_then(|number| number.parse().ok()).unwrap_or(0);
        ensure!(kills >= 3, "{events}");
        Ok(())
    });
    let after = node.pod_until("inner", "runs on", is_ready);
    assert_eq!(container_id(&after), container_id(&pod));
    start_of(&node, "beside");
    for name in ["inner", "beside"] {
        node.remove(name);
    }
    until_no_slice_is_left(&node);
}
