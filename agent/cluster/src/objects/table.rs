//! References from pods to objects, the known copies, and the pods to notify: pure.
//!
//! An entry lives while a pod refers to it. It is requested when it is opened and again for each
//! pod that comes later: `requested` counts these, `answered` is the count at the start of the
//! newest read that ended. A caller notes `requested` and waits until `answered` has reached it:
//! then the object is at least as new as a read of its own. A watch keeps it up to date in between.
//! Versions decide which of two copies is newer, and the older one is dropped. The exception is an
//! older copy from a read that no event has overtaken: then the API server has gone back to an
//! earlier state.
//!
//! Owner: `Objects`. Bound: `ENTRIES_MAX` objects; a pod has no more of them than it leaves to
//! other pods, and further references are refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::types::PodUid;

use super::object::KeptObject;
use super::references::{ObjectName, ReferenceUse, References};

/// Objects that are followed at the same time.
pub(super) const ENTRIES_MAX: usize = 16_384;

/// Orders for some objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Orders {
    /// Begin to follow.
    pub(super) open: Vec<ObjectName>,
    /// No pod refers to them any more.
    pub(super) close: Vec<ObjectName>,
    /// Followed already; to be read once more.
    pub(super) read: Vec<ObjectName>,
}

/// A pod that is to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitingReader {
    /// The pod.
    pub(super) uid: PodUid,
    /// Its volumes show the object.
    pub(super) files: bool,
}

/// The known state of an object.
#[derive(Clone, Debug, Default, PartialEq)]
enum KnownObject {
    /// No answer yet.
    #[default]
    Nothing,
    Missing,
    Present(Rc<KeptObject>),
}

#[derive(Debug, Default)]
struct TableEntry {
    /// Pods that refer to it, and their use of it.
    referrers: BTreeMap<PodUid, ReferenceUse>,
    known: KnownObject,
    requested: u64,
    answered: u64,
    /// Changes from the watch; a read compares it to detect that it was overtaken.
    changes: u64,
    /// The last failure, until an answer.
    error: Option<String>,
    /// Pods that asked and did not get it.
    let_down: BTreeSet<PodUid>,
}

/// A read that is due: the ticket that it answers, and the changes that may not overtake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    ticket: u64,
    changes: u64,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct ObjectTable {
    pods: BTreeMap<PodUid, BTreeSet<ObjectName>>,
    entries: HashMap<ObjectName, TableEntry>,
}

impl ObjectTable {
    /// True when no pod is known.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Records the current references of a pod.
    pub(super) fn register(&mut self, uid: &PodUid, references: References) -> Orders {
        let mut orders = Orders::default();
        let before = self.pods.remove(uid).unwrap_or_default();
        let mut now = BTreeSet::new();
        for (key, usage) in references {
            let known = self.entries.contains_key(&key);
            if !known && now.len() >= ENTRIES_MAX - self.entries.len() {
                continue;
            }
            let entry = self.entries.entry(key.clone()).or_default();
            entry.referrers.insert(uid.clone(), usage);
            if !known {
                entry.requested = 1;
                orders.open.push(key.clone());
            } else if !before.contains(&key) {
                entry.requested += 1;
                orders.read.push(key.clone());
            }
            now.insert(key);
        }
        for key in before.difference(&now) {
            self.drop_reference(uid, key, &mut orders);
        }
        self.pods.insert(uid.clone(), now);
        orders
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, uid: &PodUid) -> Orders {
        let mut orders = Orders::default();
        for key in self.pods.remove(uid).unwrap_or_default() {
            self.drop_reference(uid, &key, &mut orders);
        }
        orders
    }

    fn drop_reference(&mut self, uid: &PodUid, key: &ObjectName, orders: &mut Orders) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.referrers.remove(uid);
        entry.let_down.remove(uid);
        if entry.referrers.is_empty() {
            self.entries.remove(key);
            orders.close.push(key.clone());
        }
    }

    // ---- readers ------------------------------------------------------------------------------

    /// The ticket that must be answered before the object is as new as now; `None` when no pod
    /// refers to it. `again` asks for a new read even though one was answered before.
    pub(super) fn want(&mut self, key: &ObjectName, again: bool) -> Option<u64> {
        let entry = self.entries.get_mut(key)?;
        if again && entry.requested == entry.answered {
            entry.requested += 1;
        }
        Some(entry.requested)
    }

    /// The object, once `want` was answered. A pod that does not get it is notified when that
    /// changes.
    pub(super) fn look(
        &mut self,
        uid: &PodUid,
        key: &ObjectName,
        want: u64,
    ) -> Option<Result<Rc<KeptObject>, LookupError>> {
        let entry = self.entries.get_mut(key)?;
        (entry.answered >= want).then(|| entry.known(uid, key))
    }

    /// The result without a new answer: an older copy, or why there is none.
    pub(super) fn settle(
        &mut self,
        uid: &PodUid,
        key: &ObjectName,
    ) -> Result<Rc<KeptObject>, LookupError> {
        match self.entries.get_mut(key) {
            Some(entry) => entry.known(uid, key),
            None => Err(LookupError::Failed(format!(
                "object {:?}/{:?} not registered",
                key.namespace, key.name
            ))),
        }
    }

    // ---- the object's task --------------------------------------------------------------------

    /// The read that is due, if any.
    pub(super) fn due(&self, key: &ObjectName) -> Option<Due> {
        let entry = self.entries.get(key).filter(|entry| entry.answered < entry.requested)?;
        Some(Due { ticket: entry.requested, changes: entry.changes })
    }

    /// A read ended. Returns the pods to notify.
    pub(super) fn answered(
        &mut self,
        key: &ObjectName,
        due: Due,
        found: Option<KeptObject>,
    ) -> Vec<WaitingReader> {
        let Some(entry) = self.entries.get_mut(key) else { return Vec::new() };
        entry.error = None;
        // A missing object has no version: the watch may have seen it come since.
        if found.is_none() && entry.changes != due.changes {
            return Vec::new();
        }
        entry.answered = entry.answered.max(due.ticket);
        // Reads see the newest state. An older one that no event came before is the newest again:
        // the store was restored.
        let fresh = entry.changes == due.changes;
        entry.take(found, fresh)
    }

    /// The pod whose share of requests pays for a read of the object: the one with the fewest
    /// references, so that it does not wait for other objects of a larger pod.
    pub(super) fn payer(&self, key: &ObjectName) -> Option<&PodUid> {
        let references = |uid: &&PodUid| self.pods.get(*uid).map_or(0, BTreeSet::len);
        self.entries.get(key)?.referrers.keys().min_by_key(references)
    }

    /// A read or watch failed.
    pub(super) fn failed(&mut self, key: &ObjectName, error: String) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.error = Some(error);
        }
    }

    /// The watch saw the object added or changed.
    pub(super) fn changed(&mut self, key: &ObjectName, object: KeptObject) -> Vec<WaitingReader> {
        let Some(entry) = self.entries.get_mut(key) else { return Vec::new() };
        entry.changes += 1;
        entry.take(Some(object), false)
    }

    /// The watch saw the object deleted, at this version.
    pub(super) fn deleted(&mut self, key: &ObjectName, version: u64) -> Vec<WaitingReader> {
        let Some(entry) = self.entries.get_mut(key) else { return Vec::new() };
        entry.changes += 1;
        match &entry.known {
            KnownObject::Present(object) if object.version > version => Vec::new(),
            _ => entry.take(None, false),
        }
    }

    /// True when there is an answer, however old.
    pub(super) fn is_known(&self, key: &ObjectName) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.known != KnownObject::Nothing)
    }

    /// True when the object is there and cannot change.
    pub(super) fn is_immutable(&self, key: &ObjectName) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(&entry.known, KnownObject::Present(o) if o.immutable))
    }

    /// All pods whose volumes show some object.
    pub(super) fn with_files(&self) -> Vec<WaitingReader> {
        let shows = |uid: &PodUid, keys: &BTreeSet<ObjectName>| {
            let mut entries = keys.iter().filter_map(|key| self.entries.get(key));
            entries.any(|entry| entry.referrers.get(uid).is_some_and(|usage| usage.files))
        };
        let pods = self.pods.iter().filter(|(uid, keys)| shows(uid, keys));
        pods.map(|(uid, _)| WaitingReader { uid: uid.clone(), files: true }).collect()
    }
}

impl TableEntry {
    fn known(&mut self, uid: &PodUid, key: &ObjectName) -> Result<Rc<KeptObject>, LookupError> {
        let failure = match &self.known {
            KnownObject::Present(object) => {
                self.let_down.remove(uid);
                return Ok(Rc::clone(object));
            }
            KnownObject::Missing => LookupError::NotFound,
            // k8s: pkg/kubelet/util/manager/watch_based_manager.go Get
            KnownObject::Nothing => LookupError::Failed(format!(
                "failed to sync {} cache: {}",
                key.kind.singular(),
                self.error.as_deref().unwrap_or("timed out waiting for the condition"),
            )),
        };
        self.let_down.insert(uid.clone());
        Err(failure)
    }

    fn take(&mut self, found: Option<KeptObject>, fresh: bool) -> Vec<WaitingReader> {
        let (changed, appeared) = match (&self.known, &found) {
            (KnownObject::Present(old), Some(new)) if !fresh && new.version < old.version => {
                return Vec::new();
            }
            (KnownObject::Present(old), Some(new)) => (old.content != new.content, false),
            (_, Some(_)) => (true, true),
            (KnownObject::Missing, None) => (false, false),
            (_, None) => (true, false),
        };
        let first = self.known == KnownObject::Nothing;
        self.known =
            found.map_or(KnownObject::Missing, |object| KnownObject::Present(Rc::new(object)));
        if !changed {
            return Vec::new();
        }
        let mut readers = Vec::new();
        for (uid, usage) in &self.referrers {
            let waits = (appeared || first) && self.let_down.contains(uid);
            // Before the first answer no pod has used the object; only pods that were let down wait
            // for it.
            if waits || ((usage.files || usage.pulls) && !first) {
                readers.push(WaitingReader { uid: uid.clone(), files: usage.files });
            }
        }
        readers
    }
}
