//! Required affinity between pods, in both directions.
//!
//! Input: view, program, mask. Output: the mask without rows in a forbidden domain or in a domain
//! that lacks the required pods. Owner: pure functions. Bounds: the terms that select the pod, the
//! domains with pods of these terms, and the rows once a key.
// k8s: pkg/scheduler/framework/plugins/interpodaffinity/filtering.go

use super::node::NodeScratch;
use crate::bits::Bits;
use crate::columns::counters::{Counter, Term, TermId, TermKind};
use crate::columns::domain_counts::DomainCounts;
use crate::columns::keys::KeyId;
use crate::columns::row_counts::RowCounts;
use crate::program::Program;
use crate::snapshot::view::View;

/// Returns existing pods' anti-affinity terms that select the pod and have a pod on some node.
pub(crate) fn forbidding<'a>(
    view: &'a View,
    program: &'a Program,
) -> impl Iterator<Item = (TermId, &'a Term)> {
    let terms =
        view.counts.class_terms.get(program.class).iter().map(|t| (*t, view.counts.terms.get(t.0)));
    terms.filter(|(_, t)| t.key.kind == TermKind::RequiredAnti && t.total > 0)
}

/// Returns true if the filter has nothing to do.
pub(crate) fn skips(view: &View, program: &Program) -> bool {
    program.pods.required.is_none()
        && program.pods.anti.is_empty()
        && forbidding(view, program).next().is_none()
}

/// Returns true if no pod anywhere meets the pod's affinity terms on a node with one of their keys.
pub(crate) fn no_pod_matches(view: &View, program: &Program) -> bool {
    let Some((counter, keys)) = &program.pods.required else { return true };
    let counter = view.counts.counters.get(counter.0);
    keys.iter().all(|key| counter.domain(*key).is_empty())
}

pub(crate) fn filter(view: &View, program: &Program, scratch: &mut NodeScratch, mask: &mut Bits) {
    if let Some((counter, keys)) = &program.pods.required {
        let first = program.pods.meets_own && no_pod_matches(view, program);
        let counter = view.counts.counters.get(counter.0);
        for key in keys {
            if first {
                mask.and(&view.keys.column(*key).present);
            } else {
                select(view, *key, std::iter::once(place(counter, *key)), scratch);
                mask.and(&scratch.requirement);
            }
        }
    }
    reject_anti(view, program, scratch, mask);
    reject_existing(view, program, scratch, mask);
}

/// Keeps the rows that the pod's own anti-affinity admits.
pub(crate) fn reject_anti(
    view: &View,
    program: &Program,
    scratch: &mut NodeScratch,
    mask: &mut Bits,
) {
    // Terms of one key are joined before rows are filtered, because a pod may have very many.
    for terms in program.pods.anti.chunk_by(|a, b| a.1 == b.1) {
        let key = terms[0].1;
        let counters = terms.iter().map(|(counter, _)| view.counts.counters.get(counter.0));
        let places = counters.filter(|c| !c.nodes.is_empty()).map(|c| place(c, key));
        reject(view, key, places, scratch, mask);
    }
}

/// Keeps the rows that the anti-affinity of existing pods admits.
fn reject_existing(view: &View, program: &Program, scratch: &mut NodeScratch, mask: &mut Bits) {
    let mut terms = forbidding(view, program).map(|(_, term)| term).peekable();
    while let Some(first) = terms.next() {
        let key = first.topology;
        let more = std::iter::from_fn(|| terms.next_if(|term| term.topology == key));
        let places = std::iter::once(first).chain(more);
        reject(view, key, places.map(|t| (&t.domains, t.nodes.as_ref())), scratch, mask);
    }
}

/// Locations of pods: by value of a key and, if known, by row.
type Places<'a> = (&'a DomainCounts, Option<&'a RowCounts>);

fn place(counter: &Counter, key: KeyId) -> Places<'_> {
    (counter.domain(key), Some(&counter.nodes))
}

/// Removes the rows in a domain of `key` with a count in any of these.
fn reject<'a>(
    view: &View,
    key: KeyId,
    places: impl Iterator<Item = Places<'a>>,
    scratch: &mut NodeScratch,
    mask: &mut Bits,
) {
    let mut places = places.peekable();
    if places.peek().is_some() {
        select(view, key, places, scratch);
        mask.and_not(&scratch.requirement);
    }
}

/// Puts into `scratch.requirement` the rows in a domain of `key` with a count in any of these.
fn select<'a>(
    view: &View,
    key: KeyId,
    places: impl Iterator<Item = Places<'a>>,
    scratch: &mut NodeScratch,
) {
    let column = view.keys.column(key);
    let is_by_row = column.is_by_row();
    scratch.requirement.reset(view.rows);
    scratch.wanted.clear();
    for (counts, nodes) in places {
        if let Some(nodes) = nodes.filter(|_| is_by_row) {
            nodes.add_to(&mut scratch.requirement);
            continue;
        }
        scratch.wanted.resize(column.value_ids(), false);
        counts.mark(&mut scratch.wanted);
    }
    if is_by_row {
        scratch.requirement.and(&column.present);
    }
    if !scratch.wanted.is_empty() {
        column.rows_where(&scratch.wanted, &mut scratch.requirement);
    }
}
