//! Memory on cgroup v2: what ends when a child of a container is beyond the limit, what is throttled
//! before it, and what is protected from reclaim.
//!
//! The container's own cgroup is the runtime's; its settings are what the agent asked for. Expected
//! values are the kubelet's.

use anyhow::ensure;
use pintle_uml_tests::{
    TestNode, container, container_id, is_ready, pod, restarts, sleeper, slice, unit,
};
use serde_json::{Value, json};

/// A pod whose container has a child that needs more memory than the container may have.
fn parent_of_hog() -> Value {
    let limited = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "32Mi"}});
    pod("parent", &["/box", "hog", "200", "child"], &limited)
}

/// What the agent says of an end in a pod without an OOM victim.
const SPARED: &str = "and the pod has no OOM victim";

/// What the record has of a pod, once the runtime has reported its end there.
fn record_with_end(node: &TestNode, pod: &str) -> String {
    node.until("the record has the end", || {
        let record = node.sh(&format!("pintle-agent replay --width=0 --pod={pod}-node"));
        ensure!(record.contains("the runtime told exit code 137"), "{record}");
        Ok(record)
    })
}

/// A file of the cgroup of the pod's container.
fn of_container(node: &TestNode, pod: &Value, class: &str, file: &str) -> String {
    let scope = format!("cri-containerd-{}.scope", container_id(pod));
    node.cgroup(&format!("{}/{scope}", slice(pod, class)), file)
}

#[test]
fn child_over_the_memory_limit_ends_its_whole_container_as_oom_killed() {
    let node = TestNode::start(&json!({}));
    node.put(&parent_of_hog());
    let pod = node.pod_until("parent", "has ended once", |pod| {
        container(pod)["lastState"]["terminated"].is_object()
    });
    let ended = &container(&pod)["lastState"]["terminated"];
    assert_eq!(ended["reason"], "OOMKilled", "{ended:#}");
    let record = record_with_end(&node, "parent");
    assert!(!record.contains(SPARED), "{record}");
    node.put(&sleeper("idle", &json!({"limits": {"memory": "32Mi"}})));
    let idle = node.pod_until("idle", "is ready", is_ready);
    assert_eq!(of_container(&node, &idle, "burstable", "memory.oom.group"), "1");
}

/// Such an end is shown before the runtime lists it, although the kernel reports none without eBPF.
#[test]
fn runtime_reports_an_end_in_a_pod_without_oom_victims_as_certain() {
    let node = TestNode::start(&json!({}));
    node.put(&sleeper("once", &json!({})));
    let pod = node.pod_until("once", "is ready", is_ready);
    let pids = of_container(&node, &pod, "besteffort", "cgroup.procs");
    node.sh(&format!("kill -KILL {}", pids.trim()));
    node.pod_until("once", "has ended once", |pod| {
        container(pod)["lastState"]["terminated"].is_object()
    });
    let record = record_with_end(&node, "once");
    assert!(record.contains(SPARED), "{record}");
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
    let killed = "The OOM killer took process box";
    node.until("an event names the child", || {
        let log = node.node().journal("pintle-agent");
        ensure!(log.contains(killed) && log.contains("the container runs on"), "{log}");
        Ok(())
    });
    let after = node.pod_until("parent", "is ready", is_ready);
    assert_eq!(container_id(&after), container_id(&pod));
    assert_eq!(restarts(&after), 0);
}

/// A number that a file of a cgroup has after a word.
fn count(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).expect("a line of the word")
}

#[test]
fn container_above_its_memory_high_at_nine_tenths_is_throttled_and_not_killed() {
    let node = TestNode::start(&json!({"featureGates": {"MemoryQoS": true}}));
    let limited = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    node.put(&pod("hog", &["/box", "hog", "60"], &limited));
    node.put(&sleeper("exact", &json!({"limits": {"cpu": "100m", "memory": "32Mi"}})));
    node.put(&sleeper("free", &json!({})));
    let [hog, exact, free] =
        ["hog", "exact", "free"].map(|name| node.pod_until(name, "is ready", is_ready));
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go generateLinuxContainerResources
    // 16 Mi + 0.9 * (64 Mi - 16 Mi), in whole pages.
    assert_eq!(of_container(&node, &hog, "burstable", "memory.high"), "62074880");
    assert_eq!(of_container(&node, &exact, "", "memory.high"), "max");
    assert_eq!(of_container(&node, &free, "besteffort", "memory.high"), "max");
    node.until("the hog is throttled", || {
        let events = of_container(&node, &hog, "burstable", "memory.events");
        ensure!(count(&events, "high") > 0, "{events}");
        Ok(())
    });
    let events = of_container(&node, &hog, "burstable", "memory.events");
    assert_eq!(count(&events, "oom_kill"), 0, "{events}");
    let after = node.pod_until("hog", "runs on", is_ready);
    assert_eq!((container_id(&after), restarts(&after)), (container_id(&hog), 0));
    for file in ["memory.min", "memory.low"] {
        assert_eq!(node.cgroup("", file), "0", "{file}");
    }
}

#[test]
fn memory_requests_are_protected_by_qos_class_and_as_sums_in_parent_slices() {
    let settings = json!({
        "featureGates": {"MemoryQoS": true},
        "memoryReservationPolicy": "TieredReservation",
    });
    let node = TestNode::start(&settings);
    let mib = |count: u64| (count << 20).to_string();
    node.put(&sleeper("exact", &json!({"limits": {"cpu": "100m", "memory": "32Mi"}})));
    node.put(&sleeper("some", &json!({"requests": {"memory": "16Mi"}})));
    node.put(&sleeper("free", &json!({})));
    let [exact, some, free] =
        ["exact", "some", "free"].map(|name| node.pod_until(name, "is ready", is_ready));
    // Pod, class, memory.min and memory.low of the pod, memory.low of its container.
    let wanted = [
        (&exact, "", mib(32), mib(0), mib(32), mib(0)),
        (&some, "burstable", mib(0), mib(16), mib(0), mib(16)),
        (&free, "besteffort", mib(0), mib(0), mib(0), mib(0)),
    ];
    for (pod, class, min, low, own_min, own_low) in wanted {
        let of_pod = slice(pod, class);
        assert_eq!(node.cgroup(&of_pod, "memory.min"), min, "{class}");
        assert_eq!(node.cgroup(&of_pod, "memory.low"), low, "{class}");
        assert_eq!(of_container(&node, pod, class, "memory.min"), own_min, "{class}");
        assert_eq!(of_container(&node, pod, class, "memory.low"), own_low, "{class}");
    }
    node.sh("systemctl daemon-reload");
    let burstable = "kubepods-burstable.slice";
    assert_eq!(node.property(unit(&slice(&exact, "")), "MemoryMin"), mib(32));
    assert_eq!(node.property("kubepods.slice", "MemoryMin"), mib(48));
    assert_eq!(node.cgroup("", "memory.min"), mib(48));
    assert_eq!(node.property(burstable, "MemoryLow"), mib(16));
    assert_eq!(node.cgroup(burstable, "memory.low"), mib(16));
    let gauge = |kind: &str| {
        let metrics = node.node().get("/metrics").expect("metrics").body;
        let name = format!("kubelet_memory_qos_node_memory_{kind}_bytes ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name).map(str::to_owned));
        value.and_then(|value| value.parse::<f64>().ok()).map(|value| value as u64)
    };
    assert_eq!(["min", "low"].map(gauge), [Some(32 << 20), Some(16 << 20)]);
    node.remove("some");
    node.until("only the guaranteed pod is protected", || {
        let all = node.try_cgroup("", "memory.min")?;
        let low = node.try_cgroup(burstable, "memory.low")?;
        ensure!((&*all, &*low) == (&*mib(32), "0"), "{all} {low}");
        Ok(())
    });
}
