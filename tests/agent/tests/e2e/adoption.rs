//! Pods that ran before the agent and live where it would not have put them: they stay, and all
//! that is said and done of them is of where they are.

use std::fs;
use std::path::PathBuf;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::manifest::{With, condition, container, container_id, pod, restarts, script};
use pintle_testbed::node::NODE_NAME;
use pintle_testbed::{LONG, Options, TestNode, until};
use serde_json::{Value, json};
use xtask::node::agent::READ_ONLY_PORT;

use crate::support::{explain, explained, kill, shared, sharing};

/// The cgroup with memory of a container's first process.
fn cgroup(node: &TestNode, pod: &Pod, container: &str) -> String {
    let pid = node.container_pid(&container_id(pod, container)).expect("it runs");
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it is there");
    let of_memory = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.is_empty() && !text.contains(":memory:")
            || controllers.split(',').any(|controller| controller == "memory")
    };
    let line = text.lines().find(of_memory).expect("a line of memory");
    line.splitn(3, ':').nth(2).expect("a path").to_owned()
}

fn statistics(node: &TestNode, pod: &Pod) {
    let uid = pod.metadata.uid.as_deref().expect("a uid");
    until(LONG, "statistics of the pod", || {
        let answer = node.get(READ_ONLY_PORT, "/stats/summary")?;
        let summary: Value = serde_json::from_str(&answer.body)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.iter().find(|p| p["podRef"]["uid"] == uid).cloned().unwrap_or_default();
        let used = |of: &Value| of["memory"]["workingSetBytes"].as_u64().unwrap_or(0);
        ensure!(used(&found) > 0 && used(&found["containers"][0]) > 0, "{found:#}");
        ensure!(found["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap_or(0) > 0, "{found:#}");
        Ok(())
    });
}

fn container_statistics(node: &TestNode, pod: &Pod) {
    let uid = pod.metadata.uid.as_deref().expect("a uid");
    until(LONG, "statistics of the container", || {
        let answer = node.get(READ_ONLY_PORT, "/stats/summary")?;
        let summary: Value = serde_json::from_str(&answer.body)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let found = pods.iter().find(|p| p["podRef"]["uid"] == uid).cloned().unwrap_or_default();
        let used = found["containers"][0]["memory"]["workingSetBytes"].as_u64().unwrap_or(0);
        ensure!(used > 0, "{found:#}");
        Ok(())
    });
}

/// Directories of pods' cgroups below the node's own.
fn cgroups_of_pods(node: &TestNode) -> Vec<String> {
    let of_a_pod = |path: &String| path.contains("/pod") || path.contains("-pod");
    node.leftovers().cgroups.into_iter().filter(of_a_pod).collect()
}

#[test]
fn pods_of_another_cgroup_root_are_adopted_measured_watched_and_removed_in_place() {
    let mut node = TestNode::usual();
    let text = "while [ ! -e /shared/go ]; do sleep 0.1; done; exec /box hog 200 child";
    let limits = json!({"limits": {"memory": "48Mi"}});
    let hog = script("c", text).with("resources", limits);
    node.put("hog.json", &sharing(pod("hog", &[hog]), &node));
    node.put("web.json", &pod("web", &[container("c", &["/box", "pause"])]));
    let before = ["hog", "web"].map(|name| {
        let ready = node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        (name, cgroup(&node, &ready, "c"), ready)
    });
    let root = format!("/{}/moved", node.runtime_node().name());
    let moved = node.runtime_node().cgroup("moved");
    node.stop_agent();
    node.runtime_node().make_cgroup("moved").expect("made");
    node.add_flags(vec![format!("--cgroup-root={root}")]);
    node.start_agent();

    for (name, place, before) in &before {
        let after = node.pod_until(name, "is adopted", |p| condition(p, "Ready"));
        assert_eq!(container_id(&after, "c"), container_id(before, "c"), "{name}");
        assert_eq!(restarts(&after, "c"), 0, "{name}");
        assert_eq!(cgroup(&node, &after, "c"), *place, "{name}");
        statistics(&node, &after);
        let (above, _) = place.rsplit_once('/').expect("a pod's");
        until(LONG, "explain says where it lives", || {
            let details = explain(&node, name)?["details"].to_string();
            ensure!(details.contains(&format!("its cgroup is {above}")), "{details}");
            Ok(())
        });
        let told = node.cli(&["timeline", &format!("{name}-{NODE_NAME}")]).expect("answered");
        let told: Vec<_> = told.lines().filter(|line| line.contains("AdoptedAsItIs")).collect();
        assert!(told.len() == 1 && told[0].contains(&moved), "once: {told:?}");
    }
    let unused: Vec<_> =
        cgroups_of_pods(&node).into_iter().filter(|p| p.contains("moved")).collect();
    assert!(unused.is_empty(), "nothing is made that nothing is in: {unused:?}");

    // Only an agent that follows the container's own cgroup learns of the kill of its child.
    fs::write(shared(&node).join("go"), "").expect("written");
    explained(&node, "hog", &["OOM killer took", "c"]);

    let [_, (_, place, web)] = &before;
    kill(&node, web, "c");
    let web =
        node.pod_until("web", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    let above = |path: &str| PathBuf::from(path).parent().map(PathBuf::from);
    assert_eq!(above(&cgroup(&node, &web, "c")), above(place), "beside its sandbox");
    statistics(&node, &web);

    taken_away(&node, &["hog.json", "web.json"]);
}

fn taken_away(node: &TestNode, manifests: &[&str]) {
    for file in manifests {
        node.remove(file);
    }
    until(LONG, "nothing of the pods is left", || {
        let left = node.leftovers();
        let of_pods = cgroups_of_pods(node);
        ensure!(
            of_pods.is_empty() && left.pod_dirs.is_empty() && left.shims.is_empty(),
            "{left:#?}"
        );
        Ok(())
    });
}

#[test]
fn pods_without_own_cgroups_keep_running_under_an_agent_with_cgroups_per_qos() {
    let config = json!({"cgroupsPerQOS": false});
    let mut node = TestNode::start(Options { config, ..Options::default() });
    for name in ["web", "other"] {
        node.put(&format!("{name}.json"), &pod(name, &[container("c", &["/box", "pause"])]));
    }
    let web = node.pod_until("web", "is ready", |p| condition(p, "Ready"));
    let other = node.pod_until("other", "is ready", |p| condition(p, "Ready"));
    let shared = node.runtime_node().cgroup("");
    let place = cgroup(&node, &web, "c");
    assert_eq!(PathBuf::from(&place).parent(), Some(std::path::Path::new(&shared)));
    node.stop_agent();
    node.add_flags(vec!["--cgroups-per-qos=true".to_owned()]);
    node.start_agent();
    let after = node.pod_until("web", "is adopted", |p| condition(p, "Ready"));
    assert_eq!(container_id(&after, "c"), container_id(&web, "c"));
    container_statistics(&node, &after);
    until(LONG, "explain says where it lives", || {
        let details = explain(&node, "web")?["details"].to_string();
        ensure!(details.contains(&format!("its cgroup is {shared}\"")), "{details}");
        Ok(())
    });
    // A container that starts from now on is in a cgroup of its pod, and is found there.
    kill(&node, &web, "c");
    let web =
        node.pod_until("web", "was restarted", |p| restarts(p, "c") == 1 && condition(p, "Ready"));
    let uid = web.metadata.uid.as_deref().expect("a uid");
    let place = cgroup(&node, &web, "c");
    let own = node.runtime_node().cgroup(&format!("kubepods/besteffort/pod{uid}"));
    assert!(place.starts_with(&own), "{place}");
    container_statistics(&node, &web);
    // What goes is the pod's own; the cgroup that all others are in stays.
    node.remove("web.json");
    node.gone("web");
    until(LONG, "the pod's cgroup is gone", || {
        let left = cgroups_of_pods(&node);
        let (_, leaf) = own.rsplit_once('/').expect("a path");
        ensure!(!left.iter().any(|path| path.contains(leaf)), "{left:?}");
        Ok(())
    });
    let other = (node.pod("other").expect("served"), other);
    assert_eq!(restarts(&other.0, "c"), 0);
    assert_eq!(container_id(&other.0, "c"), container_id(&other.1, "c"));
    taken_away(&node, &["other.json"]);
}
