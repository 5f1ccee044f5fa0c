//! Hard topology spread: counts by domain, their minimum, and the rows that keep the skew.
//!
//! Input: view, program, mask. Output: the mask without rows that miss a key or exceed a skew; the
//! state that explain and the preemption dry run use again.
//! Owner: scratch of one decider. Bounds: domains of the constraint's key; nodes with matching pods
//! only when the pod restricts which nodes count.
// k8s: pkg/scheduler/framework/plugins/podtopologyspread/filtering.go

use super::node::{self, NodeScratch};
use crate::bits::Bits;
use crate::columns::keys::KeyColumn;
use crate::program::{Program, Spread};
use crate::snapshot::view::View;

/// Upstream's initial value of the minimum.
pub(crate) const NO_MINIMUM: i64 = i32::MAX as i64;

/// Counts of one constraint.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    /// Matching pods by value id, of nodes that count.
    pub counts: Vec<i64>,
    /// True if a domain has a node that counts.
    pub present: Vec<bool>,
    /// Number of such domains.
    pub size: i64,
    /// Least count over them, zero if there are fewer than `min_domains`.
    pub least: i64,
}

impl Domains {
    /// Recomputes `size` and `least`.
    pub fn settle(&mut self, constraint: &Spread) {
        let counted = self.counts.iter().zip(&self.present).filter(|(_, p)| **p);
        let (size, least) =
            counted.fold((0, NO_MINIMUM), |(size, least), (c, _)| (size + 1, least.min(*c)));
        self.size = size;
        self.least = if size < constraint.min_domains { 0 } else { least };
    }

    /// Returns true if one more pod in this domain keeps the skew.
    #[must_use]
    pub fn allows(&self, constraint: &Spread, value: usize) -> bool {
        let count = self.counts.get(value).copied().unwrap_or(0);
        count + i64::from(constraint.self_match) - self.least <= constraint.max_skew
    }
}

/// State of all hard constraints of one pod.
#[derive(Debug, Default)]
pub struct HardSpread {
    /// One a constraint.
    pub domains: Vec<Domains>,
    /// Rows that count, per constraint.
    pub counted: Vec<Bits>,
    tolerated: Bits,
    affine: Bits,
    all_keys: Bits,
}

impl HardSpread {
    /// Counts domains for every constraint, if there are any.
    pub fn prepare(&mut self, view: &View, program: &Program, scratch: &mut NodeScratch) {
        let constraints = &program.spread.hard;
        self.domains.resize_with(constraints.len(), Domains::default);
        self.counted.resize_with(constraints.len(), Bits::default);
        if constraints.is_empty() {
            return;
        }
        self.all_keys.copy_from(&view.valid, view.rows);
        for c in constraints {
            self.all_keys.and(&view.keys.column(c.key).present);
        }
        inclusion(view, program, constraints, scratch, &mut self.affine, &mut self.tolerated);
        for (at, c) in constraints.iter().enumerate() {
            let counted = &mut self.counted[at];
            counted.copy_from(&self.all_keys, view.rows);
            include(program, c, &self.affine, &self.tolerated, counted);
            count(view, c, counted, &mut self.domains[at]);
            self.domains[at].settle(c);
        }
    }

    /// Keeps the rows that every constraint admits.
    pub fn filter(
        &self,
        view: &View,
        program: &Program,
        scratch: &mut NodeScratch,
        mask: &mut Bits,
    ) {
        for (c, domains) in program.spread.hard.iter().zip(&self.domains) {
            let column = view.keys.column(c.key);
            let wanted = &mut scratch.wanted;
            wanted.clear();
            wanted.extend((0..column.value_ids()).map(|v| v != 0 && domains.allows(c, v)));
            scratch.requirement.reset(view.rows);
            column.rows_where(wanted, &mut scratch.requirement);
            mask.and(&scratch.requirement);
        }
    }
}

/// Fills the two inclusion masks that some constraint asks for.
pub(crate) fn inclusion(
    view: &View,
    program: &Program,
    constraints: &[Spread],
    scratch: &mut NodeScratch,
    affine: &mut Bits,
    tolerated: &mut Bits,
) {
    if node::has_own_affinity(program) && constraints.iter().any(|c| c.honor_affinity) {
        affine.copy_from(&view.valid, view.rows);
        node::own_affinity(view, program, scratch, affine);
    }
    if constraints.iter().any(|c| c.honor_taints) {
        tolerated.copy_from(&view.valid, view.rows);
        node::taints(view, program, tolerated);
    }
}

/// Returns true if the inclusion policies of a constraint may leave nodes out.
pub(crate) fn includes_some(program: &Program, c: &Spread) -> bool {
    c.honor_taints || (c.honor_affinity && node::has_own_affinity(program))
}

/// Applies the inclusion policies of a constraint.
pub(crate) fn include(
    program: &Program,
    c: &Spread,
    affine: &Bits,
    tolerated: &Bits,
    rows: &mut Bits,
) {
    if c.honor_affinity && node::has_own_affinity(program) {
        rows.and(affine);
    }
    if c.honor_taints {
        rows.and(tolerated);
    }
}

/// Counts matching pods by domain over the rows that count.
fn count(view: &View, c: &Spread, counted: &Bits, domains: &mut Domains) {
    let column = view.keys.column(c.key);
    let counter = view.counts.counters.get(c.counter.0);
    domains.counts.clear();
    domains.present.clear();
    // Every node with the key counts: the sums that deltas maintain are the answer.
    if column.present.is_subset_of(counted) {
        domains.present.extend(column.counts.iter().enumerate().map(|(v, n)| v != 0 && *n > 0));
        counter.domain(c.key).write(&mut domains.counts, column.value_ids());
        return;
    }
    domains.counts.resize(column.value_ids(), 0);
    domains.present.resize(column.value_ids(), false);
    mark_present(column, counted, &mut domains.present);
    counter.sum(column, counted, 0, &mut domains.counts);
}

/// Marks the values that rows of a set carry.
pub(crate) fn mark_present(column: &KeyColumn, rows: &Bits, present: &mut [bool]) {
    if column.is_narrow() {
        for (value, p) in column.rows.iter().zip(present.iter_mut()) {
            *p = value.intersects(rows);
        }
    } else {
        rows.iter().for_each(|row| present[column.value(row) as usize] = true);
    }
    present[0] = false;
}
