//! Annotations of a Deployment and its sets: revisions, and what a set takes over.
// k8s: pkg/controller/deployment/util/deployment_util.go

use serde_json::{Map, Value};

use super::sets::{DESIRED_REPLICAS, MAX_REPLICAS, REVISION, REVISION_HISTORY};

/// The annotation by which clients of an old API ask for a rollback.
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";
/// Characters of the revision history, at most.
// k8s: pkg/controller/deployment/sync.go maxRevHistoryLengthInChars
pub(super) const HISTORY_CHARS_MAX: usize = 2000;

/// Annotations that sets do not take over from their Deployment, and keep when it is rolled back.
// k8s: pkg/controller/deployment/util/deployment_util.go annotationsToSkip
const OWN: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    ROLLBACK_TO,
];

/// Annotations by key.
pub(super) type Annotations = Map<String, Value>;

/// The annotations of an object.
pub(super) fn of(object: &Value) -> Annotations {
    object["metadata"]["annotations"].as_object().cloned().unwrap_or_default()
}

/// The text of an annotation; empty when it is not there.
pub(super) fn text<'a>(annotations: &'a Annotations, key: &str) -> &'a str {
    annotations.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Replaces an object's annotations.
pub(super) fn put(object: &mut Value, annotations: Annotations) {
    object["metadata"]["annotations"] = annotations.into();
}

/// Gives a set the Deployment's annotations and its revision; says whether that changes any.
// k8s: pkg/controller/deployment/util/deployment_util.go SetNewReplicaSetAnnotations
pub(super) fn update_set(set: &mut Annotations, deployment: &Annotations, revision: i64) -> bool {
    let is_copied = copy(deployment, set);
    let known = set.get(REVISION).and_then(Value::as_str).map(str::to_owned);
    let number = match known.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // Upstream writes nothing then, not even the copied annotations.
            Err(_) => return false,
        },
    };
    // Old sets may have been deleted since; a revision never decreases.
    if number >= revision {
        return is_copied;
    }
    set.insert(REVISION.into(), revision.to_string().into());
    if let Some(known) = known {
        extend_history(set, &known, HISTORY_CHARS_MAX);
    }
    true
}

/// Records a revision that a set had, dropping the oldest ones when the text gets too long.
pub(super) fn extend_history(set: &mut Annotations, revision: &str, chars_max: usize) {
    let history = text(set, REVISION_HISTORY).to_owned();
    let mut revisions: Vec<_> = history.split(',').collect();
    if revisions[0].is_empty() {
        set.insert(REVISION_HISTORY.into(), revision.into());
        return;
    }
    let mut length = history.len() + revision.len() + 1;
    while length > chars_max && !revisions.is_empty() {
        length -= revisions.remove(0).len() + 1;
    }
    if length <= chars_max {
        revisions.push(revision);
        set.insert(REVISION_HISTORY.into(), revisions.join(",").into());
    }
}

// k8s: pkg/controller/deployment/util/deployment_util.go copyDeploymentAnnotationsToReplicaSet
fn copy(from: &Annotations, to: &mut Annotations) -> bool {
    let mut is_changed = false;
    for (key, value) in from.iter().filter(|(key, _)| !OWN.contains(&key.as_str())) {
        if to.get(key) != Some(value) {
            to.insert(key.clone(), value.clone());
            is_changed = true;
        }
    }
    is_changed
}

/// The Deployment's annotations after a rollback to a set.
// k8s: pkg/controller/deployment/util/deployment_util.go SetDeploymentAnnotationsTo
pub(super) fn roll_back(deployment: Annotations, set: Annotations) -> Annotations {
    let is_own = |key: &String| OWN.contains(&key.as_str());
    let kept = deployment.into_iter().filter(|(key, _)| is_own(key));
    kept.chain(set.into_iter().filter(|(key, _)| !is_own(key))).collect()
}

/// Records in a set's annotations how many replicas the Deployment wants and may have.
// k8s: pkg/controller/deployment/util/deployment_util.go SetReplicasAnnotations
pub(super) fn set_replicas(set: &mut Annotations, desired: i32, max: i32) -> bool {
    let mut is_changed = false;
    for (key, count) in [(DESIRED_REPLICAS, desired), (MAX_REPLICAS, max)] {
        let count = count.to_string();
        if text(set, key) != count {
            set.insert(key.into(), count.into());
            is_changed = true;
        }
    }
    is_changed
}
