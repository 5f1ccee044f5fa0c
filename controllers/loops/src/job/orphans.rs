//! Takes the tracking finalizer off pods that no Job counts any more, since the finalizer would
//! keep them for ever.
//!
//! Input: a pod without a Job, or of a Job that has ended. Output: a patch of the pod. If the Job
//! is merely absent from the tables when the controller starts, it is read from the API server
//! first.
// k8s: pkg/controller/job/job_controller.go syncOrphanPod, handleSingleOrphanPod

use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::JOBS;
use pintle_api_types::request::{Request, Target};
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Job, Pod};
use pintle_controllers_core::meta::OwnerReference;

use super::manage::remove_finalizer;
use super::pods::is_tracked;
use super::status::WorkingStatus;
use super::sync::managed_by_other;

/// The state that the sync of an orphan reads.
#[derive(Debug)]
pub(super) struct OrphanState {
    pub(super) pod: Rc<KeptObject<Pod>>,
    /// The Job that controls it, if it is known.
    pub(super) owner: Option<Rc<KeptObject<Job>>>,
    /// Its Job is not known, but may be there.
    pub(super) is_stray: bool,
}

/// Takes the finalizer off a pod.
///
/// # Errors
/// When requests have to be answered first, or one of them failed.
pub(super) fn sync_orphan(
    state: &OrphanState,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<MetricValue>, TranscriptStop> {
    let pod = &state.pod;
    if !is_tracked(pod) {
        return Ok(SyncOutcome::done());
    }
    if let Some(reference) = pod.metadata.controller() {
        if !is_job(reference) {
            transcript.because("the pod is controlled by something else than a Job");
            return Ok(SyncOutcome::done());
        }
        if let Some(job) = &state.owner {
            if managed_by_other(job).is_some() || job.finished().is_none() {
                transcript.because("the pod's Job counts it");
                return Ok(SyncOutcome::done());
            }
        } else if state.is_stray && is_counted_by_live_job(pod, reference, transcript)? {
            transcript.because("the pod's Job is there and counts it");
            return Ok(SyncOutcome::done());
        }
    }
    transcript.because("no Job counts the pod any more");
    match transcript.send(remove_finalizer(pod))? {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(SyncOutcome::done()),
    }
}

fn is_job(reference: &OwnerReference) -> bool {
    (&*reference.api_version, &*reference.kind) == (&*JOBS.api_version(), JOBS.kind)
}

/// The API server has the pod's Job, and it has not ended.
fn is_counted_by_live_job(
    pod: &Pod,
    reference: &OwnerReference,
    transcript: &mut Transcript,
) -> Result<bool, TranscriptStop> {
    let key = ObjectKey::new(&pod.metadata.namespace, &reference.name);
    let target = Target::object(JOBS, key);
    match transcript.send(Request::Read { target, only_metadata: false })? {
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
        Ok(job) => {
            let status = WorkingStatus::read(&job)?;
            let has_ended =
                ["Complete", "Failed"].iter().any(|kind| status.true_condition(kind).is_some());
            Ok(job["metadata"]["uid"] == reference.uid.as_str() && !has_ended)
        }
    }
}
