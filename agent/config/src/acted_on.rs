//! What the agent does with each flag, field and gate: done, not yet, or never.
//!
//! Input: the tables of `fields.rs`, `flag_table.rs` and `gate_table.rs`, and the configuration
//! that was asked for. Output: one warning for each setting that differs from its default without
//! having an effect, and the three tables of docs/COMPAT.md, which a test keeps equal to the code
//! (`PINTLE_UPDATE=1 cargo test -p pintle-agent-config compat` rewrites them).

use std::fmt::Write as _;

use serde_json::Value;

use super::fields::{FIELDS, Field};
use super::flag_table::{self, Flag, Target};
use super::gate_table::GATES;
use super::gates::FeatureGates;
use super::types::KubeletConfiguration;

/// What happens with a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does what it does in the kubelet.
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

/// One sentence for each field that was changed from its default without effect.
///
/// `baseline` is what the defaults were for this way of starting (with or without a file).
pub fn field_warnings(
    config: &KubeletConfiguration,
    baseline: &KubeletConfiguration,
) -> Vec<String> {
    let (set, default) = (tree(config), tree(baseline));
    FIELDS
        .iter()
        .filter(|field| field.status != Status::Done)
        .filter_map(|field| {
            let (set, default) = (at(&set, field.path), at(&default, field.path));
            (set != default).then(|| no_effect(field.path, set, field.status))
        })
        .collect()
}

/// One sentence for each gate that was switched from its default without effect.
pub fn gate_warnings(gates: &FeatureGates) -> Vec<String> {
    let changed = GATES.iter().filter(|gate| gates.enabled(gate.name) != gate.default);
    changed
        .filter(|gate| gate.status != Status::Done)
        .map(|gate| {
            let value = Value::Bool(gates.enabled(gate.name));
            no_effect(&format!("feature gate {}", gate.name), Some(&value), gate.status)
        })
        .collect()
}

/// What the kubelet protects a node from by default, by the field that configures it.
const PROTECTION: [(&str, &str); 3] = [
    ("evictionHard", "pods are not evicted when memory, disk or process ids run short"),
    ("imageGCHighThresholdPercent", "unused images are not removed from a full disk"),
    ("shutdownGracePeriod", "pods are not stopped in order when the machine shuts down"),
];

/// One sentence about protection that the node lacks whatever its settings; `None` once all is
/// there.
pub fn missing_protection() -> Option<String> {
    let missing = PROTECTION.into_iter().filter(|(path, _)| {
        super::fields::find(path).is_some_and(|field| field.status != Status::Done)
    });
    let missing: Vec<&str> = missing.map(|(_, what)| what).collect();
    if missing.is_empty() {
        return None;
    }
    let what = missing.join("; ");
    Some(format!(
        "this node lacks protection that the kubelet has: {what}; watch its disk and memory"
    ))
}

/// The sentence for a setting without effect.
pub(super) fn no_effect(name: &str, value: Option<&Value>, status: Status) -> String {
    let value = value.map_or_else(|| "unset".to_owned(), ToString::to_string);
    let when = if matches!(status, Status::Never(_)) { "no effect" } else { "no effect yet" };
    format!("{name} is set to {value}, which has {when}: {}", status.reason())
}

fn tree(config: &KubeletConfiguration) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn at<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |node, key| node.get(key))
}

/// A heading of docs/COMPAT.md and the table below it.
pub fn compat_sections() -> [(&'static str, String); 3] {
    [
        ("Flags", flag_rows()),
        ("KubeletConfiguration fields", field_rows()),
        ("Feature gates", gate_rows()),
    ]
}

fn flag_rows() -> String {
    let mut out = String::from("| flag | type | sets | status | why |\n|---|---|---|---|---|\n");
    for flag in flag_table::flags() {
        let (sets, status) = flag_target(flag);
        row(&mut out, &[&format!("--{}", flag.name), flag.kind.name(), &sets], status);
    }
    out
}

fn flag_target(flag: &Flag) -> (String, Status) {
    match flag.target {
        Target::Field(path) => {
            let status = super::fields::find(path).map_or(Status::Done, |field| field.status);
            (format!("`{path}`"), status)
        }
        Target::Node(status) => (String::new(), status),
    }
}

fn field_rows() -> String {
    let mut out = String::from("| field | type | status | why |\n|---|---|---|---|\n");
    for Field { path, kind, status, .. } in FIELDS {
        row(&mut out, &[path, kind.name()], *status);
    }
    out
}

fn gate_rows() -> String {
    let mut out =
        String::from("| gate | state in 1.36 | default | status | why |\n|---|---|---|---|---|\n");
    for gate in GATES {
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
#[path = "compat_tests.rs"]
mod tests;
