//! Result of a simulation for one pod: its node, or the reason it has none.
//!
//! Input: the decisions of the simulation. Output: values for the report and for JSON. Pure.

use std::collections::BTreeMap;

use pintle_sched_core::remedy::Remedy;
use serde::Serialize;

/// A pod with its place.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// namespace/name.
    pub pod: String,
    /// The chosen node.
    pub node: String,
    /// Total score of that node.
    pub score: i32,
    /// Nodes that passed all filters.
    pub feasible: usize,
    /// Nodes with the same total.
    pub ties: usize,
    /// The node it was drained from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A pod that fits on no node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unplaced {
    /// namespace/name.
    pub pod: String,
    /// The scheduler's sentence.
    pub message: String,
    /// The smallest change that would make it fit.
    pub remedy: Option<Remedy>,
    /// Result of preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// The node it was drained from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Evictions that would make room.
#[derive(Clone, Debug, Serialize)]
pub struct Preemption {
    /// The node.
    pub node: String,
    /// The pods, most important first.
    pub victims: Vec<String>,
    /// Number of victims that violate a disruption budget.
    pub violations: usize,
}

/// One node in an explanation.
#[derive(Clone, Debug, Serialize)]
pub struct NodeAnswer {
    /// The node.
    pub node: String,
    /// Total, where feasible.
    pub total: Option<i32>,
    /// Raw, normalised and weighted score by plugin.
    pub scores: BTreeMap<&'static str, [i64; 3]>,
    /// The rejecting plugin.
    pub plugin: Option<&'static str>,
    /// Its reasons.
    pub reasons: Vec<String>,
}

/// The explanation of one pod.
#[derive(Clone, Debug, Serialize)]
pub struct PodAnswer {
    /// namespace/name.
    pub pod: String,
    /// One sentence.
    pub answer: String,
    /// Every node, best first, then the rejected ones.
    pub nodes: Vec<NodeAnswer>,
    /// The change that would make it fit, if it does not.
    pub remedy: Option<Remedy>,
}
