//! The book: the text of each pod's records that have to survive a restart of the agent.
//!
//! Pure, part of `Pods`. A checkpoint has all pods of the node in one file. The text of each is made
//! anew only when the pod changed, and what is handed out shares the rest with the book. Bounds: two
//! texts for each pod.

use std::collections::BTreeSet;

use crate::ledger::Draft;
use crate::resize::PodResources;
use crate::worker::pods::Pods;
use pintle_api_types::ids::PodUid;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// What pods were given.
    allocated: Draft,
    /// What they have in force.
    in_force: Draft,
    /// Pods whose text may be out of date.
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

    /// Both checkpoints: what pods were given, and what they have in force.
    pub fn checkpoints(&mut self) -> (Draft, Draft) {
        self.notes.unsaved = false;
        for uid in std::mem::take(&mut self.book.stale) {
            #[cfg(test)]
            super::visits::count();
            let (allocated, in_force) = self.recorded(&uid);
            self.book.allocated.put(&uid, allocated.as_ref());
            self.book.in_force.put(&uid, in_force.as_ref());
        }
        (self.book.allocated.clone(), self.book.in_force.clone())
    }

    /// What is to be kept of a pod: what its worker has, or what an earlier run knew.
    fn recorded(&self, uid: &PodUid) -> (Option<PodResources>, Option<PodResources>) {
        let worker = self.workers.get(uid).filter(|worker| worker.requests.is_some());
        let given = worker.and_then(|worker| worker.pod.as_deref()).map(PodResources::of);
        let in_force = worker.map(|worker| worker.in_force.clone());
        let record = self.records.get(uid).cloned();
        let (known, was_in_force) =
            record.map(|record| (record.allocated, record.in_force)).unzip();
        let in_force = was_in_force.or(in_force);
        (known.flatten().or(given), in_force.filter(|it| *it != PodResources::default()))
    }

    /// The texts are those that would be made of all pods now.
    #[cfg(test)]
    pub(super) fn assert_recorded(&mut self) {
        let before = self.notes.unsaved;
        let (allocated, in_force) = self.checkpoints();
        self.notes.unsaved = before;
        let uids: BTreeSet<_> = self.workers.keys().chain(self.records.keys()).cloned().collect();
        let (mut all, mut forces) = (Draft::default(), Draft::default());
        for uid in &uids {
            let (given, in_force) = self.recorded(uid);
            all.put(uid, given.as_ref());
            forces.put(uid, in_force.as_ref());
        }
        assert_eq!((allocated.text(), in_force.text()), (all.text(), forces.text()));
    }
}
