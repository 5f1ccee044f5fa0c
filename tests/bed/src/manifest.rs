//! Manifests for tests, and readers of pods' states.
//!
//! Builders return plain JSON, so that a test adds any field in its own words:
//! `container("web", &["/box", "serve", "http=8080"]).with("ports", json!([...]))`. Readers take a
//! `Pod` as the agent serves it and panic with the pod when a part is missing that must be there.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};
use xtask::image::set;

/// A pod of these containers: one second of grace, everything else as the API defaults it.
pub fn pod(name: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 1},
    })
}

/// A container of the box image, which has busybox and `/box`; it is never pulled.
pub fn container(name: &str, command: &[&str]) -> Value {
    json!({
        "name": name,
        "image": set::BOX,
        "imagePullPolicy": "Never",
        "command": command,
    })
}

/// A shell script in the box image. As process 1 it ignores SIGTERM unless it traps it.
pub fn script(name: &str, text: &str) -> Value {
    container(name, &["sh", "-c", text])
}

/// Adding fields to a manifest.
pub trait With {
    /// Sets a field of this object.
    #[must_use]
    fn with(self, field: &str, value: Value) -> Self;
    /// Sets a field of the pod's `spec`.
    #[must_use]
    fn with_spec(self, field: &str, value: Value) -> Self;
}

impl With for Value {
    fn with(mut self, field: &str, value: Value) -> Self {
        self[field] = value;
        self
    }

    fn with_spec(mut self, field: &str, value: Value) -> Self {
        self["spec"][field] = value;
        self
    }
}

/// The status of a container of any kind, by its name.
pub fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let kinds = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    kinds.into_iter().flatten().flatten().find(|c| c.name == container)
}

/// The pod's phase, or an empty text.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Returns whether the condition exists and is `True`.
pub fn condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
}

/// How often the container was restarted; 0 while it is not known.
pub fn restarts(pod: &Pod, container: &str) -> i32 {
    status_of(pod, container).map_or(0, |c| c.restart_count)
}

/// Returns whether the container runs now.
pub fn is_running(pod: &Pod, container: &str) -> bool {
    let state = status_of(pod, container).and_then(|c| c.state.as_ref());
    state.is_some_and(|s| s.running.is_some())
}

/// Why the container waits: `CrashLoopBackOff`, `ErrImagePull`, ...
pub fn waiting_reason<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let state = status_of(pod, container)?.state.as_ref()?;
    state.waiting.as_ref()?.reason.as_deref()
}

/// Message of the container's waiting state, if it waits.
pub fn waiting_message<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let state = status_of(pod, container)?.state.as_ref()?;
    state.waiting.as_ref()?.message.as_deref()
}

/// Exit code and reason of the container's last end, whether it runs again or not.
pub fn last_end<'a>(pod: &'a Pod, container: &str) -> Option<(i32, &'a str)> {
    let status = status_of(pod, container)?;
    let states = [status.state.as_ref(), status.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|s| s.terminated.as_ref())?;
    Some((ended.exit_code, ended.reason.as_deref().unwrap_or_default()))
}

/// The pod's address.
pub fn address(pod: &Pod) -> IpAddr {
    let ip = pod.status.as_ref().and_then(|s| s.pod_ip.as_deref());
    let ip = ip.and_then(|ip| ip.parse().ok());
    ip.unwrap_or_else(|| panic!("the pod has no address: {:?}", pod.status))
}

/// The container's id as CRI knows it.
pub fn container_id(pod: &Pod, container: &str) -> String {
    let id = status_of(pod, container).and_then(|c| c.container_id.as_deref());
    let id = id.unwrap_or_else(|| panic!("{container} has no id: {:?}", pod.status));
    id.trim_start_matches("containerd://").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_manifest_is_a_pod_with_the_added_fields() {
        let web = container("web", &["/box", "pause"]).with("tty", json!(true));
        let manifest = pod("x", &[web]).with_spec("restartPolicy", json!("Never"));
        let pod: Pod = serde_json::from_value(manifest).expect("a pod");
        let spec = pod.spec.expect("a spec");
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.containers[0].tty, Some(true));
    }

    #[test]
    fn readers_find_states_of_all_kinds_of_containers() {
        let pod: Pod = serde_json::from_value(json!({"status": {
            "phase": "Running", "podIP": "10.88.0.2",
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [{"name": "a", "image": "i", "imageID": "i", "ready": true,
                "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}],
            "containerStatuses": [{"name": "b", "image": "i", "imageID": "i", "ready": false,
                "restartCount": 3, "containerID": "containerd://abc",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 7, "reason": "Error"}}}],
        }}))
        .expect("a pod");
        assert_eq!((phase(&pod), condition(&pod, "Ready")), ("Running", true));
        assert_eq!(last_end(&pod, "a"), Some((0, "Completed")));
        assert_eq!((restarts(&pod, "b"), last_end(&pod, "b")), (3, Some((7, "Error"))));
        assert_eq!(waiting_reason(&pod, "b"), Some("CrashLoopBackOff"));
        assert_eq!(container_id(&pod, "b"), "abc");
        assert_eq!(address(&pod).to_string(), "10.88.0.2");
        assert!(!is_running(&pod, "b"));
    }
}
