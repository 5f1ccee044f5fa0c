//! Starts the Job of a CronJob when it is due.
//!
//! Input: the state of the sync. Output: a Job with a name derived from its time, so that no start
//! happens twice, or the reason for no Job. Returns the time until the next start.
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go syncCronJob, utils.go getJobFromTemplate2

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::kind::{CRON_JOBS, JOBS};
use pintle_api_types::request::Request;
use pintle_controllers_core::common::owner::controller_reference;
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::common::times::whole_seconds;
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::kinds::CronJob;
use pintle_controllers_core::meta::time;
use serde_json::{Value, json};

use super::missed::{Missed, StartBase, recent_start, wait_for_next};
use super::schedule::CronSchedule;
use super::status::ActiveJob;
use super::sync::{CronSync, read_job};
use super::zones::{in_zone, load_zone};

/// The annotation with the time that a Job was started for.
const TIME_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The schedule's text, with its time zone in front.
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go formatSchedule
pub(super) fn schedule_text(cron_job: &CronJob) -> String {
    let spec = &cron_job.spec;
    match &spec.time_zone {
        Some(zone) if !has_zone_in_text(cron_job) => format!("TZ={zone} {}", spec.schedule),
        _ => spec.schedule.to_string(),
    }
}

/// The schedule names a time zone itself, which the API does not document.
fn has_zone_in_text(cron_job: &CronJob) -> bool {
    cron_job.spec.schedule.contains("TZ")
}

/// The name of the Job that is started at a time.
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go getJobName
pub(super) fn job_name(cron_job: &CronJob, start: Timestamp) -> String {
    format!("{}-{}", cron_job.metadata.name, start.as_second() / 60)
}

impl CronSync<'_> {
    /// Starts the Job that is due, if one is.
    ///
    /// # Errors
    /// When requests have to be answered first, or one of them failed.
    pub(super) fn start_due(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<Option<Duration>, TranscriptStop> {
        let Some(schedule) = self.valid_schedule(transcript) else { return Ok(None) };
        let now = self.now;
        let due = match recent_start(self.start_base(), now, &schedule) {
            Ok(recent) => {
                if recent.missed == Missed::Many && recent.newest.is_some() {
                    self.warn_of_many_missed(transcript);
                }
                recent.newest
            }
            Err(error) => {
                let text = &self.cron_job.spec.schedule;
                let message = format!("invalid schedule: {text} : {error}");
                self.warn("InvalidSchedule", message, transcript);
                transcript.because(format!("the schedule {text} never comes"));
                return Ok(None);
            }
        };
        let Some(due) = due else {
            transcript.because("no start is due");
            return Ok(Some(wait_for_next(self.start_base(), now, &schedule)));
        };
        if !self.is_startable(due, transcript) {
            return Ok(Some(wait_for_next(self.start_base(), now, &schedule)));
        }
        if &*self.cron_job.spec.concurrency_policy == "Replace" {
            self.delete_all_active(transcript)?;
        }
        if !self.create_job(due, transcript)? {
            return Ok(None);
        }
        // The next start is looked for after the one that was just made, which the status has now.
        let wait = wait_for_next(self.start_base(), now, &schedule);
        Ok(Some(wait))
    }

    fn start_base(&self) -> StartBase {
        StartBase::new(&self.cron_job, self.status.last_schedule_time)
    }

    /// The schedule, unless it is suspended or not valid.
    fn valid_schedule(&self, transcript: &mut Transcript) -> Option<CronSchedule> {
        let spec = &self.cron_job.spec;
        if let Some(zone) = &spec.time_zone
            && let Err(error) = load_zone(zone, &self.state.local)
        {
            let message = format!("invalid timeZone: {zone:?}: {error}");
            self.warn("UnknownTimeZone", message, transcript);
            transcript.because(format!("the time zone {zone} is not known"));
            return None;
        }
        if spec.suspend == Some(true) {
            transcript.because("the CronJob is suspended");
            return None;
        }
        if has_zone_in_text(&self.cron_job) {
            let message = format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ \
                 for more details",
                spec.schedule
            );
            self.warn("UnsupportedSchedule", message, transcript);
        }
        match CronSchedule::parse(&schedule_text(&self.cron_job), &self.state.local) {
            Ok(schedule) => Some(schedule),
            Err(error) => {
                let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
                self.warn("UnparseableSchedule", message, transcript);
                transcript.because(format!("the schedule cannot be parsed: {error}"));
                None
            }
        }
    }

    fn warn_of_many_missed(&self, transcript: &mut Transcript) {
        let message = "too many missed start times. Set or decrease \
                       .spec.startingDeadlineSeconds or check clock skew";
        self.warn("TooManyMissedTimes", message.to_owned(), transcript);
    }

    /// The start is neither late nor made already, and no other Job is in its way.
    fn is_startable(&self, due: Timestamp, transcript: &mut Transcript) -> bool {
        let spec = &self.cron_job.spec;
        if let Some(seconds) = spec.starting_deadline_seconds {
            let last = due.saturating_add(SignedDuration::from_secs(seconds));
            if last.is_ok_and(|last| last < self.now) {
                let at = due.strftime("%a, %d %b %Y %H:%M:%S +0000");
                let message = format!("Missed scheduled time to start a job: {at}");
                self.warn("MissSchedule", message, transcript);
                transcript.because("the starting deadline is over");
                return false;
            }
        }
        let name = job_name(&self.cron_job, due);
        let namespace = self.cron_job.metadata.namespace.as_str();
        let mut active = self.status.active.iter();
        let is_active = active.any(|job| job.name == name && job.namespace == namespace);
        if is_active || self.status.last_schedule_time == Some(due) {
            transcript.because(format!("the start of {} was made", whole_seconds(due)));
            return false;
        }
        if &*spec.concurrency_policy == "Forbid" && !self.status.active.is_empty() {
            let message = "Not starting job because prior execution is running and \
                           concurrency policy is Forbid";
            self.report("JobAlreadyActive", message.to_owned(), transcript);
            transcript.because("an earlier Job is active, and the concurrency policy is Forbid");
            return false;
        }
        true
    }

    fn delete_all_active(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        for active in self.status.active.clone() {
            transcript.because(format!("the Job {} is replaced", active.name));
            let job = match read_job(&active.namespace, &active.name, transcript)? {
                Ok(job) => job,
                Err(error) => {
                    self.warn("FailedGet", format!("Get job: {error}"), transcript);
                    return Err(error.into());
                }
            };
            if !self.delete_active(&job, transcript)? {
                let (namespace, name) = (&active.namespace, &active.name);
                return Err(TranscriptStop::failed(format!(
                    "could not replace job {namespace}/{name}"
                )));
            }
            self.is_changed = true;
        }
        Ok(())
    }

    /// Creates the Job of a start, and puts it into the status; false if something else made it.
    fn create_job(
        &mut self,
        start: Timestamp,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        let namespace = self.cron_job.metadata.namespace.to_string();
        let body = self.job_from_template(start);
        let create =
            Request::Create { kind: JOBS, namespace: namespace.clone(), below: None, body };
        let job = match transcript.send(create)? {
            Ok(job) => {
                self.note_creation(&job, start, transcript);
                job
            }
            Err(error) if error.is_namespace_terminating() => return Err(error.into()),
            Err(error) if error.is_already_exists() => {
                // An earlier sync created it and could not write the status, or something else did.
                let name = job_name(&self.cron_job, start);
                let job = read_job(&namespace, &name, transcript)??;
                let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
                if !self.is_own(&job) || self.status.is_active(uid) {
                    transcript.because(format!("the Job {name} exists"));
                    return Ok(false);
                }
                job
            }
            Err(error) => {
                self.warn("FailedCreate", format!("Error creating job: {error}"), transcript);
                return Err(error.into());
            }
        };
        self.status.active.push(ActiveJob::of(&job));
        self.status.last_schedule_time = Some(start);
        self.is_changed = true;
        Ok(true)
    }

    fn note_creation(&mut self, job: &Value, start: Timestamp, transcript: &mut Transcript) {
        let metadata = &job["metadata"];
        let created = time(&metadata["creationTimestamp"]).ok().flatten();
        if let Some(created) = created {
            let skew = created.duration_since(start).as_secs_f64();
            self.samples.push(MetricValue::new("job_creation_skew_duration_seconds", &[], skew));
        }
        let name = metadata["name"].as_str().unwrap_or_default();
        self.report("SuccessfulCreate", format!("Created job {name}"), transcript);
    }

    fn is_own(&self, job: &Value) -> bool {
        let owners = job["metadata"]["ownerReferences"].as_array();
        let mut owners = owners.into_iter().flatten();
        let controller = owners.find(|owner| owner["controller"] == true);
        controller.is_some_and(|owner| owner["uid"] == self.cron_job.metadata.uid.as_str())
    }

    // k8s: pkg/controller/cronjob/utils.go getJobFromTemplate2
    pub(super) fn job_from_template(&self, start: Timestamp) -> Value {
        let cron_job = &self.cron_job;
        let mut template = cron_job.value()["spec"]["jobTemplate"].take();
        let zone = cron_job.spec.time_zone.as_deref().unwrap_or_default();
        // A schedule with a zone that is not known is not started.
        let zone = load_zone(zone, &self.state.local).unwrap_or(jiff::tz::TimeZone::UTC);
        let mut annotations = template["metadata"]["annotations"].take();
        annotations[TIME_ANNOTATION] = in_zone(start, &zone).into();
        let mut metadata = json!({
            "name": job_name(cron_job, start),
            "creationTimestamp": whole_seconds(start),
            "annotations": annotations,
            "ownerReferences": [controller_reference(CRON_JOBS, &cron_job.metadata)],
        });
        let labels = template["metadata"]["labels"].take();
        if !labels.is_null() {
            metadata["labels"] = labels;
        }
        json!({
            "apiVersion": JOBS.api_version(),
            "kind": JOBS.kind,
            "metadata": metadata,
            "spec": template["spec"].take(),
        })
    }
}
