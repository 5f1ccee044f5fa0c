//! A queue with turns per key, so that no key waits behind the backlog of another one. Pure.
//!
//! Input: items, each with a key (a namespace, a peer). Output: items, one of each key in turn;
//! items of one key keep their order. Bounds are the owner's: a queue never refuses an item.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Items by key, and the order in which keys have their turns.
#[derive(Clone, Debug)]
pub struct FairQueue<K, T> {
    queues: HashMap<K, VecDeque<T>>,
    /// Keys that have items, each once; the first is next.
    turns: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    /// Appends an item. A key without items has its turn after all others.
    pub fn push(&mut self, key: K, item: T) {
        let queue = self.queues.entry(key.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(key);
        }
        queue.push_back(item);
        self.len += 1;
    }

    /// Takes the oldest item of the next key.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.pop_where(|_, _| Some(0))
    }

    /// Takes the item that `choose` points at, for the first key in turn for which it points at
    /// one. Keys that are passed over keep their turns.
    pub fn pop_where(
        &mut self,
        mut choose: impl FnMut(&K, &VecDeque<T>) -> Option<usize>,
    ) -> Option<(K, T)> {
        let found = self.turns.iter().enumerate().find_map(|(turn, key)| {
            let at = choose(key, self.queues.get(key)?)?;
            Some((turn, at))
        });
        let (turn, at) = found?;
        let key = self.turns.remove(turn)?;
        let queue = self.queues.get_mut(&key)?;
        let item = queue.remove(at)?;
        self.len -= 1;
        match queue.is_empty() {
            true => drop(self.queues.remove(&key)),
            false => self.turns.push_back(key.clone()),
        }
        Some((key, item))
    }

    /// Takes the newest item of a key.
    pub fn pop_newest(&mut self, key: &K) -> Option<T> {
        let item = self.queues.get_mut(key)?.pop_back()?;
        self.removed_one(key);
        Some(item)
    }

    /// Takes the first item of a key that `is_it` accepts.
    pub fn remove(&mut self, key: &K, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let queue = self.queues.get_mut(key)?;
        let at = queue.iter().position(is_it)?;
        let item = queue.remove(at)?;
        self.removed_one(key);
        Some(item)
    }

    /// Number of items of a key.
    pub fn count(&self, key: &K) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no item.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keys that have items, the next one first.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.turns.iter()
    }

    fn removed_one(&mut self, key: &K) {
        self.len -= 1;
        if self.queues.get(key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(key);
            self.turns.retain(|turn| turn != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_take_turns_and_items_of_one_key_keep_their_order() {
        let mut queue = FairQueue::default();
        for item in 0..4 {
            queue.push("many", item);
        }
        queue.push("one", 10);
        queue.push("two", 20);
        queue.push("two", 21);
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let of = |key| all.iter().filter(|(k, _)| *k == key).map(|(_, i)| *i).collect::<Vec<_>>();
        assert_eq!(all.iter().position(|(key, _)| *key == "one"), Some(1));
        assert_eq!((of("many"), of("two")), (vec![0, 1, 2, 3], vec![20, 21]));
        assert!(queue.is_empty());
    }

    #[test]
    fn skipped_key_is_next() {
        let mut queue = FairQueue::default();
        for key in ["a", "b", "c"] {
            queue.push(key, ());
            queue.push(key, ());
        }
        let not_a = |key: &&str, _: &VecDeque<()>| (*key != "a").then_some(0);
        assert_eq!(queue.pop_where(not_a).map(|(key, ())| key), Some("b"));
        assert_eq!(queue.pop_where(not_a).map(|(key, ())| key), Some("c"));
        assert_eq!(queue.pop().map(|(key, ())| key), Some("a"));
    }

    proptest! {
        /// Compared with a list of (key, item): nothing is lost, repeated or out of order, and no
        /// key has a second item taken while another one waits for its first.
        #[test]
        fn queue_loses_no_item_and_serves_each_key_once_per_round(
            steps in proptest::collection::vec((0_u8..5, 0_u8..6), 0..200)
        ) {
            let (mut queue, mut model) = (FairQueue::default(), Vec::<(u8, usize)>::new());
            for (number, (what, key)) in steps.into_iter().enumerate() {
                let first = |model: &[(u8, usize)]| model.iter().position(|(k, _)| *k == key);
                match what {
                    0..=2 => {
                        queue.push(key, number);
                        model.push((key, number));
                    }
                    3 => {
                        let at = model.iter().rposition(|(k, _)| *k == key);
                        prop_assert_eq!(queue.pop_newest(&key), at.map(|at| model.remove(at).1));
                    }
                    _ => {
                        let at = first(&model);
                        let expected = at.map(|at| model.remove(at).1);
                        prop_assert_eq!(queue.remove(&key, |_| true), expected);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.count(&key), model.iter().filter(|(k, _)| *k == key).count());
            }
            let keys: BTreeSet<u8> = model.iter().map(|(key, _)| *key).collect();
            let round: Vec<_> = (0..keys.len()).filter_map(|_| queue.pop()).collect();
            let served: BTreeSet<u8> = round.iter().map(|(key, _)| *key).collect();
            prop_assert_eq!(served, keys);
            for (key, item) in round {
                let at = model.iter().position(|(k, _)| *k == key).expect("it was pushed");
                prop_assert_eq!(model.remove(at).1, item);
            }
            prop_assert_eq!(queue.len(), model.len());
        }
    }
}
