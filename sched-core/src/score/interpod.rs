//! Preferred affinity between pods, in both directions, and the pull of existing required terms.
//!
//! Input: view, program. Output: a raw column. Owner: scratch of one decider.
//! Bounds: the pod's preferred terms and the existing terms that select it; domains of their keys.
// k8s: pkg/scheduler/framework/plugins/interpodaffinity/scoring.go

use super::Raw;
use super::parts::{PartsOutcome, ScoreParts};
use crate::bits::Bits;
use crate::columns::counters::{CounterId, TermId, TermKind};
use crate::columns::domain_counts::DomainCounts;
use crate::columns::keys::{KeyId, Values};
use crate::columns::row_counts::RowCounts;
use crate::program::Program;
use crate::simd::{self, NarrowTable};
use crate::snapshot::view::View;

/// Scratch: scores of each topology key by value id.
#[derive(Debug, Default)]
pub struct PodScore {
    tables: Vec<(KeyId, Vec<f64>)>,
    spare: Vec<Vec<f64>>,
    /// Pods that are counted by row.
    by_row: Option<Of>,
}

/// Pods that give a score.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// Pods that the pod prefers.
    Counter(CounterId),
    /// Pods with a term that selects the pod.
    Term(TermId),
}

/// Pods that give a score.
struct Pull<'a> {
    of: Of,
    key: KeyId,
    /// A pod.
    weight: i64,
    /// By value id of the key.
    domains: &'a DomainCounts,
    /// By row, if known.
    nodes: Option<&'a RowCounts>,
}

/// Returns the pods that contribute to scores.
fn pulls<'a>(view: &'a View, program: &'a Program) -> impl Iterator<Item = Pull<'a>> {
    let profile = &view.profile;
    let off = profile.ignore_preferred_terms_of_existing_pods && program.pods.preferred.is_empty();
    let own = program.pods.preferred.iter().map(|(weight, id, key)| {
        let counter = view.counts.counters.get(id.0);
        let (domains, nodes) = (counter.domain(*key), Some(&counter.nodes));
        Pull { of: Of::Counter(*id), key: *key, weight: *weight, domains, nodes }
    });
    let terms = view.counts.class_terms.get(program.class).iter().filter_map(|id| {
        let term = view.counts.terms.get(id.0);
        let weight = match term.key.kind {
            TermKind::Preferred(weight) => i64::from(weight),
            TermKind::RequiredAffinity => i64::from(profile.hard_pod_affinity_weight),
            TermKind::RequiredAnti => return None,
        };
        let off = term.key.kind == TermKind::RequiredAffinity && weight == 0;
        let (domains, nodes) = (&term.domains, term.nodes.as_ref());
        let pull = Pull { of: Of::Term(*id), key: term.topology, weight, domains, nodes };
        (!off && term.total > 0).then_some(pull)
    });
    own.chain(terms).filter(move |_| !off)
}

/// Adds to each row the score of its value.
pub(super) fn gather(values: &Values, table: &[f64], column: &mut [f64]) {
    match values {
        Values::Narrow(values) => {
            let mut narrow: NarrowTable = [0.0; 64];
            narrow[..table.len()].copy_from_slice(table);
            simd::gather_add(values, &narrow, column);
        }
        Values::Wide(values) => simd::gather_add_wide(values, table, column),
    }
}

impl PodScore {
    /// Fills the column.
    pub(crate) fn score(&mut self, view: &View, program: &Program, column: &mut [f64]) -> Raw {
        if !self.prepare(view, program) {
            return Raw::Skip;
        }
        column.fill(0.0);
        for (key, table) in &self.tables {
            gather(&view.keys.column(*key).values, table, column);
        }
        Raw::Column
    }

    /// As [`Self::score`], in parts; pods of one term may be counted by row.
    pub(crate) fn parts(
        &mut self,
        view: &View,
        program: &Program,
        feasible: &Bits,
        parts: &mut ScoreParts,
    ) -> PartsOutcome {
        self.clear();
        let (mut any, mut by_row) = (false, None);
        for pull in pulls(view, program) {
            let column = view.keys.column(pull.key);
            match pull.nodes.filter(|_| column.is_by_row() && by_row.is_none()) {
                Some(nodes) if nodes.is_empty() => {}
                Some(nodes) => by_row = Some((pull, nodes)),
                None if column.is_narrow() => any |= self.add(view, &pull),
                None if pull.domains.is_empty() => {}
                None => return PartsOutcome::TooMany,
            }
        }
        if !any && by_row.is_none() {
            return PartsOutcome::Skip;
        }
        parts.begin(feasible, view.rows);
        for (key, table) in &self.tables {
            if !parts.add_table(view.keys.column(*key), table) {
                return PartsOutcome::TooMany;
            }
        }
        if let Some((pull, nodes)) = by_row {
            self.by_row = Some(pull.of);
            let column = view.keys.column(pull.key);
            let raw = |row, count| {
                let counted = if column.value(row) == 0 { 0 } else { count };
                self.row(view, row) + (pull.weight * i64::from(counted)) as f64
            };
            if !parts.split(&column.present, 0.0) || !parts.count_by(nodes, raw) {
                return PartsOutcome::TooMany;
            }
        }
        PartsOutcome::Parts { whole: true }
    }

    /// Returns the pods that are counted by row.
    pub(crate) fn counts<'a>(&self, view: &'a View) -> &'a RowCounts {
        match self.by_row.expect("scores by count have counters") {
            Of::Counter(id) => &view.counts.counters.get(id.0).nodes,
            Of::Term(id) => {
                view.counts.terms.get(id.0).nodes.as_ref().expect("it was there before")
            }
        }
    }

    /// Returns the sum of the tables for a row.
    fn row(&self, view: &View, row: u32) -> f64 {
        let gain =
            |(key, table): &(KeyId, Vec<f64>)| table[view.keys.column(*key).value(row) as usize];
        self.tables.iter().map(gain).sum()
    }

    fn clear(&mut self) {
        self.spare.extend(self.tables.drain(..).map(|(_, table)| table));
        self.by_row = None;
    }

    /// Sums all terms by domain; false when no term applies anywhere.
    fn prepare(&mut self, view: &View, program: &Program) -> bool {
        self.clear();
        pulls(view, program).fold(false, |any, pull| self.add(view, &pull) | any)
    }

    /// Adds the scores of each pod; returns true if there was one.
    fn add(&mut self, view: &View, pull: &Pull<'_>) -> bool {
        if pull.domains.is_empty() {
            return false;
        }
        let at = self.tables.iter().position(|(k, _)| *k == pull.key).unwrap_or_else(|| {
            let mut table = self.spare.pop().unwrap_or_default();
            table.clear();
            table.resize(view.keys.column(pull.key).value_ids(), 0.0);
            self.tables.push((pull.key, table));
            self.tables.len() - 1
        });
        pull.domains.add_to(&mut self.tables[at].1, pull.weight as f64);
        true
    }
}
