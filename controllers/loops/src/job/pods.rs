//! The pods of a Job as a sync sees them: the completion index, the tracking finalizer, whether the
//! pod ended, and when.
//!
//! Input: facts of pods and of the Job. Output: answers of one pod. Pure. A pod that this sync
//! adopts counts as tracked, although its facts do not show the finalizer yet.

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{ContainerStatus, Job, Pod, UncountedPods};

use super::failure_policy::match_failure_policy;

/// The finalizer of pods that are not counted yet.
pub(super) const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// The annotation, and label, with the completion index.
pub(super) const INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";
/// The annotation with the counted failures of the index before this pod.
pub(super) const FAILURES_ANNOTATION: &str = "batch.kubernetes.io/job-index-failure-count";
/// The annotation with the ignored failures of the index before this pod.
pub(super) const IGNORED_ANNOTATION: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A pod of the Job that is synced.
#[derive(Clone, Debug)]
pub(super) struct JobPod {
    pub(super) facts: Rc<KeptObject<Pod>>,
    /// It has the tracking finalizer.
    pub(super) is_tracked: bool,
    /// Its completion index; `None` when it has no valid one.
    pub(super) index: Option<i64>,
}

impl JobPod {
    /// A pod that the Job with this UID has claimed.
    // k8s: pkg/controller/job/job_controller.go getPodsForJob
    pub(super) fn claimed(facts: Rc<KeptObject<Pod>>, job: &Job) -> Self {
        let mut owners = facts.metadata.owner_references.iter();
        let is_adopted = !owners.any(|owner| owner.uid == job.metadata.uid);
        let is_tracked = is_adopted || is_tracked(&facts);
        let index = completion_index(&facts);
        Self { facts, is_tracked, index }
    }

    pub(super) fn uid(&self) -> &str {
        self.facts.metadata.uid.as_str()
    }

    pub(super) fn has_succeeded(&self) -> bool {
        &*self.facts.status.phase == "Succeeded"
    }

    /// Its index, if the Job has such an index.
    pub(super) fn index_below(&self, completions: i64) -> Option<i64> {
        self.index.filter(|index| *index < completions)
    }
}

/// The pod has the tracking finalizer.
// k8s: pkg/controller/job/tracking_utils.go hasJobTrackingFinalizer
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.has_finalizer(TRACKING_FINALIZER)
}

/// The Job has completion indexes.
pub(super) fn is_indexed(job: &Job) -> bool {
    job.spec.completion_mode.as_deref() == Some("Indexed")
}

/// The Job's completions; 0 when it has none.
pub(super) fn completions(job: &Job) -> i64 {
    job.spec.completions.map_or(0, i64::from)
}

/// The Job is suspended.
pub(super) fn is_suspended(job: &Job) -> bool {
    job.spec.suspend == Some(true)
}

/// A pod that is being deleted is replaced only once it has ended.
// k8s: pkg/controller/job/job_controller.go onlyReplaceFailedPods
pub(super) fn replaces_only_failed(job: &Job) -> bool {
    job.spec.pod_replacement_policy.as_deref() == Some("Failed")
        || job.spec.pod_failure_policy.is_some()
}

/// The pod has failed, or is taken for failed since it is being deleted.
// k8s: pkg/controller/job/job_controller.go isPodFailed
pub(super) fn is_failed(pod: &Pod, job: &Job) -> bool {
    match &*pod.status.phase {
        "Failed" => true,
        "Succeeded" => false,
        _ => !replaces_only_failed(job) && pod.metadata.is_deleting(),
    }
}

/// The pod's completion index.
// k8s: pkg/controller/job/indexed_job_utils.go getCompletionIndex
pub(super) fn completion_index(pod: &Pod) -> Option<i64> {
    let index = pod.metadata.annotation(INDEX_ANNOTATION)?.parse().ok()?;
    (index >= 0).then_some(index)
}

/// A tracked pod is to be counted: it has a valid index if the Job has indexes, and is not in the
/// list of uncounted pods.
// k8s: pkg/controller/job/job_controller.go getValidPodsWithFilter
pub(super) fn is_countable(pod: &JobPod, job: &Job) -> bool {
    pod.is_tracked && (!is_indexed(job) || pod.index_below(completions(job)).is_some())
}

/// Pods that ended, each counted once.
#[derive(Clone, Debug, Default)]
pub(super) struct FinishedPods {
    pub(super) succeeded: Vec<Rc<KeptObject<Pod>>>,
    pub(super) failed: Vec<Rc<KeptObject<Pod>>>,
}

/// The pods that ended and are in no list of the status yet.
// k8s: pkg/controller/job/job_controller.go getNewFinishedPods
pub(super) fn new_finished_pods(
    pods: &[JobPod],
    job: &Job,
    uncounted: &UncountedPods,
) -> FinishedPods {
    let mut finished = FinishedPods::default();
    for pod in pods.iter().filter(|pod| is_countable(pod, job)) {
        let uid = &pod.facts.metadata.uid;
        if pod.has_succeeded() && !uncounted.succeeded.contains(uid) {
            finished.succeeded.push(Rc::clone(&pod.facts));
        }
        if is_failed(&pod.facts, job) && !uncounted.failed.contains(uid) {
            finished.failed.push(Rc::clone(&pod.facts));
        }
    }
    finished
}

/// The counted and ignored failures of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexFailures {
    pub(super) counted: i64,
    pub(super) ignored: i64,
}

impl IndexFailures {
    /// Those before this pod.
    // k8s: pkg/controller/job/indexed_job_utils.go getIndexAbsoluteFailureCount
    pub(super) fn before(pod: &Pod) -> Self {
        let count = |key| pod.metadata.annotation(key).map_or(0, parse_count);
        Self { counted: count(FAILURES_ANNOTATION), ignored: count(IGNORED_ANNOTATION) }
    }

    /// Those before the pod that replaces this one.
    // k8s: pkg/controller/job/indexed_job_utils.go getNewIndexFailureCounts
    pub(super) fn before_replacement(replaced: Option<&Pod>, job: &Job) -> Self {
        let Some(pod) = replaced else { return Self::default() };
        let mut failures = Self::before(pod);
        let policy = job.spec.pod_failure_policy.as_deref();
        match match_failure_policy(policy, pod).is_counted() {
            true => failures.counted += 1,
            false => failures.ignored += 1,
        }
        failures
    }

    pub(super) fn total(self) -> i64 {
        self.counted + self.ignored
    }
}

/// A count that is no 32-bit number is 0: users can write it.
// k8s: pkg/controller/job/indexed_job_utils.go parseInt32
fn parse_count(text: &str) -> i64 {
    let count = text.parse().unwrap_or(0);
    if (0..=i64::from(i32::MAX)).contains(&count) { count } else { 0 }
}

/// When the pod ended, as far as its facts tell.
// k8s: pkg/controller/job/backoff_utils.go getFinishedTime
pub(super) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    containers_finished_at(pod)
        .or_else(|| {
            let ready = pod.condition("Ready").filter(|ready| &*ready.status == "False")?;
            ready.last_transition_time
        })
        .or_else(|| {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let at = pod.metadata.deletion_timestamp?;
            at.checked_sub(SignedDuration::from_secs(grace)).ok()
        })
        .or(pod.metadata.creation_timestamp)
}

/// The last end of a container or sidecar; `None` while one of them runs.
// k8s: pkg/controller/job/backoff_utils.go getFinishTimeFromContainers
fn containers_finished_at(pod: &Pod) -> Option<Timestamp> {
    let is_sidecar = |status: &&ContainerStatus| pod.spec.sidecars.contains(&status.name);
    let status = &pod.status;
    let containers = latest_end(None, status.container_statuses.iter());
    latest_end(containers, status.init_container_statuses.iter().filter(is_sidecar))
}

// k8s: pkg/controller/job/backoff_utils.go latestFinishTime
fn latest_end<'a>(
    latest: Option<Timestamp>,
    statuses: impl Iterator<Item = &'a ContainerStatus>,
) -> Option<Timestamp> {
    let mut latest = latest;
    for status in statuses {
        let end = status.state.terminated.as_ref()?.finished_at?;
        latest = Some(latest.map_or(end, |known| known.max(end)));
    }
    latest
}
