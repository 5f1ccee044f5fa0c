//! Explains why a namespace is still terminating: objects, finalizers, API groups that do not
//! answer.
//!
//! Input: the namespace and what it still contains. Output: sentences. Pure.
//! Bounds: `KINDS_MAX` kinds are named.

use serde_json::Value;

use super::evidence::text;
use super::{Evidence, ObjectExplanation};

/// Kinds that are named.
const KINDS_MAX: usize = 8;

/// Adds what is the case with a namespace.
pub(super) fn describe(object: &Value, evidence: &Evidence, explanation: &mut ObjectExplanation) {
    let name = text(&object["metadata"]["name"]);
    let Some(since) = object["metadata"]["deletionTimestamp"].as_str() else {
        let phase = text(&object["status"]["phase"]);
        explanation.state.push(format!("Namespace {name} is {phase} and is not being deleted."));
        return;
    };
    explanation.is_settled = false;
    let left: Vec<_> = evidence.remaining.iter().filter(|kind| kind.count > 0).collect();
    let counts = left.iter().take(KINDS_MAX).map(|kind| match kind.count {
        1 => format!("1 of {} ({})", kind.kind, kind.example),
        count => format!("{count} of {}", kind.kind),
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    let more = match left.len().saturating_sub(KINDS_MAX) {
        0 => String::new(),
        more => format!(", and {more} more kinds"),
    };
    let all: usize = left.iter().map(|kind| kind.count).sum();
    explanation.state.push(match all {
        0 => format!("Namespace {name} has been terminating since {since} and is empty."),
        1 => format!("Namespace {name} has been terminating since {since}; one object remains: {counts}."),
        _ => format!(
            "Namespace {name} has been terminating since {since}; {all} objects remain: {counts}{more}."
        ),
    });
    for kind in &left {
        for (finalizer, count) in &kind.finalizers {
            explanation.state.push(format!(
                "Finalizer {finalizer} holds {count} of {}: its controller has to remove it.",
                kind.kind
            ));
        }
    }
    for kind in &evidence.remaining {
        if let Some(failure) = &kind.failure {
            explanation.state.push(format!("{} cannot be listed: {failure}.", kind.kind));
        }
    }
    for (group, error) in &evidence.failed_groups {
        explanation.state.push(format!(
            "API group {group} does not answer ({error}); the namespace stays until its APIService works or is deleted."
        ));
    }
    let own: Vec<_> =
        object["spec"]["finalizers"].as_array().into_iter().flatten().map(text).collect();
    let others: Vec<_> = own.into_iter().filter(|finalizer| *finalizer != "kubernetes").collect();
    let metadata = object["metadata"]["finalizers"].as_array().into_iter().flatten().map(text);
    let others: Vec<_> = others.into_iter().chain(metadata).collect();
    if !others.is_empty() {
        explanation.state.push(format!(
            "The namespace itself has the finalizers {}: their controllers have to remove them.",
            others.join(", ")
        ));
    }
}
