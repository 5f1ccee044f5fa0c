//! Scores: each plugin fills a column of raw scores over the feasible rows, and selects their
//! normalisation.
//!
//! Input: view, program, the feasible rows. Output: raw columns as exact integers in f64.
//! Owner: pure functions over scratch memory. Bounds: the rows of the table; terms of the pod.
//! Why f64: every raw score is an integer far below 2^53 and the normalisations divide.

pub mod interpod;
pub mod node;
pub(crate) mod parts;
pub mod resources;
pub mod spread;

use crate::simd::{self, LinearScale};

/// Content of a plugin's raw column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Raw {
    /// PreScore skipped the plugin: it does not score.
    Skip,
    /// Every row has this score.
    Same(i64),
    /// The column was filled.
    Column,
}

/// Normalisation of a raw column to 0..=100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalise {
    /// 100 * s / max.
    // k8s: plugins/helper/normalize_score.go DefaultNormalizeScore
    Default,
    /// 100 - 100 * s / max.
    Reversed,
    /// 100 * (max + min - s) / max.
    Spread,
    /// 100 * ((s - min) / (max - min)).
    Span,
}

/// Normalises a column in place over the rows of `words`.
pub(crate) fn normalise(column: &mut [f64], how: Normalise, words: &[u64]) {
    let (min, max) = simd::min_max(column, words);
    if max < min {
        return;
    }
    match how {
        Normalise::Default if max == 0.0 => {}
        Normalise::Default => simd::normalise(column, 0.0, 1.0, max),
        Normalise::Reversed if max == 0.0 => column.fill(100.0),
        Normalise::Reversed => {
            simd::normalise(column, 0.0, 1.0, max);
            simd::mirror(column);
        }
        Normalise::Spread if max == 0.0 => column.fill(100.0),
        Normalise::Spread => simd::normalise(column, max + min, -1.0, max),
        Normalise::Span if max == min => column.fill(0.0),
        Normalise::Span => simd::normalise_span(column, min, max - min),
    }
}

/// Normalises and adds to the totals in one pass; returns the amount that every row gets in
/// addition.
pub(crate) fn add_normalised(
    column: &[f64],
    how: Normalise,
    words: &[u64],
    weight: i32,
    total: &mut [i32],
) -> i32 {
    let (min, max) = simd::min_max(column, words);
    match how {
        Normalise::Default if max <= 0.0 => 0,
        Normalise::Default => {
            let to = LinearScale { offset: 0.0, sign: 1.0, scale: max };
            simd::add_normalised(column, to, weight, total);
            0
        }
        Normalise::Reversed => {
            if max > 0.0 {
                let to = LinearScale { offset: 0.0, sign: 1.0, scale: max };
                simd::add_normalised(column, to, -weight, total);
            }
            100 * weight
        }
        Normalise::Spread if max == 0.0 => 100 * weight,
        Normalise::Spread => {
            let to = LinearScale { offset: max + min, sign: -1.0, scale: max };
            simd::add_normalised(column, to, weight, total);
            0
        }
        Normalise::Span if max <= min => 0,
        Normalise::Span => {
            simd::add_span(column, min, max - min, weight, total);
            0
        }
    }
}

/// Like [`normalise_one`], for integers in doubles: exact below 2^53, without integer division.
#[inline]
pub(crate) fn normalise_exact(s: f64, how: Normalise, min: f64, max: f64) -> i64 {
    match how {
        Normalise::Default if max == 0.0 => s as i64,
        Normalise::Default => (100.0 * s / max) as i64,
        Normalise::Reversed if max == 0.0 => 100,
        Normalise::Reversed => 100 - (100.0 * s / max) as i64,
        Normalise::Spread if max == 0.0 => 100,
        Normalise::Spread => (100.0 * (max + min - s) / max) as i64,
        Normalise::Span if max == min => 0,
        Normalise::Span => (100.0 * ((s - min) / (max - min))) as i64,
    }
}

/// The normalised score of one raw value, given the extremes of all.
#[must_use]
pub fn normalise_one(s: i64, how: Normalise, min: i64, max: i64) -> i64 {
    match how {
        Normalise::Default if max == 0 => s,
        Normalise::Default => 100 * s / max,
        Normalise::Reversed if max == 0 => 100,
        Normalise::Reversed => 100 - 100 * s / max,
        Normalise::Spread if max == 0 => 100,
        Normalise::Spread => 100 * (max + min - s) / max,
        Normalise::Span if max == min => 0,
        Normalise::Span => (100.0 * ((s - min) as f64 / (max - min) as f64)) as i64,
    }
}
