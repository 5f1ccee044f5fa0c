//! Creates the pods that a Job lacks, deletes those it has too many, and notices its success and
//! its suspension.
//!
//! Input: the state of the sync. Output: requests and events; the counts of active, ready and
//! terminating pods and the conditions in the status. One sync either creates or deletes, at most
//! `pods_per_sync_max` pods.
// k8s: pkg/controller/job/job_controller.go manageJob, deleteActivePods, deleteJobPods

use std::time::Duration;

use pintle_api_types::kind::PODS;
use pintle_api_types::request::{PatchForm, Request, Target};
use pintle_controllers_core::common::pods::{create, delete, record_created, record_deleted};
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{ObjectEvent, Transcript, TranscriptStop};
use pintle_controllers_core::kinds::Pod;
use serde_json::{Value, json};

use super::create::{PodIndex, base_pod, indexed_pod};
use super::indexes::Indexes;
use super::pods::{
    IndexFailures, JobPod, TRACKING_FINALIZER, completions, is_indexed, is_suspended,
    replaces_only_failed,
};
use super::removal::pods_to_remove;
use super::status::JobConditionState;
use super::sync::{JobSync, has_limit_per_index, len};

/// The pods of the Job after this sync's deletions and creations.
#[derive(Clone, Copy, Debug)]
struct PodCounts {
    active: i64,
    ready: i64,
    terminating: i64,
}

/// The outcome of deletions.
#[derive(Default)]
struct Deleted {
    /// Pods that are deleted or terminating.
    pods: i64,
    /// Those of them that were ready.
    ready: i64,
    failure: Option<TranscriptStop>,
}

impl PodCounts {
    fn remove(&mut self, deleted: &Deleted) {
        self.active -= deleted.pods;
        self.ready -= deleted.ready;
        self.terminating += deleted.pods;
    }
}

/// The request that takes the tracking finalizer off a pod.
// k8s: pkg/controller/job/job_controller.go removeTrackingFinalizerPatch
pub(super) fn remove_finalizer(pod: &Pod) -> Request {
    let field = "$deleteFromPrimitiveList/finalizers";
    let body = json!({"metadata": {field: [TRACKING_FINALIZER]}});
    let target = Target::object(PODS, pod.metadata.key());
    Request::Patch { target, form: PatchForm::Strategic, body }
}

impl JobSync<'_> {
    /// Manages the pods; returns the failure of a request, if there was one.
    ///
    /// # Errors
    /// When requests have to be answered first.
    pub(super) fn manage(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let mut counts = PodCounts {
            active: len(&self.active),
            ready: len(self.active.iter().filter(|pod| pod.facts.is_ready())),
            terminating: len(self.pods.iter().filter(|pod| pod.facts.is_terminating())),
        };
        let failure = match self.finish.as_ref().map(|end| format!("{} {}", end.kind, end.reason)) {
            Some(end) => {
                transcript.because(format!("the Job ends: {end}"));
                self.delete_all_active(&mut counts, transcript)?
            }
            None => self.manage_unfinished(&mut counts, transcript)?,
        };
        let status = &mut self.status;
        self.needs_flush |= counts.active != status.active
            || status.ready != Some(counts.ready)
            || status.terminating != Some(counts.terminating);
        status.active = counts.active;
        status.ready = Some(counts.ready);
        status.terminating = Some(counts.terminating);
        Ok(failure)
    }

    fn delete_all_active(
        &mut self,
        counts: &mut PodCounts,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let active = self.active.clone();
        let deleted = self.delete_pods(&active, transcript)?;
        if deleted.pods != counts.active {
            // A pod that is still there has to be counted before the Job ends.
            self.finish = None;
        }
        counts.remove(&deleted);
        Ok(deleted.failure)
    }

    /// Deletes pods at once, without touching their finalizers.
    fn delete_pods(
        &self,
        pods: &[JobPod],
        transcript: &mut Transcript,
    ) -> Result<Deleted, TranscriptStop> {
        let key = |pod: &JobPod| pod.facts.metadata.key();
        let answers = transcript.send_all(pods.iter().map(|pod| delete(&key(pod))).collect())?;
        let mut deleted = Deleted::default();
        for (pod, answer) in pods.iter().zip(answers) {
            deleted.ready += i64::from(pod.facts.is_ready());
            match record_deleted(&pod.facts.metadata.name, answer, &self.about, transcript) {
                Ok(()) => deleted.pods += 1,
                Err(error) => deleted.failure = deleted.failure.or(Some(error.into())),
            }
        }
        Ok(deleted)
    }

    /// Deletes surplus pods; they are not counted, so their finalizers go first.
    // k8s: pkg/controller/job/job_controller.go deleteJobPods
    fn delete_surplus(
        &self,
        pods: &[JobPod],
        transcript: &mut Transcript,
    ) -> Result<Deleted, TranscriptStop> {
        let tracked = pods.iter().filter(|pod| pod.is_tracked);
        let patches = tracked.map(|pod| remove_finalizer(&pod.facts)).collect();
        let mut answers = transcript.send_all(patches)?.into_iter();
        let (mut gone, mut failure) = (0, None::<TranscriptStop>);
        let mut untracked = Vec::new();
        for pod in pods {
            let answer = pod.is_tracked.then(|| answers.next().expect("an answer for each"));
            match answer {
                Some(Err(error)) if error.is_not_found() => gone += 1,
                Some(Err(error)) => failure = failure.or(Some(error.into())),
                Some(Ok(_)) | None => untracked.push(pod.clone()),
            }
        }
        let mut deleted = self.delete_pods(&untracked, transcript)?;
        deleted.pods += gone;
        deleted.failure = failure.or(deleted.failure);
        Ok(deleted)
    }

    fn manage_unfinished(
        &mut self,
        counts: &mut PodCounts,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let is_deleting = self.job().metadata.is_deleting();
        let failure = match is_deleting {
            true => {
                transcript.because("the Job is being deleted");
                None
            }
            false => self.manage_pods(counts, transcript)?,
        };
        if self.is_complete(counts.active) {
            let message = "Reached expected number of succeeded pods";
            let condition = JobConditionState::new(
                "SuccessCriteriaMet",
                "CompletionsReached",
                message,
                self.now,
            );
            self.finish = Some(condition);
            transcript.because("enough pods succeeded");
        } else if !is_deleting {
            self.note_suspension(transcript);
        }
        Ok(failure)
    }

    /// As many pods succeeded as the Job wants; without a number, one is enough once no other runs.
    fn is_complete(&self, active: i64) -> bool {
        let is_enough = match self.job().spec.completions {
            None => self.succeeded > 0,
            Some(completions) => self.succeeded >= i64::from(completions),
        };
        is_enough && active == 0
    }

    fn note_suspension(&mut self, transcript: &mut Transcript) {
        let is_suspended = is_suspended(self.job());
        let condition = match is_suspended {
            true => JobConditionState::new("Suspended", "JobSuspended", "Job suspended", self.now),
            false => JobConditionState {
                status: "False".to_owned(),
                ..JobConditionState::new("Suspended", "JobResumed", "Job resumed", self.now)
            },
        };
        let message = condition.message.clone();
        if !self.status.ensure(condition) {
            return;
        }
        self.needs_flush = true;
        let reason = if is_suspended { "Suspended" } else { "Resumed" };
        transcript.event(ObjectEvent::normal(self.about.clone(), reason, message));
        if !is_suspended {
            // The active deadline is counted from the resumption.
            self.status.start_time = Some(self.now);
        } else if self.state.settings.clears_start_time {
            self.status.start_time = None;
        }
    }

    /// Deletes surplus pods or creates missing ones.
    // k8s: pkg/controller/job/job_controller.go manageJob
    fn manage_pods(
        &mut self,
        counts: &mut PodCounts,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let job = self.job();
        let pods_max = self.state.settings.pods_per_sync_max;
        let wanted = self.wanted_active(counts.active);
        let surplus = usize::try_from(counts.active - wanted).unwrap_or(0);
        self.action = if is_suspended(job) { "pods_deleted" } else { "tracking" };
        let mut removed = pods_to_remove(job, &self.active, surplus);
        if is_suspended(job) {
            transcript.because("the Job is suspended");
        } else {
            removed.truncate(pods_max);
        }
        if !removed.is_empty() {
            self.action = "pods_deleted";
            transcript.because(format!("{} of {} pods are surplus", removed.len(), counts.active));
            let deleted = self.delete_surplus(&removed, transcript)?;
            counts.remove(&deleted);
            return Ok(deleted.failure);
        }
        let terminating = if replaces_only_failed(job) { counts.terminating } else { 0 };
        let missing = usize::try_from(wanted - terminating - counts.active).unwrap_or(0);
        match missing {
            0 => {
                let active = counts.active;
                transcript.because(format!(
                    "{active} active pods are enough for {wanted}; {terminating} are terminating"
                ));
                Ok(None)
            }
            _ => self.create_missing(missing.min(pods_max), counts, transcript),
        }
    }

    /// How many pods are to be active.
    fn wanted_active(&self, active: i64) -> i64 {
        let spec = &self.job().spec;
        let parallelism = i64::from(spec.parallelism.unwrap_or(1));
        match spec.completions {
            _ if is_suspended(self.job()) => 0,
            None if self.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => (i64::from(completions) - self.succeeded).min(parallelism).max(0),
        }
    }

    fn create_missing(
        &mut self,
        missing: usize,
        counts: &mut PodCounts,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let job = self.job();
        self.action = "pods_created";
        let backoff = self.state.settings.failure_backoff;
        if !has_limit_per_index(job) {
            let wait = backoff.remaining(self.state.backoff, self.now);
            if !wait.is_zero() {
                return Ok(self.wait_for_backoff(wait, transcript));
            }
        }
        let base = base_pod(job, &self.object, is_indexed(job));
        let pods = match is_indexed(job) {
            false => vec![base; missing],
            true => match self.indexes_to_create(missing) {
                Err(wait) => return Ok(self.wait_for_backoff(wait, transcript)),
                Ok(indexes) => indexes.into_iter().map(|of| indexed_pod(&base, job, of)).collect(),
            },
        };
        self.create_pods(pods, counts, transcript)
    }

    fn wait_for_backoff(
        &mut self,
        wait: Duration,
        transcript: &mut Transcript,
    ) -> Option<TranscriptStop> {
        transcript.because(format!(
            "pods failed, the next one is created in {} s",
            wait.as_secs_f64().ceil()
        ));
        self.sync_again(wait.max(self.state.settings.batch_period));
        None
    }

    /// The indexes to create pods for now, or how long all of them have to wait.
    // k8s: pkg/controller/job/job_controller.go getPodCreationInfoForIndependentIndexes
    fn indexes_to_create(&self, missing: usize) -> Result<Vec<PodIndex>, Duration> {
        let job = self.job();
        let indexes = self.first_pending_indexes(missing);
        if !has_limit_per_index(job) {
            return Ok(indexes
                .into_iter()
                .map(|index| PodIndex { index, failures: None })
                .collect());
        }
        let backoff = self.state.settings.failure_backoff;
        let (mut ready, mut wait) = (Vec::new(), None::<Duration>);
        for index in indexes {
            let replaced = self.delayed.get(&index).map(|pod| &**pod.facts);
            let left = backoff.remaining_of_index(replaced, self.now);
            if left.is_zero() {
                let failures = Some(IndexFailures::before_replacement(replaced, job));
                ready.push(PodIndex { index, failures });
            } else {
                wait = Some(wait.map_or(left, |known| known.min(left)));
            }
        }
        match wait.filter(|_| ready.is_empty()) {
            Some(wait) => Err(wait),
            None => Ok(ready),
        }
    }

    // k8s: pkg/controller/job/indexed_job_utils.go firstPendingIndexes
    fn first_pending_indexes(&self, count: usize) -> Vec<i64> {
        let job = self.job();
        let is_terminating = |pod: &&JobPod| pod.facts.is_terminating();
        let active = self.active.iter().filter_map(|pod| pod.index);
        let mut taken: Vec<_> = match replaces_only_failed(job) {
            true => {
                let terminating = self.pods.iter().filter(is_terminating);
                active.chain(terminating.filter_map(|pod| pod.index)).collect()
            }
            false => active.collect(),
        };
        taken.sort_unstable();
        let mut taken = self.succeeded_indexes.union(&Indexes::of(taken));
        if let Some(failed) = &self.failed_indexes {
            taken = taken.union(failed);
        }
        taken.first_absent(count, completions(job))
    }

    fn create_pods(
        &mut self,
        pods: Vec<Value>,
        counts: &mut PodCounts,
        transcript: &mut Transcript,
    ) -> Result<Option<TranscriptStop>, TranscriptStop> {
        let namespace = self.job().metadata.namespace.as_str();
        let wanted = pods.len();
        let requests: Result<Vec<_>, _> =
            pods.into_iter().map(|pod| create(namespace, pod)).collect();
        let requests = match requests {
            Ok(requests) => requests,
            Err(failure) => return Ok(Some(failure)),
        };
        transcript.because(format!("{wanted} pods are missing"));
        let answers = transcript.slow_start(requests)?;
        let (mut failure, mut failed) = (None::<TranscriptStop>, 0);
        for answer in &answers {
            record_created(answer, &self.about, transcript);
            match answer {
                // In a namespace that is being deleted nothing is created any more.
                Err(error) if !error.is_namespace_terminating() => {
                    failed += 1;
                    failure = failure.or_else(|| Some(error.clone().into()));
                }
                _ => counts.active += 1,
            }
        }
        self.count_creations(len(&answers) - failed, failed, counts.terminating);
        Ok(failure)
    }

    // k8s: pkg/controller/job/job_controller.go recordJobPodsCreationTotal
    fn count_creations(&mut self, succeeded: i64, failed: i64, terminating: i64) {
        let policy = self.job().spec.pod_replacement_policy.as_deref();
        let reason = match policy {
            Some("Failed") if self.failed > 0 => "recreate_failed",
            _ if self.failed > 0 || terminating > 0 => "recreate_terminating_or_failed",
            _ => "new",
        };
        for (status, count) in [("succeeded", succeeded), ("failed", failed)] {
            if count > 0 {
                self.sample(
                    "job_pods_creation_total",
                    &[("reason", reason), ("status", status)],
                    count,
                );
            }
        }
    }

    /// Counts for a metric.
    #[allow(clippy::cast_precision_loss)] // counts of pods
    pub(super) fn sample(
        &mut self,
        name: &'static str,
        labels: &[(&'static str, &str)],
        count: i64,
    ) {
        self.samples.push(MetricValue::new(name, labels, count as f64));
    }
}
