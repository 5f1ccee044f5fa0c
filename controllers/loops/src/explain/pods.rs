//! Explains why pods are not available, grouping pods with the same problem.
//!
//! Input: pods as the API server shows them. Output: sentences. Pure.
//! Bounds: `POD_GROUPS_MAX` sentences; pods with other troubles are counted in one more.

use serde_json::Value;

use super::evidence::{condition, number, text, true_condition};
use super::names;

/// Troubles that are shown.
const POD_GROUPS_MAX: usize = 5;
/// Reasons of containers that wait for their image.
const IMAGE_REASONS: [&str; 4] =
    ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"];

/// Sentences about pods that are not available.
pub(super) fn troubles(pods: &[Value]) -> Vec<String> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for pod in pods {
        let Some(trouble) = trouble(pod) else { continue };
        let name = text(&pod["metadata"]["name"]);
        match groups.iter_mut().find(|(known, _)| *known == trouble) {
            Some((_, names)) => names.push(name),
            None => groups.push((trouble, vec![name])),
        }
    }
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let rest: usize = groups.iter().skip(POD_GROUPS_MAX).map(|(_, names)| names.len()).sum();
    let mut lines: Vec<_> = groups.iter().take(POD_GROUPS_MAX).map(line).collect();
    if rest > 0 {
        lines.push(format!("{rest} more pods are not available for other reasons."));
    }
    lines
}

fn line((trouble, pods): &(String, Vec<&str>)) -> String {
    let trouble = trouble.trim_end_matches('.');
    match pods.len() {
        1 => format!("Pod {}: {trouble}.", pods[0]),
        count => format!("{count} pods ({}): {trouble}.", names(pods)),
    }
}

/// The reason for which a pod is not available; `None` when it is ready.
pub(super) fn trouble(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let finalizers = pod["metadata"]["finalizers"].as_array().into_iter().flatten();
        let finalizers = finalizers.map(text).collect::<Vec<_>>().join(", ");
        return Some(match finalizers.is_empty() {
            true => "terminating".to_owned(),
            false => format!("terminating, held by the finalizers {finalizers}"),
        });
    }
    match text(&status["phase"]) {
        "Succeeded" => return Some("ended".to_owned()),
        "Failed" => return Some(failed(status)),
        _ => {}
    }
    if text(&pod["spec"]["nodeName"]).is_empty() {
        return Some(unscheduled(pod));
    }
    if true_condition(pod, "Ready").is_some() {
        return None;
    }
    let init = status["initContainerStatuses"].as_array().into_iter().flatten();
    let containers = status["containerStatuses"].as_array().into_iter().flatten();
    if let Some(trouble) = init.chain(containers.clone()).find_map(container) {
        return Some(trouble);
    }
    if status["containerStatuses"].is_null() {
        return Some("waits for the kubelet of its node to start it".to_owned());
    }
    let unready = containers.filter(|container| container["ready"] != true);
    let unready: Vec<_> = unready.map(|container| text(&container["name"])).collect();
    let gates = pod["spec"]["readinessGates"].as_array().into_iter().flatten();
    let gates = gates.map(|gate| text(&gate["conditionType"]));
    let gates: Vec<_> = gates.filter(|gate| true_condition(pod, gate).is_none()).collect();
    Some(match unready.is_empty() {
        true if !gates.is_empty() => format!("waits for its readiness gates {}", names(&gates)),
        true => format!(
            "marked as not ready although its containers are: check node {}",
            text(&pod["spec"]["nodeName"])
        ),
        false => format!("runs, but container {} is not ready", names(&unready)),
    })
}

fn failed(status: &Value) -> String {
    let (reason, message) = (text(&status["reason"]), text(&status["message"]));
    match (reason, message) {
        ("", _) => "failed".to_owned(),
        (reason, "") => format!("failed: {reason}"),
        (reason, message) => format!("failed: {reason}: {message}"),
    }
}

fn unscheduled(pod: &Value) -> String {
    match condition(pod, "PodScheduled") {
        Some(found) if found["reason"] == "SchedulingGated" => {
            let gates = pod["spec"]["schedulingGates"].as_array().into_iter().flatten();
            let gates = gates.map(|gate| text(&gate["name"])).collect::<Vec<_>>().join(", ");
            format!("waits for its scheduling gates {gates}")
        }
        Some(found) if found["status"] == "False" => {
            format!("not scheduled: {}", text(&found["message"]))
        }
        _ => "not scheduled yet".to_owned(),
    }
}

/// The reason for which a container does not run.
fn container(status: &Value) -> Option<String> {
    let (name, waiting) = (text(&status["name"]), &status["state"]["waiting"]);
    let reason = text(&waiting["reason"]);
    if IMAGE_REASONS.contains(&reason) {
        return Some(format!("cannot get image {} ({reason})", text(&status["image"])));
    }
    if reason == "CrashLoopBackOff" {
        let code = number(&status["lastState"]["terminated"]["exitCode"]);
        let restarts = number(&status["restartCount"]);
        return Some(format!(
            "container {name} keeps crashing (last exit code {code}, {restarts} restarts)"
        ));
    }
    if let Some(code) = status["state"]["terminated"]["exitCode"].as_i64().filter(|code| *code != 0)
    {
        return Some(format!("container {name} ended with exit code {code}"));
    }
    match (reason, text(&waiting["message"])) {
        ("" | "PodInitializing", _) => None,
        ("ContainerCreating", _) => Some("its containers are being created".to_owned()),
        (reason, "") => Some(format!("container {name} does not start: {reason}")),
        (reason, message) => Some(format!("container {name} does not start: {reason}: {message}")),
    }
}
