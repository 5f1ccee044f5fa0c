//! Position of a string in a list of distinct strings: four bytes an entry and room to spare.
//!
//! Input: a list that its owner keeps, and changes to it. Output: where in it a string is.
//! Owner: the owner of the list; both are changed together. Bounds: at most seven eighths of the
//! slots are taken, at most half of them wasted by doubling.
//! Why not a map: the strings are in the list already, and node names and hostname values would be
//! stored twice, with a control byte each, for every node.

use crate::intern::Str;

/// Slots of an index that is not empty.
const SLOTS_MIN: usize = 4;
/// A free slot.
const FREE: u32 = u32::MAX;

/// Positions by string, open addressing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    slots: Vec<u32>,
    len: usize,
}

impl Index {
    /// Returns the position of `text` in `list`.
    #[must_use]
    pub(crate) fn find(&self, text: Str, list: &[Str]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.probe(text, list);
        (self.slots[slot] != FREE).then_some(self.slots[slot])
    }

    /// Enters the string at position `at` of `list`, which must not be there already.
    pub(crate) fn insert(&mut self, at: u32, list: &[Str]) {
        if (self.len + 1) * 8 > self.slots.len() * 7 {
            let slots = (self.slots.len() * 2).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, vec![FREE; slots]);
            for at in old.into_iter().filter(|at| *at != FREE) {
                let slot = self.probe(list[at as usize], list);
                self.slots[slot] = at;
            }
        }
        let slot = self.probe(list[at as usize], list);
        assert_eq!(self.slots[slot], FREE, "a string is entered once");
        self.slots[slot] = at;
        self.len += 1;
    }

    /// Removes the string at position `at`, which the list must still hold.
    pub(crate) fn remove(&mut self, at: u32, list: &[Str]) {
        let mask = self.slots.len() - 1;
        let mut hole = self.probe(list[at as usize], list);
        assert_eq!(self.slots[hole], at, "only what was entered is removed");
        // An entry with a probe path across the hole moves into it.
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            if self.slots[next] == FREE {
                break;
            }
            let home = self.home(list[self.slots[next] as usize]);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
        }
        self.slots[hole] = FREE;
        self.len -= 1;
    }

    /// Bytes held on the heap.
    #[must_use]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * 4
    }

    /// Returns the slot of `text`, or the free one where it would be inserted.
    fn probe(&self, text: Str, list: &[Str]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(text);
        while self.slots[slot] != FREE && list[self.slots[slot] as usize] != text {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn home(&self, text: Str) -> usize {
        // The top bits of a multiplicative hash spread numbers that follow one another.
        let hash = u64::from(text.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

/// Appends with an eighth of slack instead of doubling: these lists have a number for each node.
pub(crate) fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(SLOTS_MIN));
    }
    list.push(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_finds_inserted_entries_until_they_are_removed() {
        let list: Vec<Str> = (0..500).map(|at| Str(at * 7919 % 1000)).collect();
        let mut index = Index::default();
        assert_eq!(index.find(Str(1), &list), None);
        (0..500).for_each(|at| index.insert(at, &list));
        (0..500).filter(|at| at % 3 != 0).for_each(|at| index.remove(at, &list));
        for at in 0..500 {
            let expected = (at % 3 == 0).then_some(at);
            assert_eq!(index.find(list[at as usize], &list), expected);
        }
        (0..500).filter(|at| at % 3 != 0).for_each(|at| index.insert(at, &list));
        assert!((0..500).all(|at| index.find(list[at as usize], &list) == Some(at)));
        assert!(index.heap_bytes() <= 500 * 9);
    }
}
