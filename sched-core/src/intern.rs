//! Interning: every string, and every set of labels, is stored once and named by a small number.
//!
//! Input: strings of the API objects. Output: `Str` and `LabelsId`, equal if and only if the text is.
//! Owner: the writer of the cluster; ids are never reused, so a copy of one stays valid.
//! Bounds: 2^32 strings. Nothing is freed: the set of label values of a cluster is small and stable.
//! Why: comparisons and hashes of constraints become those of integers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// An interned string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Str(pub u32);

/// An interned set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelsId(pub u32);

/// A multiplicative hasher: ids and short strings of a trusted process need no keyed hash.
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

/// All strings and label sets.
#[derive(Clone, Debug, Default)]
pub struct Interner {
    ids: FastMap<Arc<str>, Str>,
    texts: Vec<Arc<str>>,
    label_ids: FastMap<Arc<[(Str, Str)]>, LabelsId>,
    labels: Vec<Arc<[(Str, Str)]>>,
}

impl Interner {
    /// The id of `text`, new if never seen.
    pub fn intern(&mut self, text: &str) -> Str {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = Str(u32::try_from(self.texts.len()).expect("fewer than 2^32 strings"));
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    /// The id of `text` if it was ever interned.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Str> {
        self.ids.get(text).copied()
    }

    /// The text of an id of this interner.
    #[must_use]
    pub fn text(&self, id: Str) -> &Arc<str> {
        &self.texts[id.0 as usize]
    }

    /// The id of a set of labels.
    pub fn intern_labels<'a>(
        &mut self,
        labels: impl Iterator<Item = (&'a String, &'a String)>,
    ) -> LabelsId {
        let mut pairs: Vec<_> = labels.map(|(k, v)| (self.intern(k), self.intern(v))).collect();
        pairs.sort_unstable();
        if let Some(id) = self.label_ids.get(pairs.as_slice()) {
            return *id;
        }
        let id = LabelsId(u32::try_from(self.labels.len()).expect("fewer than 2^32 label sets"));
        let pairs: Arc<[(Str, Str)]> = pairs.into();
        self.labels.push(Arc::clone(&pairs));
        self.label_ids.insert(pairs, id);
        id
    }

    /// The pairs of a label set, sorted by key id.
    #[must_use]
    pub fn labels(&self, id: LabelsId) -> &Arc<[(Str, Str)]> {
        &self.labels[id.0 as usize]
    }
}

/// Hash of any value with the crate's hasher, for signatures.
pub(crate) fn fast_hash(value: &impl Hash) -> u64 {
    let mut hasher = FastHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_label_sets_share_an_id_whatever_their_order() {
        let mut interner = Interner::default();
        let (a, b) = (("x".to_owned(), "1".to_owned()), ("y".to_owned(), "2".to_owned()));
        let one = interner.intern_labels([(&a.0, &a.1), (&b.0, &b.1)].into_iter());
        let two = interner.intern_labels([(&b.0, &b.1), (&a.0, &a.1)].into_iter());
        assert_eq!(one, two);
        assert_eq!(&**interner.text(interner.find("y").expect("interned")), "y");
        assert_eq!(interner.find("z"), None);
    }
}
