//! Loops over the words of bitsets, compiled for several instruction sets.
//!
//! Input: words of two sets, of equal length. Output: words, or what the sets have in common.
//! Owner: pure functions. Bounds: the words; what asks a question stops at the first answer.
//! Why: a decision walks its masks a few dozen times, and eight words are a register.

use multiversion::multiversion;

/// Words processed between two checks for an early stop: a few registers.
const STRIDE: usize = 32;

/// `a &= b`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn and(a: &mut [u64], b: &[u64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a &= b);
}

/// `a &= !b`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn and_not(a: &mut [u64], b: &[u64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a &= !b);
}

/// `a |= b`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn or(a: &mut [u64], b: &[u64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
}

/// `out = a & b`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn both(out: &mut [u64], a: &[u64], b: &[u64]) {
    out.iter_mut().zip(a).zip(b).for_each(|((out, a), b)| *out = a & b);
}

/// `out = a & b`, `a &= !b`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
pub fn split(out: &mut [u64], a: &mut [u64], b: &[u64]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = *a & b;
        *a &= !b;
    }
}

/// Returns true if a bit is in both.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
#[must_use]
pub fn intersects(a: &[u64], b: &[u64]) -> bool {
    let shared = |(a, b): (&[u64], &[u64])| a.iter().zip(b).fold(0, |m, (a, b)| m | (a & b));
    a.chunks(STRIDE).zip(b.chunks(STRIDE)).any(|pair| shared(pair) != 0)
}

/// Returns true if a bit is in the first set alone.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
#[must_use]
pub fn exceeds(a: &[u64], b: &[u64]) -> bool {
    let missing = |(a, b): (&[u64], &[u64])| a.iter().zip(b).fold(0, |m, (a, b)| m | (a & !b));
    a.chunks(STRIDE).zip(b.chunks(STRIDE)).any(|pair| missing(pair) != 0)
}

/// Bits that are in all three.
#[multiversion(targets(
    "x86_64+avx512f+avx512vl+avx512vpopcntdq+popcnt",
    "x86_64+avx2+popcnt",
    "aarch64+neon"
))]
#[must_use]
pub fn count_common(a: &[u64], b: &[u64], c: &[u64]) -> u64 {
    let words = a.iter().zip(b).zip(c);
    words.map(|((a, b), c)| u64::from((a & b & c).count_ones())).sum()
}

/// Words processed together: a register.
const LANES: usize = 8;

/// Some words, zeros beyond the end.
#[inline(always)]
fn lanes(words: &[u64], at: usize) -> [u64; LANES] {
    let rest = words.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(whole) => *whole,
        None => std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0)),
    }
}

/// Least and greatest number of the rows, given their bits by plane, of the lowest bit first; the
/// least is `u64::MAX` when there are no rows. Words beyond the end of a plane are zero.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2", "aarch64+neon"))]
#[must_use]
pub fn extremes(rows: &[u64], planes: &[&[u64]]) -> (u64, u64) {
    let (mut low, mut high) = ([u64::MAX; LANES], [0u64; LANES]);
    for at in (0..rows.len()).step_by(LANES) {
        let live = lanes(rows, at);
        // From the highest bit on, each word keeps its rows that are ahead.
        let (mut up, mut down, mut most, mut least) = (live, live, [0; LANES], [0; LANES]);
        for (k, plane) in planes.iter().enumerate().rev() {
            let bits = lanes(plane, at);
            for i in 0..LANES {
                let with = up[i] & bits[i];
                up[i] = if with != 0 { with } else { up[i] };
                most[i] |= u64::from(with != 0) << k;
                let without = down[i] & !bits[i];
                down[i] = if without != 0 { without } else { down[i] };
                least[i] |= u64::from(without == 0) << k;
            }
        }
        for i in 0..LANES {
            let least = if live[i] != 0 { least[i] } else { u64::MAX };
            low[i] = if least < low[i] { least } else { low[i] };
            high[i] = if most[i] > high[i] { most[i] } else { high[i] };
        }
    }
    (low.into_iter().fold(u64::MAX, u64::min), high.into_iter().fold(0, u64::max))
}
