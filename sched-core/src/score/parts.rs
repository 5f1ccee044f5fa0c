//! Rows by raw score, as a few bitsets: most plugins give only a few distinct scores.
//!
//! Input: the rows that take part, then sets of rows with what each adds. Output: for each distinct
//! sum the rows that have it; where a score also depends on how many matching pods a node has, a
//! table of scores by part and count.
//! Owner: scratch of one decider; sets are reused. Bounds: `PARTS_MAX` sets, at most twice as many
//! while a score is added that makes them too many; a plugin that needs more fills a column
//! instead. Why: a soft taint, a preferred label, an image or a zone splits the nodes in two.
//! Adding a constant under a mask costs a sixteenth of filling, normalising and adding a column of
//! numbers, and extremes are those of a few sets, not of all rows.

use super::{Normalise, normalise_exact};
use crate::bits::{Bits, RowSet};
use crate::columns::keys::KeyColumn;
use crate::columns::row_counts::{Planes, RowCounts};
use crate::simd::Layer;
use crate::simd::narrow::{Counted, LAYERS_MAX, PLANES_MAX, TABLE};
use crate::simd::words;

/// Distinct scores a plugin may have before it fills a column.
pub(crate) const PARTS_MAX: usize = LAYERS_MAX;

/// A plugin's scores as parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartsOutcome {
    /// The plugin does not score.
    Skip,
    /// The parts are filled.
    Parts {
        /// True if every feasible row is in a part.
        whole: bool,
    },
    /// Too many distinct scores.
    TooMany,
}

/// Rows that share a raw score.
#[derive(Debug, Default)]
struct Part {
    raw: f64,
    weighted: i32,
    /// Index in the table of the score of count zero, which wraps where the least count is greater.
    offset: u16,
    rows: Bits,
}

/// Scores by count, one part after the other.
#[derive(Debug)]
struct ScoreTable {
    /// True if the table is in use.
    live: bool,
    len: usize,
    raws: [f64; TABLE],
    weighted: [i16; TABLE],
    /// The counts as planes, if they are kept as a map.
    planes: Planes,
}

impl Default for ScoreTable {
    fn default() -> Self {
        let (raws, weighted) = ([0.0; TABLE], [0; TABLE]);
        Self { live: false, len: 0, raws, weighted, planes: Planes::default() }
    }
}

/// Rows by raw score.
#[derive(Debug, Default)]
pub(crate) struct ScoreParts {
    parts: Vec<Part>,
    /// Number of `parts` in use; the others are spare.
    live: usize,
    /// Amount that the layers do not add, because every row gets it.
    level: i32,
    table: ScoreTable,
    mask: Bits,
}

impl ScoreParts {
    /// Starts with these rows at zero.
    pub(crate) fn begin(&mut self, rows: &Bits, row_count: usize) {
        self.live = 0;
        self.table.live = false;
        self.push(0.0).copy_from(rows, row_count);
    }

    fn push(&mut self, raw: f64) -> &mut Bits {
        if self.live == self.parts.len() {
            self.parts.push(Part::default());
        }
        self.live += 1;
        let part = &mut self.parts[self.live - 1];
        part.raw = raw;
        &mut part.rows
    }

    /// Adds `amount` to the rows in `mask`; returns false if that makes too many parts.
    #[must_use]
    pub(crate) fn add(&mut self, mask: &Bits, amount: f64) -> bool {
        amount == 0.0 || self.split(mask, amount)
    }

    /// Like `add`, but separates the rows in `mask` even if nothing is added.
    #[must_use]
    pub(crate) fn split(&mut self, mask: &Bits, amount: f64) -> bool {
        self.split_first(self.live, mask, amount)
    }

    /// Like `split`, among the first `parts` parts.
    fn split_first(&mut self, parts: usize, mask: &Bits, amount: f64) -> bool {
        for at in 0..parts {
            if !self.parts[at].rows.intersects(mask) {
                continue;
            }
            let mut part = std::mem::take(&mut self.parts[at]);
            if part.rows.is_subset_of(mask) {
                part.raw += amount;
            } else {
                self.push(part.raw + amount).take_from(&mut part.rows, mask);
            }
            self.parts[at] = part;
        }
        self.live <= PARTS_MAX
    }

    /// Like `add`, for a row set.
    #[must_use]
    pub(crate) fn add_set(&mut self, set: &RowSet, rows: usize, amount: f64) -> bool {
        if let RowSet::Dense(bits, _) = set {
            return self.add(bits, amount);
        }
        let mut mask = std::mem::take(&mut self.mask);
        mask.reset(rows);
        set.add_to(&mut mask);
        let fits = self.add(&mask, amount);
        self.mask = mask;
        fits
    }

    /// Adds to each row the score of its value of a key; returns false also for a key with many
    /// values.
    #[must_use]
    pub(crate) fn add_table(&mut self, column: &KeyColumn, table: &[f64]) -> bool {
        let gains = column.rows.iter().zip(table).skip(1).filter(|(_, gain)| **gain != 0.0);
        // No row has two values: parts split off by one value have none of the others.
        let parts = self.live;
        let mut add = |rows, gain| self.split_first(parts, rows, gain);
        column.is_narrow() && gains.fold(true, |fits, (rows, gain)| fits && add(rows, *gain))
    }

    /// Replaces every raw score by `of` of it.
    pub(crate) fn map(&mut self, of: impl Fn(f64) -> f64) {
        self.parts[..self.live].iter_mut().for_each(|p| p.raw = of(p.raw));
    }

    /// Makes scores depend on the count of a row. `raw(row, count)` must be equal for all rows of a
    /// part, and monotonic in the count. Returns false if that makes too many scores.
    #[must_use]
    pub(crate) fn count_by(&mut self, counts: &RowCounts, raw: impl Fn(u32, u32) -> f64) -> bool {
        let table = &mut self.table;
        let mut words = [[].as_slice(); PLANES_MAX];
        let planes = counts.planes(&mut table.planes).planes();
        if planes.len() > PLANES_MAX {
            return false;
        }
        words.iter_mut().zip(planes).for_each(|(words, plane)| *words = plane.words());
        let words = &words[..planes.len()];
        (table.live, table.len) = (true, 0);
        let parts = &mut self.parts[..self.live];
        for part in parts {
            let Some(first) = part.rows.first() else { continue };
            let (least, most) = words::extremes(part.rows.words(), words);
            // Below 2^`PLANES_MAX`.
            let (least, most) = (least as usize, most as usize);
            if table.len + most - least >= TABLE {
                return false;
            }
            part.offset = (table.len as u16).wrapping_sub(least as u16);
            for count in least..=most {
                table.raws[table.len] = raw(first, count as u32);
                table.len += 1;
            }
        }
        true
    }

    /// Normalises over all rows and weighs.
    pub(crate) fn settle(&mut self, how: Normalise, weight: i32) {
        self.level = 0;
        let (parts, table) = (&mut self.parts[..self.live], &mut self.table);
        // Scores of unused counts do not move the extremes: they lie between those of used counts.
        let counted = if table.live { &table.raws[..table.len] } else { &[] };
        let alone = parts.iter().filter(|p| !table.live && !p.rows.is_empty());
        let raws = alone.map(|p| p.raw).chain(counted.iter().copied());
        // Compared, not `min`: its NaN handling would double a chain of latencies.
        let narrow = |(l, h): (f64, f64), s| (if s < l { s } else { l }, if s > h { s } else { h });
        let (min, max) = raws.fold((f64::INFINITY, f64::NEG_INFINITY), narrow);
        if max < min {
            // No row takes part: amounts of empty parts do not matter.
            return;
        }
        if table.live {
            for (weighted, raw) in table.weighted.iter_mut().zip(counted) {
                // The caller has checked that all weights together fit.
                *weighted = (normalise_exact(*raw, how, min, max) as i32 * weight) as i16;
            }
            return;
        }
        for part in parts {
            part.weighted = normalise_exact(part.raw, how, min, max) as i32 * weight;
        }
    }

    /// Applies weights to scores that need no normalisation.
    pub(crate) fn weigh(&mut self, of: impl Fn(f64) -> i32) {
        self.level = 0;
        self.parts[..self.live].iter_mut().for_each(|p| p.weighted = of(p.raw));
    }

    /// Returns the amount of the first part, for the caller to add to every row; the layers then
    /// add the differences from it. Every row must be in a part. Zero if amounts depend on counts.
    pub(crate) fn level(&mut self) -> i32 {
        self.level = if self.table.live { 0 } else { self.parts[0].weighted };
        self.level
    }

    /// Returns the amounts to add to the totals that do not depend on counts.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        let live = if self.table.live { 0 } else { self.live };
        let parts = self.parts[..live].iter().filter(|p| p.weighted != self.level);
        parts.map(|p| Layer { words: p.rows.words(), amount: p.weighted - self.level })
    }

    /// Returns true if amounts depend on counts.
    pub(crate) fn is_counted(&self) -> bool {
        self.table.live
    }

    /// Returns the amounts to add by counts to `rows`, all of which are in some part.
    pub(crate) fn counted<'a>(&'a self, counts: &'a RowCounts, rows: &'a Bits) -> Counted<'a> {
        let planes = match counts {
            RowCounts::Dense(planes) => planes,
            RowCounts::Sparse(_) => &self.table.planes,
        };
        let mut counted = Counted::new(rows.words(), &self.table.weighted);
        planes.planes().iter().for_each(|plane| counted.planes.push(plane.words()));
        for part in self.parts[..self.live].iter().filter(|part| !part.rows.is_empty()) {
            counted.parts.push(Layer { words: part.rows.words(), amount: part.offset.into() });
        }
        counted
    }
}
