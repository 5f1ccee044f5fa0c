//! Each kernel equals its scalar twin on any columns, and row-wise scores equal both.
#![allow(missing_docs)]

use pintle_sched_core::chunk::{CHUNK_ROWS, Chunk, Numbers};
use pintle_sched_core::simd::narrow::{self, Counted, PLANES_MAX, Scores, Sums, TABLE};
use pintle_sched_core::simd::{self, FitRequest, Layer, ScoreRequest, twin};
use proptest::collection::vec;
use proptest::prelude::*;

const WORDS: usize = CHUNK_ROWS / 64;

/// Numbers near the edges of the columns: empty, full, over-full, absent, largest.
fn numbers() -> impl Strategy<Value = Numbers> {
    let cpu = prop_oneof![Just(0i64), 1..200_000i64, Just((1 << 30) - 1)];
    let bytes = prop_oneof![Just(0i64), 1..(1i64 << 40), Just((1i64 << 46) - 1)];
    let used = 0..130u64;
    (cpu, bytes, vec(used, 8), 0..300i64).prop_map(|(cpu, mem, used, pods)| {
        let share = |all: i64, at: usize, max: i64| {
            let value = i128::from(all) * i128::from(used[at]) / 100;
            i64::try_from(value).expect("small").min(max)
        };
        Numbers {
            cpu,
            cpu_used: share(cpu, 0, (1 << 30) - 1),
            cpu_nonzero: share(cpu, 1, (1 << 30) - 1),
            mem,
            mem_used: share(mem, 2, (1 << 46) - 1),
            mem_nonzero: share(mem, 3, (1 << 46) - 1),
            eph: mem / 2,
            eph_used: share(mem / 2, 4, (1 << 46) - 1),
            pods,
            pods_used: share(pods, 5, (1 << 30) - 1),
        }
    })
}

fn chunk() -> impl Strategy<Value = Box<Chunk>> {
    vec(numbers(), CHUNK_ROWS).prop_map(|rows| {
        let mut chunk = Box::<Chunk>::default();
        for (at, n) in rows.iter().enumerate() {
            chunk.set_numbers(at, n);
            chunk.balance[at] = pintle_sched_core::score::resources::balance_default(n);
        }
        chunk
    })
}

fn bytes() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0i64), 1..(1i64 << 36), 1..(1i64 << 45)].prop_map(|b| b as f64)
}

/// Words of a mask, often all zeros or all ones.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()]
}

/// Rows, planes, parts with their offsets, and a table.
type ByCount = (Vec<u64>, Vec<Vec<u64>>, Vec<(Vec<u64>, i32)>, [i16; TABLE]);

/// Amounts by count. No row is in two parts; some rows are in none, and some planes end early.
fn counted() -> impl Strategy<Value = ByCount> {
    let planes = vec((vec(word(), 4), 0..5usize), 0..=PLANES_MAX);
    let planes = planes.prop_map(|planes| {
        let cut = |(words, len): (Vec<u64>, usize)| words[..len].to_vec();
        planes.into_iter().map(cut).collect()
    });
    let parts = vec((vec(word(), 4), 0..65_536i32), 0..5).prop_map(|mut parts| {
        let mut taken = vec![0; 4];
        for (words, _) in &mut parts {
            for (word, taken) in words.iter_mut().zip(&mut taken) {
                *word &= !*taken;
                *taken |= *word;
            }
        }
        (parts, taken)
    });
    let table = vec(-300..300i16, TABLE).prop_map(|t| <[i16; TABLE]>::try_from(t).expect("64"));
    (vec(word(), 4), planes, parts, table).prop_map(|(rows, planes, (parts, taken), table)| {
        let rows = rows.iter().zip(taken).map(|(rows, taken)| rows & taken).collect();
        (rows, planes, parts, table)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_resource_filter_equals_its_twin(
        chunk in chunk(), mask in vec(any::<u64>(), WORDS),
        cpu in prop_oneof![Just(0i32), 1..100_000i32], mem in bytes(), eph in bytes(),
    ) {
        let request = FitRequest { cpu, mem, eph };
        let (mut ours, mut portable, mut theirs) = (mask.clone(), mask.clone(), mask);
        simd::fit(&chunk, request, &mut ours);
        simd::fit_portable(&chunk, request, &mut portable);
        twin::fit(&chunk, request, &mut theirs);
        prop_assert_eq!(&ours, &theirs);
        prop_assert_eq!(&portable, &theirs);
    }

    #[test]
    fn the_resource_scores_equal_their_twins(
        chunk in chunk(), mask in vec(any::<u64>(), WORDS),
        cpu in 0..200_000i32, cpu_plain in 0..200_000i32, mem in bytes(), mem_plain in bytes(),
    ) {
        let request = ScoreRequest { cpu, mem, cpu_plain, mem_plain };
        let live = |at: &usize| mask[at / 64] >> (at % 64) & 1 == 1;
        let (mut ours, mut theirs) = ([0u8; CHUNK_ROWS], [0u8; CHUNK_ROWS]);
        simd::least_allocated(&chunk, request, &mask, &mut ours);
        twin::least_allocated(&chunk, request, &mask, &mut theirs);
        for at in (0..CHUNK_ROWS).filter(live) {
            prop_assert_eq!(ours[at], theirs[at], "row {} {:?}", at, chunk.numbers(at));
        }
        simd::balanced(&chunk, request, &mask, &mut ours);
        twin::balanced(&chunk, request, &mask, &mut theirs);
        for at in (0..CHUNK_ROWS).filter(live) {
            prop_assert_eq!(ours[at], theirs[at], "row {} {:?}", at, chunk.numbers(at));
        }
    }

    #[test]
    fn reductions_and_normalisations_equal_their_twins(
        column in vec(0..1_000_000i64, 256), mask in vec(any::<u64>(), 4),
    ) {
        let values: Vec<f64> = column.iter().map(|v| *v as f64).collect();
        prop_assert_eq!(simd::min_max(&values, &mask), twin::min_max(&values, &mask));
        prop_assert_eq!(simd::min_max_portable(&values, &mask), twin::min_max(&values, &mask));
        let totals: Vec<i32> = column.iter().map(|v| (*v % 7) as i32).collect();
        let (mut ours, mut theirs) = (vec![0; 4], vec![0; 4]);
        let best = simd::arg_max(&totals, &mask, &mut ours);
        prop_assert_eq!(best, twin::arg_max(&totals, &mask, &mut theirs));
        prop_assert_eq!(ours, theirs);
        let max = values.iter().copied().fold(1.0, f64::max);
        let (mut ours, mut theirs) = (values.clone(), values.clone());
        simd::normalise(&mut ours, max, -1.0, max);
        twin::normalise(&mut theirs, max, -1.0, max);
        prop_assert_eq!(&ours, &theirs);
        let halves: Vec<f64> = values.iter().map(|v| 1.0 + v / 16.0).collect();
        let (mut ours, mut theirs) = (halves.clone(), halves);
        simd::round_half_up(&mut ours);
        twin::round_half_up(&mut theirs);
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn the_greatest_sum_equals_its_twin(
        scores in vec(0..300u16, 256), feasible in vec(word(), 4),
        masks in vec((vec(word(), 4), -300..300i32), 0..5), counted in vec(counted(), 0..2),
        base in -300..300i32, narrow in any::<bool>(),
    ) {
        let bytes: Vec<u8> = scores.iter().map(|s| *s as u8).collect();
        let scores = if narrow { Scores::Bytes(&bytes) } else { Scores::Shorts(&scores) };
        let mut sums = Sums::new(scores, &feasible);
        for (words, amount) in &masks {
            sums.layers.push(Layer { words, amount: *amount });
        }
        for (rows, planes, parts, table) in &counted {
            let mut counted = Counted::new(rows, table);
            planes.iter().for_each(|plane| counted.planes.push(plane));
            for (words, offset) in parts {
                counted.parts.push(Layer { words, amount: *offset });
            }
            sums.counted.push(counted);
        }
        let mut theirs = vec![1; 4];
        let best = twin::greatest(&sums, &mut theirs);
        for kernel in [narrow::greatest, narrow::greatest_portable] {
            let mut ours = vec![1; 4];
            prop_assert_eq!(kernel(&sums, &mut ours), best);
            prop_assert_eq!(&ours, &theirs);
        }
        let mut totals = vec![0; 256];
        narrow::write(&sums, base, &mut totals);
        for row in (0..256u32).filter(|row| feasible[*row as usize / 64] >> (row % 64) & 1 == 1) {
            prop_assert_eq!(totals[row as usize], i32::from(sums.of(row)) + base);
        }
    }

    #[test]
    fn extremes_of_planes_equal_those_of_numbers(
        rows in vec(word(), 20), planes in vec((vec(word(), 20), 0..20usize), 0..7),
    ) {
        let planes: Vec<&[u64]> = planes.iter().map(|(words, len)| &words[..*len]).collect();
        let bit = |words: &[u64], row: usize| words.get(row / 64).map_or(0, |w| w >> (row % 64) & 1);
        let number = |row: usize| -> u64 {
            planes.iter().enumerate().map(|(k, plane)| bit(plane, row) << k).sum()
        };
        let numbers: Vec<u64> =
            (0..1280).filter(|row| bit(&rows, *row) == 1).map(number).collect();
        let least = numbers.iter().copied().min().unwrap_or(u64::MAX);
        let most = numbers.iter().copied().max().unwrap_or(0);
        prop_assert_eq!(simd::words::extremes(&rows, &planes), (least, most));
    }

    #[test]
    fn gathers_and_searches_equal_plain_loops(values in vec(0..64u32, 200), wanted in 0..64u32) {
        let table: Vec<f64> = (0..64).map(|v| f64::from(v) * 1.5).collect();
        let narrow: [f64; 64] = table.clone().try_into().expect("64 values");
        let (mut ours, mut theirs) = (vec![0.5; 200], vec![0.5; 200]);
        let bytes: Vec<u8> = values.iter().map(|v| *v as u8).collect();
        simd::gather_add(&bytes, &narrow, &mut ours);
        simd::gather_add_wide(&values, &table, &mut theirs);
        prop_assert_eq!(ours, theirs);
        let flags: Vec<bool> = (0..64).map(|v| v == wanted).collect();
        let (mut ours, mut theirs) = (vec![0u64; 4], vec![0u64; 4]);
        simd::rows_equal(&values, wanted, &mut ours);
        simd::rows_in_table(&values, &flags, &mut theirs);
        prop_assert_eq!(ours, theirs);
    }
}
