//! Intended differences: `tests/differential/expected.txt`.
//!
//! A line is `case | aspect | path | reason`; in the first three `*` stands for anything. The path
//! may be followed by the values, `path: with the kubelet => with us`, for a difference in one
//! direction only; `-` stands for nothing. The reason is the beginning of a row of the table
//! "Differences on purpose" in `docs/COMPAT.md`, or `chance: ...` for differences between two runs
//! of the kubelet itself.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Compared;
use super::flat::Difference;

/// The list.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    case: String,
    aspect: String,
    path: String,
    reason: String,
}

impl Expected {
    /// Reads the file; a missing file lists nothing.
    pub(super) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("read {}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e).with_context(|| format!("read {}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut rules = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parts: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
            let [case, aspect, path, reason] = parts[..] else {
                bail!("a line has a case, an aspect, a path and a reason: {line}");
            };
            let [case, aspect, path, reason] = [case, aspect, path, reason].map(str::to_owned);
            rules.push(Rule { case, aspect, path, reason });
        }
        Ok(Self { rules })
    }

    /// The reasons of the case's differences that are meant, and the others.
    pub(super) fn sort<'a>(
        &'a self,
        compared: &'a Compared,
    ) -> (Vec<&'a str>, Vec<&'a Difference>) {
        let (mut reasons, mut open) = (Vec::new(), Vec::new());
        for difference in &compared.differences {
            match self.reason(&compared.case.name, difference) {
                Some(reason) => reasons.push(reason),
                None => open.push(difference),
            }
        }
        (reasons, open)
    }

    /// Why this may differ, if it may.
    fn reason(&self, case: &str, difference: &Difference) -> Option<&str> {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let Difference { path, theirs, ours, .. } = difference;
        let whole = format!("{path}: {} => {}", side(theirs), side(ours));
        let is_about = |r: &&Rule| {
            matches(&r.case, case)
                && matches(&r.aspect, &difference.aspect)
                && (matches(&r.path, path) || matches(&r.path, &whole))
        };
        self.rules.iter().find(is_about).map(|r| r.reason.as_str())
    }
}

/// Returns whether the text matches the pattern, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let (last, middle) = parts.split_last().expect("split gives one at least");
    for part in middle {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository;

    #[test]
    fn a_star_is_anything() {
        for (pattern, text, is_match) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*b*d", "axxbyyd", true),
            ("a*b*d", "axxbyy", false),
            ("abc", "abcd", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_may_hold_one_way_only() {
        let expected =
            Expected::parse("*|events|*.count: repeated => once|chance: x").expect("good");
        let difference = |theirs: &str, ours: &str| Difference {
            aspect: "events".to_owned(),
            path: "[e].count".to_owned(),
            theirs: Some(theirs.to_owned()),
            ours: Some(ours.to_owned()),
        };
        assert_eq!(expected.reason("c", &difference("repeated", "once")), Some("chance: x"));
        assert_eq!(expected.reason("c", &difference("once", "repeated")), None);
    }

    #[test]
    fn every_reason_is_a_row_of_compat() {
        let path = repository().join(super::super::FOLDER).join("expected.txt");
        let expected = Expected::read(&path).expect("readable");
        let compat = repository().join("docs/COMPAT.md");
        let compat = fs::read_to_string(compat).expect("COMPAT.md is there");
        let (_, rows) = compat.split_once("## Differences on purpose").expect("the table");
        for rule in expected.rules.iter().filter(|r| !r.reason.starts_with("chance: ")) {
            let row = format!("\n| {}", rule.reason);
            assert!(rows.contains(&row), "no row of COMPAT.md begins with: {}", rule.reason);
        }
    }
}
