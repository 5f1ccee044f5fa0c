//! Answers that are cached for a while. Pure: the caller passes the time.
//!
//! Bounds: `ENTRIES_MAX` entries; the oldest goes first. An entry that is too old is no answer.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Answers kept.
// k8s: staging/src/k8s.io/apiserver/plugin/pkg/authorizer/webhook/webhook.go (8192 entries)
pub(super) const ENTRIES_MAX: usize = 8192;

/// A bounded map with entries that expire.
#[derive(Debug)]
pub(super) struct TtlCache<K, V> {
    entries: HashMap<K, TtlEntry<V>>,
    /// Keys in the order in which they were put, with the number of that put.
    order: VecDeque<(u64, K)>,
    puts: u64,
    max: usize,
}

#[derive(Debug)]
struct TtlEntry<V> {
    value: V,
    until: Instant,
    put: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> TtlCache<K, V> {
    /// An empty cache of at most `max` entries.
    pub(super) fn new(max: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), puts: 0, max: max.max(1) }
    }

    /// The answer, if it is not too old.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.entries.get(key).filter(|e| now < e.until).map(|e| e.value.clone())
    }

    /// Remembers an answer for `ttl`; not at all for zero.
    pub(super) fn put(&mut self, key: K, value: V, ttl: Duration, now: Instant) {
        if ttl.is_zero() {
            return;
        }
        self.puts += 1;
        let entry = TtlEntry { value, until: now + ttl, put: self.puts };
        self.order.push_back((self.puts, key.clone()));
        self.entries.insert(key, entry);
        while self.entries.len() > self.max || self.order.len() > 2 * self.max {
            let Some((put, key)) = self.order.pop_front() else { break };
            // A key that was put again since is younger than this place in the order.
            if self.entries.get(&key).is_some_and(|entry| entry.put == put) {
                self.entries.remove(&key);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn cached_answer_expires_after_its_ttl() {
        let mut cache = TtlCache::new(4);
        let now = Instant::now();
        cache.put("a", 1, SECOND, now);
        cache.put("never", 1, Duration::ZERO, now);
        assert_eq!(cache.get(&"a", now), Some(1));
        assert_eq!(cache.get(&"a", now + SECOND), None);
        assert_eq!(cache.get(&"never", now), None);
    }

    #[test]
    fn the_oldest_answer_makes_room() {
        let mut cache = TtlCache::new(2);
        let now = Instant::now();
        for (key, value) in [("a", 1), ("b", 1), ("a", 2), ("c", 1)] {
            cache.put(key, value, SECOND, now);
        }
        assert_eq!(cache.get(&"a", now), Some(2), "put again, so younger than b");
        assert_eq!((cache.get(&"b", now), cache.get(&"c", now)), (None, Some(1)));
    }

    proptest! {
        #[test]
        fn cache_never_exceeds_its_bound(keys in proptest::collection::vec(0_u8..20, 0..300)) {
            let (mut cache, now) = (TtlCache::new(5), Instant::now());
            for key in keys {
                cache.put(key, (), SECOND, now);
                let (entries, order) = cache.len();
                prop_assert!(entries <= 5 && order <= 10);
                prop_assert!(cache.get(&key, now).is_some());
            }
        }
    }
}
