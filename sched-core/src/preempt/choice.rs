//! Chooses the best candidate node, and names the deciding rule.
//!
//! Input: a cluster, candidates in the order in which they were tried. Output: the index of one of
//! them, and the rule that ranks it above the best of the others. Owner: pure functions. Bounds:
//! the victims of the candidates.
// k8s: pkg/scheduler/framework/preemption/preemption.go pickOneNodeForPreemption

use std::cmp::Reverse;

use serde::Serialize;

use super::Candidate;
use crate::snapshot::Cluster;
use crate::snapshot::pods::NO_START;

/// Rules that rank candidates, the weightiest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RankingRule {
    /// Fewer victims that violate a disruption budget.
    Budgets,
    /// A lower priority of the most important victim.
    HighestPriority,
    /// A smaller sum of priorities, to each of which 2^31 is added: of victims of about the same
    /// priority fewer have the smaller sum.
    SumOfPriorities,
    /// Fewer victims: the additional ones have the lowest possible priority.
    NumberOfVictims,
    /// A later start of the victim that started first, among those of the highest priority.
    LatestStart,
    /// It was tried first, and all rules tie.
    Order,
}

impl RankingRule {
    /// Returns the reason in words, for the better candidate.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Budgets => "fewer victims against a disruption budget",
            Self::HighestPriority => "its most important victim has a lower priority",
            Self::SumOfPriorities => "a smaller sum of priorities, 2^31 added for each victim",
            Self::NumberOfVictims => "fewer victims",
            Self::LatestStart => "its most important victims started later",
            Self::Order => "it was tried first, and nothing else",
        }
    }
}

/// Keys of upstream's order of preference; the lowest is the best.
type Merits = (usize, i32, i64, usize, Reverse<i64>);

fn merits(cluster: &Cluster, candidate: &Candidate) -> Merits {
    let pods = candidate.victims.iter().map(|id| cluster.pods.get(*id));
    let highest = pods.clone().map(|p| p.priority).max().unwrap_or(i32::MIN);
    let sum: i64 = pods.clone().map(|p| i64::from(p.priority) + i64::from(i32::MAX) + 1).sum();
    let start = pods.filter(|p| p.priority == highest).map(|p| p.start_ns).min();
    let latest = Reverse(start.unwrap_or(NO_START));
    let first = candidate.victims.first().map_or(i32::MIN, |id| cluster.pods.get(*id).priority);
    (candidate.violations, first, sum, candidate.victims.len(), latest)
}

/// Returns the best candidate: fewest budget violations, lowest highest priority, smallest sum of
/// priorities, fewest victims, latest start of the most important ones, first.
#[must_use]
pub fn choose(cluster: &Cluster, candidates: &[Candidate]) -> Option<usize> {
    (0..candidates.len()).min_by_key(|at| merits(cluster, &candidates[*at]))
}

/// Returns the second-best candidate, and the first rule that ranks the chosen one above it; `None`
/// if there is only one.
#[must_use]
pub fn decided_by(
    cluster: &Cluster,
    candidates: &[Candidate],
    chosen: usize,
) -> Option<(RankingRule, usize)> {
    let of = |at: usize| merits(cluster, &candidates[at]);
    let second = (0..candidates.len()).filter(|at| *at != chosen).min_by_key(|at| of(*at))?;
    let (best, other) = (of(chosen), of(second));
    let rules = [
        (best.0 != other.0, RankingRule::Budgets),
        (best.1 != other.1, RankingRule::HighestPriority),
        (best.2 != other.2, RankingRule::SumOfPriorities),
        (best.3 != other.3, RankingRule::NumberOfVictims),
        (best.4 != other.4, RankingRule::LatestStart),
    ];
    let first = rules.into_iter().find(|(differs, _)| *differs);
    Some((first.map_or(RankingRule::Order, |(_, rule)| rule), second))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Profile;
    use crate::snapshot::tests::{node_with, pod_with};

    /// A victim: its priority and the second in which it started.
    type Victim = (i32, u32);
    /// A node: the number of violated budgets, and the victims.
    type Found = (usize, &'static [Victim]);

    #[test]
    fn each_ranking_rule_decides_only_when_earlier_rules_tie() {
        // the rule, the better one and the other
        let table: [(RankingRule, Found, Found); 6] = [
            (RankingRule::Budgets, (0, &[(9, 1), (9, 1)]), (1, &[(1, 5)])),
            (RankingRule::HighestPriority, (1, &[(3, 1), (3, 1)]), (1, &[(4, 5)])),
            (RankingRule::SumOfPriorities, (0, &[(4, 1), (2, 1)]), (0, &[(4, 5), (3, 5)])),
            (RankingRule::NumberOfVictims, (0, &[(4, 1)]), (0, &[(4, 5), (i32::MIN, 5)])),
            (RankingRule::LatestStart, (0, &[(4, 3), (1, 1)]), (0, &[(4, 2), (1, 5)])),
            (RankingRule::Order, (0, &[(4, 3), (1, 1)]), (0, &[(4, 3), (1, 5)])),
        ];
        for (rule, better, other) in table {
            for is_first in [true, false] {
                let mut cluster = Cluster::new(Profile::default());
                let mut candidate = |(violations, victims): Found, node: &str| {
                    cluster.set_node(&node_with(node, |_| ())).expect("a node");
                    let place = |(at, (priority, start)): (usize, &Victim)| {
                        let pod = pod_with(&format!("{node}-{at}"), |pod| {
                            pod["spec"]["priority"] = json!(priority);
                            let start = format!("2026-01-01T00:00:{start:02}Z");
                            pod["status"] = json!({"phase": "Running", "startTime": start});
                        });
                        cluster.assume(&pod, node).expect("room")
                    };
                    let victims = victims.iter().enumerate().map(place).collect();
                    Candidate { row: cluster.row(node).expect("a node"), victims, violations }
                };
                let (better, other) = (candidate(better, "better"), candidate(other, "other"));
                let all = if is_first { [better, other] } else { [other, better] };
                // Whichever was tried first, if no other rule decides.
                let wanted = usize::from(!is_first && rule != RankingRule::Order);
                assert_eq!(choose(&cluster, &all), Some(wanted), "{rule:?}");
                let found = decided_by(&cluster, &all, wanted);
                assert_eq!(found, Some((rule, 1 - wanted)), "{rule:?}");
                assert_eq!(decided_by(&cluster, &all[wanted..=wanted], 0), None);
            }
        }
    }

    #[test]
    fn runner_up_is_the_first_of_equal_candidates() {
        let mut cluster = Cluster::new(Profile::default());
        let mut candidate = |violations| {
            let node = format!("n{}", cluster.view().node_count());
            cluster.set_node(&node_with(&node, |_| ())).expect("a node");
            let victim = cluster.assume(&pod_with(&node, |_| ()), &node).expect("room");
            let row = cluster.row(&node).expect("a node");
            Candidate { row, victims: vec![victim], violations }
        };
        let all = [2, 1, 0, 1].map(&mut candidate);
        let chosen = choose(&cluster, &all).expect("some");
        assert_eq!(
            (chosen, decided_by(&cluster, &all, chosen)),
            (2, Some((RankingRule::Budgets, 1)))
        );
    }
}
