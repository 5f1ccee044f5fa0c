//! The status of a StatefulSet: counts of its pods, and when a rollout is complete.
//!
//! Input: the set, its pods, and the names of the revisions. Output: a status, and the request that
//! replaces the one in the API server if it differs.
// k8s: pkg/controller/statefulset/stateful_set_control.go

use jiff::Timestamp;
use pintle_api_types::kind::STATEFUL_SETS;
use pintle_controllers_core::common::status::{StatusRetry, replace_status};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::kinds::{Pod, StatefulSet, StatefulSetStatus};
use serde_json::{Map, Value};

use super::identity::revision_of;

/// How often a conflict is retried.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultRetry
const CONFLICTS_MAX: u32 = 4;

/// The pod is running and ready.
// k8s: stateful_set_utils.go isRunningAndReady
pub(super) fn is_running_and_ready(pod: &Pod) -> bool {
    &*pod.status.phase == "Running" && pod.is_ready()
}

/// The pod is not available, or is being deleted.
// k8s: stateful_set_utils.go isUnavailable
pub(super) fn is_unavailable(set: &StatefulSet, pod: &Pod, now: Timestamp) -> bool {
    !is_available(set, pod, now) || pod.metadata.is_deleting()
}

/// The pod is ready long enough.
// k8s: stateful_set_utils.go isRunningAndAvailable
pub(super) fn is_available(set: &StatefulSet, pod: &Pod, now: Timestamp) -> bool {
    pod.is_available(set.spec.min_ready_seconds.into(), now)
}

/// Counts pods into a status.
// k8s: stateful_set_control.go updateStatus, computeReplicaStatus
pub(super) fn count<'a>(
    status: &mut StatefulSetStatus,
    set: &StatefulSet,
    pods: impl Iterator<Item = &'a Pod>,
    now: Timestamp,
) {
    let counts = [
        &mut status.replicas,
        &mut status.ready_replicas,
        &mut status.available_replicas,
        &mut status.current_replicas,
        &mut status.updated_replicas,
    ];
    counts.into_iter().for_each(|count| *count = 0);
    for pod in pods {
        let is_created = !pod.status.phase.is_empty();
        status.replicas += i32::from(is_created);
        if is_running_and_ready(pod) {
            status.ready_replicas += 1;
            status.available_replicas += i32::from(is_available(set, pod, now));
        }
        if is_created && !pod.metadata.is_deleting() {
            let revision = revision_of(pod);
            status.current_replicas += i32::from(revision == &*status.current_revision);
            status.updated_replicas += i32::from(revision == &*status.update_revision);
        }
    }
}

/// Ends a rolling update when all pods are updated and ready. It also ends one at 0 replicas.
// k8s: stateful_set_utils.go completeRollingUpdate
pub(super) fn complete_rolling_update(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let wanted = set.spec.replicas_wanted();
    let counts = [status.updated_replicas, status.ready_replicas, status.replicas];
    if &*set.spec.update_strategy.kind == "RollingUpdate"
        && counts.into_iter().all(|count| i64::from(count) == wanted)
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

/// The status has to be written.
// k8s: stateful_set_utils.go inconsistentStatus
pub(super) fn is_inconsistent(set: &StatefulSet, status: &StatefulSetStatus) -> bool {
    let known = StatefulSetStatus {
        observed_generation: 0,
        collision_count: status.collision_count,
        ..set.status.clone()
    };
    status.observed_generation > set.status.observed_generation
        || known != StatefulSetStatus { observed_generation: 0, ..status.clone() }
}

/// Writes a status that differs from the one of the set.
///
/// # Errors
/// When the API server refuses it.
// k8s: stateful_set_control.go updateStatefulSetStatus
pub(super) fn write(
    set: &StatefulSet,
    whole: &Value,
    status: &mut StatefulSetStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    complete_rolling_update(set, status);
    if !is_inconsistent(set, status) {
        return Ok(());
    }
    let body = to_value(status);
    let retry = StatusRetry::Conflicts(CONFLICTS_MAX);
    let edit = |known: &mut Value| known.clone_from(&body);
    replace_status(STATEFUL_SETS, whole.clone(), retry, edit, transcript)?;
    Ok(())
}

fn to_value(status: &StatefulSetStatus) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    set("replicas", status.replicas.into());
    set("availableReplicas", status.available_replicas.into());
    set("collisionCount", status.collision_count.into());
    if status.observed_generation != 0 {
        set("observedGeneration", status.observed_generation.into());
    }
    for (name, count) in [
        ("readyReplicas", status.ready_replicas),
        ("currentReplicas", status.current_replicas),
        ("updatedReplicas", status.updated_replicas),
    ] {
        if count != 0 {
            set(name, count.into());
        }
    }
    for (name, revision) in
        [("currentRevision", &status.current_revision), ("updateRevision", &status.update_revision)]
    {
        if !revision.is_empty() {
            set(name, (&**revision).into());
        }
    }
    Value::Object(fields)
}
