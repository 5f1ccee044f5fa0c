//! Prometheus' text format for samples that carry their own time. Pure.

use std::fmt::Write as _;

/// A family under way.
#[derive(Debug, Default)]
pub(super) struct FamilyText(String);

impl FamilyText {
    /// Begins a family. Its samples follow at once: a family stands together.
    pub(super) fn family(&mut self, name: &str, kind: &str) {
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// Help text of the next family.
    pub(super) fn help(&mut self, name: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
    }

    /// A sample; `labels` is already in text form, `at_ms` its time if it has one of its own.
    pub(super) fn sample(&mut self, name: &str, labels: &str, value: f64, at_ms: Option<i64>) {
        match (labels.is_empty(), at_ms) {
            (true, None) => self.line(format_args!("{name} {value}")),
            (true, Some(at)) => self.line(format_args!("{name} {value} {at}")),
            (false, None) => self.line(format_args!("{name}{{{labels}}} {value}")),
            (false, Some(at)) => self.line(format_args!("{name}{{{labels}}} {value} {at}")),
        }
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}"); // to a string: cannot fail
    }
}

/// Labels as text: `a="1",b="2"`.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (index, (name, value)) in pairs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{name}=\""); // to a string: cannot fail
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_with_and_without_labels_and_times() {
        let mut text = FamilyText::default();
        text.family("f", "gauge");
        text.sample("f", "", 1.5, None);
        text.sample("f", &labels(&[("a", "x\"\\\n"), ("b", "")]), 3e12, Some(7));
        let expected = "# TYPE f gauge\nf 1.5\nf{a=\"x\\\"\\\\\\n\",b=\"\"} 3000000000000 7\n";
        assert_eq!(text.into_string(), expected);
    }
}
