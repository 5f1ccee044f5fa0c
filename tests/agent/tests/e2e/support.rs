//! Helpers of several scenarios: a folder that containers write into, logs, explanations.
//!
//! Order and gaps are read from what the containers themselves wrote down, never from how long a
//! wait of the test took.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use nix::sys::signal::Signal;
use pintle_testbed::cri::RawCri;
use pintle_testbed::manifest::{container_id, status_of};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, TestNode, until};
use serde_json::{Value, json};
use xtask::node::process;

/// A folder of the node that containers see as `/shared`.
pub(crate) fn shared(node: &TestNode) -> PathBuf {
    let dir = node.dir().join("shared");
    fs::create_dir_all(&dir).expect("the node's folder can be written");
    dir
}

/// Waits until nothing of any pod is left but what containerd itself has forgotten and no call of
/// CRI ends: a caller that went away while it made a sandbox leaves a shim with what it has
/// mounted, or a record that CRI does not list. Processes in a pod's cgroup the agent ends when two
/// of its sweeps have found them.
pub(crate) fn clean_of_what_the_runtime_knows(node: &TestNode) {
    let cri = RawCri::connect(node).expect("connected");
    until(LONG * 2, "nothing of the pods is left", || {
        let (sandboxes, containers) = (Default::default(), Default::default());
        let sandboxes = cri.block(cri.client.list_pod_sandbox(sandboxes))?.items;
        let containers = cri.block(cri.client.list_containers(containers))?.containers;
        ensure!(sandboxes.is_empty() && containers.is_empty(), "{sandboxes:#?} {containers:#?}");
        let mut left = node.leftovers();
        let forgotten = std::mem::take(&mut left.shims);
        left.mounts.retain(|mount| !forgotten.iter().any(|id| mount.contains(id)));
        ensure!(left.is_empty(), "{left:#?}, and the shims {forgotten:?}");
        Ok(())
    });
}

/// Mounts the shared folder into every container of the pod.
pub(crate) fn sharing(mut pod: Value, node: &TestNode) -> Value {
    push(
        &mut pod["spec"]["volumes"],
        json!({"name": "shared", "hostPath": {"path": shared(node)}}),
    );
    for kind in ["initContainers", "containers"] {
        for container in pod["spec"][kind].as_array_mut().into_iter().flatten() {
            push(&mut container["volumeMounts"], json!({"name": "shared", "mountPath": "/shared"}));
        }
    }
    pod
}

/// Adds to a list that may not be there yet.
pub(crate) fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(items) => items.push(item),
        None => *list = json!([item]),
    }
}

/// Lines that containers wrote into a file of the shared folder.
pub(crate) fn lines(node: &TestNode, file: &str) -> Vec<String> {
    let text = fs::read_to_string(shared(node).join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the file has at least `count` lines.
pub(crate) fn lines_until(node: &TestNode, file: &str, count: usize) -> Vec<String> {
    until(LONG, &format!("{count} lines in {file}"), || {
        let lines = lines(node, file);
        ensure!(lines.len() >= count, "{lines:?}");
        Ok(lines)
    })
}

/// Asserts that these lines stand in the file in this order, with others between them or not.
pub(crate) fn assert_order(lines: &[String], order: &[&str]) {
    let mut rest = lines.iter();
    for wanted in order {
        assert!(rest.any(|l| l == wanted), "{wanted:?} is out of order {order:?} in {lines:#?}");
    }
}

/// Everything the container wrote, all instances of it, without the stamps of the lines.
pub(crate) fn log(node: &TestNode, pod: &str, container: &str) -> String {
    let mut text = String::new();
    for path in log_files(node, pod, container) {
        let lines = fs::read_to_string(path).unwrap_or_default();
        for line in lines.lines().filter_map(|l| l.splitn(4, ' ').nth(3)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The container's log files, sorted by name.
pub(crate) fn log_files(node: &TestNode, pod: &str, container: &str) -> Vec<PathBuf> {
    let prefix = format!("default_{pod}-{NODE_NAME}_");
    let pods = fs::read_dir(node.pod_logs()).into_iter().flatten().flatten();
    let ours = pods.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
    let dirs = ours.map(|e| e.path().join(container));
    let entries = dirs.flat_map(|d| fs::read_dir(d).into_iter().flatten().flatten());
    let mut files: Vec<_> = entries.map(|e| e.path()).collect();
    files.sort();
    files
}

/// Waits until the container wrote this text.
pub(crate) fn log_until(node: &TestNode, pod: &str, container: &str, text: &str) -> String {
    until(LONG, &format!("{container} of {pod} says {text:?}"), || {
        let log = log(node, pod, container);
        ensure!(log.contains(text), "it said: {log}");
        Ok(log)
    })
}

/// `explain POD -o json`.
pub(crate) fn explain(node: &TestNode, pod: &str) -> Result<Value> {
    let text = node.cli(&["explain", &format!("{pod}-{NODE_NAME}"), "-o", "json"])?;
    serde_json::from_str(&text).with_context(|| text)
}

/// Waits until the explanation's sentence has all these parts, and returns it.
pub(crate) fn explained(node: &TestNode, pod: &str, parts: &[&str]) -> Value {
    until(LONG, &format!("explain {pod} says {parts:?}"), || {
        let answer = explain(node, pod)?;
        let sentence = answer["sentence"].as_str().unwrap_or_default();
        ensure!(parts.iter().all(|part| sentence.contains(part)), "{answer:#}");
        Ok(answer)
    })
}

/// How the container ended, if it does not run now.
pub(crate) fn ended<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStateTerminated> {
    status_of(pod, container)?.state.as_ref()?.terminated.as_ref()
}

/// How the container's instance before this one ended.
pub(crate) fn ended_before<'a>(
    pod: &'a Pod,
    container: &str,
) -> Option<&'a ContainerStateTerminated> {
    status_of(pod, container)?.last_state.as_ref()?.terminated.as_ref()
}

/// SIGKILL to the container's first process, past agent and runtime.
pub(crate) fn kill(node: &TestNode, pod: &Pod, container: &str) {
    let id = container_id(pod, container);
    let pid = node.container_pid(&id).unwrap_or_else(|| panic!("{container} has no process"));
    process::signal(pid, Signal::SIGKILL);
}

/// Removes all manifests and waits until nothing of any pod is left on the node.
pub(crate) fn remove_all(node: &TestNode) {
    for entry in fs::read_dir(node.manifests()).into_iter().flatten().flatten() {
        fs::remove_file(entry.path()).expect("a manifest can be removed");
    }
    node.clean();
}
