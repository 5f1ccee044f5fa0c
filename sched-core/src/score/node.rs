//! Scores that look at the node alone: soft taints, preferred labels, images.
//!
//! Input: view, program, feasible rows. Output: raw columns, or image scores by row.
//! Owner: pure functions. Bounds: distinct taints, preferred terms and images of the pod, each a
//! pass over the rows they concern.

use super::Raw;
use crate::bits::Bits;
use crate::filter::node::{self, NodeScratch};
use crate::program::Program;
use crate::snapshot::view::{Effect, View};

/// Image score thresholds in bytes.
// k8s: imagelocality/image_locality.go minThreshold, maxContainerThreshold
const IMAGE_BYTES_MIN: i64 = 23 * 1024 * 1024;
const IMAGE_BYTES_MAX: i64 = 1000 * 1024 * 1024;

// k8s: tainttoleration/taint_toleration.go Score
pub(crate) fn taints(view: &View, program: &Program, column: &mut [f64]) -> Raw {
    let mut any = false;
    for (taint, rows) in view.taints.iter() {
        let tolerated = || {
            let soft = program.tolerations.iter().filter(|t| t.is_soft());
            soft.clone().any(|t| t.tolerates(taint))
        };
        if taint.effect != Effect::PreferNoSchedule || rows.is_empty() || tolerated() {
            continue;
        }
        if !any {
            column.fill(0.0);
            any = true;
        }
        rows.for_each(|row| column[row as usize] += 1.0);
    }
    if any { Raw::Column } else { Raw::Same(0) }
}

// k8s: nodeaffinity/node_affinity.go Score
pub(crate) fn affinity(
    view: &View,
    program: &Program,
    feasible: &Bits,
    scratch: &mut NodeScratch,
    column: &mut [f64],
) -> Raw {
    let Some(terms) = &program.preferred else { return Raw::Skip };
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

/// Image scores: `sums` must be zero and is zero again afterwards; `found` gets `(row, score)` of
/// every row that has some of the images.
pub(crate) fn images(
    view: &View,
    program: &Program,
    sums: &mut [i64],
    found: &mut Vec<(u32, i32)>,
) {
    found.clear();
    let scaled = |size: i64, nodes: usize| {
        let spread = nodes as f64 / view.nodes as f64;
        (size as f64 * spread) as i64
    };
    let images: Vec<_> = program
        .images
        .iter()
        .filter_map(|name| view.images.get(name))
        .map(|image| (scaled(image.size_bytes, image.rows.len()), &image.rows))
        .collect();
    // All of them together stay below what scores at all.
    if images.iter().map(|(size, _)| size).sum::<i64>() <= IMAGE_BYTES_MIN {
        return;
    }
    let mut touched: Vec<u32> = Vec::new();
    for (size, rows) in &images {
        rows.for_each(|row| {
            let sum = &mut sums[row as usize];
            if *sum == 0 {
                touched.push(row);
            }
            *sum += size;
        });
    }
    let max = IMAGE_BYTES_MAX * program.image_containers;
    for row in touched {
        let sum = std::mem::take(&mut sums[row as usize]);
        if sum == 0 {
            continue;
        }
        let sum = if sum < IMAGE_BYTES_MIN { IMAGE_BYTES_MIN } else { sum.min(max) };
        let score = 100 * (sum - IMAGE_BYTES_MIN) / (max - IMAGE_BYTES_MIN);
        if score != 0 {
            found.push((row, score as i32));
        }
    }
}
