//! Owners that the API server said are absent.
//!
//! Input: answers of live reads, and deletions of objects with dependents. Output: whether an owner
//! is known to be absent, so that a thousand dependents cost one read. A UID never comes back.
//! Bounds: `ENTRIES_MAX`; the oldest entry is dropped first.
// k8s: pkg/controller/garbagecollector/uid_cache.go ReferenceCache

use std::collections::{HashSet, VecDeque};

use super::identity::ObjectIdentity;

/// Entries, at most.
// k8s: pkg/controller/garbagecollector/graph_builder.go NewDependencyGraphBuilder
const ENTRIES_MAX: usize = 500;

/// The newest owners that are absent.
#[derive(Clone, Debug, Default)]
pub(super) struct AbsentOwners {
    known: HashSet<ObjectIdentity>,
    order: VecDeque<ObjectIdentity>,
}

impl AbsentOwners {
    /// Records an absent owner.
    pub(super) fn add(&mut self, owner: ObjectIdentity) {
        if !self.known.insert(owner.clone()) {
            return;
        }
        self.order.push_back(owner);
        if self.order.len() > ENTRIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// None is known.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The owner is known to be absent.
    pub(super) fn has(&self, owner: &ObjectIdentity) -> bool {
        self.known.contains(owner)
    }
}
