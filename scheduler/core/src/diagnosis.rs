//! Evaluates one pod against the cached cluster: feasible nodes, and reasons of the others.
//!
//! Input: the cluster cache, a pod without a node. Output: a decision, or upstream's message with a
//! status for each node. Owner: pure but for the cache's columns, which are restored at the end.
//! Bounds: one decision, and the filters once more for each node with nominated pods.

mod eligible;
mod refusal;
mod without;
mod words;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use pintle_sched_core::config::Rank;
use pintle_sched_core::explain;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::intern::Str;
use pintle_sched_core::preempt::{self, DryRun};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::{self, Detail, NodeSample, Outcome, RowPlugin, Scratch};
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::snapshot::pods::PodId;
use pintle_sched_core::snapshot::{Cluster, DeltaError, View};
use pintle_sched_core::{Plugin, Profile};

use self::eligible::may_not_preempt;
use self::refusal::look;
use self::without::NodePluginState;
use self::words::{of_claims, with_preemption};
pub use self::words::{without_candidate, without_preemption};
use crate::cache::ClusterCache;
use crate::extender::consulted;
use crate::framework::pods::WholePods;
use crate::framework::{Attempt, Name};
use crate::placement::Placement;
use crate::plugins::dynamicresources::known::Devices;
use crate::plugins::dynamicresources::look::DeviceClaims;
use crate::plugins::dynamicresources::row::OfDevices;
use crate::plugins::volumes::{Claims, OfPlugin, Refused, Volumes};

/// A pod under decision.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The pod, without a node's name.
    pub pod: Rc<Pod>,
    /// The pod's row data.
    pub spec: Rc<PodSpec>,
    /// Compiled.
    pub program: Arc<Program>,
    /// The profile that decides it.
    profile: Arc<Profile>,
    /// Nodes that its volumes allow.
    claims: Option<Claims>,
    /// Nodes that its ResourceClaims allow.
    devices: Option<DeviceClaims>,
    /// The PreFilter rejection, and the rank of the plugin.
    refused: Option<(Rank, Refused)>,
    /// The rejection is Unschedulable, so preemption may help.
    refused_for_now: bool,
    /// Results of extenders.
    pub consulted: Option<consulted::Rows>,
    /// Results of out-of-tree plugins.
    pub attempt: Option<Rc<Attempt>>,
    /// The placement of its group, if that limits the nodes.
    pub placement: Option<Rc<Placement>>,
    /// The reason it may not preempt at all.
    pub never_preempts: Option<&'static str>,
    /// A claim is reserved for its group, but no pod of the group uses it.
    pub unreserves: bool,
}

impl Asking {
    /// Creates it from a pod, ignoring its node. The profile is the one of the pod's scheduler
    /// name, or else the first one.
    ///
    /// # Errors
    /// The pod is invalid.
    pub fn new(pod: &Pod, cache: &mut ClusterCache) -> Result<Self, DeltaError> {
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            spec.node_name = None;
        }
        let spec = Rc::new(cache.cluster.read_pod(&pod)?);
        Self::with_spec(Rc::new(pod), &spec, cache)
    }

    /// Like `new`, for a pod without a node and its parsed spec.
    ///
    /// # Errors
    /// The pod does not compile.
    pub fn with_spec(
        pod: Rc<Pod>,
        spec: &Rc<PodSpec>,
        cache: &mut ClusterCache,
    ) -> Result<Self, DeltaError> {
        // PodDisruptionBudgets may add label keys, after which programs are compiled again.
        cache.budgets();
        let profile = Arc::clone(cache.profile(cache.profile_number(&pod).unwrap_or(0)));
        cache.cluster.use_profile(&profile);
        let spec = match spec.terms.is_empty() {
            true => Rc::clone(spec),
            // Its terms may have been freed since; parsing registers them again.
            false => Rc::new(cache.cluster.read_pod(&pod)?),
        };
        let program = cache.cluster.compile_within(&pod, &cache.attempt_budget)?;
        let (claims, devices, refused) = match look(&pod, &spec, &profile, cache) {
            Ok((claims, devices)) => (claims, devices, None),
            Err(refused) => (None, None, Some(refused)),
        };
        Ok(Self {
            pod,
            spec,
            program,
            profile,
            claims,
            devices,
            refused,
            refused_for_now: false,
            consulted: None,
            attempt: None,
            placement: None,
            never_preempts: None,
            unreserves: false,
        })
    }

    fn uid(&self) -> Str {
        self.spec.key
    }

    /// Returns the plugins that filter by row, in addition to the rows closed by nominated pods.
    fn of_rows<'a>(
        &'a self,
        kept: &'a NominatedRows,
        claims: &'a OfClaims<'a>,
    ) -> Vec<&'a dyn RowPlugin> {
        let devices = claims.1.iter().map(|plugin| plugin as &dyn RowPlugin);
        let claims = claims.0.iter().map(|plugin| plugin as &dyn RowPlugin).chain(devices);
        let kept = (!kept.0.is_empty()).then_some(kept as &dyn RowPlugin);
        let consulted = self.consulted.as_ref().map(|rows| rows as &dyn RowPlugin);
        let attempt = self.attempt.as_deref().map(|attempt| attempt as &dyn RowPlugin);
        let placement = self.placement.as_deref().map(|placement| placement as &dyn RowPlugin);
        kept.into_iter().chain(placement).chain(claims).chain(attempt).chain(consulted).collect()
    }

    /// Returns the conflict of its volumes with those of nominated pods.
    fn beside_users(
        &self,
        volumes: &Volumes,
        cluster: &Cluster,
        row: u32,
        gone: &[PodId],
    ) -> Option<Status> {
        let uids = gone.iter().map(|id| cluster.text(cluster.pods().get(*id).key)).collect();
        self.claims.as_ref()?.rejection_beside(volumes, cluster, row, &uids)
    }

    /// Shows these nominated pods of a node to out-of-tree plugins.
    fn expects(
        &self,
        cluster: &Cluster,
        whole: Option<&WholePods>,
        row: u32,
        pods: &[Rc<PodSpec>],
    ) {
        if let Some((attempt, whole)) = self.attempt.as_ref().zip(whole) {
            let new = pods.iter().filter(|pod| cluster.pods().find(pod.key).is_none());
            let new = new.filter_map(|pod| whole.get(cluster.text(pod.key)));
            attempt.expect(row, new.collect());
        }
    }

    fn clear_expected(&self) {
        if let Some(attempt) = &self.attempt {
            attempt.clear_expected();
        }
    }

    /// Returns the error of the filters: of devices, or of an out-of-tree plugin.
    pub fn failed(&self) -> Option<String> {
        let of_devices = self.devices.as_ref().and_then(DeviceClaims::error);
        of_devices.or_else(|| self.attempt.as_ref()?.error())
    }

    /// Returns the plugins of its volumes and devices.
    fn of_claims<'a>(&'a self, devices: &'a Devices) -> OfClaims<'a> {
        let volumes = self.claims.iter().flat_map(Claims::plugins).collect();
        (volumes, self.devices.as_ref().map(|claims| claims.among(devices)))
    }
}

/// Plugins of volumes, and the one of devices.
type OfClaims<'a> = (Vec<OfPlugin<'a>>, Option<OfDevices<'a>>);

/// Rows that only nominated pods close.
#[derive(Debug, Default)]
struct NominatedRows(HashMap<u32, Status>);

impl RowPlugin for NominatedRows {
    fn plugin(&self) -> Plugin {
        Plugin::NodeName
    }
    // Nominated pods count whatever plugins are enabled.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPluginsWithNominatedPods
    fn always(&self) -> bool {
        true
    }
    fn filter(&self, _: &View, _: &Program, row: u32) -> Option<Status> {
        self.0.get(&row).cloned()
    }
    fn score(&self, _: &View, _: &Program, _: u32) -> Option<i64> {
        None
    }
}

/// Diagnosis of a pod that fits no node.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Rejections by row.
    pub statuses: Vec<(u32, Status)>,
    /// Result of the preemption dry run.
    pub preemption: DryRun,
    /// Out-of-tree plugins that rejected it.
    pub rejected_by: Vec<Name>,
    /// A claim to deallocate, because other devices may fit.
    pub gives_back: Option<Rc<ResourceClaim>>,
    /// A claim of its group should be unreserved, because other devices may fit.
    pub unreserves: bool,
    /// An in-tree PostFilter plugin failed, so that no other one runs.
    pub fails: bool,
    /// Part of the message about ResourceClaims.
    pub of_claims: &'static str,
    /// The message with the reasons by node.
    pub text: String,
    /// The same with the parts about claims and preemption.
    pub message: String,
}

/// Scratch memory and state of decisions.
#[derive(Debug, Default)]
pub struct PodEvaluator {
    /// Scratch of the last decision.
    pub scratch: Scratch,
    /// Row at which the next sampling starts.
    from: u32,
    /// The potential node at which the next search for victims starts: upstream picks it at random.
    // k8s: defaultpreemption/default_preemption.go GetOffsetAndNumCandidates
    pub preempts_from: usize,
}

impl PodEvaluator {
    /// Decides; the ties are in the scratch.
    pub fn decide(&mut self, cache: &mut ClusterCache, asking: &Asking) -> Outcome {
        cache.cluster.use_profile(&asking.profile);
        let found = self.decide_beside(cache, asking, &NominatedRows::default());
        if found.feasible == 0 || found.refusal.is_some() {
            return found;
        }
        // Nodes that reject the pod as they are need no second check with nominated pods.
        let kept = self.kept(cache, asking, true);
        if kept.0.is_empty() { found } else { self.decide_beside(cache, asking, &kept) }
    }

    fn decide_beside(
        &mut self,
        cache: &ClusterCache,
        asking: &Asking,
        kept: &NominatedRows,
    ) -> Outcome {
        let view = cache.cluster.view();
        if let Some(refusal) = asking.refusal(view) {
            return Outcome { refusal: Some(refusal), ..Outcome::default() };
        }
        let claims = asking.of_claims(&cache.devices);
        let plugins = asking.of_rows(kept, &claims);
        crate::fault::pass("filter");
        select::decide_with(view, &asking.program, &plugins, &mut self.scratch)
    }

    /// Decides among as many nodes as the profile scores; the ties are in the scratch.
    pub fn choose(&mut self, cache: &mut ClusterCache, asking: &Asking) -> Outcome {
        let percent = asking.profile.percentage_of_nodes;
        let enough = select::sample_size(cache.cluster.view().node_count(), percent);
        // Extenders have filtered already: all remaining nodes are scored.
        if asking.consulted.is_some()
            || asking.placement.is_some()
            || asking.refused.is_some()
            || percent == 0
            || enough == cache.cluster.view().node_count()
        {
            return self.decide(cache, asking);
        }
        let kept = self.kept(cache, asking, false);
        let mut sample = NodeSample { from: self.from, enough };
        let (view, scratch) = (cache.cluster.view(), &mut self.scratch);
        let claims = asking.of_claims(&cache.devices);
        let plugins = asking.of_rows(&kept, &claims);
        let outcome = select::decide_sampled(view, &asking.program, &plugins, &mut sample, scratch);
        self.from = sample.from;
        outcome
    }

    /// Decides and keeps every score.
    pub fn decide_in_detail(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
    ) -> (Outcome, Detail) {
        let kept = self.kept(cache, asking, false);
        self.in_detail(cache, asking, &kept)
    }

    fn in_detail(
        &mut self,
        cache: &ClusterCache,
        asking: &Asking,
        kept: &NominatedRows,
    ) -> (Outcome, Detail) {
        let view = cache.cluster.view();
        if let Some(refusal) = asking.refusal(view) {
            let outcome = Outcome { refusal: Some(refusal), ..Outcome::default() };
            return (outcome, Detail::default());
        }
        let claims = asking.of_claims(&cache.devices);
        let plugins = asking.of_rows(kept, &claims);
        select::decide_in_detail(view, &asking.program, &plugins, &mut self.scratch)
    }

    /// Returns the nodes closed by nominated pods of the same or a higher priority: all such nodes,
    /// or only those that the last decision found feasible.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunFilterPluginsWithNominatedPods
    fn kept(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
        only_feasible: bool,
    ) -> NominatedRows {
        cache.cluster.use_profile(&asking.profile);
        let mut kept = NominatedRows::default();
        if let Some(devices) = asking.devices.as_ref().filter(|_| !only_feasible) {
            // Without nominated pods more nodes may have passed the earlier filters.
            devices.forget_unavailable();
        }
        for (node, pods) in cache.nominees(asking.uid(), asking.spec.priority) {
            let is_feasible = |row| self.scratch.feasible.get(row);
            if only_feasible && !cache.cluster.row(&node).is_some_and(is_feasible) {
                continue;
            }
            let status = self.beside(cache, asking, &node, &pods);
            kept.0.extend(status);
        }
        kept
    }

    /// Returns the rejection of a node with these pods added, and its row.
    fn beside(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
        node: &str,
        pods: &[Rc<PodSpec>],
    ) -> Option<(u32, Status)> {
        let row = cache.cluster.row(node)?;
        let scratch = &mut self.scratch;
        let shares = cache.expect_shares(node, pods);
        let (claims, kept) = (asking.of_claims(&cache.devices), NominatedRows::default());
        let plugins = asking.of_rows(&kept, &claims);
        asking.expects(&cache.cluster, cache.whole_pods.as_deref(), row, pods);
        let is_changing = &cache.is_changing;
        let found = with_pods(&mut cache.cluster, is_changing, node, pods, |cluster, _| {
            crate::fault::pass("beside");
            explain::status_of_row(cluster, &asking.program, &plugins, row, scratch)
        });
        asking.clear_expected();
        cache.expect_no_shares(shares);
        let found = found.unwrap_or_else(|panic| resume_unwind(panic));
        let found = found.or_else(|| {
            asking.claims.as_ref()?;
            let users = cache.expect_users(node, pods);
            if users.is_empty() {
                return None;
            }
            let look = || asking.beside_users(&cache.volumes, &cache.cluster, row, &[]);
            let beside = catch_unwind(AssertUnwindSafe(look));
            cache.expect_no_users(users);
            beside.unwrap_or_else(|panic| resume_unwind(panic))
        });
        found.map(|status| (row, status))
    }

    /// Returns the pod's nominated node, if it may be filtered, and true if the pod fits there with
    /// the pods nominated there that have precedence.
    // k8s: pkg/scheduler/schedule_one.go evaluateNominatedNode
    pub fn kept_node(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
    ) -> Option<(Rc<str>, bool)> {
        let node = Rc::clone(&cache.nomination(asking.uid())?.node);
        let row = cache.cluster.row(&node)?;
        cache.cluster.use_profile(&asking.profile);
        let is_elsewhere = asking.placement.as_ref().is_some_and(|p| !p.rows.get(row));
        if is_elsewhere || asking.any_refusal(cache.cluster.view()).is_some() {
            return None;
        }
        let (program, scratch) = (&asking.program, &mut self.scratch);
        let (claims, kept) = (asking.of_claims(&cache.devices), NominatedRows::default());
        let plugins = asking.of_rows(&kept, &claims);
        let view = cache.cluster.view();
        if select::rejector(view, program, &plugins, row, scratch).is_some() {
            return Some((node, false));
        }
        let others = cache.nominees(asking.uid(), asking.spec.priority);
        let others = others.get(&node).map_or(&[][..], Vec::as_slice);
        let fits = self.beside(cache, asking, &node, others).is_none();
        Some((node, fits))
    }

    /// Returns why the pod fits no node; `None` if it fits one.
    pub fn diagnose(&mut self, cache: &mut ClusterCache, asking: &Asking) -> Option<Diagnosis> {
        cache.cluster.use_profile(&asking.profile);
        let placement = asking.placement.as_deref();
        let nodes = placement.map_or(cache.cluster.view().node_count(), |p| p.nodes);
        if let Some(refusal) = asking.any_refusal(cache.cluster.view()) {
            return Some(self.refused(cache, asking, nodes, &refusal));
        }
        let kept = self.kept(cache, asking, false);
        let (outcome, detail) = self.in_detail(cache, asking, &kept);
        if let Some(refusal) = &outcome.refusal {
            return Some(self.refused(cache, asking, nodes, refusal));
        }
        if outcome.feasible > 0 {
            return None;
        }
        crate::fault::pass("score");
        let program = &asking.program;
        let found = explain::statuses(&cache.cluster, program, &detail, &mut self.scratch);
        let mut statuses: BTreeMap<u32, Status> = found.into_iter().collect();
        for (row, status) in kept.0 {
            // An absent node stays absent.
            if statuses.get(&row).is_none_or(|found| *found != Status::absent()) {
                statuses.insert(row, status);
            }
        }
        if let Some(placement) = placement {
            statuses.retain(|row, _| placement.rows.get(*row));
        }
        if let Some(absent) = asking.attempt.as_ref().and_then(|attempt| attempt.absent()) {
            let are_absent = statuses.values_mut().filter(|status| **status == Status::absent());
            are_absent.for_each(|status| *status = absent.clone());
        }
        let statuses: Vec<(u32, Status)> = statuses.into_iter().collect();
        let text = explain::summary(nodes, statuses.iter().map(|(_, status)| status));
        Some(self.conclude(cache, asking, nodes, text, statuses))
    }

    /// Decides what to do for a pod that no node accepts, and composes its message.
    fn conclude(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
        nodes: usize,
        text: String,
        statuses: Vec<(u32, Status)>,
    ) -> Diagnosis {
        // Read before preemption: plugins that reject nodes in its dry run must not count.
        let rejected_by = asking.attempt.as_ref().map(|attempt| attempt.rejected_by());
        let preemption = self.preempt(cache, asking, &statuses);
        let devices = asking.devices.as_ref();
        let gives_back = devices.and_then(DeviceClaims::to_give_back);
        let unreserves = devices.is_some() && gives_back.is_none() && asking.unreserves;
        let devices = devices.map(|_| gives_back.as_deref());
        let view = cache.cluster.view();
        let is_on = view.profile().filters(Plugin::DynamicResources);
        let of_claims = match unreserves && is_on {
            true => "ResourceClaim unreserved for PodGroup, ",
            false => of_claims(view, devices),
        };
        let message = with_preemption(&cache.cluster, nodes, &text, of_claims, &preemption);
        Diagnosis {
            statuses,
            rejected_by: rejected_by.unwrap_or_default(),
            preemption,
            gives_back,
            unreserves,
            fails: false,
            of_claims,
            text,
            message,
        }
    }

    fn preempt(
        &mut self,
        cache: &mut ClusterCache,
        asking: &Asking,
        statuses: &[(u32, Status)],
    ) -> DryRun {
        if let Some(ineligible) = may_not_preempt(cache, asking, statuses) {
            return DryRun { ineligible: Some(ineligible), ..DryRun::default() };
        }
        let Asking { pod, program, .. } = asking;
        let budgets = cache.budgets();
        let budgets = &budgets[..];
        let nominees = cache.nominees(asking.uid(), asking.spec.priority);
        let is_kept = |row: u32| nominees.contains_key(cache.cluster.node_name(row));
        let (kept, free): (Vec<_>, Vec<_>) =
            statuses.iter().cloned().partition(|(row, _)| is_kept(*row));
        let whole = cache.whole_pods.clone();
        let known = NodePluginState::of(&cache.volumes, &cache.devices, whole.as_deref());
        let without = |cluster: &Cluster, row, gone: &[PodId], before| {
            crate::fault::pass("dry run");
            asking.without(known, cluster, row, gone, before)
        };
        let (offset, expected) = (self.preempts_from, &[][..]);
        let attempt = Rc::clone(&cache.attempt_budget);
        let spent = &*attempt;
        let trials = preempt::Trials { budgets, offset, expected, without: &without, spent };
        let scratch = &mut self.scratch;
        let mut run = preempt::dry_run_from(&cache.cluster, pod, program, &free, &trials, scratch);
        let is_soft = |(_, status): &&(u32, Status)| status.code == Code::Unschedulable;
        let potential = free.iter().chain(&kept).filter(is_soft).count();
        let wanted = preempt::candidates_wanted(&asking.profile, potential);
        for one in kept {
            // k8s: pkg/scheduler/framework/preemption/preemption.go DryRunPreemption
            let is_enough =
                run.candidates.len() >= wanted && run.candidates.iter().any(|c| c.violations == 0);
            if is_enough || run.ineligible.is_some() {
                break;
            }
            let node: Rc<str> = cache.cluster.node_name(one.0).into();
            asking.expects(&cache.cluster, whole.as_deref(), one.0, &nominees[&node]);
            let users = cache.expect_users(&node, &nominees[&node]);
            let shares = cache.expect_shares(&node, &nominees[&node]);
            let known = NodePluginState::of(&cache.volumes, &cache.devices, whole.as_deref());
            let without = |cluster: &Cluster, row, gone: &[PodId], before| {
                let alone = asking.without(known, cluster, row, gone, before);
                let beside = || asking.beside_users(known.volumes, cluster, row, gone);
                if users.is_empty() { alone } else { alone.or_else(beside) }
            };
            let (columns, flag) = (&mut cache.cluster, &cache.is_changing);
            let others = with_pods(columns, flag, &node, &nominees[&node], |cluster, ids| {
                let trials =
                    preempt::Trials { budgets, offset: 0, expected: ids, without: &without, spent };
                preempt::dry_run_from(cluster, pod, program, &[one], &trials, scratch)
            });
            cache.expect_no_users(users);
            cache.expect_no_shares(shares);
            let others = others.unwrap_or_else(|panic| resume_unwind(panic));
            append(&mut run, others);
        }
        // An interrupted search evicts no pod.
        if run.ineligible.is_some() {
            run.candidates.clear();
        }
        asking.clear_expected();
        run.chosen = preempt::choose(&cache.cluster, &run.candidates);
        run
    }
}

/// Adds the dry run of further nodes to a search.
fn append(run: &mut DryRun, others: DryRun) {
    run.needless.extend(others.needless);
    run.potential.extend(others.potential);
    run.candidates.extend(others.candidates);
    run.rejected.extend(others.rejected);
    run.ineligible = others.ineligible;
}

/// Runs `look` with these pods on the node, except those bound already. They are removed even if it
/// panics.
fn with_pods<T>(
    cluster: &mut Cluster,
    is_changing: &Cell<bool>,
    node: &str,
    pods: &[Rc<PodSpec>],
    look: impl FnOnce(&Cluster, &[PodId]) -> T,
) -> std::thread::Result<T> {
    let new = pods.iter().filter(|pod| cluster.pods().find(pod.key).is_none());
    let new: Vec<&Rc<PodSpec>> = new.collect();
    is_changing.set(true);
    let ids: Vec<_> = new.iter().map(|pod| cluster.place_spec(pod, node, true)).collect();
    let seen = catch_unwind(AssertUnwindSafe(|| look(cluster, &ids)));
    ids.into_iter().for_each(|id| cluster.remove(id));
    is_changing.set(false);
    seen
}
