//! Report of the comparison: counts, and descriptions of the last disagreements.
//!
//! Input: verdicts. Output: counts, the file of `--report`, a line in the log for each
//! disagreement. Owner: the shadow. Bounds: `KEPT_MAX` disagreements are kept, each with the few
//! steps around it.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::Decision;

/// Disagreements kept.
const KEPT_MAX: usize = 256;

/// Kind of disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DecisionDifference {
    /// The node is not known here.
    NoSuchNode,
    /// The node is rejected here.
    Filter,
    /// Other nodes have a higher score here.
    Score,
    /// The message about a pod that fits no node.
    Sentence,
}

/// A decision that differs here.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disagreement {
    /// namespace/name.
    pub pod: String,
    /// About what.
    pub difference: DecisionDifference,
    /// The plugin that makes the difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<&'static str>,
    /// Decision or message of the other scheduler.
    pub theirs: String,
    /// Decision of this one.
    pub ours: String,
    /// Steps around it.
    pub nearby: Vec<String>,
}

/// Result of one comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum ShadowVerdict {
    /// The same in a state this many steps away.
    Same(usize),
    /// The other scheduler filtered only a sample of nodes, and its node fits.
    Sampled,
    /// Another decision.
    Other(Disagreement),
    /// Not compared, for this reason.
    LeftOut(&'static str),
}

/// Counts of one kind of decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecisionCounts {
    /// Equal in the state before it.
    pub exact: u64,
    /// Equal in a state nearby.
    pub nearby: u64,
    /// Not comparable, because only a sample of nodes was filtered.
    pub sampled: u64,
    /// Another decision.
    pub other: u64,
    /// Greatest distance of a nearby state, in steps.
    pub farthest: usize,
}

impl DecisionCounts {
    fn count(&mut self, verdict: &ShadowVerdict) {
        match verdict {
            ShadowVerdict::Same(0) => self.exact += 1,
            ShadowVerdict::Same(steps) => {
                self.nearby += 1;
                self.farthest = self.farthest.max(*steps);
            }
            ShadowVerdict::Sampled => self.sampled += 1,
            ShadowVerdict::Other(_) => self.other += 1,
            ShadowVerdict::LeftOut(_) => {}
        }
    }

    /// Returns the number of all decisions compared.
    pub fn all(&self) -> u64 {
        self.exact + self.nearby + self.sampled + self.other
    }
}

/// Result of the comparison.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComparisonReport {
    /// Bindings.
    pub bindings: DecisionCounts,
    /// Messages about pods that fit no node.
    pub refusals: DecisionCounts,
    /// Decisions that were not compared, by reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Disagreements by difference and plugin.
    pub by_plugin: BTreeMap<String, u64>,
    /// The last disagreements, the latest at the end.
    pub disagreements: VecDeque<Disagreement>,
}

impl ComparisonReport {
    pub(super) fn take(&mut self, decision: &Decision, verdict: ShadowVerdict) {
        if let ShadowVerdict::LeftOut(reason) = verdict {
            return *self.left_out.entry(reason).or_default() += 1;
        }
        match decision {
            Decision::Bound { .. } => self.bindings.count(&verdict),
            Decision::Refused { .. } => self.refusals.count(&verdict),
        }
        self.keep(verdict);
    }

    fn keep(&mut self, verdict: ShadowVerdict) {
        let ShadowVerdict::Other(found) = verdict else { return };
        tracing::warn!(
            pod = found.pod,
            plugin = found.plugin.unwrap_or("-"),
            "another decision than ours: {}; ours: {}",
            found.theirs,
            found.ours
        );
        let about = format!("{:?}", found.difference).to_lowercase();
        let by = found.plugin.map_or_else(|| about.clone(), |plugin| format!("{about}/{plugin}"));
        *self.by_plugin.entry(by).or_default() += 1;
        if self.disagreements.len() >= KEPT_MAX {
            self.disagreements.pop_front();
        }
        self.disagreements.push_back(found);
    }
}
