//! DaemonSet: keeps a pod on each node that its template fits.
//!
//! Reads DaemonSets, pods, nodes and ControllerRevisions. Writes: pods, revisions and the status of
//! the set. One sync: finds the revision of the template, adopts pods, creates and deletes pods per
//! node, continues a rollout if nothing else was done, deletes old revisions, writes the status.
// k8s: pkg/controller/daemon/daemon_controller.go

mod backoff;
mod nodes;
mod revisions;
mod rollout;
mod status;
mod template;
#[cfg(test)]
mod tests;
mod update;
mod wakes;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CONTROLLER_REVISIONS, DAEMON_SETS, Kind, NODES, PODS};
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::common::history::Revision;
use pintle_controllers_core::common::lockstep::attempt;
use pintle_controllers_core::frame::{
    Controller, EventTarget, Now, ObjectEvent, SyncError, SyncOutcome, Transcript, TranscriptStop,
    Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{DaemonSet, Node, Pod};
use pintle_controllers_core::meta::Uid;
use pintle_controllers_core::tables::{Change, Tables};

use backoff::FailedPods;
use revisions::Historian;
use update::DaemonUpdate;

/// The controller.
#[derive(Debug, Default)]
pub struct DaemonSets {
    /// `--concurrent-daemonset-syncs`.
    pub workers: usize,
    /// Waits after failed pods.
    failed: BTreeMap<FailedKey, FailedPods>,
}

/// A generation of a set: a change of its spec begins with short waits again.
// k8s: daemon_controller.go failedPodsBackoffKey
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailedKey {
    uid: Uid,
    observed_generation: i64,
}

impl FailedKey {
    fn of(set: &DaemonSet) -> Self {
        let observed_generation = set.status.observed_generation;
        Self { uid: set.metadata.uid.clone(), observed_generation }
    }
}

/// The waits of a generation of a set after a sync.
#[derive(Debug)]
pub struct FailedPodsNote {
    key: FailedKey,
    failed: FailedPods,
}

/// The state that a sync reads.
#[derive(Debug)]
pub struct DaemonSetSnapshot {
    set: Rc<KeptObject<DaemonSet>>,
    /// All nodes, by name.
    nodes: Vec<Rc<KeptObject<Node>>>,
    /// Pods that it controls, and orphans of its namespace.
    pods: Vec<Rc<KeptObject<Pod>>>,
    /// Revisions that it controls, and orphans of its namespace.
    revisions: Vec<Revision>,
    failed: FailedPods,
}

impl DaemonSets {
    /// A controller that syncs so many sets at once.
    pub fn new(workers: usize) -> Self {
        Self { workers, failed: BTreeMap::new() }
    }
}

impl Controller for DaemonSets {
    type Key = ObjectKey;
    type Snapshot = DaemonSetSnapshot;
    type Note = FailedPodsNote;

    const NAME: &'static str = "daemonset-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS]
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
            Change::DaemonSet(delta) => wake.now(delta.object().metadata.key()),
            Change::Pod(delta) => wakes::handle_pod(delta, tables, wake),
            Change::Node(delta) => wakes::handle_node(delta, tables, wake),
            Change::ControllerRevision(delta) => wakes::handle_revision(delta, tables, wake),
            _ => {}
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<Self::Snapshot> {
        let set = tables.daemon_sets.get(key)?;
        let (uid, namespace) = (&set.metadata.uid, &*set.metadata.namespace);
        let pods = tables.pods.controlled_by(uid).chain(tables.pods.orphans(namespace));
        let table = &tables.controller_revisions;
        let revisions = table.controlled_by(uid).chain(table.orphans(namespace));
        Some(DaemonSetSnapshot {
            set: Rc::clone(set),
            nodes: tables.nodes.iter().cloned().collect(),
            pods: pods.cloned().collect(),
            revisions: revisions.cloned().collect(),
            failed: self.failed.get(&FailedKey::of(set)).cloned().unwrap_or_default(),
        })
    }

    // k8s: daemon_controller.go syncDaemonSet
    fn sync(
        seen: &DaemonSetSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<FailedPodsNote>, TranscriptStop> {
        let set = &*seen.set;
        let about = EventTarget::of(DAEMON_SETS, &set.metadata);
        if set.spec.selector.is_everything() {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            transcript.event(ObjectEvent::warning(about, "SelectingAll", message.to_owned()));
            return Ok(SyncOutcome::done());
        }
        if set.metadata.is_deleting() {
            transcript.because("the set is being deleted");
            return Ok(SyncOutcome::done());
        }
        let whole = set.value();
        let historian = Historian { set, whole: &whole };
        let claim_pods = |transcript: &mut Transcript| claim_pods(seen, transcript);
        let history = attempt(historian.construct(&seen.revisions, claim_pods, transcript))?;
        let history = history.map_err(within("failed to construct revisions of DaemonSet: "))?;
        let mapping = format!(
            "couldn't get node to daemon pod mapping for daemon set \"{}\": ",
            set.metadata.name
        );
        let pods = attempt(claim_pods(transcript))?.map_err(within(&mapping))?;
        let mut update = DaemonUpdate::new(seen, &whole, history.hash(), &about, &pods);
        let updated = attempt(update.run(transcript))?;
        let updated = match updated {
            Ok(()) => {
                let cleaned = attempt(historian.clean_up(history.old.clone(), &pods, transcript))?;
                cleaned.map_err(|error| SyncError {
                    message: format!("failed to clean up revisions of DaemonSet: {error}"),
                    ..error
                })
            }
            Err(error) => Err(error),
        };
        let written = attempt(update.write_status(transcript))?;
        let note = FailedPodsNote { key: FailedKey::of(set), failed: update.failed };
        let notes = (note.failed != seen.failed).then_some(note).into_iter().collect();
        let (again, failed) = match updated.and(written) {
            Ok(()) => (update.again, None),
            Err(error) => (None, Some(error)),
        };
        // Deletions of failed pods count also if something else was refused.
        Ok(SyncOutcome { again, notes, failed })
    }

    fn remember(&mut self, _: &ObjectKey, note: FailedPodsNote, now: Now) {
        self.failed.insert(note.key, note.failed);
        self.failed.retain(|_, failed| {
            failed.forget_expired(now.wall);
            !failed.is_empty()
        });
    }
}

fn within(context: &str) -> impl Fn(SyncError) -> TranscriptStop {
    move |error| TranscriptStop::Failed(SyncError { message: format!("{context}{error}"), ..error })
}

// k8s: daemon_controller.go getDaemonPods
fn claim_pods(
    seen: &DaemonSetSnapshot,
    transcript: &mut Transcript,
) -> Result<Vec<Rc<KeptObject<Pod>>>, TranscriptStop> {
    let set = &*seen.set;
    let owner = &set.metadata;
    let claim = Claim { owner_kind: DAEMON_SETS, owner, kind: PODS, finalizers: &[] };
    claim.claim(&seen.pods, |pod| set.spec.selector.matches(&pod.metadata.labels), transcript)
}

/// The earlier of two times to sync again.
fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}
