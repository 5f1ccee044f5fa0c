//! A work queue: each key is worked on by one worker at a time, and failures wait longer each time.
//!
//! Input: keys that something happened to, from any thread. Output: keys, one per [`Taken`], whose
//! drop says that the work ended, also by a panic. A key that is added while it is worked on is
//! given out again afterwards; a key that is added twice is given out once. The rules are in
//! `state` (pure); here are the lock, the clock and the wake-ups.
//! Bounds: as many entries as there are keys; the owner decides which keys there are.
// k8s: staging/src/k8s.io/client-go/util/workqueue/{queue,delaying_queue,rate_limiting_queue}.go

mod state;
#[cfg(test)]
mod tests;

use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use state::State;

/// What counts of a queue, under client-go's names: `workqueue_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Keys that wait to be taken (`workqueue_depth`).
    pub depth: usize,
    /// Keys that were added (`workqueue_adds_total`).
    pub adds: u64,
    /// Keys that were added again after a failure (`workqueue_retries_total`).
    pub retries: u64,
    /// Age of all work under way (`workqueue_unfinished_work_seconds`).
    pub unfinished: Duration,
    /// Age of the oldest work under way (`workqueue_longest_running_processor_seconds`).
    pub longest: Duration,
}

/// A queue that several workers share.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Clone + Eq + Hash + Ord> Default for WorkQueue<K> {
    fn default() -> Self {
        let state = Mutex::new(State::new());
        Self { shared: Arc::new(Shared { state, changed: Notify::new() }) }
    }
}

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened to the key.
    pub fn add(&self, key: K) {
        self.state().add(key, Instant::now());
        self.shared.changed.notify_one();
    }

    /// Adds the key after a while; the earliest of several times counts.
    pub fn add_after(&self, key: K, wait: Duration) {
        self.state().add_after(key, Instant::now(), wait);
        self.shared.changed.notify_one();
    }

    /// Work on the key failed: it is added again, later each time.
    pub fn add_rate_limited(&self, key: K) {
        self.state().add_rate_limited(key, Instant::now());
        self.shared.changed.notify_one();
    }

    /// Work on the key succeeded: the next failure is the first one again.
    pub fn forget(&self, key: &K) {
        self.state().forget(key);
    }

    /// How often work on the key has failed in a row.
    pub fn failures(&self, key: &K) -> u32 {
        self.state().failures(key)
    }

    /// No more keys are accepted; those that wait are still given out.
    pub fn close(&self) {
        self.state().close();
        self.shared.changed.notify_one();
    }

    /// The next key; `None` when the queue was closed. May be dropped at any time.
    pub async fn take(&self) -> Option<Taken<K>> {
        loop {
            let (taken, due, is_closed, depth) = {
                let mut state = self.state();
                let taken = state.take(Instant::now());
                (taken, state.next_due(), state.is_closed(), state.depth())
            };
            if let Some(key) = taken {
                if depth > 0 {
                    self.shared.changed.notify_one(); // another worker has something to do, too
                }
                return Some(Taken { key, queue: self.clone() });
            }
            if is_closed {
                self.shared.changed.notify_one(); // the others have to know as well
                return None;
            }
            let changed = self.shared.changed.notified();
            match due {
                Some(due) => drop(tokio::time::timeout_at(due.into(), changed).await),
                None => changed.await,
            }
        }
    }

    /// What metrics say of it.
    pub fn stats(&self) -> QueueStats {
        self.state().stats(Instant::now())
    }
}

/// A key that is worked on. While it is there, nobody else gets the key.
pub struct Taken<K: Clone + Eq + Hash + Ord> {
    key: K,
    queue: WorkQueue<K>,
}

impl<K: Clone + Eq + Hash + Ord> Taken<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Clone + Eq + Hash + Ord> Drop for Taken<K> {
    fn drop(&mut self) {
        self.queue.state().done(&self.key, Instant::now());
        self.queue.shared.changed.notify_one();
    }
}
