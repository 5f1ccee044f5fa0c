//! Victims for a whole pod group: single pods, and groups that are evicted as a whole.
//!
//! Input: a cluster, the groups of pods, disruption budgets. Output: units of pods that are evicted
//! together, in the order of their importance. Owner: pure functions. Bounds: the pods on nodes.
//! Reason for units: a group with the disruption mode of the whole group loses all its pods or
//! none.
// k8s: pkg/scheduler/framework/preemption/{types,podgrouppreemption}.go

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Budget;
use super::disruption::{Allowances, Guards};
use crate::attempt_budget::{AttemptBudget, Exhausted};
use crate::intern::Str;
use crate::snapshot::Cluster;
use crate::snapshot::pods::{NONE, PodId};

/// Disruption mode of a pod in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It is evicted alone.
    Alone,
    /// It is evicted with all pods of the group of this number, which has this priority.
    Whole(usize, i32),
}

/// Pods that are evicted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Their identities.
    pub pods: Vec<Str>,
    /// The group's priority, or that of the only pod.
    pub priority: i32,
    is_of_group: bool,
    /// When the first of them started.
    start_ns: i64,
}

/// Units of lower priority than `below`. `groups` has the pods that belong to groups.
// k8s: preemption/types.go newDomainForWorkloadPreemption
#[must_use]
pub fn below(cluster: &Cluster, below: i32, groups: &HashMap<Str, Membership>) -> Vec<Unit> {
    let row = |id: &PodId| cluster.pods.get(*id).row;
    let mut all: Vec<PodId> = cluster.pods.iter().filter(|id| row(id) != NONE).collect();
    all.sort_by_key(|id| (row(id), *id));
    let mut units: Vec<Unit> = Vec::new();
    let mut whole: HashMap<usize, usize> = HashMap::new();
    for id in all {
        let pod = cluster.pods.get(id);
        let membership = groups.get(&pod.key);
        let (number, priority) = match membership {
            Some(Membership::Whole(number, priority)) => (Some(*number), *priority),
            Some(Membership::Alone) | None => (None, pod.priority),
        };
        if priority >= below {
            continue;
        }
        if let Some(at) = number.and_then(|number| whole.get(&number)) {
            units[*at].pods.push(pod.key);
            continue;
        }
        whole.extend(number.map(|number| (number, units.len())));
        let is_of_group = membership.is_some();
        units.push(Unit { pods: vec![pod.key], priority, is_of_group, start_ns: pod.start_ns });
    }
    units
}

/// Sorts by importance, the most important first. Equal units stay in their order.
// k8s: preemption/podgrouppreemption.go moreImportantVictim
pub fn sort(units: &mut [Unit]) {
    units.sort_by_key(|unit| {
        let pods = if unit.is_of_group { unit.pods.len() } else { 0 };
        (Reverse(unit.priority), Reverse(unit.is_of_group), Reverse(pods), unit.start_ns)
    });
}

/// Splits units into those that violate a budget when evicted, and the others, in their order.
/// Within a unit the first violation ends the count: later pods take nothing from any budget.
///
/// # Errors
/// When the attempt has exceeded a limit.
// k8s: preemption/preemption.go filterVictimsWithPDBViolation
pub fn split(
    cluster: &Cluster,
    units: Vec<Unit>,
    budgets: &[Budget],
    spent: &AttemptBudget,
) -> Result<(Vec<Unit>, Vec<Unit>), Exhausted> {
    let mut guards = Guards::new(cluster, budgets, spent);
    let mut allowances = Allowances::of(budgets);
    let (mut violating, mut others) = (Vec::new(), Vec::new());
    for unit in units {
        let mut violates = false;
        for id in unit.pods.iter().filter_map(|key| cluster.pods.find(*key)) {
            violates = guards.of(id)?.into_iter().any(|at| allowances.take(at));
            if violates {
                break;
            }
        }
        if violates { violating.push(unit) } else { others.push(unit) }
    }
    Ok((violating, others))
}
