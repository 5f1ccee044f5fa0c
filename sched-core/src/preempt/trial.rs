//! Dry run on one node: removes pods, and restores each one with which the pod still fits.
//!
//! Input: a row, the facts of the search. Output: the victims, or the reason that none help. Owner:
//! one trial. Bounds: the pods on the node, each changed twice and checked once; a change or check
//! costs the constraints that the pod touches, not all constraints.

use std::cmp::Reverse;

use super::disruption::{Allowances, Guards};
use super::stakes::Stakes;
use super::{Candidate, Fixed, NO_VICTIMS, PURPOSE, Trials};
use crate::attempt_budget::Exhausted;
use crate::bits::Bits;
use crate::chunk::Numbers;
use crate::config::{Plugin, RANK_LAST};
use crate::filter::spread::HardSpread;
use crate::filter::status::{self, Code, FilterState, PodRule, Status};
use crate::intern::Str;
use crate::program::Program;
use crate::snapshot::Cluster;
use crate::snapshot::pods::PodId;
use crate::snapshot::view::View;

/// Reason why a node is no candidate.
pub(super) enum TrialStop {
    /// Evictions do not help there.
    Rejected(Status),
    /// The attempt has spent its budget.
    Exhausted(Exhausted),
}

impl From<Exhausted> for TrialStop {
    fn from(exhausted: Exhausted) -> Self {
        Self::Exhausted(exhausted)
    }
}

/// State of the search that does not depend on the node.
pub(super) struct TrialSearch<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) program: &'a Program,
    pub(super) trials: &'a Trials<'a>,
    pub(super) fixed: &'a Fixed,
    pub(super) spread: &'a HardSpread,
}

/// Sums over the pods that remain, of constraints that reject the pod.
#[derive(Debug, Default)]
struct Left {
    anti: i64,
    existing: i64,
    ports: i64,
    /// Removed pods that meet the affinity.
    attracting_gone: i64,
    /// By hard constraint: the change of its counted pods.
    spread: Vec<i64>,
    /// By extended resource: the freed amount.
    scalars: Vec<i64>,
}

/// One node with some of its pods removed.
pub(super) struct Trial<'a, 's> {
    search: &'s TrialSearch<'a>,
    stakes: &'s mut Stakes<'a>,
    view: &'a View,
    row: u32,
    numbers: Numbers,
    removed: Vec<PodId>,
    left: Left,
    /// Values of the row by key of the anti-affinity, and of that of existing pods.
    anti_values: Vec<u32>,
    existing_values: Vec<u32>,
    /// Values of the row by spread constraint.
    spread_values: Vec<u32>,
    /// The least number of attracting pods in a domain; `None` where the row lacks a key.
    attracting: Option<i64>,
}

impl<'a, 's> Trial<'a, 's> {
    pub(super) fn new(
        search: &'s TrialSearch<'a>,
        stakes: &'s mut Stakes<'a>,
        row: u32,
    ) -> Result<Self, Exhausted> {
        let (cluster, program) = (search.cluster, search.program);
        let view = cluster.view();
        let anti_values = stakes.anti.values(view, row);
        let existing_values = stakes.existing.values(view, row);
        let spread = program.spread.hard.iter();
        let spread_values = spread.map(|c| view.keys.column(c.key).value(row)).collect();
        let scalars = program.scalars.len() + program.delegated.len();
        let keys = anti_values.len() + existing_values.len() + scalars;
        let affine = program.pods.required.as_ref().map_or(0, |(_, keys)| keys.len());
        let work = 16 + keys + program.spread.hard.len() + affine;
        search.trials.spent.pay(work as u64, PURPOSE)?;
        let mut left = Left {
            anti: stakes.anti.at(&anti_values),
            existing: stakes.existing.at(&existing_values),
            spread: vec![0; program.spread.hard.len()],
            scalars: vec![0; scalars],
            ..Left::default()
        };
        if !program.ports.is_empty() {
            for id in cluster.pods.on_node(row) {
                left.ports += stakes.ports(cluster.pods.get(id))?;
            }
        }
        let attracting = stakes.attracted.as_ref().and_then(|a| a.least(view, row));
        let (numbers, removed) = (view.numbers(row), Vec::new());
        Ok(Self {
            search,
            stakes,
            view,
            row,
            numbers,
            removed,
            left,
            anti_values,
            existing_values,
            spread_values,
            attracting,
        })
    }

    // k8s: defaultpreemption/default_preemption.go SelectVictimsOnNode
    pub(super) fn victims(
        &mut self,
        priority: i32,
        guards: &mut Guards<'_>,
    ) -> Result<Candidate, TrialStop> {
        let pods = &self.search.cluster.pods;
        let mut lower: Vec<PodId> =
            pods.on_node(self.row).filter(|id| pods.get(*id).priority < priority).collect();
        if lower.is_empty() {
            let code = Code::UnschedulableAndUnresolvable;
            let reasons = vec![NO_VICTIMS.to_owned()];
            return Err(TrialStop::Rejected(Status { plugin: None, code, reasons }));
        }
        // k8s: pkg/scheduler/util/utils.go MoreImportantPod
        let importance = |id: &PodId| {
            let pod = pods.get(*id);
            (Reverse(pod.priority), pod.start_ns, *id)
        };
        lower.sort_by_key(importance);
        for id in &lower {
            self.change(*id, -1)?;
        }
        if let Some(status) = self.rejection()? {
            return Err(TrialStop::Rejected(status));
        }
        let (violating, others) = self.split(&lower, guards)?;
        let (mut victims, mut violations) = (Vec::new(), 0);
        for (id, violates) in
            violating.iter().map(|id| (*id, true)).chain(others.iter().map(|id| (*id, false)))
        {
            self.change(id, 1)?;
            if self.rejection()?.is_some() {
                self.change(id, -1)?;
                victims.push(id);
                violations += usize::from(violates);
            }
        }
        // Of equal pods, those guarded by a budget stay first.
        victims.sort_by_key(|id| (Reverse(pods.get(*id).priority), pods.get(*id).start_ns));
        Ok(Candidate { row: self.row, victims, violations })
    }

    /// Splits pods into those with an eviction that violates a budget, and the others, in their
    /// order.
    // k8s: default_preemption.go filterPodsWithPDBViolation
    fn split(
        &self,
        lower: &[PodId],
        guards: &mut Guards<'_>,
    ) -> Result<(Vec<PodId>, Vec<PodId>), Exhausted> {
        let mut allowances = Allowances::of(self.search.trials.budgets);
        let (mut violating, mut others) = (Vec::new(), Vec::new());
        for id in lower {
            // Each budget is charged, even after another one is violated.
            let violated = guards.of(*id)?.into_iter().filter(|at| allowances.take(*at)).count();
            let list = if violated > 0 { &mut violating } else { &mut others };
            list.push(*id);
        }
        Ok((violating, others))
    }

    /// Removes a pod (-1) or restores it (1).
    fn change(&mut self, id: PodId, delta: i64) -> Result<(), Exhausted> {
        let cluster = self.search.cluster;
        let plain = &cluster.pod_requests(id).plain;
        let n = &mut self.numbers;
        n.pods_used += delta;
        n.cpu_used = n.cpu_used.wrapping_add(delta.wrapping_mul(plain.cpu_milli));
        n.mem_used = n.mem_used.wrapping_add(delta.wrapping_mul(plain.mem_bytes));
        n.eph_used = n.eph_used.wrapping_add(delta.wrapping_mul(plain.eph_bytes));
        if delta < 0 {
            self.removed.push(id);
        } else if let Some(at) = self.removed.iter().position(|removed| *removed == id) {
            self.removed.remove(at);
        }
        let pod = cluster.pods.get(id);
        let (class, terms) = (self.stakes.class(pod)?, self.stakes.terms(pod)?);
        let scalars = self.stakes.scalars(pod)?;
        let touched = 4 + class.anti.len() + class.spread.len() + terms.len() + scalars.len();
        self.search.trials.spent.pay(touched as u64, PURPOSE)?;
        let left = &mut self.left;
        left.ports += delta * self.stakes.ports(pod)?;
        left.attracting_gone -= delta * i64::from(class.attracts);
        let of_row = |counts: &[(usize, i64)], values: &[u32]| -> i64 {
            counts.iter().filter(|(at, _)| values[*at] != 0).map(|(_, count)| count).sum()
        };
        left.anti += delta * of_row(&class.anti, &self.anti_values);
        left.existing += delta * of_row(&terms, &self.existing_values);
        for (at, amount) in scalars.iter() {
            let freed = &mut left.scalars[*at];
            *freed = freed.wrapping_sub(delta.wrapping_mul(*amount));
        }
        // Upstream adjusts the counts for every pod of the namespace that the selector matches,
        // also for one being deleted, which it never counted, and for a selector of everything.
        // k8s: podtopologyspread/filtering.go updateWithPod
        for at in class.spread.iter() {
            if self.search.spread.counted[*at].get(self.row) {
                left.spread[*at] += delta;
            }
        }
        Ok(())
    }

    /// Returns why the pod does not fit the node in its current state, with the expected pods or
    /// without them.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPluginsWithNominatedPods
    fn rejection(&mut self) -> Result<Option<Status>, Exhausted> {
        let beside = self.rejection_now()?;
        let expected = self.search.trials.expected;
        if beside.is_some() || expected.is_empty() {
            return Ok(beside);
        }
        for id in expected {
            self.change(*id, -1)?;
        }
        let alone = self.rejection_now()?;
        for id in expected {
            self.change(*id, 1)?;
        }
        Ok(alone)
    }

    /// Returns the first rejection: by a column, or by a row plugin of lower rank.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPlugins
    fn rejection_now(&self) -> Result<Option<Status>, Exhausted> {
        let TrialSearch { cluster, trials, fixed, .. } = *self.search;
        let columns = fixed.columns.iter();
        let mut columns = columns.map(|(plugin, passing)| (*plugin, passing.as_ref()));
        let of_column = columns
            .find_map(|(plugin, passing)| Some((plugin, self.rejection_of(plugin, passing)?)));
        let rank = |plugin| self.view.profile.filter_rank(plugin);
        let before = of_column.as_ref().map_or(RANK_LAST, |(plugin, _)| rank(*plugin));
        trials.spent.pay(fixed.columns.len() as u64 + self.left.spread.len() as u64, PURPOSE)?;
        let of_rows = (trials.without)(cluster, self.row, &self.removed, before);
        Ok(of_rows.or_else(|| of_column.map(|(_, status)| status)))
    }

    /// Returns the rejection by one column filter.
    fn rejection_of(&self, plugin: Plugin, passing: Option<&Bits>) -> Option<Status> {
        let TrialSearch { cluster, program, fixed, spread, .. } = *self.search;
        let text = |id| cluster.text(id).to_owned();
        let state = FilterState { view: self.view, program, spread, passing: &fixed.passing };
        let of_column = || status::of(plugin, state, self.row, text);
        match plugin {
            Plugin::NodePorts => (self.left.ports > 0).then(of_column),
            Plugin::NodeResourcesFit => {
                status::resources(program, &self.numbers, |at, name| self.scalar(at, name), text)
            }
            Plugin::PodTopologySpread => {
                let allows = |at: usize, value| self.stakes.allows(at, value, self.left.spread[at]);
                status::spread_status(program, |at| self.spread_values[at], allows)
            }
            Plugin::InterPodAffinity => self.pod_rule().map(status::pod_rule),
            _ => (!passing?.get(self.row)).then(of_column),
        }
    }

    fn scalar(&self, at: usize, name: Str) -> (Option<i64>, i64) {
        let (all, used) = self.view.scalar(name, self.row);
        (all, used.wrapping_sub(self.left.scalars[at]))
    }

    // k8s: interpodaffinity/filtering.go Filter
    fn pod_rule(&self) -> Option<PodRule> {
        if let Some(attracted) = &self.stakes.attracted {
            // A pod that meets its own affinity may be the first one if no other pod meets it.
            let gone = self.left.attracting_gone;
            let first = self.search.program.pods.meets_own && attracted.most <= gone;
            if self.attracting.is_none_or(|least| least <= gone && !first) {
                return Some(PodRule::Affinity);
            }
        }
        if self.left.anti > 0 {
            return Some(PodRule::Anti);
        }
        (self.left.existing > 0).then_some(PodRule::Existing)
    }
}
