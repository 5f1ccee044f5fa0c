//! Selects the changes of Jobs and pods that require a sync, and its delay.
//!
//! Input: changes. Output: keys. A change of a Job's spec is synced at once; changes of pods and of
//! statuses wait for the batch period, so that one sync answers many of them.
// k8s: pkg/controller/job/job_controller.go addPod, updatePod, deletePod, updateJob, deleteJob

use std::rc::Rc;
use std::time::Duration;

use jiff::SignedDuration;
use pintle_api_types::kind::JOBS;
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{Now, Wakes};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Job, Pod};
use pintle_controllers_core::meta::OwnerReference;
use pintle_controllers_core::tables::{Delta, Tables};

use super::pods::is_tracked;
use super::sync::managed_by_other;
use super::{JobController, JobKey};

/// The Job that controls a pod, if it is known.
// k8s: pkg/controller/job/job_controller.go resolveControllerRef
pub(super) fn job_of<'a>(pod: &Pod, tables: &'a Tables) -> Option<&'a Rc<KeptObject<Job>>> {
    job_named(pod, pod.metadata.controller()?, tables)
}

fn job_named<'a>(
    pod: &Pod,
    reference: &OwnerReference,
    tables: &'a Tables,
) -> Option<&'a Rc<KeptObject<Job>>> {
    if &*reference.kind != JOBS.kind {
        return None;
    }
    let key = pintle_api_types::key::ObjectKey::new(&pod.metadata.namespace, &reference.name);
    tables.jobs.get(&key).filter(|job| job.metadata.uid == reference.uid)
}

/// Wakes pods that kept their finalizer although nothing counts them, when the controller starts.
pub(super) fn wake_strays(tables: &Tables, wake: &mut Wakes<JobKey>) {
    for pod in tables.pods.iter().filter(|pod| is_tracked(pod)) {
        let key = pod.metadata.key();
        match job_of(pod, tables) {
            None => wake.now(JobKey::Stray(key)),
            Some(job) if job.finished().is_some() => wake.now(JobKey::Orphan(key)),
            Some(_) => {}
        }
    }
}

impl JobController {
    pub(super) fn handle_job(
        &mut self,
        delta: &Delta<KeptObject<Job>>,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<JobKey>,
    ) {
        let is_same =
            |old: &KeptObject<Job>, new: &KeptObject<Job>| old.metadata.uid == new.metadata.uid;
        match (&delta.old, &delta.new) {
            (Some(old), Some(new)) if is_same(old, new) => {
                self.handle_job_update(old, new, tables, now, wake);
            }
            (old, new) => {
                if let Some(old) = old {
                    self.backoffs.remove(&old.metadata.key());
                    wake_orphans_of(old, tables, wake);
                }
                if let Some(manager) = new.as_ref().and_then(|job| managed_by_other(job)) {
                    let labels = [("controller_name", manager)];
                    self.totals.add(MetricValue::new(
                        "jobs_by_external_controller_total",
                        &labels,
                        1.0,
                    ));
                }
                wake.now(JobKey::Job(delta.object().metadata.key()));
            }
        }
    }

    fn handle_job_update(
        &mut self,
        old: &KeptObject<Job>,
        new: &KeptObject<Job>,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<JobKey>,
    ) {
        let key = new.metadata.key();
        if new.finished().is_some() {
            self.backoffs.remove(&key);
            // Its pods lost their finalizers before it ended; this is for those adopted since.
            return wake_orphans_of(new, tables, wake);
        }
        if old.metadata.generation == new.metadata.generation {
            wake.after(JobKey::Job(key.clone()), self.settings.batch_period);
        } else {
            wake.now(JobKey::Job(key.clone()));
        }
        let limit = new.spec.active_deadline_seconds;
        if let (Some(start), Some(limit)) = (new.status.start_time, limit)
            && old.spec.active_deadline_seconds != Some(limit)
        {
            let passed = now.wall.duration_since(start);
            let left = SignedDuration::from_secs(limit).saturating_sub(passed);
            wake.after(JobKey::Job(key), Duration::try_from(left).unwrap_or_default());
        }
    }

    pub(super) fn handle_pod(
        &mut self,
        delta: &Delta<KeptObject<Pod>>,
        tables: &Tables,
        wake: &mut Wakes<JobKey>,
    ) {
        self.count_tracked_end(delta);
        let batch = self.settings.batch_period;
        let is_same =
            |old: &KeptObject<Pod>, new: &KeptObject<Pod>| old.metadata.uid == new.metadata.uid;
        match (&delta.old, &delta.new) {
            (Some(old), Some(new)) if is_same(old, new) && !new.metadata.is_deleting() => {
                handle_pod_update(old, new, tables, batch, wake);
            }
            (Some(old), Some(new)) if is_same(old, new) => {
                handle_pod_removal(new, tables, batch, wake);
            }
            (old, new) => {
                if let Some(old) = old {
                    handle_pod_removal(old, tables, batch, wake);
                }
                match new {
                    Some(new) if new.metadata.is_deleting() => {
                        handle_pod_removal(new, tables, batch, wake);
                    }
                    Some(new) => handle_pod_addition(new, tables, batch, wake),
                    None => {}
                }
            }
        }
    }

    // k8s: pkg/controller/job/tracking_utils.go recordFinishedPodWithTrackingFinalizer
    fn count_tracked_end(&mut self, delta: &Delta<KeptObject<Pod>>) {
        let is_tracked_end = |pod: &Option<Rc<KeptObject<Pod>>>| {
            pod.as_ref().is_some_and(|pod| pod.is_terminal() && is_tracked(pod))
        };
        let event = match (is_tracked_end(&delta.old), is_tracked_end(&delta.new)) {
            (false, true) => "add",
            (true, false) => "delete",
            _ => return,
        };
        let name = "terminated_pods_tracking_finalizer_total";
        self.totals.add(MetricValue::new(name, &[("event", event)], 1.0));
    }
}

/// Wakes the tracked pods of a finished or deleted Job.
// k8s: pkg/controller/job/job_controller.go enqueueLabelSelector
fn wake_orphans_of(job: &Job, tables: &Tables, wake: &mut Wakes<JobKey>) {
    let own = tables.pods.controlled_by(&job.metadata.uid);
    let orphans = tables.pods.orphans(&job.metadata.namespace);
    let selected = own
        .chain(orphans)
        .filter(|pod| is_tracked(pod) && job.spec.selector.matches(&pod.metadata.labels));
    selected.for_each(|pod| wake.now(JobKey::Orphan(pod.metadata.key())));
}

fn handle_pod_addition(pod: &Pod, tables: &Tables, batch: Duration, wake: &mut Wakes<JobKey>) {
    if pod.metadata.controller().is_none() {
        return handle_orphan(pod, true, tables, batch, wake);
    }
    if let Some(job) = job_of(pod, tables) {
        wake_job_of(pod, job, batch, wake);
    }
}

/// Wakes the Job of a pod; a finished Job counts no pods, its pods lose their finalizers. A pod
/// gets into a finished Job from a manager that does not know yet that it lost the lease.
fn wake_job_of(pod: &Pod, job: &Job, batch: Duration, wake: &mut Wakes<JobKey>) {
    if job.finished().is_none() {
        wake.after(JobKey::Job(job.metadata.key()), batch);
    } else if is_tracked(pod) {
        wake.now(JobKey::Orphan(pod.metadata.key()));
    }
}

fn handle_pod_update(
    old: &Pod,
    new: &Pod,
    tables: &Tables,
    batch: Duration,
    wake: &mut Wakes<JobKey>,
) {
    let (old_owner, new_owner) = (old.metadata.controller(), new.metadata.controller());
    let is_owner_changed = old_owner != new_owner;
    if let Some(owner) = old_owner.filter(|_| is_owner_changed)
        && let Some(job) = job_named(old, owner, tables)
    {
        wake.after(JobKey::Job(job.metadata.key()), batch);
    }
    if new_owner.is_some() {
        if let Some(job) = job_of(new, tables) {
            wake_job_of(new, job, batch, wake);
        }
        return;
    }
    let is_news = is_owner_changed || old.metadata.labels != new.metadata.labels;
    handle_orphan(new, is_news, tables, batch, wake);
}

/// A pod without a controller loses its finalizer; Jobs that select it may adopt it.
fn handle_orphan(
    pod: &Pod,
    is_news: bool,
    tables: &Tables,
    batch: Duration,
    wake: &mut Wakes<JobKey>,
) {
    if is_tracked(pod) {
        wake.now(JobKey::Orphan(pod.metadata.key()));
    }
    // k8s: staging/src/k8s.io/client-go/listers/batch/v1/job_expansion.go GetPodJobs
    if is_news && pod.metadata.labels.iter().len() > 0 {
        let jobs = tables.jobs.in_namespace(&pod.metadata.namespace);
        let selecting = jobs.filter(|job| job.spec.selector.matches(&pod.metadata.labels));
        selecting.for_each(|job| wake.after(JobKey::Job(job.metadata.key()), batch));
    }
}

/// Handles a pod that is deleted or terminating.
fn handle_pod_removal(pod: &Pod, tables: &Tables, batch: Duration, wake: &mut Wakes<JobKey>) {
    match job_of(pod, tables) {
        Some(job) => wake_job_of(pod, job, batch, wake),
        None if is_tracked(pod) => wake.now(JobKey::Orphan(pod.metadata.key())),
        None => {}
    }
}
