//! Receivers of a reflector's objects: a store with many readers, or a record of one's own.

use std::future::{Future, ready};
use std::sync::Arc;

use pintle_api_types::object::{Object, UnreadableObject};

use super::store::{Listed, ObjectStore};
use crate::TenantShare;

/// Receives a kind's objects, in order. The watch waits for each call to return.
pub trait ObjectSink<T> {
    /// A list begins; an earlier one that was not completed does not count.
    fn begin(&mut self);
    /// An object of the list.
    fn listed(&mut self, object: T);
    /// An object of the list that cannot be read: its last good state stays. `None` when not even
    /// its name can be read; then the list does not show which objects are gone.
    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>);
    /// Called after some objects of the list: the task reads no further until it returns.
    fn wait_for_room(&mut self) -> impl Future<Output = ()> {
        ready(())
    }
    /// The list is complete, and nothing else is there.
    fn complete(&mut self) -> impl Future<Output = ()>;
    /// An object was added or modified.
    fn applied(&mut self, object: T) -> impl Future<Output = ()>;
    /// An object was deleted, in this state.
    fn deleted(&mut self, object: T) -> impl Future<Output = ()>;
    /// An object was deleted, in a state that cannot be read.
    fn deleted_unreadable(&mut self, lost: UnreadableObject) -> impl Future<Output = ()>;
    /// Every change up to this version was reported; after a list, and at bookmarks.
    fn at_version(&mut self, _version: &str) -> impl Future<Output = ()> {
        ready(())
    }
    /// The server has the kind under none of its paths, and no list of it was complete before.
    fn no_kind(&mut self) {}
    /// Changes may have been missed, and there are no lists (`FirstList::Never`).
    fn read_again(&mut self) {}
    /// The share under which the next request is made, where clients are shared.
    fn share(&self) -> TenantShare {
        TenantShare::default()
    }
}

/// Puts it into a store.
pub(super) struct StoreSink<T> {
    store: Arc<ObjectStore<T>>,
    list: Listed<T>,
}

impl<T> StoreSink<T> {
    pub(super) fn new(store: Arc<ObjectStore<T>>) -> Self {
        Self { store, list: Listed::default() }
    }
}

impl<T: Object> ObjectSink<T> for StoreSink<T> {
    fn begin(&mut self) {
        self.list = Listed::default();
    }

    fn listed(&mut self, object: T) {
        self.list.objects.push(object);
    }

    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>) {
        self.list.nameless |= lost.is_none();
        self.list.unreadable.extend(lost.map(|lost| lost.key));
    }

    fn complete(&mut self) -> impl Future<Output = ()> {
        self.store.replace(std::mem::take(&mut self.list));
        ready(())
    }

    fn applied(&mut self, object: T) -> impl Future<Output = ()> {
        self.store.apply(object);
        ready(())
    }

    fn deleted(&mut self, object: T) -> impl Future<Output = ()> {
        self.store.delete(object);
        ready(())
    }

    fn deleted_unreadable(&mut self, lost: UnreadableObject) -> impl Future<Output = ()> {
        self.store.delete_key(&lost.key);
        ready(())
    }
}
