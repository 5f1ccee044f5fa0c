//! Which pods of a StatefulSet are deleted so that they come back with the update revision.
//!
//! Input: the pods of the set by ordinal, none of which blocks. Output: deletions, from the highest
//! ordinal down to the partition: one pod at a time, or as many as may be unavailable.
// k8s: pkg/controller/statefulset/stateful_set_control.go

use pintle_controllers_core::common::int_or_percent::{NoIntOrPercent, Rounding, scaled};
use pintle_controllers_core::common::lockstep::attempt;
use pintle_controllers_core::frame::{SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::kinds::{Pod, StatefulSet, StatefulSetStatus};

use super::identity::revision_of;
use super::status::is_unavailable;
use super::update::{Replica, Update};

/// Deletes pods of old revisions; returns why something failed.
///
/// # Errors
/// [`TranscriptStop::Pending`] only.
pub(super) fn run(
    update: &Update<'_>,
    replicas: &[Replica],
    status: &mut StatefulSetStatus,
    transcript: &mut Transcript,
) -> Result<Option<SyncError>, TranscriptStop> {
    let strategy = &update.control.set.spec.update_strategy;
    if &*strategy.kind == "OnDelete" {
        return Ok(None);
    }
    let partition = strategy.rolling_update.as_ref().and_then(|limits| limits.partition);
    let first = usize::try_from(partition.unwrap_or(0)).unwrap_or(0).min(replicas.len());
    let rolled = match update.has_max_unavailable {
        false => one_by_one(update, &replicas[first..], status, transcript),
        true => some_at_once(update, replicas, first, status, transcript),
    };
    attempt(rolled).map(Result::err)
}

fn one_by_one(
    update: &Update<'_>,
    replicas: &[Replica],
    status: &mut StatefulSetStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    for replica in replicas.iter().rev() {
        if let Some(pod) = outdated(update, replica) {
            return delete(update, pod, status, transcript);
        }
        if !is_replica_available(update, replica) {
            if let Some(pod) = replica.created() {
                let name = &pod.metadata.name;
                transcript.because(format!("the rollout waits for pod {name} to be available"));
            }
            return Ok(());
        }
    }
    Ok(())
}

// k8s: stateful_set_control.go updateStatefulSetAfterInvariantEstablished
fn some_at_once(
    update: &Update<'_>,
    replicas: &[Replica],
    first: usize,
    status: &mut StatefulSetStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let limit = max_unavailable(update.control.set)
        .map_err(|error| TranscriptStop::failed(error.to_string()))?;
    let is_bad = |replica: &&Replica| !is_replica_available(update, replica);
    let unavailable = replicas.iter().filter(is_bad).count();
    let Some(allowed) = limit.checked_sub(unavailable).filter(|allowed| *allowed > 0) else {
        transcript.because(format!("{unavailable} of {limit} pods that may be unavailable are"));
        return Ok(());
    };
    let old = replicas[first..].iter().rev().filter_map(|replica| outdated(update, replica));
    for pod in old.take(allowed) {
        delete(update, pod, status, transcript)?;
    }
    Ok(())
}

/// The pod, if it is of another revision than the update revision and not being deleted.
fn outdated<'a>(update: &Update<'_>, replica: &'a Replica) -> Option<&'a Pod> {
    let pod = replica.created()?;
    let is_old = revision_of(pod) != update.templates.update.revision;
    (is_old && !pod.metadata.is_deleting()).then_some(pod)
}

fn is_replica_available(update: &Update<'_>, replica: &Replica) -> bool {
    let pod = replica.created();
    pod.is_some_and(|pod| !is_unavailable(update.control.set, pod, update.now))
}

fn delete(
    update: &Update<'_>,
    pod: &Pod,
    status: &mut StatefulSetStatus,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let (name, revision) = (&pod.metadata.name, &update.templates.update.revision);
    transcript.because(format!("pod {name} is not of revision {revision}"));
    update.control.delete(pod, transcript)?;
    status.current_replicas -= 1;
    Ok(())
}

/// How many pods may be unavailable during a rollout: at least one.
///
/// # Errors
/// When the set states neither a number nor a percentage.
// k8s: stateful_set_utils.go getStatefulSetMaxUnavailable
pub(super) fn max_unavailable(set: &StatefulSet) -> Result<usize, NoIntOrPercent> {
    let limits = set.spec.update_strategy.rolling_update.as_ref();
    let Some(limit) = limits.map(|limits| &limits.max_unavailable).filter(|it| !it.is_null())
    else {
        return Ok(1);
    };
    let limit = scaled(limit, set.spec.replicas_wanted(), Rounding::Down)?;
    Ok(usize::try_from(limit).unwrap_or(1).max(1))
}
