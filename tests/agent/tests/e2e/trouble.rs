//! The runtime hangs, exits, comes back, is old, or sends no events.

use nix::sys::signal::Signal;
use pintle_testbed::manifest::{
    With, condition, container, container_id, last_end, pod, restarts, script, status_of,
};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::json;
use xtask::runtime::Version;

use crate::support::{clean_of_what_the_runtime_knows, explained, kill, remove_all, sharing};

fn paused(name: &str) -> serde_json::Value {
    pod(name, &[container("c", &["/box", "pause"])])
}

/// Sandbox of a pod, by its shim: the one that is not among `others`.
fn new_sandbox(node: &TestNode, others: &[String]) -> String {
    let shims = node.runtime_node().shims().into_iter().map(|s| s.sandbox_id);
    let new: Vec<String> = shims.filter(|id| !others.contains(id)).collect();
    assert_eq!(new.len(), 1, "one new shim: {new:?}");
    new[0].clone()
}

#[test]
fn explain_names_a_frozen_shim_and_its_call_and_no_other_pod_waits() {
    let node = TestNode::usual();
    node.put("frozen.json", &paused("frozen"));
    node.pod_until("frozen", "is ready", |p| condition(p, "Ready"));
    let sandbox = new_sandbox(&node, &[]);
    node.put("other.json", &paused("other"));
    let other = node.pod_until("other", "is ready", |p| condition(p, "Ready"));

    let shim = node.signal_shim(&sandbox, Signal::SIGSTOP);
    node.remove("frozen.json");
    let pid = format!("pid {shim}");
    let answer = explained(&node, "frozen", &["hangs", "StopContainer", &pid]);
    assert_eq!(answer["reason"], "RuntimeCallHangs", "{answer:#}");

    // The others live on: one is restarted, another one starts, a third one goes.
    kill(&node, &other, "c");
    node.pod_until("other", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    node.put("third.json", &paused("third"));
    node.pod_until("third", "is ready", |p| condition(p, "Ready"));
    node.remove("third.json");
    node.gone("third");
    let stuck = node.pod("frozen").expect("a pod whose process lives is not forgotten");
    assert_eq!(stuck.metadata.name.as_deref(), Some(&*format!("frozen-{NODE_NAME}")));

    node.signal_shim(&sandbox, Signal::SIGCONT);
    node.gone("frozen");
    remove_all(&node);
}

#[test]
fn containerd_restart_under_running_pods_restarts_no_running_container() {
    let mut node = TestNode::usual();
    for name in ["steady", "dies"] {
        node.put(&format!("{name}.json"), &paused(name));
    }
    let steady = node.pod_until("steady", "is ready", |p| condition(p, "Ready"));
    let dies = node.pod_until("dies", "is ready", |p| condition(p, "Ready"));
    node.runtime_node_mut().kill_containerd();
    kill(&node, &dies, "c");
    node.runtime_node_mut().start_containerd().expect("it starts again");
    let dies =
        node.pod_until("dies", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    assert_eq!(
        last_end(&dies, "c").map(|e| e.0),
        Some(137),
        "the runtime lost it, the kernel reported it"
    );
    node.put("new.json", &paused("new"));
    node.pod_until("new", "is ready", |p| condition(p, "Ready"));
    let now = node.pod("steady").expect("it is there");
    assert_eq!(container_id(&now, "c"), container_id(&steady, "c"));
    assert_eq!(restarts(&now, "c"), 0);
    assert!(condition(&now, "Ready"));
    remove_all(&node);
}

#[test]
fn task_still_running_in_an_exited_container_is_killed_with_its_pod() {
    let node = TestNode::usual();
    let twice = script("c", "[ -e /shared/ran ] && exec /box pause; echo > /shared/ran");
    let manifest = pod("ended", &[twice, container("stays", &["/box", "pause"])]);
    let manifest = manifest.with_spec("restartPolicy", json!("Never"));
    node.put("ended.json", &sharing(manifest, &node));
    let ended = node.pod_until("ended", "has ended", |p| {
        let state = status_of(p, "c").and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.terminated.is_some())
    });
    // As after a StartContainer that was cancelled at the wrong instant: CRI reports it as exited.
    let id = container_id(&ended, "c");
    // Its first process is gone before the runtime has forgotten it.
    until(LONG, "it runs behind CRI's back", || {
        node.runtime_node().ctr(&["tasks", "start", "--detach", &id])
    });
    assert!(node.container_pid(&id).is_some());
    node.remove("ended.json");
    node.gone("ended");
    clean_of_what_the_runtime_knows(&node);
}

/// A pod starts, is restarted when it is killed, and goes without a trace.
fn kept_alive(version: Version, events: &str) {
    let flags = vec![format!("--pintle-events={events}")];
    let node = TestNode::start(Options { version, flags, ..Options::default() });
    let what = format!("containerd {}, events {events}", version.name());
    node.put("web.json", &paused("web"));
    let web = node.pod_until("web", &what, |p| condition(p, "Ready"));
    if events != "auto" {
        let metrics = node.metrics().expect("metrics are served");
        let mode = format!("pintle_event_source{{mode=\"{events}\"}} 1");
        assert!(metrics.contains(&mode), "{what}: {metrics}");
    }
    kill(&node, &web, "c");
    let web = node.pod_until("web", &what, |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    assert_eq!(last_end(&web, "c"), Some((137, "Error")), "{what}");
    remove_all(&node);
    until(LONG, "the agent knows of no pod", || {
        anyhow::ensure!(node.pods()?.is_empty(), "{what}");
        Ok(())
    });
}

#[test]
fn a_pod_is_kept_alive_on_containerd_2_4() {
    kept_alive(Version::V2_4, "auto");
}

#[test]
fn a_pod_is_kept_alive_on_containerd_1_7() {
    kept_alive(Version::V1_7, "auto");
}

#[test]
fn a_pod_is_kept_alive_with_every_source_of_events() {
    for events in ["ebpf", "pidfd", "relist"] {
        kept_alive(Version::usual().expect("a release"), events);
    }
}
