//! Cgroups that systemd makes: what kubeadm sets up on every node. Skipped where systemd does not
//! run; `cargo xtask vm --systemd` boots a guest where it does (docs/TESTING.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::manifest::{With, condition, container, container_id, pod, restarts};
use pintle_testbed::node::Options;
use pintle_testbed::{LONG, TestNode, skip, until};
use serde_json::{Value, json};
use xtask::runtime::Version;

use crate::support::{explained, kill, log_until, remove_all};

const ROOT: &str = "/sys/fs/cgroup/kubepods.slice";

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The pod's slice and its unit's name.
fn slice(pod: &Pod, class: &str) -> (PathBuf, String) {
    let uid = pod.metadata.uid.as_deref().expect("a uid").replace('-', "_");
    let (above, prefix) = match class {
        "" => (PathBuf::from(ROOT), "kubepods".to_owned()),
        class => {
            let name = format!("kubepods-{class}");
            (Path::new(ROOT).join(format!("{name}.slice")), name)
        }
    };
    let unit = format!("{prefix}-pod{uid}.slice");
    (above.join(&unit), unit)
}

fn read(dir: &Path, file: &str) -> String {
    let path = dir.join(file);
    let text = fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

fn systemctl(args: &[&str]) -> String {
    let out = Command::new("systemctl").args(args).output().expect("systemctl runs");
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A property as systemd has it.
fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", unit, "--value", "--property", name])
}

fn slices_of_pods() -> Vec<String> {
    let mut found = Vec::new();
    for above in ["", "kubepods-burstable.slice", "kubepods-besteffort.slice"] {
        let entries = fs::read_dir(Path::new(ROOT).join(above)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        found.extend(names.filter(|name| name.contains("-pod")));
    }
    found
}

#[test]
fn pods_live_in_slices_of_systemd_through_limits_kills_reloads_and_restarts_of_the_agent() {
    if !has_systemd() {
        return skip("systemd does not run on this host");
    }
    // The configuration says cgroupfs; the runtime knows better, and is believed.
    let config = json!({
        "cgroupDriver": "cgroupfs", "cgroupRoot": "/", "enforceNodeAllocatable": ["pods"],
        "kubeReserved": {"memory": "256Mi", "pid": "100"},
        // A child that the kernel kills for memory leaves its container running.
        "singleProcessOOMKill": true
    });
    let mut node = TestNode::start(Options { systemd: true, config, ..Options::default() });
    let limits = json!({"limits": {"cpu": "255m", "memory": "64Mi"}});
    let paused = || container("c", &["/box", "pause"]);
    node.put("exact.json", &pod("exact", &[paused().with("resources", limits)]));
    let requests = json!({"requests": {"cpu": "100m"}, "limits": {"memory": "48Mi"}});
    let hog = container("c", &["/box", "hog", "200", "child"]).with("resources", requests);
    node.put("some.json", &pod("some", &[hog]));
    node.put("none.json", &pod("none", &[paused()]));

    let exact = node.pod_until("exact", "is ready", |p| condition(p, "Ready"));
    let (dir, unit) = slice(&exact, "");
    assert_eq!(read(&dir, "memory.max"), (64 << 20).to_string());
    assert_eq!(read(&dir, "cpu.max"), "26000 100000", "systemd knows whole percents only");
    assert_eq!(read(&dir, "cpu.weight"), "10");
    assert_eq!(property(&unit, "MemoryMax"), (64 << 20).to_string());
    assert_eq!(property(&unit, "CPUQuotaPerSecUSec"), "260ms");
    let id = container_id(&exact, "c");
    let scope = format!("cri-containerd-{}.scope", id.trim_start_matches("containerd://"));
    assert!(dir.join(&scope).is_dir(), "the runtime's scope is in the pod's slice");
    assert_eq!(property(&scope, "Slice"), unit);

    the_kernels_events_are_the_containers(&node);
    all_pods_have_a_limit();
    statistics_are_there(&node, &exact);

    systemctl(&["daemon-reload"]);
    assert_eq!(read(&dir, "cpu.max"), "26000 100000", "systemd writes what we wrote");
    assert_eq!(read(&dir, "memory.max"), (64 << 20).to_string());

    let before = node.pod("none").expect("served");
    node.kill_agent();
    node.start_agent();
    for (name, before) in [("none", &before), ("exact", &exact)] {
        let after = node.pod_until(name, "is adopted", |p| condition(p, "Ready"));
        assert_eq!(container_id(&after, "c"), container_id(before, "c"), "{name}");
        assert_eq!(restarts(&after, "c"), restarts(before, "c"), "{name}");
    }
    kill(&node, &before, "c");
    node.pod_until("none", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    // The sum of the Burstable pods' requests, computed again by the second agent: 100m.
    until(LONG, "the class has its weight", || {
        let weight = read(&Path::new(ROOT).join("kubepods-burstable.slice"), "cpu.weight");
        ensure!(weight == "4", "{weight}");
        Ok(())
    });

    a_left_over_slice_goes();
    remove_all(&node);
    until(LONG, "no slice of a pod is left", || {
        let left = slices_of_pods();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    });
    assert_eq!(property(&unit, "ActiveState"), "inactive");
}

/// The OOM kill of a child is reported apart from the container's exit: the agent found the scope.
fn the_kernels_events_are_the_containers(node: &TestNode) {
    log_until(node, "some", "c", "child ended");
    explained(node, "some", &["OOM killer took", "c"]);
    let some = node.pod_until("some", "is ready", |p| condition(p, "Ready"));
    assert_eq!(restarts(&some, "c"), 0);
    let (dir, _) = slice(&some, "burstable");
    assert_eq!(read(&dir, "memory.max"), (48 << 20).to_string());
    assert_eq!(read(&dir, "cpu.weight"), "4");
}

fn all_pods_have_a_limit() {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("readable");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("there");
    let kib: u64 = total.trim_end_matches("kB").trim().parse().expect("a number");
    let wanted = (kib * 1024 - (256 << 20)) / 4096 * 4096;
    until(LONG, "all pods have a limit", || {
        let max = read(Path::new(ROOT), "memory.max");
        ensure!(max == wanted.to_string(), "{max}, not {wanted}");
        Ok(())
    });
    assert!(read(Path::new(ROOT), "cgroup.controllers").contains("cpuset"));
    assert!(read(Path::new(ROOT), "pids.max").parse::<u64>().is_ok_and(|max| max > 0));
    assert_eq!(property("kubepods.slice", "MemoryMax"), wanted.to_string());
}

/// GET from the agent's HTTPS port.
fn secure(node: &TestNode, path: &str) -> anyhow::Result<String> {
    let mut curl = node.runtime_node().command(Path::new("curl"));
    let out = curl.args(["-sk", &format!("https://127.0.0.1:10250{path}")]).output()?;
    Ok(String::from_utf8(out.stdout)?)
}

fn statistics_are_there(node: &TestNode, pod: &Pod) {
    let uid = pod.metadata.uid.as_deref().expect("a uid");
    until(LONG, "statistics of the pod", || {
        let summary: Value = serde_json::from_str(&secure(node, "/stats/summary")?)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.iter().find(|p| p["podRef"]["uid"] == uid).cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let container = &found["containers"][0];
        ensure!(number(&found["memory"]["workingSetBytes"]) > 0, "{found:#}");
        ensure!(number(&found["cpu"]["usageCoreNanoSeconds"]) > 0, "{found:#}");
        ensure!(number(&container["memory"]["workingSetBytes"]) > 0, "{found:#}");
        ensure!(number(&container["cpu"]["usageCoreNanoSeconds"]) > 0, "{found:#}");
        Ok(())
    });
    for (path, name) in [
        ("/metrics/resource", "container_memory_working_set_bytes"),
        ("/metrics/cadvisor", "container_spec_memory_limit_bytes"),
        ("/metrics/cadvisor", "container_pressure_memory_waiting_seconds_total"),
    ] {
        let text = secure(node, path).expect("answered");
        let of_pod = |line: &&str| line.starts_with(name) && line.contains("exact-node");
        assert!(text.lines().any(|line| of_pod(&line)), "{name}: {text}");
    }
}

/// The slice that an agent leaves if it is killed between creating the cgroup and the sandbox.
fn a_left_over_slice_goes() {
    let name = "kubepods-besteffort-poddead_beef.slice";
    let made = Command::new("busctl")
        .args(["call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"])
        .args(["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"])
        .args([name, "replace", "1", "DefaultDependencies", "b", "false", "0"])
        .output()
        .expect("busctl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    until(LONG, "the slice without a pod is gone", || {
        let left = slices_of_pods();
        ensure!(!left.iter().any(|slice| slice == name), "{left:?}");
        ensure!(property(name, "ActiveState") == "inactive", "systemd has it still");
        Ok(())
    });
}

#[test]
fn a_configuration_that_contradicts_an_old_containerd_is_refused_in_a_sentence() {
    let config = json!({"cgroupDriver": "systemd"});
    let (version, agent) = (Version::V1_7, false);
    let options = Options { version, config, agent, systemd: false, ..Options::default() };
    let mut node = TestNode::start(options);
    let (status, log) = node.agent_refuses();
    assert!(!status.success());
    for part in ["cgroupDriver is systemd", "SystemdCgroup = false", "set cgroupDriver to cgroupfs"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
}
