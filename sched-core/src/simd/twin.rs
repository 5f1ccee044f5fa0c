//! The kernels again, row by row, in 64-bit integers wherever upstream uses them.
//!
//! Input and output as the kernels. Owner: pure functions, called by property tests and as the
//! baseline of benchmarks. Why: a kernel that is wrong in one lane must not go unnoticed.

use super::{FitRequest, ScoreRequest};
use crate::chunk::Chunk;

/// Returns true if `row` of a mask is set.
fn live(words: &[u64], row: usize) -> bool {
    words[row / 64] >> (row % 64) & 1 == 1
}

/// As [`super::fit`].
pub fn fit(chunk: &Chunk, r: FitRequest, words: &mut [u64]) {
    for row in 0..words.len() * 64 {
        let n = chunk.numbers(row);
        let short = |asked: i64, all: i64, used: i64| asked > 0 && asked > all - used;
        if n.pods_used + 1 > n.pods
            || short(r.cpu.into(), n.cpu, n.cpu_used)
            || short(r.mem as i64, n.mem, n.mem_used)
            || short(r.eph as i64, n.eph, n.eph_used)
        {
            words[row / 64] &= !(1 << (row % 64));
        }
    }
}

/// As [`super::least_allocated`].
pub fn least_allocated(chunk: &Chunk, r: ScoreRequest, words: &[u64], out: &mut [u8]) {
    for row in (0..words.len() * 64).filter(|row| live(words, *row)) {
        let n = chunk.numbers(row);
        let (mut sum, mut weights) = (0, 0);
        for (all, used) in
            [(n.cpu, n.cpu_nonzero + i64::from(r.cpu)), (n.mem, n.mem_nonzero + r.mem as i64)]
        {
            if all != 0 {
                sum += if used > all { 0 } else { (all - used) * 100 / all };
                weights += 1;
            }
        }
        out[row] = if weights == 0 { 0 } else { (sum / weights) as u8 };
    }
}

/// As [`super::balanced`].
pub fn balanced(chunk: &Chunk, r: ScoreRequest, words: &[u64], out: &mut [u8]) {
    for row in (0..words.len() * 64).filter(|row| live(words, *row)) {
        let n = chunk.numbers(row);
        let balance = |cpu: i64, mem: i64| {
            let parts: Vec<f64> = [(cpu, n.cpu), (mem, n.mem)]
                .iter()
                .filter(|(_, all)| *all != 0)
                .map(|(used, all)| (*used as f64 / *all as f64).min(1.0))
                .collect();
            let std = if parts.len() == 2 { ((parts[0] - parts[1]) / 2.0).abs() } else { 0.0 };
            ((1.0 - std) * 100.0) as i64
        };
        let before = balance(n.cpu_used, n.mem_used);
        let with = balance(n.cpu_used + i64::from(r.cpu_plain), n.mem_used + r.mem_plain as i64);
        out[row] = (50 + (50 + with - before) / 2) as u8;
    }
}

/// As [`super::arg_max`].
pub fn arg_max(total: &[i32], words: &[u64], ties: &mut [u64]) -> i32 {
    let rows: Vec<usize> = (0..words.len() * 64).filter(|row| live(words, *row)).collect();
    let best = rows.iter().map(|row| total[*row]).max().unwrap_or(i32::MIN);
    ties.fill(0);
    for row in rows.iter().filter(|row| total[**row] == best) {
        ties[row / 64] |= 1 << (row % 64);
    }
    best
}

/// As [`super::min_max`].
pub fn min_max(column: &[f64], words: &[u64]) -> (f64, f64) {
    let rows = (0..words.len() * 64).filter(|row| live(words, *row));
    rows.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), row| {
        (low.min(column[row]), high.max(column[row]))
    })
}

/// As [`super::normalise`].
pub fn normalise(column: &mut [f64], offset: f64, sign: f64, scale: f64) {
    for s in column {
        *s = (100 * (offset as i64 + sign as i64 * *s as i64) / scale as i64) as f64;
    }
}

/// As [`super::round_half_up`].
pub fn round_half_up(column: &mut [f64]) {
    for s in column {
        *s = s.round();
    }
}

/// As [`super::narrow::greatest`], of all rows.
pub fn greatest(sums: &super::narrow::Sums<'_>, ties: &mut [u64]) -> i16 {
    let rows = (0..sums.feasible.len() * 64).filter(|row| live(sums.feasible, *row));
    let rows: Vec<(usize, i16)> = rows.map(|row| (row, sums.of(row as u32))).collect();
    let best = rows.iter().map(|(_, sum)| *sum).max().unwrap_or(i16::MIN);
    ties.fill(0);
    for (row, _) in rows.iter().filter(|(_, sum)| *sum == best) {
        ties[row / 64] |= 1 << (row % 64);
    }
    best
}
