//! Identical pods in a row: rescored exactly, touching only what the last placement changed.
//!
//! Input: a view and a program, then the rows that changed since. Output: the same `Outcome` as
//! `select::decide`. Owner: one decider. Bounds: `GROUPS_MAX` groups; a decision costs a pass over
//! the groups and a placement two tree operations, whatever the number of nodes.
//! Nodes that share everything which is normalised over all nodes (soft taints, preferred labels,
//! pod affinity, spread domain and own count) form a group; within one only utilisation, balance
//! and images differ, and these change for the touched row alone. The extremes that normalisation
//! needs are taken over groups.
//! Not for pods with constraints that a placement may turn from feasible to not elsewhere (hard
//! spread, affinity of their own): `Repeat::new` declines them and the full path decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bits::Bits;
use crate::chunk::CHUNK_ROWS;
use crate::columns::keys::KeyColumn;
use crate::config::Plugin;
use crate::filter::{self, node};
use crate::intern::FastMap;
use crate::logarithm;
use crate::program::{Program, Spread};
use crate::score::{Normalise, Raw, normalise_one, resources};
use crate::select::{Outcome, Scratch};
use crate::snapshot::view::View;

/// Groups beyond which the full path is cheaper.
const GROUPS_MAX: usize = 1024;
/// Greatest local score that is counted in buckets.
const LOCAL_MAX: usize = 1024;

/// Nodes with equal scores except for their local part.
#[derive(Debug, Default)]
struct ScoreGroup {
    taint: i64,
    labels: i64,
    pods: i64,
    ignored: bool,
    /// By soft constraint: matching pods on the node for the hostname, the domain otherwise; `None`
    /// where the node lacks the key.
    spread: Vec<Option<u32>>,
    /// Rows by local score, greatest first.
    rows: BTreeSet<(i32, u32)>,
    /// Rows of each local score.
    counts: Vec<u32>,
}

/// A normalised plugin, its normalisation, if it takes part, and its raw score of a group.
type Part = (Plugin, Normalise, bool, fn(&ScoreGroup) -> i64);

/// One soft constraint's domains.
#[derive(Debug, Default)]
struct Domains {
    /// Matching pods by value.
    counts: Vec<i64>,
    /// Scored rows by value.
    scored: Vec<u32>,
    /// Values with a scored row.
    size: usize,
    /// Rows that count.
    counted: Bits,
    /// Every row with the key counts.
    whole: bool,
    /// Pods of each row as they are counted, where not every row counts.
    seen: Vec<u32>,
}

/// Group and local score of a row.
#[derive(Clone, Copy, Debug)]
struct Seat {
    group: u32,
    local: i32,
}

/// Exact rescoring for one program.
#[derive(Debug)]
pub struct Repeat {
    program: Arc<Program>,
    passing: Bits,
    taint: Vec<f64>,
    labels: Vec<f64>,
    pods: Vec<f64>,
    pods_scored: bool,
    labels_scored: bool,
    images: FastMap<u32, i32>,
    groups: Vec<ScoreGroup>,
    ids: FastMap<Vec<i64>, u32>,
    seats: Vec<Option<Seat>>,
    domains: Vec<Domains>,
    scored: usize,
    feasible: usize,
    terms_version: u64,
    totals: Vec<i64>,
}

impl Repeat {
    /// Prepares for pods of this program; `None` if only the full path is exact.
    #[must_use]
    pub fn new(view: &View, program: &Arc<Program>, scratch: &mut Scratch) -> Option<Self> {
        let own = program.pods.required.is_some()
            || !program.pods.anti.is_empty()
            || !program.pods.preferred.is_empty()
            || !program.spread.hard.is_empty();
        let refused = crate::select::refusal(view, program).is_some();
        if own
            || refused
            || program.node_affinity.preferred_error.is_some()
            || program.pods.carries_terms
        {
            return None;
        }
        let profile = &view.profile;
        let weights = [
            Plugin::NodeResourcesFit,
            Plugin::NodeResourcesBalancedAllocation,
            Plugin::ImageLocality,
        ];
        let most: i64 = weights.iter().map(|p| 100 * profile.weight(*p)).sum();
        if most >= LOCAL_MAX as i64 {
            return None;
        }
        let mut repeat = Self::empty(view, program);
        repeat.passing = static_mask(view, program, scratch);
        repeat.columns(view, scratch);
        repeat.spread(view, scratch);
        for row in repeat.passing.clone().iter() {
            repeat.seat(view, row);
            if repeat.groups.len() > GROUPS_MAX {
                return None;
            }
        }
        Some(repeat)
    }

    fn empty(view: &View, program: &Arc<Program>) -> Self {
        let rows = view.chunks.len() * CHUNK_ROWS;
        Self {
            program: Arc::clone(program),
            passing: Bits::default(),
            taint: vec![0.0; rows],
            labels: vec![0.0; rows],
            pods: vec![0.0; rows],
            pods_scored: false,
            labels_scored: false,
            images: FastMap::default(),
            groups: Vec::new(),
            ids: FastMap::default(),
            seats: vec![None; view.rows],
            domains: Vec::new(),
            scored: 0,
            feasible: 0,
            terms_version: view.counts.terms_version,
            totals: Vec::new(),
        }
    }

    /// Raw columns that no placement of this pod changes.
    fn columns(&mut self, view: &View, scratch: &mut Scratch) {
        let program = Arc::clone(&self.program);
        let column = &mut self.taint;
        if let Raw::Same(same) = crate::score::node::taints(view, &program, column) {
            column.fill(same as f64);
        }
        let column = &mut self.labels;
        let raw = crate::score::node::affinity(
            view,
            &program,
            &self.passing,
            &mut scratch.filter.node,
            column,
        );
        match raw {
            Raw::Same(same) => column.fill(same as f64),
            Raw::Skip => column.fill(0.0),
            Raw::Column => {}
        }
        self.labels_scored = raw != Raw::Skip;
        self.pods_scored = scratch.pods.score(view, &program, &mut self.pods) == Raw::Column;
        let mut sums = vec![0; self.taint.len()];
        let mut found = Vec::new();
        crate::score::node::images(view, &program, &mut sums, &mut found);
        self.images = found.into_iter().collect();
    }

    /// Domains of the soft constraints, no row scored yet.
    fn spread(&mut self, view: &View, scratch: &mut Scratch) {
        let program = &self.program;
        scratch.soft.prepare(view, program, &self.passing, &mut scratch.filter.node);
        let (mut affine, mut tolerated) = (Bits::default(), Bits::default());
        let soft = &program.spread.soft;
        filter::spread::inclusion(
            view,
            program,
            soft,
            &mut scratch.filter.node,
            &mut affine,
            &mut tolerated,
        );
        for c in soft {
            let column = view.keys.column(c.key);
            let mut counted = scratch.soft.all_keys().clone();
            filter::spread::include(program, c, &affine, &tolerated, &mut counted);
            let whole = column.present.is_subset_of(&counted)
                && column.texts.iter().all(|t| *t != view.empty_text);
            let ids = column.value_ids();
            let domains = Domains {
                counts: vec![0; ids],
                scored: vec![0; ids],
                counted,
                whole,
                ..Domains::default()
            };
            self.domains.push(domains);
        }
        for (at, c) in program.spread.soft.iter().enumerate() {
            if !c.hostname {
                self.domains[at].count(view, c);
            }
        }
    }

    /// Applies changes on `row`; returns false if everything must be prepared again.
    #[must_use]
    pub fn changed(&mut self, view: &View, row: u32) -> bool {
        let stale = !view.is_current(&self.program);
        if stale || view.counts.terms_version != self.terms_version || view.rows != self.seats.len()
        {
            return false;
        }
        let program = Arc::clone(&self.program);
        for (at, c) in program.spread.soft.iter().enumerate() {
            if !c.hostname {
                self.domains[at].recount(view, c, row);
            }
        }
        self.leave(view, row);
        if self.passing.get(row) {
            self.seat(view, row);
        }
        self.groups.len() <= GROUPS_MAX
    }

    fn leave(&mut self, view: &View, row: u32) {
        let Some(seat) = self.seats[row as usize].take() else { return };
        let group = &mut self.groups[seat.group as usize];
        group.rows.remove(&(-seat.local, row));
        group.counts[seat.local as usize] -= 1;
        self.feasible -= 1;
        if !group.ignored {
            self.scored -= 1;
            self.count_scored(view, row, false);
        }
    }

    fn count_scored(&mut self, view: &View, row: u32, more: bool) {
        let program = Arc::clone(&self.program);
        for (c, domains) in program.spread.soft.iter().zip(&mut self.domains) {
            if c.hostname {
                continue;
            }
            let column = view.keys.column(c.key);
            let value = canonical(view, column, column.value(row));
            let scored = &mut domains.scored[value as usize];
            if more {
                *scored += 1;
                domains.size += usize::from(*scored == 1);
            } else {
                *scored -= 1;
                domains.size -= usize::from(*scored == 0);
            }
        }
    }

    /// Puts a row into its group if the pod fits there.
    fn seat(&mut self, view: &View, row: u32) {
        let program = Arc::clone(&self.program);
        let numbers = view.numbers(row);
        let room = !view.profile.filters(Plugin::NodeResourcesFit)
            || (node::fits_numbers(&program, &numbers)
                && program.scalars.iter().all(|(name, asked)| {
                    let (all, used) = view.extended(*name, row);
                    *asked <= all.wrapping_sub(used)
                })
                && program.delegated.iter().all(|(name, asked)| {
                    let (all, used) = view.extended(*name, row);
                    all <= 0 || *asked <= all.wrapping_sub(used)
                }));
        if !room || (!program.ports.is_empty() && self.ports_taken(view, row)) {
            return;
        }
        let weight = |p: Plugin| view.profile.weight(p) as i32;
        let mut local = weight(Plugin::NodeResourcesFit)
            * resources::fit_score_default(view, &program, &numbers, row) as i32;
        if !resources::balance_skips(&view.profile, &program) {
            local += weight(Plugin::NodeResourcesBalancedAllocation)
                * resources::balance_score_default(view, &program, &numbers, row) as i32;
        }
        local += weight(Plugin::ImageLocality) * self.images.get(&row).copied().unwrap_or(0);
        let group = self.group(view, row);
        let ignored = self.groups[group as usize].ignored;
        let of = &mut self.groups[group as usize];
        of.rows.insert((-local, row));
        of.counts[local as usize] += 1;
        self.seats[row as usize] = Some(Seat { group, local });
        self.feasible += 1;
        if !ignored {
            self.scored += 1;
            self.count_scored(view, row, true);
        }
    }

    fn ports_taken(&self, view: &View, row: u32) -> bool {
        let mut mask = Bits::with_rows(view.rows);
        mask.set(row);
        node::ports(view, &self.program, &mut mask);
        !mask.get(row)
    }

    fn group(&mut self, view: &View, row: u32) -> u32 {
        let program = Arc::clone(&self.program);
        let at = row as usize;
        let constraints = &program.spread.soft;
        let all = |c: &Spread| view.keys.column(c.key).value(row) != 0;
        let ignored = program.spread.requires_all && !constraints.iter().all(all);
        let spread: Vec<Option<u32>> = constraints
            .iter()
            .map(|c| match view.keys.column(c.key).value(row) {
                0 => None,
                _ if c.hostname => {
                    let nodes = &view.counts.counters.get(c.counter.0).nodes;
                    Some(nodes.get(row))
                }
                value => Some(value),
            })
            .collect();
        let mut key = vec![
            self.taint[at] as i64,
            self.labels[at] as i64,
            self.pods[at] as i64,
            i64::from(ignored),
        ];
        key.extend(spread.iter().map(|s| s.map_or(-1, i64::from)));
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = u32::try_from(self.groups.len()).expect("few groups");
        self.groups.push(ScoreGroup {
            taint: key[0],
            labels: key[1],
            pods: key[2],
            ignored,
            spread,
            rows: BTreeSet::new(),
            counts: vec![0; LOCAL_MAX],
        });
        self.ids.insert(key, id);
        id
    }

    /// Returns the decision, equal to that of the full path.
    pub fn decide(&mut self, view: &View) -> Outcome {
        if self.feasible == 0 {
            return Outcome::default();
        }
        let mut totals = std::mem::take(&mut self.totals);
        self.normalised(view, &mut totals);
        let mut outcome = Outcome { feasible: self.feasible, best: i32::MIN, ..Outcome::default() };
        for (group, base) in self.groups.iter().zip(&totals) {
            let Some((local, row)) = group.rows.first().map(|(l, r)| (-l, *r)) else { continue };
            let total = local + *base as i32;
            let count = group.counts[local as usize] as usize;
            if total > outcome.best {
                (outcome.best, outcome.first, outcome.ties) = (total, Some(row), count);
            } else if total == outcome.best {
                outcome.first = outcome.first.min(Some(row));
                outcome.ties += count;
            }
        }
        self.totals = totals;
        outcome
    }

    /// Weighted normalised scores by group.
    fn normalised(&self, view: &View, totals: &mut Vec<i64>) {
        totals.clear();
        totals.resize(self.groups.len(), 0);
        let live = |g: &&ScoreGroup| !g.rows.is_empty();
        let parts: [Part; 3] = [
            (Plugin::TaintToleration, Normalise::Reversed, true, |g| g.taint),
            (Plugin::NodeAffinity, Normalise::Default, self.labels_scored, |g| g.labels),
            (Plugin::InterPodAffinity, Normalise::Span, self.pods_scored, |g| g.pods),
        ];
        for (plugin, how, on, of) in parts {
            let weight = view.profile.weight(plugin);
            if !on || weight == 0 {
                continue;
            }
            let values = self.groups.iter().filter(live).map(of);
            let (min, max) = values.fold((i64::MAX, i64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            for (total, group) in totals.iter_mut().zip(&self.groups) {
                *total += normalise_one(of(group), how, min, max) * weight;
            }
        }
        let weight = view.profile.weight(Plugin::PodTopologySpread);
        if weight == 0 || self.program.spread.soft.is_empty() {
            return;
        }
        let weights: Vec<f64> = self
            .program
            .spread
            .soft
            .iter()
            .zip(&self.domains)
            .map(|(c, d)| logarithm::weight(if c.hostname { self.scored } else { d.size }))
            .collect();
        let raw: Vec<i64> = self.groups.iter().map(|g| self.raw_spread(g, &weights)).collect();
        let scored = self.groups.iter().zip(&raw).filter(|(g, _)| !g.ignored && live(g));
        let (min, max) = scored.fold((i64::MAX, 0), |(l, h), (_, v)| (l.min(*v), h.max(*v)));
        for ((total, group), raw) in totals.iter_mut().zip(&self.groups).zip(raw) {
            if !group.ignored && !group.rows.is_empty() {
                *total += normalise_one(raw, Normalise::Spread, min, max) * weight;
            }
        }
    }

    fn raw_spread(&self, group: &ScoreGroup, weights: &[f64]) -> i64 {
        let mut score = 0.0;
        for (at, c) in self.program.spread.soft.iter().enumerate() {
            if let Some(value) = group.spread[at] {
                let count = match c.hostname {
                    true => i64::from(value),
                    false => self.domains[at].counts[value as usize],
                };
                score += count as f64 * weights[at] + (c.max_skew - 1) as f64;
            }
        }
        f64::round(score) as i64
    }
}

impl Domains {
    /// Counts all domains of a constraint.
    fn count(&mut self, view: &View, c: &Spread) {
        let counter = view.counts.counters.get(c.counter.0);
        if self.whole {
            let values = self.counts.len();
            counter.domain(c.key).write(&mut self.counts, values);
            return;
        }
        self.seen.resize(view.rows, 0);
        counter.nodes.iter().for_each(|(row, _)| self.recount(view, c, row));
    }

    /// Reads the count of a row's domain again; no other row of the domain has changed.
    fn recount(&mut self, view: &View, c: &Spread, row: u32) {
        let column = view.keys.column(c.key);
        let counter = view.counts.counters.get(c.counter.0);
        let value = canonical(view, column, column.value(row)) as usize;
        if self.whole {
            self.counts[value] = counter.domain(c.key).get(value as u32).into();
        } else if self.counted.get(row) {
            let now = counter.nodes.get(row);
            let before = std::mem::replace(&mut self.seen[row as usize], now);
            self.counts[value] += i64::from(now) - i64::from(before);
        }
    }
}

/// The domain of a value: upstream reads an absent label as the empty text.
fn canonical(view: &View, column: &KeyColumn, value: u32) -> u32 {
    match value {
        0 => column.find(view.empty_text).unwrap_or(0),
        value => value,
    }
}

/// Returns the rows that pass every filter that a placement of this pod does not affect on other
/// rows.
fn static_mask(view: &View, program: &Program, scratch: &mut Scratch) -> Bits {
    let mut mask = Bits::default();
    mask.copy_from(&view.valid, view.rows);
    if let Some(names) = &program.node_affinity.subset {
        node::keep_named(view, names, &mut mask);
    }
    for plugin in filter::COLUMN_FILTERS {
        if !matches!(plugin, Plugin::NodeResourcesFit | Plugin::NodePorts) {
            filter::apply(plugin, view, program, &mut scratch.filter, &mut mask);
        }
    }
    mask
}
