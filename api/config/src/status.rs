//! The daemon's support of its flags, fields and gates: done, not yet, or never.
//!
//! Input: the tables of a daemon, and the given settings. Output: one warning for each setting that
//! differs from its default without having an effect, and tables for documents.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::daemon::{Daemon, FeatureGates};
use crate::field::{Field, FieldTable};
use crate::flag::{Flag, FlagTable, FlagTarget};
use crate::gates::FeatureGate;
use crate::given::GivenFlags;

/// The support of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It works as upstream.
    Done,
    /// It is read and checked, but has no effect so far, because …
    NotYet(&'static str),
    /// It is accepted and will stay without effect, because …
    Never(&'static str),
}

impl Status {
    /// The reason why it has no effect.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Done => "",
            Self::NotYet(why) | Self::Never(why) => why,
        }
    }

    /// Short form for tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotYet(_) => "not yet",
            Self::Never(_) => "never",
        }
    }
}

/// One sentence for each given flag that has neither a field nor an effect, and one for all that are
/// deprecated for the same reason: every installer gives several of them at each start.
pub fn flag_warnings(given: &GivenFlags) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut deprecated: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (flag, value) in given.iter() {
        let name = format!("--{}", flag.name);
        match flag.target {
            FlagTarget::Own(Status::Done) | FlagTarget::Field(_) => {}
            FlagTarget::Own(status) => warnings.push(no_effect(&name, Some(value), status)),
        }
        if let Some(instead) = flag.deprecated {
            deprecated.entry(instead).or_default().push(name);
        }
    }
    let sentence = |(instead, names): (&str, Vec<String>)| {
        format!("deprecated flags: {}; {instead}", names.join(", "))
    };
    warnings.extend(deprecated.into_iter().map(sentence));
    warnings
}

/// One sentence for each field that was changed from its default without effect.
///
/// `baseline` has the defaults for this way of starting (with or without a file).
pub fn field_warnings<D: Daemon>(
    config: &D::Configuration,
    baseline: &D::Configuration,
) -> Vec<String> {
    let tree = |config| serde_json::to_value(config).unwrap_or_default();
    let (set, default) = (tree(config), tree(baseline));
    let without_effect = D::FIELDS.0.iter().filter(|field| field.status != Status::Done);
    without_effect
        .filter_map(|field| {
            let (set, default) = (field.of(&set), field.of(&default));
            (set != default).then(|| no_effect(field.path, set, field.status))
        })
        .collect()
}

/// One sentence for each gate that was switched from its default without effect.
pub fn gate_warnings<D: Daemon>(gates: &FeatureGates<D>) -> Vec<String> {
    let changed = D::GATES.iter().filter(|gate| gates.enabled(gate.name) != gate.default);
    changed
        .filter(|gate| gate.status != Status::Done)
        .map(|gate| {
            let value = Value::Bool(gates.enabled(gate.name));
            no_effect(&format!("feature gate {}", gate.name), Some(&value), gate.status)
        })
        .collect()
}

/// The sentence for a setting without effect.
pub fn no_effect(name: &str, value: Option<&Value>, status: Status) -> String {
    let value = value.map_or_else(|| "unset".to_owned(), ToString::to_string);
    let when = if matches!(status, Status::Never(_)) { "no effect" } else { "no effect yet" };
    format!("{name} is set to {value}, which has {when}: {}", status.reason())
}

/// A table of all flags in Markdown.
pub fn flag_rows(flags: &FlagTable, fields: &FieldTable) -> String {
    let mut out = String::from("| flag | type | sets | status | why |\n|---|---|---|---|---|\n");
    for flag in flags.flags() {
        let (sets, status) = flag_target(flag, fields);
        row(&mut out, &[&format!("--{}", flag.name), flag.kind.name(), &sets], status);
    }
    out
}

fn flag_target(flag: &Flag, fields: &FieldTable) -> (String, Status) {
    match flag.target {
        FlagTarget::Field(path) => {
            let status = fields.find(path).map_or(Status::Done, |field| field.status);
            (format!("`{path}`"), status)
        }
        FlagTarget::Own(status) => (String::new(), status),
    }
}

/// A table of all fields in Markdown.
pub fn field_rows(fields: &FieldTable) -> String {
    let mut out = String::from("| field | type | status | why |\n|---|---|---|---|\n");
    for Field { path, kind, status, .. } in fields.0 {
        row(&mut out, &[path, kind.name()], *status);
    }
    out
}

/// A table of all gates in Markdown.
pub fn gate_rows(gates: &[FeatureGate]) -> String {
    let mut out =
        String::from("| gate | state in 1.36 | default | status | why |\n|---|---|---|---|---|\n");
    for gate in gates {
        let default = match (gate.default, gate.locked) {
            (true, true) => "on, locked",
            (false, true) => "off, locked",
            (true, false) => "on",
            (false, false) => "off",
        };
        row(&mut out, &[gate.name, gate.stage.name(), default], gate.status);
    }
    out
}

fn row(out: &mut String, cells: &[&str], status: Status) {
    out.push('|');
    for cell in cells.iter().chain([&status.word(), &status.reason()]) {
        // Writing to a String cannot fail.
        let _ = write!(out, " {cell} |");
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_without_effect_is_reported_with_the_reason() {
        let sentence = no_effect("maxPods", Some(&Value::from(5)), Status::NotYet("later"));
        assert_eq!(sentence, "maxPods is set to 5, which has no effect yet: later");
        let sentence = no_effect("--containerd", None, Status::Never("gone"));
        assert_eq!(sentence, "--containerd is set to unset, which has no effect: gone");
    }
}
