//! What the agent does with each flag, field and gate, for people: sentences and tables.
//!
//! Output: what every start warns about, and the three tables of docs/COMPAT.md, which a test keeps
//! equal to the code (`PINTLE_UPDATE=1 cargo test -p pintle-agent-config compat` rewrites them).

use super::fields::{FIELDS, FieldTable};
use super::flag_table;
use super::gate_table::GATES;
use pintle_config::status;

pub use pintle_config::status::Status;

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

/// A heading of docs/COMPAT.md and the table below it.
pub fn compat_sections() -> [(&'static str, String); 3] {
    let fields = FieldTable(FIELDS);
    [
        ("Flags", status::flag_rows(&flag_table::TABLE, &fields)),
        ("KubeletConfiguration fields", status::field_rows(&fields)),
        ("Feature gates", status::gate_rows(GATES)),
    ]
}

#[cfg(test)]
#[path = "compat_tests.rs"]
mod tests;
