//! The rules of a work queue. Pure: the caller has the clock.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use pintle_api_types::rate::{Bucket, Rate};

use super::QueueStats;

/// Wait after the first failure; doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// Longest wait after a failure of the key's own.
const BACKOFF_MAX: Duration = Duration::from_secs(1000);
/// Longest wait that anybody can ask for.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Failures of all keys together.
const RETRIES: Rate = Rate { per_second: 10.0, burst: 100 };

/// A key in `dirty` waits in `waiting`, or is worked on and comes again afterwards.
pub(super) struct State<K> {
    waiting: VecDeque<K>,
    dirty: HashSet<K>,
    working: HashMap<K, Instant>,
    delayed: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    retries: Bucket,
    closed: bool,
    adds: u64,
    retried: u64,
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            dirty: HashSet::new(),
            working: HashMap::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            retries: Bucket::new(RETRIES),
            closed: false,
            adds: 0,
            retried: 0,
        }
    }

    /// Adds a key, unless it waits already.
    pub(super) fn add(&mut self, key: K, now: Instant) {
        self.release_due(now);
        self.put(key);
    }

    fn put(&mut self, key: K) {
        if self.closed || !self.dirty.insert(key.clone()) {
            return;
        }
        self.adds += 1;
        if !self.working.contains_key(&key) {
            self.waiting.push_back(key);
        }
    }

    /// Adds a key when the time has come; the earliest time of several counts.
    pub(super) fn add_after(&mut self, key: K, now: Instant, wait: Duration) {
        if wait.is_zero() {
            return self.add(key, now);
        }
        if self.closed {
            return;
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
    pub(super) fn add_rate_limited(&mut self, key: K, now: Instant) {
        self.retried += 1;
        let failures = self.failures.entry(key.clone()).or_default();
        let own = BACKOFF_MIN.saturating_mul(1 << (*failures).min(30)).min(BACKOFF_MAX);
        *failures = failures.saturating_add(1);
        let wait = own.max(self.retries.take(now));
        self.add_after(key, now, wait);
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    /// Gives out the key that has waited longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        self.release_due(now);
        let key = self.waiting.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone(), now);
        Some(key)
    }

    /// Work on the key ended.
    pub(super) fn done(&mut self, key: &K, now: Instant) {
        self.release_due(now);
        if self.working.remove(key).is_some() && self.dirty.contains(key) {
            self.waiting.push_back(key.clone());
        }
    }

    /// When the next delayed key comes.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    pub(super) fn depth(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.delayed.clear();
        self.due.clear();
    }

    /// Closed, and nothing waits any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed && self.waiting.is_empty()
    }

    pub(super) fn stats(&self, now: Instant) -> QueueStats {
        let ages = self.working.values().map(|begun| now.saturating_duration_since(*begun));
        QueueStats {
            depth: self.depth(),
            adds: self.adds,
            retries: self.retried,
            unfinished: ages.clone().sum(),
            longest: ages.max().unwrap_or_default(),
        }
    }

    fn release_due(&mut self, now: Instant) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { return };
            self.due.remove(&key);
            self.put(key);
        }
    }
}
