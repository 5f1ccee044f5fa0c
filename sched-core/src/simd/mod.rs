//! Kernels: branch-free loops over columns, compiled for several instruction sets.
//!
//! Input: slices of columns and words of a mask. Output: words of a mask, score columns, extremes.
//! Owner: pure functions. Bounds: slices of at least 64 rows a word; whole words are computed, dead
//! rows of a live word hold nonsense that the mask hides.
//! Every division is an exact f64 division of integers below 2^53, truncated, which is exact as
//! well; nothing is contracted into fused multiply-adds, as Rust never does that on its own.
//! Why here alone: the dispatching macro needs unsafe calls; `twin` has the same results in plain
//! integers, and a property test keeps the two equal.
#![allow(unsafe_code)] // JUSTIFICATION: calls of functions compiled for features checked at run time

#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod narrow;
pub mod twin;
pub mod words;

use multiversion::multiversion;

use self::narrow::Scores;
use crate::chunk::Chunk;
use crate::chunk::WORD_ROWS;

/// Requests that the resource filter compares, narrow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FitRequest {
    /// Thousandths of a CPU; zero is not compared.
    pub cpu: i32,
    /// Bytes of memory; zero is not compared.
    pub mem: f64,
    /// Bytes of ephemeral storage; zero is not compared.
    pub eph: f64,
}

/// Requests that the two resource scores add to a node, narrow.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScoreRequest {
    /// CPU with defaults.
    pub cpu: i32,
    /// Memory with defaults.
    pub mem: f64,
    /// CPU as requested.
    pub cpu_plain: i32,
    /// Memory as requested.
    pub mem_plain: f64,
}

/// Keeps in `words` the rows with enough free resources for `r` and one more pod.
pub fn fit(chunk: &Chunk, r: FitRequest, words: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the features it is compiled for were found just now.
        return unsafe { avx512::fit(chunk, r, words) };
    }
    fit_portable(chunk, r, words);
}

/// The loop of [`fit`] for machines without masked lanes.
#[multiversion(targets("x86_64+avx2+bmi2", "aarch64+neon"))]
pub fn fit_portable(chunk: &Chunk, r: FitRequest, words: &mut [u64]) {
    // A resource that is not requested is compared with the minimum.
    let cpu = if r.cpu > 0 { r.cpu } else { i32::MIN };
    let mem = if r.mem > 0.0 { r.mem } else { f64::NEG_INFINITY };
    for (w, word) in words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
        let rows = w * WORD_ROWS..(w + 1) * WORD_ROWS;
        let (c, cu) = (&chunk.cpu[rows.clone()], &chunk.cpu_used[rows.clone()]);
        let (m, mu) = (&chunk.mem[rows.clone()], &chunk.mem_used[rows.clone()]);
        let (p, pu) = (&chunk.pods[rows.clone()], &chunk.pods_used[rows.clone()]);
        let mut ok = [0u8; WORD_ROWS];
        for i in 0..WORD_ROWS {
            ok[i] = u8::from(p[i] > pu[i])
                & u8::from(c[i] - cu[i] >= cpu)
                & u8::from(m[i] - mu[i] >= mem);
        }
        if r.eph > 0.0 {
            let (e, eu) = (&chunk.eph[rows.clone()], &chunk.eph_used[rows]);
            for i in 0..WORD_ROWS {
                ok[i] &= u8::from(e[i] - eu[i] >= r.eph);
            }
        }
        *word &= pack(&ok);
    }
}

/// Truncates to 0..=100; values outside, and NaN, belong to rows that a mask hides.
#[inline(always)]
fn percent(s: f64) -> i32 {
    let s = if s > 0.0 { s } else { 0.0 };
    let s = if s < 100.0 { s } else { 100.0 };
    // JUSTIFICATION: the saturating conversion costs several instructions a lane.
    // SAFETY: the comparisons above leave a finite number within 0..=100.
    unsafe { s.to_int_unchecked::<i32>() }
}

/// One bit a byte.
#[inline(always)]
fn pack(bytes: &[u8; WORD_ROWS]) -> u64 {
    let mut word = 0u64;
    for (k, eight) in bytes.chunks_exact(8).enumerate() {
        let eight = u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        // Gathers the lowest bit of each byte into the top byte.
        word |= (eight.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * k);
    }
    word
}

/// LeastAllocated over CPU and memory with equal weights, 0..=100, into `out`.
// k8s: noderesources/least_allocated.go leastResourceScorer
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn least_allocated(chunk: &Chunk, r: ScoreRequest, words: &[u64], out: &mut [u8]) {
    for w in (0..words.len()).filter(|w| words[*w] != 0) {
        let rows = w * WORD_ROWS..(w + 1) * WORD_ROWS;
        let (c, cu) = (&chunk.cpu[rows.clone()], &chunk.cpu_nonzero[rows.clone()]);
        let (m, mu) = (&chunk.mem[rows.clone()], &chunk.mem_nonzero[rows.clone()]);
        let out = &mut out[rows];
        for i in 0..WORD_ROWS {
            let cap = f64::from(c[i]);
            let free = f64::from(c[i] - cu[i] - r.cpu);
            let cpu = if free > 0.0 { (free * 100.0 / cap).trunc() } else { 0.0 };
            let free = m[i] - (mu[i] + r.mem);
            let mem = if free > 0.0 { (free * 100.0 / m[i]).trunc() } else { 0.0 };
            // A resource that the node lacks is left out of the mean, not counted as full.
            let half = if cap > 0.0 && m[i] > 0.0 { 0.5 } else { 1.0 };
            out[i] = percent((cpu + mem) * half) as u8;
        }
    }
}

/// Balance of CPU and memory with the pod against without, 50..=100, into `out`.
// k8s: noderesources/balanced_allocation.go
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn balanced(chunk: &Chunk, r: ScoreRequest, words: &[u64], out: &mut [u8]) {
    for w in (0..words.len()).filter(|w| words[*w] != 0) {
        let rows = w * WORD_ROWS..(w + 1) * WORD_ROWS;
        let (c, cu) = (&chunk.cpu[rows.clone()], &chunk.cpu_used[rows.clone()]);
        let (m, mu) = (&chunk.mem[rows.clone()], &chunk.mem_used[rows.clone()]);
        let before = &chunk.balance[rows.clone()];
        let out = &mut out[rows];
        for i in 0..WORD_ROWS {
            let cap = f64::from(c[i]);
            let cpu = f64::from(cu[i] + r.cpu_plain) / cap;
            let mem = (mu[i] + r.mem_plain) / m[i];
            let cpu = if cpu > 1.0 { 1.0 } else { cpu };
            let mem = if mem > 1.0 { 1.0 } else { mem };
            let std = ((cpu - mem) / 2.0).abs();
            let std = if cap > 0.0 && m[i] > 0.0 { std } else { 0.0 };
            let with = percent((1.0 - std) * 100.0);
            out[i] = (50 + ((50 + with - i32::from(before[i])) >> 1)) as u8;
        }
    }
}

/// `total = fit * w.0 + balance * w.1 + base`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn combine(fit: &[u8], balance: &[u8], w: (i32, i32), base: i32, total: &mut [i32]) {
    for ((t, f), b) in total.iter_mut().zip(fit).zip(balance) {
        *t = i32::from(*f) * w.0 + i32::from(*b) * w.1 + base;
    }
}

/// `out = fit * w.0 + balance * w.1`; values beyond 8 bits belong to rows without scores.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn combine_bytes(fit: &[u8], balance: &[u8], w: (u8, u8), out: &mut [u8]) {
    for ((o, f), b) in out.iter_mut().zip(fit).zip(balance) {
        *o = f.wrapping_mul(w.0).wrapping_add(b.wrapping_mul(w.1));
    }
}

/// Like `combine_bytes`, in 16 bits.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn combine_shorts(fit: &[u8], balance: &[u8], w: (u16, u16), out: &mut [u16]) {
    for ((o, f), b) in out.iter_mut().zip(fit).zip(balance) {
        *o = u16::from(*f).wrapping_mul(w.0).wrapping_add(u16::from(*b).wrapping_mul(w.1));
    }
}

/// `out = scores + more`, of numbers that 16 bits hold.
pub fn add_narrow(scores: Scores<'_>, more: &[i32], out: &mut [u16]) {
    match scores {
        Scores::Bytes(scores) => add_more(scores, more, out),
        Scores::Shorts(scores) => add_more(scores, more, out),
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
fn add_more<T: Copy + Into<u16>>(scores: &[T], more: &[i32], out: &mut [u16]) {
    for ((o, s), m) in out.iter_mut().zip(scores).zip(more) {
        *o = (*s).into().wrapping_add(*m as u16);
    }
}

/// Table of a key with few values, by value id; longer ids do not occur.
pub type NarrowTable = [f64; 64];

/// `acc += table[value]`, a key with few values.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn gather_add(values: &[u8], table: &NarrowTable, acc: &mut [f64]) {
    for (a, v) in acc.iter_mut().zip(values) {
        *a += table[(*v & 63) as usize];
    }
}

/// `acc += table[value]`, any key.
pub fn gather_add_wide(values: &[u32], table: &[f64], acc: &mut [f64]) {
    for (a, v) in acc.iter_mut().zip(values) {
        *a += table[*v as usize];
    }
}

/// Rounds half away from zero; values are 0 or at least 0.69, where adding a half is exact enough.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn round_half_up(acc: &mut [f64]) {
    for a in acc {
        *a = (*a + 0.5).trunc();
    }
}

/// Least and greatest of the masked rows; `(INFINITY, NEG_INFINITY)` when there are none.
#[must_use]
pub fn min_max(column: &[f64], words: &[u64]) -> (f64, f64) {
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the features it is compiled for were found just now.
        return unsafe { avx512::min_max(column, words) };
    }
    min_max_portable(column, words)
}

/// The loop of [`min_max`] for machines without masked lanes.
#[multiversion(targets("x86_64+avx2+bmi2", "aarch64+neon"))]
pub fn min_max_portable(column: &[f64], words: &[u64]) -> (f64, f64) {
    let (mut low, mut high) = ([f64::INFINITY; 8], [f64::NEG_INFINITY; 8]);
    for (w, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
        let rows = &column[w * WORD_ROWS..(w + 1) * WORD_ROWS];
        let full = *word == u64::MAX;
        for (k, eight) in rows.chunks_exact(8).enumerate() {
            let bits = (word >> (8 * k)) as u8;
            if full || bits == u8::MAX {
                for i in 0..8 {
                    low[i] = if eight[i] < low[i] { eight[i] } else { low[i] };
                    high[i] = if eight[i] > high[i] { eight[i] } else { high[i] };
                }
                continue;
            }
            for i in (0..8).filter(|i| bits >> i & 1 == 1) {
                low[i] = low[i].min(eight[i]);
                high[i] = high[i].max(eight[i]);
            }
        }
    }
    let least = low.into_iter().fold(f64::INFINITY, f64::min);
    (least, high.into_iter().fold(f64::NEG_INFINITY, f64::max))
}

/// `column = trunc(100 * (offset + sign * s) / scale)`, integers throughout.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn normalise(column: &mut [f64], offset: f64, sign: f64, scale: f64) {
    for s in column {
        *s = (100.0 * (offset + sign * *s) / scale).trunc();
    }
}

/// `column = trunc(100 * ((s - min) / diff))`: the quotient is rounded before it is scaled.
// k8s: interpodaffinity/scoring.go NormalizeScore
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn normalise_span(column: &mut [f64], min: f64, diff: f64) {
    for s in column {
        *s = (100.0 * ((*s - min) / diff)).trunc();
    }
}

/// The scale of a normalised score: `100 * (offset + sign * s) / scale`.
#[derive(Clone, Copy, Debug)]
pub struct LinearScale {
    /// Added to each signed score.
    pub offset: f64,
    /// 1, or -1 where less is better.
    pub sign: f64,
    /// The largest score.
    pub scale: f64,
}

/// `total += weight * trunc(100 * (offset + sign * s) / scale)`, integers throughout.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_normalised(
    column: &[f64],
    LinearScale { offset, sign, scale }: LinearScale,
    weight: i32,
    total: &mut [i32],
) {
    for (t, s) in total.iter_mut().zip(column) {
        *t += percent(100.0 * (offset + sign * *s) / scale) * weight;
    }
}

/// `total += weight * trunc(100 * ((s - min) / diff))`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_span(column: &[f64], min: f64, diff: f64, weight: i32, total: &mut [i32]) {
    for (t, s) in total.iter_mut().zip(column) {
        *t += percent(100.0 * ((*s - min) / diff)) * weight;
    }
}

/// `total += column * weight`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_weighted(column: &[f64], weight: i32, total: &mut [i32]) {
    for (t, s) in total.iter_mut().zip(column) {
        *t += percent(*s) * weight;
    }
}

/// The greatest total of the masked rows, and the rows that reach it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn arg_max(total: &[i32], words: &[u64], ties: &mut [u64]) -> i32 {
    let mut best = [i32::MIN; 16];
    for (w, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
        let rows = &total[w * WORD_ROWS..(w + 1) * WORD_ROWS];
        for (k, lane) in rows.chunks_exact(16).enumerate() {
            if *word == u64::MAX {
                for i in 0..16 {
                    best[i] = best[i].max(lane[i]);
                }
                continue;
            }
            for i in 0..16 {
                let t = if word >> (16 * k + i) & 1 == 1 { lane[i] } else { i32::MIN };
                best[i] = best[i].max(t);
            }
        }
    }
    let best = best.into_iter().fold(i32::MIN, i32::max);
    for ((w, word), tie) in words.iter().enumerate().zip(ties.iter_mut()) {
        *tie = 0;
        if *word != 0 {
            let rows = &total[w * WORD_ROWS..(w + 1) * WORD_ROWS];
            let mut equal = [0u8; WORD_ROWS];
            for i in 0..WORD_ROWS {
                equal[i] = u8::from(rows[i] == best);
            }
            *tie = pack(&equal) & word;
        }
    }
    best
}

/// A constant for the rows of a mask.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// The rows, as many words as there are totals of.
    pub words: &'a [u64],
    /// The amount of these rows.
    pub amount: i32,
}

/// Number of set bits.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx512vpopcntdq+popcnt",
    "x86_64+avx2+popcnt",
    "aarch64+neon"
))]
#[must_use]
pub fn count_rows(words: &[u64]) -> usize {
    words.iter().map(|w| u64::from(w.count_ones())).sum::<u64>() as usize
}

/// `sums += weight * count`, integers throughout.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_counts(sums: &mut [f64], counts: &[u32], weight: f64) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += weight * f64::from(*count);
    }
}

/// Adds to `words` the rows with a wanted value id.
pub fn rows_in_table(values: &[u32], wanted: &[bool], words: &mut [u64]) {
    for (rows, word) in values.chunks(WORD_ROWS).zip(words) {
        for (i, value) in rows.iter().enumerate() {
            *word |= u64::from(wanted[*value as usize]) << i;
        }
    }
}

/// Adds to `words` the rows with this value id.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn rows_equal(values: &[u32], value: u32, words: &mut [u64]) {
    for (rows, word) in values.chunks(WORD_ROWS).zip(words) {
        let mut equal = [0u8; WORD_ROWS];
        for (e, v) in equal.iter_mut().zip(rows) {
            *e = u8::from(*v == value);
        }
        *word |= pack(&equal);
    }
}

/// `column = 100 - column`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn mirror(column: &mut [f64]) {
    for s in column {
        *s = 100.0 - *s;
    }
}

/// `acc += gain` where a row has any value.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_where_present(values: &[u32], gain: f64, acc: &mut [f64]) {
    for (a, v) in acc.iter_mut().zip(values) {
        *a += if *v == 0 { 0.0 } else { gain };
    }
}

/// `total += constant`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
pub fn add_constant(constant: i32, total: &mut [i32]) {
    for t in total {
        *t += constant;
    }
}

/// Reads every number column of a chunk once: the lower bound of any decision over it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+bmi2",
    "x86_64+avx2+bmi2",
    "aarch64+neon"
))]
#[must_use]
pub fn scan(chunk: &Chunk) -> u64 {
    let narrow = [&chunk.cpu, &chunk.cpu_used, &chunk.cpu_nonzero];
    let pods = [&chunk.pods, &chunk.pods_used];
    let wide = [&chunk.mem, &chunk.mem_used, &chunk.mem_nonzero];
    let mut sum = 0u32;
    for column in narrow {
        sum = column.iter().fold(sum, |sum, v| sum.wrapping_add(*v as u32));
    }
    for column in pods {
        sum = column.iter().fold(sum, |sum, v| sum.wrapping_add(u32::from(*v)));
    }
    let mut bits = 0u64;
    for column in wide {
        bits = column.iter().fold(bits, |bits, v| bits ^ v.to_bits());
    }
    u64::from(sum) ^ bits
}
