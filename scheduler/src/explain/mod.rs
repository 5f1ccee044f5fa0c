//! Why a pod of a live cluster is where it is, or has no place: which nodes reject it and why, which
//! of them it misses least, what would make it fit, what preemption would do.
//!
//! Input: a mirror of the cluster, the pod. Output: an [`Explanation`], which is JSON as it is, and
//! text by its `Display`. Owner: pure; the mirror is as before at the end. Bounds: `FITTING_MAX`
//! nodes that fit, `NEAREST_MAX` near misses, `NAMED_MAX` names of a group.

pub mod command;
mod text;

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api::informer::ObjectKey;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::remedy::{self, Remedy};
use pintle_sched_core::select::Refusal;
use pintle_sched_core::snapshot::DeltaError;
use serde::Serialize;

use crate::diagnosis::{Asking, Thinker};
use crate::mirror::{Aside, Mirror, Step, scheduler_name};

/// Nodes that fit and are named, the best first.
const FITTING_MAX: usize = 10;
/// Near misses.
const NEAREST_MAX: usize = 5;
/// Names of nodes that are rejected for the same reason.
const NAMED_MAX: usize = 5;

/// Nodes that are rejected for the same reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// In upstream's words.
    pub reasons: Vec<String>,
    /// The plugin that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<&'static str>,
    /// Whether room could be made by evictions, as far as this plugin is concerned.
    pub preemption_may_help: bool,
    /// How many.
    pub count: usize,
    /// Some of them.
    pub nodes: Vec<String>,
}

/// A node that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitting {
    /// The node.
    pub node: String,
    /// Its total score.
    pub score: i32,
}

/// What preemption would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The node.
    pub node: String,
    /// Who would go, the most important first.
    pub victims: Vec<String>,
    /// How many of them against a disruption budget.
    pub violations: usize,
    /// On how many nodes evictions would help.
    pub candidates: usize,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// namespace/name.
    pub pod: String,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<String>,
    /// The node that is kept for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// All nodes.
    pub nodes: usize,
    /// Nodes that fit.
    pub feasible: usize,
    /// How many of those have the highest score.
    pub ties: usize,
    /// The best of them.
    pub fitting: Vec<Fitting>,
    /// What the scheduler says of a pod that fits nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why nodes are rejected, the most frequent reason first.
    pub rejected: Vec<Group>,
    /// What each of the nearest nodes lacks; the first is the smallest change of all.
    pub nearest: Vec<Remedy>,
    /// What preemption would do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Eviction>,
    /// Why it would do nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_preemption: Option<String>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

/// Explains a pod as the API server has it. One that has a node is looked at without it there.
///
/// # Errors
/// When the pod cannot be read.
pub fn explain(
    mirror: &mut Mirror,
    thinker: &mut Thinker,
    pod: &Pod,
) -> Result<Explanation, DeltaError> {
    let asking = Asking::new(pod, mirror)?;
    let node = crate::mirror::node_name(pod);
    let taken = node.map(|node| Step::Gone {
        pod: asking.spec.key,
        last: Some(Rc::clone(&asking.spec)),
        node: node.into(),
    });
    let taken = taken.filter(|_| mirror.cluster.pods().find(asking.spec.key).is_some());
    let mut aside = Aside::new();
    taken.iter().for_each(|step| mirror.turn(step, true, &mut aside));
    // What its volumes leave it was read beside itself.
    let asking = match taken {
        Some(_) => Asking::with_spec(Rc::clone(&asking.pod), &asking.spec, mirror),
        None => Ok(asking),
    };
    let answer = asking.map(|asking| look(mirror, thinker, &asking));
    taken.iter().for_each(|step| mirror.turn(step, false, &mut aside));
    let mut answer = answer?;
    answer.pod = ObjectKey::of(pod).as_str().to_owned();
    answer.bound_to = node.map(str::to_owned);
    if mirror.profile_number(pod).is_none() {
        let (name, first) = (scheduler_name(pod), &mirror.profile(0).scheduler_name);
        answer.notes.push(format!(
            "it asks for the scheduler {name:?}, and no profile is named so: nobody here decides it, \
             and {first:?} would say this"
        ));
    }
    Ok(answer)
}

fn look(mirror: &mut Mirror, thinker: &mut Thinker, asking: &Asking) -> Explanation {
    let (outcome, detail) = thinker.decide_in_detail(mirror, asking);
    let nominated = mirror.nomination(asking.spec.key).map(|n| n.node.to_string());
    let nodes = mirror.cluster.view().node_count();
    let mut answer = Explanation { nodes, nominated, ..Explanation::default() };
    if let Some(refusal) = &outcome.refusal {
        let gated =
            matches!(refusal, Refusal::PreFilter(pintle_sched_core::Plugin::SchedulingGates, _));
        answer.nearest = vec![remedy::of_refusal(refusal)];
        answer.message = match (refusal, gated) {
            // Nobody asks for a place before the gates are open.
            (Refusal::PreFilter(_, reason), true) => Some(reason.clone()),
            _ => thinker.diagnose(mirror, asking).map(|d| d.message),
        };
        return answer;
    }
    answer.feasible = outcome.feasible;
    answer.ties = outcome.ties;
    let scratch = &mut thinker.scratch;
    let statuses = if outcome.feasible > 0 {
        let rows = scratch.feasible.iter();
        let mut fitting: Vec<(i32, u32)> =
            rows.map(|row| (scratch.total[row as usize], row)).collect();
        fitting.sort_by_key(|(score, row)| (std::cmp::Reverse(*score), *row));
        let named = fitting.into_iter().take(FITTING_MAX);
        let name = |(score, row)| Fitting { node: mirror.cluster.node_name(row).into(), score };
        answer.fitting = named.map(name).collect();
        let program = &asking.program;
        pintle_sched_core::explain::statuses(&mirror.cluster, program, &detail, scratch)
    } else {
        let program = &asking.program;
        answer.nearest = remedy::nearest(&mirror.cluster, program, &detail, scratch, NEAREST_MAX);
        let Some(found) = thinker.diagnose(mirror, asking) else { return answer };
        answer.message = Some(found.message);
        answer.no_preemption = found.preemption.ineligible;
        answer.preemption = found.preemption.chosen.map(|at| {
            let chosen = &found.preemption.candidates[at];
            let cluster = &mirror.cluster;
            Eviction {
                node: cluster.node_name(chosen.row).to_owned(),
                victims: chosen.victims.iter().map(|id| cluster.pod_name(*id)).collect(),
                violations: chosen.violations,
                candidates: found.preemption.candidates.len(),
            }
        });
        found.statuses
    };
    answer.rejected = groups(mirror, &statuses);
    answer
}

fn groups(mirror: &Mirror, statuses: &[(u32, Status)]) -> Vec<Group> {
    let mut by_reason: BTreeMap<&[String], Group> = BTreeMap::new();
    for (row, status) in statuses {
        let group = by_reason.entry(&status.reasons).or_insert_with(|| Group {
            reasons: status.reasons.clone(),
            plugin: status.plugin.map(pintle_sched_core::Plugin::name),
            preemption_may_help: status.code == Code::Unschedulable,
            count: 0,
            nodes: Vec::new(),
        });
        group.count += 1;
        if group.nodes.len() < NAMED_MAX {
            group.nodes.push(mirror.cluster.node_name(*row).to_owned());
        }
    }
    let mut groups: Vec<Group> = by_reason.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

#[cfg(test)]
mod tests;
