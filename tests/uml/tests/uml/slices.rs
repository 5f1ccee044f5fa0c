//! Slices of pods: what a pod requests and is limited to becomes properties of its slice and,
//! through them, files of its cgroup, and they stay so through reloads, restarts and kills.

use std::time::Instant;

use anyhow::ensure;
use pintle_uml_tests::{
    TestNode, container, container_id, is_ready, pod, restarts, sleeper, slice, unit,
};
use serde_json::{Value, json};

/// What a cgroup has in `cpu.weight`, `cpu.max`, `memory.max` and `pids.max`.
fn limits(node: &TestNode, path: &str) -> [String; 4] {
    ["cpu.weight", "cpu.max", "memory.max", "pids.max"].map(|file| node.cgroup(path, file))
}

fn scope(pod: &Value) -> String {
    format!("cri-containerd-{}.scope", container_id(pod))
}

#[test]
fn slices_of_each_class_have_the_settings_of_the_kubelet() {
    let node = TestNode::start(&json!({"podPidsLimit": 64}));
    let guaranteed = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    let burstable = json!({"requests": {"cpu": "100m"}, "limits": {"memory": "48Mi"}});
    let begin = Instant::now();
    node.put(&sleeper("exact", &guaranteed));
    let exact = node.pod_until("exact", "is ready", is_ready);
    println!("first pod ready after {:.1} s", begin.elapsed().as_secs_f64());
    node.put(&sleeper("some", &burstable));
    node.put(&sleeper("none", &json!({})));
    let some = node.pod_until("some", "is ready", is_ready);
    let none = node.pod_until("none", "is ready", is_ready);

    // k8s: pkg/kubelet/cm/helpers_linux.go ResourceConfigForPod
    let path = slice(&exact, "");
    assert_eq!(limits(&node, &path), ["20", "50000 100000", "67108864", "64"]);
    assert_eq!(node.property(unit(&path), "MemoryMax"), "67108864");
    assert_eq!(node.property(unit(&path), "CPUQuotaPerSecUSec"), "500ms");
    assert_eq!(node.property(unit(&path), "CPUWeight"), "20");
    assert_eq!(node.property(unit(&path), "TasksMax"), "64");
    assert_eq!(node.property(&scope(&exact), "Slice"), unit(&path));
    let of_container = format!("{path}/{}", scope(&exact));
    assert_eq!(node.cgroup(&of_container, "memory.max"), "67108864");
    assert_eq!(node.cgroup(&of_container, "cpu.max"), "50000 100000");

    let path = slice(&some, "burstable");
    assert_eq!(limits(&node, &path), ["4", "max 100000", "50331648", "64"]);
    let path = slice(&none, "besteffort");
    assert_eq!(limits(&node, &path), ["1", "max 100000", "max", "64"]);

    node.until("statistics of the pod", || {
        let answer = node.node().get("/stats/summary")?;
        let summary: Value = serde_json::from_str(&answer.body)?;
        let uid = &exact["metadata"]["uid"];
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.iter().find(|pod| pod["podRef"]["uid"] == *uid).cloned();
        let found = found.unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        ensure!(number(&found["memory"]["workingSetBytes"]) > 0, "{found:#}");
        ensure!(number(&found["cpu"]["usageCoreNanoSeconds"]) > 0, "{found:#}");
        Ok(())
    });

    // The class of burstable pods has the sum of their requests, best effort the least.
    node.until("classes have their weight", || {
        let weight = |class: &str| node.try_cgroup(class, "cpu.weight");
        let found = (weight("kubepods-burstable.slice")?, weight("kubepods-besteffort.slice")?);
        ensure!(found == ("4".to_owned(), "1".to_owned()), "{found:?}");
        Ok(())
    });
}

#[test]
fn container_over_its_memory_limit_is_reported_oom_killed_and_leaves_no_slice() {
    let node = TestNode::start(&json!({}));
    let limited = json!({"limits": {"memory": "32Mi", "cpu": "1"}});
    let mut hog = pod("hog", &["/box", "hog", "200"], &limited);
    hog["spec"]["restartPolicy"] = "Never".into();
    node.put(&hog);
    let ended = node.pod_until("hog", "has failed", |pod| pod["status"]["phase"] == "Failed");
    let terminated = &container(&ended)["state"]["terminated"];
    assert_eq!(terminated["reason"], "OOMKilled", "{terminated:#}");
    assert_eq!(terminated["exitCode"], 137, "{terminated:#}");

    node.put(&sleeper("short", &json!({})));
    let short = node.pod_until("short", "is ready", is_ready);
    let path = slice(&short, "besteffort");
    assert_eq!(node.property(unit(&path), "ActiveState"), "active");
    node.remove("short");
    node.remove("hog");
    node.until("no slice of a pod is left", || {
        let left = node.slices();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    assert_eq!(node.property(unit(&path), "ActiveState"), "inactive");
    let scopes = node.sh("systemctl list-units --all --plain --no-legend 'cri-containerd-*.scope'");
    assert_eq!(scopes, "", "no scope of a container is left");
}

#[test]
fn reload_of_systemd_and_restarts_of_agent_and_runtime_under_load_restart_no_container() {
    let node = TestNode::start(&json!({}));
    let limited = json!({"limits": {"cpu": "300m", "memory": "64Mi"}});
    node.put(&sleeper("exact", &limited));
    let burn = ["sh", "-c", "while :; do /bin/true; done"];
    for name in ["busy-1", "busy-2"] {
        node.put(&pod(name, &burn, &json!({"limits": {"cpu": "200m", "memory": "64Mi"}})));
    }
    let names = ["exact", "busy-1", "busy-2"];
    let before = names.map(|name| node.pod_until(name, "is ready", is_ready));
    let wanted = limits(&node, &slice(&before[0], ""));
    let pids = node.sh("pgrep -x box | sort -n");
    for _ in 0..3 {
        node.sh("systemctl daemon-reload");
        node.sh("systemctl restart pintle-agent");
    }
    node.sh("systemctl daemon-reexec");
    node.sh("systemctl restart containerd");
    for (name, before) in names.iter().zip(&before) {
        let after = node.pod_until(name, "is ready again", is_ready);
        assert_eq!(container_id(&after), container_id(before), "{name}");
        assert_eq!((restarts(&after), restarts(before)), (0, 0), "{name}");
    }
    assert_eq!(node.sh("pgrep -x box | sort -n"), pids);
    assert_eq!(limits(&node, &slice(&before[0], "")), wanted);
    assert_eq!(node.property("pintle-agent", "ActiveState"), "active");
}

#[test]
fn kubepods_slice_is_limited_to_node_allocatable_resources() {
    let node = TestNode::start(&json!({
        "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved"],
        "systemReserved": {"memory": "256Mi", "cpu": "100m"},
        "systemReservedCgroup": "/system.slice",
        "kubeReserved": {"memory": "512Mi", "pid": "500", "cpu": "100m"},
        "kubeReservedCgroup": "/runtime.slice",
    }));
    let kib: u64 = node
        .sh("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")
        .parse()
        .expect("a number");
    // Whole pages, as the kernel keeps limits.
    let memory = (kib * 1024 - ((256 + 512) << 20)) / 4096 * 4096;
    node.until("all pods have a limit", || {
        let max = node.try_cgroup("", "memory.max")?;
        ensure!(max == memory.to_string(), "{max}, not {memory}");
        Ok(())
    });
    assert_eq!(node.property("kubepods.slice", "MemoryMax"), memory.to_string());
    // One CPU but for the 200m that are reserved: 819 shares.
    assert_eq!(node.cgroup("", "cpu.weight"), "32");
    let pids: u64 = node.cgroup("", "pids.max").parse().expect("a limit");
    let most: u64 = node.sh("cat /proc/sys/kernel/pid_max").parse().expect("a number");
    assert!(pids > 0 && pids <= most - 500, "{pids} of {most}");
    assert_eq!(node.sh("cat /sys/fs/cgroup/system.slice/memory.max"), (256 << 20).to_string());
    assert_eq!(node.sh("cat /sys/fs/cgroup/runtime.slice/memory.max"), (512 << 20).to_string());
}

#[test]
fn agent_killed_during_pod_starts_starts_each_pod_once_and_leaves_no_slice() {
    const PODS: usize = 6;
    let node = TestNode::start(&json!({}));
    let names: Vec<String> = (0..PODS).map(|n| format!("p{n}")).collect();
    for name in &names {
        node.put(&sleeper(name, &json!({"limits": {"cpu": "100m", "memory": "32Mi"}})));
        node.sh("systemctl kill --signal=KILL pintle-agent");
    }
    for name in &names {
        let pod = node.pod_until(name, "is ready", is_ready);
        assert_eq!(restarts(&pod), 0, "{name}");
    }
    node.until("each pod has a sandbox and a container", || {
        let found = node.below("cri-containerd-*.scope");
        ensure!(found.len() == 2 * PODS, "{found:?}");
        Ok(())
    });
    assert_eq!(node.slices().len(), PODS);
    for name in &names {
        node.remove(name);
    }
    node.until("no slice of a pod is left", || {
        let left = node.slices();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
}
