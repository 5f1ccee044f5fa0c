//! Interning: every string, and every set of labels, is stored once and named by a small number.
//!
//! Input: strings of the API objects. Output: `Str` and `LabelsId`, equal if and only if the text
//! is. Owner: the writer of the cluster. Bounds: 2^32 strings at a time. A number is not given
//! twice within the first 2^30, and later not before `QUARANTINE` sweeps, so that a copy of one
//! never means another text: no copy without a lease lives as long. `sweep` frees unreferenced
//! entries. Its caller marks those in the tables; code that holds numbers outside of them
//! (programs, parsed pods, budgets) holds a `Lease` of an era, which protects every entry that was
//! created in or before that era and last requested in or after it. Why: comparisons and hashes of
//! constraints become those of integers.
//! Tenants choose these texts, so that the maps by text have keyed hashes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Weak};

/// An interned string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Str(pub u32);

/// An interned set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelsId(pub u32);

/// A multiplicative hasher for numbers assigned by this process, which no outsider can choose.
#[derive(Clone, Copy, Default)]
pub struct FastHasher(u64);

/// Odd 64-bit constant close to 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        // The table takes the top seven bits and the low bits: both must depend on everything.
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().expect("chunk of eight")));
        }
        let mut rest = [0; 8];
        rest[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        self.write_u64(u64::from_le_bytes(rest) ^ bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(MIX);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A map hashed by [`FastHasher`].
pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Protects the entries that its holder refers to. Two leases are always equal, because a lease
/// says nothing about the value that holds it.
#[derive(Clone, Debug, Default)]
pub struct Lease(#[allow(dead_code)] Option<Arc<u32>>);

impl PartialEq for Lease {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lease {}

impl Hash for Lease {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Bookkeeping of an id.
#[derive(Clone, Copy, Debug)]
struct InternedEntry<I> {
    id: I,
    /// The era in which it was assigned.
    born: u32,
    /// The era in which it was last requested.
    asked: u32,
}

/// Numbers after which freed ones are reused: churning labels would use up all within weeks.
const REUSE_FROM: u32 = 1 << 30;
/// Sweeps before a freed number is reused.
const QUARANTINE: u32 = 8;
/// Freed numbers kept: four bytes each.
const FREED_MAX: usize = 1 << 24;

/// Numbers to give.
#[derive(Clone, Debug, Default)]
struct Supply {
    next: u32,
    /// Freed numbers by the era in which they were freed, the oldest first.
    freed: VecDeque<(u32, Vec<u32>)>,
    freed_len: usize,
}

impl Supply {
    fn give(&mut self, era: u32) -> u32 {
        if self.next >= REUSE_FROM
            && let Some((freed, numbers)) = self.freed.front_mut()
            && era - *freed >= QUARANTINE
            && let Some(number) = numbers.pop()
        {
            self.freed_len -= 1;
            if numbers.is_empty() {
                self.freed.pop_front();
            }
            return number;
        }
        let number = self.next;
        self.next = number.checked_add(1).expect("so many strings at a time exceed any memory");
        number
    }

    fn take_back(&mut self, numbers: Vec<u32>, era: u32) {
        if self.next >= REUSE_FROM && !numbers.is_empty() && self.freed_len < FREED_MAX {
            self.freed_len += numbers.len();
            self.freed.push_back((era, numbers));
        }
    }
}

/// All strings and label sets.
#[derive(Clone, Debug, Default)]
pub struct Interner {
    ids: HashMap<Arc<str>, InternedEntry<Str>>,
    texts: FastMap<Str, Arc<str>>,
    label_ids: HashMap<Arc<[(Str, Str)]>, InternedEntry<LabelsId>>,
    labels: FastMap<LabelsId, Arc<[(Str, Str)]>>,
    text_numbers: Supply,
    set_numbers: Supply,
    era: u32,
    current: Option<Arc<u32>>,
    /// Eras with a possible lease, without the current one, ascending.
    leased: VecDeque<Weak<u32>>,
}

/// Ids that the tables of a cluster refer to.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) texts: HashSet<Str, BuildHasherDefault<FastHasher>>,
    pub(crate) labels: HashSet<LabelsId, BuildHasherDefault<FastHasher>>,
}

impl Interner {
    /// Returns the id of `text`, new if it is not known.
    pub fn intern(&mut self, text: &str) -> Str {
        if let Some(known) = self.ids.get_mut(text) {
            known.asked = self.era;
            return known.id;
        }
        let id = Str(self.text_numbers.give(self.era));
        let text: Arc<str> = text.into();
        self.texts.insert(id, Arc::clone(&text));
        self.ids.insert(text, InternedEntry { id, born: self.era, asked: self.era });
        id
    }

    /// Returns the id of `text` if it is known.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Str> {
        self.ids.get(text).map(|known| known.id)
    }

    /// Returns the text of an id; empty if it was freed.
    #[must_use]
    pub fn text(&self, id: Str) -> &str {
        self.texts.get(&id).map_or("", |text| text)
    }

    /// Returns the id of a set of labels.
    pub fn intern_labels<'a>(
        &mut self,
        labels: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> LabelsId {
        let mut pairs: Vec<_> = labels.map(|(k, v)| (self.intern(k), self.intern(v))).collect();
        pairs.sort_unstable();
        self.intern_pairs(&pairs)
    }

    /// The id of a set of labels that is sorted already.
    pub(crate) fn intern_pairs(&mut self, pairs: &[(Str, Str)]) -> LabelsId {
        if let Some(known) = self.label_ids.get_mut(pairs) {
            known.asked = self.era;
            return known.id;
        }
        let id = LabelsId(self.set_numbers.give(self.era));
        let pairs: Arc<[(Str, Str)]> = pairs.into();
        self.labels.insert(id, Arc::clone(&pairs));
        self.label_ids.insert(pairs, InternedEntry { id, born: self.era, asked: self.era });
        id
    }

    /// The pairs of a label set, sorted by key id.
    ///
    /// # Panics
    /// The set was freed: its holder held no lease.
    #[must_use]
    pub fn labels(&self, id: LabelsId) -> &Arc<[(Str, Str)]> {
        self.labels.get(&id).expect("a label set is leased while its id is held")
    }

    /// Protects entries requested in this era, and older entries not freed yet.
    pub(crate) fn lease(&mut self) -> Lease {
        Lease(Some(Arc::clone(self.current.get_or_insert_with(|| Arc::new(self.era)))))
    }

    /// Strings and label sets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len() + self.label_ids.len()
    }

    /// Returns true if nothing was interned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees what is neither marked nor leased, and begins an era.
    pub(crate) fn sweep(&mut self, marks: &mut Marks) {
        if let Some(current) = self.current.take() {
            self.leased.push_back(Arc::downgrade(&current));
        }
        self.leased.retain(|era| era.strong_count() > 0);
        let eras: Vec<u32> = self.leased.iter().filter_map(|e| e.upgrade().map(|e| *e)).collect();
        let leased = |born: u32, asked: u32| {
            let first = eras.partition_point(|era| *era < born);
            eras.get(first).is_some_and(|era| *era <= asked)
        };
        let (mut texts, mut sets) = (Vec::new(), Vec::new());
        self.label_ids.retain(|pairs, known| {
            let kept = marks.labels.contains(&known.id) || leased(known.born, known.asked);
            if kept {
                marks.texts.extend(pairs.iter().flat_map(|(k, v)| [*k, *v]));
            } else {
                self.labels.remove(&known.id);
                sets.push(known.id.0);
            }
            kept
        });
        self.ids.retain(|_, known| {
            let kept = marks.texts.contains(&known.id) || leased(known.born, known.asked);
            if !kept {
                self.texts.remove(&known.id);
                texts.push(known.id.0);
            }
            kept
        });
        self.set_numbers.take_back(sets, self.era);
        self.text_numbers.take_back(texts, self.era);
        self.era = self.era.checked_add(1).expect("fewer than 2^32 sweeps");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_label_sets_share_an_id_in_any_order() {
        let mut interner = Interner::default();
        let (a, b) = (("x".to_owned(), "1".to_owned()), ("y".to_owned(), "2".to_owned()));
        let one = interner.intern_labels([(&a.0, &a.1), (&b.0, &b.1)].into_iter());
        let two = interner.intern_labels([(&b.0, &b.1), (&a.0, &a.1)].into_iter());
        assert_eq!(one, two);
        assert_eq!(interner.text(interner.find("y").expect("interned")), "y");
        assert_eq!(interner.find("z"), None);
    }

    #[test]
    fn sweep_frees_texts_that_are_neither_marked_nor_leased() {
        let mut interner = Interner::default();
        let marked = interner.intern("marked");
        let old = interner.intern("asked for by the holder");
        let lease = interner.lease();
        let mut marks = Marks::default();
        marks.texts.insert(marked);
        interner.sweep(&mut marks);
        assert_eq!(
            (interner.text(marked), interner.text(old)),
            ("marked", "asked for by the holder")
        );
        // It is younger than the lease: no holder protects it.
        let young = interner.intern("young");
        interner.sweep(&mut marks);
        assert_eq!((interner.text(old), interner.find("young")), ("asked for by the holder", None));
        drop(lease);
        interner.sweep(&mut marks);
        assert_eq!((interner.find("asked for by the holder"), interner.len()), (None, 1));
        let again = interner.intern("young");
        assert!(again != young && interner.text(young).is_empty(), "no number is given twice");
    }

    #[test]
    fn numbers_of_freed_strings_are_given_again_before_all_are_used_up() {
        let mut interner = Interner::default();
        let kept = interner.intern("kept");
        let lease = interner.lease();
        interner.sweep(&mut Marks::default());
        interner.text_numbers.next = u32::MAX - 90;
        interner.set_numbers.next = u32::MAX - 90;
        let mut seen = std::collections::HashMap::new();
        for sweep in 0..1_000 {
            let (key, value) = (format!("k{sweep}"), format!("v{sweep}"));
            let id = interner.intern_labels([(&key, &value)].into_iter());
            assert_eq!(interner.text(interner.labels(id)[0].0), key);
            let number = interner.find(&key).expect("interned");
            if let Some(before) = seen.insert(number, sweep) {
                assert!(sweep - before >= QUARANTINE, "{number:?} in sweeps {before} and {sweep}");
            }
            assert!(number != kept);
            interner.sweep(&mut Marks::default());
        }
        assert_eq!((interner.text(kept), interner.len()), ("kept", 1));
        drop(lease);
    }

    #[test]
    fn leased_label_set_keeps_its_texts_through_a_sweep() {
        let mut interner = Interner::default();
        let pair = ("k".to_owned(), "v".to_owned());
        let id = interner.intern_labels([(&pair.0, &pair.1)].into_iter());
        let lease = interner.lease();
        interner.sweep(&mut Marks::default());
        let words = interner.labels(id)[0];
        assert_eq!((interner.text(words.0), interner.text(words.1)), ("k", "v"));
        drop(lease);
        interner.sweep(&mut Marks::default());
        assert!(interner.is_empty());
    }
}
