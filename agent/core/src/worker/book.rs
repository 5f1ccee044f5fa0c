//! The book: the text of each pod's records that have to survive a restart of the agent.
//!
//! Pure, part of `Pods`. A checkpoint has all pods of the node in one file. The text of each is
//! rebuilt only when the pod changed, and a copy that is handed out shares the rest with the book.
//! Bounds: two texts for each pod.

use std::collections::BTreeSet;

use crate::ledger::{Draft, LedgerEntry};
use crate::resize::PodResources;
use crate::worker::pods::Pods;
use crate::worker::step::{Worker, WorkerStage};
use pintle_api_types::ids::PodUid;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The allocated resources of pods.
    allocated: Draft,
    /// Their resources in force.
    actuated: Draft,
    /// Pods with a possibly outdated text.
    stale: BTreeSet<PodUid>,
}

impl Book {
    /// A pod's records may have changed.
    pub(super) fn changed(&mut self, uid: &PodUid) {
        if !self.stale.contains(uid) {
            self.stale.insert(uid.clone());
        }
    }
}

impl Pods {
    /// True when records changed since the last `checkpoints`.
    pub fn is_unsaved(&self) -> bool {
        self.notes.unsaved
    }

    /// Both checkpoints: allocated resources of pods, and those in force.
    pub fn checkpoints(&mut self) -> (Draft, Draft) {
        self.notes.unsaved = false;
        for uid in std::mem::take(&mut self.book.stale) {
            #[cfg(test)]
            super::visits::count();
            let (allocated, actuated) = self.recorded(&uid);
            self.book.allocated.put(&uid, allocated.as_ref());
            self.book.actuated.put(&uid, actuated.as_ref());
        }
        (self.book.allocated.clone(), self.book.actuated.clone())
    }

    /// The entries to keep for a pod: its worker's, or those of an earlier run.
    fn recorded(&self, uid: &PodUid) -> (Option<LedgerEntry>, Option<LedgerEntry>) {
        let worker = self.workers.get(uid).filter(|worker| worker.resizing.requests.is_some());
        // A pod that waits for its victims has no allocation yet: the next run admits it again, and
        // ends them again.
        // k8s: pkg/kubelet/allocation/allocation_manager.go AddPod (after canAdmitPod has preempted)
        let waits = |worker: &Worker| {
            worker.stage() == WorkerStage::Waiting && self.line.blocked(uid).is_some()
        };
        let begun = worker.filter(|worker| !waits(worker));
        let given = begun.and_then(|worker| worker.pod.as_deref()).map(PodResources::of);
        let actuated = worker.map(|worker| worker.resizing.actuated.clone());
        let record = self.resizes.records.get(uid).cloned();
        let ended = match &record {
            Some(record) => record.ended.clone(),
            None => worker.and_then(|worker| worker.kept_verdict()).cloned(),
        };
        let (known, was_actuated) =
            record.map(|record| (record.allocated, record.actuated)).unzip();
        let actuated = was_actuated.or(actuated).filter(|it| *it != PodResources::default());
        let allocated = known.flatten().or(given);
        let allocated = allocated.map(|resources| LedgerEntry { resources, ended });
        (allocated, actuated.map(LedgerEntry::from))
    }

    /// The texts are equal to those built of all pods now.
    #[cfg(test)]
    pub(super) fn assert_recorded(&mut self) {
        let before = self.notes.unsaved;
        let (allocated, actuated) = self.checkpoints();
        self.notes.unsaved = before;
        let uids: BTreeSet<_> =
            self.workers.keys().chain(self.resizes.records.keys()).cloned().collect();
        let (mut all, mut forces) = (Draft::default(), Draft::default());
        for uid in &uids {
            let (given, actuated) = self.recorded(uid);
            all.put(uid, given.as_ref());
            forces.put(uid, actuated.as_ref());
        }
        assert_eq!((allocated.text(), actuated.text()), (all.text(), forces.text()));
    }
}
