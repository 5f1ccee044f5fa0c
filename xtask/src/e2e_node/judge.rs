//! Results of a run of the node suite compared with the kubelet's results, and the run's faults.
//!
//! Pure. A test that was chosen and neither passed nor failed nor declined for a reason did not
//! run, and that is a fault. So is one that declines where the kubelet does not, and an exception
//! for a test that passes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use crate::conformance::report::{self, TestOutcome};

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeTestEnd {
    Passed,
    Failed,
    /// It began, and declined.
    Skipped,
    Missing,
}

impl NodeTestEnd {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Missing => "missing",
        }
    }
}

/// Result of a test with the kubelet, and its duration in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kubelet {
    pub(super) end: NodeTestEnd,
    pub(super) seconds: f64,
}

/// Results of the tests with the kubelet, by name.
pub(super) type Known<'a> = BTreeMap<&'a str, Kubelet>;

/// Reads the list, a line each: result, seconds, name.
pub(super) fn parse_kubelet(text: &str) -> Result<Known<'_>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| kubelet_line(line).with_context(|| format!("read {line:?}"))).collect()
}

fn kubelet_line(line: &str) -> Result<(&str, Kubelet)> {
    let mut fields = line.splitn(3, '\t');
    let mut next = || fields.next().context("three fields with tabs between");
    let (word, seconds, name) = (next()?, next()?, next()?);
    let all = [NodeTestEnd::Passed, NodeTestEnd::Failed, NodeTestEnd::Skipped];
    let end = all.into_iter().find(|end| end.word() == word).context("an unknown result")?;
    Ok((name, Kubelet { end, seconds: seconds.parse()? }))
}

/// One line of the exceptions.
struct Exception<'a> {
    agent: &'a str,
    name: &'a str,
    why: &'a str,
}

fn exceptions(text: &str) -> Result<Vec<Exception<'_>>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let one = |line| {
        let &[agent, name, why] = str::split(line, '\t').collect::<Vec<_>>().as_slice() else {
            bail!("an exception is AGENT, NAME and WHY with tabs between, not {line:?}");
        };
        let is_known = ["kubelet", "pintle", "both", "neither"].contains(&agent);
        ensure!(is_known, "an exception is for kubelet, pintle, both or neither, not {agent:?}");
        ensure!(!why.is_empty(), "no reason: {line:?}");
        Ok(Exception { agent, name, why })
    };
    let all = lines.map(one).collect::<Result<Vec<_>>>()?;
    let mut names = BTreeMap::new();
    for exception in &all {
        // Two exceptions may be one for each agent; any other pair is a repetition or a
        // contradiction.
        let before = names.insert(exception.name, exception.agent);
        let is_pair =
            |a: &str| matches!((a, exception.agent), ("kubelet", "pintle") | ("pintle", "kubelet"));
        ensure!(before.is_none_or(is_pair), "twice: {:?}", exception.name);
    }
    Ok(all)
}

/// Reads the list of tests that are known to fail, a line each: agent (`kubelet`, `pintle` or
/// `both`), name, reason. Returns those of this agent.
pub(super) fn parse_exceptions(text: &str, is_kubelet: bool) -> Result<BTreeMap<&str, &str>> {
    let own = if is_kubelet { "kubelet" } else { "pintle" };
    let all = exceptions(text)?.into_iter().filter(|e| e.agent == own || e.agent == "both");
    Ok(all.map(|e| (e.name, e.why)).collect())
}

/// Reads the tests that the test host cannot run with any agent: the lines of `neither`.
pub(super) fn parse_left_out(text: &str) -> Result<BTreeMap<&str, &str>> {
    let all = exceptions(text)?.into_iter().filter(|e| e.agent == "neither");
    Ok(all.map(|e| (e.name, e.why)).collect())
}

/// Fails on an exception for a test that is in no list, and on a left-out test that is in one.
pub(super) fn check_exceptions(text: &str, lists: &[String]) -> Result<()> {
    let lists = lists.iter().map(|list| parse_kubelet(list)).collect::<Result<Vec<_>>>()?;
    for Exception { agent, name, .. } in exceptions(text)? {
        let is_listed = lists.iter().any(|known| known.contains_key(name));
        if agent == "neither" {
            ensure!(!is_listed, "left out, and what it comes to is listed: {name}");
        } else {
            ensure!(is_listed, "an exception for a test that no list has: {name}");
        }
    }
    Ok(())
}

/// Results of a run.
pub(super) struct RunResults {
    /// Tests that ran to an end.
    pub(super) ran: Vec<TestOutcome>,
    /// Skipped tests, with reasons.
    declined: BTreeMap<String, String>,
}

impl RunResults {
    /// Reads the suite's report.
    pub(super) fn read(json: &str) -> Result<Self> {
        let declined = report::declined(json)?.into_iter().collect();
        Ok(Self { ran: report::parse(json)?, declined })
    }

    fn end(&self, name: &str) -> (NodeTestEnd, f64) {
        let found = self.ran.iter().find(|o| o.is_test && o.name == name);
        match found {
            Some(o) if o.passed => (NodeTestEnd::Passed, o.took.as_secs_f64()),
            Some(o) => (NodeTestEnd::Failed, o.took.as_secs_f64()),
            None if self.declined.contains_key(name) => (NodeTestEnd::Skipped, 0.0),
            None => (NodeTestEnd::Missing, 0.0),
        }
    }

    /// The kubelet's list updated with this run's results; a run of `is_whole` replaces it.
    pub(super) fn recorded(
        &self,
        chosen: &BTreeSet<String>,
        known: &Known<'_>,
        is_whole: bool,
    ) -> String {
        let kept = known.iter().filter(|(name, _)| !is_whole && !chosen.contains(**name));
        let mut all: BTreeMap<&str, (NodeTestEnd, f64)> =
            kept.map(|(name, k)| (*name, (k.end, k.seconds))).collect();
        let ended = chosen.iter().map(|name| (name.as_str(), self.end(name)));
        all.extend(ended.filter(|(_, (end, _))| *end != NodeTestEnd::Missing));
        let line = |(name, (end, seconds)): (&str, (NodeTestEnd, f64))| {
            format!("{}\t{seconds:.1}\t{name}\n", end.word())
        };
        all.into_iter().map(line).collect()
    }

    /// A line for each test: its results with the kubelet and now, with seconds.
    pub(super) fn table(&self, chosen: &BTreeSet<String>, known: &Known<'_>) -> String {
        let mut text = format!("{:<16}  {:<16}  name\n", "kubelet", "this run");
        let cell = |end: NodeTestEnd, seconds: f64| format!("{:<8}{seconds:>6.1} s", end.word());
        for name in chosen {
            let theirs = known.get(name.as_str());
            let theirs = theirs.map_or_else(|| format!("{:<16}", "-"), |k| cell(k.end, k.seconds));
            let (end, seconds) = self.end(name);
            let _ = writeln!(text, "{theirs}  {}  {name}", cell(end, seconds));
        }
        text
    }

    /// Counts of each result, and of the differences between the two.
    pub(super) fn totals(&self, chosen: &BTreeSet<String>, known: &Known<'_>) -> String {
        let count = |of: &dyn Fn(&str) -> Option<NodeTestEnd>| {
            let count = |end| chosen.iter().filter(|name| of(name) == Some(end)).count();
            let ends = [
                NodeTestEnd::Passed,
                NodeTestEnd::Failed,
                NodeTestEnd::Skipped,
                NodeTestEnd::Missing,
            ];
            ends.map(|end| format!("{:>4} {}", count(end), end.word())).join(", ")
        };
        let theirs = count(&|name| known.get(name).map(|k| k.end));
        let ours = count(&|name| Some(self.end(name).0));
        let mut text = format!("kubelet   {theirs}\nthis run  {ours}\n");
        for name in chosen {
            let (end, _) = self.end(name);
            match known.get(name.as_str()) {
                Some(theirs) if theirs.end != end => {
                    let (theirs, ours) = (theirs.end.word(), end.word());
                    let _ = writeln!(text, "differs: {theirs} with the kubelet, {ours}: {name}");
                }
                _ => {}
            }
        }
        text
    }

    /// Faults of the run. `is_whole` if the tests ought to be those of the kubelet's list.
    pub(super) fn faults(
        &self,
        chosen: &BTreeSet<String>,
        known: &Known<'_>,
        exceptions: &BTreeMap<&str, &str>,
        is_whole: bool,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        for name in chosen {
            let excepted = exceptions.contains_key(name.as_str());
            let theirs = known.get(name.as_str()).map(|k| k.end);
            match self.end(name).0 {
                NodeTestEnd::Passed if excepted => {
                    faults.push(format!("passes, so no exception: {name}"))
                }
                NodeTestEnd::Skipped if excepted => {
                    faults.push(format!("declines, so no exception: {name}"));
                }
                NodeTestEnd::Failed if !excepted => faults.push(format!("failed: {name}")),
                NodeTestEnd::Missing => faults.push(format!("did not run: {name}")),
                NodeTestEnd::Skipped if theirs != Some(NodeTestEnd::Skipped) => {
                    let why = self.declined.get(name).map(String::as_str).unwrap_or_default();
                    faults.push(format!("declined, which the kubelet does not ({why}): {name}"));
                }
                _ => {}
            }
        }
        if is_whole {
            let lost = known.keys().filter(|name| !chosen.contains(**name));
            faults.extend(lost.map(|name| format!("is listed, and the suite has none: {name}")));
            let new = chosen.iter().filter(|name| !known.contains_key(name.as_str()));
            faults.extend(new.map(|name| format!("is not listed: {name}")));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"LeafNodeType": "It", "LeafNodeText": "a", "State": "passed", "RunTime": 1500000000},
        {"LeafNodeType": "It", "LeafNodeText": "b", "State": "failed", "RunTime": 500000000,
         "Failure": {"Message": "broke", "Location": {"FileName": "b.go", "LineNumber": 7}}},
        {"LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped",
         "Failure": {"Message": "needs swap"}},
        {"LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped"},
        {"LeafNodeType": "It", "LeafNodeText": "e", "State": "skipped", "Failure": {"Message":
         "Spec skipped because an earlier spec in an ordered container failed"}}
    ]}]"#;

    fn chosen(names: &str) -> BTreeSet<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn run_is_judged_by_the_chosen_tests_the_kubelets_results_and_the_exceptions() {
        let came = RunResults::read(REPORT).expect("a report");
        let known = "passed\t1.0\ta\npassed\t1.0\tb\nskipped\t0.0\tc\npassed\t1.0\td\n";
        let known = parse_kubelet(known).expect("a list");
        let of = |names: &str, exceptions: &str, whole| {
            let exceptions = parse_exceptions(exceptions, false).expect("exceptions");
            came.faults(&chosen(names), &known, &exceptions, whole)
        };
        assert_eq!(of("a c", "", false), [""; 0]);
        assert_eq!(of("b", "", false), ["failed: b"]);
        assert_eq!(of("b", "kubelet\tb\twhy\n", false), ["failed: b"]);
        assert_eq!(of("b", "both\tb\twhy\n", false), [""; 0]);
        assert_eq!(of("a", "pintle\ta\twhy\n", false), ["passes, so no exception: a"]);
        assert_eq!(of("d", "pintle\td\twhy\n", false), ["did not run: d"]);
        assert_eq!(of("c", "both\tc\twhy\n", false), ["declines, so no exception: c"]);
        let lost = ["b", "c", "d"].map(|n| format!("is listed, and the suite has none: {n}"));
        assert_eq!(of("a", "", true), lost);
        assert_eq!(
            of("e a b c d", "pintle\tb\twhy\n", true),
            ["did not run: d", "did not run: e", "is not listed: e"]
        );
    }

    #[test]
    fn to_decline_is_a_fault_where_the_kubelet_does_not() {
        let came = RunResults::read(REPORT).expect("a report");
        let known = parse_kubelet("passed\t1.0\tc\n").expect("a list");
        let faults = came.faults(&chosen("c"), &known, &BTreeMap::new(), false);
        assert_eq!(faults, ["declined, which the kubelet does not (needs swap): c"]);
    }

    #[test]
    fn recorded_results_are_read_back() {
        let came = RunResults::read(REPORT).expect("a report");
        let before = parse_kubelet("passed\t1.0\tb\npassed\t2.0\tz\n").expect("a list");
        let text = came.recorded(&chosen("a b c d"), &before, false);
        let lines = "passed\t1.5\ta\nfailed\t0.5\tb\nskipped\t0.0\tc\n";
        assert_eq!(text, format!("{lines}passed\t2.0\tz\n"));
        let text = came.recorded(&chosen("a b c d"), &before, true);
        assert_eq!(text, lines, "what did not run is not written down");
        let known = parse_kubelet(&text).expect("a list");
        let totals = came.totals(&chosen("a b c d"), &known);
        assert!(totals.contains("this run     1 passed,    1 failed,    1 skipped,    1 missing"));
        assert!(!totals.contains("differs"), "{totals}");
    }

    #[test]
    fn lists_with_unknown_words_or_without_reasons_are_refused() {
        assert!(parse_kubelet("missing\t0.0\ta\n").is_err());
        for text in [
            "pintle\ta\n",
            "pintle\ta\t\n",
            "ours\ta\twhy\n",
            "both\ta\tx\nboth\ta\ty\n",
            "pintle\ta\tx\nboth\ta\ty\n",
            "neither\ta\tx\npintle\ta\ty\n",
        ] {
            assert!(parse_exceptions(text, false).is_err(), "{text:?}");
        }
    }

    #[test]
    fn exceptions_require_listed_tests_and_left_out_tests_must_be_unlisted() {
        let lists = ["passed\t1.0\ta\n".to_owned(), "failed\t1.0\tb\n".to_owned()];
        let check = |text: &str| check_exceptions(text, &lists).is_ok();
        assert!(check("both\ta\twhy\npintle\tb\twhy\nneither\tc\twhy\n"));
        assert!(!check("pintle\tgone\twhy\n"));
        assert!(!check("neither\ta\twhy\n"));
        let left_out = parse_left_out("both\ta\twhy\nneither\tc\tno bus\n").expect("a list");
        assert_eq!(left_out, BTreeMap::from([("c", "no bus")]));
    }

    #[test]
    fn the_repositorys_own_lists_fit_together() {
        let lists = [
            include_str!("../../../tests/upstream/node.txt").to_owned(),
            include_str!("../../../tests/upstream/node-serial.txt").to_owned(),
        ];
        let text = include_str!("../../../tests/upstream/node-exceptions.txt");
        check_exceptions(text, &lists).expect("they fit");
        let guest = include_str!("../../../tests/upstream/node-guest.txt").to_owned();
        let own = include_str!("../../../tests/upstream/node-guest-exceptions.txt");
        check_exceptions(own, std::slice::from_ref(&guest)).expect("the guest's fit");
        let left_out = parse_left_out(text).expect("a list");
        let known = parse_kubelet(&guest).expect("a list");
        let elsewhere: Vec<_> = known.keys().filter(|name| !left_out.contains_key(*name)).collect();
        assert!(elsewhere.is_empty(), "the test host runs them: {elsewhere:?}");
    }
}
