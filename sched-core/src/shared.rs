//! Several deciders at once: an epoch-published view to read, reservations by compare-and-swap.
//!
//! Input: a `Cluster` to share; a pod, its program and the row a decider chose. Output: a
//! reservation, or a conflict. Owner: `SharedCluster`; the cluster inside is touched only by the
//! holder of the write lock. Bounds: one 64-bit claim a row and one for the whole; one pending
//! reservation a row, because the next one needs a view in which it is applied.
//!
//! A view has a change count of each row. A decider swaps the row's claim from that number to the
//! next; a decider with an older state of the row loses the swap and decides again. The winner
//! enqueues its reservation, and any thread that gets the write lock applies all waiting ones and
//! publishes once. Between two swaps on a row its change was applied and published, so that no
//! row is ever filled on the strength of a state it no longer has. Pods that reach across rows
//! (affinity, hard spread, anti-affinity of existing pods) need more: the claim of the whole counts
//! all placements and, separately, those that reach across. A reaching pod requires that no pod was
//! placed since its view; any other pod requires that no reaching pod was. Readers never wait. A
//! lost swap costs one retry; enqueuing holds a lock for one push.

use std::collections::VecDeque;

use crate::sync::{Arc, ArcCell, AtomicU64, Mutex, MutexGuard, Ordering};

mod cluster;
mod epochs;

pub use cluster::{Conflict, SharedCluster};

/// A number that a decider may raise only from the value in its view, by compare-and-swap.
#[derive(Debug)]
pub struct Claim(AtomicU64);

impl Default for Claim {
    fn default() -> Self {
        Self::at(0)
    }
}

impl Claim {
    /// A claim at a number.
    #[must_use]
    pub fn at(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// Raises the number by one if it still is `seen`; returns false otherwise.
    pub fn take(&self, seen: u64) -> bool {
        self.swap(seen, seen + 1)
    }

    /// Undoes [`Self::take`], because the claimed change is not made.
    pub fn undo_take(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Raises the number whatever its value is, so that every older view is stale.
    pub fn invalidate(&self, by: u64) {
        self.0.fetch_add(by, Ordering::AcqRel);
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        // No data is read under the claim; only the order of swaps on one claim matters.
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// One placement, in the claim of the whole.
pub const PLACEMENT: u64 = 1;
/// One placement that reaches across rows, counted in the upper half in addition to `PLACEMENT`.
pub const REACHING: u64 = 1 << 32;

impl Claim {
    /// Counts a placement decided when the whole was `seen`; returns false if it may contradict
    /// another.
    pub fn take_whole(&self, seen: u64, reaching: bool) -> bool {
        if reaching {
            return self.swap(seen, seen + PLACEMENT + REACHING);
        }
        loop {
            let now = self.current();
            if now / REACHING != seen / REACHING {
                return false;
            }
            if self.swap(now, now + PLACEMENT) {
                return true;
            }
        }
    }
}

/// A value that readers load at any time; it is replaced as a whole.
#[derive(Debug)]
pub struct Published<V>(ArcCell<V>);

impl<V> Published<V> {
    /// Publishes the first epoch.
    pub fn new(view: V) -> Self {
        Self::of(Arc::new(view))
    }

    /// Creates one from a view that is shared already.
    pub fn of(view: Arc<V>) -> Self {
        Self(ArcCell::new(view))
    }

    /// The current epoch.
    pub fn load(&self) -> Arc<V> {
        self.0.load()
    }

    /// Replaces the epoch; readers keep the one they hold.
    pub fn publish(&self, view: V) {
        self.replace(Arc::new(view));
    }

    /// Publishes a view that is shared already.
    pub fn replace(&self, view: Arc<V>) {
        self.0.store(view);
    }
}

/// A state behind a write lock and a queue of changes, which the holder of the lock applies.
#[derive(Debug)]
pub struct Combiner<S, R> {
    waiting: Mutex<VecDeque<R>>,
    state: Mutex<S>,
}

impl<S, R> Combiner<S, R> {
    /// A combiner around a state.
    pub fn new(state: S) -> Self {
        Self { waiting: Mutex::new(VecDeque::new()), state: Mutex::new(state) }
    }

    /// Enqueues `item`, and applies everything in the queue unless another thread is doing so.
    /// `finish` runs once after each batch, before the lock is released.
    pub fn hand_over(&self, item: R, apply: impl Fn(&mut S, R), finish: impl Fn(&mut S)) {
        self.queue().push_back(item);
        self.drain(apply, finish);
    }

    /// Runs `with` on the state, waiting for the lock, and then applies what was enqueued
    /// meanwhile: threads that found the lock taken rely on it.
    pub fn with<T>(
        &self,
        with: impl FnOnce(&mut S) -> T,
        apply: impl Fn(&mut S, R),
        finish: impl Fn(&mut S),
    ) -> T {
        let result = with(&mut self.state.lock().expect("an applier does not panic"));
        self.drain(apply, finish);
        result
    }

    /// Like `with`, without a change of the state.
    pub fn inspect<T>(
        &self,
        read: impl FnOnce(&S) -> T,
        apply: impl Fn(&mut S, R),
        finish: impl Fn(&mut S),
    ) -> T {
        self.with(|state| read(state), apply, finish)
    }

    fn drain(&self, apply: impl Fn(&mut S, R), finish: impl Fn(&mut S)) {
        while !self.queue().is_empty() {
            // The holder of the lock checks the queue once more after releasing it.
            let Ok(mut state) = self.state.try_lock() else { return };
            let batch = std::mem::take(&mut *self.queue());
            if !batch.is_empty() {
                batch.into_iter().for_each(|item| apply(&mut state, item));
                finish(&mut state);
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<R>> {
        self.waiting.lock().expect("a push does not panic")
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
