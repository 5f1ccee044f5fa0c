//! Bitsets over node rows: dense words for masks, and a row set that is sparse while it is small.
//!
//! Input: row numbers. Output: 64-bit words, one bit a row, bit `row % 64` of word `row / 64`.
//! Owner: the holder of the set; masks are scratch, row sets belong to the snapshot.
//! Bounds: a dense set takes `rows / 8` bytes; a `RowSet` turns dense only when that is not more
//! than eight bytes a member, so that a set never costs more than its members justify.
//! Why: a filter over nodes is then an AND of words, 64 nodes an instruction.

pub use crate::chunk::WORD_ROWS;
use crate::simd::words;

/// A dense bitset; words beyond the end read as zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set with room for `rows` rows.
    #[must_use]
    pub fn with_rows(rows: usize) -> Self {
        Self { words: vec![0; rows.div_ceil(WORD_ROWS)] }
    }

    /// The words, lowest rows first.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The words for writing; the length is fixed by the owner.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Makes room for `rows` rows; never shrinks.
    pub fn grow(&mut self, rows: usize) {
        let words = rows.div_ceil(WORD_ROWS);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    /// Clears the set and gives it exactly the room for `rows` rows.
    pub fn reset(&mut self, rows: usize) {
        self.words.clear();
        self.words.resize(rows.div_ceil(WORD_ROWS), 0);
    }

    /// Becomes a copy of `other`, with room for `rows` rows.
    pub fn copy_from(&mut self, other: &Bits, rows: usize) {
        self.words.clear();
        self.words.extend_from_slice(&other.words[..other.words.len().min(rows.div_ceil(64))]);
        self.words.resize(rows.div_ceil(WORD_ROWS), 0);
    }

    /// Returns true if `row` is in the set.
    #[must_use]
    pub fn get(&self, row: u32) -> bool {
        let row = row as usize;
        self.words.get(row / 64).is_some_and(|w| w >> (row % 64) & 1 == 1)
    }

    /// Inserts `row`, growing when needed.
    pub fn set(&mut self, row: u32) {
        self.grow(row as usize + 1);
        self.words[row as usize / 64] |= 1 << (row % 64);
    }

    /// Removes `row`.
    pub fn clear(&mut self, row: u32) {
        if let Some(word) = self.words.get_mut(row as usize / 64) {
            *word &= !(1 << (row % 64));
        }
    }

    /// Number of rows in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        crate::simd::count_rows(&self.words)
    }

    /// Returns true if no row is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// Keeps the rows that are also in `other`.
    pub fn and(&mut self, other: &Bits) {
        let shared = self.words.len().min(other.words.len());
        let (both, beyond) = self.words.split_at_mut(shared);
        words::and(both, &other.words);
        beyond.fill(0);
    }

    /// Removes the rows of `other`.
    pub fn and_not(&mut self, other: &Bits) {
        words::and_not(&mut self.words, &other.words);
    }

    /// Becomes the rows of `from` that are in `mask`, and removes them from `from`.
    pub fn take_from(&mut self, from: &mut Bits, mask: &Bits) {
        self.words.resize(from.words.len(), 0);
        let shared = from.words.len().min(mask.words.len());
        words::split(&mut self.words[..shared], &mut from.words, &mask.words);
        self.words[shared..].fill(0);
    }

    /// Adds the rows of `other`; rows beyond this set's size are dropped.
    pub fn or(&mut self, other: &Bits) {
        words::or(&mut self.words, &other.words);
    }

    /// Returns true if every row of this set is in `other`.
    #[must_use]
    pub fn is_subset_of(&self, other: &Bits) -> bool {
        let (both, beyond) = self.words.split_at(self.words.len().min(other.words.len()));
        !words::exceeds(both, &other.words) && beyond.iter().all(|w| *w == 0)
    }

    /// Returns true if the two sets share a row.
    #[must_use]
    pub fn intersects(&self, other: &Bits) -> bool {
        words::intersects(&self.words, &other.words)
    }

    /// The rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(i, word)| BitIter(*word).map(move |b| i as u32 * 64 + b))
    }

    /// The lowest row.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        let word = self.words.iter().position(|word| *word != 0)?;
        Some((word * WORD_ROWS) as u32 + self.words[word].trailing_zeros())
    }
}

/// The bits of one word, ascending.
struct BitIter(u64);

impl Iterator for BitIter {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// A set of rows: sorted numbers while small, words once that is not larger.
#[derive(Clone, Debug)]
pub enum RowSet {
    /// Sorted row numbers.
    Sparse(Vec<u32>),
    /// Words, and how many rows are in them.
    Dense(Bits, u32),
}

impl Default for RowSet {
    fn default() -> Self {
        Self::Sparse(Vec::new())
    }
}

impl RowSet {
    /// Inserts `row`; returns true if it was new. `rows` is the size of the table.
    pub fn insert(&mut self, row: u32, rows: usize) -> bool {
        match self {
            Self::Sparse(list) => {
                let Err(at) = list.binary_search(&row) else { return false };
                list.insert(at, row);
                if list.len() * WORD_ROWS > rows.max(WORD_ROWS) {
                    let mut bits = Bits::with_rows(rows);
                    list.iter().for_each(|r| bits.set(*r));
                    *self = Self::Dense(bits, list.len() as u32);
                }
                true
            }
            Self::Dense(bits, count) => {
                let new = !bits.get(row);
                bits.set(row);
                *count += u32::from(new);
                new
            }
        }
    }

    /// Removes `row`; returns true if it was there.
    pub fn remove(&mut self, row: u32) -> bool {
        match self {
            Self::Sparse(list) => list.binary_search(&row).map(|at| list.remove(at)).is_ok(),
            Self::Dense(bits, count) => {
                let had = bits.get(row);
                bits.clear(row);
                *count -= u32::from(had);
                had
            }
        }
    }

    /// Returns true if `row` is in the set.
    #[must_use]
    pub fn contains(&self, row: u32) -> bool {
        match self {
            Self::Sparse(list) => list.binary_search(&row).is_ok(),
            Self::Dense(bits, _) => bits.get(row),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Sparse(list) => list.len(),
            Self::Dense(_, count) => *count as usize,
        }
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes these rows from `mask`.
    pub fn clear_from(&self, mask: &mut Bits) {
        match self {
            Self::Sparse(list) => list.iter().for_each(|r| mask.clear(*r)),
            Self::Dense(bits, _) => mask.and_not(bits),
        }
    }

    /// Adds these rows to `mask`, which must have room for them.
    pub fn add_to(&self, mask: &mut Bits) {
        match self {
            Self::Sparse(list) => list.iter().for_each(|r| mask.set(*r)),
            Self::Dense(bits, _) => mask.or(bits),
        }
    }

    /// Calls `each` with every row, ascending.
    pub fn for_each(&self, mut each: impl FnMut(u32)) {
        match self {
            Self::Sparse(list) => list.iter().for_each(|r| each(*r)),
            Self::Dense(bits, _) => bits.iter().for_each(each),
        }
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Sparse(list) => list.capacity() * 4,
            Self::Dense(bits, _) => bits.words.capacity() * 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_set_means_the_same_sparse_and_dense() {
        let mut set = RowSet::default();
        for row in [3, 900, 64, 3, 12] {
            set.insert(row, 1000);
        }
        assert!(matches!(set, RowSet::Sparse(_)) && set.len() == 4);
        (0..40).for_each(|row| {
            set.insert(row * 20, 1000);
        });
        assert!(matches!(set, RowSet::Dense(..)) && set.contains(900) && set.contains(64));
        assert!(set.remove(64) && !set.remove(64) && !set.contains(64));
        let mut mask = Bits::with_rows(1000);
        set.add_to(&mut mask);
        assert_eq!(mask.count(), set.len());
        set.clear_from(&mut mask);
        assert!(mask.is_empty());
    }

    #[test]
    fn words_beyond_the_end_read_as_zero() {
        let mut long = Bits::with_rows(200);
        long.set(150);
        let short = Bits::with_rows(64);
        assert!(!long.is_subset_of(&short) && short.is_subset_of(&long));
        long.and(&short);
        assert!(long.is_empty());
    }
}
