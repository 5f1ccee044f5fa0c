//! Results of upstream's tests of a component compared with those of its own component.
//!
//! Pure: output of a Go test program in, results, a table and faults out. Names are `PACKAGE
//! TEST/CASE`. Faults are a chosen test, or a case that upstream's component runs, that failed, was
//! skipped or did not end, and an exception for a test that passes.

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

/// Result of each test and case, with seconds.
pub(super) type Ends = BTreeMap<String, (End, f64)>;

/// Why tests failed, by name.
pub(super) type Reasons = BTreeMap<String, Vec<String>>;

/// A test and those of its cases are `name` and names below it.
fn is_part(name: &str, test: &str) -> bool {
    name.strip_prefix(test).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The test that a case is one of: package names have slashes too, so only behind the space.
pub(super) fn test_of(name: &str) -> &str {
    let space = name.find(' ').unwrap_or(0);
    name[space..].find('/').map_or(name, |at| &name[..space + at])
}

/// Reads what the test program of a package printed: how everything ended, and why it failed.
pub(super) fn parse(package: &str, text: &str) -> (Ends, Reasons) {
    let (mut ends, mut reasons) = (Ends::new(), Reasons::new());
    let mut current = String::new();
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("=== ") {
            if let Some((_, name)) = rest.split_once(char::is_whitespace) {
                current = format!("{package} {}", name.trim());
            }
        } else if let Some((name, end)) = ended(line) {
            ends.insert(format!("{package} {name}"), end);
        } else if line
            .split_once(": ")
            .is_some_and(|(place, said)| is_place(place) && !is_log(said))
        {
            let reason: String = line.chars().take(REASON_WIDTH).collect();
            reasons.entry(current.clone()).or_default().push(reason);
        }
    }
    reasons.retain(|name, _| ends.get(name).is_none_or(|(end, _)| *end == End::Failed));
    (ends, reasons)
}

/// The reason, from its stderr, why a program ended before its tests did.
pub(super) fn death(text: &str) -> Option<String> {
    let words = ["panic: ", "fatal error: ", "SIG"];
    // A server that gave up, `F1125 09:13:31.5`.
    let is_last = |line: &&str| {
        words.iter().any(|word| line.starts_with(word)) || line.starts_with('F') && is_log(line)
    };
    let line = text.lines().find(is_last)?;
    Some(line.chars().take(REASON_WIDTH).collect())
}

/// Tests and cases without cases of their own that failed.
pub(super) fn failed(ends: &Ends) -> Vec<String> {
    let failed = |name: &&String| ends[*name].0 == End::Failed;
    leaves(ends).into_iter().filter(failed).cloned().collect()
}

/// How many tests and cases without cases of their own ended how.
pub(super) fn count(ends: &Ends) -> String {
    let (leaves, failed) = (leaves(ends).len(), failed(ends).len());
    let skipped = ends.values().filter(|(end, _)| *end == End::Skipped).count();
    let mut text = format!("{} of {leaves} passed", leaves - failed - skipped);
    if skipped > 0 {
        let _ = write!(text, ", {skipped} declined");
    }
    text
}

/// Those that no other is a part of.
fn leaves(ends: &Ends) -> Vec<&String> {
    let is_leaf = |name: &&String| {
        let below = format!("{name}/");
        !ends.range(below.clone()..).next().is_some_and(|(next, _)| next.starts_with(&below))
    };
    ends.keys().filter(is_leaf).collect()
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

/// Returns whether this is a place such as `file_test.go:12`.
fn is_place(text: &str) -> bool {
    let Some((file, line)) = text.rsplit_once(':') else { return false };
    file.ends_with(".go") && !file.contains(' ') && line.parse::<u32>().is_ok()
}

/// Returns whether this is a line of a server's log, `I1125 08:01:10.8`, which tests print among
/// their own.
fn is_log(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|level| b"IWEF".contains(&level))
        && bytes.by_ref().take(4).all(|byte| byte.is_ascii_digit())
        && bytes.next() == Some(b' ')
}

/// Reads the results of upstream's own component, a line each: end, seconds, name.
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

/// The list in the form of its file.
pub(super) fn list(ends: &Ends) -> String {
    let line = |(name, (end, seconds)): (&String, &(End, f64))| {
        format!("{}\t{seconds:.1}\t{name}\n", end.word())
    };
    ends.iter().map(line).collect()
}

/// Exceptions known beforehand, by name, with the reason.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    /// Tests, and cases whose names begin so, that read the component's process or call into it:
    /// they cannot run with another program.
    pub(super) inside: BTreeMap<String, String>,
    /// Tests, and cases whose names begin so, of features that ours does not have: with ours they
    /// may pass or fail, and wait long for the feature.
    pub(super) unbuilt: BTreeMap<String, String>,
    /// Tests and cases that fail with ours.
    fails: BTreeMap<String, String>,
}

impl Exceptions {
    /// Reads them, a line each: `inside`, `unbuilt` or `pintle`, name, why.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut all = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let &[kind, name, why] = line.split('\t').collect::<Vec<_>>().as_slice() else {
                bail!("an exception is KIND, NAME and WHY with tabs between, not {line:?}");
            };
            ensure!(!why.is_empty(), "no reason: {line:?}");
            let kind = match kind {
                "inside" => &mut all.inside,
                "unbuilt" => &mut all.unbuilt,
                "pintle" => &mut all.fails,
                _ => bail!("an exception is `inside`, `unbuilt` or `pintle`: {line:?}"),
            };
            ensure!(kind.insert(name.to_owned(), why.to_owned()).is_none(), "twice: {name}");
        }
        Ok(all)
    }

    /// Of the tests of the whole suite, fails if an exception is for none.
    pub(super) fn check(&self, tests: &BTreeSet<String>) -> Result<()> {
        for name in self.inside.keys().chain(self.unbuilt.keys()) {
            let test = test_of(name);
            ensure!(tests.contains(test), "an exception for a test that is not there: {name}");
        }
        for name in self.fails.keys() {
            let is_there = tests.iter().any(|test| is_part(name, test));
            ensure!(is_there, "an exception for a test that is not there: {name}");
        }
        Ok(())
    }

    /// Tests left out: those that call into the component's process, and with ours those of
    /// features it lacks.
    fn left_out(&self, is_ours: bool) -> impl Iterator<Item = &String> {
        let unbuilt = self.unbuilt.keys().filter(move |_| is_ours);
        self.inside.keys().chain(unbuilt)
    }

    /// Returns whether this is a case that is left out.
    pub(super) fn leaves_out(&self, name: &str, is_ours: bool) -> bool {
        self.left_out(is_ours).any(|left| test_of(left) != left && name.starts_with(left))
    }

    /// Pattern for `-test.skip` that leaves out such cases of these tests; empty for none.
    // Go: testing/match.go splitRegexp; between `|` and `/` are patterns of names.
    pub(super) fn skipped(&self, package: &str, tests: &[String], is_ours: bool) -> String {
        let case = |name: &str| {
            let rest = name.strip_prefix(package)?.strip_prefix(' ')?;
            let (test, case) = rest.split_once('/')?;
            tests.iter().any(|chosen| chosen == test).then(|| {
                let parts: Vec<String> = case.split('/').map(regex::escape).collect();
                format!("^{test}$/^{}", parts.join("$/^"))
            })
        };
        let cases: Vec<String> = self.left_out(is_ours).filter_map(|name| case(name)).collect();
        cases.join("|")
    }

    /// A case's failure is also that of the tests that it is part of.
    fn excuses(&self, name: &str) -> bool {
        self.fails.keys().any(|excepted| is_part(excepted, name) || is_part(name, excepted))
    }
}

/// Faults of a run of these tests.
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
    let mut text = format!("{:<16}  {:<16}  name\n", "upstream", "this run");
    let cell = |of: &Ends, name: &str| {
        of.get(name).map_or_else(
            || format!("{:<16}", "-"),
            |(end, seconds)| format!("{:<8}{seconds:>6.1} s", end.word()),
        )
    };
    for name in &leaves {
        let _ = writeln!(text, "{}  {}  {name}", cell(upstream, name), cell(came, name));
    }
    for (who, of) in [("upstream", upstream), ("this run", came)] {
        let count = |end| {
            let ended = |name: &&&str| of.get(**name).map_or(End::Missing, |(end, _)| *end) == end;
            format!("{} {}", leaves.iter().filter(ended).count(), end.word())
        };
        let _ = writeln!(text, "{who:<16}  {}", End::ALL.map(count).join(", "));
    }
    text
}

/// The same, a line a package: passed tests and cases without cases of their own, and seconds.
pub(super) fn by_package(tests: &BTreeSet<String>, came: &Ends, upstream: &Ends) -> String {
    let packages: BTreeSet<&str> = tests.iter().filter_map(|test| test.split(' ').next()).collect();
    let mut text = format!("{:<36}  {:>22}  {:>22}\n", "package", "upstream", "this run");
    for package in packages {
        let of = |tests: &BTreeSet<String>| -> BTreeSet<String> {
            let is_of = |test: &&String| test.split(' ').next() == Some(package);
            tests.iter().filter(is_of).cloned().collect()
        };
        let chosen = of(tests);
        let names = all_names(&chosen, came, upstream);
        let all: Ends =
            names.iter().map(|name| ((*name).to_owned(), (End::Missing, 0.0))).collect();
        let leaves = leaves(&all);
        let cell = |of: &Ends| {
            let passed =
                |name: &&&String| of.get(**name).is_some_and(|(end, _)| *end == End::Passed);
            let passed = leaves.iter().filter(passed).count();
            let seconds =
                chosen.iter().filter_map(|test| of.get(test)).fold(0.0, |sum, (_, s)| sum + s);
            format!("{passed} of {}, {seconds:.0} s", leaves.len())
        };
        let _ = writeln!(text, "{package:<36}  {:>22}  {:>22}", cell(upstream), cell(came));
    }
    text
}

/// Reasons of failures, as far as the tests print them.
pub(super) fn reasons(all: &Reasons) -> String {
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

    const OUT: &str = "=== RUN   TestA\n=== RUN   TestA/one_(x)\n    a_test.go:7: no node\n    \
        gate.go:170: I1125 08:01:10.865595] Updated\n\
        === RUN   TestA/two\n    a_test.go:9: a remark\n--- FAIL: TestA (1.50s)\n    \
        --- FAIL: TestA/one_(x) (0.50s)\n    --- PASS: TestA/two (1.00s)\n=== RUN   TestB\n\
        --- SKIP: TestB (0.00s)\nFAIL\n";

    fn tests(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn results_and_reasons_are_parsed_from_go_test_output() {
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
    fn run_summary_has_counts_failed_tests_and_the_reason_of_a_crash() {
        let (ends, _) = parse("p", OUT);
        assert_eq!(count(&ends), "1 of 3 passed, 1 declined");
        assert_eq!(failed(&ends), ["p TestA/one_(x)"]);
        let upstream = parse_list("passed\t4.0\tp TestA\npassed\t1.0\tp TestA/three\n");
        let text = by_package(&tests(&["p TestA"]), &ends, &upstream.expect("a list"));
        let words: Vec<&str> = text.lines().last().expect("a line").split_whitespace().collect();
        assert_eq!(words.join(" "), "p 1 of 3, 4 s 1 of 3, 2 s");
        let said = "I1 x\npanic: test timed out after 30m0s\n\ngoroutine 1:\n";
        assert_eq!(death(said).as_deref(), Some("panic: test timed out after 30m0s"));
        assert_eq!(death("I1 panic: not this\nFAIL\n"), None);
        let gave_up = "F1125 09:13:31.559473       1 hooks.go:203] timed out";
        assert_eq!(death(&format!("E1125 09:13:31.5 x\n{gave_up}\n")).as_deref(), Some(gave_up));
    }

    #[test]
    fn unexcepted_failures_missing_tests_and_needless_exceptions_are_faults() {
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
        assert!(check("inside\tp TestA/x\twhy\n") && !check("pintle\tp TestAB\twhy\n"));
        assert!(!check("inside\tp TestB/x\twhy\n") && !check("unbuilt\tp TestB/x\twhy\n"));
        assert!(check("unbuilt\tp TestA/x\twhy\n"));
    }

    #[test]
    fn cases_that_call_into_the_process_are_left_out() {
        let text = "inside\tp/q TestA/one,_(x)/y\twhy\ninside\tp/q TestB/z\twhy\n\
                    inside\tp/q TestC\twhy\ninside\tr TestA/w\twhy\n\
                    unbuilt\tp/q TestC/u\twhy\n";
        let exceptions = Exceptions::parse(text).expect("exceptions");
        let of = |tests: &[&str]| {
            let tests: Vec<String> = tests.iter().map(|test| (*test).to_owned()).collect();
            exceptions.skipped("p/q", &tests, false)
        };
        assert_eq!(of(&["TestA", "TestC"]), r"^TestA$/^one,_\(x\)$/^y");
        assert_eq!(of(&["TestA", "TestB"]), r"^TestA$/^one,_\(x\)$/^y|^TestB$/^z");
        assert_eq!(of(&["TestC"]), "");
        assert_eq!(exceptions.skipped("p/q", &["TestC".to_owned()], true), "^TestC$/^u");
        let leaves = |name: &str| exceptions.leaves_out(name, false);
        assert!(leaves("p/q TestB/z") && leaves("p/q TestB/zed"));
        assert!(!leaves("p/q TestB") && !leaves("p/q TestB/y") && !leaves("p/q TestC/x"));
        assert!(!leaves("p/q TestC/u") && exceptions.leaves_out("p/q TestC/u", true));
        assert_eq!(test_of("a/b TestA/one/two"), "a/b TestA");
        assert_eq!(test_of("a/b TestA"), "a/b TestA");
    }
}
