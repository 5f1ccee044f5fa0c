//! Notes about parts of a dump that count differently than its author may expect.
//!
//! Input: a dump, and results of its simulation. Output: sentences for the report. Pure. Bounds:
//! `NAMED_MAX` names a sentence.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use k8s_openapi::api::core::v1::Pod;

use super::dump::Dump;

/// Names in a sentence.
const NAMED_MAX: usize = 5;

/// Returns the notes known before pods are placed.
pub(super) fn of_dump(dump: &Dump) -> Vec<String> {
    let mut notes = dump.omitted.incomplete.clone();
    let ignored: usize = dump.omitted.ignored.values().sum();
    if ignored > 0 {
        let kinds = dump.omitted.ignored.iter().map(|(kind, count)| match count {
            1 => kind.clone(),
            count => format!("{kind} ({count})"),
        });
        let kinds: Vec<String> = kinds.collect();
        let kinds = named(kinds.iter());
        notes.push(format!("{} of other kinds ignored: {kinds}", count(ignored, "object")));
    }
    if !dump.omitted.again.is_empty() {
        let (count, names) =
            (count(dump.omitted.again.len(), "object"), named(dump.omitted.again.iter()));
        notes.push(format!("{count} there more than once, the last one counts: {names}"));
    }
    if !dump.omitted.unknown_fields.is_empty() {
        let count = count(dump.omitted.unknown_fields.len(), "field");
        let names = named(dump.omitted.unknown_fields.iter());
        notes.push(format!("{count} that Kubernetes 1.36 does not have ignored: {names}"));
    }
    let without = dump.budgets.iter().filter(|(_, budget)| budget.status.is_none());
    let without: Vec<&String> = without.map(|(name, _)| name).collect();
    if !without.is_empty() {
        let (count, names) = (count(without.len(), "disruption budget"), named(without));
        notes.push(format!("{count} without a status: no disruption is allowed by {names}"));
    }
    let nodes = dump.nodes.iter().filter_map(|node| node.metadata.name.as_deref());
    let nodes: HashSet<&str> = nodes.collect();
    let is_over = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let bound = dump.pods.iter().filter(|pod| !is_over(pod));
    let bound = bound.filter_map(|pod| pod.spec.as_ref()?.node_name.as_ref());
    let lost: Vec<&String> =
        bound.filter(|name| !name.is_empty() && !nodes.contains(name.as_str())).collect();
    if !lost.is_empty() {
        let (count, names) = (count(lost.len(), "pod"), lost.into_iter().collect::<BTreeSet<_>>());
        notes.push(format!("{count} on nodes that are not there: {}", named(names)));
    }
    notes
}

/// Returns a note if no pod waits for this scheduler but some wait for others.
pub(super) fn no_pending_pods(scheduler: &str, others: &BTreeMap<String, usize>) -> Option<String> {
    let others = others.iter().map(|(name, pods)| format!("{name:?} ({pods})"));
    let others: Vec<String> = others.collect();
    let names = named(others.iter());
    (!others.is_empty()).then(|| {
        format!("no pod waits for scheduler {scheduler:?}; those that wait are for {names}")
    })
}

fn count(count: usize, of: &str) -> String {
    if count == 1 { format!("1 {of}") } else { format!("{count} {of}s") }
}

fn named<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let mut names = names.into_iter();
    let first: Vec<&str> = names.by_ref().take(NAMED_MAX).map(String::as_str).collect();
    match names.count() {
        0 => first.join(", "),
        left => format!("{} and {left} more", first.join(", ")),
    }
}
