//! StatefulSet: gives each pod an ordinal, a name and claims of its own, and keeps to their order.
//!
//! Reads StatefulSets, pods, claims and ControllerRevisions. Writes: pods, claims, revisions and
//! the status of the set. One sync: adopts revisions and pods, finds the revisions, acts on pods,
//! writes the status, deletes old revisions.
// k8s: pkg/controller/statefulset/stateful_set.go

mod claims;
mod identity;
mod pods;
mod revisions;
mod rollout;
mod status;
#[cfg(test)]
mod tests;
mod update;

use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    CONTROLLER_REVISIONS, Kind, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS,
};
use pintle_controllers_core::common::availability::next_availability;
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::common::history::{self, Revision};
use pintle_controllers_core::common::lockstep::{aggregate, attempt};
use pintle_controllers_core::frame::{
    Controller, EventTarget, Now, SyncError, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Pod, StatefulSet, StatefulSetStatus};
use pintle_controllers_core::meta::{Meta, OwnerReference};
use pintle_controllers_core::tables::{Change, Delta, Tables};
use serde_json::Value;

use pods::{Claims, PodControl};
use revisions::LiveRevisions;
use update::Update;

/// The controller.
#[derive(Debug)]
pub struct StatefulSets {
    /// `--concurrent-statefulset-syncs`.
    pub workers: usize,
    /// The gate `MaxUnavailableStatefulSet`.
    pub has_max_unavailable: bool,
}

/// The state that a sync reads.
#[derive(Debug)]
pub struct StatefulSetSnapshot {
    set: Rc<KeptObject<StatefulSet>>,
    /// Pods that it controls, and orphans of its namespace.
    pods: Vec<Rc<KeptObject<Pod>>>,
    /// Revisions that it controls, and orphans of its namespace.
    revisions: Vec<Revision>,
    /// Claims of the ordinals that it has or should have.
    claims: Claims,
    has_max_unavailable: bool,
}

impl Controller for StatefulSets {
    type Key = ObjectKey;
    type Snapshot = StatefulSetSnapshot;
    type Note = ();

    const NAME: &'static str = "statefulset-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![STATEFUL_SETS, PODS, PERSISTENT_VOLUME_CLAIMS, CONTROLLER_REVISIONS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        _: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        match change {
            Change::StatefulSet(delta) => wake.now(delta.object().metadata.key()),
            Change::Pod(delta) => handle_pod(delta, tables, wake),
            Change::ControllerRevision(delta) if delta.new.is_none() => {
                let metadata = &delta.object().metadata;
                // By name: a set that was created again may use the revision of the former one,
                // which the garbage collector deletes.
                let owner = metadata.controller().filter(|owner| &*owner.kind == "StatefulSet");
                if let Some(owner) = owner {
                    wake.now(ObjectKey::new(&metadata.namespace, &owner.name));
                }
            }
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<Self::Snapshot> {
        let set = tables.stateful_sets.get(key)?;
        let (uid, namespace) = (&set.metadata.uid, &*set.metadata.namespace);
        let pods = tables.pods.controlled_by(uid).chain(tables.pods.orphans(namespace));
        let pods: Vec<_> = pods.cloned().collect();
        let table = &tables.controller_revisions;
        let revisions = table.controlled_by(uid).chain(table.orphans(namespace));
        let others = pods.iter().filter(|pod| identity::is_member(set, pod));
        let others = others.filter_map(|pod| identity::ordinal(&pod.metadata.name));
        let mut claims = Claims::new();
        for ordinal in identity::ordinals(set).chain(others) {
            for name in claims::claim_names(set, ordinal) {
                let key = ObjectKey::new(namespace, &name);
                if let Some(claim) = tables.persistent_volume_claims.get(&key) {
                    claims.insert(name, Rc::clone(claim));
                }
            }
        }
        Some(StatefulSetSnapshot {
            set: Rc::clone(set),
            pods,
            revisions: revisions.cloned().collect(),
            claims,
            has_max_unavailable: self.has_max_unavailable,
        })
    }

    // k8s: stateful_set.go sync
    fn sync(
        seen: &StatefulSetSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let set = &*seen.set;
        let claim =
            Claim { owner_kind: STATEFUL_SETS, owner: &set.metadata, kind: PODS, finalizers: &[] };
        let mut revisions = revisions::history_of(set).select(&seen.revisions, &set.spec.selector);
        history::sort(&mut revisions);
        revisions::adopt(set, &revisions, |transcript| adoptable(&claim, transcript), transcript)?;
        let is_own = |pod: &KeptObject<Pod>| {
            set.spec.selector.matches(&pod.metadata.labels) && identity::is_member(set, pod)
        };
        let pods = claim.claim(&seen.pods, is_own, transcript)?;
        let status = update_set(seen, &pods, &revisions, transcript)?;
        Ok(SyncOutcome::new(next_sync(set, &pods, &status, transcript), Vec::new()))
    }
}

/// The set may adopt revisions: it still exists and is not being deleted.
fn adoptable(claim: &Claim<'_>, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
    attempt(claim.check_owner(transcript))?.map_err(|error| {
        let message = format!("can't adopt ControllerRevisions: {error}");
        TranscriptStop::Failed(SyncError { message, ..error })
    })
}

// k8s: stateful_set_control.go UpdateStatefulSet
fn update_set(
    seen: &StatefulSetSnapshot,
    pods: &[Rc<KeptObject<Pod>>],
    revisions: &[Revision],
    transcript: &mut Transcript,
) -> Result<StatefulSetStatus, TranscriptStop> {
    let set = &*seen.set;
    let whole = set.value();
    let live = attempt(LiveRevisions::find(set, &whole, revisions, transcript))?;
    let (live, updated) = match live {
        Ok(live) => {
            let updated = attempt(update_pods(seen, &whole, &live, pods, transcript))?;
            (Some(live), updated)
        }
        Err(error) => (None, Err(error)),
    };
    let truncated = attempt(revisions::truncate(set, pods, revisions, live.as_ref(), transcript))?;
    match (updated, truncated) {
        (Ok(status), Ok(())) => Ok(status),
        (updated, truncated) => {
            let errors = updated.err().into_iter().chain(truncated.err()).collect();
            Err(TranscriptStop::Failed(aggregate(errors).expect("one of both has failed")))
        }
    }
}

/// Acts on the pods and writes the status, also after a failure.
// k8s: stateful_set_control.go performUpdate
fn update_pods(
    seen: &StatefulSetSnapshot,
    whole: &Value,
    live: &LiveRevisions,
    pods: &[Rc<KeptObject<Pod>>],
    transcript: &mut Transcript,
) -> Result<StatefulSetStatus, TranscriptStop> {
    let set = &*seen.set;
    let about = EventTarget::of(STATEFUL_SETS, &set.metadata);
    let update = Update {
        control: PodControl { set, whole, claims: &seen.claims, about: &about },
        templates: live.templates(whole)?,
        has_max_unavailable: seen.has_max_unavailable,
        now: transcript.now(),
    };
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation,
        current_revision: live.current.metadata.name.as_str().into(),
        update_revision: live.update.metadata.name.as_str().into(),
        collision_count: Some(live.collision_count),
        ..StatefulSetStatus::default()
    };
    let failure = update.run(pods, &mut status, transcript)?;
    let written = attempt(status::write(set, whole, &mut status, transcript))?;
    match failure.or(written.err()) {
        Some(error) => Err(TranscriptStop::Failed(error)),
        None => Ok(status),
    }
}

/// When pods that are ready become available.
// k8s: stateful_set.go syncStatefulSet
fn next_sync(
    set: &StatefulSet,
    pods: &[Rc<KeptObject<Pod>>],
    status: &StatefulSetStatus,
    transcript: &Transcript,
) -> Option<Duration> {
    let seconds = u64::try_from(set.spec.min_ready_seconds).ok().filter(|seconds| *seconds > 0)?;
    if status.ready_replicas == status.available_replicas {
        return None;
    }
    let pods = pods.iter().map(|pod| &***pod);
    let next = next_availability(pods, set.spec.min_ready_seconds, transcript.now());
    Some(next.unwrap_or(Duration::from_secs(seconds)))
}

/// The set that a reference names.
// k8s: stateful_set.go resolveControllerRef
fn set_of<'a>(
    namespace: &str,
    owner: &OwnerReference,
    tables: &'a Tables,
) -> Option<&'a Rc<KeptObject<StatefulSet>>> {
    let is_set = &*owner.kind == STATEFUL_SETS.kind;
    is_set.then(|| tables.stateful_sets.get_uid(namespace, &owner.name, &owner.uid))?
}

/// Wakes the sets that a change of a pod concerns.
// k8s: stateful_set.go addPod, updatePod, deletePod
fn handle_pod(delta: &Delta<KeptObject<Pod>>, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    let Some(pod) = &delta.new else {
        return wake_owner(&delta.object().metadata, tables, wake);
    };
    let old = delta.old.as_ref().map(|old| &old.metadata);
    let owner = pod.metadata.controller();
    let is_moved = old.is_some_and(|old| old.controller() != owner);
    if let Some(old) = old.filter(|_| is_moved) {
        wake_owner(old, tables, wake);
    }
    let Some(owner) = owner else {
        let is_relabeled = old.is_none_or(|old| old.labels != pod.metadata.labels);
        let is_new_and_deleting = old.is_none() && pod.metadata.is_deleting();
        if (is_relabeled || is_moved) && !is_new_and_deleting {
            wake_selecting(pod, tables, wake);
        }
        return;
    };
    let Some(set) = set_of(&pod.metadata.namespace, owner, tables) else { return };
    wake.now(set.metadata.key());
    let became_ready = delta.old.as_ref().is_some_and(|old| !old.is_ready()) && pod.is_ready();
    if let Ok(seconds @ 1..) = u64::try_from(set.spec.min_ready_seconds)
        && became_ready
    {
        wake.after(set.metadata.key(), Duration::from_secs(seconds));
    }
}

fn wake_owner(meta: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    let set = meta.controller().and_then(|owner| set_of(&meta.namespace, owner, tables));
    if let Some(set) = set {
        wake.now(set.metadata.key());
    }
}

/// Wakes the sets that may adopt an orphan.
// k8s: stateful_set.go getStatefulSetsForPod
fn wake_selecting(pod: &Pod, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if pod.metadata.labels.iter().len() == 0 {
        return;
    }
    for set in tables.stateful_sets.in_namespace(&pod.metadata.namespace) {
        let selector = &set.spec.selector;
        if !selector.is_everything() && selector.matches(&pod.metadata.labels) {
            wake.now(set.metadata.key());
        }
    }
}
