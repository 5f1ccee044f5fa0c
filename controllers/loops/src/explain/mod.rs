//! Says in plain sentences why an object is not where it should be.
//!
//! ```text
//!   KIND/NAME ─> subject ─> related keys ─> KeyState (frame) ─┐
//!                    └────> evidence (objects, live) ─────────┴─> ObjectExplanation: text or JSON
//! ```
//! Input: what the frame knows of the keys, and objects as the API server shows them. Output:
//! [`ObjectExplanation`]. Pure: the caller reads the objects and answers the reads of dry syncs.
//! Bounds:
//! `POD_GROUPS_MAX` troubles of pods and `NAMES_MAX` names each are shown.

mod evidence;
mod namespace;
mod pods;
mod subject;
#[cfg(test)]
mod tests;
mod waits;
mod workloads;
mod writes;

use std::fmt;

use pintle_api_types::key::ObjectKey;
use pintle_controllers_core::frame::{Findings, KeyWait};
use serde::Serialize;

pub use evidence::{Evidence, LeaseState, Remaining, dependents, object, owned_by};
pub use subject::{ExplainedKind, SUBJECTS, UnknownKind, related};

/// A controller's state of a key of the subject.
#[derive(Clone, Debug, Default)]
pub struct KeyReport {
    /// The controller.
    pub controller: &'static str,
    /// The reasons for which the key waits.
    pub waits: Vec<KeyWait>,
    /// The outcome of its next sync.
    pub findings: Findings,
}

/// The explanation of why an object is not in its wanted state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectExplanation {
    /// The kind.
    pub kind: &'static str,
    /// The namespace; empty for an object of the whole cluster.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The object is where it should be.
    pub is_settled: bool,
    /// The current state, one sentence each.
    pub state: Vec<String>,
    /// The writes that come next, one sentence each.
    pub next_writes: Vec<String>,
    /// The conditions for the next write, one sentence each.
    pub waits_for: Vec<String>,
    /// The command that helps, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl fmt::Display for ObjectExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.state.iter().chain(&self.next_writes).chain(&self.waits_for);
        lines.into_iter().try_for_each(|line| writeln!(f, "{line}"))?;
        self.remedy.iter().try_for_each(|command| writeln!(f, "To continue: {command}"))
    }
}

/// Explains an object.
pub fn explain(
    subject: &ExplainedKind,
    key: &ObjectKey,
    evidence: &Evidence,
    reports: &[KeyReport],
) -> ObjectExplanation {
    let mut explanation = ObjectExplanation {
        kind: subject.kind.kind,
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
        is_settled: true,
        ..ObjectExplanation::default()
    };
    workloads::describe(subject, evidence, &mut explanation);
    for report in reports {
        waits::add_report(report, &mut explanation);
    }
    if explanation.state.is_empty() {
        explanation.state.push(format!("{} {key} is as it should be.", subject.kind.kind));
    }
    if !explanation.is_settled && explanation.next_writes.is_empty() && !reports.is_empty() {
        let quiet = "No controller has anything to write until that changes.";
        explanation.next_writes.push(quiet.to_owned());
    }
    if let Some(lease) = &evidence.lease {
        explanation.waits_for.extend(lease.sentence());
    }
    explanation
}

/// A sentence from a reason: with a capital letter and a full stop.
fn sentence(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let text = format!("{first}{}", letters.as_str().trim_end());
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

/// At most `NAMES_MAX` names, and how many more there are.
fn names(all: &[&str]) -> String {
    let shown = all.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Names in one sentence.
const NAMES_MAX: usize = 3;
