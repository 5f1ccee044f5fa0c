//! Counts the finished pods of a Job, each of them once, despite failures in between.
//!
//! Input: the state of the sync. Output: writes in this order: (1) the status with the UIDs of pods
//! that are about to be counted, (2) patches that take the tracking finalizer off these pods, (3)
//! the status in which these UIDs have become counts. A pod that the status lists is counted
//! when it has no finalizer any more; a process that dies between two writes leaves what the next
//! one continues from. The Job ends with (3), when nothing is left to count and no pod terminates.
//! Bounds: `uncounted_max` UIDs in the status.
// k8s: pkg/controller/job/job_controller.go trackJobStatusAndRemoveFinalizers

use std::collections::HashSet;

use pintle_api_types::kind::JOBS;
use pintle_api_types::request::{Request, Target};
use pintle_controllers_core::frame::{ObjectEvent, Transcript, TranscriptStop};

use super::failure_policy::match_failure_policy;
use super::indexes::Indexes;
use super::manage::remove_finalizer;
use super::pods::{JobPod, completions, is_failed, is_indexed};
use super::status::WorkingStatus;
use super::sync::{JobSync, has_limit_per_index, len};

/// The result of a pass over the pods.
#[derive(Default)]
struct Pass {
    /// Pods that lose their finalizer.
    released: Vec<JobPod>,
    /// Indexes that succeeded and are not in the status.
    new_indexes: Vec<i64>,
    /// The actions of the failure policy.
    actions: Vec<&'static str>,
    /// More pods are left than fit into the status.
    is_full: bool,
}

impl JobSync<'_> {
    /// Counts pods, and ends the Job.
    ///
    /// # Errors
    /// When requests have to be answered first, or one of them failed.
    pub(super) fn track(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        if is_indexed(self.job()) {
            self.pods.sort_by_key(|pod| pod.index);
        }
        let mut tracked: HashSet<String> =
            self.pods.iter().filter(|pod| pod.is_tracked).map(|pod| pod.uid().to_owned()).collect();
        let mut old = self.status.clone();
        self.needs_flush |= count_released(&mut self.status, &tracked);
        let pass = self.pass_over_pods();
        if is_indexed(self.job()) {
            self.write_indexes(&pass.new_indexes);
        }
        self.write_interim_condition();
        if self.needs_flush {
            self.flush(transcript)?;
            self.count_finished(&old);
            old = self.status.clone();
            self.needs_flush = false;
        }
        for action in &pass.actions {
            self.sample("pod_failures_handled_by_failure_policy_total", &[("action", action)], 1);
        }
        self.release(&pass.released, &mut tracked, transcript)?;
        let is_finished = !pass.is_full && self.write_final_condition(transcript);
        if self.needs_flush || is_finished {
            self.flush(transcript)?;
            if is_finished {
                self.report_end(transcript);
            }
            self.count_finished(&old);
        }
        Ok(())
    }

    /// Finds the pods to count and to release.
    fn pass_over_pods(&mut self) -> Pass {
        let mut pass = Pass::default();
        let pods = std::mem::take(&mut self.pods);
        for pod in pods.iter().filter(|pod| pod.is_tracked) {
            let is_failed = is_failed(&pod.facts, self.job());
            if !self.can_release(pod, is_failed) {
                continue;
            }
            pass.released.push(pod.clone());
            let failed = &self.state.job.status.uncounted_terminated_pods.failed;
            let is_known_failed = failed.contains(&pod.facts.metadata.uid);
            // Every pod of a Job that has failed is a failed one, also while it runs.
            let has_job_failed =
                self.finish.as_ref().is_some_and(|end| end.kind != "SuccessCriteriaMet");
            if pod.has_succeeded() && !is_known_failed {
                self.list_succeeded(pod, &mut pass);
            } else if (is_failed || has_job_failed) && !is_known_failed {
                self.list_failed(pod, &mut pass);
            }
            let uncounted = &self.status.uncounted_terminated_pods;
            let listed =
                pass.new_indexes.len() + uncounted.succeeded.len() + uncounted.failed.len();
            if listed >= self.state.settings.uncounted_max {
                // The rest follows in later syncs, which the writes of this one bring about.
                pass.is_full = true;
                break;
            }
        }
        self.pods = pods;
        pass
    }

    fn list_succeeded(&mut self, pod: &JobPod, pass: &mut Pass) {
        let uid = &pod.facts.metadata.uid;
        if is_indexed(self.job()) {
            // The index in the status is enough to count the pod once.
            let index = pod.index_below(completions(self.job()));
            if let Some(index) = index.filter(|index| !self.previous_indexes.has(*index)) {
                pass.new_indexes.push(index);
                self.needs_flush = true;
            }
        } else if !self.state.job.status.uncounted_terminated_pods.succeeded.contains(uid) {
            self.status.uncounted_terminated_pods.succeeded.push(pod.uid().to_owned());
            self.needs_flush = true;
        }
    }

    fn list_failed(&mut self, pod: &JobPod, pass: &mut Pass) {
        let job = self.job();
        if is_indexed(job) && pod.index_below(completions(job)).is_none() {
            return;
        }
        let policy = job.spec.pod_failure_policy.as_deref();
        let action = match_failure_policy(policy, &pod.facts);
        pass.actions.extend(action.name());
        if action.is_counted() {
            self.status.uncounted_terminated_pods.failed.push(pod.uid().to_owned());
            self.needs_flush = true;
        }
    }

    /// The pod may lose its finalizer.
    // k8s: pkg/controller/job/job_controller.go canRemoveFinalizer
    fn can_release(&self, pod: &JobPod, is_failed: bool) -> bool {
        let is_over = self.job().metadata.is_deleting() || self.finish.is_some();
        if is_over || pod.has_succeeded() {
            return true;
        }
        let delayed = pod.index.and_then(|index| self.delayed.get(&index));
        // The pod that replaces it takes the count of failures from its annotations.
        let is_delayed = delayed.is_some_and(|delayed| delayed.uid() == pod.uid());
        is_failed && !is_delayed
    }

    fn write_indexes(&mut self, new: &[i64]) {
        let new = Indexes::of(new.iter().copied());
        self.succeeded_indexes = self.succeeded_indexes.union(&new);
        let completed = self.succeeded_indexes.to_string();
        let failed = self.failed_indexes.as_ref().map(ToString::to_string);
        let status = &mut self.status;
        self.needs_flush |=
            completed != status.completed_indexes || failed != status.failed_indexes;
        status.succeeded = self.succeeded_indexes.total();
        status.completed_indexes = completed;
        status.failed_indexes = failed;
    }

    /// Adds the condition that has to be in the status before finalizers go; what is left in
    /// `finish` is the final one.
    fn write_interim_condition(&mut self) {
        let Some(finish) = self.finish.clone() else { return };
        let last = match &*finish.kind {
            "FailureTarget" => "Failed",
            "SuccessCriteriaMet" => "Complete",
            _ => return,
        };
        self.finish = Some(finish.turned_into(last, self.now));
        if self.status.true_condition(&finish.kind).is_none() {
            self.status.conditions.push(finish);
            self.needs_flush = true;
        }
    }

    /// Adds the final condition, once nothing is left to count; returns whether it is set.
    // k8s: pkg/controller/job/job_controller.go enactJobFinished
    fn write_final_condition(&mut self, transcript: &mut Transcript) -> bool {
        let Some(finish) = self.finish.clone() else { return false };
        let uncounted = &self.status.uncounted_terminated_pods;
        let uncounted = uncounted.succeeded.len() + uncounted.failed.len();
        if uncounted > 0 {
            transcript.because(format!("{uncounted} pods are to be counted before the Job ends"));
            return false;
        }
        let terminating = self.status.terminating.unwrap_or(0);
        if terminating > 0 {
            transcript.because(format!("{terminating} pods are terminating, then the Job ends"));
            return false;
        }
        if finish.kind == "Complete" {
            self.status.completion_time = finish.last_transition_time;
        }
        self.status.ensure(finish);
        true
    }

    /// Writes the status. What is answered is what the next write changes.
    fn flush(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let mut body = self.object.clone();
        self.status.put(&mut body);
        let target = Target::status(JOBS, self.job().metadata.key());
        self.object = transcript.send(Request::Replace { target, body })??;
        self.status = WorkingStatus::read(&self.object)?;
        Ok(())
    }

    /// Takes the finalizers off pods, and counts those that lost it.
    // k8s: pkg/controller/job/job_controller.go flushUncountedAndRemoveFinalizers
    fn release(
        &mut self,
        pods: &[JobPod],
        tracked: &mut HashSet<String>,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let patches = pods.iter().map(|pod| remove_finalizer(&pod.facts)).collect();
        let answers = transcript.send_all(patches)?;
        let mut failure = None::<TranscriptStop>;
        for (pod, answer) in pods.iter().zip(answers) {
            match answer {
                Err(error) if !error.is_not_found() => failure = failure.or(Some(error.into())),
                // The finalizer was removed, or the pod no longer exists.
                _ => drop(tracked.remove(pod.uid())),
            }
        }
        self.needs_flush |= count_released(&mut self.status, tracked);
        match failure {
            None => Ok(()),
            Some(failure) => {
                if self.needs_flush {
                    self.flush(transcript)?;
                }
                Err(failure)
            }
        }
    }

    // k8s: pkg/controller/job/job_controller.go recordJobFinished
    fn report_end(&mut self, transcript: &mut Transcript) {
        let Some(finish) = self.finish.clone() else { return };
        let mode = self.completion_mode();
        let is_complete = finish.kind == "Complete";
        if is_complete {
            let wanted = self.job().spec.completions.map(i64::from);
            if wanted.is_some_and(|wanted| self.status.succeeded > wanted) {
                let message = "Too many succeeded pods running after completion count reached";
                let about = self.about.clone();
                transcript.event(ObjectEvent::warning(
                    about,
                    "TooManySucceededPods",
                    message.to_owned(),
                ));
            }
            let message = "Job completed".to_owned();
            transcript.event(ObjectEvent::normal(self.about.clone(), "Completed", message));
        } else {
            let reason = event_reason(&finish.reason);
            transcript.event(ObjectEvent::warning(self.about.clone(), reason, finish.message));
        }
        let result = if is_complete { "succeeded" } else { "failed" };
        let labels = [("completion_mode", mode), ("result", result), ("reason", &*finish.reason)];
        self.sample("jobs_finished_total", &labels, 1);
    }

    // k8s: pkg/controller/job/job_controller.go getCompletionMode
    fn completion_mode(&self) -> &'static str {
        if is_indexed(self.job()) { "Indexed" } else { "NonIndexed" }
    }

    /// Counts the sync for the metrics.
    pub(super) fn count_sync(&mut self) {
        let mode = self.completion_mode();
        let labels = [("completion_mode", mode), ("result", "success"), ("action", self.action)];
        self.sample("job_syncs_total", &labels, 1);
    }

    /// Counts pods and indexes for the metrics.
    // k8s: pkg/controller/job/job_controller.go recordJobPodFinished
    fn count_finished(&mut self, old: &WorkingStatus) {
        let mode = self.completion_mode();
        let failed = self.status.failed - old.failed;
        let mut succeeded = self.status.succeeded - old.succeeded;
        if is_indexed(self.job()) {
            let total = |text: &str| Indexes::parse(text, completions(self.job())).total();
            let text = |indexes: &Option<String>| indexes.clone().unwrap_or_default();
            succeeded = total(&self.status.completed_indexes) - total(&old.completed_indexes);
            let failed_indexes =
                total(&text(&self.status.failed_indexes)) - total(&text(&old.failed_indexes));
            let limit = if has_limit_per_index(self.job()) { "perIndex" } else { "global" };
            for (status, count) in [("succeeded", succeeded), ("failed", failed_indexes)] {
                if count > 0 {
                    let labels = [("status", status), ("backoffLimit", limit)];
                    self.sample("job_finished_indexes_total", &labels, count);
                }
            }
        }
        for (result, count) in [("succeeded", succeeded), ("failed", failed)] {
            if count > 0 {
                let labels = [("completion_mode", mode), ("result", result)];
                self.sample("job_pods_finished_total", &labels, count);
            }
        }
    }
}

/// Turns UIDs of pods without a finalizer into counts; returns whether there were any.
// k8s: pkg/controller/job/job_controller.go cleanUncountedPodsWithoutFinalizers
fn count_released(status: &mut WorkingStatus, tracked: &HashSet<String>) -> bool {
    let uncounted = &mut status.uncounted_terminated_pods;
    let before = (len(&uncounted.succeeded), len(&uncounted.failed));
    uncounted.succeeded.retain(|uid| tracked.contains(uid));
    uncounted.failed.retain(|uid| tracked.contains(uid));
    let succeeded = before.0 - len(&uncounted.succeeded);
    let failed = before.1 - len(&uncounted.failed);
    status.succeeded += succeeded;
    status.failed += failed;
    succeeded + failed > 0
}

/// The reason of the event about a failed Job: that of its condition.
fn event_reason(reason: &str) -> &'static str {
    const REASONS: &[&str] = &[
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "FailedIndexes",
        "MaxFailedIndexesExceeded",
        "PodFailurePolicy",
    ];
    REASONS.iter().find(|known| **known == reason).copied().unwrap_or("Failed")
}
