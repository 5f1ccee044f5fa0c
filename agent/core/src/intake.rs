//! The effect of a source's update: for the workers, for the status queue, for users. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::pod;

use crate::admit::{self, Features};
use crate::desired::DesiredPods;
use crate::source::{SourceKind, SourceUpdate};
use crate::status_queue;
use crate::worker::PodsInput;

/// The feature that a change needs and the node does not declare. The pod is changed all the same.
// k8s: pkg/kubelet/kubelet.go HandlePodUpdates
pub fn lacking(desired: &DesiredPods, features: Features, update: &SourceUpdate) -> Option<String> {
    let (SourceUpdate::Update(new) | SourceUpdate::Delete(new)) = update else { return None };
    let old = desired.get(&pod::uid(new))?;
    admit::lacking(features, &old.pod, new)
}

/// The message about a pod with the name of another pod.
// k8s: pkg/kubelet/config/config.go filterInvalidPods
pub fn duplicate_text(kind: SourceKind, pod: &Pod) -> String {
    let (described, name) = (pod::described(pod), pod::name(pod));
    format!(
        "Error validating pod {described} from {kind} due to duplicate pod name {name:?}, ignoring"
    )
}

/// A change of a pod, as the timeline shows it.
pub fn change(update: &SourceUpdate) -> &'static str {
    match update {
        SourceUpdate::Update(_) => "Changed",
        SourceUpdate::Delete(_) => "DeletionSeen",
        _ => "Seen",
    }
}

/// A new pod, as the timeline shows it.
pub fn shown(kind: SourceKind, pod: &Pod) -> String {
    let meta = &pod.metadata;
    let mut text = pod::described(pod);
    if kind == SourceKind::Api {
        let (generation, version) = (meta.generation.unwrap_or_default(), &meta.resource_version);
        let version = version.as_deref().unwrap_or_default();
        text.push_str(&format!(", generation {generation}, version {version}"));
    }
    if let Some(seconds) = meta.deletion_grace_period_seconds.filter(|_| pod::is_deleted(pod)) {
        text.push_str(&format!(", {seconds} s grace"));
    }
    text
}

/// The workers' input for an update; none for a mirror pod.
pub fn input_of(kind: SourceKind, update: &SourceUpdate, pod: &Arc<Pod>) -> Option<PodsInput> {
    if kind == SourceKind::Api && pod::is_mirror(pod) {
        return None;
    }
    let (uid, pod) = (pod::uid(pod), Arc::clone(pod));
    Some(match update {
        SourceUpdate::Remove(_) => PodsInput::Removed { uid },
        SourceUpdate::Reconcile(_) => PodsInput::Reconciled { uid, pod },
        _ => PodsInput::Desired { uid, pod },
    })
}

/// The status queue's input for an update.
pub fn report(kind: SourceKind, update: &SourceUpdate, pod: &Arc<Pod>) -> status_queue::QueueInput {
    let pod = Arc::clone(pod);
    match (kind, update) {
        (SourceKind::Api, SourceUpdate::Remove(_)) => status_queue::QueueInput::Unseen(pod),
        (SourceKind::Api, _) => status_queue::QueueInput::Seen(pod),
        // A static pod that is removed counts until its worker reports that nothing is left.
        _ => status_queue::QueueInput::Wanted(pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(cpu: &str) -> Arc<Pod> {
        let pod = json!({"metadata": {"uid": "1", "name": "a", "namespace": "ns"},
            "spec": {"containers": [], "resources": {"limits": {"cpu": cpu}}}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn changed_pod_is_checked_against_node_features_and_a_new_pod_is_not() {
        let features = Features { declared: true, ..Features::default() };
        let mut desired = DesiredPods::default();
        assert_eq!(lacking(&desired, features, &SourceUpdate::Update(pod("2"))), None);
        desired.apply(&SourceUpdate::Add(pod("1")));
        for (update, told) in [
            (SourceUpdate::Update(pod("2")), true),
            (SourceUpdate::Delete(pod("2")), true),
            (SourceUpdate::Update(pod("1")), false),
            (SourceUpdate::Add(pod("2")), false),
            (SourceUpdate::Reconcile(pod("2")), false),
            (SourceUpdate::Remove(pod("2")), false),
        ] {
            assert_eq!(lacking(&desired, features, &update).is_some(), told, "{update:?}");
        }
    }

    #[test]
    fn duplicate_pod_name_is_reported_with_the_kubelets_message() {
        assert_eq!(
            duplicate_text(SourceKind::Http, &pod("1")),
            "Error validating pod a_ns(1) from http due to duplicate pod name \"a\", ignoring"
        );
    }
}
