//! `/pods` and `/runningpods`: a `v1.PodList` as the kubelet prints it.
//!
//! Input: a snapshot, or one pod of it. Output: JSON bytes; `pod_texts` keeps those of pods. Go
//! prints some empty fields that other serialisers leave out (`lastProbeTime: null`,
//! `resources: {}`, `state: {}`), and leaves out kind and version of the items; readers compare, so
//! both are done here, too. Pure.
// k8s: pkg/kubelet/server/server.go encodePods

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::status::PENDING;
use pintle_agent_core::view::Snapshot;
use serde_json::{Map, Value, json};

/// All pods of which the runtime has a running container or sandbox, as the runtime knows them.
// k8s: pkg/kubelet/container/runtime.go ToAPIPod
pub(super) fn running_pods(snapshot: &Snapshot) -> Vec<u8> {
    let known = snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
    let mut list = List::with_capacity(0);
    for observed in known.filter(|observed| runs(observed)) {
        list.item().extend(written(&running_pod(observed)));
    }
    list.end()
}

/// A list that is written item by item.
pub(super) struct List {
    text: Vec<u8>,
    is_empty: bool,
}

impl List {
    /// An empty list; its items will have about so many bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut text = Vec::with_capacity(bytes + (bytes >> 4) + 256);
        text.extend(br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#);
        Self { text, is_empty: true }
    }

    /// The buffer for the next item.
    pub(super) fn item(&mut self) -> &mut Vec<u8> {
        self.text.push(if self.is_empty { b'[' } else { b',' });
        self.is_empty = false;
        &mut self.text
    }

    /// The text. Without items it is a nil slice of Go's.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.text.extend(if self.is_empty { &b"null"[..] } else { b"]" });
        self.text.extend(b"}\n");
        self.text
    }
}

fn written(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value can be written")
}

/// The first part of a pod's text: its metadata and spec.
pub(super) fn head(pod: &Pod) -> Vec<u8> {
    let metadata = serde_json::to_value(&pod.metadata).unwrap_or_default();
    let mut spec = serde_json::to_value(&pod.spec).unwrap_or_default();
    spec_as_go_prints(&mut spec);
    let mut text = br#"{"metadata":"#.to_vec();
    text.extend(written(&metadata));
    text.extend(br#","spec":"#);
    text.extend(written(&spec));
    text
}

/// The rest of it: the status that was derived for it.
pub(super) fn tail(status: &PodStatus) -> Vec<u8> {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    if status.phase.is_none()
        && let Some(value) = value.as_object_mut()
    {
        // k8s: pkg/kubelet/config/common.go applyDefaults
        value.insert("phase".to_owned(), json!(PENDING));
    }
    status_as_go_prints(&mut value);
    let mut text = br#","status":"#.to_vec();
    text.extend(written(&value));
    text.push(b'}');
    text
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

/// Adds the empty fields of a spec that Go prints.
fn spec_as_go_prints(spec: &mut Value) {
    if spec.is_null() {
        *spec = json!({"containers": null});
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in objects(spec, list) {
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
}

/// Adds the empty fields of a status that Go prints.
fn status_as_go_prints(status: &mut Value) {
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
    use crate::pod_texts::PodTexts;
    use pintle_agent_core::testing::{snapshot_of, view};

    fn pods(snapshot: &Snapshot) -> Vec<u8> {
        PodTexts::default().pods(snapshot)
    }

    /// The kubelet's output, read as objects and printed by us, must be equal again.
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
        spec_as_go_prints(&mut item["spec"]);
        status_as_go_prints(&mut item["status"]);
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
    fn pod_without_a_status_yet_is_listed_as_pending() {
        let waiting = view(json!({"metadata": {"name": "a", "uid": "u"},
            "spec": {"containers": []}}));
        let printed: Value =
            serde_json::from_slice(&pods(&snapshot_of(vec![waiting]))).expect("JSON");
        assert_eq!(printed["items"][0]["status"], json!({"phase": "Pending"}));
    }

    #[test]
    fn running_pods_list_only_pods_and_containers_that_run() {
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
