//! Rows by raw score, as a few bitsets: what most plugins say fits in a handful of distinct scores.
//!
//! Input: the rows that take part, then sets of rows with what each adds. Output: for each distinct
//! sum the rows that have it, and single rows whose score is their own.
//! Owner: scratch of one decider; sets are reused. Bounds: `PARTS_MAX` sets; a plugin that needs more
//! fills a column instead.
//! Why: a soft taint, a preferred label, an image or a zone splits the nodes in two. Adding a
//! constant under a mask costs a sixteenth of filling, normalising and adding a column of numbers,
//! and extremes are those of a few sets, not of all rows.

use super::{Normalise, normalise_exact};
use crate::bits::{Bits, RowSet};
use crate::simd::Layer;
use crate::snapshot::keys::KeyColumn;

/// Distinct scores a plugin may have before it fills a column.
pub(crate) const PARTS_MAX: usize = 12;

/// Rows that share a raw score.
#[derive(Debug, Default)]
struct Part {
    raw: f64,
    weighted: i32,
    rows: Bits,
}

/// Rows by raw score.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    parts: Vec<Part>,
    /// Of `parts`; the others are spare.
    live: usize,
    level: i32,
    /// Rows that are in no part, with their own raw score.
    pub(crate) single: Vec<(u32, f64)>,
    mask: Bits,
}

impl Parts {
    /// Begins with these rows at zero; single rows stay as they are.
    pub(crate) fn start(&mut self, rows: &Bits, row_count: usize) {
        self.live = 0;
        self.push(0.0).copy_from(rows, row_count);
    }

    /// As `start`, with no single rows.
    pub(crate) fn begin(&mut self, rows: &Bits, row_count: usize) {
        self.single.clear();
        self.start(rows, row_count);
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

    /// Adds `amount` to the rows in `mask`; false when that makes too many parts.
    #[must_use]
    pub(crate) fn add(&mut self, mask: &Bits, amount: f64) -> bool {
        if amount == 0.0 {
            return true;
        }
        for at in 0..self.live {
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

    /// As `add`, of a row set.
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

    /// Adds to each row what its value of a key gives; false also for a key with many values.
    #[must_use]
    pub(crate) fn add_table(&mut self, column: &KeyColumn, table: &[f64]) -> bool {
        let gains = column.rows.iter().zip(table).skip(1).filter(|(_, gain)| **gain != 0.0);
        column.is_narrow() && gains.fold(true, |fits, (rows, gain)| fits && self.add(rows, *gain))
    }

    /// Replaces every raw score by what `of` makes of it.
    pub(crate) fn map(&mut self, of: impl Fn(f64) -> f64) {
        self.parts[..self.live].iter_mut().for_each(|p| p.raw = of(p.raw));
    }

    /// Normalises over all rows and weighs; what single rows get goes to `total` at once.
    pub(crate) fn settle(&mut self, how: Normalise, weight: i32, total: &mut [i32]) {
        self.level = 0;
        let (parts, single) = (&mut self.parts[..self.live], &self.single);
        let raws = parts.iter().filter(|p| !p.rows.is_empty()).map(|p| p.raw);
        let raws = raws.chain(single.iter().map(|(_, raw)| *raw));
        // Compared, not `min`: the care for what is no number would double a chain of latencies.
        let narrow = |(l, h): (f64, f64), s| (if s < l { s } else { l }, if s > h { s } else { h });
        let (min, max) = raws.fold((f64::INFINITY, f64::NEG_INFINITY), narrow);
        if max < min {
            // No row takes part: what is added under empty masks does not matter.
            return;
        }
        for part in parts {
            part.weighted = normalise_exact(part.raw, how, min, max) as i32 * weight;
        }
        for (row, raw) in single {
            total[*row as usize] += normalise_exact(*raw, how, min, max) as i32 * weight;
        }
    }

    /// Weighs scores that need no normalisation.
    pub(crate) fn weigh(&mut self, of: impl Fn(f64) -> i32) {
        self.level = 0;
        self.parts[..self.live].iter_mut().for_each(|p| p.weighted = of(p.raw));
    }

    /// What every row gets when every row is in a part; the layers then add the difference.
    pub(crate) fn level(&mut self) -> i32 {
        self.level = self.parts[0].weighted;
        self.level
    }

    /// What to add to the totals.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        let parts = self.parts[..self.live].iter().filter(|p| p.weighted != self.level);
        parts.map(|p| Layer { words: p.rows.words(), amount: p.weighted - self.level })
    }
}
