//! Tests of which pods are surplus.
// k8s: pkg/controller/job/indexed_job_utils_test.go TestAppendDuplicatedIndexPodsForRemoval

use std::rc::Rc;

use serde_json::{Value, json};

use super::super::pods::JobPod;
use super::super::removal::pods_to_remove;
use super::kit::{job, pod};

fn removed(spec: &Value, pods: &[Value], at_least: usize) -> Vec<String> {
    let job = job(&json!({"metadata": {"name": "j", "uid": "j"}, "spec": spec}));
    let pods: Vec<_> =
        pods.iter().map(|value| JobPod::claimed(Rc::new(pod(value)), &job)).collect();
    let removed = pods_to_remove(&job, &pods, at_least);
    removed.iter().map(|pod| pod.facts.metadata.name.to_string()).collect()
}

fn indexed(name: &str, index: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name,
        "annotations": {"batch.kubernetes.io/job-completion-index": index}},
        "status": {"phase": phase}})
}

#[test]
fn pods_with_repeated_or_invalid_indexes_are_removed_first() {
    let spec = json!({"completionMode": "Indexed", "completions": 3});
    let pods = [
        indexed("zero-pending", "0", "Pending"),
        indexed("zero-running", "0", "Running"),
        indexed("one", "1", "Running"),
        indexed("beyond", "3", "Running"),
        indexed("none", "-1", "Running"),
        indexed("word", "x", "Running"),
        indexed("two", "2", "Pending"),
    ];
    assert_eq!(removed(&spec, &pods, 0), ["none", "word", "zero-pending", "beyond"]);
    assert_eq!(removed(&spec, &pods, 5).last().map(String::as_str), Some("two"));
}

#[test]
fn unassigned_pending_unready_and_young_pods_are_removed_first() {
    let running = |name: &str, ready: Option<&str>, restarts: i32, created: &str| {
        let conditions =
            ready.map(|at| json!([{"type": "Ready", "status": "True", "lastTransitionTime": at}]));
        json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": conditions,
            "containerStatuses": [{"name": "c", "restartCount": restarts}]}})
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
    let mut unassigned = running("unassigned", Some(early), 0, early);
    unassigned["spec"] = json!({});
    let mut pending = running("pending", Some(early), 0, early);
    pending["status"]["phase"] = "Pending".into();
    let pods = [
        running("old", Some(early), 0, early),
        running("young", Some(early), 0, late),
        running("restarted", Some(early), 3, early),
        running("late", Some(late), 0, early),
        running("unready", None, 0, early),
        pending,
        unassigned,
    ];
    let all = ["unassigned", "pending", "unready", "late", "restarted", "young", "old"];
    assert_eq!(removed(&json!({"completions": 9}), &pods, 7), all);
}
