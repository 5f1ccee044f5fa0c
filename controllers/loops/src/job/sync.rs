//! One sync of a Job: whether it has ended, which pods it lacks or has too many, and its counters.
//!
//! Input: the Job, its pods and the record of its failures. Output: requests and events by the
//! transcript, and when to sync again. The order of the checks is upstream's, because a Job can
//! meet several of its ends at once: earlier findings in the conditions, failures, successes. The
//! pods are managed in `manage`, and counted in `track`.
// k8s: pkg/controller/job/job_controller.go syncJob

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use pintle_api_types::kind::{JOBS, PODS};
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{
    EventTarget, ObjectEvent, SyncOutcome, Transcript, TranscriptStop,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Job, Pod};
use serde_json::Value;

use super::JobSettings;
use super::backoff::BackoffRecord;
use super::failure_policy::{FailureAction, match_failure_policy};
use super::indexes::Indexes;
use super::pods::{
    IndexFailures, JobPod, TRACKING_FINALIZER, completions, finished_at, is_countable, is_failed,
    is_indexed, is_suspended, new_finished_pods,
};
use super::status::{JobConditionState, WorkingStatus};
use super::success_policy::match_success_policy;

/// The value of `managedBy` that means this controller.
const OWN_NAME: &str = "kubernetes.io/job-controller";

/// The state that the sync of a Job reads.
#[derive(Debug)]
pub(super) struct JobState {
    pub(super) job: Rc<KeptObject<Job>>,
    /// Its pods, and orphans that it may adopt.
    pub(super) pods: Vec<Rc<KeptObject<Pod>>>,
    /// Its failures in a row.
    pub(super) backoff: BackoffRecord,
    pub(super) settings: JobSettings,
}

/// The state of one sync.
pub(super) struct JobSync<'a> {
    pub(super) state: &'a JobState,
    pub(super) now: Timestamp,
    pub(super) about: EventTarget,
    /// The whole Job as it was read, or as the last write was answered.
    pub(super) object: Value,
    pub(super) status: WorkingStatus,
    /// The status has changes that are not written.
    pub(super) needs_flush: bool,
    pub(super) pods: Vec<JobPod>,
    pub(super) active: Vec<JobPod>,
    /// Pods that succeeded, also those not counted yet.
    pub(super) succeeded: i64,
    /// Pods that failed, also those not counted yet.
    pub(super) failed: i64,
    /// Indexes that the status shows as succeeded.
    pub(super) previous_indexes: Indexes,
    pub(super) succeeded_indexes: Indexes,
    /// Indexes that failed, if the Job limits failures by index.
    pub(super) failed_indexes: Option<Indexes>,
    /// Failed pods that stay until their index has a new pod, since that one continues the count.
    pub(super) delayed: BTreeMap<i64, JobPod>,
    /// The condition of the Job's end.
    pub(super) finish: Option<JobConditionState>,
    pub(super) again: Option<Duration>,
    /// The action of the sync, as metrics name it.
    pub(super) action: &'static str,
    pub(super) samples: Vec<MetricValue>,
}

/// Syncs a Job.
///
/// # Errors
/// When requests have to be answered first, or one of them failed.
pub(super) fn sync_job(
    state: &JobState,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<MetricValue>, TranscriptStop> {
    let job: &Job = &state.job;
    if is_left_alone(job, transcript) {
        return Ok(SyncOutcome::done());
    }
    let claim = Claim {
        owner_kind: JOBS,
        owner: &job.metadata,
        kind: PODS,
        finalizers: &[TRACKING_FINALIZER],
    };
    let is_selected = |pod: &KeptObject<Pod>| job.spec.selector.matches(&pod.metadata.labels);
    let claimed = claim.claim(&state.pods, is_selected, transcript)?;
    let pods = claimed.into_iter().map(|pod| JobPod::claimed(pod, job)).collect();
    let mut sync = JobSync::new(state, pods, transcript.now())?;
    sync.find_failure();
    if is_indexed(job) {
        sync.find_end_by_indexes();
    }
    let failure = sync.manage(transcript)?;
    sync.track(transcript)?;
    match failure {
        Some(TranscriptStop::Failed(error)) => {
            Ok(SyncOutcome { again: None, notes: sync.samples, failed: Some(error) })
        }
        Some(TranscriptStop::Pending) => Err(TranscriptStop::Pending),
        None => {
            sync.count_sync();
            Ok(SyncOutcome::new(sync.again, sync.samples))
        }
    }
}

/// The Job is not to be synced.
fn is_left_alone(job: &Job, transcript: &mut Transcript) -> bool {
    if let Some(manager) = managed_by_other(job) {
        transcript.because(format!("the Job is managed by {manager}"));
        return true;
    }
    if let Some(condition) = job.finished() {
        transcript.because(format!("the Job has ended: {} {}", condition.kind, condition.reason));
        return true;
    }
    match job.spec.completion_mode.as_deref() {
        None | Some("NonIndexed" | "Indexed") => false,
        Some(mode) => {
            transcript.because(format!("the completion mode {mode} is not known"));
            let message = "Skipped Job sync because completion mode is unknown".to_owned();
            let about = EventTarget::of(JOBS, &job.metadata);
            transcript.event(ObjectEvent::warning(about, "UnknownCompletionMode", message));
            true
        }
    }
}

/// The name of the other controller that reconciles the Job.
// k8s: pkg/controller/job/job_controller.go managedByExternalController
pub(super) fn managed_by_other(job: &Job) -> Option<&str> {
    job.spec.managed_by.as_deref().filter(|manager| *manager != OWN_NAME)
}

/// The Job limits failures by index.
pub(super) fn has_limit_per_index(job: &Job) -> bool {
    job.spec.backoff_limit_per_index.is_some()
}

impl<'a> JobSync<'a> {
    fn new(state: &'a JobState, pods: Vec<JobPod>, now: Timestamp) -> Result<Self, TranscriptStop> {
        let job: &Job = &state.job;
        let object = state.job.value();
        let mut status = WorkingStatus::read(&object)?;
        let active: Vec<_> = pods.iter().filter(|pod| pod.facts.is_active()).cloned().collect();
        let uncounted = &job.status.uncounted_terminated_pods;
        let finished = new_finished_pods(&pods, job, uncounted);
        let policy = job.spec.pod_failure_policy.as_deref();
        let counted_failures =
            finished.failed.iter().filter(|pod| match_failure_policy(policy, pod).is_counted());
        let succeeded = status.succeeded + len(&finished.succeeded) + len(&uncounted.succeeded);
        let failed = status.failed + len(counted_failures) + len(&uncounted.failed);
        if status.start_time.is_none() && !is_suspended(job) {
            status.start_time = Some(now);
        }
        Ok(Self {
            state,
            now,
            about: EventTarget::of(JOBS, &job.metadata),
            object,
            status,
            needs_flush: false,
            pods,
            active,
            succeeded,
            failed,
            previous_indexes: Indexes::default(),
            succeeded_indexes: Indexes::default(),
            failed_indexes: None,
            delayed: BTreeMap::new(),
            finish: None,
            again: None,
            action: "reconciling",
            samples: Vec::new(),
        })
    }

    pub(super) fn job(&self) -> &'a Job {
        &self.state.job
    }

    /// Syncs the Job again after a wait; the earliest one counts.
    pub(super) fn sync_again(&mut self, wait: Duration) {
        self.again = Some(self.again.map_or(wait, |known| known.min(wait)));
    }

    /// Looks for an end that an earlier sync found, or that failures of pods or time bring.
    fn find_failure(&mut self) {
        self.finish = self.status.true_condition("SuccessCriteriaMet").cloned();
        if self.finish.is_none() {
            let target = self.status.true_condition("FailureTarget");
            self.finish = match target.map(|target| target.turned_into("Failed", self.now)) {
                Some(failed) => Some(failed),
                None => self.failure_by_policy(),
            };
        }
        if self.finish.is_none() {
            self.finish = self.failure_by_limits();
        }
    }

    // k8s: pkg/controller/job/job_controller.go getFailJobMessage
    fn failure_by_policy(&self) -> Option<JobConditionState> {
        let policy = self.job().spec.pod_failure_policy.as_deref()?;
        let failed = self.pods.iter().filter(|pod| is_failed(&pod.facts, self.job()));
        let mut messages =
            failed.filter_map(|pod| match match_failure_policy(Some(policy), &pod.facts) {
                FailureAction::FailJob(message) => Some(message),
                _ => None,
            });
        let message = messages.next()?;
        Some(self.failure("PodFailurePolicy", &message))
    }

    fn failure_by_limits(&mut self) -> Option<JobConditionState> {
        let limit = backoff_limit(self.job());
        if self.failed > limit || self.has_restarted_too_often(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(self.failure("BackoffLimitExceeded", message));
        }
        let left = self.time_left()?;
        if left.is_zero() {
            let message = "Job was active longer than specified deadline";
            return Some(self.failure("DeadlineExceeded", message));
        }
        self.sync_again(left);
        None
    }

    // k8s: pkg/controller/job/job_controller.go newFailureCondition
    fn failure(&self, reason: &str, message: &str) -> JobConditionState {
        JobConditionState::new("FailureTarget", reason, message, self.now)
    }

    /// The rest of the Job's active deadline.
    // k8s: pkg/controller/job/job_controller.go pastActiveDeadline
    fn time_left(&self) -> Option<Duration> {
        let limit = self.job().spec.active_deadline_seconds?;
        let start = self.status.start_time.filter(|_| !is_suspended(self.job()))?;
        let passed = self.now.duration_since(start);
        let left = jiff::SignedDuration::from_secs(limit).saturating_sub(passed);
        Some(Duration::try_from(left).unwrap_or_default())
    }

    /// The containers of running pods were restarted too often, if they are restarted on failure.
    // k8s: pkg/controller/job/job_controller.go pastBackoffLimitOnFailure
    fn has_restarted_too_often(&self, limit: i64) -> bool {
        if &*self.job().spec.template.spec.restart_policy != "OnFailure" {
            return false;
        }
        let pods = self.pods.iter().map(|pod| &pod.facts.status);
        let running = pods.filter(|status| matches!(&*status.phase, "Running" | "Pending"));
        let containers = running.flat_map(|status| {
            status.init_container_statuses.iter().chain(&status.container_statuses)
        });
        let restarts: i64 = containers.map(|container| i64::from(container.restart_count)).sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    /// Looks for an end that the indexes bring which succeeded or failed.
    fn find_end_by_indexes(&mut self) {
        let job = self.job();
        let completions = completions(job);
        self.previous_indexes = Indexes::parse(&self.status.completed_indexes, completions);
        self.succeeded_indexes = self.previous_indexes.union(&self.new_succeeded_indexes());
        self.succeeded = self.succeeded_indexes.total();
        if has_limit_per_index(job) {
            let known = self.status.failed_indexes.as_deref().unwrap_or_default();
            let failed = Indexes::parse(known, completions).union(&self.new_failed_indexes());
            if self.finish.is_none() {
                self.finish = self.failure_by_indexes(&failed);
            }
            self.failed_indexes = Some(failed);
            self.delayed = self.pods_delayed_by_index();
        }
        if self.finish.is_none() {
            let policy = job.spec.success_policy.as_deref();
            let message = match_success_policy(policy, completions, &self.succeeded_indexes);
            self.finish = message.map(|message| {
                JobConditionState::new("SuccessCriteriaMet", "SuccessPolicy", message, self.now)
            });
        }
    }

    // k8s: pkg/controller/job/indexed_job_utils.go calculateSucceededIndexes
    fn new_succeeded_indexes(&self) -> Indexes {
        let completions = completions(self.job());
        self.ordered_indexes(|pod| {
            pod.index_below(completions).filter(|_| pod.has_succeeded() && pod.is_tracked)
        })
    }

    // k8s: pkg/controller/job/indexed_job_utils.go calculateFailedIndexes
    fn new_failed_indexes(&self) -> Indexes {
        let completions = completions(self.job());
        self.ordered_indexes(|pod| {
            pod.index_below(completions).filter(|_| pod.is_tracked && self.has_index_failed(pod))
        })
    }

    fn ordered_indexes(&self, index: impl Fn(&JobPod) -> Option<i64>) -> Indexes {
        let mut indexes: Vec<_> = self.pods.iter().filter_map(index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Indexes::of(indexes)
    }

    /// The pod's failure is the last one that its index takes.
    // k8s: pkg/controller/job/indexed_job_utils.go isIndexFailed
    fn has_index_failed(&self, pod: &JobPod) -> bool {
        let job = self.job();
        if !is_failed(&pod.facts, job) {
            return false;
        }
        let limit = job.spec.backoff_limit_per_index.map_or(0, i64::from);
        match match_failure_policy(job.spec.pod_failure_policy.as_deref(), &pod.facts) {
            FailureAction::FailIndex => true,
            action => action.is_counted() && IndexFailures::before(&pod.facts).counted >= limit,
        }
    }

    fn failure_by_indexes(&self, failed: &Indexes) -> Option<JobConditionState> {
        let spec = &self.job().spec;
        let total = failed.total();
        if spec.max_failed_indexes.is_some_and(|limit| total > i64::from(limit)) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(self.failure("MaxFailedIndexesExceeded", message));
        }
        let ended = total + self.succeeded_indexes.total();
        let is_over = total > 0 && ended >= completions(self.job());
        is_over.then(|| self.failure("FailedIndexes", "Job has failed indexes"))
    }

    /// The last failed pod of each index that is to be retried.
    // k8s: pkg/controller/job/indexed_job_utils.go getPodsWithDelayedDeletionPerIndex
    fn pods_delayed_by_index(&self) -> BTreeMap<i64, JobPod> {
        let job = self.job();
        let failed = self.failed_indexes.as_ref();
        let active: std::collections::BTreeSet<_> =
            self.active.iter().filter_map(|pod| pod.index).collect();
        let is_over = |index| {
            self.succeeded_indexes.has(index)
                || failed.is_some_and(|failed| failed.has(index))
                || active.contains(&index)
        };
        let mut delayed = BTreeMap::<i64, JobPod>::new();
        let pods = self.pods.iter().filter(|pod| is_countable(pod, job));
        for pod in pods.filter(|pod| is_failed(&pod.facts, job)) {
            let Some(index) = pod.index.filter(|index| !is_over(*index)) else { continue };
            let is_later = delayed.get(&index).is_none_or(|known| {
                let failures = |pod: &JobPod| IndexFailures::before(&pod.facts).total();
                failures(known) <= failures(pod)
                    && finished_at(&pod.facts) >= finished_at(&known.facts)
            });
            if is_later {
                delayed.insert(index, pod.clone());
            }
        }
        delayed
    }
}

/// How many failures the Job takes.
pub(super) fn backoff_limit(job: &Job) -> i64 {
    // The API server's default is 6 unless failures are limited by index.
    let default = if has_limit_per_index(job) { i32::MAX } else { 6 };
    i64::from(job.spec.backoff_limit.unwrap_or(default))
}

/// How many there are, as the API counts.
pub(super) fn len<T>(all: impl IntoIterator<Item = T>) -> i64 {
    i64::try_from(all.into_iter().count()).unwrap_or(i64::MAX)
}
