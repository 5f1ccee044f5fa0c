//! A scheduler and a kubelet, as far as controllers notice them.
//!
//! Pods are bound to a node with room, become Running and Ready, end if their label says so, and
//! are removed some time after they were deleted.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{NODES, PODS};
use pintle_api_types::request::{DeleteOptions, PatchForm, Request, Subresource, Target};
use pintle_api_types::rng::Rng;
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

/// The next step of a pod, as one request.
pub(crate) fn step(server: &Server, rng: &mut Rng, now: &str) -> Option<Request> {
    let pods: Vec<_> = server.objects(PODS, "").filter(|(_, pod)| needs_step(pod)).collect();
    if pods.is_empty() {
        return None;
    }
    let (key, pod) = rng.pick(&pods);
    Some(next(key, pod, server, rng, now))
}

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty())
}

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or("Pending")
}

fn is_deleting(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

fn behaviour(pod: &Value) -> &str {
    pod["metadata"]["labels"]["behaviour"].as_str().unwrap_or("run")
}

fn is_terminal(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn needs_step(pod: &Value) -> bool {
    let ends = matches!(behaviour(pod), "succeed" | "fail");
    match () {
        // Finalizers other than the kubelet's hold a finished pod.
        () if is_deleting(pod) && is_terminal(pod) => pod["metadata"]["finalizers"].is_null(),
        () if is_deleting(pod) => true,
        () if is_terminal(pod) => false,
        () if !is_bound(pod) => true,
        () if phase(pod) == "Pending" => true,
        () => ends,
    }
}

fn next(key: &ObjectKey, pod: &Value, server: &Server, rng: &mut Rng, now: &str) -> Request {
    let has_finalizers = !pod["metadata"]["finalizers"].is_null();
    if is_deleting(pod) && (!has_finalizers || is_terminal(pod)) {
        let uid = pod["metadata"]["uid"].as_str().map(str::to_owned);
        let options = DeleteOptions { uid, grace_seconds: Some(0), ..Default::default() };
        return Request::Delete { target: Target::object(PODS, key.clone()), options };
    }
    if is_deleting(pod) {
        return status(key, ended(137, "Failed", now));
    }
    if !is_bound(pod) {
        let nodes: Vec<_> = server.objects(NODES, "").map(|(key, _)| key.name()).collect();
        let wanted = pinned(pod).unwrap_or_else(|| *rng.pick::<&str>(&nodes));
        let below = Some(Subresource { name: key.name().to_owned(), sub: "binding" });
        let body = json!({"target": {"kind": "Node", "name": wanted}});
        return Request::Create { kind: PODS, namespace: key.namespace().to_owned(), below, body };
    }
    if phase(pod) == "Pending" {
        return status(
            key,
            json!({"phase": "Running", "podIP": "10.0.0.1", "startTime": now,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]}),
        );
    }
    match behaviour(pod) {
        "fail" => status(key, ended(1, "Failed", now)),
        _ => status(key, ended(0, "Succeeded", now)),
    }
}

/// The node that a daemon pod is for.
fn pinned(pod: &Value) -> Option<&str> {
    let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let field = &terms[0]["matchFields"][0];
    (field["key"] == "metadata.name").then(|| field["values"][0].as_str()).flatten()
}

fn ended(code: i32, phase: &str, now: &str) -> Value {
    json!({"phase": phase,
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
        "containerStatuses": [{"name": "c", "restartCount": 0, "image": "i", "imageID": "i",
            "ready": false,
            "state": {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}}}]})
}

fn status(key: &ObjectKey, status: Value) -> Request {
    let target = Target::status(PODS, key.clone());
    Request::Patch { target, form: PatchForm::Merge, body: json!({"status": status}) }
}

/// The identity of the kubelet and the scheduler.
pub(crate) const IDENTITY: Identity = Identity::Admin;
