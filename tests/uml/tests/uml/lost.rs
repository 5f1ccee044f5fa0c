//! Slices that go while their pods are wanted, and cgroups that a container makes below its own.
//!
//! An administrator or another program may stop a slice: systemd then kills what runs in it and
//! forgets its limits. The agent brings back both.

use anyhow::ensure;
use pintle_uml_tests::{TestNode, container_id, is_ready, pod, sleeper, slice, unit};
use serde_json::{Value, json};

fn limited() -> Value {
    json!({"limits": {"cpu": "200m", "memory": "48Mi"}})
}

/// Waits until the pod is ready with another container than before.
fn started_again(node: &TestNode, before: &Value) -> Value {
    node.pod_until("exact", "runs again", |pod| {
        is_ready(pod) && container_id(pod) != container_id(before)
    })
}

#[test]
fn stopped_slice_of_a_pod_is_recreated_with_its_limits() {
    let node = TestNode::start(&json!({}));
    node.put(&sleeper("exact", &limited()));
    let before = node.pod_until("exact", "is ready", is_ready);
    let path = slice(&before, "");
    node.sh(&format!("systemctl stop '{}'", unit(&path)));
    started_again(&node, &before);
    assert_eq!(node.cgroup(&path, "memory.max"), (48 << 20).to_string());
    assert_eq!(node.property(unit(&path), "MemoryMax"), (48 << 20).to_string());
    assert_eq!(node.property(unit(&path), "CPUQuotaPerSecUSec"), "200ms");
}

#[test]
fn stopped_slice_of_all_pods_is_recreated_with_its_limits() {
    let node = TestNode::start(&json!({"kubeReserved": {"memory": "256Mi"}}));
    node.put(&sleeper("exact", &limited()));
    let before = node.pod_until("exact", "is ready", is_ready);
    let wanted = node.cgroup("", "memory.max");
    assert_ne!(wanted, "max");
    node.sh("systemctl stop kubepods.slice");
    let after = started_again(&node, &before);
    assert_eq!(node.cgroup(&slice(&after, ""), "memory.max"), (48 << 20).to_string());
    node.until("all pods have a limit again", || {
        let max = node.try_cgroup("", "memory.max")?;
        ensure!(max == wanted, "{max}, not {wanted}");
        Ok(())
    });
    assert_eq!(node.property("kubepods.slice", "MemoryMax"), wanted);
}

#[test]
fn cgroups_made_by_a_container_are_removed_with_its_pod() {
    let node = TestNode::start(&json!({}));
    // A privileged container sees the node's whole tree.
    let script = "cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && mkdir -p own/deep \
                  && echo 0 >own/deep/cgroup.procs && exec /box pause";
    let mut maker = pod("maker", &["sh", "-c", script], &json!({}));
    maker["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    node.put(&maker);
    let running = node.pod_until("maker", "is ready", is_ready);
    let path = slice(&running, "besteffort");
    let deep = format!("{path}/cri-containerd-{}.scope/own/deep", container_id(&running));
    node.until("the container has a cgroup of its own making", || {
        let procs = format!("cat '/sys/fs/cgroup/kubepods.slice/{deep}/cgroup.procs'");
        let output = node.node().guest().run(&procs)?;
        ensure!(output.code == 0 && !output.text.is_empty(), "{output:?}");
        Ok(())
    });
    node.remove("maker");
    node.until("no slice of a pod is left", || {
        let left = node.slices();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    assert_eq!(node.property(unit(&path), "ActiveState"), "inactive");
}
