//! Memory on cgroup v2: what ends when a child of a container is beyond the limit.
//!
//! The container's own cgroup is the runtime's; its settings are what the agent asked for. Expected
//! values are the kubelet's.

use std::time::Duration;

use anyhow::ensure;
use pintle_uml_tests::{
    TestNode, container, container_id, is_ready, pod, restarts, sleeper, slice,
};
use serde_json::{Value, json};

/// A pod whose container has a child that needs more memory than the container may have.
fn parent_of_hog() -> Value {
    let limited = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "32Mi"}});
    pod("parent", &["/box", "hog", "200", "child"], &limited)
}

/// A file of the cgroup of the pod's container.
fn of_container(node: &TestNode, pod: &Value, class: &str, file: &str) -> String {
    let scope = format!("cri-containerd-{}.scope", container_id(pod));
    node.cgroup(&format!("{}/{scope}", slice(pod, class)), file)
}

#[test]
fn child_beyond_the_memory_ends_its_whole_container_which_is_told_as_oom_killed() {
    let node = TestNode::start(&json!({}));
    node.put(&parent_of_hog());
    let pod = node.pod_until("parent", "has ended once", |pod| {
        container(pod)["lastState"]["terminated"].is_object()
    });
    let ended = &container(&pod)["lastState"]["terminated"];
    assert_eq!(ended["reason"], "OOMKilled", "{ended:#}");
    node.put(&sleeper("idle", &json!({"limits": {"memory": "32Mi"}})));
    let idle = node.pod_until("idle", "is ready", is_ready);
    assert_eq!(of_container(&node, &idle, "burstable", "memory.oom.group"), "1");
}

#[test]
fn child_beyond_the_memory_ends_alone_where_single_processes_are_killed() {
    let node = TestNode::start(&json!({"singleProcessOOMKill": true}));
    node.put(&parent_of_hog());
    let pod = node.pod_until("parent", "is ready", is_ready);
    node.until("the child was killed", || {
        let events = of_container(&node, &pod, "burstable", "memory.events");
        ensure!(events.lines().any(|line| line == "oom_kill 1"), "{events}");
        Ok(())
    });
    assert_eq!(of_container(&node, &pod, "burstable", "memory.oom.group"), "0");
    // Longer than the agent takes to see the end of a container.
    std::thread::sleep(Duration::from_secs(3));
    let after = node.pod_until("parent", "is ready", is_ready);
    assert_eq!(container_id(&after), container_id(&pod));
    assert_eq!(restarts(&after), 0);
}
