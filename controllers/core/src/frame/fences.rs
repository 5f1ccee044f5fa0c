//! The fences of a controller's keys, indexed by kind and object.
//!
//! Input: own writes, and the changes that watches have reported since. Output: keys that may be
//! synced. A change visits only the fences that wait for it, also when thousands of keys have one.
//! Bounds: an entry for each fence and each write that it waits for.

use std::collections::{BTreeMap, BTreeSet};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};

use super::fence::Fence;
use crate::tables::Tables;

/// The fences of all keys.
#[derive(Debug)]
pub(super) struct Fences<K> {
    fences: BTreeMap<K, Fence>,
    /// The keys that wait for a version of a kind; may include keys that no longer wait.
    versions: BTreeMap<Kind, BTreeSet<(u64, K)>>,
    /// The keys that wait for the deletion of an object.
    gone: BTreeMap<(Kind, ObjectKey), BTreeSet<K>>,
    /// Keys with a fence that may be open.
    touched: BTreeSet<K>,
}

impl<K> Default for Fences<K> {
    fn default() -> Self {
        Self {
            fences: BTreeMap::new(),
            versions: BTreeMap::new(),
            gone: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> Fences<K> {
    /// No key waits.
    pub(super) fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    /// The fence of a key, if it has one.
    pub(super) fn get(&self, key: &K) -> Option<&Fence> {
        self.fences.get(key)
    }

    /// Records the outcome of a key's requests.
    pub(super) fn record(
        &mut self,
        key: &K,
        requests: &[Request],
        answers: &[Answer],
        tables: &Tables,
    ) {
        let fence = self.fences.entry(key.clone()).or_default();
        for (request, answer) in requests.iter().zip(answers) {
            fence.record(request, answer, tables);
        }
        if *fence == Fence::default() {
            self.fences.remove(key);
        }
        self.enter(key, tables);
        self.touched.insert(key.clone());
    }

    /// Records the lists that settle requests without an answer.
    pub(super) fn settle(&mut self, key: &K, answers: &[Answer], tables: &Tables) {
        if let Some(fence) = self.fences.get_mut(key) {
            fence.settle(answers);
            self.enter(key, tables);
        }
    }

    /// Indexes the key's fence.
    fn enter(&mut self, key: &K, tables: &Tables) {
        let Some(fence) = self.fences.get(key) else { return };
        // Kinds that are not watched are not waited for.
        let is_awaited = |kind, version| tables.version(kind).is_some_and(|known| known < version);
        for (kind, version) in
            fence.versions().filter(|(kind, version)| is_awaited(*kind, *version))
        {
            self.versions.entry(kind).or_default().insert((version, key.clone()));
        }
        for object in fence.gone() {
            self.gone.entry(object).or_default().insert(key.clone());
        }
    }

    /// Returns whether the key may be synced; forgets its fence then.
    pub(super) fn is_open(&mut self, key: &K, tables: &Tables) -> bool {
        let Some(fence) = self.fences.get_mut(key) else { return true };
        let is_open = fence.is_open(tables);
        if is_open {
            self.fences.remove(key);
        }
        is_open
    }

    /// Changes of a kind are known up to a version; `None` when the kind is not followed.
    pub(super) fn note_version(&mut self, kind: Kind, version: Option<u64>) {
        let Some(waiting) = self.versions.get_mut(&kind) else { return };
        let upto = version.unwrap_or(u64::MAX);
        while waiting.first().is_some_and(|(version, _)| *version <= upto) {
            let (_, key) = waiting.pop_first().expect("it was looked at");
            self.touched.insert(key);
        }
        if waiting.is_empty() {
            self.versions.remove(&kind);
        }
    }

    /// Records that an object changed or was deleted.
    pub(super) fn note_change(&mut self, kind: Kind, object: ObjectKey) {
        if !self.gone.is_empty()
            && let Some(keys) = self.gone.remove(&(kind, object))
        {
            self.touched.extend(keys);
        }
    }

    /// Returns the keys with a fence that opened since the last call; busy keys stay for a later
    /// call.
    pub(super) fn take_open(&mut self, is_busy: impl Fn(&K) -> bool, tables: &Tables) -> Vec<K> {
        let mut open = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            if is_busy(&key) {
                self.touched.insert(key);
            } else if !self.fences.contains_key(&key) {
                continue;
            } else if self.is_open(&key, tables) {
                open.push(key);
            } else {
                // The object may still exist.
                self.enter(&key, tables);
            }
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::PODS;
    use pintle_api_types::request::{DeleteOptions, Target};
    use serde_json::{Value, json};

    use super::*;
    use crate::tables::{Decoded, WatchEvent};

    fn pod(name: &str, version: u32) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "uid": name,
            "resourceVersion": version.to_string()}})
    }

    fn decoded(name: &str, version: u32) -> Decoded {
        Decoded::typed(PODS, &pod(name, version).to_string()).expect("a pod")
    }

    fn created(version: u32) -> (Request, Answer) {
        let namespace = "n".to_owned();
        let create = Request::Create { kind: PODS, namespace, below: None, body: Value::Null };
        (create, Ok(pod("new", version)))
    }

    /// Tables and fences that get the same events.
    struct FenceWorld {
        tables: Tables,
        fences: Fences<u8>,
    }

    impl FenceWorld {
        fn new() -> Self {
            let mut world = Self { tables: Tables::default(), fences: Fences::default() };
            world.apply(WatchEvent::ListBegun(PODS));
            world.apply(WatchEvent::Listed(decoded("old", 1)));
            world.apply(WatchEvent::ListComplete(PODS));
            world.apply(WatchEvent::Version(PODS, 1));
            world
        }

        fn apply(&mut self, event: WatchEvent) -> Vec<u8> {
            for change in self.tables.apply(event) {
                if let Some(meta) = change.old_meta() {
                    self.fences.note_change(PODS, meta.key());
                }
            }
            self.fences.note_version(PODS, self.tables.version(PODS));
            self.fences.take_open(|_| false, &self.tables)
        }

        fn record(&mut self, key: u8, written: (Request, Answer)) {
            let (request, answer) = written;
            self.fences.record(&key, &[request], &[answer], &self.tables);
        }
    }

    #[test]
    fn observed_version_releases_only_the_keys_waiting_for_it() {
        let mut world = FenceWorld::new();
        for key in 0..4 {
            world.record(key, created(u32::from(key) + 4));
        }
        assert_eq!(world.apply(WatchEvent::Version(PODS, 3)), [0; 0]);
        assert_eq!(world.apply(WatchEvent::Version(PODS, 5)), [0, 1]);
        assert!(world.fences.touched.is_empty(), "what still waits is not looked at");
        assert!(!world.fences.is_open(&2, &world.tables));
        assert_eq!(world.apply(WatchEvent::Set(decoded("new", 9))), [2, 3]);
        assert!(world.fences.is_empty() && world.fences.versions.is_empty());
    }

    #[test]
    fn key_of_a_deletion_opens_at_the_delete_event_and_not_at_an_update() {
        let mut world = FenceWorld::new();
        let target = Target::object(PODS, ObjectKey::new("n", "old"));
        let options = DeleteOptions::default();
        world.record(7, (Request::Delete { target, options }, Ok(Value::Null)));
        assert_eq!(world.apply(WatchEvent::Set(decoded("old", 2))), [0; 0]);
        assert_eq!(world.apply(WatchEvent::Deleted(decoded("old", 3))), [7]);
        assert!(world.fences.gone.is_empty());
    }

    #[test]
    fn key_that_is_busy_is_opened_later() {
        let mut world = FenceWorld::new();
        world.record(7, created(2));
        world.tables.apply(WatchEvent::Version(PODS, 2));
        world.fences.note_version(PODS, Some(2));
        assert_eq!(world.fences.take_open(|_| true, &world.tables), [0; 0]);
        assert_eq!(world.fences.take_open(|_| false, &world.tables), [7]);
    }
}
