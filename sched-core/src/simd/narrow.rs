//! The greatest total and the rows that reach it, in one pass over 16-bit scores.
//!
//! Input: a column of scores, constants under masks, and amounts by how many pods a row has.
//! Output: the greatest sum of the feasible rows and a bit for each that reaches it.
//! Owner: pure functions. Bounds: the words with feasible rows, each read once; no sum is
//! written. Sums wrap in no lane of a feasible row: the caller's weights are below `i16::MAX`.
//! Why one pass: rows that equal the greatest sum so far are marked at once, and marks from before
//! a greater sum are removed at the end.

use multiversion::multiversion;

use super::Layer;
use crate::chunk::WORD_ROWS;

/// Entries of an amount table.
pub const TABLE: usize = 64;
/// Bits of a count that are used.
pub const PLANES_MAX: usize = 6;

/// Parts that rows may be divided into.
pub const LAYERS_MAX: usize = 12;

/// A fixed-size array with a length.
#[derive(Clone, Copy, Debug)]
pub struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// Creates an empty one; `item` fills unused entries.
    #[must_use]
    pub fn new(item: T) -> Self {
        Self { items: [item; N], len: 0 }
    }

    /// Adds an item; there must be room.
    pub fn push(&mut self, item: T) {
        self.items[self.len] = item;
        self.len += 1;
    }
}

impl<T, const N: usize> std::ops::Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

/// Amounts that depend on a part of the rows and on a count: `table[offset + count]`.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// Rows that get any amount.
    pub rows: &'a [u64],
    /// Bits of the counts, the lowest first; words beyond the end are zero.
    pub planes: Few<&'a [u64], PLANES_MAX>,
    /// Rows of each part, and the start of its amounts less its least count, modulo `TABLE`.
    pub parts: Few<Layer<'a>, LAYERS_MAX>,
    /// The amounts.
    pub table: &'a [i16; TABLE],
}

impl<'a> Counted<'a> {
    /// Creates an empty one for these rows.
    #[must_use]
    pub fn new(rows: &'a [u64], table: &'a [i16; TABLE]) -> Self {
        let nothing = Layer { words: &[], amount: 0 };
        Self { rows, planes: Few::new(&[]), parts: Few::new(nothing), table }
    }

    /// Returns the amount of a row.
    #[must_use]
    pub fn of(&self, row: u32) -> i16 {
        let has = |words: &[u64]| {
            words
                .get(row as usize / WORD_ROWS)
                .is_some_and(|w| w >> (row as usize % WORD_ROWS) & 1 == 1)
        };
        if !has(self.rows) {
            return 0;
        }
        let parts = self.parts.iter().filter(|part| has(part.words));
        let at = parts.fold(0u16, |at, part| at.wrapping_add(part.amount as u16));
        let bits = self.planes.iter().enumerate();
        let count = bits.fold(0u16, |n, (k, plane)| n | u16::from(has(plane)) << k);
        self.table[at.wrapping_add(count) as usize % TABLE]
    }
}

/// Scores by row, as narrow as their profile's weights allow.
#[derive(Clone, Copy, Debug)]
pub enum Scores<'a> {
    /// Below 256.
    Bytes(&'a [u8]),
    /// Any.
    Shorts(&'a [u16]),
}

impl Scores<'_> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Bytes(scores) => scores.len(),
            Self::Shorts(scores) => scores.len(),
        }
    }

    /// Score of a row.
    #[inline]
    #[must_use]
    pub fn of(&self, row: usize) -> i16 {
        match self {
            Self::Bytes(scores) => scores[row].into(),
            Self::Shorts(scores) => scores[row].cast_signed(),
        }
    }
}

/// Layers that are added up.
pub const SUMS_MAX: usize = 5 * LAYERS_MAX;
/// Plugins that count pods by row.
pub const COUNTED_MAX: usize = 2;

/// All terms of the sums.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// Scores by row.
    pub scores: Scores<'a>,
    /// Amounts for the rows of a mask.
    pub layers: Few<Layer<'a>, SUMS_MAX>,
    /// Amounts by count.
    pub counted: Few<Counted<'a>, COUNTED_MAX>,
    /// Rows that are compared.
    pub feasible: &'a [u64],
}

impl<'a> Sums<'a> {
    /// These scores alone.
    #[must_use]
    pub fn new(scores: Scores<'a>, feasible: &'a [u64]) -> Self {
        const NO_AMOUNTS: &[i16; TABLE] = &[0; TABLE];
        let layers = Few::new(Layer { words: &[], amount: 0 });
        Self { scores, layers, counted: Few::new(Counted::new(&[], NO_AMOUNTS)), feasible }
    }

    /// The sum of a row.
    #[must_use]
    pub fn of(&self, row: u32) -> i16 {
        let (word, bit) = (row as usize / WORD_ROWS, row as usize % WORD_ROWS);
        let layers = self.layers.iter().filter(|layer| layer.words[word] >> bit & 1 == 1);
        let counted = self.counted.iter().map(|counted| counted.of(row));
        let amounts = layers.map(|layer| layer.amount as i16).chain(counted);
        amounts.fold(self.scores.of(row as usize), i16::wrapping_add)
    }

    fn check(&self, ties: &[u64]) {
        let words = self.feasible.len();
        assert!(self.scores.rows() >= words * WORD_ROWS && ties.len() >= words);
        assert!(self.layers.iter().all(|layer| layer.words.len() >= words));
        for counted in self.counted.iter() {
            assert!(counted.rows.len() >= words);
            assert!(counted.parts.iter().all(|part| part.words.len() >= words));
        }
    }
}

/// Returns the greatest sum of the feasible rows, `i16::MIN` if there are none; `ties` gets the
/// rows that reach it.
pub fn greatest(sums: &Sums<'_>, ties: &mut [u64]) -> i16 {
    sums.check(ties);
    #[cfg(target_arch = "x86_64")]
    if super::avx512::available() {
        // SAFETY: the features it is compiled for were found just now.
        return unsafe { super::avx512::greatest(sums, ties) };
    }
    greatest_portable(sums, ties)
}

/// The loop of [`greatest`] for machines without masked lanes.
#[multiversion(targets("x86_64+avx2+bmi2", "aarch64+neon"))]
pub fn greatest_portable(sums: &Sums<'_>, ties: &mut [u64]) -> i16 {
    let (mut best, mut first) = (i16::MIN, 0);
    for (w, word) in sums.feasible.iter().enumerate() {
        ties[w] = 0;
        if *word == 0 {
            continue;
        }
        let rows = sums_of(sums, w);
        // Rows that are not feasible never are the greatest.
        let top = (0..WORD_ROWS).map(|i| if word >> i & 1 == 1 { rows[i] } else { i16::MIN });
        let top = top.fold(i16::MIN, i16::max);
        if top > best {
            (best, first) = (top, w);
        }
        if top == best {
            let equal = (0..WORD_ROWS).fold(0, |bits, i| bits | u64::from(rows[i] == best) << i);
            ties[w] = equal & word;
        }
    }
    ties[..first].fill(0);
    best
}

/// Writes the sum of each feasible row, and `base` more, into `out`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn write(sums: &Sums<'_>, base: i32, out: &mut [i32]) {
    for (w, out) in out.chunks_exact_mut(WORD_ROWS).enumerate().take(sums.feasible.len()) {
        if sums.feasible[w] != 0 {
            let rows = sums_of(sums, w);
            out.iter_mut().zip(rows).for_each(|(out, sum)| *out = i32::from(sum) + base);
        }
    }
}

/// The sums of the rows of a word.
#[inline(always)]
fn sums_of(sums: &Sums<'_>, w: usize) -> [i16; WORD_ROWS] {
    let mut rows = [0i16; WORD_ROWS];
    let here = w * WORD_ROWS..(w + 1) * WORD_ROWS;
    match sums.scores {
        Scores::Bytes(scores) => {
            rows.iter_mut().zip(&scores[here]).for_each(|(row, score)| *row = (*score).into());
        }
        Scores::Shorts(scores) => {
            rows.iter_mut().zip(&scores[here]).for_each(|(row, s)| *row = s.cast_signed());
        }
    }
    for layer in sums.layers.iter().filter(|layer| layer.words[w] != 0) {
        add(&mut rows, layer.words[w], layer.amount as i16);
    }
    for counted in sums.counted.iter() {
        add_counted(&mut rows, counted, w);
    }
    rows
}

#[inline(always)]
fn add(rows: &mut [i16; WORD_ROWS], bits: u64, amount: i16) {
    for (i, row) in rows.iter_mut().enumerate() {
        let mask = 0i16.wrapping_sub((bits >> i & 1) as i16);
        *row = row.wrapping_add(amount & mask);
    }
}

/// Most rows have no pods, and get the amount of their part without any.
#[inline(always)]
fn add_counted(rows: &mut [i16; WORD_ROWS], counted: &Counted<'_>, w: usize) {
    let plane = |plane: &&[u64]| plane.get(w).copied().unwrap_or(0);
    let some = counted.planes.iter().fold(0, |any, bits| any | plane(bits)) & counted.rows[w];
    for part in counted.parts.iter().filter(|part| part.words[w] & counted.rows[w] != 0) {
        let at = part.amount as u16;
        let here = part.words[w] & counted.rows[w];
        add(rows, here & !some, counted.table[at as usize % TABLE]);
        let mut left = here & some;
        while left != 0 {
            let i = left.trailing_zeros();
            left &= left - 1;
            let bits = counted.planes.iter().enumerate();
            let count = bits.fold(0, |n, (k, bits)| n | (plane(bits) >> i & 1) << k) as u16;
            let row = &mut rows[i as usize];
            *row = row.wrapping_add(counted.table[at.wrapping_add(count) as usize % TABLE]);
        }
    }
}
