//! CronJob: starts Jobs at the times of a schedule.
//!
//! Reads CronJobs and Jobs. Writes Jobs, and the status of CronJobs. Nothing is kept in memory: the
//! last start is in the status, and a Job's name has its time, so that no start happens twice.
//!
//! ```text
//!   handlers ─> sync: Jobs that ended, history ─> start: is one due (schedule, next, missed)?
//! ```
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go

mod missed;
mod next;
mod schedule;
mod start;
mod status;
mod sync;
mod zones;

#[cfg(test)]
mod tests;

use std::rc::Rc;

use jiff::tz::TimeZone;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CRON_JOBS, JOBS, Kind};
use pintle_controllers_core::common::sample::{MetricValue, SampleTotals};
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{CronJob, Job};
use pintle_controllers_core::meta::OwnerReference;
use pintle_controllers_core::tables::{Change, Delta, Tables};

use missed::{StartBase, wait_for_next};
use schedule::CronSchedule;
use start::schedule_text;
use sync::{CronState, sync_cron_job};

/// The controller.
#[derive(Debug)]
pub struct CronJobController {
    /// `--concurrent-cron-job-syncs`.
    pub workers: usize,
    /// The zone of schedules that have none: the process's own.
    pub local: TimeZone,
    totals: SampleTotals,
}

/// The state that one sync reads.
#[derive(Debug)]
pub struct CronJobSnapshot(CronState);

impl CronJobController {
    /// A controller that takes this zone for schedules that have none.
    pub fn new(workers: usize, local: TimeZone) -> Self {
        Self { workers, local, totals: SampleTotals::default() }
    }

    // k8s: pkg/controller/cronjob/cronjob_controllerv2.go updateCronJob
    fn handle_cron_job(
        &self,
        delta: &Delta<KeptObject<CronJob>>,
        now: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        let key = delta.object().metadata.key();
        if let (Some(old), Some(new)) = (&delta.old, &delta.new)
            && (&old.spec.schedule, &old.spec.time_zone)
                != (&new.spec.schedule, &new.spec.time_zone)
            && let Ok(schedule) = CronSchedule::parse(&schedule_text(new), &self.local)
        {
            let base = StartBase::new(new, new.status.last_schedule_time);
            return wake.after(key, wait_for_next(base, now.wall, &schedule));
        }
        // A schedule that cannot be parsed is reported by its sync.
        wake.now(key);
    }
}

impl Controller for CronJobController {
    type Key = ObjectKey;
    type Snapshot = CronJobSnapshot;
    type Note = MetricValue;

    const NAME: &'static str = "cronjob-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![CRON_JOBS, JOBS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        match change {
            Change::CronJob(delta) => self.handle_cron_job(delta, now, wake),
            Change::Job(delta) => handle_job(delta, tables, wake),
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<CronJobSnapshot> {
        let cron_job = Rc::clone(tables.cron_jobs.get(key)?);
        // By name, as upstream: also Jobs of an earlier CronJob with the name.
        let is_its = |job: &&Rc<KeptObject<Job>>| {
            let controller = job.metadata.controller();
            controller.is_some_and(|owner| *owner.name == *cron_job.metadata.name)
        };
        let jobs = tables.jobs.in_namespace(&cron_job.metadata.namespace);
        let jobs = jobs.filter(is_its).cloned().collect();
        Some(CronJobSnapshot(CronState { cron_job, jobs, local: self.local.clone() }))
    }

    fn sync(
        snapshot: &CronJobSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<MetricValue>, TranscriptStop> {
        sync_cron_job(&snapshot.0, transcript)
    }

    fn remember(&mut self, _: &ObjectKey, sample: MetricValue, _: Now) {
        self.totals.add(sample);
    }

    fn totals(&self) -> Option<&SampleTotals> {
        Some(&self.totals)
    }
}

/// Wakes the CronJobs that control a Job now or did before.
// k8s: pkg/controller/cronjob/cronjob_controllerv2.go addJob, updateJob, deleteJob
fn handle_job(delta: &Delta<KeptObject<Job>>, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    for job in [&delta.old, &delta.new].into_iter().flatten() {
        if let Some(owner) = job.metadata.controller()
            && let Some(key) = cron_job_key(job, owner, tables)
        {
            wake.now(key);
        }
    }
}

// k8s: pkg/controller/cronjob/cronjob_controllerv2.go resolveControllerRef
fn cron_job_key(job: &Job, owner: &OwnerReference, tables: &Tables) -> Option<ObjectKey> {
    if &*owner.kind != CRON_JOBS.kind {
        return None;
    }
    let key = ObjectKey::new(&job.metadata.namespace, &owner.name);
    let cron_job = tables.cron_jobs.get(&key)?;
    (cron_job.metadata.uid == owner.uid).then_some(key)
}
