//! Preferred affinity between pods, in both directions, and the pull of existing required terms.
//!
//! Input: view, program. Output: a raw column. Owner: scratch of one decider.
//! Bounds: the pod's preferred terms and the existing terms that select it; domains of their keys.
// k8s: pkg/scheduler/framework/plugins/interpodaffinity/scoring.go

use super::Raw;
use super::layered::Found;
use super::parts::Parts;
use crate::bits::Bits;
use crate::program::Program;
use crate::simd::{self, NarrowTable};
use crate::snapshot::counters::TermKind;
use crate::snapshot::keys::{KeyId, Values};
use crate::snapshot::view::View;

/// Scratch: what each topology key gives by value id.
#[derive(Debug, Default)]
pub struct PodScore {
    tables: Vec<(KeyId, Vec<f64>)>,
    used: usize,
    spare: Vec<Vec<f64>>,
}

/// Adds to each row what its value gives.
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

    /// As [`Self::score`], in parts.
    pub(crate) fn parts(
        &mut self,
        view: &View,
        program: &Program,
        feasible: &Bits,
        parts: &mut Parts,
    ) -> Found {
        if !self.prepare(view, program) {
            return Found::Skip;
        }
        parts.begin(feasible, view.rows);
        for (key, table) in &self.tables {
            if !parts.add_table(view.keys.column(*key), table) {
                return Found::TooMany;
            }
        }
        Found::Parts { whole: true }
    }

    /// Raw score of one row; `prepare` must have returned true.
    #[must_use]
    pub fn row(&self, view: &View, row: u32) -> f64 {
        let gain =
            |(key, table): &(KeyId, Vec<f64>)| table[view.keys.column(*key).value(row) as usize];
        self.tables.iter().map(gain).sum()
    }

    /// Sums all terms by domain; false when no term applies anywhere.
    pub(crate) fn prepare(&mut self, view: &View, program: &Program) -> bool {
        self.spare.extend(self.tables.drain(..).map(|(_, table)| table));
        self.used = 0;
        let profile = &view.profile;
        if profile.ignore_preferred_terms_of_existing_pods && program.preferred_pods.is_empty() {
            return false;
        }
        let mut any = false;
        for (weight, counter, key) in &program.preferred_pods {
            any |= self.add(view, *key, view.counters.get(counter.0).domain(*key), *weight);
        }
        for term in view.class_terms.get(program.class) {
            let term = view.terms.get(term.0);
            let weight = match term.key.kind {
                TermKind::Preferred(weight) => i64::from(weight),
                TermKind::RequiredAffinity => i64::from(profile.hard_pod_affinity_weight),
                TermKind::RequiredAnti => continue,
            };
            let off = term.key.kind == TermKind::RequiredAffinity && weight == 0;
            if !off && term.total > 0 {
                any |= self.add(view, term.topology, &term.domains, weight);
            }
        }
        any
    }

    /// Adds `weight` a pod; returns whether there was one.
    fn add(&mut self, view: &View, key: KeyId, counts: &[u32], weight: i64) -> bool {
        if simd::all_zero(counts) {
            return false;
        }
        let at = self.tables.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
            let mut table = self.spare.pop().unwrap_or_default();
            table.clear();
            table.resize(view.keys.column(key).value_ids(), 0.0);
            self.tables.push((key, table));
            self.tables.len() - 1
        });
        let (sums, rest) = (self.tables[at].1.get_mut(1..), counts.get(1..));
        simd::add_counts(sums.unwrap_or_default(), rest.unwrap_or_default(), weight as f64);
        true
    }
}
