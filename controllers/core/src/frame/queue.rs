//! A work queue: each key is worked on once at a time, and failures wait longer each time.
//!
//! Input: keys of changed objects. Output: keys to work on. A key that is added while it is worked
//! on is requeued afterwards; a key that is added twice is returned once. Pure: the caller has the
//! clock. Bounds: as many entries as there are keys.
// k8s: staging/src/k8s.io/client-go/util/workqueue/{queue,delaying_queue,rate_limiting_queue}.go

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use pintle_api_types::fair::FairQueue;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::rate::{Bucket, Rate};

/// Tenants with a retry limiter, above which limiters that are full again are dropped.
const TENANTS_MAX: usize = 1024;
/// Longest wait of a key.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The back-off of failed keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyBackoff {
    /// After the first failure; doubles with each.
    pub first: Duration,
    /// The longest wait of one key.
    pub longest: Duration,
    /// The rate limit of all retries of a tenant; `None` to limit each key only by its own
    /// failures.
    pub all: Option<Rate>,
}

impl KeyBackoff {
    /// The limiter that most controllers have.
    // k8s: staging/src/k8s.io/client-go/util/workqueue/default_rate_limiters.go
    pub const DEFAULT: Self = Self {
        first: Duration::from_millis(5),
        longest: Duration::from_secs(1000),
        all: Some(Rate { per_second: 10.0, burst: 100 }),
    };

    /// A limiter by the key's own failures alone.
    pub const fn of_key(first: Duration, longest: Duration) -> Self {
        Self { first, longest, all: None }
    }
}

/// Metrics of a queue, under client-go's names: `workqueue_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    /// Keys that wait to be worked on (`workqueue_depth`).
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

/// A key of a queue.
pub trait QueueKey: Clone + Eq + Hash + Ord {
    /// The tenant of the key: its namespace. Tenants are served in turn, and failures of one tenant
    /// do not delay the others.
    fn tenant(&self) -> &str {
        ""
    }
}

impl QueueKey for ObjectKey {
    fn tenant(&self) -> &str {
        self.namespace()
    }
}

#[cfg(test)]
impl QueueKey for u8 {}
#[cfg(test)]
impl QueueKey for u32 {}

/// A queue of keys.
///
/// A key in `dirty` waits in `waiting`, or is worked on and comes again afterwards.
pub struct WorkQueue<K> {
    waiting: FairQueue<Box<str>, K>,
    dirty: HashSet<K>,
    working: HashMap<K, Instant>,
    delayed: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    backoff: KeyBackoff,
    retries: HashMap<Box<str>, Bucket>,
    adds: u64,
    retried: u64,
}

impl<K: QueueKey> WorkQueue<K> {
    /// An empty queue.
    pub fn new(backoff: KeyBackoff) -> Self {
        Self {
            waiting: FairQueue::default(),
            dirty: HashSet::new(),
            working: HashMap::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            backoff,
            retries: HashMap::new(),
            adds: 0,
            retried: 0,
        }
    }

    /// Adds a key, unless it waits already.
    pub fn add(&mut self, key: K, now: Instant) {
        self.release_due(now);
        self.put(key);
    }

    /// The key is being worked on.
    pub fn is_working(&self, key: &K) -> bool {
        self.working.contains_key(key)
    }

    /// The key waits to be taken.
    pub fn is_waiting(&self, key: &K) -> bool {
        self.dirty.contains(key) && !self.working.contains_key(key)
    }

    /// When the key comes, if it is delayed.
    pub fn due(&self, key: &K) -> Option<Instant> {
        self.due.get(key).copied()
    }

    fn put(&mut self, key: K) {
        if !self.dirty.insert(key.clone()) {
            return;
        }
        self.adds += 1;
        if !self.working.contains_key(&key) {
            self.waiting.push(key.tenant().into(), key);
        }
    }

    /// Adds a key after a wait; the earliest of several times counts.
    pub fn add_after(&mut self, key: K, now: Instant, wait: Duration) {
        if wait.is_zero() {
            return self.add(key, now);
        }
        let at = now + wait.min(WAIT_MAX);
        match self.due.get(&key) {
            Some(known) if *known <= at => return,
            Some(known) => {
                self.delayed.remove(&(*known, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    /// Adds a key after a failure.
    // k8s: default_rate_limiters.go DefaultTypedControllerRateLimiter: the longer wait of the two
    pub fn add_rate_limited(&mut self, key: K, now: Instant) {
        self.retried += 1;
        let failures = self.failures.entry(key.clone()).or_default();
        let own = self.backoff.first.saturating_mul(1 << (*failures).min(30));
        let own = own.min(self.backoff.longest);
        *failures = failures.saturating_add(1);
        let wait = own.max(self.take_retry(key.tenant(), now));
        self.add_after(key, now, wait);
    }

    /// Takes a retry from the tenant's rate limit; returns its wait.
    fn take_retry(&mut self, tenant: &str, now: Instant) -> Duration {
        let Some(rate) = self.backoff.all else { return Duration::ZERO };
        if self.retries.len() > TENANTS_MAX {
            self.retries.retain(|_, bucket| !bucket.is_full(now));
        }
        self.retries.entry(tenant.into()).or_insert_with(|| Bucket::new(rate)).take(now)
    }

    /// The key was worked on without a failure.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Failures of the key since it was last worked on without one.
    pub fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// Gives out the key that has waited longest.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        self.release_due(now);
        let (_, key) = self.waiting.pop()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone(), now);
        Some(key)
    }

    /// Work on the key ended.
    pub fn done(&mut self, key: &K, now: Instant) {
        self.release_due(now);
        if self.working.remove(key).is_some() && self.dirty.contains(key) {
            self.waiting.push(key.tenant().into(), key.clone());
        }
    }

    /// When the next delayed key comes.
    pub fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Keys that wait.
    pub fn depth(&self) -> usize {
        self.waiting.len()
    }

    /// The queue's metrics.
    pub fn stats(&self, now: Instant) -> QueueStats {
        let ages = self.working.values().map(|begun| now.saturating_duration_since(*begun));
        QueueStats {
            depth: self.depth(),
            adds: self.adds,
            retries: self.retried,
            unfinished: ages.clone().sum(),
            longest: ages.max().unwrap_or_default(),
        }
    }

    /// Moves keys with an expired wait into the queue.
    pub fn release_due(&mut self, now: Instant) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { return };
            self.due.remove(&key);
            self.put(key);
        }
    }
}
