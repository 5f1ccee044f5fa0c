//! Samples of suites and stages.
//!
//! A run of everything has half of the tests of each stage with real nodes and clusters, and a
//! quarter of the conformance tests. Other suites run as a sample if all their tests have passed on this
//! machine with the same inputs.
//!
//! Input: a suite's source folders, as git knows them, and the records of earlier runs in the
//! cache. A suite runs whole if its inputs changed, are not committed or were never tested whole
//! here, or if its last sample failed. The tree of the commit selects the sample, so that another
//! commit tries another part; tests that failed or were flaky the last time are always in.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::TestRun;
use super::report::TestCounts;
use crate::image::sha256;
use crate::shell::{self, capture};
use crate::{cache, repository, supervisor};

/// A suite that may run as a sample.
pub(super) struct SampledSuite {
    name: &'static str,
    /// All that it is made from, besides `COMMON`.
    inputs: &'static [&'static str],
    /// True if a run of everything has a sample of it also where it never passed whole.
    is_always_sampled: bool,
}

/// Inputs of every program, and the code that runs suites.
const COMMON: [&str; 5] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "api", "xtask"];
pub(super) const CONFORMANCE: SampledSuite = SampledSuite {
    name: "conformance",
    inputs: &["agent", "cri", "ebpf", "tests/upstream"],
    is_always_sampled: true,
};
pub(super) const SIM: SampledSuite =
    SampledSuite { name: "sim", inputs: &["agent"], is_always_sampled: false };
pub(super) const FUZZ: SampledSuite = SampledSuite {
    name: "fuzz",
    inputs: &["agent", "cri", "ebpf", "sched-core", "tests/fuzz"],
    is_always_sampled: false,
};

/// A sample has one test of so many, besides one of each kind and the marked ones.
const ONE_OF: u64 = 4;
/// Remembered sums of inputs of a suite: several branches may be in use.
const REMEMBERED_MAX: usize = 16;

/// The part of a suite that runs, and the record of its result.
pub(super) struct Extent {
    suite: &'static str,
    /// The sum of its inputs; none where git does not know them.
    inputs: Option<String>,
    /// True if all of it has passed with these inputs.
    is_tested: bool,
    /// The tree from which the sample is drawn; none for the whole suite.
    drawn_by: Option<String>,
    marked: BTreeSet<String>,
}

impl SampledSuite {
    /// How much of it runs in this run.
    pub(super) fn extent(&self, run: &TestRun) -> Extent {
        // A run with a filter or such a variable proves nothing about the suite.
        let is_usual = run.filter.is_none() && !std::env::vars_os().any(|(name, _)| changes(&name));
        let inputs = if is_usual { self.sum() } else { None };
        let past = SuiteHistory::read(self.name).unwrap_or_default();
        let tested = inputs.as_ref().is_some_and(|sum| past.passed.contains(sum));
        let may_sample = run.may_sample && (tested || (is_usual && self.is_always_sampled));
        let drawn_by = if may_sample { git(&["rev-parse", "HEAD^{tree}"]) } else { None };
        let marked = past.marked;
        let extent = Extent { suite: self.name, inputs, is_tested: tested, drawn_by, marked };
        let what = match &extent.drawn_by {
            Some(tree) if tested => {
                format!("a sample drawn by {tree}: all passed here with these inputs")
            }
            Some(tree) => format!("a sample drawn by {tree}"),
            None => "all of it".to_owned(),
        };
        shell::say(self.name, &what);
        extent
    }

    /// The sum of its inputs in the last commit, if the working tree has no others.
    fn sum(&self) -> Option<String> {
        let paths = || COMMON.iter().chain(self.inputs).copied();
        let with = |args: &[&'static str]| args.iter().copied().chain(paths()).collect::<Vec<_>>();
        let changed = git(&with(&["status", "--porcelain", "--"]))?;
        let tree = git(&with(&["ls-tree", "HEAD", "--"]))?;
        changed.is_empty().then(|| sha256(tree.as_bytes()))
    }
}

impl Extent {
    /// The tree from which the sample is drawn, if it is one.
    pub(super) fn drawn_by(&self) -> Option<&str> {
        self.drawn_by.as_deref()
    }

    /// Those of the names that run; a sample is printed.
    pub(super) fn choose(&self, names: Vec<String>) -> Vec<String> {
        let Some(tree) = &self.drawn_by else { return names };
        let count = names.len();
        show(self.suite, draw(tree, names, &self.marked), count)
    }

    /// Records the result: `marked` are the tests that failed or were flaky. A suite that did not
    /// run to its end has failed.
    pub(super) fn conclude(
        self,
        result: Result<TestCounts>,
        marked: BTreeSet<String>,
    ) -> Result<TestCounts> {
        let Some(inputs) = self.inputs else { return result };
        let mut past = SuiteHistory::read(self.suite).unwrap_or_default();
        past.marked = marked;
        past.passed.retain(|sum| *sum != inputs);
        let is_proven = self.drawn_by.is_none() || self.is_tested;
        if is_proven && result.as_ref().is_ok_and(|counts| counts.failed == 0) {
            past.passed.push(inputs);
        }
        past.write(self.suite)?;
        result
    }
}

/// The tests of a stage that run: in a run of everything half of them, drawn by the tree.
pub(super) fn half(stage: &str, run: &TestRun, names: Vec<String>) -> Vec<String> {
    let is_whole = !run.may_sample || run.filter.is_some();
    let tree = if is_whole { None } else { git(&["rev-parse", "HEAD^{tree}"]) };
    let Some(tree) = tree else { return names };
    let count = names.len();
    show(stage, half_of(&tree, names), count)
}

/// Half of the names, and at least one.
fn half_of(tree: &str, mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|name| lot(tree, name));
    names.truncate(names.len().div_ceil(2));
    names
}

/// Prints a sample of so many tests.
fn show(suite: &str, chosen: Vec<String>, count: usize) -> Vec<String> {
    shell::say(suite, &format!("{} of {count} tests:", chosen.len()));
    chosen.iter().for_each(|name| shell::say("", name));
    chosen
}

/// Returns whether an environment variable changes which tests run, or how.
fn changes(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("PINTLE_") && ![supervisor::MARK, "PINTLE_CACHE"].contains(&&*name)
}

/// The number that a tree gives a name.
pub(super) fn lot(tree: &str, name: &str) -> u64 {
    let sum = sha256(format!("{tree} {name}").as_bytes());
    u64::from_str_radix(&sum[..12], 16).expect("a sum is hexadecimal")
}

/// One of four by the hash of tree and name, the first by it of each kind, and those marked.
fn draw(tree: &str, names: Vec<String>, marked: &BTreeSet<String>) -> Vec<String> {
    let lot = |name: &str| lot(tree, name);
    let mut firsts = BTreeMap::new();
    for name in &names {
        let first = firsts.entry(kind(name).to_owned()).or_insert(u64::MAX);
        *first = lot(name).min(*first);
    }
    let is_in = |name: &String| {
        let lot = lot(name);
        lot.is_multiple_of(ONE_OF) || firsts[kind(name)] == lot || marked.contains(name)
    };
    names.into_iter().filter(is_in).collect()
}

/// The subject of a test: `[sig-node] Probing container` of a longer name.
fn kind(name: &str) -> &str {
    let end = name.match_indices(' ').nth(2).map_or(name.len(), |(at, _)| at);
    &name[..end]
}

/// Records of earlier runs of a suite on this machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct SuiteHistory {
    /// Sums of inputs with which all of it passed, newest last.
    passed: Vec<String>,
    /// Tests that failed or were flaky in the last run.
    marked: BTreeSet<String>,
}

impl SuiteHistory {
    fn read(suite: &str) -> Result<Self> {
        Ok(Self::parse(&fs::read_to_string(Self::path(suite)?)?))
    }

    fn parse(text: &str) -> Self {
        let of = |word: &'static str| {
            text.lines().filter_map(move |l| Some(l.strip_prefix(word)?.trim().to_owned()))
        };
        Self { passed: of("passed ").collect(), marked: of("marked ").collect() }
    }

    fn text(&self) -> String {
        let surplus = self.passed.len().saturating_sub(REMEMBERED_MAX);
        let passed = self.passed[surplus..].iter().map(|sum| format!("passed {sum}\n"));
        passed.chain(self.marked.iter().map(|name| format!("marked {name}\n"))).collect()
    }

    fn write(&self, suite: &str) -> Result<()> {
        let path = Self::path(suite)?;
        let part = path.with_extension(std::process::id().to_string());
        fs::write(&part, self.text()).with_context(|| format!("write {}", part.display()))?;
        fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))
    }

    fn path(suite: &str) -> Result<PathBuf> {
        let dir = cache::dir()?.join("tested");
        fs::create_dir_all(&dir)?;
        Ok(dir.join(suite))
    }
}

/// Output of git in the repository, whichever user owns the folder; none in an archive of the
/// sources.
pub(super) fn git(args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*"]).args(args).current_dir(repository());
    capture(&mut git).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        let of = |kind: &'static str| (0..40).map(move |n| format!("[sig-node] {kind} test {n}"));
        of("Pods").chain(of("Probing")).chain(["[sig-network] DNS one test".to_owned()]).collect()
    }

    #[test]
    fn a_sample_has_each_kind_and_all_that_are_marked_and_another_tree_has_another() {
        let marked: BTreeSet<String> = names().into_iter().skip(3).take(9).collect();
        let draw = |tree: &str, marked: &BTreeSet<String>| draw(tree, names(), marked);
        let chosen = draw("a", &marked);
        assert!(marked.iter().all(|name| chosen.contains(name)));
        assert!(chosen.contains(&"[sig-network] DNS one test".to_owned()));
        assert!((12..50).contains(&chosen.len()), "{}", chosen.len());
        assert_eq!(chosen, draw("a", &marked));
        assert_ne!(chosen, draw("b", &marked));
        // Each test has its turn.
        let trees = (0..100).map(|n| draw(&n.to_string(), &BTreeSet::new()));
        let seen: BTreeSet<String> = trees.flatten().collect();
        assert_eq!(seen.len(), names().len());
    }

    #[test]
    fn half_of_the_tests_differs_from_tree_to_tree_and_is_never_empty() {
        let chosen = half_of("a", names());
        assert_eq!(chosen.len(), names().len().div_ceil(2));
        assert_eq!(chosen, half_of("a", names()));
        assert_ne!(chosen, half_of("b", names()));
        assert_eq!(half_of("a", vec!["one".to_owned()]), ["one"]);
        // Named by a person, all of them.
        assert_eq!(half("e2e", &TestRun::new(None, false), names()), names());
    }

    #[test]
    fn whole_suite_runs_unless_all_its_tests_passed_with_the_same_inputs() {
        let whole = Extent {
            suite: "t",
            inputs: Some("sum".to_owned()),
            is_tested: false,
            drawn_by: None,
            marked: BTreeSet::new(),
        };
        assert_eq!(whole.choose(names()), names());
        // Named by a person: no suite is sampled. Filtered: nothing is written down.
        assert!(CONFORMANCE.extent(&TestRun::new(None, false)).drawn_by().is_none());
        assert!(CONFORMANCE.extent(&TestRun::new(Some("x".to_owned()), true)).inputs.is_none());
        assert!(changes(OsStr::new("PINTLE_AGENT")) && !changes(OsStr::new(supervisor::MARK)));
    }

    #[test]
    fn saved_suite_history_is_read_back_without_its_oldest_entries() {
        let past = SuiteHistory {
            passed: (0..REMEMBERED_MAX + 2).map(|n| n.to_string()).collect(),
            marked: ["[sig-node] a b".to_owned()].into(),
        };
        let read = SuiteHistory::parse(&past.text());
        assert_eq!(read.passed, past.passed[2..]);
        assert_eq!(read.marked, past.marked);
    }
}
