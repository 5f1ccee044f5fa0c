//! All objects of one kind, followed by one watch and kept as small as their readers allow.
//!
//! A record of its own in place of an informer's store: services may be many, and pods need little
//! of each. Effects; the record is one value. Owner: the holder of the `Collection`. Bounds: each
//! record has its own; one watch.

use std::cell::{Cell, Ref, RefCell};
use std::future::{Future, ready};
use std::rc::Rc;
use std::time::Duration;

use kube::Client;
use pintle_api::informer::{self, FollowSpec, ObjectSink};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::UnreadableObject;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The record that is kept of the objects.
pub(super) trait CollectionRecord: Default + 'static {
    /// An object on the wire.
    type Wire: pintle_api_types::object::Object;
    /// Paths of the objects; more than one where a kind changed its version.
    const PATHS: &'static [&'static str];
    /// Name of the kind in messages.
    const NAME: &'static str;

    /// An object was added or changed; returns false when there is no room for it.
    fn put(&mut self, object: Self::Wire) -> bool;
    /// An object was deleted.
    fn remove(&mut self, namespace: &str, name: &str);
    /// Takes from an earlier record the objects that `stays` selects and that are not here.
    fn keep(&mut self, earlier: Self, stays: &dyn Fn(&str, &str) -> bool);
}

/// The state of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionState {
    /// Nothing yet.
    Nothing,
    /// That the API server has no such kind.
    NoKind,
    /// All objects.
    All,
}

struct State<K> {
    kept: RefCell<K>,
    known: Cell<CollectionState>,
    /// Grows with each change.
    version: watch::Sender<u64>,
    told_full: Cell<bool>,
}

/// The watch of all objects of a kind, open while it has readers.
pub(super) struct Collection<K: CollectionRecord> {
    state: Rc<State<K>>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl<K: CollectionRecord> Default for Collection<K> {
    fn default() -> Self {
        let state = State {
            kept: RefCell::default(),
            known: Cell::new(CollectionState::Nothing),
            version: watch::Sender::new(0),
            told_full: Cell::new(false),
        };
        Self { state: Rc::new(state), task: RefCell::default() }
    }
}

impl<K: CollectionRecord> Collection<K> {
    /// Opens the watch if it is not.
    pub(super) fn open(&self, client: &Client) {
        self.task.borrow_mut().get_or_insert_with(|| {
            let sink = RecordSink::new(Rc::clone(&self.state));
            let following = informer::follow(client.clone(), spec::<K>(), sink);
            pintle_daemon::tasks::singleton("collection", following)
        });
    }

    /// Ends the watch and clears the record.
    pub(super) fn close(&self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        self.state.known.set(CollectionState::Nothing);
        *self.state.kept.borrow_mut() = K::default();
    }

    /// The state of the record, after `patience` at the latest.
    pub(super) async fn known(&self, patience: Duration) -> CollectionState {
        let mut versions = self.state.version.subscribe();
        let told = async {
            while self.state.known.get() == CollectionState::Nothing {
                if versions.changed().await.is_err() {
                    return;
                }
            }
        };
        // The state after a timeout is the answer.
        let _ = tokio::time::timeout(patience, told).await;
        self.state.known.get()
    }

    /// The record.
    pub(super) fn kept(&self) -> Ref<'_, K> {
        self.state.kept.borrow()
    }

    /// A counter that grows with each change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.state.version.subscribe()
    }
}

impl<K: CollectionRecord> Drop for Collection<K> {
    fn drop(&mut self) {
        self.close();
    }
}

fn spec<K: CollectionRecord>() -> FollowSpec {
    let mut spec = FollowSpec::new(K::NAME, "");
    spec.source.paths = K::PATHS.iter().map(|&path| path.to_owned()).collect();
    spec.retry = RETRY;
    spec
}

/// Makes the record from the objects of the watch.
struct RecordSink<K> {
    state: Rc<State<K>>,
    /// The record of the current list so far.
    fresh: K,
    unreadable: Vec<ObjectKey>,
    /// An object without a readable name: the list does not show which objects are gone.
    nameless: bool,
}

impl<K: CollectionRecord> RecordSink<K> {
    fn new(state: Rc<State<K>>) -> Self {
        Self { state, fresh: K::default(), unreadable: Vec::new(), nameless: false }
    }

    fn changed(&self) -> std::future::Ready<()> {
        self.state.publish(CollectionState::All);
        ready(())
    }
}

impl<K: CollectionRecord> ObjectSink<K::Wire> for RecordSink<K> {
    fn begin(&mut self) {
        *self = Self::new(Rc::clone(&self.state));
    }

    fn listed(&mut self, object: K::Wire) {
        let has_room = self.fresh.put(object);
        self.state.log_if_full(has_room);
    }

    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>) {
        self.nameless |= lost.is_none();
        self.unreadable.extend(lost.map(|lost| lost.key));
    }

    fn complete(&mut self) -> impl Future<Output = ()> {
        let mut fresh = std::mem::take(&mut self.fresh);
        let stays = |namespace: &str, name: &str| {
            self.nameless || self.unreadable.contains(&ObjectKey::new(namespace, name))
        };
        let mut kept = self.state.kept.borrow_mut();
        if self.nameless || !self.unreadable.is_empty() {
            fresh.keep(std::mem::take(&mut *kept), &stays);
        }
        *kept = fresh;
        drop(kept);
        self.changed()
    }

    fn applied(&mut self, object: K::Wire) -> impl Future<Output = ()> {
        let has_room = self.state.kept.borrow_mut().put(object);
        self.state.log_if_full(has_room);
        self.changed()
    }

    fn deleted(&mut self, object: K::Wire) -> impl Future<Output = ()> {
        use pintle_api_types::object::Object as _;
        self.state.kept.borrow_mut().remove(object.namespace(), object.name());
        self.changed()
    }

    fn deleted_unreadable(&mut self, lost: UnreadableObject) -> impl Future<Output = ()> {
        self.state.kept.borrow_mut().remove(lost.key.namespace(), lost.key.name());
        self.changed()
    }

    fn no_kind(&mut self) {
        // It may come: an API server is changed one setting at a time.
        if self.state.known.get() == CollectionState::Nothing {
            self.state.publish(CollectionState::NoKind);
        }
    }
}

impl<K: CollectionRecord> State<K> {
    /// Logs once that an object was left out.
    fn log_if_full(&self, has_room: bool) {
        if !has_room && !self.told_full.replace(true) {
            tracing::warn!("there are more {} than the agent keeps; pods miss the others", K::NAME);
        }
    }

    fn publish(&self, known: CollectionState) {
        self.known.set(known);
        self.version.send_modify(|version| *version += 1);
    }
}
