//! The machine shuts down: pods end in groups by their priority, and it waits for them.
//!
//! logind is a fake one on a socket of the test (`pintle_agent_host::shutdown::fake`), which hands
//! out locks as pipes; the agent, the runtime and the pods are real.

use std::time::{Duration, Instant};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_host::shutdown::fake::FakeLogind;
use pintle_testbed::manifest::{With, condition, container, container_id, phase, pod, script};
use pintle_testbed::node::Options;
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{
    assert_order, ended, explained, lines, lines_until, remove_all, shared, sharing,
};

pub(crate) const CRITICAL: i32 = 2_000_001_000;
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// A logind and a node that listens to it.
struct LogindNode {
    node: TestNode,
    logind: FakeLogind,
    runtime: Runtime,
    _dir: tempfile::TempDir,
}

impl LogindNode {
    /// With these seconds for pods of no priority, from 1,000 on, and critical ones.
    fn start(seconds: [i64; 3]) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("bus");
        let _inside = runtime.enter();
        let hour = Duration::from_secs(3600);
        let logind = FakeLogind::start(&socket, hour).expect("a bus");
        let each = [0, 1_000, 2_000_000_000].into_iter().zip(seconds);
        let groups: Vec<_> = each
            .map(|(priority, seconds)| {
                json!({"priority": priority, "shutdownGracePeriodSeconds": seconds})
            })
            .collect();
        let address = format!("unix:path={}", socket.display());
        let node = TestNode::start(Options {
            config: json!({"shutdownGracePeriodByPodPriority": groups}),
            env: vec![("DBUS_SYSTEM_BUS_ADDRESS".to_owned(), address)],
            ..Options::default()
        });
        let world = Self { node, logind, runtime, _dir: dir };
        world.held(1);
        world
    }

    fn prepare(&self, active: bool) {
        self.runtime.block_on(self.logind.prepare(active)).expect("announced");
    }

    /// Until so many locks are held.
    fn held(&self, count: usize) {
        until(LONG, &format!("{count} locks are held"), || {
            ensure!(self.logind.held() == count, "{}", self.logind.held());
            Ok(())
        });
    }

    fn put(&self, name: &str, priority: i32, manifest: Value) {
        let manifest = manifest.with_spec("priority", json!(priority));
        self.node.put(&format!("{name}.json"), &sharing(manifest, &self.node));
    }

    /// The pod once it is ready and has said that it hears signals.
    fn ready(&self, name: &str) -> Pod {
        let pod = self.node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        until(LONG, &format!("{name} hears signals"), || {
            ensure!(shared(&self.node).join(name).exists(), "it has not said so");
            Ok(())
        });
        pod
    }

    fn state(&self) -> Value {
        let file = self.node.root().join("graceful_node_shutdown_state");
        let text = std::fs::read_to_string(file).expect("there is a state");
        serde_json::from_str(&text).expect("it is JSON")
    }
}

/// Says in `/shared/order` when SIGTERM comes and, a moment later, that it ends.
pub(crate) fn says(name: &str, code: i32) -> Value {
    let text = format!(
        "trap 'echo {name} stops >> /shared/order; sleep 0.5; echo {name} ends >> /shared/order; \
         exit {code}' TERM; touch /shared/{name}; while :; do sleep 0.1; done"
    );
    pod(name, &[script("c", &text)]).with_spec("terminationGracePeriodSeconds", json!(60))
}

pub(crate) fn terminated(pod: &Pod) {
    let status = pod.status.as_ref().expect("a status");
    assert_eq!(status.reason.as_deref(), Some("Terminated"), "{status:#?}");
    assert_eq!(status.message.as_deref(), Some(MESSAGE));
    let conditions = status.conditions.iter().flatten();
    let target = conditions.into_iter().find(|c| c.type_ == "DisruptionTarget");
    let target = target.expect("a DisruptionTarget condition");
    assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(target.message.as_deref(), Some(MESSAGE));
}

fn gauge(metrics: &str, name: &str) -> i64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.trim().parse().expect("a number")
}

#[test]
fn shutdown_ends_pods_in_order_admits_none_and_is_delayed_until_the_last_end() {
    let world = LogindNode::start([40, 40, 40]);
    let node = &world.node;
    world.put("least", -10, says("least", 0));
    world.put("middle", 1_500, says("middle", 3));
    world.put("critical", CRITICAL, says("critical", 0));
    let done = pod("done", &[container("c", &["/box", "exit", "0"])])
        .with_spec("restartPolicy", json!("Never"));
    world.put("done", 0, done);
    let names = ["least", "middle", "critical"];
    names.iter().for_each(|name| drop(world.ready(name)));
    node.pod_until("done", "has succeeded", |p| phase(p) == "Succeeded");
    assert_eq!(world.logind.held(), 1);

    world.prepare(true);
    // While the first group ends the others run and no pod is admitted.
    lines_until(node, "order", 1);
    world.put("late", CRITICAL, says("late", 0));
    let late = node.pod_until("late", "is refused", |p| phase(p) == "Failed");
    let status = late.status.as_ref().expect("a status");
    assert_eq!(status.reason.as_deref(), Some("NodeShutdown"));
    world.held(0);
    let order = ["least", "middle", "critical"]
        .map(|name| [format!("{name} stops"), format!("{name} ends")]);
    assert_eq!(lines(node, "order"), order.concat(), "the lock was held until then");

    for name in names {
        let pod = node.pod_until(name, "has failed", |p| phase(p) == "Failed");
        terminated(&pod);
        explained(node, name, &["the node was shut down", "the pods from priority"]);
    }
    explained(node, "middle", &["from priority 1000 on", "40 s"]);
    let middle = node.pod("middle").expect("served");
    assert_eq!(ended(&middle, "c").map(|end| end.exit_code), Some(3), "by itself, not by SIGKILL");
    assert_eq!(phase(&node.pod("done").expect("served")), "Succeeded");

    let metrics = node.metrics().expect("served");
    let started = gauge(&metrics, "kubelet_graceful_shutdown_start_time_seconds ");
    let over = gauge(&metrics, "kubelet_graceful_shutdown_end_time_seconds ");
    assert!(0 < started && started <= over, "{started} {over}");
    assert_ne!(world.state()["endTime"], "0001-01-01T00:00:00Z");
    // It is not said twice, and nothing starts again while the machine goes down.
    world.prepare(true);
    let late = node.pod("late").expect("served");
    assert!(late.status.is_some_and(|s| s.container_statuses.unwrap_or_default().is_empty()));
    assert_eq!(lines(node, "order").len(), 6);
    remove_all(node);
}

#[test]
fn cancelled_shutdown_admits_pods_again_and_the_next_shutdown_is_delayed_again() {
    let world = LogindNode::start([60, 60, 60]);
    let node = &world.node;
    world.put("least", 0, says("least", 0));
    world.put("critical", CRITICAL, says("critical", 0));
    world.ready("least");
    let before = world.ready("critical");
    // Half a second of the first group: the shutdown is cancelled before the others' turn.
    world.prepare(true);
    lines_until(node, "order", 1);
    world.prepare(false);
    let least = node.pod_until("least", "has failed", |p| phase(p) == "Failed");
    terminated(&least);
    world.put("after", 0, says("after", 0));
    world.ready("after");
    let after = world.ready("critical");
    assert_eq!(container_id(&before, "c"), container_id(&after, "c"));
    world.held(1);
    assert_eq!(world.state()["cancelled"], true);

    world.prepare(true);
    world.held(0);
    let ends = ["after ends", "critical stops", "critical ends"];
    assert_order(&lines(node, "order"), &ends);
    remove_all(node);
}

#[test]
fn agent_killed_during_a_shutdown_resumes_it_and_restarts_no_container() {
    let mut world = LogindNode::start([50, 50, 50]);
    // The first group ends at once; the second takes a while, and the agent is killed meanwhile.
    let slow = script(
        "c",
        "trap 'echo middle stops >> /shared/order; sleep 8; echo middle ends >> /shared/order; \
         exit 0' TERM; touch /shared/middle; while :; do sleep 0.1; done",
    );
    let slow = pod("middle", &[slow]).with_spec("terminationGracePeriodSeconds", json!(60));
    world.put("least", 0, says("least", 0));
    world.put("middle", 1_000, slow);
    world.put("critical", CRITICAL, says("critical", 0));
    let firsts = ["least", "middle", "critical"].map(|name| world.ready(name));
    world.prepare(true);
    lines_until(&world.node, "order", 3);
    until(LONG, "the second group is written down", || {
        ensure!(world.state()["groupPriority"] == 1_000, "{}", world.state());
        Ok(())
    });
    let before = world.state();
    // logind grants no lock during a shutdown, and a killed agent loses its lock.
    world.logind.refuse(true);
    world.node.kill_agent();
    world.held(0);
    world.node.start_agent();

    let node = &world.node;
    for (name, first) in ["least", "middle", "critical"].into_iter().zip(&firsts) {
        let pod = node.pod_until(name, "has failed", |p| phase(p) == "Failed");
        terminated(&pod);
        assert_eq!(container_id(&pod, "c"), container_id(first, "c"), "{name} began again");
    }
    until(LONG, "the end is written down", || {
        ensure!(world.state()["endTime"] != "0001-01-01T00:00:00Z", "{}", world.state());
        Ok(())
    });
    assert_eq!(world.state()["startTime"], before["startTime"]);
    assert_order(&lines(node, "order"), &["least ends", "middle stops", "critical stops"]);
    remove_all(node);
}

#[test]
fn hanging_pre_stop_hook_does_not_outlast_the_grace_period_of_its_pods_group() {
    let world = LogindNode::start([4, 30, 30]);
    let node = &world.node;
    let hang = json!({"preStop": {"exec": {"command": ["sh", "-c", "sleep 3600"]}}});
    let stubborn =
        script("c", "touch /shared/stubborn; while :; do sleep 0.1; done").with("lifecycle", hang);
    let stubborn =
        pod("stubborn", &[stubborn]).with_spec("terminationGracePeriodSeconds", json!(600));
    world.put("stubborn", 0, stubborn);
    world.put("middle", 1_000, says("middle", 0));
    ["stubborn", "middle"].iter().for_each(|name| drop(world.ready(name)));
    let begun = Instant::now();
    world.prepare(true);
    world.held(0);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(4), "{took:?}: its time was its own");
    let order = lines(node, "order");
    assert_eq!(order, ["middle stops", "middle ends"]);
    let stubborn = node.pod_until("stubborn", "has failed", |p| phase(p) == "Failed");
    terminated(&stubborn);
    // SIGKILL, long before its own ten minutes.
    assert_eq!(ended(&stubborn, "c").map(|end| end.exit_code), Some(137));
    remove_all(node);
}
