//! Kernels that compilers do not find: masked lanes taken straight from the words of a bitset.
//!
//! Input and output as the portable loops of the parent. Owner: pure functions, called only after
//! `available`. Why by hand: a word of a mask is a lane mask register here, and no compiler turns
//! "bit i of a word" into one; the loops took forty instructions where these take two.
// JUSTIFICATION: 16 us to 1 us of a decision over 5,000 nodes.

use std::arch::x86_64::{
    __m256i, __m512d, __m512i, _CMP_GE_OQ, _mm256_cmpgt_epu16_mask, _mm256_loadu_si256,
    _mm512_add_epi32, _mm512_cmp_pd_mask, _mm512_cmpeq_epi32_mask, _mm512_cmpge_epi32_mask,
    _mm512_loadu_pd, _mm512_loadu_si512, _mm512_mask_add_epi32, _mm512_mask_max_epi32,
    _mm512_mask_max_pd, _mm512_mask_min_pd, _mm512_reduce_max_epi32, _mm512_reduce_max_pd,
    _mm512_reduce_min_pd, _mm512_set1_epi32, _mm512_set1_pd, _mm512_storeu_si512, _mm512_sub_epi32,
    _mm512_sub_pd,
};

use super::{FitRequest, Layer};
use crate::bits::WORD_ROWS;
use crate::snapshot::chunk::{CHUNK_ROWS, Chunk};

/// Rows that are added up at a time: a register of 32-bit lanes.
const LANES: usize = 16;
/// Vectors in a word of rows.
const VECTORS: usize = WORD_ROWS / LANES;

/// Whether this machine runs them.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load(rows: &[i32; LANES]) -> __m512i {
    // SAFETY: an array of sixteen 32-bit numbers is what is read; no alignment is asked for.
    unsafe { _mm512_loadu_si512(rows.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw")]
fn store(rows: &mut [i32; LANES], lanes: __m512i) {
    // SAFETY: an array of sixteen 32-bit numbers is what is written; no alignment is asked for.
    unsafe { _mm512_storeu_si512(rows.as_mut_ptr().cast(), lanes) }
}

/// As [`super::add_layers`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn add_layers(
    layers: &[Layer<'_>],
    base: i32,
    feasible: &[u64],
    total: &mut [i32],
    tops: &mut [i32],
) {
    let base = _mm512_set1_epi32(base);
    let (words, _) = total.as_chunks_mut::<WORD_ROWS>();
    for (w, (rows, word)) in words.iter_mut().zip(feasible).enumerate() {
        if *word == 0 {
            continue;
        }
        let (vectors, _) = rows.as_chunks_mut::<LANES>();
        let mut sums: [__m512i; VECTORS] = std::array::from_fn(|k| load(&vectors[k]));
        for sum in &mut sums {
            *sum = _mm512_add_epi32(*sum, base);
        }
        for layer in layers {
            let (bits, amount) = (layer.words[w], _mm512_set1_epi32(layer.amount));
            for (k, sum) in sums.iter_mut().enumerate() {
                let lanes = (bits >> (k * LANES)) as u16;
                *sum = _mm512_mask_add_epi32(*sum, lanes, *sum, amount);
            }
        }
        let mut top = _mm512_set1_epi32(i32::MIN);
        for (k, sum) in sums.into_iter().enumerate() {
            store(&mut vectors[k], sum);
            top = _mm512_mask_max_epi32(top, (word >> (k * LANES)) as u16, top, sum);
        }
        tops[w] = _mm512_reduce_max_epi32(top);
    }
}

/// As [`super::fit`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn fit(chunk: &Chunk, r: FitRequest, words: &mut [u64]) {
    // A resource that is not asked for is compared with the least there is.
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

/// Which of sixteen differences are not below `least`.
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
    // SAFETY: an array of sixteen 16-bit numbers is what is read; no alignment is asked for.
    unsafe { _mm256_loadu_si256(rows.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn doubles(column: &[f64; CHUNK_ROWS], at: usize) -> __m512d {
    let rows: &[f64; LANES / 2] = column[at..].first_chunk().expect("a whole vector");
    // SAFETY: an array of eight doubles is what is read; no alignment is asked for.
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
            // SAFETY: an array of eight doubles is what is read; no alignment is asked for.
            let lanes = unsafe { _mm512_loadu_pd(lanes.as_ptr()) };
            let live = (word >> (k * EIGHT)) as u8;
            low = _mm512_mask_min_pd(low, live, low, lanes);
            high = _mm512_mask_max_pd(high, live, high, lanes);
        }
    }
    (_mm512_reduce_min_pd(low), _mm512_reduce_max_pd(high))
}

/// Bits of the rows that are equal to `number`.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn equal_word(rows: &[i32; WORD_ROWS], number: i32) -> u64 {
    let (vectors, _) = rows.as_chunks::<LANES>();
    let number = _mm512_set1_epi32(number);
    vectors.iter().enumerate().fold(0, |word, (k, lanes)| {
        word | u64::from(_mm512_cmpeq_epi32_mask(load(lanes), number)) << (k * LANES)
    })
}
