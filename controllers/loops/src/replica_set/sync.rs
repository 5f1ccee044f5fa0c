//! One sync of a set: claim pods, create or delete some, write the status.
// k8s: pkg/controller/replicaset/replica_set.go syncReplicaSet

use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::kind::PODS;
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Pod, ReplicaSpec, ReplicaStatus};

use super::{ReplicaSnapshot, Replicated, manage, status};

pub(super) fn sync<W: Replicated>(
    snapshot: &ReplicaSnapshot<W>,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<()>, TranscriptStop> {
    let set = &*snapshot.set;
    let active: Vec<_> = snapshot.pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    let claim = Claim { owner_kind: W::KIND, owner: set.metadata(), kind: PODS, finalizers: &[] };
    let is_selected = |pod: &KeptObject<Pod>| set.spec().selector.matches(&pod.metadata.labels);
    let active = claim.claim(&active, is_selected, transcript)?;
    let failure = if set.metadata().is_deleting() {
        transcript.because("the set is being deleted: its pods stay as they are");
        None
    } else {
        match manage::manage(snapshot, &active, transcript) {
            Err(TranscriptStop::Failed(error)) => Some(error),
            result => result.map(|()| None)?,
        }
    };
    let terminating = W::COUNTS_TERMINATING.then(|| terminating(snapshot));
    let counted = status::CountedPods { active: &active, terminating, failure: failure.as_ref() };
    let new = status::calculate(set, &counted, transcript.now());
    status::update(&snapshot.set, &new, transcript)?;
    if let Some(error) = failure {
        return Err(TranscriptStop::Failed(error));
    }
    let again = next_availability_check(set.spec(), &new, &active, transcript.now());
    if let Some(wait) = again {
        transcript.because(format!("a pod is available in {} s", wait.as_secs_f32().ceil()));
    }
    Ok(SyncOutcome::new(again, Vec::new()))
}

/// How many of the set's pods are being deleted.
// k8s: pkg/controller/controller_utils.go FilterClaimedPods
fn terminating<W: Replicated>(snapshot: &ReplicaSnapshot<W>) -> usize {
    let set = &snapshot.set;
    let pods = snapshot.pods.iter().filter(|pod| {
        pod.is_terminating()
            && pod.metadata.is_controlled_by(&set.metadata().uid)
            && set.spec().selector.matches(&pod.metadata.labels)
    });
    pods.count()
}

/// When the next ready pod has been ready for long enough.
// k8s: pkg/controller/controller_utils.go FindMinNextPodAvailabilityCheck
fn next_availability_check(
    spec: &ReplicaSpec,
    status: &ReplicaStatus,
    active: &[Rc<KeptObject<Pod>>],
    now: Timestamp,
) -> Option<Duration> {
    let min_ready = spec.min_ready_seconds;
    if min_ready <= 0 || status.ready_replicas == status.available_replicas {
        return None;
    }
    let min_ready = SignedDuration::from_secs(min_ready.into());
    let waits = active.iter().filter_map(|pod| {
        let ready = pod.condition("Ready").filter(|_| pod.is_ready())?;
        let at = ready.last_transition_time?.checked_add(min_ready).ok()?;
        Duration::try_from(at.duration_since(now)).ok().filter(|wait| !wait.is_zero())
    });
    let whole = Duration::try_from(min_ready).unwrap_or_default();
    Some(waits.min().unwrap_or(whole))
}
