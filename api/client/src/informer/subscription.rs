//! One subscriber of an informer: its changes, in order, at its own pace.
//!
//! Owner: the subscriber; its drop ends it. Bounds: see `pending`. A `resync` delivers every object
//! again periodically, for subscribers that reconcile other state than the object.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::Object;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pending::{ObjectChange, PendingChanges, StoreChange};
use super::store::ObjectStore;

/// Shortest time between two resyncs.
// k8s: staging/src/k8s.io/client-go/tools/cache/shared_informer.go minimumResyncPeriod
const RESYNC_MIN: Duration = Duration::from_secs(1);

/// The store's changes for one subscriber.
pub(super) struct SubscriberQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Notify,
    /// True when the subscriber has received every initial object.
    synced: watch::Sender<bool>,
}

struct QueueState<T> {
    pending: PendingChanges<T>,
    /// The store is complete.
    complete: bool,
    /// An initial object is being handled.
    in_hand: bool,
}

impl<T> Default for SubscriberQueue<T> {
    fn default() -> Self {
        let pending = PendingChanges::default();
        let state = Mutex::new(QueueState { pending, complete: false, in_hand: false });
        Self { state, changed: Notify::new(), synced: watch::Sender::new(false) }
    }
}

impl<T: Object> SubscriberQueue<T> {
    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store changed; `initial` when it was not complete before.
    pub(super) fn push(&self, changes: &[StoreChange<T>], initial: bool, complete: bool) {
        let mut state = self.state();
        changes.iter().for_each(|change| state.pending.push(change, initial));
        state.complete |= complete;
        self.settle(&state);
        self.changed.notify_one();
    }

    pub(super) fn push_again(&self, all: &mut dyn Iterator<Item = (&ObjectKey, &Arc<T>)>) {
        let mut state = self.state();
        all.for_each(|(key, object)| state.pending.push_again(key, object));
    }

    /// The next change; the one before has been handled.
    fn pop(&self) -> Option<ObjectChange<T>> {
        let mut state = self.state();
        let change = state.pending.pop();
        state.in_hand = matches!(change, Some(ObjectChange::Added { initial: true, .. }));
        self.settle(&state);
        change
    }

    fn settle(&self, state: &QueueState<T>) {
        if state.complete && !state.in_hand && state.pending.initial() == 0 {
            self.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
        }
    }
}

/// The changes of an informer's objects, for one subscriber.
pub struct Subscription<T> {
    queue: Arc<SubscriberQueue<T>>,
    store: Arc<ObjectStore<T>>,
    resync: Option<(Duration, Instant)>,
}

impl<T: Object> Subscription<T> {
    pub(super) fn new(store: &Arc<ObjectStore<T>>) -> Self {
        let queue = Arc::new(SubscriberQueue::default());
        store.join(&queue);
        Self { queue, store: Arc::clone(store), resync: None }
    }

    /// Delivers every object again at the end of each such period; a second at least.
    #[must_use]
    pub fn resync(mut self, period: Duration) -> Self {
        let period = period.max(RESYNC_MIN);
        self.resync = Some((period, Instant::now() + period));
        self
    }

    /// The next change. The one before counts as dealt with. May be dropped at any time.
    pub async fn next(&mut self) -> ObjectChange<T> {
        loop {
            let changed = self.queue.changed.notified();
            if let Some(change) = self.queue.pop() {
                return change;
            }
            let Some((period, due)) = &mut self.resync else {
                changed.await;
                continue;
            };
            if tokio::time::timeout_at(*due, changed).await.is_err() {
                *due = Instant::now() + *period;
                self.store.resync(&self.queue);
            }
        }
    }

    /// The next change, if there is one now. The one before counts as dealt with.
    pub fn try_next(&mut self) -> Option<ObjectChange<T>> {
        self.queue.pop()
    }

    /// True when the first list is complete and everything in it has been dealt with.
    pub fn has_synced(&self) -> bool {
        *self.queue.synced.borrow()
    }

    /// Turns true when the subscriber has received every initial object.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.queue.synced.subscribe()
    }

    /// Number of objects that wait for delivery.
    pub fn waiting(&self) -> usize {
        self.queue.state().pending.len()
    }

    /// Objects that came and went undelivered, because the subscriber was too slow.
    pub fn skipped(&self) -> u64 {
        self.queue.state().pending.skipped()
    }
}
