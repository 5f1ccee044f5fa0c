//! The stage `vectors`: random objects are synced by upstream's controllers and by ours, whose
//! requests must be the same.
//!
//! Input: the test programs of the controllers, which are built already, and upstream's sync
//! functions as programs of Go. Output: a count for each kind. A whole run has 10,000 of each kind,
//! like `cargo xtask vectors`; a sample has fewer, and its first seed is derived from git's hash of
//! the folder `controllers`, so that each version of it has others. A kind that differs is made and
//! compared once more: some of upstream's sums depend on the order of a map.

use std::ops::Range;

use anyhow::{Context, Result, bail};

use super::programs::{Choice, StageProgram};
use super::report::TestCounts;
use super::{TestRun, fresh_worlds_of, sample};
use crate::shell;
use crate::task::vectors::{self, Folder, KINDS, VectorKind};

/// Syncs of each kind in a sample.
const SAMPLED: u64 = 1_000;

pub(super) fn run(run: &TestRun) -> Result<TestCounts> {
    let seeds = seeds(run.may_sample);
    let text = format!("seeds {} to {} of each kind", seeds.start, seeds.end);
    shell::say("vectors", &text);
    let programs = run.programs(Choice::Unit)?;
    let given = VectorInputs { programs: &programs, folder: &Folder::new()?, run };
    let mut counts = TestCounts::default();
    for kind in &KINDS {
        let Err(error) = compare(kind, seeds.clone(), &given) else {
            counts.passed += 1;
            continue;
        };
        shell::say("again", &format!("{}: {error:#}", kind.name));
        match compare(kind, seeds.clone(), &given) {
            Ok(()) => (counts.passed, counts.flaky) = (counts.passed + 1, counts.flaky + 1),
            Err(error) => {
                shell::say("failed", &format!("{}: {error:#}", kind.name));
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}

/// A sample begins where the folder's tree says, all of them where they always do.
fn seeds(may_sample: bool) -> Range<u64> {
    let tree = || sample::git(&["rev-parse", "HEAD:controllers"]);
    let drawn = if may_sample { tree().and_then(|tree| fresh_worlds_of(&tree)) } else { None };
    let first = vectors::FIRST_SEED + drawn.unwrap_or(0);
    first..first + if may_sample { SAMPLED } else { vectors::COUNT }
}

/// Inputs that every kind is compared with.
#[derive(Clone, Copy)]
struct VectorInputs<'a> {
    programs: &'a [StageProgram],
    folder: &'a Folder,
    run: &'a TestRun,
}

fn compare(kind: &VectorKind, seeds: Range<u64>, given: &VectorInputs<'_>) -> Result<()> {
    let VectorInputs { programs, folder, run } = *given;
    let name = format!("{} {}", kind.package, kind.target);
    let program = programs.iter().find(|program| program.name == name);
    let program = program.with_context(|| format!("there is no test program {name}"))?;
    kind.compare(seeds, folder, |kind, given| {
        let given = given.to_string_lossy();
        let args = [kind.test, "--nocapture"];
        let counts = program.run(&args, &[(kind.variable, &given)], &run.skips)?.counts;
        match (counts.passed, counts.failed) {
            (1, 0) => Ok(()),
            (0, 0) => bail!("no test of the name {} ran", kind.test),
            _ => bail!("upstream does something else"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_fewer_than_all_and_all_are_always_the_same() {
        let all = seeds(false);
        assert_eq!(all, vectors::FIRST_SEED..vectors::FIRST_SEED + vectors::COUNT);
        let sample = seeds(true);
        assert_eq!(sample.end - sample.start, SAMPLED);
        assert!(sample.start >= vectors::FIRST_SEED);
    }
}
