//! Soft topology spread: matching pods by domain, weighted by the logarithm of the domains.
//!
//! Input: view, program, feasible rows. Output: a raw column and the rows left out of it.
//! Owner: scratch of one decider. Bounds: domains of each key; the column is filled by one gather a
//! constraint. Nodes with matching pods are visited where several constraints ask for the hostname.
// k8s: pkg/scheduler/framework/plugins/podtopologyspread/scoring.go

use super::Raw;
use super::interpod::gather;
use super::parts::{PartsOutcome, ScoreParts};
use crate::bits::Bits;
use crate::columns::keys::{KeyColumn, Values};
use crate::columns::row_counts::RowCounts;
use crate::filter::node::NodeScratch;
use crate::filter::spread::{include, includes_some, inclusion, mark_present};
use crate::logarithm;
use crate::program::{Program, Spread};
use crate::simd;
use crate::snapshot::view::View;

/// Score of one constraint by value id, and the weight of a count.
#[derive(Debug, Default)]
struct Gain {
    by_value: Vec<f64>,
    weight: f64,
}

/// Scratch of the soft spread score.
#[derive(Debug, Default)]
pub struct SoftSpread {
    /// Feasible rows that lack a key and score nothing.
    pub ignored: Bits,
    /// Feasible rows that take part.
    pub scored: Bits,
    gains: Vec<Gain>,
    affine: Bits,
    tolerated: Bits,
    counted: Bits,
    all_keys: Bits,
    present: Vec<bool>,
    counts: Vec<i64>,
}

impl SoftSpread {
    /// Returns the rows with every key, if all are required; `prepare` must have run.
    pub(crate) fn all_keys(&self) -> &Bits {
        &self.all_keys
    }

    /// Fills the column.
    pub(crate) fn score(
        &mut self,
        view: &View,
        program: &Program,
        feasible: &Bits,
        scratch: &mut NodeScratch,
        column: &mut [f64],
    ) -> Raw {
        let constraints = &program.spread.soft;
        if constraints.is_empty() {
            return Raw::Skip;
        }
        self.prepare(view, program, feasible, scratch);
        column.fill(0.0);
        for (c, gain) in constraints.iter().zip(&self.gains) {
            match &view.keys.column(c.key).values {
                Values::Wide(values) if c.hostname => {
                    simd::add_where_present(values, (c.max_skew - 1) as f64, column);
                }
                values => gather(values, &gain.by_value, column),
            }
        }
        simd::round_half_up(column);
        // The tables have no counts by node: rows with matching pods are computed again.
        for c in constraints.iter().filter(|c| c.hostname) {
            for (row, _) in view.counts.counters.get(c.counter.0).nodes.iter() {
                column[row as usize] = self.row(view, program, row);
            }
        }
        Raw::Column
    }

    /// Like [`Self::score`], in parts; a hostname constraint has scores by count.
    pub(crate) fn parts(
        &mut self,
        view: &View,
        program: &Program,
        feasible: &Bits,
        scratch: &mut NodeScratch,
        parts: &mut ScoreParts,
    ) -> PartsOutcome {
        let constraints = &program.spread.soft;
        if constraints.is_empty() {
            return PartsOutcome::Skip;
        }
        let mut by_node = constraints.iter().filter(|c| c.hostname);
        let by_node = (by_node.next(), by_node.next());
        if by_node.1.is_some() {
            return PartsOutcome::TooMany;
        }
        self.prepare(view, program, feasible, scratch);
        parts.begin(&self.scored, view.rows);
        for (c, gain) in constraints.iter().zip(&self.gains) {
            let column = view.keys.column(c.key);
            let fits = if c.hostname && column.is_everywhere(view.nodes) {
                let more = gain_of(c, 0, gain.weight);
                parts.map(|raw| raw + more);
                true
            } else if c.hostname {
                parts.split(&column.present, gain_of(c, 0, gain.weight))
            } else {
                parts.add_table(column, &gain.by_value)
            };
            if !fits {
                return PartsOutcome::TooMany;
            }
        }
        parts.map(round);
        if let Some(c) = by_node.0 {
            let column = |at: usize| view.keys.column(constraints[at].key);
            let raw = |row, count| self.raw(program, row, column, |_| count);
            if !parts.count_by(&view.counts.counters.get(c.counter.0).nodes, raw) {
                return PartsOutcome::TooMany;
            }
        }
        PartsOutcome::Parts { whole: self.ignored.is_empty() }
    }

    /// Returns the counts of the hostname constraint, and the rows that it scores.
    pub(crate) fn counted<'a>(
        &'a self,
        view: &'a View,
        program: &Program,
    ) -> (&'a RowCounts, &'a Bits) {
        let constraint = program.spread.soft.iter().find(|c| c.hostname);
        let constraint = constraint.expect("scores by count are of a hostname constraint");
        (&view.counts.counters.get(constraint.counter.0).nodes, &self.scored)
    }

    /// Raw score of one row; `prepare` must have run.
    pub(crate) fn row(&self, view: &View, program: &Program, row: u32) -> f64 {
        let column = |at: usize| view.keys.column(program.spread.soft[at].key);
        let on = |c: &Spread| view.counts.counters.get(c.counter.0).nodes.get(row);
        self.raw(program, row, column, on)
    }

    /// Raw score of one row, given the matching pods on it.
    #[inline]
    fn raw<'a>(
        &self,
        program: &Program,
        row: u32,
        column: impl Fn(usize) -> &'a KeyColumn,
        on: impl Fn(&Spread) -> u32,
    ) -> f64 {
        let mut score = 0.0;
        for (at, (c, gain)) in program.spread.soft.iter().zip(&self.gains).enumerate() {
            let value = column(at).value(row);
            if value == 0 {
                continue;
            }
            score += if c.hostname {
                gain_of(c, i64::from(on(c)), gain.weight)
            } else {
                gain.by_value[value as usize]
            };
        }
        round(score)
    }

    /// Counts and weighs every domain.
    pub(crate) fn prepare(
        &mut self,
        view: &View,
        program: &Program,
        feasible: &Bits,
        scratch: &mut NodeScratch,
    ) {
        let constraints = &program.spread.soft;
        self.all_keys.copy_from(&view.valid, view.rows);
        self.scored.copy_from(feasible, view.rows);
        self.ignored.reset(view.rows);
        if program.spread.requires_all {
            for c in constraints {
                self.all_keys.and(&view.keys.column(c.key).present);
            }
            self.ignored.copy_from(feasible, view.rows);
            self.scored.and(&self.all_keys);
            self.ignored.and_not(&self.all_keys);
        }
        inclusion(view, program, constraints, scratch, &mut self.affine, &mut self.tolerated);
        self.gains.resize_with(constraints.len(), Gain::default);
        for (at, c) in constraints.iter().enumerate() {
            let column = view.keys.column(c.key);
            let mut gain = std::mem::take(&mut self.gains[at]);
            if c.hostname {
                gain.weight = logarithm::weight(self.scored.count());
                gain.by_value.clear();
                if column.is_narrow() {
                    // Counts are added by row; the table has the amount of every row with a
                    // hostname.
                    gain.by_value.resize(column.value_ids(), gain_of(c, 0, gain.weight));
                    gain.by_value[0] = 0.0;
                }
            } else {
                self.domains(view, program, c, column, &mut gain);
            }
            self.gains[at] = gain;
        }
    }

    fn domains(
        &mut self,
        view: &View,
        program: &Program,
        c: &Spread,
        column: &KeyColumn,
        gain: &mut Gain,
    ) {
        self.present.clear();
        self.present.resize(column.value_ids(), false);
        mark_present(column, &self.scored, &mut self.present);
        let mut size = self.present.iter().filter(|p| **p).count();
        // Upstream reads an absent label as the empty value: nodes without the key form a domain,
        // together with those that have the empty value.
        let lacking =
            !column.is_everywhere(view.nodes) && !self.scored.is_subset_of(&column.present);
        let empty = (1..column.value_ids()).find(|v| is_empty_text(view, column, *v));
        let empty_present = empty.is_some_and(|v| self.present[v]);
        if lacking && !empty_present {
            size += 1;
            if let Some(v) = empty {
                self.present[v] = true;
            }
        }
        gain.weight = logarithm::weight(size);
        self.count(view, program, c, column, empty);
        gain.by_value.clear();
        let weight = gain.weight;
        gain.by_value.extend(self.counts.iter().map(|n| gain_of(c, *n, weight)));
        gain.by_value[0] = 0.0;
    }

    /// Matching pods by value over the nodes that count.
    fn count(
        &mut self,
        view: &View,
        program: &Program,
        c: &Spread,
        column: &KeyColumn,
        empty: Option<usize>,
    ) {
        let counter = view.counts.counters.get(c.counter.0);
        self.counts.clear();
        let restricted = program.spread.requires_all || includes_some(program, c);
        if restricted || empty.is_some() {
            self.counted.copy_from(&self.all_keys, view.rows);
            include(program, c, &self.affine, &self.tolerated, &mut self.counted);
        }
        if empty.is_none() && (!restricted || column.present.is_subset_of(&self.counted)) {
            counter.domain(c.key).write(&mut self.counts, column.value_ids());
            return;
        }
        self.counts.resize(column.value_ids(), 0);
        counter.sum(column, &self.counted, empty.unwrap_or(0), &mut self.counts);
    }
}

fn is_empty_text(view: &View, column: &KeyColumn, value: usize) -> bool {
    column.texts[value] == view.empty_text
}

/// Rounds half away from zero; a raw score is 0 or at least 0.69, where adding a half is exact
/// enough, and far below 2^53. The library's function is a call.
fn round(score: f64) -> f64 {
    (score + 0.5) as i64 as f64
}

/// The contribution of a constraint to a node in a domain with `count` matching pods.
// k8s: scoring.go scoreForCount
fn gain_of(c: &Spread, count: i64, weight: f64) -> f64 {
    count as f64 * weight + (c.max_skew - 1) as f64
}
