//! Creates the pods that are missing, or deletes those that are too many.
// k8s: pkg/controller/replicaset/replica_set.go manageReplicas

use std::rc::Rc;

use pintle_controllers_core::common::pods;
use pintle_controllers_core::common::ranking::rank_for_deletion;
use pintle_controllers_core::frame::{EventTarget, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Pod;

use super::{BURST_MAX, ReplicaSnapshot, Replicated};

/// Brings the number of active pods closer to the wanted one.
///
/// # Errors
/// With the first failure, after all requests that were sent at once are answered.
pub(super) fn manage<W: Replicated>(
    snapshot: &ReplicaSnapshot<W>,
    active: &[Rc<KeptObject<Pod>>],
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let wanted = usize::try_from(snapshot.set.spec().wanted()).unwrap_or_default();
    let there = active.len();
    if there < wanted {
        transcript.because(format!("{there} of {wanted} pods are there"));
        create(snapshot, (wanted - there).min(BURST_MAX), transcript)
    } else if there > wanted {
        transcript.because(format!("{there} pods are there, {wanted} are wanted"));
        delete(snapshot, active, (there - wanted).min(BURST_MAX), transcript)
    } else {
        Ok(())
    }
}

fn create<W: Replicated>(
    snapshot: &ReplicaSnapshot<W>,
    count: usize,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let meta = snapshot.set.metadata();
    if snapshot.set.spec().template.metadata.labels.iter().len() == 0 {
        return Err(pods::no_labels());
    }
    let answers = transcript.slow_start_equal(count, || {
        let pod = pods::pod_from_template(&snapshot.set.template(), W::KIND, meta);
        pods::create_request(&meta.namespace, pod)
    })?;
    let about = EventTarget::of(W::KIND, meta);
    let mut failure = None;
    for answer in answers {
        pods::record_created(&answer, &about, transcript);
        match answer {
            // Any creation there fails, and the end of the namespace is the end of the set.
            Err(error) if error.is_namespace_terminating() => {
                transcript.because("the namespace is being deleted: no pods are created");
            }
            Err(error) if failure.is_none() => failure = Some(error),
            _ => {}
        }
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

fn delete<W: Replicated>(
    snapshot: &ReplicaSnapshot<W>,
    active: &[Rc<KeptObject<Pod>>],
    count: usize,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let mut surplus = match count < active.len() {
        true => rank_for_deletion(active, &snapshot.related, transcript.now()),
        false => active.to_vec(),
    };
    surplus.truncate(count);
    let requests = surplus.iter().map(|pod| pods::delete(&pod.metadata.key())).collect();
    let answers = transcript.send_all(requests)?;
    let about = EventTarget::of(W::KIND, snapshot.set.metadata());
    let mut failure = None;
    for (pod, answer) in surplus.iter().zip(answers) {
        let deleted = pods::record_deleted(&pod.metadata.name, answer, &about, transcript);
        if let Err(error) = deleted {
            failure.get_or_insert(error);
        }
    }
    match failure {
        Some(error) => Err(TranscriptStop::failed(format!("unable to delete pods: {error}"))),
        None => Ok(()),
    }
}
