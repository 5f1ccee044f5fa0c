//! What a run of the suite said: read, compared with the list of what ought to pass, shown.
//!
//! Pure: ginkgo's JSON report in, results and text out.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// Lines of a failure's message that are worth a place in the summary.
const MESSAGE_LINES: usize = 6;

/// One test that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its full name, as upstream's lists have it.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub took: Duration,
    /// Where and why it failed; empty when it passed.
    pub failure: String,
}

/// Reads a report, sorted by name; tests that were not chosen are left out.
pub fn parse(json: &str) -> Result<Vec<Outcome>> {
    let suites: Value = serde_json::from_str(json).context("read the suite's report")?;
    let suites = suites.as_array().context("the report is a list of suites")?;
    let specs = suites.iter().filter_map(|s| s["SpecReports"].as_array()).flatten();
    let mut all: Vec<Outcome> = specs.filter_map(outcome).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn outcome(spec: &Value) -> Option<Outcome> {
    let state = spec["State"].as_str()?;
    let is_test = spec["LeafNodeType"] == "It";
    // A failed set-up of the whole suite has no name of its own, but must not go unseen.
    if matches!(state, "skipped" | "pending" | "") || (!is_test && state == "passed") {
        return None;
    }
    let parents = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let leaf = spec["LeafNodeText"].as_str().filter(|t| !t.is_empty());
    let leaf = leaf.or_else(|| spec["LeafNodeType"].as_str());
    let words: Vec<&str> = parents.filter_map(Value::as_str).chain(leaf).collect();
    let failure = &spec["Failure"];
    let passed = state == "passed";
    let place = &failure["Location"];
    let file = place["FileName"].as_str().unwrap_or_default();
    let message = failure["Message"].as_str().unwrap_or_default();
    Some(Outcome {
        name: words.join(" "),
        passed,
        took: Duration::from_nanos(spec["RunTime"].as_u64().unwrap_or(0)),
        failure: if passed {
            String::new()
        } else {
            format!("{state} at {file}:{}\n{message}", place["LineNumber"])
        },
    })
}

/// One line per test: result, seconds, name.
pub fn table(all: &[Outcome]) -> String {
    let line = |o: &Outcome| {
        let word = if o.passed { "passed" } else { "failed" };
        format!("{word}\t{:.1}\t{}\n", o.took.as_secs_f64(), o.name)
    };
    all.iter().map(line).collect()
}

/// Everything that failed, with why.
pub fn failures(all: &[Outcome]) -> String {
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

/// Reads the list of tests that the original passes: seconds and names.
pub fn parse_base(text: &str) -> Vec<(f64, &str)> {
    let fields = text.lines().filter_map(|l| l.split_once('\t'));
    fields.filter_map(|(seconds, name)| Some((seconds.parse().ok()?, name))).collect()
}

/// What failed and the original passes.
pub fn regressions<'a>(all: &'a [Outcome], base: &[(f64, &str)]) -> Vec<&'a str> {
    let ought = |o: &&Outcome| !o.passed && base.iter().any(|(_, name)| *name == o.name);
    all.iter().filter(ought).map(|o| o.name.as_str()).collect()
}

/// Totals per group (`sig-node`, ...) and altogether.
pub fn totals(all: &[Outcome]) -> String {
    let mut groups: Vec<(&str, usize, usize, Duration)> = Vec::new();
    for outcome in all {
        let end = outcome.name.find(']').unwrap_or(0);
        let group = outcome.name.get(1..end).unwrap_or("suite");
        let at = groups.iter().position(|(name, ..)| *name == group).unwrap_or_else(|| {
            groups.push((group, 0, 0, Duration::ZERO));
            groups.len() - 1
        });
        groups[at].1 += usize::from(outcome.passed);
        groups[at].2 += usize::from(!outcome.passed);
        groups[at].3 += outcome.took;
    }
    let sum = |f: fn(&(&str, usize, usize, Duration)) -> usize| groups.iter().map(f).sum();
    let all = ("all", sum(|g| g.1), sum(|g| g.2), groups.iter().map(|g| g.3).sum());
    let mut text = format!("{:<20}  {:>6}  {:>6}  {:>8}\n", "group", "passed", "failed", "seconds");
    for (name, passed, failed, took) in groups.iter().chain([&all]) {
        let seconds = took.as_secs_f64();
        let _ = writeln!(text, "{name:<20}  {passed:>6}  {failed:>6}  {seconds:>8.1}");
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
        assert_eq!(
            table(&all),
            "failed\t0.5\t[sig-node] Pods breaks\n\
             passed\t1.5\t[sig-node] Pods works [Conformance]\n"
        );
        assert!(failures(&all).contains("    failed at a.go:7\n    it broke\n    because\n"));
        assert!(totals(&all).contains("sig-node                   1       1       2.0"));
    }

    #[test]
    fn only_what_the_original_passes_is_a_regression() {
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
    fn names_become_a_pattern_that_means_them_literally() {
        assert_eq!(literally(["[a] b (c)", "d.e"].into_iter()), r"\[a\] b \(c\)|d\.e");
    }
}
