//! Preemption dry run: victims on each node, and the best node.
//!
//! Input: a cluster, the compiled pod that found no place, disruption budgets. Output: candidates
//! with their victims, the statuses of nodes where nothing helps, the choice.
//! Owner: pure functions. Bounds: the constraints of the pod, then potential nodes and the pods on
//! them, no more candidates than the profile asks for, and what the attempt may spend; nothing is
//! evicted.
//! Why on the same columns: removing a pod from one node changes that node's numbers and the counts
//! of its own domains only, which a small overlay holds.
// k8s: pkg/scheduler/framework/preemption/preemption.go, plugins/defaultpreemption/

mod choice;
mod disruption;
mod stakes;
mod trial;
pub mod units;

use k8s_openapi::api::core::v1::Pod;

pub use self::choice::{RankingRule, choose, decided_by};
pub use self::disruption::Budget;
use self::disruption::Guards;
use self::stakes::Stakes;
use self::trial::{Trial, TrialSearch, TrialStop};
use crate::attempt_budget::{AttemptBudget, Exhausted};
use crate::bits::Bits;
use crate::config::{Plugin, Profile, Rank};
use crate::filter;
use crate::filter::status::{Code, PassingParts, Status};
use crate::program::Program;
use crate::select::Scratch;
use crate::snapshot::Cluster;
use crate::snapshot::pods::PodId;
use crate::snapshot::view::View;

/// Label of budget steps spent on the search.
const PURPOSE: &str = "looking for preemption victims";

/// A node on which the pod fits after evictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub row: u32,
    /// Pods to evict, most important first.
    pub victims: Vec<PodId>,
    /// Number of victims that violate a budget.
    pub violations: usize,
}

/// Result of the dry run over all potential nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Reason that the pod may not preempt at all.
    pub ineligible: Option<String>,
    /// Nodes where other pods may be the obstacle.
    pub potential: Vec<u32>,
    /// Nodes where evictions help, in the order in which they were tried.
    pub candidates: Vec<Candidate>,
    /// Nodes where they do not, with the reason.
    pub rejected: Vec<(u32, Status)>,
    /// Nodes that need no victims in the dry run, although a filter rejected them that it does not
    /// repeat.
    pub needless: Vec<u32>,
    /// Index of the best candidate.
    pub chosen: Option<usize>,
}

impl DryRun {
    /// Returns the error, if there is no candidate because of it.
    // k8s: preemption.go DryRunPreemption
    #[must_use]
    pub fn mistake(&self, cluster: &Cluster) -> Option<String> {
        let one = |row: &u32| {
            format!("expected at least one victim pod on node {:?}", cluster.node_name(*row))
        };
        let all: Vec<String> = self.needless.iter().map(one).collect();
        match &all[..] {
            _ if !self.candidates.is_empty() => None,
            [] => None,
            [only] => Some(only.clone()),
            several => Some(format!("[{}]", several.join(", "))),
        }
    }
}

/// Reason for a node that preemption cannot help.
pub const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
/// Reason for a node without pods of lower priority.
pub const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// Runs the dry run from the first potential node. `statuses` are those of the failed decision.
#[must_use]
pub fn dry_run(
    cluster: &Cluster,
    pod: &Pod,
    program: &Program,
    statuses: &[(u32, Status)],
    budgets: &[Budget],
    scratch: &mut Scratch,
) -> DryRun {
    let spent = &AttemptBudget::unlimited();
    let trials = Trials { budgets, offset: 0, expected: &[], without: &|_, _, _, _| None, spent };
    dry_run_from(cluster, pod, program, statuses, &trials, scratch)
}

/// Returns the rejection of a row by row plugins, without the pods removed, and only by plugins of
/// lower rank than the given one.
pub type Without<'a> = dyn Fn(&Cluster, u32, &[PodId], Rank) -> Option<Status> + 'a;

/// Parameters of the dry run.
#[derive(Clone, Copy)]
pub struct Trials<'a> {
    /// Disruption budgets.
    pub budgets: &'a [Budget],
    /// The potential node to begin with.
    pub offset: usize,
    /// Nominated pods that are counted: a node must keep room for them as well.
    pub expected: &'a [PodId],
    /// Filter of the row plugins.
    pub without: &'a Without<'a>,
    /// Budget of the attempt: a search that exceeds it finds no candidate, and reports that in
    /// [`DryRun::ineligible`].
    pub spent: &'a AttemptBudget,
}

impl std::fmt::Debug for Trials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trials").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// Returns the number of sufficient candidates among so many potential nodes.
// k8s: defaultpreemption/default_preemption.go calculateNumCandidates
#[must_use]
pub fn candidates_wanted(profile: &Profile, potential: usize) -> usize {
    let not_negative = |n: i32| usize::try_from(n).unwrap_or(0);
    let share = potential * not_negative(profile.preemption_candidates.percent) / 100;
    share.max(not_negative(profile.preemption_candidates.min)).min(potential)
}

/// Runs the dry run over the potential nodes, starting with the `offset`-th, until there are as
/// many candidates as the profile asks for and one of them violates no budget. Upstream starts at a
/// random node, so that clusters larger than the limit do not always evict from the same nodes.
// k8s: preemption.go DryRunPreemption
#[must_use]
pub fn dry_run_from(
    cluster: &Cluster,
    pod: &Pod,
    program: &Program,
    statuses: &[(u32, Status)],
    trials: &Trials<'_>,
    scratch: &mut Scratch,
) -> DryRun {
    let spec = pod.spec.as_ref();
    if spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        let ineligible = Some("not eligible due to preemptionPolicy=Never.".to_owned());
        return DryRun { ineligible, ..DryRun::default() };
    }
    let priority = spec.and_then(|s| s.priority).unwrap_or(0);
    let potential: Vec<u32> = statuses
        .iter()
        .filter(|(_, s)| s.code == Code::Unschedulable)
        .map(|(row, _)| *row)
        .collect();
    if potential.is_empty() {
        return DryRun::default();
    }
    let fixed = Fixed::of(cluster.view(), program, scratch);
    let search =
        TrialSearch { cluster, program, trials, fixed: &fixed, spread: &scratch.filter.spread };
    let mut found = DryRun { potential, ..DryRun::default() };
    if let Err(exhausted) = try_nodes(&search, priority, &mut found) {
        let (potential, ineligible) = (found.potential, Some(exhausted.to_string()));
        return DryRun { ineligible, potential, ..DryRun::default() };
    }
    found.chosen = choose(cluster, &found.candidates);
    found
}

/// Tries the potential nodes, one after another.
fn try_nodes(search: &TrialSearch<'_>, priority: i32, found: &mut DryRun) -> Result<(), Exhausted> {
    let TrialSearch { cluster, program, trials, spread, .. } = *search;
    let wanted = candidates_wanted(&cluster.view().profile, found.potential.len());
    let (skipped, first) = found.potential.split_at(trials.offset % found.potential.len().max(1));
    let mut stakes = Stakes::of(cluster, program, &spread.domains, trials.spent)?;
    let mut guards = Guards::new(cluster, trials.budgets, trials.spent);
    let mut harmless = false;
    for row in first.iter().chain(skipped).copied() {
        let mut trial = Trial::new(search, &mut stakes, row)?;
        match trial.victims(priority, &mut guards) {
            Ok(candidate) if candidate.victims.is_empty() => found.needless.push(row),
            Ok(candidate) => {
                harmless |= candidate.violations == 0;
                found.candidates.push(candidate);
                if harmless && found.candidates.len() >= wanted {
                    break;
                }
            }
            Err(TrialStop::Rejected(status)) => found.rejected.push((row, status)),
            Err(TrialStop::Exhausted(exhausted)) => return Err(exhausted),
        }
    }
    Ok(())
}

/// Filters with results that do not depend on the victims.
const FIXED: [Plugin; 5] = [
    Plugin::NodeUnschedulable,
    Plugin::NodeName,
    Plugin::TaintToleration,
    Plugin::NodeAffinity,
    Plugin::NodeDeclaredFeatures,
];

/// Results that are the same for all nodes.
struct Fixed {
    /// Column filters in the order of the profile; with the passing rows, for filters that do not
    /// depend on the victims.
    columns: Vec<(Plugin, Option<Bits>)>,
    passing: PassingParts,
}

impl Fixed {
    fn of(view: &View, program: &Program, scratch: &mut Scratch) -> Self {
        let passing = crate::explain::prepare(view, program, scratch);
        let on = filter::in_order(&view.profile).into_iter();
        let columns = on.filter(|plugin| view.profile.filters(*plugin)).map(|plugin| {
            let passing = FIXED.contains(&plugin).then(|| {
                let mut passing = view.valid.as_ref().clone();
                passing.grow(view.rows);
                filter::apply(plugin, view, program, &mut scratch.filter, &mut passing);
                passing
            });
            (plugin, passing)
        });
        Self { columns: columns.collect(), passing }
    }
}

/// Returns the message of a preemption that found no candidate.
// k8s: preemption.go Preempt: a FitError over the dry run's statuses
#[must_use]
pub fn summary(nodes: usize, run: &DryRun) -> String {
    if let Some(reason) = &run.ineligible {
        return format!("preemption: {reason}");
    }
    let not_helpful = Status {
        plugin: None,
        code: Code::UnschedulableAndUnresolvable,
        reasons: vec![NOT_HELPFUL.to_owned()],
    };
    let hopeless = nodes - run.potential.len().min(nodes);
    let all = run.rejected.iter().map(|(_, s)| s);
    let all = all.chain(std::iter::repeat_n(&not_helpful, hopeless));
    format!("preemption: {}", crate::explain::summary(nodes, all))
}

#[cfg(test)]
mod tests;
