//! Job: runs pods until as many of them succeeded as are wanted, and counts each of them once.
//!
//! Reads Jobs and pods. Writes pods, and the status of Jobs. A pod has a finalizer until it is
//! counted, so that no pod can vanish before; see `track` for the order of writes. What is kept in
//! memory is only what replacements wait for after failures.
//!
//! ```text
//!   handlers ─> sync ─┬─ failure_policy, success_policy, indexes: has it ended?
//!                     ├─ manage (create, removal, backoff): which pods are missing or surplus?
//!                     └─ track (status): which pods are counted, and is it over?
//!   orphans: pods that no Job counts lose their finalizer
//! ```
// k8s: pkg/controller/job/job_controller.go

mod backoff;
mod create;
mod failure_policy;
mod handlers;
mod indexes;
mod manage;
mod orphans;
mod pods;
mod removal;
mod status;
mod success_policy;
mod sync;
mod track;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{JOBS, Kind, PODS};
use pintle_controllers_core::common::sample::{MetricValue, SampleTotals};
use pintle_controllers_core::frame::{
    Controller, KeyBackoff, Now, QueueKey, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Job, Pod};
use pintle_controllers_core::tables::{Change, Tables};

pub use backoff::FailureBackoff;
use backoff::JobBackoff;
use orphans::{OrphanState, sync_orphan};
use pods::{JobPod, new_finished_pods};
use sync::{JobState, sync_job};

/// The controller.
#[derive(Debug, Default)]
pub struct JobController {
    /// `--concurrent-job-syncs`.
    pub workers: usize,
    /// Waits and limits.
    pub settings: JobSettings,
    backoffs: BTreeMap<ObjectKey, JobBackoff>,
    totals: SampleTotals,
}

/// Waits and limits of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSettings {
    /// Changes of pods within this time are answered by one sync.
    pub batch_period: Duration,
    /// How long replacements of failed pods wait.
    pub failure_backoff: FailureBackoff,
    /// UIDs in `uncountedTerminatedPods`, at most: keeps the status below about 20 KB.
    pub uncounted_max: usize,
    /// Pods that one sync creates or deletes, at most.
    pub pods_per_sync_max: usize,
    /// A Job that is suspended loses its start time; the feature gate
    /// `MutableSchedulingDirectivesForSuspendedJobs`.
    pub clears_start_time: bool,
}

impl Default for JobSettings {
    fn default() -> Self {
        let failure_backoff =
            FailureBackoff { first: Duration::from_secs(10), longest: Duration::from_secs(600) };
        Self {
            batch_period: Duration::from_secs(1),
            failure_backoff,
            uncounted_max: 500,
            pods_per_sync_max: 500,
            clears_start_time: true,
        }
    }
}

/// The unit of a sync.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKey {
    /// A Job.
    Job(ObjectKey),
    /// A pod of a deleted or finished Job.
    Orphan(ObjectKey),
    /// A pod of a Job that was not listed when the controller started.
    Stray(ObjectKey),
}

impl QueueKey for JobKey {
    fn tenant(&self) -> &str {
        match self {
            Self::Job(key) | Self::Orphan(key) | Self::Stray(key) => key.namespace(),
        }
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(key) => write!(f, "{key}"),
            Self::Orphan(key) => write!(f, "orphan pod {key}"),
            Self::Stray(key) => write!(f, "stray pod {key}"),
        }
    }
}

/// The state that one sync reads.
#[derive(Debug)]
pub struct JobSnapshot(Synced);

#[derive(Debug)]
enum Synced {
    Job(Box<JobState>),
    Orphan(OrphanState),
}

impl Controller for JobController {
    type Key = JobKey;
    type Snapshot = JobSnapshot;
    type Note = MetricValue;

    const NAME: &'static str = "job-controller";
    // k8s: pkg/controller/job/job_controller.go DefaultJobApiBackOff, MaxJobApiBackOff
    const BACKOFF: KeyBackoff = KeyBackoff::of_key(Duration::from_secs(1), Duration::from_secs(60));

    fn key_of(object: &ObjectKey) -> Option<JobKey> {
        Some(JobKey::Job(object.clone()))
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![JOBS, PODS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_start(&mut self, tables: &Tables, wake: &mut Wakes<JobKey>) {
        handlers::wake_strays(tables, wake);
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<JobKey>,
    ) {
        match change {
            Change::Job(delta) => self.handle_job(delta, tables, now, wake),
            Change::Pod(delta) => self.handle_pod(delta, tables, wake),
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &JobKey, tables: &Tables, _: Now) -> Option<JobSnapshot> {
        let synced = match key {
            JobKey::Job(key) => Synced::Job(Box::new(self.job_state(key, tables)?)),
            JobKey::Orphan(key) => Synced::Orphan(orphan_state(key, tables, false)?),
            JobKey::Stray(key) => Synced::Orphan(orphan_state(key, tables, true)?),
        };
        Some(JobSnapshot(synced))
    }

    fn sync(
        snapshot: &JobSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<MetricValue>, TranscriptStop> {
        match &snapshot.0 {
            Synced::Job(state) => sync_job(state, transcript),
            Synced::Orphan(state) => sync_orphan(state, transcript),
        }
    }

    fn remember(&mut self, _: &JobKey, sample: MetricValue, _: Now) {
        self.totals.add(sample);
    }

    fn totals(&self) -> Option<&SampleTotals> {
        Some(&self.totals)
    }
}

impl JobController {
    /// A controller with the waits and limits that upstream has.
    pub fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    fn job_state(&mut self, key: &ObjectKey, tables: &Tables) -> Option<JobState> {
        let Some(job) = tables.jobs.get(key).cloned() else {
            self.backoffs.remove(key);
            return None;
        };
        let pods = pods_of(&job, tables);
        let is_over = job.finished().is_some();
        let mut backoff = self.backoffs.remove(key).filter(|_| !is_over).unwrap_or_default();
        let claimed: Vec<_> = pods
            .iter()
            .filter(|pod| job.spec.selector.matches(&pod.metadata.labels))
            .map(|pod| JobPod::claimed(Rc::clone(pod), &job))
            .collect();
        let uncounted = &job.status.uncounted_terminated_pods;
        let finished = new_finished_pods(&claimed, &job, uncounted);
        let record = backoff.observe(&claimed, finished);
        if !is_over && !backoff.is_empty() {
            self.backoffs.insert(key.clone(), backoff);
        }
        Some(JobState { job, pods, backoff: record, settings: self.settings })
    }
}

/// The Job's pods, and orphans that it may adopt.
fn pods_of(job: &Job, tables: &Tables) -> Vec<Rc<KeptObject<Pod>>> {
    let meta = &job.metadata;
    let is_adoptable = |pod: &&Rc<KeptObject<Pod>>| {
        !meta.is_deleting()
            && !pod.metadata.is_deleting()
            && job.spec.selector.matches(&pod.metadata.labels)
    };
    let own = tables.pods.controlled_by(&meta.uid);
    own.chain(tables.pods.orphans(&meta.namespace).filter(is_adoptable)).cloned().collect()
}

fn orphan_state(key: &ObjectKey, tables: &Tables, is_stray: bool) -> Option<OrphanState> {
    let pod = tables.pods.get(key)?;
    let owner = handlers::job_of(pod, tables).cloned();
    Some(OrphanState { pod: Rc::clone(pod), owner, is_stray })
}
