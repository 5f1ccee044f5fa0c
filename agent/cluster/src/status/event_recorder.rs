//! Events of pods: makes an API event about the right object from a report of the agent.
//!
//! Input: uid, reason, message and container, as the timeline records them. Output:
//! `pintle_api::events`. Owner of the known pods: the intake adds them and the driver removes them,
//! so there is at most one for each worker. An event of an unknown pod is dropped. Never waits.
// k8s: pkg/kubelet/container/ref.go GenerateContainerRef

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use pintle_agent_core::timeline::EventSink;
use pintle_agent_core::types::{ContainerKind, PodUid};
use pintle_api::events::{EventKind, Recorder};
use pintle_api_types::pod;
use pintle_api_types::pod::containers;
use pintle_api_types::reference::to_core_object;

/// Sends events of pods to the API server.
#[derive(Debug)]
pub struct EventRecorder {
    recorder: Recorder,
    pods: Mutex<BTreeMap<PodUid, Arc<Pod>>>,
}

impl EventRecorder {
    /// A recorder without known pods.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, pods: Mutex::default() }
    }
}

impl EventSink for EventRecorder {
    fn register(&self, pod: &Arc<Pod>) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.insert(pod::uid(pod), Arc::clone(pod));
    }

    fn forget(&self, uid: &PodUid) {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn emit_event(
        &self,
        uid: &PodUid,
        warning: bool,
        reason: &str,
        message: &str,
        container: Option<&str>,
        annotations: &BTreeMap<String, String>,
    ) {
        let about = {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            pods.get(uid).map(|pod| reference(pod, container))
        };
        if let Some(about) = about {
            let kind = if warning { EventKind::Warning } else { EventKind::Normal };
            self.recorder.annotated(about, kind, reason, message, annotations.clone());
        }
    }

    fn emit_warning(&self, pod: &Pod, reason: &str, message: &str) {
        self.recorder.event(reference(pod, None), EventKind::Warning, reason, message);
    }
}

/// The involved object of an event: the pod, with the container as its field path.
fn reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    let field_path = container.and_then(|name| field_path(pod, name));
    ObjectReference { field_path, ..to_core_object("Pod", &pod.metadata) }
}

fn field_path(pod: &Pod, name: &str) -> Option<String> {
    let spec = pod::spec(pod);
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|other| other.name == name);
    let list = match containers::find(spec, name).map(|(kind, _)| kind) {
        Some(ContainerKind::Init | ContainerKind::Sidecar) => "initContainers",
        Some(ContainerKind::Main) => "containers",
        Some(ContainerKind::Ephemeral) => "ephemeralContainers",
        None if ephemeral => "ephemeralContainers",
        None => return None,
    };
    Some(format!("spec.{list}{{{name}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn field_path_of_a_container_names_the_list_it_is_in() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "1"},
            "spec": {"containers": [{"name": "c"}],
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                "ephemeralContainers": [{"name": "e"}]}}))
        .expect("a pod");
        let path = |name| reference(&pod, Some(name)).field_path;
        assert_eq!(path("c").as_deref(), Some("spec.containers{c}"));
        assert_eq!(path("i").as_deref(), Some("spec.initContainers{i}"));
        assert_eq!(path("s").as_deref(), Some("spec.initContainers{s}"));
        assert_eq!(path("e").as_deref(), Some("spec.ephemeralContainers{e}"));
        assert_eq!(path("gone"), None);
        assert_eq!(reference(&pod, None).name.as_deref(), Some("web"));
    }
}
