//! Required affinity between pods, in both directions.
//!
//! Input: view, program, mask. Output: the mask without rows whose domain is forbidden or lacks the
//! pods asked for. Owner: pure functions. Bounds: the terms that select the pod, and the domains of
//! their keys.
// k8s: pkg/scheduler/framework/plugins/interpodaffinity/filtering.go

use super::node::NodeScratch;
use crate::bits::Bits;
use crate::program::Program;
use crate::snapshot::counters::{Term, TermKind};
use crate::snapshot::keys::KeyId;
use crate::snapshot::row_counts::RowCounts;
use crate::snapshot::view::View;

/// Existing pods' anti-affinity terms that select the pod and are in force somewhere.
pub(crate) fn forbidding<'a>(
    view: &'a View,
    program: &'a Program,
) -> impl Iterator<Item = &'a Term> {
    let terms = view.class_terms.get(program.class).iter().map(|t| view.terms.get(t.0));
    terms.filter(|t| t.key.kind == TermKind::RequiredAnti && t.total > 0)
}

/// Whether the filter has nothing to do.
pub(crate) fn skips(view: &View, program: &Program) -> bool {
    program.affinity.is_none()
        && program.anti.is_empty()
        && forbidding(view, program).next().is_none()
}

/// Whether no pod anywhere meets the pod's affinity terms on a node with one of their keys.
pub(crate) fn nobody_matches(view: &View, program: &Program) -> bool {
    let Some((counter, keys)) = &program.affinity else { return true };
    let counter = view.counters.get(counter.0);
    keys.iter().all(|key| counter.domain(*key).iter().all(|n| *n == 0))
}

pub(crate) fn filter(view: &View, program: &Program, scratch: &mut NodeScratch, mask: &mut Bits) {
    if let Some((counter, keys)) = &program.affinity {
        let first = program.affinity_self && nobody_matches(view, program);
        let counter = view.counters.get(counter.0);
        for key in keys {
            if first {
                mask.and(&view.keys.column(*key).present);
            } else {
                select(view, *key, (counter.domain(*key), Some(&counter.nodes)), scratch);
                mask.and(&scratch.requirement);
            }
        }
    }
    for (counter, key) in &program.anti {
        let counter = view.counters.get(counter.0);
        select(view, *key, (counter.domain(*key), Some(&counter.nodes)), scratch);
        mask.and_not(&scratch.requirement);
    }
    for term in forbidding(view, program) {
        select(view, term.topology, (&term.domains, term.nodes.as_ref()), scratch);
        mask.and_not(&scratch.requirement);
    }
}

/// Puts into `scratch.requirement` the rows in a domain with a count, given the counts by value and,
/// where they are known, by row.
fn select(
    view: &View,
    key: KeyId,
    (counts, nodes): (&[u32], Option<&RowCounts>),
    scratch: &mut NodeScratch,
) {
    let column = view.keys.column(key);
    scratch.requirement.reset(view.rows);
    if let Some(nodes) = nodes.filter(|_| column.is_by_row()) {
        nodes.add_to(&mut scratch.requirement);
        scratch.requirement.and(&column.present);
        return;
    }
    scratch.wanted.clear();
    scratch.wanted.extend(counts.iter().take(column.value_ids()).map(|n| *n > 0));
    scratch.wanted.resize(column.value_ids(), false);
    scratch.wanted[0] = false;
    column.rows_where(&scratch.wanted, &mut scratch.requirement);
}
