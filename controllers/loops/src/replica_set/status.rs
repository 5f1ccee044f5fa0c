//! The status of a set: counted from its pods, and written when it changed.
// k8s: pkg/controller/replicaset/replica_set_utils.go

use std::rc::Rc;

use jiff::Timestamp;
use pintle_api_types::request::{Request, Target};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Pod, ReplicaCondition, ReplicaStatus};
use serde_json::{Map, Value, json};

use super::Replicated;

/// The condition of a set that could not create or delete pods.
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The inputs of the status.
pub(super) struct CountedPods<'a> {
    /// The set's active pods.
    pub(super) active: &'a [Rc<KeptObject<Pod>>],
    /// How many more are being deleted; `None` when the kind has no such count.
    pub(super) terminating: Option<usize>,
    /// Why pods could not be created or deleted.
    pub(super) failure: Option<&'a SyncError>,
}

/// The status of a set as it should be.
// k8s: pkg/controller/replicaset/replica_set_utils.go calculateStatus
pub(super) fn calculate<W: Replicated>(
    set: &KeptObject<W>,
    counted: &CountedPods<'_>,
    now: Timestamp,
) -> ReplicaStatus {
    let spec = set.spec();
    let template = &spec.template.metadata.labels;
    let count = |is_counted: &dyn Fn(&Pod) -> bool| {
        number(counted.active.iter().filter(|pod| is_counted(pod)).count())
    };
    let is_fully_labeled =
        |pod: &Pod| template.iter().all(|(key, value)| pod.metadata.labels.get(key) == Some(value));
    let mut status = ReplicaStatus {
        replicas: number(counted.active.len()),
        fully_labeled_replicas: count(&is_fully_labeled),
        ready_replicas: count(&Pod::is_ready),
        available_replicas: count(&|pod| pod.is_available(spec.min_ready_seconds.into(), now)),
        terminating_replicas: counted.terminating.map(number),
        ..set.status().clone()
    };
    report_failure(&mut status, counted.failure, spec.wanted(), now);
    status
}

/// Sets the condition of a set that could not create or delete pods, or removes it. An existing
/// condition stays unchanged, also after another failure.
fn report_failure(
    status: &mut ReplicaStatus,
    failure: Option<&SyncError>,
    wanted: i32,
    now: Timestamp,
) {
    let has_failure = status.condition(REPLICA_FAILURE).is_some();
    match failure {
        Some(error) if !has_failure => {
            let is_short = status.replicas < wanted;
            let reason = if is_short { "FailedCreate" } else { "FailedDelete" };
            status.conditions.push(ReplicaCondition {
                kind: Symbol::of(REPLICA_FAILURE),
                status: Symbol::of("True"),
                last_update_time: None,
                last_transition_time: Timestamp::from_second(now.as_second()).ok(),
                reason: Symbol::of(reason),
                message: error.message.as_str().into(),
            });
        }
        None if has_failure => {
            status.conditions.retain(|condition| &*condition.kind != REPLICA_FAILURE);
        }
        _ => {}
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).expect("fewer pods than 2^31")
}

/// Writes the status if it changed. A failed write is tried once more upon the live set.
// k8s: pkg/controller/replicaset/replica_set_utils.go updateReplicaSetStatus
pub(super) fn update<W: Replicated>(
    set: &Rc<KeptObject<W>>,
    new: &ReplicaStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let generation = set.metadata().generation;
    if set.status() == new && set.status().observed_generation == generation {
        return Ok(());
    }
    let status = to_value(&ReplicaStatus { observed_generation: generation, ..new.clone() });
    let key = set.metadata().key();
    let target = Target::status(W::KIND, key.clone());
    let first = transcript.send_with(|| {
        let mut body = set.value();
        body["status"] = status.clone();
        Request::Replace { target: target.clone(), body }
    })?;
    if first.is_err() {
        let read = Target::object(W::KIND, key);
        let mut live = transcript.send(Request::Read { target: read, only_metadata: false })??;
        live["status"] = status;
        transcript.send(Request::Replace { target, body: live })??;
    }
    Ok(())
}

/// The status as the API server reads it.
fn to_value(status: &ReplicaStatus) -> Value {
    let mut value = Map::new();
    value.insert("replicas".into(), status.replicas.into());
    for (field, count) in [
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ] {
        if count != 0 {
            value.insert(field.into(), count.into());
        }
    }
    if let Some(count) = status.terminating_replicas {
        value.insert("terminatingReplicas".into(), count.into());
    }
    if status.observed_generation != 0 {
        value.insert("observedGeneration".into(), status.observed_generation.into());
    }
    if !status.conditions.is_empty() {
        let conditions = status.conditions.iter().map(condition_to_value);
        value.insert("conditions".into(), conditions.collect());
    }
    value.into()
}

fn condition_to_value(condition: &ReplicaCondition) -> Value {
    let mut value = json!({"type": &*condition.kind, "status": &*condition.status});
    value["lastTransitionTime"] = match condition.last_transition_time {
        Some(at) => at.to_string().into(),
        None => Value::Null,
    };
    for (field, text) in [("reason", &*condition.reason), ("message", &*condition.message)] {
        if !text.is_empty() {
            value[field] = text.into();
        }
    }
    value
}
