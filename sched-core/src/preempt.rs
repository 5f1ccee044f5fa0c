//! Preemption, dry: which pods would have to go from which node, and which node is best.
//!
//! Input: a cluster, the compiled pod that found no place, disruption budgets. Output: candidates with
//! their victims, the statuses of nodes where nothing helps, the choice.
//! Owner: pure functions. Bounds: potential nodes and the pods on them, and no more candidates than
//! the profile asks for; nothing is evicted.
//! Why on the same columns: removing a pod from one node changes that node's numbers and the counts
//! of its own domains only, which a small overlay holds.
// k8s: pkg/scheduler/framework/preemption/preemption.go, plugins/defaultpreemption/

mod choice;
pub mod units;

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

pub use self::choice::{Rule, choose, decided_by};
use crate::bits::Bits;
use crate::config::{Plugin, Profile, RANK_LAST, Rank};
use crate::filter::spread::HardSpread;
use crate::filter::status::{self, Code, PodRule, Status};
use crate::filter::{self, interpod};
use crate::intern::{Interner, Lease, Str};
use crate::program::Program;
use crate::select::Scratch;
use crate::selector::Selector;
use crate::snapshot::Cluster;
use crate::snapshot::chunk::Numbers;
use crate::snapshot::counters::TermKind;
use crate::snapshot::pods::PodId;
use crate::snapshot::view::{HostPort, View};

/// A disruption budget as preemption reads it.
#[derive(Clone, Debug)]
pub struct Budget {
    namespace: Str,
    selector: Selector,
    allowed: i64,
    /// Names of pods whose disruption is already being processed.
    disrupted: Vec<String>,
    /// Keeps what it refers to.
    _lease: Lease,
}

impl Cluster {
    /// Reads disruption budgets; one whose selector cannot be read protects nothing.
    pub fn budgets(&mut self, budgets: &[PodDisruptionBudget]) -> Vec<Budget> {
        let budgets: Vec<Budget> = budgets.iter().map(|b| budget(b, &mut self.interner)).collect();
        budgets.iter().for_each(|b| self.mention(&b.selector));
        budgets
    }
}

fn budget(budget: &PodDisruptionBudget, interner: &mut Interner) -> Budget {
    let spec = budget.spec.as_ref();
    let status = budget.status.as_ref();
    let selector = Selector::from_api(spec.and_then(|s| s.selector.as_ref()), interner);
    let disrupted = status.and_then(|s| s.disrupted_pods.as_ref()).into_iter().flatten();
    Budget {
        namespace: interner.intern(budget.metadata.namespace.as_deref().unwrap_or("default")),
        selector: selector.unwrap_or(Selector::Nothing),
        allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0).into(),
        disrupted: disrupted.map(|(name, _)| name.clone()).collect(),
        _lease: interner.lease(),
    }
}

impl Budget {
    /// Whether the end of a pod counts against it.
    fn guards(&self, cluster: &Cluster, id: PodId) -> bool {
        let pod = cluster.pods.get(id);
        let class = &cluster.classes[pod.class as usize];
        class.labelled
            && Some(self.namespace) == class.namespace
            && !self.selector.is_everything()
            && self.selector.matches(&class.labels)
            && !self.disrupted.iter().any(|name| name == cluster.text(pod.name))
    }
}

/// A node that would have room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub row: u32,
    /// Pods to evict, most important first.
    pub victims: Vec<PodId>,
    /// How many of them violate a budget.
    pub violations: usize,
}

/// What the dry run of all potential nodes found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Why the pod may not preempt at all.
    pub ineligible: Option<String>,
    /// Nodes that other pods may be in the way of.
    pub potential: Vec<u32>,
    /// Nodes where evictions help, in the order in which they were tried.
    pub candidates: Vec<Candidate>,
    /// Nodes where they do not, and why.
    pub rejected: Vec<(u32, Status)>,
    /// Nodes where nobody would have to go: whoever rejected them is not asked again here.
    pub needless: Vec<u32>,
    /// Index of the best candidate.
    pub chosen: Option<usize>,
}

impl DryRun {
    /// What went wrong, where that leaves no candidate.
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

/// What preemption says about a node that it cannot help.
pub const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
/// What it says about a node without pods of lower priority.
pub const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// The dry run from the first potential node. `statuses` are those of the failed decision.
#[must_use]
pub fn dry_run(
    cluster: &Cluster,
    pod: &Pod,
    program: &Program,
    statuses: &[(u32, Status)],
    budgets: &[Budget],
    scratch: &mut Scratch,
) -> DryRun {
    let trials = Trials { budgets, offset: 0, expected: &[], without: &|_, _, _, _| None };
    dry_run_from(cluster, pod, program, statuses, &trials, scratch)
}

/// What plugins of single nodes say of a row that these pods have left, those that come before this
/// place among the filters.
pub type Without<'a> = dyn Fn(&Cluster, u32, &[PodId], Rank) -> Option<Status> + 'a;

/// How nodes are tried.
#[derive(Clone, Copy)]
pub struct Trials<'a> {
    /// Who protects pods.
    pub budgets: &'a [Budget],
    /// The potential node to begin with.
    pub offset: usize,
    /// Pods for which room is kept, where they are counted: a node has to do without them as well.
    pub expected: &'a [PodId],
    /// What plugins of single nodes say.
    pub without: &'a Without<'a>,
}

impl std::fmt::Debug for Trials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trials").field("offset", &self.offset).finish_non_exhaustive()
    }
}

/// How many candidates are enough among so many potential nodes.
// k8s: defaultpreemption/default_preemption.go calculateNumCandidates
#[must_use]
pub fn candidates_wanted(profile: &Profile, potential: usize) -> usize {
    let not_negative = |n: i32| usize::try_from(n).unwrap_or(0);
    let share = potential * not_negative(profile.preemption_candidates_percent) / 100;
    share.max(not_negative(profile.preemption_candidates_min)).min(potential)
}

/// The dry run over the potential nodes, beginning with the `offset`-th, until there are as many
/// candidates as the profile asks for and one of them violates no budget. Upstream begins at a
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
    let mut found = DryRun { potential, ..DryRun::default() };
    let wanted = candidates_wanted(&cluster.view().profile, found.potential.len());
    let (skipped, first) = found.potential.split_at(trials.offset % found.potential.len().max(1));
    let mut harmless = false;
    for row in first.iter().chain(skipped).copied() {
        let mut trial = Trial::new(cluster, program, row, trials, (&scratch.spread, &fixed));
        match trial.victims(priority) {
            Ok(candidate) if candidate.victims.is_empty() => found.needless.push(row),
            Ok(candidate) => {
                harmless |= candidate.violations == 0;
                found.candidates.push(candidate);
                if harmless && found.candidates.len() >= wanted {
                    break;
                }
            }
            Err(status) => found.rejected.push((row, status)),
        }
    }
    found.chosen = choose(cluster, &found.candidates);
    found
}

/// Filters that say the same whoever goes.
const FIXED: [Plugin; 5] = [
    Plugin::NodeUnschedulable,
    Plugin::NodeName,
    Plugin::TaintToleration,
    Plugin::NodeAffinity,
    Plugin::NodeDeclaredFeatures,
];

/// What is the same for all nodes that are tried.
struct Fixed {
    /// Column filters in the order of the profile; rows that pass, of those that say the same whoever
    /// goes.
    columns: Vec<(Plugin, Option<Bits>)>,
    /// Rows that the profile's own affinity takes.
    added: Bits,
}

impl Fixed {
    fn of(view: &View, program: &Program, scratch: &mut Scratch) -> Self {
        let added = crate::explain::prepare(view, program, scratch);
        let on = filter::in_order(&view.profile).into_iter();
        let columns = on.filter(|plugin| view.profile.filters(*plugin)).map(|plugin| {
            let passing = FIXED.contains(&plugin).then(|| {
                let mut passing = view.valid.as_ref().clone();
                passing.grow(view.rows);
                filter::apply(plugin, view, program, scratch, &mut passing);
                passing
            });
            (plugin, passing)
        });
        Self { columns: columns.collect(), added }
    }
}

/// One node with some of its pods taken away.
struct Trial<'a> {
    cluster: &'a Cluster,
    view: &'a View,
    program: &'a Program,
    row: u32,
    trials: &'a Trials<'a>,
    numbers: Numbers,
    removed: Vec<PodId>,
    fixed: &'a Fixed,
    spread: HardSpread,
    counted: Vec<bool>,
}

impl<'a> Trial<'a> {
    fn new(
        cluster: &'a Cluster,
        program: &'a Program,
        row: u32,
        trials: &'a Trials<'a>,
        (spread, fixed): (&HardSpread, &'a Fixed),
    ) -> Self {
        let view = cluster.view();
        let counted = program.spread_hard.iter().zip(&spread.counted);
        Self {
            cluster,
            view,
            program,
            row,
            trials,
            numbers: view.numbers(row),
            removed: Vec::new(),
            fixed,
            spread: HardSpread::of_domains(spread.domains.clone()),
            counted: counted.map(|(_, rows)| rows.get(row)).collect(),
        }
    }

    // k8s: defaultpreemption/default_preemption.go SelectVictimsOnNode
    fn victims(&mut self, priority: i32) -> Result<Candidate, Status> {
        let pods = &self.cluster.pods;
        let mut lower: Vec<PodId> =
            pods.on_node(self.row).filter(|id| pods.get(*id).priority < priority).collect();
        if lower.is_empty() {
            let code = Code::UnschedulableAndUnresolvable;
            return Err(Status { plugin: None, code, reasons: vec![NO_VICTIMS.to_owned()] });
        }
        // k8s: pkg/scheduler/util/utils.go MoreImportantPod
        let importance = |id: &PodId| {
            let pod = pods.get(*id);
            (Reverse(pod.priority), pod.start_ns, *id)
        };
        lower.sort_by_key(importance);
        lower.iter().for_each(|id| self.change(*id, -1));
        if let Some(status) = self.rejection() {
            return Err(status);
        }
        let (violating, others) = self.split(&lower, self.trials.budgets);
        let (mut victims, mut violations) = (Vec::new(), 0);
        for (id, violates) in
            violating.iter().map(|id| (*id, true)).chain(others.iter().map(|id| (*id, false)))
        {
            self.change(id, 1);
            if self.rejection().is_some() {
                self.change(id, -1);
                victims.push(id);
                violations += usize::from(violates);
            }
        }
        // Of equals, those behind a budget stay first.
        victims.sort_by_key(|id| (Reverse(pods.get(*id).priority), pods.get(*id).start_ns));
        Ok(Candidate { row: self.row, victims, violations })
    }

    /// Pods whose eviction would violate a budget, and the others, in their order.
    // k8s: default_preemption.go filterPodsWithPDBViolation
    fn split(&self, lower: &[PodId], budgets: &[Budget]) -> (Vec<PodId>, Vec<PodId>) {
        let mut allowed: Vec<i64> = budgets.iter().map(|b| b.allowed).collect();
        lower.iter().partition(|id| {
            let mut violates = false;
            for (budget, left) in budgets.iter().zip(&mut allowed) {
                if budget.guards(self.cluster, **id) {
                    *left -= 1;
                    violates |= *left < 0;
                }
            }
            violates
        })
    }

    /// Takes a pod away (-1) or puts it back (1).
    fn change(&mut self, id: PodId, delta: i64) {
        let plain = &self.cluster.pod_requests(id).plain;
        let n = &mut self.numbers;
        n.pods_used += delta;
        n.cpu_used = n.cpu_used.wrapping_add(delta.wrapping_mul(plain.cpu_milli));
        n.mem_used = n.mem_used.wrapping_add(delta.wrapping_mul(plain.mem_bytes));
        n.eph_used = n.eph_used.wrapping_add(delta.wrapping_mul(plain.eph_bytes));
        if delta < 0 {
            self.removed.push(id);
        } else {
            self.removed.retain(|removed| *removed != id);
        }
        self.change_spread(id, delta);
    }

    /// Upstream adjusts the counts for every pod of the namespace that the selector matches, also
    /// for one being deleted, which it never counted, and for a selector of everything.
    // k8s: podtopologyspread/filtering.go updateWithPod
    fn change_spread(&mut self, id: PodId, delta: i64) {
        let pod = self.cluster.pods.get(id);
        let own = self.cluster.classes[self.program.class as usize].namespace;
        let class = &self.cluster.classes[pod.class as usize];
        if class.namespace != own {
            return;
        }
        for (at, c) in self.program.spread_hard.iter().enumerate() {
            let key = &self.view.counters.get(c.counter.0).key;
            let selected = c.everything || own.is_some_and(|own| key.matches(own, &class.labels));
            if !self.counted[at] || !selected {
                continue;
            }
            let value = self.view.keys.column(c.key).value(self.row) as usize;
            self.spread.domains[at].counts[value] += delta;
            self.spread.domains[at].settle(c);
        }
    }

    /// Why the pod does not fit the node as it is now, beside the expected pods or without them.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPluginsWithNominatedPods
    fn rejection(&mut self) -> Option<Status> {
        let beside = self.rejection_now();
        let expected = self.trials.expected;
        if beside.is_some() || expected.is_empty() {
            return beside;
        }
        expected.iter().for_each(|id| self.change(*id, -1));
        let alone = self.rejection_now();
        expected.iter().for_each(|id| self.change(*id, 1));
        alone
    }

    /// Who rejects the pod first: a column, or a plugin of single nodes that comes before it.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPlugins
    fn rejection_now(&self) -> Option<Status> {
        let columns = self.fixed.columns.iter();
        let mut columns = columns.map(|(plugin, passing)| (*plugin, passing.as_ref()));
        let of_column = columns
            .find_map(|(plugin, passing)| Some((plugin, self.rejection_of(plugin, passing)?)));
        let rank = |plugin| self.view.profile.filter_rank(plugin);
        let before = of_column.as_ref().map_or(RANK_LAST, |(plugin, _)| rank(*plugin));
        let of_rows = (self.trials.without)(self.cluster, self.row, &self.removed, before);
        of_rows.or_else(|| of_column.map(|(_, status)| status))
    }

    /// Why one column filter does not let the pod pass.
    fn rejection_of(&self, plugin: Plugin, passing: Option<&Bits>) -> Option<Status> {
        let text = |id| self.cluster.text(id).to_owned();
        let of_column = || {
            let (spread, added) = (&self.spread, &self.fixed.added);
            status::of(plugin, self.view, self.program, spread, self.row, added, text)
        };
        match plugin {
            Plugin::NodePorts => self.ports_conflict().then(of_column),
            Plugin::NodeResourcesFit => {
                let scalar = |name| self.scalar(name);
                status::resources(self.program, &self.numbers, scalar, text)
            }
            Plugin::PodTopologySpread => {
                let keys = &self.view.keys;
                let key = |at: usize| self.program.spread_hard[at].key;
                let value = |at: usize| keys.column(key(at)).value(self.row);
                status::spread_status(self.program, &self.spread, value)
            }
            Plugin::InterPodAffinity => self.pod_rule().map(status::pod_rule),
            _ => (!passing?.get(self.row)).then(of_column),
        }
    }

    fn scalar(&self, name: Str) -> (Option<i64>, i64) {
        let (all, used) = self.view.scalar(name, self.row);
        let text = self.cluster.text(name);
        let freed = self.removed.iter().map(|id| self.cluster.pod_requests(*id).plain.amount(text));
        (all, freed.fold(used, i64::wrapping_sub))
    }

    fn ports_conflict(&self) -> bool {
        let clash = |port: &HostPort| {
            let users = self.view.ports.get(&(port.protocol, port.port));
            users.is_some_and(|users| {
                let on_row = users.clashing(port.ip, self.view.wildcard_ip);
                let mut on_row = on_row.filter(|(_, rows)| rows.contains(self.row));
                on_row.any(|(ip, _)| {
                    users.count(ip, self.row) > self.freed(&HostPort { ip, ..*port })
                })
            })
        };
        self.program.ports.iter().any(clash)
    }

    /// Pods among the removed that use a port.
    fn freed(&self, port: &HostPort) -> usize {
        let pods = &self.cluster.pods;
        let uses = |id: &&PodId| pods.ports.get(pods.get(**id).ports).contains(port);
        self.removed.iter().filter(uses).count()
    }

    fn removed_matching(&self, counter: u32) -> u32 {
        let key = &self.view.counters.get(counter).key;
        let matching = self.removed.iter().filter(|id| {
            let class = &self.cluster.classes[self.cluster.pods.get(**id).class as usize];
            class.namespace.is_some_and(|namespace| key.matches(namespace, &class.labels))
        });
        matching.count() as u32
    }

    // k8s: interpodaffinity/filtering.go Filter
    fn pod_rule(&self) -> Option<PodRule> {
        let value = |key| self.view.keys.column(key).value(self.row);
        if let Some((counter, keys)) = &self.program.affinity {
            let gone = self.removed_matching(counter.0);
            let counts = self.view.counters.get(counter.0);
            let here = |key| match value(key) {
                0 => None,
                v => Some(counts.domain(key).get(v as usize).copied().unwrap_or(0) - gone),
            };
            // Whether anybody is left that matches, on a node with one of the keys.
            let left = keys.iter().any(|key| {
                let total: u32 = counts.domain(*key).iter().sum();
                total > if value(*key) == 0 { 0 } else { gone }
            });
            let first = self.program.affinity_self && !left;
            if keys.iter().any(|key| here(*key).is_none_or(|n| n == 0 && !first)) {
                return Some(PodRule::Affinity);
            }
        }
        for (counter, key) in &self.program.anti {
            let (v, counts) = (value(*key), self.view.counters.get(counter.0));
            let here = counts.domain(*key).get(v as usize).copied().unwrap_or(0);
            if v != 0 && here > self.removed_matching(counter.0) {
                return Some(PodRule::Anti);
            }
        }
        for term in interpod::forbidding(self.view, self.program) {
            let v = value(term.topology);
            let here = term.domains.get(v as usize).copied().unwrap_or(0);
            let gone = self.removed.iter().flat_map(|id| {
                let terms = self.cluster.pods.terms.get(self.cluster.pods.get(*id).terms);
                terms.iter().map(|t| &self.view.terms.get(t.0).key)
            });
            debug_assert!(term.key.kind == TermKind::RequiredAnti);
            if v != 0 && here > gone.filter(|key| **key == term.key).count() as u32 {
                return Some(PodRule::Existing);
            }
        }
        None
    }
}

/// The sentence of a preemption that found no candidate.
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::tests::{node_with, pod_with};
    use crate::{explain, select};

    const NODES: usize = 300;

    /// Nodes that are full of one pod each; on the first fifty it is protected by a budget.
    fn full() -> (Cluster, Vec<Budget>) {
        let mut cluster = Cluster::new(Profile::default());
        for at in 0..NODES {
            let node = node_with(&format!("n{at}"), |n| {
                n["status"]["allocatable"]["cpu"] = json!("1");
            });
            cluster.set_node(&node).expect("node");
            let pod = pod_with(&format!("p{at}"), |p| {
                let guarded = if at < 50 { "yes" } else { "no" };
                p["metadata"]["labels"]["guarded"] = json!(guarded);
                p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
            });
            cluster.assume(&pod, &format!("n{at}")).expect("room");
        }
        let budget = json!({"metadata": {"name": "b", "namespace": "ns"},
            "spec": {"selector": {"matchLabels": {"guarded": "yes"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0,
                "expectedPods": 0}});
        let budgets = cluster.budgets(&[serde_json::from_value(budget).expect("budget")]);
        (cluster, budgets)
    }

    #[test]
    fn a_dry_run_stops_at_as_many_candidates_as_are_wanted() {
        let (cluster, budgets) = full();
        let urgent = pod_with("urgent", |p| {
            p["spec"]["priority"] = json!(1000);
            p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
        });
        // percent, at least, first node, what is expected: rows of the candidates
        for (percent, least, offset, want) in [
            (10, 100, 60, (60..160).collect::<Vec<u32>>()),
            (50, 100, 60, (60..210).collect()),
            (100, 0, 0, (0..300).collect()),
            (1, 0, 100, (100..103).collect()),
            (0, 500, 7, (7..300).chain(0..7).collect()),
            (0, 20, 290, (290..300).chain(0..10).collect()),
            // Enough, but all of them violate the budget: on to the first that does not.
            (0, 20, 10, (10..51).collect()),
        ] {
            let mut cluster = cluster.clone();
            let mut profile = Profile::clone(&cluster.view.profile);
            profile.preemption_candidates_percent = percent;
            profile.preemption_candidates_min = least;
            cluster.view.profile = std::sync::Arc::new(profile);
            let program = cluster.compile(&urgent).expect("pod");
            let mut scratch = Scratch::default();
            let (outcome, detail) =
                select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
            assert_eq!(outcome.feasible, 0);
            let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
            let from =
                Trials { budgets: &budgets, offset, expected: &[], without: &|_, _, _, _| None };
            let run = dry_run_from(&cluster, &urgent, &program, &statuses, &from, &mut scratch);
            let rows: Vec<u32> = run.candidates.iter().map(|c| c.row).collect();
            assert_eq!(rows, want, "{percent} percent, {least} at least, from {offset}");
            let chosen = run.candidates[run.chosen.expect("candidates")].violations;
            assert_eq!(chosen, 0, "one without violation is there and preferred");
        }
    }

    #[test]
    fn a_node_whose_room_is_told_before_its_taint_is_tried_and_keeps_its_taint() {
        use Plugin::{NodeResourcesFit as Fit, TaintToleration as Taint, VolumeBinding as Volumes};
        let says = |plugin: Plugin| {
            let code = Code::UnschedulableAndUnresolvable;
            Status { plugin: Some(plugin), code, reasons: vec!["no".to_owned()] }
        };
        // the order, whether the node is tried, who rejects it then
        for (order, is_tried, want) in [
            ([Taint, Fit, Volumes], false, None),
            ([Fit, Taint, Volumes], true, Some(Taint)),
            ([Fit, Volumes, Taint], true, Some(Volumes)),
            ([Volumes, Fit, Taint], true, Some(Volumes)),
        ] {
            let filter_ranks = crate::config::ranks(order.map(Plugin::name));
            let mut cluster = Cluster::new(Profile { filter_ranks, ..Profile::default() });
            let node = node_with("n", |n| {
                n["status"]["allocatable"]["cpu"] = json!("1");
                n["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
            });
            cluster.set_node(&node).expect("node");
            let asks = |priority: i32| {
                pod_with(&format!("p{priority}"), |p| {
                    p["spec"]["priority"] = json!(priority);
                    p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1");
                })
            };
            cluster.assume(&asks(0), "n").expect("room");
            let program = cluster.compile(&asks(9)).expect("pod");
            let mut scratch = Scratch::default();
            let (_, detail) = select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
            let statuses = explain::statuses(&cluster, &program, &detail, &mut scratch);
            let without = |cluster: &Cluster, _, _: &[PodId], before| {
                let is_asked = cluster.view().profile.filter_rank(Volumes) < before;
                is_asked.then(|| says(Volumes))
            };
            let trials = Trials { budgets: &[], offset: 0, expected: &[], without: &without };
            let run = dry_run_from(&cluster, &asks(9), &program, &statuses, &trials, &mut scratch);
            assert_eq!(run.potential.len(), usize::from(is_tried), "{order:?}");
            let rejected = run.rejected.first().and_then(|(_, status)| status.plugin);
            assert_eq!((rejected, run.candidates.len()), (want, 0), "{order:?}");
        }
    }
}
