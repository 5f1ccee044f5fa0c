//! Scores by the node alone: soft taints, preferred labels, images.
//!
//! Input: view, program, feasible rows. Output: raw columns, or image scores by row.
//! Owner: pure functions. Bounds: distinct taints, preferred terms and images of the pod, each a
//! pass over the rows they concern.

use super::Raw;
use super::parts::{PartsOutcome, ScoreParts};
use crate::bits::{Bits, RowSet};
use crate::columns::taints::{Effect, NodeTaint};
use crate::filter::node::{self, NodeScratch};
use crate::program::Program;
use crate::snapshot::view::View;

/// Image score thresholds in bytes.
// k8s: imagelocality/image_locality.go minThreshold, maxContainerThreshold
const IMAGE_BYTES_MIN: i64 = 23 * 1024 * 1024;
const IMAGE_BYTES_MAX: i64 = 1000 * 1024 * 1024;

/// Rows of each soft taint that the pod does not tolerate.
// k8s: tainttoleration/taint_toleration.go Score
fn soft_taints<'a>(view: &'a View, program: &'a Program) -> impl Iterator<Item = &'a RowSet> {
    let tolerated = |taint: &NodeTaint| {
        let mut soft = program.tolerations.iter().filter(|t| t.is_soft());
        soft.any(|t| t.tolerates(taint))
    };
    let soft = view
        .sparse
        .taints
        .iter()
        .filter(|(t, rows)| t.effect == Effect::PreferNoSchedule && !rows.is_empty());
    soft.filter(move |(taint, _)| !tolerated(taint)).map(|(_, rows)| rows)
}

pub(crate) fn taints(view: &View, program: &Program, column: &mut [f64]) -> Raw {
    let mut any = false;
    for rows in soft_taints(view, program) {
        if !any {
            column.fill(0.0);
            any = true;
        }
        rows.for_each(|row| column[row as usize] += 1.0);
    }
    if any { Raw::Column } else { Raw::Same(0) }
}

/// As [`taints`], in parts.
pub(crate) fn taint_parts(
    view: &View,
    program: &Program,
    feasible: &Bits,
    parts: &mut ScoreParts,
) -> PartsOutcome {
    parts.begin(feasible, view.rows);
    for rows in soft_taints(view, program) {
        if !parts.add_set(rows, view.rows, 1.0) {
            return PartsOutcome::TooMany;
        }
    }
    PartsOutcome::Parts { whole: true }
}

// k8s: nodeaffinity/node_affinity.go Score
pub(crate) fn affinity(
    view: &View,
    program: &Program,
    feasible: &Bits,
    scratch: &mut NodeScratch,
    column: &mut [f64],
) -> Raw {
    let Some(terms) = &program.node_affinity.preferred else { return Raw::Skip };
    let mut any = false;
    for (weight, term) in terms {
        let mut rows = std::mem::take(&mut scratch.term);
        rows.copy_from(feasible, view.rows);
        node::matching(view, term, scratch, &mut rows);
        if !any && !rows.is_empty() {
            column.fill(0.0);
            any = true;
        }
        rows.iter().for_each(|row| column[row as usize] += *weight as f64);
        scratch.term = rows;
    }
    if any { Raw::Column } else { Raw::Same(0) }
}

/// As [`affinity`], in parts.
pub(crate) fn affinity_parts(
    view: &View,
    program: &Program,
    feasible: &Bits,
    scratch: &mut NodeScratch,
    parts: &mut ScoreParts,
) -> PartsOutcome {
    let Some(terms) = &program.node_affinity.preferred else { return PartsOutcome::Skip };
    parts.begin(feasible, view.rows);
    for (weight, term) in terms {
        let mut rows = std::mem::take(&mut scratch.term);
        rows.copy_from(feasible, view.rows);
        node::matching(view, term, scratch, &mut rows);
        let fits = parts.add(&rows, *weight as f64);
        scratch.term = rows;
        if !fits {
            return PartsOutcome::TooMany;
        }
    }
    PartsOutcome::Parts { whole: true }
}

/// Returns the pod's images that nodes have, each with its size for the score.
fn image_sizes<'a>(
    view: &'a View,
    program: &'a Program,
) -> impl Iterator<Item = (i64, &'a RowSet)> + Clone {
    let images = program.images.iter().filter_map(|name| view.sparse.images.get(name));
    images.map(|image| {
        let spread = image.rows.len() as f64 / view.nodes as f64;
        ((image.size_bytes as f64 * spread) as i64, &image.rows)
    })
}

/// Returns the score of a node with images of this total size.
fn image_score(sum: i64, program: &Program) -> i64 {
    let max = IMAGE_BYTES_MAX * program.image_containers;
    let sum = if sum < IMAGE_BYTES_MIN { IMAGE_BYTES_MIN } else { sum.min(max) };
    100 * (sum - IMAGE_BYTES_MIN) / (max - IMAGE_BYTES_MIN)
}

/// As [`images`], in parts.
pub(crate) fn image_parts(
    view: &View,
    program: &Program,
    feasible: &Bits,
    weight: i32,
    parts: &mut ScoreParts,
) -> PartsOutcome {
    let images = image_sizes(view, program);
    // All of them together stay below the threshold.
    if images.clone().map(|(size, _)| size).sum::<i64>() <= IMAGE_BYTES_MIN {
        return PartsOutcome::Skip;
    }
    parts.begin(feasible, view.rows);
    for (size, rows) in images {
        if !parts.add_set(rows, view.rows, size as f64) {
            return PartsOutcome::TooMany;
        }
    }
    parts.weigh(|sum| image_score(sum as i64, program) as i32 * weight);
    PartsOutcome::Parts { whole: false }
}

/// Image scores: `sums` must be zero and is zero again afterwards; `found` gets `(row, score)` of
/// every row that has some of the images.
pub(crate) fn images(
    view: &View,
    program: &Program,
    sums: &mut [i64],
    found: &mut Vec<(u32, i32)>,
) {
    found.clear();
    let images = image_sizes(view, program);
    // All of them together stay below the threshold.
    if images.clone().map(|(size, _)| size).sum::<i64>() <= IMAGE_BYTES_MIN {
        return;
    }
    let mut touched: Vec<u32> = Vec::new();
    for (size, rows) in images {
        rows.for_each(|row| {
            let sum = &mut sums[row as usize];
            if *sum == 0 {
                touched.push(row);
            }
            *sum += size;
        });
    }
    for row in touched {
        let sum = std::mem::take(&mut sums[row as usize]);
        let score = image_score(sum, program);
        if score != 0 {
            found.push((row, score as i32));
        }
    }
}
