//! The form of the answers to the agent's commands, from a running agent over its socket, or from
//! the record of one.
//!
//! Pure. Fields are only added within one version, never renamed or removed.

use pintle_agent_core::explain::Explanation;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::timeline::TimelineEntry;
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::worker::WorkerStage;
use serde_json::{Value, json};

use crate::select::{full, uid};

const FORMAT_VERSION: u32 = 1;

/// An answer with the version of its form.
pub(crate) fn versioned(mut value: Value) -> Value {
    value["formatVersion"] = json!(FORMAT_VERSION);
    value
}

/// Reasons why a pod is not running.
pub(crate) fn explained(view: &PodView, explanation: &Explanation) -> Value {
    let mut answer = serde_json::to_value(explanation).unwrap_or_default();
    name_pod(&mut answer, view);
    answer["phase"] = json!(view.status.phase);
    answer
}

/// The history of a pod; its name is empty when only its uid is known.
pub(crate) fn timeline(pod: &str, uid: &str, entries: &[TimelineEntry]) -> Value {
    json!({"pod": pod, "uid": uid, "entries": entries})
}

/// Adds the pod's name and uid to an answer.
pub(crate) fn name_pod(answer: &mut Value, view: &PodView) {
    answer["pod"] = json!(full(view));
    answer["uid"] = json!(uid(view));
}

/// The pod of the same name that a waiting one waits for.
pub(crate) fn ahead<'a>(snapshot: &'a Snapshot, view: &PodView) -> Option<&'a ObservedPod> {
    let observed = &view.observed;
    let same = |other: &ObservedPod| {
        other.uid != observed.uid
            && other.name == observed.name
            && other.namespace == observed.namespace
    };
    let begun = snapshot.pods.values().filter(|other| other.stage != WorkerStage::Waiting);
    let wanted = begun.map(|other| &*other.observed);
    wanted.chain(snapshot.orphans.iter().map(|o| &**o)).find(|other| same(other))
}
