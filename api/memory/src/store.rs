//! Objects, versions and the history that watches read.
//!
//! Input: whole objects. Output: the same with their version, and events in the order of versions.
//! One counter for all kinds, as etcd has. Bounds: history grows until it is compacted. No rule of
//! the API is known here.

use std::collections::BTreeMap;
use std::sync::Arc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use serde_json::Value;

use crate::meta;

/// The change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created.
    Added,
    /// It has another state.
    Modified,
    /// It was deleted; the event has its last state.
    Deleted,
}

/// A change as a watch reports it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The change.
    pub change: Change,
    /// The version of the change; that of the object in the event, too.
    pub version: u64,
    /// The object's namespace and name.
    pub key: ObjectKey,
    /// The new state, or the last one.
    pub object: Arc<Value>,
}

/// Objects and history of a kind.
#[derive(Clone, Debug, Default)]
struct KindStore {
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    events: Vec<Event>,
    /// Events up to this version are no longer kept.
    compacted: u64,
}

/// Everything that is stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    version: u64,
    collections: BTreeMap<Kind, KindStore>,
}

impl Store {
    /// Stores a state of an object and returns it with its version.
    pub(crate) fn write(&mut self, kind: Kind, mut object: Value) -> Arc<Value> {
        self.version += 1;
        meta::set(&mut object, "resourceVersion", self.version.to_string().into());
        let (key, object) = (meta::key(&object), Arc::new(object));
        let collection = self.collections.entry(kind).or_default();
        let old = collection.objects.insert(key.clone(), Arc::clone(&object));
        let change = if old.is_some() { Change::Modified } else { Change::Added };
        let event = Event { change, version: self.version, key, object: Arc::clone(&object) };
        collection.events.push(event);
        object
    }

    /// Removes an object and returns its last state with the version of its removal.
    pub(crate) fn remove(&mut self, kind: Kind, key: &ObjectKey) -> Option<Arc<Value>> {
        let collection = self.collections.get_mut(&kind)?;
        let mut object = Value::clone(&*collection.objects.remove(key)?);
        self.version += 1;
        meta::set(&mut object, "resourceVersion", self.version.to_string().into());
        let (object, key) = (Arc::new(object), key.clone());
        let event = Event {
            change: Change::Deleted,
            version: self.version,
            key,
            object: Arc::clone(&object),
        };
        collection.events.push(event);
        Some(object)
    }

    pub(crate) fn object(&self, kind: Kind, key: &ObjectKey) -> Option<&Arc<Value>> {
        self.collections.get(&kind)?.objects.get(key)
    }

    /// The objects of a namespace, or of all when it is empty, in the order of their keys.
    pub(crate) fn objects<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Value>)> {
        let first = ObjectKey::new(namespace, "");
        let objects = self.collections.get(&kind).map(|collection| &collection.objects);
        let rest = objects.into_iter().flat_map(move |objects| objects.range(first.clone()..));
        rest.take_while(move |(key, _)| namespace.is_empty() || key.namespace() == namespace)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.collections.keys().copied()
    }

    /// The version of the newest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The events after a version; `None` when some of them are no longer kept.
    pub(crate) fn events_since(&self, kind: Kind, version: u64) -> Option<&[Event]> {
        let Some(collection) = self.collections.get(&kind) else { return Some(&[]) };
        if version < collection.compacted {
            return None;
        }
        let from = collection.events.partition_point(|event| event.version <= version);
        Some(&collection.events[from..])
    }

    /// Forgets the events up to a version, of all kinds.
    pub(crate) fn compact(&mut self, version: u64) {
        for collection in self.collections.values_mut() {
            let keep = collection.events.partition_point(|event| event.version <= version);
            collection.events.drain(..keep);
            collection.compacted = collection.compacted.max(version.min(self.version));
        }
    }
}
