//! Totals without columns: one column of what numbers say, and a few constants under masks over it.
//!
//! Input: view, program, the feasible rows, the scores of the program's request shape.
//! Output: the greatest total, and the rows that reach it.
//! Owner: scratch of one decider. Bounds: `PARTS_MAX` layers a plugin, and for one that counts pods
//! by node a table; a plugin that needs more (a topology key with many values) uses
//! `select::column` instead, and that column is added to the shape's scores.
//! Totals are 16 bits wide here: profiles with larger weights use columns.

use super::{COLUMNS, NormalisedPlugin, Scratch, column};
use crate::config::{Plugin, Profile};
use crate::program::Program;
use crate::score::parts::{PartsOutcome, ScoreParts};
use crate::score::{node, resources};
use crate::simd;
use crate::simd::narrow::{self, Scores, Sums};
use crate::snapshot::view::View;

/// Plugins that score in parts: those of `COLUMNS`, and images.
const PLUGINS_MAX: usize = COLUMNS.len() + 1;

/// Scratch of the layered score.
#[derive(Debug, Default)]
pub(crate) struct Layered {
    parts: [ScoreParts; PLUGINS_MAX],
    used: [bool; PLUGINS_MAX],
    /// Amount for every row.
    base: i32,
    /// Some plugin filled a column.
    columns: bool,
    /// The scores of the shape and all columns.
    scores: Vec<u16>,
}

/// Returns true if totals fit in 16 bits, given the highest score of each plugin.
pub(crate) fn is_narrow(profile: &Profile) -> bool {
    let own =
        [Plugin::NodeResourcesFit, Plugin::NodeResourcesBalancedAllocation, Plugin::ImageLocality];
    let all = own.into_iter().chain(COLUMNS.map(|(plugin, _)| plugin));
    let weights = all.map(|plugin| profile.weight(plugin));
    let most = weights.fold(0i64, |sum, weight| sum.saturating_add(weight));
    most <= i64::from(i16::MAX) / resources::SCORE_MAX
}

/// Scores all feasible rows; returns the greatest total and marks the rows that reach it in
/// `Scratch::ties`.
pub(crate) fn score_all(
    view: &View,
    program: &Program,
    shape: Scores<'_>,
    scratch: &mut Scratch,
) -> i32 {
    let mut layered = scratch.layered.take().unwrap_or_default();
    let profile = &view.profile;
    let weight = |plugin| i32::try_from(profile.weight(plugin)).expect("validated weight");
    (layered.base, layered.used, layered.columns) = (0, [false; PLUGINS_MAX], false);
    for (at, (plugin, how)) in COLUMNS.into_iter().enumerate() {
        let weight = weight(plugin);
        if weight == 0 {
            continue;
        }
        let parts = &mut layered.parts[at];
        match find(plugin, view, program, scratch, parts) {
            PartsOutcome::Skip => {}
            PartsOutcome::TooMany => {
                begin_columns(&mut layered.columns, scratch);
                let of = NormalisedPlugin { plugin, how, weight };
                layered.base += column(view, program, scratch, of, None);
            }
            PartsOutcome::Parts { whole } => {
                parts.settle(how, weight);
                layered.base += if whole { parts.level() } else { 0 };
                layered.used[at] = true;
            }
        }
    }
    let image_weight = weight(Plugin::ImageLocality);
    if image_weight != 0 {
        images(view, program, scratch, image_weight, &mut layered);
    }
    if layered.columns {
        layered.scores.resize(shape.rows(), 0);
        simd::add_narrow(shape, &scratch.total, &mut layered.scores);
    }
    let mut ties = std::mem::take(&mut scratch.ties);
    let best = narrow::greatest(&layered.sums(view, program, shape, scratch), ties.words_mut());
    scratch.ties = ties;
    let best = i32::from(best) + layered.base;
    scratch.layered = Some(layered);
    best
}

/// Writes the totals of the feasible rows, which `score_all` does not keep.
pub(crate) fn write_totals(
    view: &View,
    program: &Program,
    shape: Scores<'_>,
    scratch: &mut Scratch,
) {
    let mut total = std::mem::take(&mut scratch.total);
    let layered = scratch.layered.as_ref().expect("a decision was taken");
    let sums = layered.sums(view, program, shape, scratch);
    narrow::write(&sums, layered.base, &mut total);
    scratch.total = total;
}

fn begin_columns(begun: &mut bool, scratch: &mut Scratch) {
    if !*begun {
        scratch.total.fill(0);
        *begun = true;
    }
}

fn find(
    plugin: Plugin,
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    parts: &mut ScoreParts,
) -> PartsOutcome {
    let feasible = &scratch.feasible;
    match plugin {
        Plugin::TaintToleration => node::taint_parts(view, program, feasible, parts),
        Plugin::NodeAffinity => {
            node::affinity_parts(view, program, feasible, &mut scratch.filter.node, parts)
        }
        Plugin::PodTopologySpread => {
            scratch.soft.parts(view, program, feasible, &mut scratch.filter.node, parts)
        }
        _ => scratch.pods.parts(view, program, feasible, parts),
    }
}

/// Image scores as layers, or in the columns.
fn images(
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    weight: i32,
    layered: &mut Layered,
) {
    let at = PLUGINS_MAX - 1;
    match node::image_parts(view, program, &scratch.feasible, weight, &mut layered.parts[at]) {
        PartsOutcome::Skip => {}
        PartsOutcome::Parts { .. } => layered.used[at] = true,
        PartsOutcome::TooMany => {
            begin_columns(&mut layered.columns, scratch);
            node::images(view, program, &mut scratch.image_sums, &mut scratch.images);
            for (row, score) in &scratch.images {
                scratch.total[*row as usize] += score * weight;
            }
        }
    }
}

impl Layered {
    /// Returns everything that is added to `base`.
    fn sums<'a>(
        &'a self,
        view: &'a View,
        program: &Program,
        shape: Scores<'a>,
        scratch: &'a Scratch,
    ) -> Sums<'a> {
        let scores = if self.columns { Scores::Shorts(&self.scores) } else { shape };
        let mut sums = Sums::new(scores, scratch.feasible.words());
        for (at, parts) in self.parts.iter().enumerate().filter(|(at, _)| self.used[*at]) {
            parts.layers().for_each(|layer| sums.layers.push(layer));
            if parts.is_counted() {
                let (counts, rows) = match COLUMNS.get(at) {
                    Some((Plugin::PodTopologySpread, _)) => scratch.soft.counted(view, program),
                    _ => (scratch.pods.counts(view), &scratch.feasible),
                };
                sums.counted.push(parts.counted(counts, rows));
            }
        }
        sums
    }
}
