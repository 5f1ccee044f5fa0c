//! Totals without columns: one number column, and a few masked constants over it.
//!
//! Input: view, program, the feasible rows, `Scratch::total` holding utilisation and balance.
//! Output: totals of the feasible rows, the greatest of each word, the greatest of all.
//! Owner: scratch of one decider. Bounds: `PARTS_MAX` layers a plugin; a plugin that needs more
//! (a topology key with many values) goes through `select::column` instead.

use super::node;
use super::parts::{PARTS_MAX, Parts};
use crate::config::Plugin;
use crate::program::Program;
use crate::select::{COLUMNS, Scratch, column};
use crate::simd::{self, Layer};
use crate::snapshot::view::View;

/// What a plugin says as parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It takes no part in the score.
    Skip,
    /// The parts are filled; `whole` when every feasible row is in one of them.
    Parts {
        /// Every feasible row is in a part.
        whole: bool,
    },
    /// Too many distinct scores.
    TooMany,
}

/// Plugins that speak in parts: those of `COLUMNS`, and the images.
const PLUGINS_MAX: usize = COLUMNS.len() + 1;

/// Scratch of the layered score.
#[derive(Debug, Default)]
pub(crate) struct Layered {
    parts: [Parts; PLUGINS_MAX],
    /// Greatest total of each word of rows.
    tops: Vec<i32>,
}

/// Adds everything but utilisation and balance; returns the greatest total and marks who has it.
pub(crate) fn score_all(view: &View, program: &Program, scratch: &mut Scratch) -> i32 {
    let mut layered = std::mem::take(&mut scratch.layered);
    let profile = &view.profile;
    let weight = |plugin| i32::try_from(profile.weight(plugin)).expect("validated weight");
    let mut base = 0;
    let mut used = [false; PLUGINS_MAX];
    for (at, (plugin, how)) in COLUMNS.into_iter().enumerate() {
        let weight = weight(plugin);
        if weight == 0 {
            continue;
        }
        let parts = &mut layered.parts[at];
        match find(plugin, view, program, scratch, parts) {
            Found::Skip => {}
            Found::TooMany => base += column(view, program, scratch, (plugin, how, weight), None),
            Found::Parts { whole } => {
                parts.settle(how, weight, &mut scratch.total);
                base += if whole { parts.level() } else { 0 };
                used[at] = true;
            }
        }
    }
    let image_weight = weight(Plugin::ImageLocality);
    if image_weight != 0 {
        let parts = &mut layered.parts[PLUGINS_MAX - 1];
        used[PLUGINS_MAX - 1] = images(view, program, scratch, image_weight, parts);
    }
    let best = total(&mut layered, &used, base, scratch);
    scratch.layered = layered;
    best
}

fn find(
    plugin: Plugin,
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    parts: &mut Parts,
) -> Found {
    let feasible = &scratch.feasible;
    match plugin {
        Plugin::TaintToleration => node::taint_parts(view, program, feasible, parts),
        Plugin::NodeAffinity => {
            node::affinity_parts(view, program, feasible, &mut scratch.node, parts)
        }
        Plugin::PodTopologySpread => {
            scratch.soft.parts(view, program, feasible, &mut scratch.node, parts)
        }
        _ => scratch.pods.parts(view, program, feasible, parts),
    }
}

/// Image scores as layers; false when they are in the totals already, or there are none.
fn images(
    view: &View,
    program: &Program,
    scratch: &mut Scratch,
    weight: i32,
    parts: &mut Parts,
) -> bool {
    match node::image_parts(view, program, &scratch.feasible, weight, parts) {
        Found::Skip => false,
        Found::Parts { .. } => true,
        Found::TooMany => {
            node::images(view, program, &mut scratch.image_sums, &mut scratch.images);
            for (row, score) in &scratch.images {
                scratch.total[*row as usize] += score * weight;
            }
            false
        }
    }
}

/// Adds the layers; the greatest total, and in `Scratch::ties` who has it.
fn total(
    layered: &mut Layered,
    used: &[bool; PLUGINS_MAX],
    base: i32,
    scratch: &mut Scratch,
) -> i32 {
    const NONE: Layer<'_> = Layer { words: &[], amount: 0 };
    let mut layers = [NONE; PLUGINS_MAX * PARTS_MAX];
    let mut len = 0;
    let found = layered.parts.iter().zip(used).filter(|(_, used)| **used);
    for layer in found.flat_map(|(parts, _)| parts.layers()) {
        layers[len] = layer;
        len += 1;
    }
    let words = scratch.feasible.words();
    layered.tops.clear();
    layered.tops.resize(words.len(), i32::MIN);
    simd::add_layers(&layers[..len], base, words, &mut scratch.total, &mut layered.tops);
    let best = layered.tops.iter().copied().fold(i32::MIN, i32::max);
    let ties = scratch.ties.words_mut();
    simd::equal_rows(&scratch.total, words, (&layered.tops, best), ties);
    best
}
