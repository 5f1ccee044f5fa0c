//! One attempt of one pod, as out-of-tree plugins see it.
//!
//! Input: the pod, whole nodes by row. Output: statuses and scores in addition to those of the
//! columns, and the steps after a node was selected. Owner: the cycle; the dispatcher while
//! the pod is being bound. Bounds: the nodes that pass the columns.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins .. RunPostBindPlugins

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_sched_core::bits::Bits;
use pintle_sched_core::config::{RANK_LAST, Rank};
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::program::Program;
use pintle_sched_core::select::RowPlugin;
use pintle_sched_core::snapshot::View;
use pintle_sched_core::{Plugin, Profile};

use super::meter;
use super::points::{
    CycleState, NodeInfo, Nodes, Permission, PluginError, PreFilterExtensions, Rejection,
};
use super::trial::{Expected, Trial};
use super::{Name, Plugins};

/// Longest wait for Permit.
// k8s: pkg/scheduler/framework/runtime/framework.go maxTimeout
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);
/// Highest score of a node.
const SCORE_MAX: i64 = 100;

/// Failure of the plugins of one extension point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointError {
    /// A plugin failed.
    #[error("running {point} plugin {name:?}: {error}")]
    Plugin {
        /// The extension point.
        point: &'static str,
        /// The plugin.
        name: Name,
        /// Its error.
        error: PluginError,
    },
    /// A score that is out of range after normalizing.
    #[error(
        "plugin {name:?} returns an invalid score {score}, it should in the range of \
         [0, {SCORE_MAX}] after normalizing"
    )]
    Score {
        /// The plugin.
        name: Name,
        /// Its score.
        score: i64,
    },
    /// No plugin has bound the pod, and the default binder is disabled.
    #[error("all of the Bind plugins skipped the pod")]
    NoneBound,
}

/// Whole nodes by row.
pub(crate) type WholeNodes = Rc<Vec<Option<Rc<Node>>>>;

/// The end of an attempt before a node was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// These plugins rejected the pod.
    Rejected(Vec<Name>, Code, String),
    /// A plugin failed.
    Failed(String),
}

impl Stopped {
    fn of(point: &str, name: &Name, rejection: Rejection) -> Self {
        match rejection {
            Rejection::Unschedulable(why) => {
                Self::Rejected(vec![Rc::clone(name)], Code::Unschedulable, why)
            }
            Rejection::Unresolvable(why) => {
                Self::Rejected(vec![Rc::clone(name)], Code::UnschedulableAndUnresolvable, why)
            }
            Rejection::Error(error) => {
                Self::Failed(format!("running {point} plugin {name:?}: {error}"))
            }
        }
    }
}

/// The outcome of PostFilter plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The pod is nominated to this node.
    Kept(String),
    /// No plugin nominated the pod; the message of each.
    None(Vec<String>),
    /// A plugin ended PostFilter with this message.
    Never(String),
}

/// One attempt of one pod.
pub struct Attempt {
    pub(super) plugins: Rc<Plugins>,
    /// Plugin calls are timed in this attempt.
    pub(super) is_timed: bool,
    pub(super) pod: Rc<Pod>,
    pub(super) state: CycleState,
    pub(super) nodes: RefCell<WholeNodes>,
    /// Pods that a dry run adds to the node under evaluation, or removes from it.
    pub(super) expected: RefCell<Option<Expected>>,
    pub(super) trial: RefCell<Option<Trial>>,
    /// The node names that the pod's own affinity allows.
    own: Option<BTreeSet<String>>,
    /// The nodes that PreFilter plugins leave, and the plugins that excluded others.
    only: Option<(BTreeSet<String>, BTreeSet<Name>)>,
    /// Filters that are skipped for this pod.
    skipped: BTreeSet<Name>,
    rejected_by: RefCell<BTreeSet<Name>>,
    error: RefCell<Option<String>>,
    scores: RefCell<HashMap<u32, i64>>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").finish_non_exhaustive()
    }
}

impl PartialEq for Attempt {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Attempt {
    /// Begins an attempt: runs the PreFilter plugins before rank `before`. A pod of a stopped
    /// attempt may still preempt.
    pub(crate) fn begin(
        plugins: &Rc<Plugins>,
        pod: &Rc<Pod>,
        nodes: WholeNodes,
        own: Option<BTreeSet<String>>,
        before: Rank,
    ) -> (Self, Option<Stopped>) {
        let mut attempt = Self {
            plugins: Rc::clone(plugins),
            is_timed: plugins.is_sampled(),
            pod: Rc::clone(pod),
            state: CycleState::default(),
            nodes: RefCell::new(nodes),
            expected: RefCell::default(),
            trial: RefCell::default(),
            own,
            only: None,
            skipped: BTreeSet::new(),
            rejected_by: RefCell::default(),
            error: RefCell::default(),
            scores: RefCell::default(),
        };
        let stopped = attempt.pre_filter(before).err();
        (attempt, stopped)
    }

    fn pre_filter(&mut self, before: Rank) -> Result<(), Stopped> {
        let mut stopped = None;
        let all = self.plugins.pre_filters.iter().zip(&self.plugins.pre_filter_ranks);
        for ((name, _, plugin), _) in all.take_while(|(_, rank)| **rank < before) {
            let run = || plugin.pre_filter(&self.state, &self.pod);
            self.evaluates("PreFilter", name, 1);
            match self.timed(name, "PreFilter", run, meter::of_nodes) {
                Ok(Nodes::All) => {}
                Ok(Nodes::Skip) => _ = self.skipped.insert(Rc::clone(name)),
                Ok(Nodes::Only(names)) => {
                    let only = self.leaves(&names, name);
                    let none = only.0.is_empty().then(|| nowhere(&only.1));
                    self.only = Some(only);
                    none.map_or(Ok(()), Err)?;
                }
                // Preemption may follow, and needs every PreFilter plugin's state.
                Err(why @ Rejection::Unschedulable(_)) => {
                    stopped = Some(Stopped::of("PreFilter", name, why));
                }
                Err(why) => return Err(Stopped::of("PreFilter", name, why)),
            }
        }
        stopped.map_or(Ok(()), Err)
    }

    /// Returns the nodes that all plugins so far leave, and the plugins that excluded others.
    fn leaves(&self, names: &BTreeSet<String>, name: &Name) -> (BTreeSet<String>, BTreeSet<Name>) {
        let own = || {
            let by = Name::from(Plugin::NodeAffinity.name());
            self.own.as_ref().map(|own| (own.clone(), [by].into()))
        };
        let (left, mut by) =
            self.only.clone().or_else(own).unwrap_or_else(|| (names.clone(), BTreeSet::new()));
        by.insert(Rc::clone(name));
        (left.intersection(names).cloned().collect(), by)
    }

    fn info<'a>(&self, nodes: &'a WholeNodes, view: &View, row: u32) -> Option<NodeInfo<'a>> {
        let node = nodes.get(row as usize)?.as_deref()?;
        Some(NodeInfo { node, numbers: view.numbers(row) })
    }

    /// Returns the status of a node that a PreFilter plugin excluded.
    fn outside(&self, node: &str) -> Option<Status> {
        let (_, by) = self.only.as_ref().filter(|(left, _)| !left.contains(node))?;
        self.rejected_by.borrow_mut().extend(others(by));
        self.absent()
    }

    /// Returns the status of nodes without evaluation, if an out-of-tree plugin excluded some.
    // k8s: pkg/scheduler/schedule_one.go findNodesThatFitPod
    pub(crate) fn absent(&self) -> Option<Status> {
        let (_, by) = self.only.as_ref()?;
        let reason = format!("node(s) didn't satisfy plugin(s) {}", listed(by));
        Some(status(Code::UnschedulableAndUnresolvable, reason))
    }

    /// Returns the whole node of a row.
    pub(super) fn known<'a>(
        &self,
        nodes: &'a WholeNodes,
        view: &View,
        row: u32,
    ) -> Result<NodeInfo<'a>, Status> {
        // No pod fits on a node while its whole object is missing.
        let unknown = || status(Code::Unschedulable, "node(s) were not known yet".to_owned());
        self.info(nodes, view, row).ok_or_else(unknown)
    }

    fn run_filters(&self, view: &View, row: u32, run: Range<usize>) -> Option<Status> {
        let nodes = Rc::clone(&self.nodes.borrow());
        let info = match self.known(&nodes, view, row) {
            Ok(info) => info,
            Err(status) => return Some(status),
        };
        if let Some(status) = self.outside(info.name()) {
            return Some(status);
        }
        match self.state_at(&info, row) {
            None => self.ask_filters(&self.state, &info, run),
            Some(Ok(state)) => self.ask_filters(&state, &info, run),
            Some(Err(status)) => Some(status),
        }
    }

    /// Returns the filters at this rank.
    pub(super) fn run_at(&self, rank: Rank) -> Range<usize> {
        let mut runs = self.plugins.filter_runs.iter();
        runs.find(|(first, _)| *first == rank).map_or(0..0, |(_, run)| run.clone())
    }

    pub(super) fn ask_filters(
        &self,
        state: &CycleState,
        info: &NodeInfo<'_>,
        run: Range<usize>,
    ) -> Option<Status> {
        let active = self.plugins.filters[run].iter();
        let active = active.filter(|(name, ..)| !self.skipped.contains(name));
        for (name, _, plugin) in active {
            self.evaluates("Filter", name, 1);
            let run = || plugin.filter(state, &self.pod, info);
            if let Err(why) = self.timed(name, "Filter", run, meter::of_result) {
                return Some(self.rejects("Filter", name, why));
            }
        }
        None
    }

    /// Returns the status of a node that a plugin rejects or fails to evaluate.
    pub(super) fn rejects(&self, point: &str, name: &Name, why: Rejection) -> Status {
        match Stopped::of(point, name, why) {
            Stopped::Rejected(names, code, why) => {
                self.rejected_by.borrow_mut().extend(names);
                status(code, why)
            }
            Stopped::Failed(error) => {
                self.error.borrow_mut().get_or_insert(error.clone());
                status(Code::Unschedulable, error)
            }
        }
    }

    /// Returns the plugins that follow pods added and removed in dry runs.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterExtensionAddPod
    pub(super) fn followers(&self) -> impl Iterator<Item = (&Name, &dyn PreFilterExtensions)> {
        let active =
            self.plugins.pre_filters.iter().filter(|(name, ..)| !self.skipped.contains(name));
        active.filter_map(|(name, _, plugin)| Some((name, plugin.extensions()?)))
    }

    /// Scores all feasible rows.
    fn run_scores(&self, view: &View, feasible: &Bits) -> Result<HashMap<u32, i64>, PointError> {
        let failed = |point, name: &Name, error| {
            let name = Rc::clone(name);
            PointError::Plugin { point, name, error }
        };
        if self.plugins.scores.is_empty() {
            return Ok(HashMap::new());
        }
        let nodes = Rc::clone(&self.nodes.borrow());
        let known = feasible.iter().filter_map(|row| Some((row, self.info(&nodes, view, row)?)));
        let (rows, infos): (Vec<u32>, Vec<NodeInfo<'_>>) = known.unzip();
        let mut skipped = BTreeSet::new();
        for (name, _, plugin) in &self.plugins.pre_scores {
            self.evaluates("PreScore", name, 1);
            let run = || plugin.pre_score(&self.state, &self.pod, &infos);
            let prepared = self.timed(name, "PreScore", run, meter::of_prepared);
            if !prepared.map_err(|error| failed("PreScore", name, error))? {
                skipped.insert(Rc::clone(name));
            }
        }
        let mut sums = vec![0_i64; rows.len()];
        for (name, weight, plugin) in &self.plugins.scores {
            if skipped.contains(name) {
                continue;
            }
            self.evaluates("Score", name, infos.len());
            let scored = infos.iter().map(|info| {
                let run = || plugin.score(&self.state, &self.pod, info);
                self.timed(name, "Score", run, meter::of_done)
            });
            let scored: Result<Vec<i64>, PluginError> = scored.collect();
            let mut scored = scored.map_err(|error| failed("Score", name, error))?;
            let run = || plugin.normalize(&self.state, &self.pod, &mut scored);
            meter::call_plugin(name, "NormalizeScore", run).map_err(|panic| {
                failed("NormalizeScore", name, PluginError::new(panic.to_string()))
            })?;
            for (sum, score) in sums.iter_mut().zip(scored) {
                if !(0..=SCORE_MAX).contains(&score) {
                    return Err(PointError::Score { name: Rc::clone(name), score });
                }
                *sum = sum.saturating_add(score.saturating_mul(*weight));
            }
        }
        Ok(rows.into_iter().zip(sums).collect())
    }

    /// Returns the first error of a filter.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// Returns the rank of a plugin among all PreFilter plugins.
    pub(crate) fn pre_filter_rank(&self, name: &str) -> Rank {
        let mut all = self.plugins.pre_filters.iter().zip(&self.plugins.pre_filter_ranks);
        all.find(|((other, ..), _)| **other == *name).map_or(RANK_LAST, |(_, rank)| *rank)
    }

    /// Returns the plugins that rejected nodes.
    pub(crate) fn rejected_by(&self) -> Vec<Name> {
        self.rejected_by.borrow().iter().cloned().collect()
    }

    /// Drops the nodes: no further node is evaluated in this attempt.
    pub(crate) fn forget_nodes(&self) {
        *self.nodes.borrow_mut() = WholeNodes::default();
        self.clear_expected();
        self.scores.borrow_mut().clear();
    }

    /// Runs the PostFilter plugins for a pod that fits on no node.
    // k8s: pkg/scheduler/framework/runtime/framework.go RunPostFilterPlugins
    pub(crate) fn post_filter(&self, why: &str) -> Room {
        let mut added = Vec::new();
        for (name, _, plugin) in &self.plugins.post_filters {
            let run = || plugin.post_filter(&self.state, &self.pod, why);
            match self.timed(name, "PostFilter", run, meter::of_room) {
                Ok(Some(node)) => return Room::Kept(node),
                Ok(None) => {}
                Err(Rejection::Unschedulable(text)) => added.push(text),
                Err(Rejection::Unresolvable(text)) => return Room::Never(text),
                Err(Rejection::Error(error)) => {
                    tracing::error!("running PostFilter plugin {name:?}: {error}");
                    return Room::Never(error);
                }
            }
        }
        Room::None(added)
    }

    pub(crate) fn reserve(&self, node: &str) -> Result<(), Stopped> {
        for (name, _, plugin) in &self.plugins.reserves {
            let run = || plugin.reserve(&self.state, &self.pod, node);
            let reserved = self.timed(name, "Reserve", run, meter::of_result);
            reserved.map_err(|why| Stopped::of("Reserve", name, why))?;
        }
        Ok(())
    }

    pub(crate) fn unreserve(&self, node: &str) {
        for (name, _, plugin) in self.plugins.reserves.iter().rev() {
            let run = || plugin.unreserve(&self.state, &self.pod, node);
            self.timed(name, "Unreserve", run, |()| "Success");
        }
    }

    /// Returns the Permit plugins that delay the pod, each with its longest wait.
    pub(crate) fn permit(&self, node: &str) -> Result<BTreeMap<Name, Duration>, Stopped> {
        let mut pending = BTreeMap::new();
        for (name, _, plugin) in &self.plugins.permits {
            let run = || plugin.permit(&self.state, &self.pod, node);
            match self.timed(name, "Permit", run, meter::of_permission) {
                Ok(Permission::Granted) => {}
                Ok(Permission::Wait(time)) => {
                    pending.insert(Rc::clone(name), time.min(WAIT_MAX));
                }
                Err(why) => return Err(Stopped::of("Permit", name, why)),
            }
        }
        Ok(pending)
    }

    /// Returns true if a plugin runs after a node is selected.
    pub(crate) fn acts_late(&self) -> bool {
        self.plugins.acts_late()
    }

    /// Returns true if a PreBind plugin is enabled.
    pub fn prepares_binding(&self) -> bool {
        !self.plugins.pre_binds.is_empty()
    }

    /// Runs the PreBind plugins until one fails.
    ///
    /// # Errors
    /// A plugin fails.
    pub async fn pre_bind(&self, node: &str) -> Result<(), PointError> {
        for (name, _, plugin) in &self.plugins.pre_binds {
            let began = Instant::now();
            let done = plugin.pre_bind(&self.state, &self.pod, node).await;
            self.took(name, "PreBind", meter::of_done(&done), began.elapsed());
            done.map_err(|error| PointError::Plugin {
                point: "PreBind",
                name: Rc::clone(name),
                error,
            })?;
        }
        Ok(())
    }

    /// Binds the pod by a plugin; `None` leaves it to the default binder.
    pub async fn bind(&self, node: &str) -> Option<Result<(), PointError>> {
        for (name, _, plugin) in &self.plugins.binds {
            let began = Instant::now();
            let done = plugin.bind(&self.state, &self.pod, node).await;
            let status = done.as_ref().map_or("Skip", meter::of_done);
            self.took(name, "Bind", status, began.elapsed());
            if let Some(done) = done {
                let failed =
                    |error| PointError::Plugin { point: "Bind", name: Rc::clone(name), error };
                return Some(done.map_err(failed));
            }
        }
        let nobody = || Err(PointError::NoneBound);
        (!self.plugins.binds_by_default).then(nobody)
    }

    pub(crate) fn post_bind(&self, node: &str) {
        for (name, _, plugin) in &self.plugins.post_binds {
            let run = || plugin.post_bind(&self.state, &self.pod, node);
            self.timed(name, "PostBind", run, |()| "Success");
        }
    }
}

/// The rejection when PreFilter plugins together leave no node.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPreFilterPlugins
fn nowhere(by: &BTreeSet<Name>) -> Stopped {
    let plugins = match by.len() {
        1 => format!("plugin {}", by.iter().map(|name| &**name).collect::<String>()),
        _ => format!("plugin(s) {} simultaneously", listed(by)),
    };
    let reason = format!("node(s) didn't satisfy {plugins}");
    Stopped::Rejected(others(by).collect(), Code::UnschedulableAndUnresolvable, reason)
}

fn listed(names: &BTreeSet<Name>) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    format!("[{}]", names.join(" "))
}

/// The out-of-tree plugins among these.
fn others(names: &BTreeSet<Name>) -> impl Iterator<Item = Name> {
    names.iter().filter(|name| Plugin::from_name(name).is_none()).cloned()
}

fn status(code: Code, reason: String) -> Status {
    Status { plugin: Some(Plugin::OutOfTree), code, reasons: vec![reason] }
}

impl RowPlugin for Attempt {
    fn plugin(&self) -> Plugin {
        Plugin::OutOfTree
    }

    /// Excluded nodes are rejected before all filters.
    fn ranks(&self, _: &Profile) -> Vec<Rank> {
        let runs = self.plugins.filter_runs.iter().map(|(rank, _)| *rank);
        [0].into_iter().chain(runs).collect()
    }

    fn filter(&self, view: &View, _: &Program, row: u32) -> Option<Status> {
        self.run_filters(view, row, 0..self.plugins.filters.len())
    }

    fn filter_at(&self, rank: Rank, view: &View, _: &Program, row: u32) -> Option<Status> {
        self.run_filters(view, row, self.run_at(rank))
    }

    fn prepare(&self, view: &View, feasible: &Bits) {
        match self.run_scores(view, feasible) {
            Ok(scores) => *self.scores.borrow_mut() = scores,
            Err(error) => _ = self.error.borrow_mut().get_or_insert_with(|| error.to_string()),
        }
    }

    fn weight(&self, _: &Profile) -> i64 {
        i64::from(!self.plugins.scores.is_empty())
    }

    fn score(&self, _: &View, _: &Program, row: u32) -> Option<i64> {
        self.scores.borrow().get(&row).copied()
    }
}
