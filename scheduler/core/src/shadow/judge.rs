//! Compares one decision of the other scheduler with ours.
//!
//! Input: the pod as it was before, the decision. Output: a verdict in the report. A binding is the
//! same decision if its node is among those with our highest score; a rejection if every character
//! of its message is ours. Owner: the shadow. Bounds: see `nearby`.

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::object::key_of;
use pintle_sched_core::select::sample_size;
use pintle_sched_core::{Plugin, explain};

use super::nearby;
use super::report::{DecisionDifference, Disagreement, ShadowVerdict};
use super::{Decision, Shadow};
use crate::cache::ClusterCache;
use crate::diagnosis::{Asking, PodEvaluator};
use crate::pod_fields::has_claims;

/// States tried for a message: each takes far longer than one for a node.
const SENTENCE_TRIES: usize = 160;
/// States tried for a node.
const NODE_TRIES: usize = 1600;

/// Minimum of upstream's adaptive percentage.
// k8s: pkg/scheduler/schedule_one.go minFeasibleNodesPercentageToFind
const PERCENT_MIN: u32 = 5;

impl Shadow {
    /// Compares a decision.
    pub(super) fn judge(&mut self, decision: &Decision) -> ShadowVerdict {
        let (Decision::Bound { before, .. } | Decision::Refused { before, .. }) = decision;
        if has_claims(before) {
            return ShadowVerdict::LeftOut("volumes or resource claims");
        }
        let asking = match Asking::new(before, &mut self.cache) {
            Ok(asking) => asking,
            Err(error) => {
                tracing::debug!(pod = name(before), %error, "a pod cannot be compared");
                return ShadowVerdict::LeftOut("unreadable");
            }
        };
        match decision {
            Decision::Bound { node, .. } => self.judge_bound(&asking, node),
            Decision::Refused { said, .. } => self.judge_refused(&asking, said),
        }
    }

    fn judge_bound(&mut self, asking: &Asking, node: &str) -> ShadowVerdict {
        let enough = enough(self.followed.percentage, self.cache.cluster.view().node_count());
        let outcome = self.evaluator.decide(&mut self.cache, asking);
        let sampled = outcome.feasible > enough;
        let near = self.nearby(asking.spec.key);
        let evaluator = &mut self.evaluator;
        let found = near
            .find(&mut self.cache, NODE_TRIES, |cache| is_choice(evaluator, cache, asking, node));
        if let Some(distance) = found {
            return ShadowVerdict::Same(distance);
        }
        let mut disagreement = self.differs(asking, node);
        let scored = disagreement.difference == DecisionDifference::Score;
        disagreement.nearby = near.lines(&self.cache);
        if sampled && scored { ShadowVerdict::Sampled } else { ShadowVerdict::Other(disagreement) }
    }

    fn judge_refused(&mut self, asking: &Asking, said: &str) -> ShadowVerdict {
        let near = self.nearby(asking.spec.key);
        let evaluator = &mut self.evaluator;
        let found = near.find(&mut self.cache, SENTENCE_TRIES, |cache| {
            evaluator.diagnose(cache, asking).is_some_and(|d| d.message == said)
        });
        if let Some(distance) = found {
            return ShadowVerdict::Same(distance);
        }
        let ours = self.evaluator.diagnose(&mut self.cache, asking);
        ShadowVerdict::Other(Disagreement {
            pod: name(&asking.pod),
            difference: DecisionDifference::Sentence,
            plugin: None,
            theirs: said.to_owned(),
            ours: ours.map_or_else(|| "it fits".to_owned(), |d| d.message),
            nearby: near.lines(&self.cache),
        })
    }

    /// Returns the reason that the other scheduler's node is not ours.
    fn differs(&mut self, asking: &Asking, node: &str) -> Disagreement {
        let (outcome, detail) = self.evaluator.decide_in_detail(&mut self.cache, asking);
        let cluster = &self.cache.cluster;
        let view = cluster.view();
        let scratch = &mut self.evaluator.scratch;
        let ours = outcome.first.map_or("no node".to_owned(), |row| cluster.node_name(row).into());
        let mut found = Disagreement {
            pod: name(&asking.pod),
            difference: DecisionDifference::NoSuchNode,
            plugin: None,
            theirs: node.to_owned(),
            ours,
            nearby: Vec::new(),
        };
        let Some(row) = cluster.row(node) else { return found };
        if let Some(first) = outcome.first.filter(|_| scratch.feasible.get(row)) {
            found.difference = DecisionDifference::Score;
            let (theirs, best) = (scratch.total[row as usize], outcome.best);
            // The plugin that sees the greatest advantage of our node.
            let advantage = |plugin: &Plugin| {
                let scores = detail.scores.get(*plugin as usize)?.as_ref()?;
                let score = |row: u32| scores.normalised[row as usize];
                Some((score(first) - score(row)) * view.profile().weight(*plugin))
            };
            let all = Plugin::ALL.into_iter();
            let most = all.filter_map(|p| Some((advantage(&p)?, p))).max_by_key(|(a, _)| *a);
            found.plugin = most.map(|(_, plugin)| plugin.name());
            found.theirs = format!("{node} with a score of {theirs}");
            found.ours = format!("{} with a score of {best}", found.ours);
            if let Some(nominee) = self.cache.nomination(asking.spec.key) {
                found.ours.push_str(&format!("; {} is kept for it", nominee.node));
            }
            return found;
        }
        found.difference = DecisionDifference::Filter;
        let statuses = match outcome.refusal {
            Some(_) => Vec::new(),
            None => explain::statuses(cluster, &asking.program, &detail, scratch),
        };
        if let Some((_, status)) = statuses.iter().find(|(at, _)| *at == row) {
            found.plugin = status.plugin.map(Plugin::name);
            found.ours = format!("{}; {node}: {}", found.ours, status.reasons.join(", "));
        }
        found
    }

    fn nearby(&mut self, asking: pintle_sched_core::intern::Str) -> nearby::Nearby {
        // The first is the decision itself.
        let held = self.held.values().skip(1).map(|(_, held)| held);
        nearby::Nearby::new(&mut self.cache, &self.past, held, asking)
    }
}

/// Could this scheduler choose the node?
fn is_choice(
    evaluator: &mut PodEvaluator,
    cache: &mut ClusterCache,
    asking: &Asking,
    node: &str,
) -> bool {
    let Some(row) = cache.cluster.row(node) else { return false };
    let outcome = evaluator.decide(cache, asking);
    if outcome.feasible == 0 || outcome.refusal.is_some() {
        return false;
    }
    // k8s: pkg/scheduler/schedule_one.go evaluateNominatedNode
    let kept = cache.nomination(asking.spec.key).and_then(|n| cache.cluster.row(&n.node));
    match kept.filter(|kept| evaluator.scratch.feasible.get(*kept)) {
        Some(kept) => kept == row,
        None => evaluator.scratch.ties.get(row),
    }
}

/// Number of feasible nodes after which upstream stops filtering.
// k8s: pkg/scheduler/schedule_one.go numFeasibleNodesToFind
fn enough(percentage: i32, nodes: usize) -> usize {
    let own_choice = || 50u32.saturating_sub(u32::try_from(nodes / 125).unwrap_or(u32::MAX));
    match u32::try_from(percentage).unwrap_or(0) {
        0 => sample_size(nodes, own_choice().max(PERCENT_MIN)),
        given => sample_size(nodes, given),
    }
}

fn name(pod: &Pod) -> String {
    key_of(pod).as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_clusters_are_sampled() {
        for (percentage, nodes, want) in
            [(0, 99, 99), (0, 100, 100), (0, 500, 230), (0, 10_000, 500), (100, 500, 500)]
        {
            assert_eq!(enough(percentage, nodes), want, "{percentage} {nodes}");
        }
    }
}
