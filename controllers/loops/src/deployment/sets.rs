//! ReplicaSets of a Deployment: their sums, orders, and the numbers in their annotations.
// k8s: pkg/controller/deployment/util/deployment_util.go, pkg/controller/controller_utils.go

use std::cmp::Ordering;
use std::rc::Rc;

use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{ReplicaSet, ReplicaStatus};

/// A set as the tables or an answer of the API server show it.
pub(super) type Set = Rc<KeptObject<ReplicaSet>>;

/// Which rollout of the Deployment a set is of; the Deployment has the current one.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier revisions of a set that was rolled back to.
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas when the set was last scaled.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The Deployment's replicas and surge when the set was last scaled.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// The pods that sets want.
pub(super) fn wanted(sets: &[Set]) -> i32 {
    sets.iter().fold(0, |sum, set| sum.wrapping_add(set.spec.wanted()))
}

/// A count in the status of sets.
pub(super) fn counted(sets: &[Set], count: impl Fn(&ReplicaStatus) -> i32) -> i32 {
    sets.iter().fold(0, |sum, set| sum.wrapping_add(count(&set.status)))
}

/// The available pods of sets.
pub(super) fn available(sets: &[Set]) -> i32 {
    counted(sets, |status| status.available_replicas)
}

/// The pods of sets that are being deleted; `None` when some set does not say.
// k8s: pkg/controller/deployment/util/deployment_util.go GetTerminatingReplicaCountForReplicaSets
pub(super) fn terminating(sets: &[Set]) -> Option<i32> {
    let counts = sets.iter().map(|set| match set.status.terminating_replicas {
        // Its controller has not synced it yet.
        None if set.status.observed_generation == 0 => Some(0),
        count => count,
    });
    counts.sum()
}

/// The sets that want pods.
pub(super) fn active(sets: &[Set]) -> Vec<Set> {
    sets.iter().filter(|set| set.spec.wanted() > 0).cloned().collect()
}

/// The oldest first.
pub(super) fn by_creation(one: &Set, other: &Set) -> Ordering {
    let created = one.metadata.creation_timestamp.cmp(&other.metadata.creation_timestamp);
    created.then_with(|| one.metadata.name.cmp(&other.metadata.name))
}

/// The largest first, and of equal ones the oldest.
pub(super) fn by_size_older(one: &Set, other: &Set) -> Ordering {
    other.spec.wanted().cmp(&one.spec.wanted()).then_with(|| by_creation(one, other))
}

/// The largest first, and of equal ones the newest.
pub(super) fn by_size_newer(one: &Set, other: &Set) -> Ordering {
    other.spec.wanted().cmp(&one.spec.wanted()).then_with(|| by_creation(other, one))
}

/// The lowest revision first, and of equal ones the oldest; what is no number counts as 0.
pub(super) fn by_revision(one: &Set, other: &Set) -> Ordering {
    let number = |set| revision(set).unwrap_or_default();
    number(one).cmp(&number(other)).then_with(|| by_creation(one, other))
}

/// The revision of a set: 0 when it has none, `None` when it is no number.
// k8s: pkg/controller/deployment/util/deployment_util.go Revision
pub(super) fn revision(set: &Set) -> Option<i64> {
    set.metadata.annotation(REVISION).map_or(Some(0), |text| text.parse().ok())
}

/// The highest revision.
// k8s: pkg/controller/deployment/util/deployment_util.go MaxRevision
pub(super) fn max_revision(sets: &[Set]) -> i64 {
    sets.iter().filter_map(revision).fold(0, i64::max)
}

/// The second highest revision; 0 when there is none.
// k8s: pkg/controller/deployment/util/deployment_util.go LastRevision
pub(super) fn last_revision(sets: &[Set]) -> i64 {
    let (mut max, mut last) = (0, 0);
    for revision in sets.iter().filter_map(revision) {
        if revision >= max {
            (max, last) = (revision, max);
        } else if revision > last {
            last = revision;
        }
    }
    last
}

/// The Deployment's replicas when the set was last scaled.
pub(super) fn desired_replicas(set: &Set) -> Option<i32> {
    count_of(set, DESIRED_REPLICAS)
}

/// The Deployment's replicas and surge when the set was last scaled.
pub(super) fn max_replicas(set: &Set) -> Option<i32> {
    count_of(set, MAX_REPLICAS)
}

// k8s: pkg/controller/deployment/util/deployment_util.go getNonNegativeInt32FromAnnotation
fn count_of(set: &Set, annotation: &str) -> Option<i32> {
    let text = set.metadata.annotation(annotation)?;
    text.parse().ok().filter(|count| *count >= 0 && !text.starts_with(['+', '-']))
}
