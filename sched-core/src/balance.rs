//! Balance of the resources of a node.
//!
//! Input: used and allocatable amounts. Output: a score 0..=100, higher if the used parts are more
//! equal. Owner: pure functions. Bounds: two passes over the resources. Why below the snapshot: the
//! writer of a row keeps the balance of CPU and memory in a column.

use crate::chunk::Numbers;

/// Greatest score of a plugin for a node.
pub const SCORE_MAX: i64 = 100;

/// Balance of the fractions, 0..=100.
// k8s: balanced_allocation.go balancedResourceScore
pub(crate) fn balance(parts: impl Iterator<Item = f64> + Clone) -> i64 {
    let (count, total) = parts.clone().fold((0, 0.0), |(n, total), f| (n + 1, total + f));
    let std = match count {
        0 | 1 => 0.0,
        2 => {
            let mut two = parts;
            let (a, b) = (two.next().unwrap_or(0.0), two.next().unwrap_or(0.0));
            ((a - b) / 2.0).abs()
        }
        many => {
            let mean = total / f64::from(many);
            let sum = parts.fold(0.0, |sum, f| sum + (f - mean) * (f - mean));
            (sum / f64::from(many)).sqrt()
        }
    };
    ((1.0 - std) * SCORE_MAX as f64) as i64
}

/// Used part of an amount, at most one.
pub(crate) fn fraction(used: i64, all: i64) -> f64 {
    let fraction = used as f64 / all as f64;
    if fraction > 1.0 { 1.0 } else { fraction }
}

/// Balance of CPU and memory of a node without the pod: the column that the kernel compares with.
#[must_use]
pub fn balance_default(n: &Numbers) -> u8 {
    let parts = [(n.cpu_used, n.cpu), (n.mem_used, n.mem)];
    let parts = parts.iter().filter(|(_, all)| *all != 0);
    balance(parts.map(|(used, all)| fraction(*used, *all))) as u8
}
