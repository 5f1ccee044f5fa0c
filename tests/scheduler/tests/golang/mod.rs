//! Hashes, revisions and equality of pod templates, and strategic merge patches: upstream's and
//! ours.
//!
//! Upstream's controllers and its strategic merge patch run in a program of their own
//! (`tests/upstream/vectors/golang`), which generates a template or a patch for each seed. Hashes,
//! revision bytes, equality and merged objects must be the same. The same program generates the
//! tables of types and of merge keys; they must be current.
//! `PINTLE_GOLANG_CASES` sets how many seeds are asked about, `PINTLE_SEED` where they begin;
//! `PINTLE_WRITE=1` rewrites the tables.

mod patches;
mod tables;
mod templates;

use serde_json::{Value, json};
use xtask::upstream::Program;

use crate::vectors::{ask_program, number};

/// Seeds in CI, of each kind.
const CASES: u64 = 5_000;
/// Differences that are worth printing.
const SHOWN: usize = 10;
/// Characters of a difference that are worth printing.
const PART_SHOWN: usize = 160;

/// Asks about each seed and checks that no answer differs. `differences` returns the number of
/// values that it compared.
fn check(
    question: fn(u64) -> Value,
    mut differences: impl FnMut(&Value, &mut Vec<String>) -> u64,
) -> u64 {
    let first = number("PINTLE_SEED", 1);
    let cases = number("PINTLE_GOLANG_CASES", CASES);
    let program = Program::GolangVectors.ensure().expect("the program builds");
    let (mut seed, mut compared, mut found) = (first, 0, Vec::new());
    ask_program(&program, first..first + cases, question, |line| {
        let answer: Value = serde_json::from_str(line).expect("an answer");
        let mut here = Vec::new();
        compared += differences(&answer, &mut here);
        found.extend(here.into_iter().map(|difference| format!("PINTLE_SEED={seed} {difference}")));
        seed += 1;
    });
    println!("{cases} seeds, {compared} comparisons, {} differences", found.len());
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{}", found.join("\n"));
    compared
}

/// Adds a difference unless both are equal.
fn compare<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ours: &T,
    theirs: &T,
    into: &mut Vec<String>,
) {
    if ours != theirs {
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        let pairs = ours.chars().zip(theirs.chars());
        let at = pairs.take_while(|(ours, theirs)| ours == theirs).count().saturating_sub(40);
        let part = |text: &str| text.chars().skip(at).take(PART_SHOWN).collect::<String>();
        into.push(format!("{what}:\nours   ..{}\ntheirs ..{}", part(&ours), part(&theirs)));
    }
}

/// The answer to a question without a seed.
fn table(kind: &'static str) -> String {
    let program = Program::GolangVectors.ensure().expect("the program builds");
    let question = match kind {
        "types" => |_| json!({"kind": "types"}),
        _ => |_| json!({"kind": "mergeKeys"}),
    };
    let mut found = String::new();
    ask_program(&program, 0..1, question, |line| {
        found = serde_json::from_str(line).expect("a text");
    });
    found
}
