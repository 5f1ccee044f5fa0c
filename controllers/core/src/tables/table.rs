//! The objects of one kind: by key, namespace, controller, and what their kind is indexed by.
//!
//! Input: lists and changes from a watch. Output: the objects, and for each change the state before
//! and after. Owner: the deciding thread. Bounds: the objects of the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::symbol::Symbol;

use crate::meta::{Meta, Uid};

/// An object that a table can hold.
pub trait TableRow {
    /// Its metadata.
    fn meta(&self) -> &Meta;
    /// Its key in the second index, if it has one.
    fn index(&self) -> Option<&str> {
        None
    }
}

/// A change of one object: one of both is there.
#[derive(Debug)]
pub struct Delta<T> {
    /// The state before the change; `None` for a new object.
    pub old: Option<Rc<T>>,
    /// The state after the change; `None` for a deleted object.
    pub new: Option<Rc<T>>,
}

impl<T> Delta<T> {
    /// The object as it is now, or as it last was.
    pub fn object(&self) -> &Rc<T> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a state")
    }
}

impl<T> Clone for Delta<T> {
    fn clone(&self) -> Self {
        Self { old: self.old.clone(), new: self.new.clone() }
    }
}

/// The objects of a kind.
#[derive(Debug)]
pub struct Table<T> {
    objects: BTreeMap<ObjectKey, Rc<T>>,
    by_controller: HashMap<Uid, BTreeSet<ObjectKey>>,
    orphans: HashMap<Symbol, BTreeSet<ObjectKey>>,
    by_index: HashMap<Symbol, BTreeSet<ObjectKey>>,
    /// Of the newest change.
    version: u64,
    is_synced: bool,
    /// Keys of the list that is being read.
    listing: Option<BTreeSet<ObjectKey>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            by_controller: HashMap::new(),
            orphans: HashMap::new(),
            by_index: HashMap::new(),
            version: 0,
            is_synced: false,
            listing: None,
        }
    }
}

impl<T: TableRow> Table<T> {
    /// A first list is complete.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// The version up to which every change is here.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The object with a key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Rc<T>> {
        self.objects.get(key)
    }

    /// The object with a name in a namespace, if it has this UID.
    pub fn get_uid(&self, namespace: &str, name: &str, uid: &Uid) -> Option<&Rc<T>> {
        let object = self.get(&ObjectKey::new(namespace, name))?;
        Some(object).filter(|object| object.meta().uid == *uid)
    }

    /// All objects, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<T>> {
        self.objects.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The objects of a namespace, by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Rc<T>> {
        // '0' is the character after '/'.
        let (from, to) = (format!("{namespace}/"), format!("{namespace}0"));
        self.objects
            .range::<str, _>((
                std::ops::Bound::Included(from.as_str()),
                std::ops::Bound::Excluded(to.as_str()),
            ))
            .map(|(_, object)| object)
    }

    /// The objects with the controller of this UID, by key.
    pub fn controlled_by(&self, uid: &Uid) -> impl Iterator<Item = &Rc<T>> {
        self.of_keys(self.by_controller.get(uid))
    }

    /// The objects of a namespace that have no controller, by name.
    pub fn orphans(&self, namespace: &str) -> impl Iterator<Item = &Rc<T>> {
        self.of_keys(self.orphans.get(namespace))
    }

    /// The objects with an index value: the pods of a node.
    pub fn indexed(&self, value: &str) -> impl Iterator<Item = &Rc<T>> {
        self.of_keys(self.by_index.get(value))
    }

    fn of_keys<'a>(
        &'a self,
        keys: Option<&'a BTreeSet<ObjectKey>>,
    ) -> impl Iterator<Item = &'a Rc<T>> {
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Records a state that was added or modified; `None` when it is not newer than the one known.
    pub fn set(&mut self, object: T) -> Option<Delta<T>> {
        let key = object.meta().key();
        let version = object.meta().version;
        self.version = self.version.max(version);
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        if let Some(known) = self.objects.get(&key)
            && known.meta().uid == object.meta().uid
            && known.meta().version >= version
            && version != 0
        {
            return None;
        }
        let new = Rc::new(object);
        let old = self.objects.insert(key.clone(), Rc::clone(&new));
        if let Some(old) = &old {
            self.unindex(&key, old);
        }
        self.index(&key, &new);
        Some(Delta { old, new: Some(new) })
    }

    /// Removes an object; `version` is that of its last state.
    pub fn remove(&mut self, key: &ObjectKey, version: u64) -> Option<Delta<T>> {
        self.version = self.version.max(version);
        let old = self.objects.remove(key)?;
        self.unindex(key, &old);
        Some(Delta { old: Some(old), new: None })
    }

    /// A list begins.
    pub fn begin_list(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// The list has an object that cannot be read: what is known of it stays.
    pub fn keep_unreadable(&mut self, key: Option<ObjectKey>) {
        let Some(listing) = &mut self.listing else { return };
        match key {
            Some(key) => drop(listing.insert(key)),
            // It could be any of them.
            None => listing.extend(self.objects.keys().cloned()),
        }
    }

    /// The list is complete; returns the removals of what was not in it.
    pub fn complete_list(&mut self) -> Vec<Delta<T>> {
        self.is_synced = true;
        let Some(listed) = self.listing.take() else { return Vec::new() };
        let is_gone = |key: &&ObjectKey| !listed.contains(*key);
        let gone: Vec<_> = self.objects.keys().filter(is_gone).cloned().collect();
        gone.iter().filter_map(|key| self.remove(key, 0)).collect()
    }

    /// Every change up to this version is here.
    pub fn advance(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    fn index(&mut self, key: &ObjectKey, object: &T) {
        places(self, object, |keys| {
            keys.insert(key.clone());
        });
    }

    fn unindex(&mut self, key: &ObjectKey, object: &T) {
        let meta = object.meta();
        match meta.controller() {
            Some(owner) => drop_key(&mut self.by_controller, &owner.uid, key),
            None => drop_key(&mut self.orphans, &meta.namespace, key),
        }
        if let Some(value) = object.index() {
            drop_key(&mut self.by_index, &Symbol::of(value), key);
        }
    }
}

fn places<T: TableRow>(table: &mut Table<T>, object: &T, add: impl Fn(&mut BTreeSet<ObjectKey>)) {
    let meta = object.meta();
    match meta.controller() {
        Some(owner) => add(table.by_controller.entry(owner.uid.clone()).or_default()),
        None => add(table.orphans.entry(meta.namespace.clone()).or_default()),
    }
    if let Some(value) = object.index() {
        add(table.by_index.entry(Symbol::of(value)).or_default());
    }
}

fn drop_key<K: Eq + std::hash::Hash>(
    index: &mut HashMap<K, BTreeSet<ObjectKey>>,
    of: &K,
    key: &ObjectKey,
) {
    if let Some(keys) = index.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::KeptObject;
    use crate::kinds::Pod;

    fn pod(name: &str, version: u32, owner: &str) -> KeptObject<Pod> {
        let owners = match owner {
            "" => String::new(),
            uid => format!(r#""ownerReferences":[{{"uid":"{uid}","controller":true}}],"#),
        };
        let text = format!(
            r#"{{"metadata":{{{owners}"name":"{name}","namespace":"n","uid":"{name}",
            "resourceVersion":"{version}"}},"spec":{{"nodeName":"a"}}}}"#
        );
        KeptObject::decode(&text).expect("a good pod")
    }

    fn names<'a>(objects: impl Iterator<Item = &'a Rc<KeptObject<Pod>>>) -> Vec<&'a str> {
        objects.map(|object| &*object.metadata.name).collect()
    }

    #[test]
    fn object_is_found_by_namespace_controller_and_node() {
        let mut table = Table::default();
        for pod in [pod("a", 1, "o"), pod("b", 2, ""), pod("c", 3, "o")] {
            assert!(table.set(pod).is_some());
        }
        assert_eq!(names(table.in_namespace("n")), ["a", "b", "c"]);
        assert_eq!(names(table.controlled_by(&Uid::of("o"))), ["a", "c"]);
        assert_eq!(names(table.orphans("n")), ["b"]);
        assert_eq!(names(table.indexed("a")), ["a", "b", "c"]);
        assert!(table.set(pod("a", 4, "")).is_some(), "it was released");
        assert_eq!(names(table.controlled_by(&Uid::of("o"))), ["c"]);
        assert_eq!(names(table.orphans("n")), ["a", "b"]);
        assert_eq!(table.version(), 4);
    }

    #[test]
    fn object_absent_from_a_list_is_removed_and_an_old_state_changes_nothing() {
        let mut table = Table::default();
        for pod in [pod("a", 5, ""), pod("b", 2, "")] {
            assert!(table.set(pod).is_some());
        }
        table.begin_list();
        assert!(table.set(pod("a", 5, "")).is_none());
        let gone = table.complete_list();
        assert_eq!(gone.len(), 1);
        assert_eq!(&*gone[0].object().metadata.name, "b");
        assert!(table.is_synced() && table.len() == 1);
    }
}
