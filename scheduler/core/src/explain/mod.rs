//! Explains the place of a pod in a live cluster, or why it has none: rejections by node, the
//! nearest nodes, the changes that would make it fit, the result of preemption; why not one named
//! node, and where it is in the queue.
//!
//! Input: the cluster cache, the pod, optionally a node's name. Output: an [`Explanation`], which
//! serializes to JSON, and to text by its `Display`. Owner: pure; the cache is restored at the end.
//! Bounds: `FITTING_MAX` feasible nodes, `NEAREST_MAX` near misses, `NAMED_MAX` names of a group.

mod text;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::object::key_of;
use pintle_sched_core::explain::{refused, statuses};
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::preempt::{self, DryRun, RankingRule};
use pintle_sched_core::remedy::{self, NodeRemedy, Remedy};
use pintle_sched_core::select::{Detail, PreFilterRefusal, Scratch};
use pintle_sched_core::snapshot::{Cluster, DeltaError};
use serde::Serialize;

use crate::cache::{Aside, CacheDelta, ClusterCache};
use crate::diagnosis::{Asking, PodEvaluator};
use crate::pod_fields::scheduler_name;
use crate::queue::QueuePlace;

/// Feasible nodes that are named, the best first.
const FITTING_MAX: usize = 10;
/// Near misses.
const NEAREST_MAX: usize = 5;
/// Names of nodes that are rejected for the same reason.
const NAMED_MAX: usize = 5;

/// Rejection of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// Reasons in upstream's words.
    pub reasons: Vec<String>,
    /// The plugin that rejects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<&'static str>,
    /// May evictions help, as far as this plugin and priorities are concerned?
    pub preemption_may_help: bool,
}

impl From<&Status> for Rejection {
    fn from(status: &Status) -> Self {
        Self {
            reasons: status.reasons.clone(),
            plugin: status.plugin.map(pintle_sched_core::Plugin::name),
            preemption_may_help: status.code == Code::Unschedulable,
        }
    }
}

/// Nodes rejected for the same reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The rejection; `preemptionMayHelp` is true if it is for any of these nodes.
    #[serde(flatten)]
    pub why: Rejection,
    /// Number of nodes.
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

/// Answer about the node asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneNode {
    /// The node.
    pub node: String,
    /// Does it accept the pod?
    pub fits: bool,
    /// Its total score, if it accepts the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i32>,
    /// Its rejection, otherwise.
    #[serde(flatten)]
    pub why: Option<Rejection>,
    /// Changes it needs, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<NodeRemedy>,
}

/// Place of a pending pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queued {
    /// The part of the queue.
    pub place: QueuePlace,
    /// Number of attempts.
    pub attempts: u32,
    /// Plugins that rejected it in the last attempt, or keep it out of the active queue.
    pub rejected_by: Vec<String>,
    /// Seconds until the next check, at the latest; `None` if it depends on more than time.
    #[serde(rename = "triedAgainInSeconds", skip_serializing_if = "Option::is_none")]
    pub tried_again: Option<u64>,
    /// Seconds of the scheduler's time that the pod's namespace has used beyond its share, if its
    /// pods are queued behind those of other namespaces for it.
    #[serde(rename = "namespaceOverShareSeconds", skip_serializing_if = "Option::is_none")]
    pub over_share: Option<f64>,
}

impl Queued {
    /// Returns the whole seconds until then.
    pub fn seconds(until: Duration, now: Duration) -> u64 {
        let left = until.saturating_sub(now);
        left.as_secs() + u64::from(left.subsec_nanos() > 0)
    }
}

/// Result of preemption.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// The node.
    pub node: String,
    /// Victims, the most important first.
    pub victims: Vec<String>,
    /// Number of victims that violate a disruption budget.
    pub violations: usize,
    /// Number of nodes where evictions would help.
    pub candidates: usize,
    /// The rule that ranks this node above the best of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<RankingRule>,
    /// The best of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<RunnerUp>,
}

/// Preemption on the second-best node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunnerUp {
    /// The node.
    pub node: String,
    /// Victims, the most important first.
    pub victims: Vec<String>,
    /// Number of victims that violate a disruption budget.
    pub violations: usize,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// namespace/name.
    pub pod: String,
    /// The node that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_to: Option<String>,
    /// The nominated node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// All nodes.
    pub nodes: usize,
    /// Nodes that fit.
    pub feasible: usize,
    /// Number of those with the highest score.
    pub ties: usize,
    /// The best of them.
    pub fitting: Vec<Fitting>,
    /// Message of the scheduler for a pod that fits no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Rejections, the most frequent reason first.
    pub rejected: Vec<Group>,
    /// Changes that each of the nearest nodes needs; the first is the smallest change of all.
    pub nearest: Vec<Remedy>,
    /// Result of preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Eviction>,
    /// The reason that it would do nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_preemption: Option<String>,
    /// The node asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_node: Option<OneNode>,
    /// Place in the queue, if this scheduler decides the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queued>,
    /// Notes.
    pub notes: Vec<String>,
}

/// Reason why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// The pod is bound, or does not exist.
    #[error("{0} does not wait for a node")]
    NotWaiting(String),
    /// The explanation was interrupted, with the reason.
    #[error("no complete answer: {0}")]
    NotFinished(String),
    /// The node asked for does not exist.
    #[error("there is no node {0:?}")]
    NoNode(String),
    /// The pod is invalid.
    #[error(transparent)]
    Unreadable(#[from] DeltaError),
}

/// Explains a pod as the API server has it, and why it does or does not fit this node. A bound pod
/// is explained as if it were pending.
///
/// # Errors
/// When the pod cannot be read, or there is no such node.
pub fn explain(
    cache: &mut ClusterCache,
    evaluator: &mut PodEvaluator,
    pod: &Pod,
    asked: Option<&str>,
) -> Result<Explanation, Unexplained> {
    let row =
        |name: &str| cache.cluster.row(name).ok_or_else(|| Unexplained::NoNode(name.to_owned()));
    let asked = asked.map(row).transpose()?;
    let asking = Asking::new(pod, cache)?;
    let node = crate::pod_fields::node_name(pod);
    let taken = node.map(|node| CacheDelta::Gone {
        pod: asking.spec.key,
        last: Some(Rc::clone(&asking.spec)),
        node: node.into(),
    });
    let taken = taken.filter(|_| cache.cluster.pods().find(asking.spec.key).is_some());
    let mut aside = Aside::new();
    taken.iter().for_each(|step| cache.turn(step, true, &mut aside));
    // Its volumes were evaluated with the pod itself on its node: that is repeated without it.
    let asking = match taken {
        Some(_) => Asking::with_spec(Rc::clone(&asking.pod), &asking.spec, cache),
        None => Ok(asking),
    };
    let answer = asking.map(|asking| look(cache, evaluator, &asking, asked));
    taken.iter().for_each(|step| cache.turn(step, false, &mut aside));
    let mut answer = answer?;
    answer.pod = key_of(pod).as_str().to_owned();
    answer.bound_to = node.map(str::to_owned);
    if cache.profile_number(pod).is_none() {
        let (name, first) = (scheduler_name(pod), &cache.profile(0).scheduler_name);
        answer.notes.push(format!(
            "no profile is named {name:?}, its schedulerName: it is not decided here, and \
             {first:?} would answer this"
        ));
    }
    Ok(answer)
}

fn look(
    cache: &mut ClusterCache,
    evaluator: &mut PodEvaluator,
    asking: &Asking,
    asked: Option<u32>,
) -> Explanation {
    let (outcome, detail) = evaluator.decide_in_detail(cache, asking);
    let nominated = cache.nomination(asking.spec.key).map(|n| n.node.to_string());
    let nodes = cache.cluster.view().node_count();
    let mut answer = Explanation { nodes, nominated, ..Explanation::default() };
    if let Some(refusal) = &outcome.refusal {
        let gated = matches!(
            refusal,
            PreFilterRefusal::PreFilter(pintle_sched_core::Plugin::SchedulingGates, _)
        );
        answer.nearest = vec![remedy::of_refusal(refusal)];
        answer.message = match (refusal, gated) {
            // PreEnqueue rejects the pod until its gates are removed.
            (PreFilterRefusal::PreFilter(_, reason), true) => Some(reason.clone()),
            _ => evaluator.diagnose(cache, asking).map(|d| d.message),
        };
        answer.one_node = asked.map(|row| refused_everywhere(&cache.cluster, refusal, row));
        return answer;
    }
    answer.feasible = outcome.feasible;
    answer.ties = outcome.ties;
    let scratch = &mut evaluator.scratch;
    let statuses = if outcome.feasible > 0 {
        let rows = scratch.feasible.iter();
        let mut fitting: Vec<(i32, u32)> =
            rows.map(|row| (scratch.total[row as usize], row)).collect();
        fitting.sort_by_key(|(score, row)| (std::cmp::Reverse(*score), *row));
        let named = fitting.into_iter().take(FITTING_MAX);
        let name = |(score, row)| Fitting { node: cache.cluster.node_name(row).into(), score };
        answer.fitting = named.map(name).collect();
        let program = &asking.program;
        statuses(&cache.cluster, program, &detail, scratch)
    } else {
        let program = &asking.program;
        answer.nearest = remedy::nearest(&cache.cluster, program, &detail, scratch, NEAREST_MAX);
        let Some(found) = evaluator.diagnose(cache, asking) else { return answer };
        answer.message = Some(found.message);
        answer.preemption = eviction(&cache.cluster, &found.preemption);
        answer.no_preemption = found.preemption.ineligible;
        found.statuses
    };
    answer.rejected = groups(cache, asking, &statuses);
    let scratch = &mut evaluator.scratch;
    answer.one_node = asked.map(|row| {
        let status = statuses.iter().find(|(at, _)| *at == row).map(|(_, status)| status);
        one_node(&cache.cluster, asking, &detail, scratch, RowStatus { row, status })
    });
    answer
}

fn eviction(cluster: &Cluster, run: &DryRun) -> Option<Eviction> {
    let chosen = run.chosen?;
    let of = |at: usize| {
        let one = &run.candidates[at];
        RunnerUp {
            node: cluster.node_name(one.row).to_owned(),
            victims: one.victims.iter().map(|id| cluster.pod_name(*id)).collect(),
            violations: one.violations,
        }
    };
    let RunnerUp { node, victims, violations } = of(chosen);
    let (decided_by, second) = preempt::decided_by(cluster, &run.candidates, chosen).unzip();
    let (candidates, runner_up) = (run.candidates.len(), second.map(of));
    Some(Eviction { node, victims, violations, candidates, decided_by, runner_up })
}

/// A row, and the rejection of it, if any.
struct RowStatus<'a> {
    row: u32,
    status: Option<&'a Status>,
}

fn one_node(
    cluster: &Cluster,
    asking: &Asking,
    detail: &Detail,
    scratch: &mut Scratch,
    RowStatus { row, status }: RowStatus<'_>,
) -> OneNode {
    let node = cluster.node_name(row).to_owned();
    let Some(status) = status else {
        let score = Some(scratch.total[row as usize]);
        return OneNode { node, fits: true, score, why: None, lacks: Vec::new() };
    };
    let lacks = remedy::of_row(cluster, &asking.program, detail, scratch, row);
    let preemption_may_help = may_preempt(cluster, asking, row, status);
    let why = Some(Rejection { preemption_may_help, ..status.into() });
    OneNode { node, fits: false, score: None, why, lacks }
}

/// Answers about a node that was not filtered, because PreFilter rejected the pod.
fn refused_everywhere(cluster: &Cluster, refusal: &PreFilterRefusal, row: u32) -> OneNode {
    let (plugin, reason) = match refusal {
        PreFilterRefusal::PreFilter(plugin, reason) => (Some(plugin.name()), reason.clone()),
        other => (None, refused(0, other)),
    };
    let why = Rejection { reasons: vec![reason], plugin, preemption_may_help: false };
    OneNode {
        node: cluster.node_name(row).to_owned(),
        fits: false,
        score: None,
        why: Some(why),
        lacks: remedy::of_refusal(refusal).changes,
    }
}

/// May evictions on a node help the pod? Not if the pod may not preempt, nor if every pod there is
/// at least as important.
fn may_preempt(cluster: &Cluster, asking: &Asking, row: u32, status: &Status) -> bool {
    let spec = asking.pod.spec.as_ref();
    let is_never = spec.and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never");
    let priority = spec.and_then(|spec| spec.priority).unwrap_or(0);
    status.code == Code::Unschedulable && !is_never && remedy::has_victims(cluster, row, priority)
}

fn groups(cache: &ClusterCache, asking: &Asking, statuses: &[(u32, Status)]) -> Vec<Group> {
    let mut by_reason: BTreeMap<&[String], Group> = BTreeMap::new();
    for (row, status) in statuses {
        let group = by_reason.entry(&status.reasons).or_insert_with(|| Group {
            why: Rejection { preemption_may_help: false, ..status.into() },
            count: 0,
            nodes: Vec::new(),
        });
        group.count += 1;
        // One node of the group may be too small, and the next one full.
        group.why.preemption_may_help |= may_preempt(&cache.cluster, asking, *row, status);
        if group.nodes.len() < NAMED_MAX {
            group.nodes.push(cache.cluster.node_name(*row).to_owned());
        }
    }
    let mut groups: Vec<Group> = by_reason.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

#[cfg(test)]
mod tests;
