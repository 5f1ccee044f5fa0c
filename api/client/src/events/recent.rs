//! A map that evicts the least recently used entry.

use std::collections::{BTreeMap, HashMap};

/// Key of an event or an object: a hash of its parts, wide enough that no two are ever alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey(u64, u64);

impl EventKey {
    pub(super) fn of(parts: &[&str]) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let hash = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            seed.hash(&mut hasher);
            parts.hash(&mut hasher);
            hasher.finish()
        };
        Self(hash(0), hash(1))
    }
}

/// At most `max` values, the most recently used ones.
#[derive(Debug)]
pub(super) struct Recent<V> {
    max: usize,
    values: HashMap<EventKey, (u64, V)>,
    order: BTreeMap<u64, EventKey>,
    clock: u64,
}

impl<V> Recent<V> {
    pub(super) fn new(max: usize) -> Self {
        Self { max, values: HashMap::new(), order: BTreeMap::new(), clock: 0 }
    }

    /// The value of that key, made if there is none, and used now.
    pub(super) fn entry(&mut self, key: EventKey, fresh: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        let clock = self.clock;
        if let Some((used, _)) = self.values.get(&key) {
            self.order.remove(used);
        } else if self.values.len() >= self.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.order.insert(clock, key);
        let (used, value) = self.values.entry(key).or_insert_with(|| (clock, fresh()));
        *used = clock;
        value
    }

    /// Number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}
