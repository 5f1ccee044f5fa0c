//! One sync of a CronJob: Jobs that ended leave the list of active ones and, beyond the history
//! limits, the cluster; a Job that is due is started.
//!
//! Input: the CronJob and its Jobs. Output: requests and events by the transcript, and when to sync
//! again. The status is written once, at the end, with all that changed, also when the sync failed.
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go sync, syncCronJob, cleanupFinishedJobs

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CRON_JOBS, JOBS};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Propagation, Request, Target};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{
    EventTarget, ObjectEvent, SyncOutcome, Transcript, TranscriptStop,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{CronJob, Job};
use serde_json::Value;

use super::status::WorkingStatus;

/// The state that the sync of a CronJob reads.
#[derive(Debug)]
pub(super) struct CronState {
    pub(super) cron_job: Rc<KeptObject<CronJob>>,
    /// The Jobs of its namespace with a controller of its name.
    pub(super) jobs: Vec<Rc<KeptObject<Job>>>,
    /// The zone of schedules that have none.
    pub(super) local: TimeZone,
}

/// The state of one sync.
pub(super) struct CronSync<'a> {
    pub(super) state: &'a CronState,
    pub(super) now: Timestamp,
    pub(super) about: EventTarget,
    /// The CronJob as decisions see it.
    pub(super) cron_job: Rc<KeptObject<CronJob>>,
    pub(super) status: WorkingStatus,
    /// The status is to be written.
    pub(super) is_changed: bool,
    pub(super) samples: Vec<MetricValue>,
}

/// Syncs a CronJob.
///
/// # Errors
/// When requests have to be answered first, or one of them failed.
pub(super) fn sync_cron_job(
    state: &CronState,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<MetricValue>, TranscriptStop> {
    let mut sync = CronSync::new(state, transcript.now())?;
    sync.clean_up_history(transcript)?;
    let result = match sync.reconcile(transcript) {
        Err(TranscriptStop::Pending) => return Err(TranscriptStop::Pending),
        result => result,
    };
    if sync.is_changed {
        let mut body = sync.cron_job.value();
        sync.status.put(&mut body);
        let target = Target::status(CRON_JOBS, sync.cron_job.metadata.key());
        transcript.send(Request::Replace { target, body })??;
    }
    match result {
        Ok(again) => Ok(SyncOutcome::new(again, sync.samples)),
        Err(TranscriptStop::Failed(error)) => {
            Ok(SyncOutcome { again: None, notes: sync.samples, failed: Some(error) })
        }
        Err(TranscriptStop::Pending) => Err(TranscriptStop::Pending),
    }
}

/// Reads a Job live.
pub(super) fn read_job(
    namespace: &str,
    name: &str,
    transcript: &mut Transcript,
) -> Result<Answer, TranscriptStop> {
    let target = Target::object(JOBS, ObjectKey::new(namespace, name));
    transcript.send(Request::Read { target, only_metadata: false })
}

/// The request that deletes a Job, its pods later.
fn delete_job(key: ObjectKey) -> Request {
    let options =
        DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    Request::Delete { target: Target::object(JOBS, key), options }
}

impl<'a> CronSync<'a> {
    fn new(state: &'a CronState, now: Timestamp) -> Result<Self, TranscriptStop> {
        Ok(Self {
            state,
            now,
            about: EventTarget::of(CRON_JOBS, &state.cron_job.metadata),
            cron_job: Rc::clone(&state.cron_job),
            status: WorkingStatus::read(&state.cron_job.value())?,
            is_changed: false,
            samples: Vec::new(),
        })
    }

    pub(super) fn report(
        &self,
        reason: &'static str,
        message: String,
        transcript: &mut Transcript,
    ) {
        transcript.event(ObjectEvent::normal(self.about.clone(), reason, message));
    }

    pub(super) fn warn(&self, reason: &'static str, message: String, transcript: &mut Transcript) {
        transcript.event(ObjectEvent::warning(self.about.clone(), reason, message));
    }

    /// Deletes the oldest of the Jobs that ended, beyond the limits.
    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go cleanupFinishedJobs
    fn clean_up_history(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let spec = &self.state.cron_job.spec;
        let limits = [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ];
        for (kind, limit) in limits {
            let Some(limit) = limit else { continue };
            let limit = usize::try_from(limit).unwrap_or(0);
            self.delete_oldest(kind, limit, transcript)?;
        }
        Ok(())
    }

    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go removeOldestJobs
    fn delete_oldest(
        &mut self,
        kind: &str,
        limit: usize,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let has_ended_so = |job: &&Rc<KeptObject<Job>>| {
            job.finished().is_some_and(|condition| &*condition.kind == kind)
        };
        let mut jobs: Vec<_> = self.state.jobs.iter().filter(has_ended_so).cloned().collect();
        jobs.sort_by_key(|job| start_order(job));
        jobs.truncate(jobs.len().saturating_sub(limit));
        if !jobs.is_empty() {
            transcript.because(format!("{} {kind} Jobs are beyond the limit {limit}", jobs.len()));
        }
        let requests = jobs.iter().map(|job| delete_job(job.metadata.key())).collect();
        let answers = transcript.send_all(requests)?;
        for (job, answer) in jobs.iter().zip(answers) {
            let is_deleted = self.note_deletion(&job_id(job), answer.err(), transcript);
            self.is_changed |= is_deleted;
        }
        Ok(())
    }

    /// Deletes a Job that another one replaces; returns whether it did.
    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go deleteJob
    pub(super) fn delete_active(
        &mut self,
        job: &Value,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        let text = |field: &str| job["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = ObjectKey::new(&text("namespace"), &text("name"));
        let answer = transcript.send(delete_job(key))?;
        let id = JobId { name: text("name"), uid: text("uid") };
        Ok(self.note_deletion(&id, answer.err(), transcript))
    }

    fn note_deletion(
        &mut self,
        job: &JobId,
        error: Option<ApiError>,
        transcript: &mut Transcript,
    ) -> bool {
        if let Some(error) = error {
            self.warn("FailedDelete", format!("Deleted job: {error}"), transcript);
            return false;
        }
        self.status.remove_active(&job.uid);
        self.report("SuccessfulDelete", format!("Deleted job {}", job.name), transcript);
        true
    }

    /// Brings the status up to date, and starts a Job when its time has come. Returns how long it
    /// is until the next start.
    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go syncCronJob
    fn reconcile(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<Option<Duration>, TranscriptStop> {
        for job in &self.state.jobs {
            self.note_job(job, transcript)?;
        }
        self.forget_missing_jobs(transcript)?;
        if self.cron_job.metadata.is_deleting() {
            transcript.because("the CronJob is being deleted");
            return Ok(None);
        }
        self.start_due(transcript)
    }

    fn note_job(&mut self, job: &Job, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let uid = job.metadata.uid.as_str();
        let is_listed = self.status.is_active(uid);
        let Some(finished) = job.finished() else {
            return match is_listed {
                true => Ok(()),
                false => self.note_unlisted(job, transcript),
            };
        };
        if is_listed {
            self.status.remove_active(uid);
            self.is_changed = true;
            let (name, kind) = (&job.metadata.name, &finished.kind);
            let message = format!("Saw completed job: {name}, condition: {kind}");
            self.report("SawCompletedJob", message, transcript);
        }
        if let Some(end) = job.status.completion_time.filter(|_| has_succeeded(job))
            && self.status.last_successful_time.is_none_or(|known| end > known)
        {
            self.status.last_successful_time = Some(end);
            self.is_changed = true;
        }
        Ok(())
    }

    /// A Job runs that is not in the list of active ones: the CronJob in the tables may be old.
    fn note_unlisted(
        &mut self,
        job: &Job,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let target = Target::object(CRON_JOBS, self.cron_job.metadata.key());
        let fresh = transcript.send(Request::Read { target, only_metadata: false })??;
        let status = WorkingStatus::read(&fresh)?;
        if status.is_active(job.metadata.uid.as_str()) {
            let fresh = KeptObject::of_value(&fresh).map_err(|error| {
                TranscriptStop::failed(format!("the CronJob cannot be read: {error}"))
            })?;
            self.cron_job = Rc::new(fresh);
            self.status = status;
            return Ok(());
        }
        let name = &job.metadata.name;
        let message = format!("Saw a job that the controller did not create or forgot: {name}");
        self.warn("UnexpectedJob", message, transcript);
        Ok(())
    }

    /// Takes Jobs off the list of active ones that are not there any more.
    fn forget_missing_jobs(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let known: HashSet<_> =
            self.state.jobs.iter().map(|job| job.metadata.uid.as_str()).collect();
        for job in self.status.active.clone() {
            if known.contains(&*job.uid) {
                continue;
            }
            match read_job(&job.namespace, &job.name, transcript)? {
                Err(error) if error.is_not_found() => {
                    self.report(
                        "MissingJob",
                        format!("Active job went missing: {}", job.name),
                        transcript,
                    );
                    self.status.remove_active(&job.uid);
                    self.is_changed = true;
                }
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// The name and UID of a Job.
struct JobId {
    name: String,
    uid: String,
}

fn job_id(job: &Job) -> JobId {
    let (name, uid) = (job.metadata.name.to_string(), job.metadata.uid.to_string());
    JobId { name, uid }
}

/// Jobs are ordered by their start, those that never started last.
// k8s: pkg/controller/cronjob/utils.go byJobStartTime
pub(super) fn start_order(job: &Job) -> (bool, Option<Timestamp>, Symbol) {
    let start = job.status.start_time;
    (start.is_none(), start, job.metadata.name.clone())
}

// k8s: pkg/controller/job/util/utils.go IsJobSucceeded
fn has_succeeded(job: &Job) -> bool {
    let mut conditions = job.status.conditions.iter();
    conditions.any(|condition| &*condition.kind == "Complete" && &*condition.status == "True")
}
