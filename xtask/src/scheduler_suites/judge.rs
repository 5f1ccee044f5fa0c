//! What a run of upstream's scheduler tests came to, beside what upstream's own scheduler came to.
//!
//! Pure: what a Go test program prints in, results, a table and faults out. Names are `PACKAGE
//! TEST/CASE`. A test that was chosen and did not end did not pass; neither did a case that
//! upstream's scheduler runs and this run did not. So is an exception for a test that passes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

/// Lines of a failed test that are worth a place in the summary.
const REASON_LINES: usize = 4;
/// Characters of such a line.
const REASON_WIDTH: usize = 300;

/// How a test or one of its cases ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    Failed,
    Skipped,
    Missing,
}

impl End {
    const ALL: [Self; 4] = [Self::Passed, Self::Failed, Self::Skipped, Self::Missing];

    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Missing => "missing",
        }
    }
}

/// What became of each test and case, with seconds.
pub(super) type Ends = BTreeMap<String, (End, f64)>;

/// A test and those of its cases are `name` and names below it.
fn is_part(name: &str, test: &str) -> bool {
    name.strip_prefix(test).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads what the test program of a package printed: how everything ended, and why it failed.
pub(super) fn parse(package: &str, text: &str) -> (Ends, BTreeMap<String, Vec<String>>) {
    let (mut ends, mut reasons) = (Ends::new(), BTreeMap::<String, Vec<String>>::new());
    let mut current = String::new();
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("=== ") {
            if let Some((_, name)) = rest.split_once(char::is_whitespace) {
                current = format!("{package} {}", name.trim());
            }
        } else if let Some((name, end)) = ended(line) {
            ends.insert(format!("{package} {name}"), end);
        } else if line.split_once(": ").is_some_and(|(place, _)| is_place(place)) {
            let reason: String = line.chars().take(REASON_WIDTH).collect();
            reasons.entry(current.clone()).or_default().push(reason);
        }
    }
    reasons.retain(|name, _| ends.get(name).is_none_or(|(end, _)| *end == End::Failed));
    (ends, reasons)
}

/// Reads `--- PASS: NAME (0.10s)`.
fn ended(line: &str) -> Option<(&str, (End, f64))> {
    let (word, rest) = line.strip_prefix("--- ")?.split_once(": ")?;
    let end = match word {
        "PASS" => End::Passed,
        "FAIL" => End::Failed,
        "SKIP" => End::Skipped,
        _ => return None,
    };
    let (name, seconds) = rest.rsplit_once(" (")?;
    Some((name, (end, seconds.strip_suffix("s)")?.parse().ok()?)))
}

/// Whether this is `file_test.go:12`.
fn is_place(text: &str) -> bool {
    let Some((file, line)) = text.rsplit_once(':') else { return false };
    file.ends_with(".go") && !file.contains(' ') && line.parse::<u32>().is_ok()
}

/// Reads what upstream's own scheduler came to, a line each: end, seconds, name.
pub(super) fn parse_list(text: &str) -> Result<Ends> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let one = |line: &str| -> Result<_> {
        let mut fields = line.splitn(3, '\t');
        let mut next = || fields.next().context("three fields with tabs between");
        let (word, seconds, name) = (next()?, next()?, next()?);
        let end = End::ALL.into_iter().find(|end| end.word() == word).context("unknown end")?;
        Ok((name.to_owned(), (end, seconds.parse()?)))
    };
    lines.map(|line| one(line).with_context(|| format!("read {line:?}"))).collect()
}

/// The list as it is written down.
pub(super) fn list(ends: &Ends) -> String {
    let line = |(name, (end, seconds)): (&String, &(End, f64))| {
        format!("{}\t{seconds:.1}\t{name}\n", end.word())
    };
    ends.iter().map(line).collect()
}

/// What is known beforehand, by name, with why.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    /// Tests that look into the scheduler's process or call into it: no other can be put there.
    pub(super) inside: BTreeMap<String, String>,
    /// Tests and cases that fail with ours.
    fails: BTreeMap<String, String>,
}

impl Exceptions {
    /// Reads them, a line each: `inside` or `pintle`, name, why.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut all = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let &[kind, name, why] = line.split('\t').collect::<Vec<_>>().as_slice() else {
                bail!("an exception is KIND, NAME and WHY with tabs between, not {line:?}");
            };
            ensure!(!why.is_empty(), "no reason: {line:?}");
            let kind = match kind {
                "inside" => &mut all.inside,
                "pintle" => &mut all.fails,
                _ => bail!("an exception is `inside` or `pintle`: {line:?}"),
            };
            ensure!(kind.insert(name.to_owned(), why.to_owned()).is_none(), "twice: {name}");
        }
        Ok(all)
    }

    /// Of the tests of the whole suite, fails if an exception is for none.
    pub(super) fn check(&self, tests: &BTreeSet<String>) -> Result<()> {
        for name in self.inside.keys() {
            ensure!(tests.contains(name), "an exception for a test that is not there: {name}");
        }
        for name in self.fails.keys() {
            let is_there = tests.iter().any(|test| is_part(name, test));
            ensure!(is_there, "an exception for a test that is not there: {name}");
        }
        Ok(())
    }

    /// A case's failure is also that of the tests that it is part of.
    fn excuses(&self, name: &str) -> bool {
        self.fails.keys().any(|excepted| is_part(excepted, name) || is_part(name, excepted))
    }
}

/// What is wrong with a run of these tests.
pub(super) fn faults(
    tests: &BTreeSet<String>,
    came: &Ends,
    upstream: &Ends,
    exceptions: &Exceptions,
) -> Vec<String> {
    let mut faults = Vec::new();
    for name in all_names(tests, came, upstream) {
        let end = came.get(name).map_or(End::Missing, |(end, _)| *end);
        let theirs = upstream.get(name).map(|(end, _)| *end);
        let is_excused = exceptions.excuses(name);
        match end {
            End::Passed if exceptions.fails.contains_key(name) => {
                faults.push(format!("passes, so no exception: {name}"));
            }
            End::Failed if !is_excused => faults.push(format!("failed: {name}")),
            End::Missing if !is_excused => faults.push(format!("did not run: {name}")),
            End::Skipped if theirs != Some(End::Skipped) && !is_excused => {
                faults.push(format!("declined: {name}"));
            }
            _ => {}
        }
    }
    faults
}

/// All tests that were chosen, and all their cases that either ran.
fn all_names<'a>(
    tests: &'a BTreeSet<String>,
    came: &'a Ends,
    upstream: &'a Ends,
) -> BTreeSet<&'a str> {
    let cases = came.keys().chain(upstream.keys());
    let of_tests = |name: &&String| tests.iter().any(|test| is_part(name, test));
    tests.iter().chain(cases.filter(of_tests)).map(String::as_str).collect()
}

/// Tests and cases without cases of their own, and how many ended how: both columns.
pub(super) fn table(tests: &BTreeSet<String>, came: &Ends, upstream: &Ends) -> String {
    let names = all_names(tests, came, upstream);
    let is_leaf = |name: &&&str| {
        let below = format!("{name}/");
        !names.range(below.as_str()..).next().is_some_and(|next| next.starts_with(&below))
    };
    let leaves: Vec<&str> = names.iter().filter(is_leaf).copied().collect();
    let mut text = format!("{:<16}  {:<16}  name\n", "kube-scheduler", "this run");
    let cell = |of: &Ends, name: &str| {
        of.get(name).map_or_else(
            || format!("{:<16}", "-"),
            |(end, seconds)| format!("{:<8}{seconds:>6.1} s", end.word()),
        )
    };
    for name in &leaves {
        let _ = writeln!(text, "{}  {}  {name}", cell(upstream, name), cell(came, name));
    }
    for (who, of) in [("kube-scheduler", upstream), ("this run", came)] {
        let count = |end| {
            let ended = |name: &&&str| of.get(**name).map_or(End::Missing, |(end, _)| *end) == end;
            format!("{} {}", leaves.iter().filter(ended).count(), end.word())
        };
        let _ = writeln!(text, "{who:<16}  {}", End::ALL.map(count).join(", "));
    }
    text
}

/// Why tests failed, as far as they say so.
pub(super) fn reasons(all: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = String::new();
    for (name, lines) in all {
        let _ = writeln!(text, "{name}");
        for line in lines.iter().take(REASON_LINES) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: &str = "=== RUN   TestA\n=== RUN   TestA/one_(x)\n    a_test.go:7: no node\n\
        === RUN   TestA/two\n    a_test.go:9: a remark\n--- FAIL: TestA (1.50s)\n    \
        --- FAIL: TestA/one_(x) (0.50s)\n    --- PASS: TestA/two (1.00s)\n=== RUN   TestB\n\
        --- SKIP: TestB (0.00s)\nFAIL\n";

    fn tests(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn ends_and_reasons_are_read_from_what_go_prints() {
        let (ends, why) = parse("p", OUT);
        let expected = "failed\t1.5\tp TestA\nfailed\t0.5\tp TestA/one_(x)\n\
                        passed\t1.0\tp TestA/two\nskipped\t0.0\tp TestB\n";
        assert_eq!(list(&ends), expected);
        assert_eq!(parse_list(expected).expect("a list"), ends);
        assert_eq!(reasons(&why), "p TestA/one_(x)\n    a_test.go:7: no node\n");
        let text = table(&tests(&["p TestA"]), &ends, &Ends::new());
        assert!(text.ends_with("this run          1 passed, 1 failed, 0 skipped, 0 missing\n"));
    }

    #[test]
    fn what_did_not_run_or_is_no_exception_is_a_fault() {
        let (came, _) = parse("p", OUT);
        let of = |names: &[&str], upstream: &str, exceptions: &str| {
            let exceptions = Exceptions::parse(exceptions).expect("exceptions");
            faults(&tests(names), &came, &parse_list(upstream).expect("a list"), &exceptions)
        };
        assert_eq!(of(&["p TestA"], "", ""), ["failed: p TestA", "failed: p TestA/one_(x)"]);
        assert_eq!(of(&["p TestA"], "", "pintle\tp TestA/one_(x)\twhy\n"), [""; 0]);
        let fine = "pintle\tp TestA\twhy\npintle\tp TestA/two\twhy\n";
        assert_eq!(of(&["p TestA"], "", fine), ["passes, so no exception: p TestA/two"]);
        assert_eq!(of(&["p TestC"], "", ""), ["did not run: p TestC"]);
        let more = "passed\t1.0\tp TestB/case\nskipped\t1.0\tp TestB\n";
        assert_eq!(of(&["p TestB"], more, ""), ["did not run: p TestB/case"]);
        assert_eq!(of(&["p TestB"], "passed\t1.0\tp TestB\n", ""), ["declined: p TestB"]);
    }

    #[test]
    fn exceptions_without_reasons_or_tests_are_refused() {
        for text in
            ["pintle\tx\n", "pintle\tx\t\n", "ours\tx\twhy\n", "inside\tx\ta\ninside\tx\tb\n"]
        {
            assert!(Exceptions::parse(text).is_err(), "{text:?}");
        }
        let check = |text: &str| {
            Exceptions::parse(text).expect("exceptions").check(&tests(&["p TestA"])).is_ok()
        };
        assert!(check("inside\tp TestA\twhy\npintle\tp TestA/x\twhy\n"));
        assert!(!check("inside\tp TestA/x\twhy\n") && !check("pintle\tp TestAB\twhy\n"));
    }
}
