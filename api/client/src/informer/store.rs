//! A cache of a kind's objects for many readers, with indexes and subscribers to changes.
//!
//! Owner: the informer's task alone changes it. Readers get `Arc`s and hold no lock afterwards; a
//! change is visible before subscribers receive it. An object that comes again unchanged stays the
//! same `Arc`, and is no change. Bounds: as many objects as the server has of them.
// k8s: staging/src/k8s.io/client-go/tools/cache/thread_safe_store.go

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::{Object, key_of};
use pintle_api_types::symbol::Symbol;

use super::pending::StoreChange;
use super::subscription::SubscriberQueue;

/// Calls back with each value that an object has in an index.
pub type IndexValues<T> = fn(&T, &mut dyn FnMut(&str));

/// An index: its name and which values an object has in it.
pub type IndexBy<T> = (&'static str, IndexValues<T>);

/// Everything that is known of a kind's objects.
pub struct ObjectStore<T> {
    objects: RwLock<StoredObjects<T>>,
    /// Locked before `objects`, until a change is made and queued.
    queues: Mutex<Vec<Weak<SubscriberQueue<T>>>>,
}

struct StoredObjects<T> {
    known: HashMap<ObjectKey, Arc<T>>,
    indexes: Vec<ObjectIndex<T>>,
    /// The first list is complete.
    synced: bool,
}

struct ObjectIndex<T> {
    name: &'static str,
    values: IndexValues<T>,
    keys: HashMap<Symbol, BTreeSet<ObjectKey>>,
}

impl<T> ObjectIndex<T> {
    fn add(&mut self, key: &ObjectKey, object: &T) {
        (self.values)(object, &mut |value| {
            self.keys.entry(Symbol::of(value)).or_default().insert(key.clone());
        });
    }

    fn remove(&mut self, key: &ObjectKey, object: &T) {
        (self.values)(object, &mut |value| {
            if let Some(keys) = self.keys.get_mut(value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(value);
                }
            }
        });
    }
}

impl<T> StoredObjects<T> {
    fn put(&mut self, key: &ObjectKey, object: &Arc<T>) -> Option<Arc<T>> {
        let old = self.known.insert(key.clone(), Arc::clone(object));
        for index in &mut self.indexes {
            if let Some(old) = &old {
                index.remove(key, old);
            }
            index.add(key, object);
        }
        old
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<T>> {
        let old = self.known.remove(key)?;
        self.indexes.iter_mut().for_each(|index| index.remove(key, &old));
        Some(old)
    }
}

/// A whole list.
#[derive(Debug)]
pub(super) struct Listed<T> {
    pub(super) objects: Vec<T>,
    /// Objects that are there and cannot be read: their last good state stays.
    pub(super) unreadable: HashSet<ObjectKey>,
    /// True if an object's name cannot be read: then no known object is certainly gone.
    pub(super) nameless: bool,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), unreadable: HashSet::new(), nameless: false }
    }
}

impl<T: Object> ObjectStore<T> {
    pub(super) fn new(indexes: &[IndexBy<T>]) -> Self {
        let index = |(name, values): &IndexBy<T>| ObjectIndex {
            name,
            values: *values,
            keys: HashMap::new(),
        };
        let indexes = indexes.iter().map(index).collect();
        let objects = StoredObjects { known: HashMap::new(), indexes, synced: false };
        Self { objects: RwLock::new(objects), queues: Mutex::default() }
    }

    fn read(&self) -> RwLockReadGuard<'_, StoredObjects<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.by_key(ObjectKey::new(namespace, name).as_str())
    }

    /// An object by its key, `namespace/name` or `name`.
    pub fn by_key(&self, key: &str) -> Option<Arc<T>> {
        self.read().known.get(key).cloned()
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.read().known.values().cloned().collect()
    }

    /// Objects that have this value in an index, by key.
    ///
    /// # Panics
    /// When the informer was made without an index of this name.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<T>> {
        let objects = self.read();
        let found = objects.indexes.iter().find(|one| one.name == index);
        let keys = found.expect("an index has the name it was made with").keys.get(value);
        let objects = keys.into_iter().flatten().map(|key| objects.known.get(key));
        objects.flatten().cloned().collect()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.read().known.len()
    }

    /// True when there are none, or nothing is known yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True when the first list is complete.
    pub fn is_synced(&self) -> bool {
        self.read().synced
    }

    /// Makes changes, and queues them for every subscriber in the same order.
    fn change<R>(
        &self,
        make: impl FnOnce(&mut StoredObjects<T>, &mut Vec<StoreChange<T>>) -> R,
    ) -> R {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Vec::new();
        let (made, before, synced) = {
            let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
            let before = objects.synced;
            (make(&mut objects, &mut changes), before, objects.synced)
        };
        queues.retain(|queue| match queue.upgrade() {
            Some(queue) => {
                queue.push(&changes, !before, synced);
                true
            }
            None => false,
        });
        made
    }

    /// An object was added or modified; returns false when it was known in this state.
    pub(super) fn apply(&self, object: T) -> bool {
        self.change(|objects, changes| put(objects, changes, object))
    }

    /// An object was deleted in this state.
    pub(super) fn delete(&self, object: T) -> bool {
        let key = key_of(&object);
        self.change(|objects, changes| remove(objects, changes, &key, Some(object)))
    }

    /// An object was deleted in a state that cannot be read.
    pub(super) fn delete_key(&self, key: &ObjectKey) -> bool {
        self.change(|objects, changes| remove(objects, changes, key, None))
    }

    /// Replaces all objects by a list.
    pub(super) fn replace(&self, listed: Listed<T>) {
        self.change(|objects, changes| {
            let mut left = listed.unreadable;
            for object in listed.objects {
                left.insert(key_of(&object));
                put(objects, changes, object);
            }
            let gone = objects.known.keys().filter(|key| !listed.nameless && !left.contains(*key));
            let gone: Vec<_> = gone.cloned().collect();
            for key in gone {
                remove(objects, changes, &key, None);
            }
            objects.synced = true;
        });
    }

    /// Queues every current object for the subscriber, and from now on every change.
    pub(super) fn join(&self, queue: &Arc<SubscriberQueue<T>>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = self.read();
        let known = objects.known.iter().map(|(key, object)| StoreChange {
            key: key.clone(),
            old: None,
            new: Some(Arc::clone(object)),
            gone: None,
        });
        queue.push(&known.collect::<Vec<_>>(), true, objects.synced);
        queues.push(Arc::downgrade(queue));
    }

    /// Queues every object again for one subscriber.
    pub(super) fn resync(&self, queue: &SubscriberQueue<T>) {
        let _in_order = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_again(&mut self.read().known.iter());
    }
}

fn put<T: Object>(
    objects: &mut StoredObjects<T>,
    changes: &mut Vec<StoreChange<T>>,
    object: T,
) -> bool {
    let key = key_of(&object);
    if objects.known.get(&key).is_some_and(|known| **known == object) {
        return false;
    }
    let object = Arc::new(object);
    let old = objects.put(&key, &object);
    changes.push(StoreChange { key, old, new: Some(object), gone: None });
    true
}

fn remove<T: Object>(
    objects: &mut StoredObjects<T>,
    changes: &mut Vec<StoreChange<T>>,
    key: &ObjectKey,
    last: Option<T>,
) -> bool {
    let Some(old) = objects.remove(key) else { return false };
    let gone = match last {
        Some(last) => (Arc::new(last), true),
        None => (Arc::clone(&old), false),
    };
    changes.push(StoreChange { key: key.clone(), old: Some(old), new: None, gone: Some(gone) });
    true
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
