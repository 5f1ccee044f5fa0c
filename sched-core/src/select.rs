//! One decision: masks first, scores for the survivors, the greatest total and all rows that reach
//! it.
//!
//! Input: a view and a program. Output: an `Outcome`; on request every mask and score column.
//! Owner: one decider with its own `Scratch`; the view is only read.
//! Bounds: scratch is a few dozen bytes a node; nothing depends on the number of pods. Plugins that
//! filter single nodes run after the columns, on rows that passed, and cost their own time only.
//! Why the full tie set: upstream breaks ties at random, so that the choice is the caller's.

use crate::bits::{Bits, WORD_ROWS};
use crate::chunk::{BYTES_NARROW_MAX, CHUNK_ROWS, CPU_NARROW_MAX};
use crate::config::{PLUGINS, Plugin, Profile, Rank};
use crate::filter::status::Status;
use crate::filter::{self, COLUMN_FILTERS, FilterScratch};
use crate::program::Program;
use crate::score::interpod::PodScore;
use crate::score::spread::SoftSpread;
use crate::score::{Normalise, Raw, node, normalise, resources};
use crate::simd;
use crate::snapshot::view::View;

mod layered;
mod row;
mod sample;
mod shape;

use self::layered::Layered;
use self::row::RankedFilter;
pub use self::row::{Rejector, rejector};
pub use self::sample::{NodeSample, sample_size};
pub use self::shape::Handed;

/// Limit of a row plugin's weighted score of a node.
const SCORE_OF_ROW: i64 = 1 << 30;

/// A plugin that evaluates surviving nodes one at a time: volumes, claims, extenders.
pub trait RowPlugin {
    /// The plugin it stands for.
    fn plugin(&self) -> Plugin;
    /// Returns true if it limits the nodes whatever plugins the profile has.
    fn always(&self) -> bool {
        false
    }
    /// Returns true if the profile lets it reject nodes.
    fn is_asked(&self, profile: &Profile) -> bool {
        self.always() || profile.filters(self.plugin())
    }
    /// Returns its positions among the filters; several if it stands for several plugins.
    fn ranks(&self, profile: &Profile) -> Vec<Rank> {
        vec![profile.filter_rank(self.plugin())]
    }
    /// Returns the rejection of a node, if any.
    fn filter(&self, view: &View, program: &Program, row: u32) -> Option<Status>;
    /// Returns the reason of the plugin at this one of its ranks.
    fn filter_at(&self, _: Rank, view: &View, program: &Program, row: u32) -> Option<Status> {
        self.filter(view, program, row)
    }
    /// Called once after all filters, with the remaining rows and before any is scored.
    fn prepare(&self, _view: &View, _feasible: &Bits) {}
    /// Returns the weight of its score; zero if it does not score.
    fn weight(&self, profile: &Profile) -> i64 {
        profile.weight(self.plugin())
    }
    /// Normalised score 0..=100 of a node; `None` when the plugin does not score this pod.
    fn score(&self, view: &View, program: &Program, row: u32) -> Option<i64>;
}

/// Reason why no node was filtered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PreFilterRefusal {
    /// The cycle cannot run.
    Error(String),
    /// Held back by scheduling gates, or rejected by PreFilter, with this reason.
    PreFilter(Plugin, String),
    /// The program is older than the view's selectors (`View::is_current`): compile it again.
    Stale,
}

/// Result of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Nodes that pass all filters.
    pub feasible: usize,
    /// Greatest total.
    pub best: i32,
    /// Lowest row with that total.
    pub first: Option<u32>,
    /// Rows with that total.
    pub ties: usize,
    /// The PreFilter rejection.
    pub refusal: Option<PreFilterRefusal>,
}

/// Raw and normalised scores of one plugin, by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginScores {
    /// Raw.
    pub raw: Vec<i64>,
    /// Normalised.
    pub normalised: Vec<i64>,
}

/// Everything about one decision, for explanations and comparisons.
#[derive(Debug, Default)]
pub struct Detail {
    /// Rows that pass each column filter, in the order of the profile.
    pub passing: Vec<(Plugin, Bits)>,
    /// Rejections of row plugins, where no plugin before them rejects; sorted by row.
    pub rejected: Vec<(u32, Status)>,
    /// Scores by `Plugin as usize`; `None` where PreScore skipped or nothing was scored.
    pub scores: Vec<Option<PluginScores>>,
}

/// Scratch memory of one decider.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) filter: FilterScratch,
    pub(crate) soft: SoftSpread,
    pub(crate) pods: PodScore,
    /// Rows that pass all filters.
    pub feasible: Bits,
    /// Rows with the greatest total.
    pub ties: Bits,
    /// Totals by row, meaningful where feasible: after a decision with details, or after a call of
    /// `totals`.
    pub total: Vec<i32>,
    written: bool,
    fit: Vec<u8>,
    balance: Vec<u8>,
    shapes: shape::Shapes,
    column: Vec<f64>,
    pub(crate) layered: Option<Box<Layered>>,
    pub(crate) image_sums: Vec<i64>,
    pub(crate) images: Vec<(u32, i32)>,
}

impl Scratch {
    /// The tie set of the last decision, beginning at the `turn`-th of `turns` equal shares.
    ///
    /// Upstream breaks ties at random. Deciders that begin at shares of their own seldom choose the
    /// same node, and each choice is still one that upstream might make.
    pub fn ties_from(&self, turn: usize, turns: usize) -> impl Iterator<Item = u32> + '_ {
        let skip = self.ties.count() * (turn % turns.max(1)) / turns.max(1);
        self.ties.iter().skip(skip).chain(self.ties.iter().take(skip))
    }

    /// Returns the counts of results reused from earlier decisions, since the last call.
    pub fn take_handed(&mut self) -> Handed {
        std::mem::take(&mut self.shapes.handed)
    }

    /// Totals by row, meaningful where feasible, of the last decision, which was about this view
    /// and program. They are computed on demand.
    pub fn totals(&mut self, view: &View, program: &Program) -> &[i32] {
        if !std::mem::replace(&mut self.written, true) {
            let shapes = std::mem::take(&mut self.shapes);
            let shape = shapes.current().expect("totals are written where there is no shape");
            layered::write_totals(view, program, shape.scores.as_scores(), self);
            self.shapes = shapes;
        }
        &self.total
    }

    fn resize(&mut self, view: &View) {
        let rows = view.chunks.len() * CHUNK_ROWS;
        self.total.resize(rows, 0);
        self.fit.resize(rows, 0);
        self.balance.resize(rows, 0);
        self.column.resize(rows, 0.0);
        self.image_sums.resize(rows, 0);
    }
}

/// Decides for one pod.
pub fn decide(view: &View, program: &Program, scratch: &mut Scratch) -> Outcome {
    run(view, program, &[], scratch, (None, None))
}

/// As [`decide`], with plugins that filter single nodes: each sees the nodes that passed all
/// columns and the plugins before it.
pub fn decide_with(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
) -> Outcome {
    run(view, program, plugins, scratch, (None, None))
}

/// Like [`decide_with`], over the first nodes of the sample that pass all filters.
pub fn decide_sampled(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    sample: &mut NodeSample,
    scratch: &mut Scratch,
) -> Outcome {
    run(view, program, plugins, scratch, (None, Some(sample)))
}

/// Decides for one pod, with plugins that filter single nodes, keeping all details.
pub fn decide_in_detail(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
) -> (Outcome, Detail) {
    let mut detail = Detail::default();
    let outcome = run(view, program, plugins, scratch, (Some(&mut detail), None));
    (outcome, detail)
}

/// Returns the PreFilter rejection of the pod, if there is one.
#[must_use]
pub fn refusal(view: &View, program: &Program) -> Option<PreFilterRefusal> {
    if !view.is_current(program) {
        return Some(PreFilterRefusal::Stale);
    }
    if let Some(error) = &program.error {
        return Some(PreFilterRefusal::Error(error.clone()));
    }
    if !program.gates.is_empty() && view.profile.filters(Plugin::SchedulingGates) {
        // k8s: schedulinggates/scheduling_gates.go PreEnqueue
        let reason = format!("waiting for scheduling gates: [{}]", program.gates.join(" "));
        return Some(PreFilterRefusal::PreFilter(Plugin::SchedulingGates, reason));
    }
    let conflict = program.node_affinity.subset.as_ref().is_some_and(|names| names.is_empty());
    let reason = || "pod affinity terms conflict".to_owned();
    conflict.then(|| PreFilterRefusal::PreFilter(Plugin::NodeAffinity, reason()))
}

fn run(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
    (mut detail, sample): (Option<&mut Detail>, Option<&mut NodeSample>),
) -> Outcome {
    if let Some(refusal) = refusal(view, program) {
        scratch.feasible.reset(view.rows);
        return Outcome { refusal: Some(refusal), ..Outcome::default() };
    }
    scratch.resize(view);
    scratch.written = true;
    if detail.is_none() {
        shape::enter(view, program, scratch);
    } else {
        scratch.shapes.leave();
    }
    filter_all(view, program, plugins, scratch, detail.as_deref_mut());
    if let Some(sample) = sample {
        sample.take(&view.valid, view.rows, &mut scratch.feasible);
    }
    let feasible = scratch.feasible.count();
    if feasible == 0 {
        return Outcome::default();
    }
    plugins.iter().for_each(|plugin| plugin.prepare(view, &scratch.feasible));
    // A single feasible node is taken without being scored.
    // k8s: pkg/scheduler/schedule_one.go schedulePod
    if let Some(error) = &program.node_affinity.preferred_error
        && feasible > 1
        && view.profile.weight(Plugin::NodeAffinity) != 0
    {
        let refusal = Some(PreFilterRefusal::Error(error.clone()));
        return Outcome { feasible, refusal, ..Outcome::default() };
    }
    scratch.ties.reset(view.rows);
    let best = if detail.is_none() {
        let shapes = std::mem::take(&mut scratch.shapes);
        let best = match shapes.current() {
            Some(shape) => layered::score_all(view, program, shape.scores.as_scores(), scratch),
            None => {
                score_all(view, program, scratch, None);
                greatest(view, scratch)
            }
        };
        scratch.written = shapes.current().is_none();
        scratch.shapes = shapes;
        if score_rows(view, program, plugins, scratch) { greatest(view, scratch) } else { best }
    } else {
        score_all(view, program, scratch, detail);
        score_rows(view, program, plugins, scratch);
        greatest(view, scratch)
    };
    let first = scratch.ties.first();
    Outcome { feasible, best, first, ties: scratch.ties.count(), refusal: None }
}

fn filter_all(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
    detail: Option<&mut Detail>,
) {
    let mut mask = std::mem::take(&mut scratch.feasible);
    mask.copy_from(&view.valid, view.rows);
    if let Some(names) = &program.node_affinity.subset {
        filter::node::keep_named(view, names, &mut mask);
    }
    if let Some(detail) = detail {
        filter_in_detail(view, program, plugins, scratch, &mut mask, detail);
    } else {
        for plugin in COLUMN_FILTERS {
            match scratch.shapes.current() {
                Some(shape) if plugin == Plugin::NodeResourcesFit => mask.and(&shape.fits),
                _ => filter::apply(plugin, view, program, &mut scratch.filter, &mut mask),
            }
        }
        for plugin in plugins.iter().filter(|p| p.is_asked(&view.profile)) {
            let says = |row| plugin.filter(view, program, row);
            reject_rows(says, &mut mask, &mut |_, _| ());
        }
    }
    scratch.feasible = mask;
}

/// Runs every column filter over every node, and row plugins at their ranks among them, in the
/// order of the profile, so that a node is rejected by the plugin that upstream names.
// k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPlugins
fn filter_in_detail(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
    mask: &mut Bits,
    detail: &mut Detail,
) {
    for (rank, asked) in row::in_order(&view.profile, plugins) {
        match asked {
            RankedFilter::Column(plugin) => {
                let mut passing = view.valid.as_ref().clone();
                passing.grow(view.rows);
                filter::apply(plugin, view, program, &mut scratch.filter, &mut passing);
                mask.and(&passing);
                detail.passing.push((plugin, passing));
            }
            RankedFilter::Rows(plugin) => {
                let keep = &mut |row, status| detail.rejected.push((row, status));
                let says = |row| plugin.filter_at(rank, view, program, row);
                reject_rows(says, mask, keep);
            }
        }
    }
    detail.rejected.sort_by_key(|(row, _)| *row);
}

/// Removes the rows that one plugin rejects, a word of them at a time.
fn reject_rows(
    says: impl Fn(u32) -> Option<Status>,
    mask: &mut Bits,
    rejected: &mut dyn FnMut(u32, Status),
) {
    for (at, word) in mask.words_mut().iter_mut().enumerate() {
        let mut left = *word;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let row = at as u32 * WORD_ROWS as u32 + bit;
            if let Some(status) = says(row) {
                *word &= !(1 << bit);
                rejected(row, status);
            }
        }
    }
}

/// Adds the scores of row plugins; returns true if any of them scored.
fn score_rows(
    view: &View,
    program: &Program,
    plugins: &[&dyn RowPlugin],
    scratch: &mut Scratch,
) -> bool {
    let mut any = false;
    for plugin in plugins {
        let weight = plugin.weight(&view.profile);
        if weight == 0 {
            continue;
        }
        let feasible = scratch.feasible.clone();
        for row in feasible.iter() {
            if let Some(score) = plugin.score(view, program, row) {
                scratch.totals(view, program);
                // Extenders may return any score.
                let score = score.saturating_mul(weight).clamp(-SCORE_OF_ROW, SCORE_OF_ROW);
                let total = &mut scratch.total[row as usize];
                *total = total.saturating_add(score as i32);
                any = true;
            }
        }
    }
    any
}

/// Returns the greatest total, and marks the rows that reach it in `Scratch::ties`.
fn greatest(view: &View, scratch: &mut Scratch) -> i32 {
    scratch.ties.reset(view.rows);
    simd::arg_max(&scratch.total, scratch.feasible.words(), scratch.ties.words_mut())
}

/// Normalised columns in the order in which they are added.
pub(crate) const COLUMNS: [(Plugin, Normalise); 4] = [
    (Plugin::TaintToleration, Normalise::Reversed),
    (Plugin::NodeAffinity, Normalise::Default),
    (Plugin::PodTopologySpread, Normalise::Spread),
    (Plugin::InterPodAffinity, Normalise::Span),
];

fn score_all(
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    mut detail: Option<&mut Detail>,
) {
    if let Some(detail) = detail.as_deref_mut() {
        detail.scores.resize(PLUGINS, None);
    }
    let profile = &view.profile;
    let weight = |plugin| i32::try_from(profile.weight(plugin)).expect("validated weight");
    let w = utilisation(view, program, scratch);
    if weight(Plugin::ImageLocality) != 0 {
        let (sums, found) = (&mut scratch.image_sums, &mut scratch.images);
        node::images(view, program, sums, found);
        for (row, score) in &scratch.images {
            scratch.total[*row as usize] += score * weight(Plugin::ImageLocality);
        }
    }
    if let Some(detail) = detail.as_deref_mut() {
        record_plain(view, scratch, detail, w);
    }
    let mut base = 0;
    for (plugin, how) in COLUMNS {
        let weight = weight(plugin);
        if weight != 0 {
            let of = NormalisedPlugin { plugin, how, weight };
            base += column(view, program, scratch, of, detail.as_deref_mut());
        }
    }
    if base != 0 {
        simd::add_constant(base, &mut scratch.total);
    }
}

/// Fills the columns of utilisation and balance, and starts the totals with them; returns the
/// weights.
fn utilisation(view: &View, program: &Program, scratch: &mut Scratch) -> (i32, i32) {
    let profile = &view.profile;
    let weight = |plugin| i32::try_from(profile.weight(plugin)).expect("validated weight");
    let balance_weight = if resources::balance_skips(profile, program) {
        0
    } else {
        weight(Plugin::NodeResourcesBalancedAllocation)
    };
    let w = (weight(Plugin::NodeResourcesFit), balance_weight);
    numbers(view, program, scratch, w.0 != 0, w.1 != 0);
    simd::combine(&scratch.fit, &scratch.balance, w, 0, &mut scratch.total);
    w
}

/// Fills the columns of utilisation and balance.
fn numbers(view: &View, program: &Program, scratch: &mut Scratch, fit: bool, balance: bool) {
    let (score, plain) = (&program.requests.score, &program.requests.plain);
    let narrow = [score, plain].iter().all(|r| {
        (0..CPU_NARROW_MAX / 2).contains(&r.cpu_milli)
            && (0..BYTES_NARROW_MAX).contains(&r.mem_bytes)
    });
    let request = simd::ScoreRequest {
        cpu: score.cpu_milli as i32,
        mem: score.mem_bytes as f64,
        cpu_plain: plain.cpu_milli as i32,
        mem_plain: plain.mem_bytes as f64,
    };
    let fit_kernel = narrow && view.fit_is_default;
    let balance_kernel = narrow && view.balance_is_default;
    let words = scratch.feasible.words().chunks(CHUNK_ROWS / 64);
    for (at, (chunk, words)) in view.chunks.iter().zip(words).enumerate() {
        let rows = at * CHUNK_ROWS..(at + 1) * CHUNK_ROWS;
        if fit && fit_kernel {
            simd::least_allocated(chunk, request, words, &mut scratch.fit[rows.clone()]);
        }
        if balance && balance_kernel {
            simd::balanced(chunk, request, words, &mut scratch.balance[rows]);
        }
    }
    let by_row = |kernel: bool, row: u32| !kernel || view.wide_rows.get(row);
    if fit_kernel && balance_kernel && view.wide.is_empty() {
        return;
    }
    let fit_wanted = resources::fit_wanted(&view.profile, program);
    let balance_wanted = resources::balance_wanted(&view.profile, program);
    for row in scratch.feasible.iter() {
        let at = row as usize;
        if fit && by_row(fit_kernel, row) {
            scratch.fit[at] = resources::fit_score_of(view, &fit_wanted, row) as u8;
        }
        if balance && by_row(balance_kernel, row) {
            scratch.balance[at] = resources::balance_score_of(view, &balance_wanted, row) as u8;
        }
    }
}

/// A plugin with normalised scores, and its weight.
#[derive(Clone, Copy)]
pub(crate) struct NormalisedPlugin {
    pub(crate) plugin: Plugin,
    pub(crate) how: Normalise,
    pub(crate) weight: i32,
}

/// Adds one normalised plugin to the totals; returns the amount of every row.
pub(crate) fn column(
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    NormalisedPlugin { plugin, how, weight }: NormalisedPlugin,
    detail: Option<&mut Detail>,
) -> i32 {
    let mut column = std::mem::take(&mut scratch.column);
    let feasible = &scratch.feasible;
    let raw = match plugin {
        Plugin::TaintToleration => node::taints(view, program, &mut column),
        Plugin::NodeAffinity => {
            node::affinity(view, program, feasible, &mut scratch.filter.node, &mut column)
        }
        Plugin::PodTopologySpread => {
            scratch.soft.score(view, program, feasible, &mut scratch.filter.node, &mut column)
        }
        _ => scratch.pods.score(view, program, &mut column),
    };
    let before = detail.is_some().then(|| match raw {
        Raw::Same(s) => vec![s; column.len()],
        _ => column.iter().map(|s| *s as i64).collect(),
    });
    let mut same = 0;
    match raw {
        Raw::Skip => {}
        Raw::Same(s) => same = crate::score::normalise_one(s, how, s, s) as i32 * weight,
        Raw::Column
            if before.is_none()
                && (plugin != Plugin::PodTopologySpread || scratch.soft.ignored.is_empty()) =>
        {
            let words = feasible.words();
            let total = &mut scratch.total;
            same = crate::score::add_normalised(&column, how, words, weight, total);
        }
        Raw::Column => {
            let spread = plugin == Plugin::PodTopologySpread;
            let words = if spread { scratch.soft.scored.words() } else { feasible.words() };
            normalise(&mut column, how, words);
            if spread {
                scratch.soft.ignored.iter().for_each(|row| column[row as usize] = 0.0);
            }
            simd::add_weighted(&column, weight, &mut scratch.total);
        }
    }
    if let (Some(detail), Some(mut before)) = (detail, before)
        && raw != Raw::Skip
    {
        if plugin == Plugin::PodTopologySpread {
            scratch.soft.ignored.iter().for_each(|row| before[row as usize] = 0);
        }
        let normalised = match raw {
            Raw::Column => column.iter().map(|s| *s as i64).collect(),
            _ => vec![i64::from(same / weight); column.len()],
        };
        detail.scores[plugin as usize] = Some(PluginScores { raw: before, normalised });
    }
    scratch.column = column;
    same
}

/// Records plugins with raw scores equal to the normalised ones.
fn record_plain(view: &View, scratch: &Scratch, detail: &mut Detail, w: (i32, i32)) {
    let same = |column: Vec<i64>| Some(PluginScores { raw: column.clone(), normalised: column });
    let of = |column: &[u8]| same(column.iter().map(|s| i64::from(*s)).collect());
    if w.0 != 0 {
        detail.scores[Plugin::NodeResourcesFit as usize] = of(&scratch.fit);
    }
    if w.1 != 0 {
        detail.scores[Plugin::NodeResourcesBalancedAllocation as usize] = of(&scratch.balance);
    }
    let rows = scratch.total.len();
    if view.profile.weight(Plugin::ImageLocality) != 0 {
        let mut images = vec![0; rows];
        scratch.images.iter().for_each(|(row, s)| images[*row as usize] = i64::from(*s));
        detail.scores[Plugin::ImageLocality as usize] = same(images);
    }
    if view.profile.weight(Plugin::DynamicResources) != 0 {
        // Pods without claims score zero.
        detail.scores[Plugin::DynamicResources as usize] = same(vec![0; rows]);
    }
}

#[cfg(test)]
mod tests;
