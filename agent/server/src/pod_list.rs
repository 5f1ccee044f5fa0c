//! `/pods` and `/runningpods`: a `v1.PodList` as the kubelet prints it.
//!
//! Input: a snapshot. Output: JSON bytes. Go prints some empty fields that other serialisers leave
//! out (`lastProbeTime: null`, `resources: {}`, `state: {}`), and leaves out kind and version of
//! the items; readers compare, so both are done here, too. Pure.
// k8s: pkg/kubelet/server/server.go encodePods

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::status::PENDING;
use pintle_agent_core::view::{PodView, Snapshot};
use serde_json::{Map, Value, json};

/// All pods that a source wants, with their derived status.
pub(super) fn pods(snapshot: &Snapshot) -> Vec<u8> {
    list(snapshot.pods.values().map(pod))
}

/// All pods of which the runtime has a running container or sandbox, as the runtime knows them.
// k8s: pkg/kubelet/container/runtime.go ToAPIPod
pub(super) fn running_pods(snapshot: &Snapshot) -> Vec<u8> {
    let known = snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
    list(known.filter(|observed| runs(observed)).map(|observed| running_pod(observed)))
}

fn list(items: impl Iterator<Item = Value>) -> Vec<u8> {
    let items: Vec<Value> = items.collect();
    // A nil slice in Go.
    let items = if items.is_empty() { Value::Null } else { Value::Array(items) };
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    let mut text = serde_json::to_vec(&list).expect("a JSON value can be written");
    text.push(b'\n');
    text
}

/// One pod, with the status that was derived for it.
fn pod(view: &PodView) -> Value {
    let pod: &Pod = &view.pod;
    let mut status = serde_json::to_value(&*view.status).unwrap_or_default();
    if view.status.phase.is_none()
        && let Some(status) = status.as_object_mut()
    {
        // k8s: pkg/kubelet/config/common.go applyDefaults
        status.insert("phase".to_owned(), json!(PENDING));
    }
    let mut item = json!({
        "metadata": serde_json::to_value(&pod.metadata).unwrap_or_default(),
        "spec": serde_json::to_value(&pod.spec).unwrap_or_default(),
        "status": status,
    });
    as_go_prints(&mut item);
    item
}

fn runs(observed: &ObservedPod) -> bool {
    observed.sandboxes.iter().any(|s| s.ready)
        || observed.containers.iter().any(|c| c.state == RunState::Running)
}

fn running_pod(observed: &ObservedPod) -> Value {
    let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
    let containers: Vec<Value> =
        running.map(|c| json!({"name": c.name, "image": c.image, "resources": {}})).collect();
    let containers = if containers.is_empty() { Value::Null } else { Value::Array(containers) };
    json!({
        "metadata": {
            "name": observed.name,
            "namespace": observed.namespace,
            "uid": observed.uid.as_str(),
        },
        "spec": {"containers": containers},
        "status": {},
    })
}

/// Adds what Go prints although it is empty.
fn as_go_prints(item: &mut Value) {
    if item["spec"].is_null() {
        item["spec"] = json!({"containers": null});
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in objects(&mut item["spec"], list) {
            default(container, "resources", json!({}));
            for variable in objects_of(container.get_mut("env")) {
                let from = variable.get_mut("valueFrom").and_then(Value::as_object_mut);
                let field = from.and_then(|from| from.get_mut("resourceFieldRef"));
                if let Some(field) = field.and_then(Value::as_object_mut) {
                    default(field, "divisor", json!("0"));
                }
            }
        }
    }
    let status = &mut item["status"];
    for condition in objects(status, "conditions") {
        default(condition, "lastProbeTime", Value::Null);
        default(condition, "lastTransitionTime", Value::Null);
    }
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for container in objects(status, list) {
            for state in ["state", "lastState"] {
                default(container, state, json!({}));
                state_as_go_prints(&mut container[state]);
            }
        }
    }
}

fn state_as_go_prints(state: &mut Value) {
    if let Some(running) = state.get_mut("running").and_then(Value::as_object_mut) {
        default(running, "startedAt", Value::Null);
    }
    if let Some(ended) = state.get_mut("terminated").and_then(Value::as_object_mut) {
        default(ended, "startedAt", Value::Null);
        default(ended, "finishedAt", Value::Null);
    }
}

fn default(object: &mut Map<String, Value>, field: &str, value: Value) {
    object.entry(field).or_insert(value);
}

fn objects<'a>(of: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    objects_of(of.get_mut(list))
}

fn objects_of(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let items = list.and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::{snapshot_of, view};

    /// What the kubelet printed, read as objects and printed by us, must be equal again.
    #[test]
    fn the_recorded_pods_are_printed_as_the_kubelet_printed_them() {
        let recorded = include_str!("../../../tests/recorded/static-pods.json");
        let recorded: Value = serde_json::from_str(recorded).expect("recorded pods");
        let items = recorded["pods_endpoint"].as_array().expect("a list");
        assert!(!items.is_empty());
        let views = items.iter().map(|item| view(item.clone()));
        let printed: Value =
            serde_json::from_slice(&pods(&snapshot_of(views.collect()))).expect("JSON");
        assert_eq!((&printed["kind"], &printed["apiVersion"]), (&json!("PodList"), &json!("v1")));
        assert_eq!(printed["metadata"], json!({}));
        let by_uid = |list: &Value| {
            let mut list = list.as_array().expect("a list").clone();
            list.sort_by_key(|item| item["metadata"]["uid"].to_string());
            list
        };
        assert_eq!(by_uid(&printed["items"]), by_uid(&recorded["pods_endpoint"]));
    }

    #[test]
    fn no_pods_are_a_nil_list() {
        let text = String::from_utf8(pods(&Snapshot::default())).expect("text");
        assert!(text.contains(r#""items":null"#), "{text}");
    }

    #[test]
    fn empty_fields_that_go_prints_are_printed() {
        let mut item = json!({
            "metadata": {},
            "spec": {"containers": [{"name": "c", "env": [{"name": "E", "valueFrom":
                {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}],
            },
        });
        as_go_prints(&mut item);
        let c = &item["spec"]["containers"][0];
        assert_eq!(c["resources"], json!({}));
        assert_eq!(c["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"], json!("0"));
        let condition = &item["status"]["conditions"][0];
        assert!(condition["lastProbeTime"].is_null() && condition.get("lastProbeTime").is_some());
        let status = &item["status"]["containerStatuses"][0];
        assert_eq!(status["lastState"], json!({}));
        assert!(status["state"]["terminated"].get("finishedAt").is_some());
    }

    #[test]
    fn a_pod_nobody_looked_at_yet_is_pending() {
        let waiting = view(json!({"metadata": {"name": "a", "uid": "u"},
            "spec": {"containers": []}}));
        let printed: Value =
            serde_json::from_slice(&pods(&snapshot_of(vec![waiting]))).expect("JSON");
        assert_eq!(printed["items"][0]["status"], json!({"phase": "Pending"}));
    }

    #[test]
    fn running_pods_show_what_runs_and_nothing_else() {
        let mut snapshot = snapshot_of(vec![view(json!({"metadata": {"name": "a", "uid": "u"}}))]);
        let mut orphan = ObservedPod::empty("o".into(), "ns", "gone");
        orphan.containers.push(pintle_agent_core::status::testing::container("c", "1"));
        orphan.containers.push(pintle_agent_core::status::testing::exited("d", "2", 0));
        snapshot.orphans.push(std::sync::Arc::new(orphan));
        let printed: Value = serde_json::from_slice(&running_pods(&snapshot)).expect("JSON");
        let items = printed["items"].as_array().expect("a list");
        assert_eq!(items.len(), 1, "a pod without anything running is left out: {printed}");
        assert_eq!(items[0]["metadata"], json!({"name": "gone", "namespace": "ns", "uid": "o"}));
        let containers = json!([{"name": "c", "image": "busybox", "resources": {}}]);
        assert_eq!(items[0]["spec"], json!({"containers": containers}));
    }
}
