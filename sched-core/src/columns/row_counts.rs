//! Number of pods of some kind by row: a map while few rows have any, bit planes afterwards.
//!
//! Input: a pod added or removed on a row. Output: the count of a row, the rows with a count, and
//! planes that kernels read: bit `k` of each row's count, 64 rows a word.
//! Owner: a counter or a term. Bounds: an entry a row with pods, or a bit a row and plane; planes
//! begin when that is not more than eight bytes a row with pods, as row sets do (`bits::RowSet`).
//! Why planes: a decision reads them beside its masks, at a cost that does not depend on the pods.

use crate::bits::{Bits, WORD_ROWS};
use crate::intern::FastMap;
use crate::simd::words;

/// Counts as bits: plane `k` has bit `k` of the count of each row. All planes are equally long.
#[derive(Clone, Debug, Default)]
pub struct Planes {
    planes: Vec<Bits>,
    /// Rows with a count.
    members: u32,
}

impl Planes {
    /// The planes, of the lowest bit first.
    #[must_use]
    pub fn planes(&self) -> &[Bits] {
        &self.planes
    }

    /// Count of a row.
    #[must_use]
    pub fn get(&self, row: u32) -> u32 {
        let bits = self.planes.iter().enumerate();
        bits.fold(0, |count, (k, plane)| count | u32::from(plane.get(row)) << k)
    }

    /// Sum of the counts of rows that are in both sets.
    #[must_use]
    pub fn sum(&self, rows: &Bits, others: &Bits) -> u64 {
        let planes = self.planes.iter().enumerate();
        let of = |plane: &Bits| words::count_common(plane.words(), rows.words(), others.words());
        planes.map(|(k, plane)| of(plane) << k).sum()
    }

    /// Sets the count of a row.
    pub fn set(&mut self, row: u32, count: u32) {
        self.members -= u32::from(self.get(row) != 0);
        self.members += u32::from(count != 0);
        let needed = (u32::BITS - count.leading_zeros()) as usize;
        let rows = (row as usize + 1).max(self.planes.first().map_or(0, |p| p.words().len() * 64));
        if needed > self.planes.len() {
            self.planes.resize_with(needed, Bits::default);
        }
        for (k, plane) in self.planes.iter_mut().enumerate() {
            plane.grow(rows);
            if count >> k & 1 == 1 { plane.set(row) } else { plane.clear(row) }
        }
    }

    /// Fills the planes from a map, reusing memory.
    fn fill(&mut self, counts: &FastMap<u32, u32>) {
        let most = counts.values().fold(0, |bits, count| bits | count);
        let rows = counts.keys().max().map_or(0, |row| *row as usize + 1);
        self.planes.resize_with((u32::BITS - most.leading_zeros()) as usize, Bits::default);
        for (k, plane) in self.planes.iter_mut().enumerate() {
            plane.reset(rows);
            let words = plane.words_mut();
            for (row, count) in counts {
                words[*row as usize / WORD_ROWS] |= u64::from(count >> k & 1) << (row % 64);
            }
        }
        self.members = counts.len() as u32;
    }

    /// Returns the rows with a count, ascending.
    fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let words = self.planes.first().map_or(0, |plane| plane.words().len());
        (0..words).flat_map(move |at| {
            let mut left = self.planes.iter().fold(0, |any, plane| any | plane.words()[at]);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                let row = (at * WORD_ROWS) as u32 + bit;
                Some((row, self.get(row)))
            })
        })
    }
}

/// Counts by row.
#[derive(Clone, Debug)]
pub enum RowCounts {
    /// By row, for rows with pods.
    Sparse(FastMap<u32, u32>),
    /// As bits.
    Dense(Planes),
}

impl Default for RowCounts {
    fn default() -> Self {
        Self::Sparse(FastMap::default())
    }
}

impl RowCounts {
    /// Count of a row.
    #[must_use]
    pub fn get(&self, row: u32) -> u32 {
        match self {
            Self::Sparse(counts) => counts.get(&row).copied().unwrap_or(0),
            Self::Dense(planes) => planes.get(row),
        }
    }

    /// Returns the rows with a count, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (sparse, dense) = match self {
            Self::Sparse(counts) => (Some(counts), None),
            Self::Dense(planes) => (None, Some(planes)),
        };
        let sparse = sparse.into_iter().flatten().map(|(row, count)| (*row, *count));
        sparse.chain(dense.into_iter().flat_map(Planes::iter))
    }

    /// Returns true if no row has any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Sparse(counts) => counts.is_empty(),
            Self::Dense(planes) => planes.members == 0,
        }
    }

    /// Adds the rows with a count to `mask`, which must have room for them.
    pub fn add_to(&self, mask: &mut Bits) {
        match self {
            Self::Sparse(counts) => counts.keys().for_each(|row| mask.set(*row)),
            Self::Dense(planes) => planes.planes.iter().for_each(|plane| mask.or(plane)),
        }
    }

    /// Adds pods to `row`, of a table of `rows`.
    pub fn add(&mut self, row: u32, delta: i32, rows: usize) {
        let count = self.get(row).checked_add_signed(delta);
        let count = count.expect("a pod leaves where it was counted");
        match self {
            Self::Sparse(counts) if count == 0 => _ = counts.remove(&row),
            Self::Sparse(counts) => {
                counts.insert(row, count);
                if counts.len() * WORD_ROWS > rows.max(WORD_ROWS) {
                    let mut planes = Planes::default();
                    planes.fill(counts);
                    *self = Self::Dense(planes);
                }
            }
            Self::Dense(planes) => {
                planes.set(row, count);
                if planes.members == 0 {
                    *self = Self::default();
                }
            }
        }
    }

    /// Returns the counts as planes, which are built in `spare` if they are sparse.
    pub(crate) fn planes<'a>(&'a self, spare: &'a mut Planes) -> &'a Planes {
        match self {
            Self::Dense(planes) => planes,
            Self::Sparse(counts) => {
                spare.fill(counts);
                spare
            }
        }
    }

    /// Bytes held on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Sparse(counts) => counts.capacity() * 9,
            Self::Dense(planes) => {
                planes.planes.iter().map(|p| p.words().len() * 8 + size_of::<Bits>()).sum()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn planes_count_as_a_map_does() {
        let (mut counts, mut map, mut state) = (RowCounts::default(), BTreeMap::new(), 1u64);
        let mut dense = 0;
        for at in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let row = (state >> 33) as u32 % 300;
            // More and more pods, then fewer and fewer, down to zero.
            let here: u32 = map.get(&row).copied().unwrap_or(0);
            let more = here == 0 || (state >> 20) % 100 < if at < 12_000 { 70 } else { 10 };
            let delta = if more && at < 15_000 { 1 } else { -1 };
            if here == 0 && delta < 0 {
                continue;
            }
            counts.add(row, delta, 300);
            map.insert(row, here.checked_add_signed(delta).expect("one at least"));
            map.retain(|_, count| *count > 0);
            assert_eq!(counts.get(row), map.get(&row).copied().unwrap_or(0));
            dense += usize::from(matches!(counts, RowCounts::Dense(_)));
        }
        assert!(counts.iter().collect::<BTreeMap<_, _>>() == map && dense > 10_000, "{dense}");
        for (row, count) in map {
            counts.add(row, -(count as i32), 300);
        }
        assert!(matches!(&counts, RowCounts::Sparse(map) if map.is_empty()));
    }
}
