//! The agent in a guest of User-Mode Linux as a node of a real API server on the host.
//!
//! What static pods cannot have: resize in place, resources of the pod, swap, which critical pods
//! get none of. Expected values are the kubelet's with the systemd driver.

use std::time::Instant;

use anyhow::ensure;
use pintle_uml_tests::{
    Api, TestNode, container, container_id, is_ready, restarts, sleeper, slice, unit,
};
use serde_json::{Value, json};

/// The pod, once it is ready.
pub(super) fn ready(api: &Api, node: &TestNode, name: &str) -> Value {
    node.until(&format!("{name} is ready"), || {
        let pod = api.pod(name)?;
        ensure!(is_ready(&pod), "{:#}", pod["status"]);
        Ok(pod)
    })
}

#[test]
fn pods_of_an_api_server_are_resized_in_place_through_systemd_and_leave_no_slice() {
    let begin = Instant::now();
    let api = Api::start("resize");
    println!("API server {:.1} s", begin.elapsed().as_secs_f64());
    let node = TestNode::join(api.cluster(), "n1", &json!({}));
    let begin = Instant::now();
    api.create(&sleeper("exact", &json!({"limits": {"cpu": "500m", "memory": "64Mi"}})));
    let before = ready(&api, &node, "exact");
    println!("pod ready after {:.1} s", begin.elapsed().as_secs_f64());
    let of_pod = slice(&before, "");
    let scope = format!("cri-containerd-{}.scope", container_id(&before));
    assert_eq!(node.property(unit(&of_pod), "MemoryMax"), (64 << 20).to_string());

    for (cpu, quota, mebibytes) in [("250m", "250ms", 96), ("700m", "700ms", 48)] {
        let memory = format!("{mebibytes}Mi");
        let resources = json!({"cpu": cpu, "memory": memory});
        let patch = json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": resources, "limits": resources}},
        ]}});
        let patch = patch.to_string();
        api.kubectl(&["patch", "pod", "exact", "--subresource=resize", "--patch", &patch]);
        let after = node.until("the resize is reported", || {
            let pod = api.pod("exact")?;
            let limits = &container(&pod)["resources"]["limits"];
            ensure!(limits["memory"] == *memory && limits["cpu"] == cpu, "{:#}", pod["status"]);
            Ok(pod)
        });
        assert_eq!(container_id(&after), container_id(&before));
        assert_eq!(restarts(&after), 0);
        let bytes = (mebibytes << 20).to_string();
        node.sh("systemctl daemon-reload");
        for unit in [unit(&of_pod), &scope] {
            assert_eq!(node.property(unit, "MemoryMax"), bytes, "{unit}");
            assert_eq!(node.property(unit, "CPUQuotaPerSecUSec"), quota, "{unit}");
        }
        assert_eq!(node.cgroup(&of_pod, "memory.max"), bytes);
        assert_eq!(node.cgroup(&format!("{of_pod}/{scope}"), "memory.max"), bytes);
    }

    // The pod's own resources are the slice's; its containers have none.
    let mut shared = sleeper("shared", &json!({}));
    shared["spec"]["resources"] = json!({
        "requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "80Mi"},
    });
    api.create(&shared);
    let pod = ready(&api, &node, "shared");
    let of_shared = slice(&pod, "burstable");
    assert_eq!(node.cgroup(&of_shared, "memory.max"), (80 << 20).to_string());
    assert_eq!(node.cgroup(&of_shared, "cpu.max"), "30000 100000");
    assert_eq!(node.cgroup(&of_shared, "cpu.weight"), "4");

    api.kubectl(&["delete", "pod", "exact", "shared", "--wait", "--timeout=60s"]);
    node.until("no slice of a pod is left", || {
        let left = node.slices();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
}

#[test]
fn burstable_container_gets_its_swap_share_and_other_qos_classes_get_none() {
    const SWAP_MIB: u64 = 256;
    let api = Api::start("swap");
    let settings = json!({"failSwapOn": false, "memorySwap": {"swapBehavior": "LimitedSwap"}});
    let node = TestNode::join(api.cluster(), "n1", &settings);
    node.sh(&format!(
        "fallocate -l {SWAP_MIB}M /tmp/swap && mkswap -q /tmp/swap \
         && swapon $(losetup --find --show /tmp/swap) && systemctl restart pintle-agent"
    ));
    let requests = json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "128Mi"}});
    api.create(&sleeper("some", &requests));
    api.create(&sleeper("exact", &json!({"limits": {"cpu": "100m", "memory": "64Mi"}})));
    api.create(&sleeper("none", &json!({})));
    let limit = |name: &str, class: &str| {
        let pod = ready(&api, &node, name);
        let scope = format!("cri-containerd-{}.scope", container_id(&pod));
        node.cgroup(&format!("{}/{scope}", slice(&pod, class)), "memory.swap.max")
    };

    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go calcSwapForBurstablePods
    let bytes = |field: &str| -> u64 {
        let script = format!("sed -n 's/^{field}: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo");
        node.sh(&script).parse::<u64>().expect("a number") * 1024
    };
    let (memory, swap) = (bytes("MemTotal"), bytes("SwapTotal"));
    let share = u128::from(swap) * (64 << 20) / u128::from(memory);
    let may: u128 = limit("some", "burstable").parse().expect("a limit");
    // The kernel keeps whole pages, and the kubelet's share is of a floating point number.
    assert!(may.abs_diff(share) <= 4096, "{may}, not {share}");
    assert_eq!(limit("exact", ""), "0");
    assert_eq!(limit("none", "besteffort"), "0");
}
