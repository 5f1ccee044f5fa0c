//! The changes that wait for one subscriber: pure.
//!
//! Changes of an object that come while an earlier one waits become one, so a slow subscriber costs
//! a place per object and delays no other. Its changes are consistent: an object is added, then
//! updated from the state that the subscriber received last, then deleted. An object that came and
//! went in the meantime is delivered as both, for subscribers that count, while no more than
//! `PASSED_MAX` such objects wait. Order: by the first change of an object that waits. Bounds: a
//! place for each object that exists or was delivered, and `PASSED_MAX`.
// k8s: staging/src/k8s.io/client-go/tools/cache/shared_informer.go processorListener, delta_fifo.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::Object;

/// Limit of objects that came and went and still wait for delivery.
pub(super) const PASSED_MAX: usize = 10_000;

/// A change of an object, for a subscriber.
#[derive(Debug, PartialEq)]
pub enum ObjectChange<T> {
    /// The object exists; `initial` if it did before the subscription, or in the first list.
    Added {
        /// The object.
        object: Arc<T>,
        /// The object is not new at the API server.
        initial: bool,
    },
    /// The object changed, or is delivered again (`resync`): then both are the same.
    Updated {
        /// The state that the subscriber received last.
        old: Arc<T>,
        /// The current state.
        new: Arc<T>,
    },
    /// The object is gone.
    Deleted {
        /// Its last state, as far as it is known.
        object: Arc<T>,
        /// `object` is the state at the deletion; false when the deletion itself was missed.
        is_final: bool,
    },
}

impl<T> Clone for ObjectChange<T> {
    fn clone(&self) -> Self {
        let to = Arc::clone;
        match self {
            Self::Added { object, initial } => {
                Self::Added { object: to(object), initial: *initial }
            }
            Self::Updated { old, new } => Self::Updated { old: to(old), new: to(new) },
            Self::Deleted { object, is_final } => {
                Self::Deleted { object: to(object), is_final: *is_final }
            }
        }
    }
}

/// A change of the store.
#[derive(Debug)]
pub(super) struct StoreChange<T> {
    pub(super) key: ObjectKey,
    pub(super) old: Option<Arc<T>>,
    pub(super) new: Option<Arc<T>>,
    /// The last state of one that is gone, and whether it is the final one.
    pub(super) gone: Option<(Arc<T>, bool)>,
}

#[derive(Debug)]
struct WaitingChange<T> {
    turn: u64,
    /// The state that the subscriber received last.
    delivered: Option<Arc<T>>,
    now: Option<Arc<T>>,
    /// The deleted object; a subscriber that received it must receive the deletion.
    gone: Option<(Arc<T>, bool)>,
    initial: bool,
}

impl<T> WaitingChange<T> {
    fn has_passed(&self) -> bool {
        self.delivered.is_none() && self.now.is_none()
    }
}

/// Changes that wait for delivery.
#[derive(Debug)]
pub(super) struct PendingChanges<T> {
    waiting: HashMap<ObjectKey, WaitingChange<T>>,
    order: BTreeMap<u64, ObjectKey>,
    turns: u64,
    /// Turns of those that have passed.
    passed: BTreeSet<u64>,
    /// Number of passed objects that were never delivered.
    skipped: u64,
    initial: usize,
}

impl<T> Default for PendingChanges<T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: BTreeMap::new(),
            turns: 0,
            passed: BTreeSet::new(),
            skipped: 0,
            initial: 0,
        }
    }
}

impl<T: Object> PendingChanges<T> {
    /// Objects that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Objects of the beginning that wait.
    pub(super) fn initial(&self) -> usize {
        self.initial
    }

    /// Number of objects that came and went undelivered.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The store changed.
    pub(super) fn push(&mut self, change: &StoreChange<T>, initial: bool) {
        let StoreChange { key, old, new, gone } = change;
        if let Some(waiting) = self.waiting.get_mut(key) {
            waiting.now.clone_from(new);
            // The deletion of the delivered object counts, not that of a later namesake.
            let delivered = waiting.delivered.as_ref().map(|delivered| delivered.uid());
            let first = waiting.gone.take().filter(|(last, _)| delivered == Some(last.uid()));
            waiting.gone = first.or_else(|| gone.clone());
            if waiting.delivered.is_none() && new.is_some() {
                waiting.gone = None;
            }
            match waiting.has_passed() {
                true => self.passed.insert(waiting.turn),
                false => self.passed.remove(&waiting.turn),
            };
            self.skip_passed();
            return;
        }
        self.turns += 1;
        let (delivered, now, gone) = (old.clone(), new.clone(), gone.clone());
        let waiting = WaitingChange { turn: self.turns, delivered, now, gone, initial };
        self.put(key.clone(), waiting);
    }

    /// Queues the object for delivery again, unless it waits already.
    pub(super) fn push_again(&mut self, key: &ObjectKey, object: &Arc<T>) {
        if !self.waiting.contains_key(key) {
            let same = Some(Arc::clone(object));
            let key = key.clone();
            self.push(&StoreChange { key, old: same.clone(), new: same, gone: None }, false);
        }
    }

    fn put(&mut self, key: ObjectKey, waiting: WaitingChange<T>) {
        self.initial += usize::from(waiting.initial);
        self.order.insert(waiting.turn, key.clone());
        self.waiting.insert(key, waiting);
    }

    fn take(&mut self, turn: u64) -> Option<(ObjectKey, WaitingChange<T>)> {
        let (key, waiting) = self.waiting.remove_entry(&self.order.remove(&turn)?)?;
        self.passed.remove(&turn);
        self.initial -= usize::from(waiting.initial);
        Some((key, waiting))
    }

    /// Drops the oldest passed object when there are too many.
    fn skip_passed(&mut self) {
        if self.passed.len() <= PASSED_MAX {
            return;
        }
        let oldest = self.passed.first().copied();
        if oldest.and_then(|turn| self.take(turn)).is_some() {
            self.skipped += 1;
        }
    }

    /// The next change to deliver.
    pub(super) fn pop(&mut self) -> Option<ObjectChange<T>> {
        let turn = *self.order.keys().next()?;
        let (key, mut waiting) = self.take(turn)?;
        let initial = waiting.initial;
        match (waiting.delivered.take(), waiting.gone.take(), waiting.now.clone()) {
            (None, None, Some(object)) => Some(ObjectChange::Added { object, initial }),
            (None, Some(gone), now) => {
                let object = now.unwrap_or_else(|| Arc::clone(&gone.0));
                // An object that is delivered as added must be delivered as deleted.
                (waiting.delivered, waiting.gone) = (Some(Arc::clone(&object)), Some(gone));
                waiting.initial = false;
                self.put(key, waiting);
                Some(ObjectChange::Added { object, initial })
            }
            (Some(old), Some((last, is_final)), now) => {
                if now.is_some() {
                    self.put(key, waiting);
                }
                Some(match old.uid() == last.uid() {
                    true => ObjectChange::Deleted { object: last, is_final },
                    false => ObjectChange::Deleted { object: old, is_final: false },
                })
            }
            (Some(old), None, Some(new)) if old.uid() == new.uid() => {
                Some(ObjectChange::Updated { old, new })
            }
            (Some(old), None, now) => {
                // Its namesake has come, or it is gone without a word.
                if now.is_some() {
                    self.put(key, waiting);
                }
                Some(ObjectChange::Deleted { object: old, is_final: false })
            }
            (None, None, None) => None,
        }
    }
}

#[cfg(test)]
#[path = "pending_tests.rs"]
mod tests;
