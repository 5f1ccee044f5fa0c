//! Results of a run of the suite: read, compared with the list of tests that ought to pass, shown.
//!
//! Pure: ginkgo's JSON report in, results and text out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// Lines of a failure's message that are worth a place in the summary.
const MESSAGE_LINES: usize = 6;

/// How the suite's runner begins to say why it passed over a test.
const PASSED_OVER: &str = "Spec skipped because an earlier spec in an ordered container failed";

/// One test that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOutcome {
    /// Its full name, as upstream's lists have it.
    pub name: String,
    /// True if it passed.
    pub passed: bool,
    /// How long it took.
    pub took: Duration,
    /// Place and reason of the failure; empty when it passed.
    pub failure: String,
    /// True for a test, false for a set-up or an end of the whole suite that failed.
    pub is_test: bool,
}

/// Reads a report, sorted by name; tests that were not chosen are left out.
pub fn parse(json: &str) -> Result<Vec<TestOutcome>> {
    let suites: Value = serde_json::from_str(json).context("read the suite's report")?;
    let suites = suites.as_array().context("the report is a list of suites")?;
    let specs = suites.iter().filter_map(|s| s["SpecReports"].as_array()).flatten();
    let mut all: Vec<TestOutcome> = specs.filter_map(outcome).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Names of the tests that began and then declined, sorted, each with why; a test that was not
/// chosen has no reason, and one that was not run because another failed did not decline.
pub fn declined(json: &str) -> Result<Vec<(String, String)>> {
    let suites: Value = serde_json::from_str(json).context("read the suite's report")?;
    let suites = suites.as_array().context("the report is a list of suites")?;
    let specs = suites.iter().filter_map(|s| s["SpecReports"].as_array()).flatten();
    let specs = specs.filter(|s| s["State"] == "skipped" && s["LeafNodeType"] == "It");
    let reason = |s: &Value| {
        let reason = s["Failure"]["Message"].as_str().filter(|text| !text.is_empty())?;
        if reason.starts_with(PASSED_OVER) {
            return None;
        }
        Some((name(s), reason.lines().next().unwrap_or_default().to_owned()))
    };
    let mut all: Vec<_> = specs.filter_map(reason).collect();
    all.sort();
    Ok(all)
}

fn name(spec: &Value) -> String {
    let parents = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let leaf = spec["LeafNodeText"].as_str().filter(|t| !t.is_empty());
    let leaf = leaf.or_else(|| spec["LeafNodeType"].as_str());
    let words: Vec<&str> = parents.filter_map(Value::as_str).chain(leaf).collect();
    words.join(" ")
}

fn outcome(spec: &Value) -> Option<TestOutcome> {
    let state = spec["State"].as_str()?;
    let is_test = spec["LeafNodeType"] == "It";
    // A failed set-up of the whole suite has no name of its own: without it no test runs.
    if matches!(state, "skipped" | "pending" | "") || (!is_test && state == "passed") {
        return None;
    }
    let failure = &spec["Failure"];
    let passed = state == "passed";
    let place = &failure["Location"];
    let file = place["FileName"].as_str().unwrap_or_default();
    let message = failure["Message"].as_str().unwrap_or_default();
    Some(TestOutcome {
        name: name(spec),
        passed,
        took: Duration::from_nanos(spec["RunTime"].as_u64().unwrap_or(0)),
        failure: if passed {
            String::new()
        } else {
            format!("{state} at {file}:{}\n{message}", place["LineNumber"])
        },
        is_test,
    })
}

/// One line per test: result, seconds, the seconds that it took with the original (`-` when it does
/// not pass there), name.
pub fn table(all: &[TestOutcome], base: &Base) -> String {
    let line = |o: &TestOutcome| {
        let word = if o.passed { "passed" } else { "failed" };
        let original =
            base.get(o.name.as_str()).map_or_else(|| "-".to_owned(), |s| format!("{s:.1}"));
        format!("{word}\t{:.1}\t{original}\t{}\n", o.took.as_secs_f64(), o.name)
    };
    all.iter().map(line).collect()
}

/// All failures, with their reasons.
pub fn failures(all: &[TestOutcome]) -> String {
    let mut text = String::new();
    for outcome in all.iter().filter(|o| !o.passed) {
        let _ = writeln!(text, "{}", outcome.name);
        let lines = outcome.failure.lines().filter(|l| !l.trim().is_empty());
        for line in lines.take(MESSAGE_LINES) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// Tests that the original passes: name to the seconds that it took.
pub type Base<'a> = BTreeMap<&'a str, f64>;

/// Reads the list of tests that the original passes, a line each: seconds, tab, name.
pub fn parse_base(text: &str) -> Base<'_> {
    let fields = text.lines().filter_map(|l| l.split_once('\t'));
    fields.filter_map(|(seconds, name)| Some((name, seconds.parse().ok()?))).collect()
}

/// Tests that failed here and that the original passes.
pub fn regressions<'a>(all: &'a [TestOutcome], base: &Base) -> Vec<&'a str> {
    let ought = |o: &&TestOutcome| !o.passed && base.contains_key(o.name.as_str());
    all.iter().filter(ought).map(|o| o.name.as_str()).collect()
}

/// Results of the tests of one group, here and with the original.
#[derive(Default)]
struct Total {
    passed: usize,
    failed: usize,
    took: Duration,
    /// Of these tests, how many pass with the original, and the seconds that they took there.
    original: (usize, f64),
}

impl Total {
    fn add(&mut self, outcome: &TestOutcome, base: &Base) {
        self.passed += usize::from(outcome.passed);
        self.failed += usize::from(!outcome.passed);
        self.took += outcome.took;
        if let Some(seconds) = base.get(outcome.name.as_str()) {
            self.original.0 += 1;
            self.original.1 += seconds;
        }
    }
}

/// Totals per group (`sig-node`, ...) and altogether, beside those of the original.
pub fn totals(all: &[TestOutcome], base: &Base) -> String {
    let mut groups: BTreeMap<&str, Total> = BTreeMap::new();
    let mut sum = Total::default();
    for outcome in all {
        let end = outcome.name.find(']').unwrap_or(0);
        let group = outcome.name.get(1..end).unwrap_or("suite");
        groups.entry(group).or_default().add(outcome, base);
        sum.add(outcome, base);
    }
    let mut text = format!(
        "{:<20}  {:>6}  {:>6}  {:>8}  {:>14}  {:>8}\n",
        "group", "passed", "failed", "seconds", "kubelet passes", "seconds"
    );
    for (name, total) in groups.into_iter().chain([("all", sum)]) {
        let Total { passed, failed, took, original } = total;
        let _ = writeln!(
            text,
            "{name:<20}  {passed:>6}  {failed:>6}  {:>8.1}  {:>14}  {:>8.1}",
            took.as_secs_f64(),
            original.0,
            original.1
        );
    }
    text
}

/// How far a run is, from its log: the suite writes a dot for each test that ended.
pub fn progress(log: &str) -> String {
    let failed = log.matches("• [FAILED]").count();
    let ended = log.matches('•').count();
    format!("{} passed, {failed} failed so far", ended.saturating_sub(failed))
}

/// A pattern that means these names literally; the suite's runner knows a test under its name with
/// that of the suite before it, so there are no anchors.
pub fn literally<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(escape).collect::<Vec<_>>().join("|")
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{"SpecReports": [
        {"LeafNodeType": "It", "LeafNodeText": "works [Conformance]", "State": "passed",
         "ContainerHierarchyTexts": ["[sig-node] Pods"], "RunTime": 1500000000},
        {"LeafNodeType": "It", "LeafNodeText": "breaks", "State": "failed", "RunTime": 500000000,
         "ContainerHierarchyTexts": ["[sig-node] Pods"],
         "Failure": {"Message": "it broke\nbecause", "Location": {"FileName": "a.go", "LineNumber": 7}}},
        {"LeafNodeType": "It", "LeafNodeText": "is not chosen", "State": "skipped",
         "ContainerHierarchyTexts": ["[sig-node] Pods"]},
        {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed",
         "ContainerHierarchyTexts": null}
    ]}]"#;

    #[test]
    fn tests_that_ran_are_read_with_their_full_names() {
        let all = parse(REPORT).expect("a report");
        assert_eq!(all.len(), 2);
        let base = parse_base("1.2\t[sig-node] Pods works [Conformance]\n");
        assert_eq!(
            table(&all, &base),
            "failed\t0.5\t-\t[sig-node] Pods breaks\n\
             passed\t1.5\t1.2\t[sig-node] Pods works [Conformance]\n"
        );
        assert!(failures(&all).contains("    failed at a.go:7\n    it broke\n    because\n"));
        let totals = totals(&all, &base);
        assert!(
            totals.contains(
                "sig-node                   1       1       2.0               1       1.2"
            ),
            "{totals}"
        );
    }

    #[test]
    fn a_failed_set_up_of_the_suite_is_no_test_and_not_lost() {
        let report = r#"[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite",
            "LeafNodeText": "", "State": "failed", "ContainerHierarchyTexts": null,
            "Failure": {"Message": "no nodes", "Location": {"FileName": "e.go", "LineNumber": 1}}},
            {"LeafNodeType": "It", "LeafNodeText": "never ran", "State": "skipped"}]}]"#;
        let all = parse(report).expect("a report");
        assert_eq!(all.len(), 1);
        assert!(!all[0].is_test && !all[0].passed, "{all:?}");
    }

    #[test]
    fn only_a_failed_test_that_passes_upstream_is_a_regression() {
        let all = parse(REPORT).expect("a report");
        let base = parse_base("0.4\t[sig-node] Pods breaks\n");
        assert_eq!(regressions(&all, &base), ["[sig-node] Pods breaks"]);
        let base = parse_base("1.2\t[sig-node] Pods works [Conformance]\n");
        assert_eq!(regressions(&all, &base), [""; 0]);
    }

    #[test]
    fn progress_counts_the_dots_between_the_letters_of_skipped_tests() {
        let log = "SSS•SS•\n------\n• [FAILED] [2.1 seconds]\nSS";
        assert_eq!(progress(log), "2 passed, 1 failed so far");
    }

    #[test]
    fn test_names_are_escaped_and_joined_into_a_pattern() {
        assert_eq!(literally(["[a] b (c)", "d.e"].into_iter()), r"\[a\] b \(c\)|d\.e");
    }
}
