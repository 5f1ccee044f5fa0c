//! Hand-written kernels: masked lanes taken straight from the words of a bitset.
//!
//! Input and output as the portable loops of the parent. Owner: pure functions, called only after
//! `available`. Why by hand: a word of a mask is a lane mask register here, and no compiler turns
//! "bit i of a word" into one; the loops took forty instructions where these take two.
// JUSTIFICATION: 16 us to 1 us of a decision over 5,000 nodes.

use std::arch::x86_64::{
    __m256i, __m512d, __m512i, _CMP_GE_OQ, _mm_cvtsi128_si32, _mm_max_epi16, _mm_minpos_epu16,
    _mm_set1_epi16, _mm_xor_si128, _mm256_castsi256_si128, _mm256_cmpgt_epu16_mask,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_max_epi16, _mm512_castsi512_si256,
    _mm512_cmp_pd_mask, _mm512_cmpge_epi32_mask, _mm512_cvtepu8_epi16, _mm512_extracti64x4_epi64,
    _mm512_loadu_pd, _mm512_loadu_si512, _mm512_mask_add_epi8, _mm512_mask_add_epi16,
    _mm512_mask_blend_epi16, _mm512_mask_cmpeq_epi16_mask, _mm512_mask_cmpgt_epi16_mask,
    _mm512_mask_max_pd, _mm512_mask_min_pd, _mm512_max_epi16, _mm512_permutex2var_epi16,
    _mm512_reduce_max_pd, _mm512_reduce_min_pd, _mm512_set1_epi8, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_set1_pd, _mm512_setzero_si512, _mm512_sub_epi32, _mm512_sub_pd,
};

use super::FitRequest;
use super::narrow::{Counted, Scores, Sums, TABLE};
use crate::chunk::WORD_ROWS;
use crate::chunk::{CHUNK_ROWS, Chunk};

/// Rows that are added up at a time: a register of 32-bit lanes.
const LANES: usize = 16;
/// Vectors in a word of rows.
const VECTORS: usize = WORD_ROWS / LANES;

/// Returns true if this machine runs them.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load(rows: &[i32; LANES]) -> __m512i {
    // SAFETY: an array of sixteen 32-bit numbers is read; no alignment is required.
    unsafe { _mm512_loadu_si512(rows.as_ptr().cast()) }
}

/// As [`super::fit`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn fit(chunk: &Chunk, r: FitRequest, words: &mut [u64]) {
    // A resource that is not requested is compared with the minimum.
    let cpu = _mm512_set1_epi32(if r.cpu > 0 { r.cpu } else { i32::MIN });
    let mem = _mm512_set1_pd(if r.mem > 0.0 { r.mem } else { f64::NEG_INFINITY });
    let eph = (r.eph > 0.0).then(|| _mm512_set1_pd(r.eph));
    for (w, word) in words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
        let mut fits = 0;
        for k in 0..VECTORS {
            let at = w * WORD_ROWS + k * LANES;
            let free = _mm512_sub_epi32(lanes(&chunk.cpu, at), lanes(&chunk.cpu_used, at));
            let mut ok = _mm512_cmpge_epi32_mask(free, cpu)
                & _mm256_cmpgt_epu16_mask(shorts(&chunk.pods, at), shorts(&chunk.pods_used, at))
                & at_least(&chunk.mem, &chunk.mem_used, at, mem);
            if let Some(eph) = eph {
                ok &= at_least(&chunk.eph, &chunk.eph_used, at, eph);
            }
            fits |= u64::from(ok) << (k * LANES);
        }
        *word &= fits;
    }
}

/// Returns which of sixteen differences are at least `least`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn at_least(all: &[f64; CHUNK_ROWS], used: &[f64; CHUNK_ROWS], at: usize, least: __m512d) -> u16 {
    let half = |at| {
        let free = _mm512_sub_pd(doubles(all, at), doubles(used, at));
        u16::from(_mm512_cmp_pd_mask::<_CMP_GE_OQ>(free, least))
    };
    half(at) | half(at + LANES / 2) << (LANES / 2)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn lanes(column: &[i32; CHUNK_ROWS], at: usize) -> __m512i {
    load(column[at..].first_chunk().expect("a whole vector"))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn shorts(column: &[u16; CHUNK_ROWS], at: usize) -> __m256i {
    let rows: &[u16; LANES] = column[at..].first_chunk().expect("a whole vector");
    // SAFETY: an array of sixteen 16-bit numbers is read; no alignment is required.
    unsafe { _mm256_loadu_si256(rows.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn doubles(column: &[f64; CHUNK_ROWS], at: usize) -> __m512d {
    let rows: &[f64; LANES / 2] = column[at..].first_chunk().expect("a whole vector");
    // SAFETY: an array of eight doubles is read; no alignment is required.
    unsafe { _mm512_loadu_pd(rows.as_ptr()) }
}

/// As [`super::min_max`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn min_max(column: &[f64], words: &[u64]) -> (f64, f64) {
    const EIGHT: usize = 8;
    let mut low = _mm512_set1_pd(f64::INFINITY);
    let mut high = _mm512_set1_pd(f64::NEG_INFINITY);
    let (rows, _) = column.as_chunks::<WORD_ROWS>();
    for (rows, word) in rows.iter().zip(words).filter(|(_, word)| **word != 0) {
        let (vectors, _) = rows.as_chunks::<EIGHT>();
        for (k, lanes) in vectors.iter().enumerate() {
            // SAFETY: an array of eight doubles is read; no alignment is required.
            let lanes = unsafe { _mm512_loadu_pd(lanes.as_ptr()) };
            let live = (word >> (k * EIGHT)) as u8;
            low = _mm512_mask_min_pd(low, live, low, lanes);
            high = _mm512_mask_max_pd(high, live, high, lanes);
        }
    }
    (_mm512_reduce_min_pd(low), _mm512_reduce_max_pd(high))
}

/// Rows with sums that fill a register.
const SHORTS: usize = 32;

/// As [`super::narrow::greatest`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn greatest(sums: &Sums<'_>, ties: &mut [u64]) -> i16 {
    let mut best = _mm512_set1_epi16(i16::MIN);
    let (mut greatest, mut first) = (i16::MIN, 0);
    for (w, (word, tie)) in sums.feasible.iter().zip(ties.iter_mut()).enumerate() {
        *tie = 0;
        if *word == 0 {
            continue;
        }
        let mut rows = match sums.scores {
            Scores::Bytes(scores) => load_bytes(chunk(scores, w)),
            Scores::Shorts(scores) => load_shorts(chunk(scores, w)),
        };
        for layer in sums.layers.iter() {
            add_amount(&mut rows, layer.words[w], layer.amount as i16);
        }
        for counted in sums.counted.iter() {
            add_counted(&mut rows, counted, w);
        }
        let (low, high) = (*word as u32, (*word >> SHORTS) as u32);
        let above = _mm512_mask_cmpgt_epi16_mask(low, rows[0], best)
            | _mm512_mask_cmpgt_epi16_mask(high, rows[1], best);
        if above != 0 {
            let least = _mm512_set1_epi16(i16::MIN);
            let top = _mm512_max_epi16(
                _mm512_mask_blend_epi16(low, least, rows[0]),
                _mm512_mask_blend_epi16(high, least, rows[1]),
            );
            greatest = greatest_lane(top);
            best = _mm512_set1_epi16(greatest);
            first = w;
        }
        *tie = u64::from(_mm512_mask_cmpeq_epi16_mask(low, rows[0], best))
            | u64::from(_mm512_mask_cmpeq_epi16_mask(high, rows[1], best)) << SHORTS;
    }
    ties[..first].fill(0);
    greatest
}

/// The scores of the rows of a word.
fn chunk<T>(scores: &[T], w: usize) -> &[T; WORD_ROWS] {
    scores[w * WORD_ROWS..].first_chunk().expect("the length was looked at")
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load_bytes(rows: &[u8; WORD_ROWS]) -> [__m512i; 2] {
    // SAFETY: an array of 64 bytes is read; no alignment is required.
    let rows = unsafe { _mm512_loadu_si512(rows.as_ptr().cast()) };
    let (low, high) = (_mm512_castsi512_si256(rows), _mm512_extracti64x4_epi64::<1>(rows));
    [_mm512_cvtepu8_epi16(low), _mm512_cvtepu8_epi16(high)]
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load_shorts(rows: &[u16; WORD_ROWS]) -> [__m512i; 2] {
    let (halves, _) = rows.as_chunks::<SHORTS>();
    // SAFETY: an array of 32 16-bit numbers is read; no alignment is required.
    [0, 1].map(|at| unsafe { _mm512_loadu_si512(halves[at].as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load_amounts(amounts: &[i16; TABLE]) -> [__m512i; 2] {
    let (halves, _) = amounts.as_chunks::<SHORTS>();
    // SAFETY: an array of 32 16-bit numbers is read; no alignment is required.
    [0, 1].map(|at| unsafe { _mm512_loadu_si512(halves[at].as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw")]
fn add_amount(rows: &mut [__m512i; 2], bits: u64, amount: i16) {
    let amount = _mm512_set1_epi16(amount);
    rows[0] = _mm512_mask_add_epi16(rows[0], bits as u32, rows[0], amount);
    rows[1] = _mm512_mask_add_epi16(rows[1], (bits >> SHORTS) as u32, rows[1], amount);
}

/// A row's place in the table is the offset of its part and its count: a byte a row. Two registers
/// hold the table.
#[target_feature(enable = "avx512f,avx512bw")]
fn add_counted(rows: &mut [__m512i; 2], counted: &Counted<'_>, w: usize) {
    let mut at = _mm512_setzero_si512();
    for (k, plane) in counted.planes.iter().enumerate() {
        let bits = plane.get(w).copied().unwrap_or(0);
        at = _mm512_mask_add_epi8(at, bits, at, _mm512_set1_epi8(1 << k));
    }
    for part in counted.parts.iter() {
        let offset = _mm512_set1_epi8(part.amount as i8);
        at = _mm512_mask_add_epi8(at, part.words[w], at, offset);
    }
    let [low, high] = load_amounts(counted.table);
    let bits = counted.rows[w];
    let of = [bits as u32, (bits >> SHORTS) as u32];
    let halves = [_mm512_castsi512_si256(at), _mm512_extracti64x4_epi64::<1>(at)];
    for ((row, at), of) in rows.iter_mut().zip(halves).zip(of) {
        let amount = _mm512_permutex2var_epi16(low, _mm512_cvtepu8_epi16(at), high);
        *row = _mm512_mask_add_epi16(*row, of, *row, amount);
    }
}

/// The greatest of 32 lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn greatest_lane(lanes: __m512i) -> i16 {
    let half =
        _mm256_max_epi16(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
    let quarter = _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    // The instruction finds the least of unsigned numbers; these bits reverse the order.
    let round = _mm_set1_epi16(i16::MAX);
    let least = _mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(quarter, round)));
    (least as i16) ^ i16::MAX
}
