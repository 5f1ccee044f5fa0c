//! Results of extenders, as a plugin of rows.
//!
//! Input: names, reasons and scores. Output: statuses and scores by row. Owner: one attempt of one
//! pod.

use std::collections::{HashMap, HashSet};

use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::View;
use pintle_sched_core::{Plugin, Profile};

/// Nodes left, rejections of the others, and scores to add.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes {
    /// Nodes that every extender accepts.
    pub left: HashSet<String>,
    /// Rejected nodes: true if preemption would not help, and the reason.
    pub failed: HashMap<String, (bool, String)>,
    /// Scores to add to nodes, weights and scale included.
    pub scores: HashMap<String, i64>,
}

/// Results by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    left: HashMap<u32, i64>,
    failed: HashMap<u32, Status>,
}

impl Nodes {
    /// Converts to rows; deleted nodes are dropped.
    pub fn rows(&self, row_of: impl Fn(&str) -> Option<u32>) -> Rows {
        let score = |name: &str| self.scores.get(name).copied().unwrap_or(0);
        let left = self.left.iter().filter_map(|name| Some((row_of(name)?, score(name)))).collect();
        let failed = self.failed.iter().filter_map(|(name, (is_final, reason))| {
            let code =
                if *is_final { Code::UnschedulableAndUnresolvable } else { Code::Unschedulable };
            Some((row_of(name)?, Status { plugin: None, code, reasons: vec![reason.clone()] }))
        });
        Rows { left, failed: failed.collect() }
    }
}

impl RowPlugin for Rows {
    fn plugin(&self) -> Plugin {
        Plugin::Extender
    }

    fn weight(&self, _: &Profile) -> i64 {
        1
    }

    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        // A node rejected without a reason has upstream's default status, so that preemption is not
        // tried there either.
        // k8s: pkg/scheduler/framework/interface.go NewDefaultNodeToStatus
        let code = Code::UnschedulableAndUnresolvable;
        let silent = Status { plugin: None, code, reasons: Vec::new() };
        let is_left = self.left.contains_key(&row);
        (!is_left).then(|| self.failed.get(&row).cloned().unwrap_or(silent))
    }

    fn score(&self, _: &View, _: &Program, row: u32) -> Option<i64> {
        self.left.get(&row).copied()
    }
}
