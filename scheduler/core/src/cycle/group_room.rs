//! Preemption for a whole pod group: selects victims when too few of its pods fit.
//!
//! ```text
//!   does not fit ──> remove all of lower priority ──fits──> add some back, most important first
//!                          │ does not fit                  │ still fits: they stay
//!                          v                               │ else: fewer; one alone is a victim
//!                      no victims                          v
//!                                              the victims are deleted
//! ```
//! Input: a group that does not fit, pods and groups of lower priority. Output: victims, or the
//! reason for none. Owner: the scheduler. Bounds: dry runs of the group as in `reprieve`. The cache
//! shows potential victims again whenever other work may run: during extender calls.
// k8s: pkg/scheduler/schedule_one_podgroup.go runWorkloadAwarePreemption,
//      pkg/scheduler/framework/preemption/podgrouppreemption.go

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use pintle_sched_core::preempt::units::{self, Unit};

use super::command::{Command, Fact, Related};
use super::evict::{going, victim};
use super::group::{GroupCycle, GroupOutcome, Tried, UNSCHEDULABLE, WAITS};
use super::reprieve::Reprieve;
use super::{QueuedPod, Scheduler};
use crate::cache::Hidden;
use crate::framework::Name;
use crate::groups::Preemptor;
use crate::pod_fields::PodRef;

/// Upstream's messages.
// k8s: defaultpreemption/default_preemption.go PostFilter
pub(super) const NOT_ONE_BY_ONE: &str = "not eligible due to workload aware preemption enabled";
// k8s: schedule_one_podgroup.go runWorkloadAwarePreemption, podgrouppreemption.go
const DISABLED: &str =
    "default preemption plugin is not registered, workload aware preemption is disabled";
const HAS_TOPOLOGY: &str =
    "workload aware preemption is not supported for pod groups with scheduling constraints";
const NEVER: &str = "not eligible due to preemptionPolicy=Never.";
const NO_VICTIMS: &str = "No preemption victims found for incoming preemptor";

/// Why there are no victims for a group.
enum GroupStop {
    Rejected(String),
    Failed(String),
}

/// Potential victims that are preempted together.
#[derive(Debug)]
pub(super) struct InTheWay {
    unit: Unit,
    is_away: bool,
    hidden: Vec<Hidden>,
}

/// A search for the victims of a group.
#[derive(Debug)]
pub(super) struct VictimSearch {
    pub(super) preemptor: Preemptor,
    /// Potential victims, in the order in which they are reprieved.
    pub(super) all: Vec<InTheWay>,
    /// The units added back in the current dry run; none in the first one.
    pub(super) back: Option<Range<usize>>,
    pub(super) reprieve: Reprieve,
    /// The group's results without preemption.
    pub(super) before: (Vec<Tried>, GroupOutcome),
    /// The out-of-tree plugins that rejected its pods then.
    pub(super) rejected_by: Vec<(Rc<QueuedPod>, Vec<Name>)>,
}

impl Scheduler {
    /// Returns true in a dry run of the group without some potential victims.
    pub(super) fn is_trial(&self) -> bool {
        self.group.as_ref().is_some_and(|cycle| cycle.search.is_some())
    }

    /// Starts or continues the search for victims; returns true if another dry run of the group is
    /// needed. Otherwise its outcome is final.
    pub(super) fn makes_room(&mut self, cycle: &mut GroupCycle, now: Duration) -> bool {
        match cycle.search.take() {
            Some(search) => self.goes_on_searching(cycle, search, now),
            None => self.begins_to_search(cycle),
        }
    }

    fn begins_to_search(&mut self, cycle: &mut GroupCycle) -> bool {
        let fits_not = matches!(cycle.came, GroupOutcome::Nowhere | GroupOutcome::NeedsRoom);
        if !fits_not || !cycle.group.preempts_whole() {
            return false;
        }
        let (preemptor, mut all) = match self.in_the_way(cycle) {
            Ok(found) => found,
            Err(stop) => {
                stops(cycle, stop);
                return false;
            }
        };
        all.iter_mut().for_each(|one| self.hide(one));
        let tried = std::mem::take(&mut cycle.tried);
        let before = (tried, std::mem::replace(&mut cycle.came, GroupOutcome::Nowhere));
        let rejected_by = before.0.iter().map(|tried| {
            let queued = Rc::clone(&tried.queued);
            let by = queued.rejected_by.borrow().clone();
            (queued, by)
        });
        let rejected_by = rejected_by.collect();
        // A group without constraints is tried on all nodes.
        cycle.trials = None;
        let reprieve = Reprieve::of(all.len());
        looks_again(
            cycle,
            VictimSearch { preemptor, all, back: None, reprieve, before, rejected_by },
        );
        true
    }

    /// Returns all potential victims as removed, in the order in which they are reprieved.
    // k8s: podgrouppreemption.go selectVictimsOnDomain
    fn in_the_way(&mut self, cycle: &GroupCycle) -> Result<(Preemptor, Vec<InTheWay>), GroupStop> {
        let rejected = |why: &str| Err(GroupStop::Rejected(why.to_owned()));
        if !self.cache.profile(cycle.profile).preemption {
            return rejected(DISABLED);
        }
        let preemptor = cycle.group.preemptor();
        let preemptor = preemptor.map_err(|error| GroupStop::Failed(error.to_string()))?;
        if preemptor.has_topology {
            return rejected(HAS_TOPOLOGY);
        }
        let tried = cycle.tried.iter().map(|tried| &tried.queued);
        let mut pods = tried.chain(cycle.left.iter().map(|(_, queued)| queued));
        let never = |queued: &Rc<QueuedPod>| {
            let pod = queued.pod.whole();
            let policy = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
            policy == Some("Never")
        };
        if pods.any(never) {
            return rejected(NEVER);
        }
        let budgets = self.cache.budgets();
        let cluster = &self.cache.cluster;
        let groups = self.cache.groups.as_ref().map(|groups| groups.memberships(cluster));
        let mut all = units::below(cluster, preemptor.priority, &groups.unwrap_or_default());
        if all.is_empty() {
            return rejected(NO_VICTIMS);
        }
        units::sort(&mut all);
        let (violating, others) = units::split(cluster, all, &budgets, &self.cache.attempt_budget)
            .map_err(|exhausted| GroupStop::Rejected(exhausted.to_string()))?;
        let all = violating.into_iter().chain(others);
        let all = all.map(|unit| InTheWay { unit, is_away: true, hidden: Vec::new() });
        Ok((preemptor, all.collect()))
    }

    /// Handles the outcome of a dry run without some potential victims; returns true if another one
    /// is needed.
    fn goes_on_searching(
        &mut self,
        cycle: &mut GroupCycle,
        mut search: VictimSearch,
        now: Duration,
    ) -> bool {
        cycle.tried.clear();
        let came = std::mem::replace(&mut cycle.came, GroupOutcome::Nowhere);
        let fits = came == GroupOutcome::Fits;
        match search.back.take() {
            None if !fits => {
                self.end_search(cycle, search);
                let stop = match came {
                    GroupOutcome::Failed(error) => GroupStop::Failed(error),
                    _ => GroupStop::Rejected(unschedulable(cycle).to_owned()),
                };
                stops(cycle, stop);
                return false;
            }
            None => {}
            Some(back) => {
                for one in search.all[back.clone()].iter_mut().filter(|_| !fits) {
                    one.is_away = true;
                    self.hide(one);
                }
                search.reprieve.saw(back, fits);
            }
        }
        if let Some(back) = search.reprieve.next() {
            for one in &mut search.all[back.clone()] {
                one.is_away = false;
                self.show(one);
            }
            search.back = Some(back);
            looks_again(cycle, search);
            return true;
        }
        let away = search.all.iter().filter(|one| one.is_away);
        let victims: Vec<Unit> = away.map(|one| one.unit.clone()).collect();
        let preemptor = search.preemptor.clone();
        self.end_search(cycle, search);
        self.make_room_for_group(cycle.profile, &preemptor, victims, now);
        if cycle.came == GroupOutcome::Nowhere {
            cycle.message.get_or_insert_with(|| UNSCHEDULABLE.to_owned());
            cycle.came = GroupOutcome::NeedsRoom;
        }
        false
    }

    /// Restores the state before the search.
    pub(super) fn end_search(&mut self, cycle: &mut GroupCycle, mut search: VictimSearch) {
        search.all.iter_mut().for_each(|one| self.show(one));
        for (queued, by) in search.rejected_by {
            *queued.rejected_by.borrow_mut() = by;
        }
        (cycle.tried, cycle.came) = search.before;
        cycle.left.clear();
    }

    // k8s: preemption/executor.go actuatePodGroupPreemption
    fn make_room_for_group(
        &mut self,
        profile: usize,
        preemptor: &Preemptor,
        mut units: Vec<Unit>,
        now: Duration,
    ) {
        units::sort(&mut units);
        let cluster = &self.cache.cluster;
        let all = units.iter().flat_map(|unit| &unit.pods);
        let all: Vec<_> = all.filter_map(|pod| cluster.pods().find(*pod)).collect();
        // Victims that are already terminating are not deleted again.
        let live = all.iter().filter(|id| !cluster.pods().get(**id).terminating);
        let mut victims: Vec<PodRef> = live.map(|id| victim(cluster, *id)).collect();
        if victims.is_empty() {
            return;
        }
        self.facts.push(Fact::Preempted(all.len()));
        let Preemptor { key, uid, version, .. } = preemptor;
        let group = PodRef { key: key.clone(), uid: uid.clone() };
        let name = self.reporter(profile);
        let related = Related::Group(group.clone(), version.clone());
        let text = format!("Preempted by podgroup {uid} on node cluster");
        self.preempt_in_memory(&mut victims, &name, &related, &text, now);
        if victims.is_empty() {
            return;
        }
        let notes = going(&victims, &name, &related, &text);
        let message = format!("{name}: preempting to accommodate a higher priority podgroup");
        self.cache.groups.iter().for_each(|groups| groups.preempts(uid));
        self.commands.push(Command::Evict { victims, pod: group, message, notes });
    }

    /// Hides the removed potential victims of the current search.
    pub(super) fn hide_those_away(&mut self) {
        let Some(mut search) = self.group.as_mut().and_then(|cycle| cycle.search.take()) else {
            return;
        };
        search.all.iter_mut().filter(|one| one.is_away).for_each(|one| self.hide(one));
        if let Some(cycle) = &mut self.group {
            cycle.search = Some(search);
        }
    }

    /// Shows all potential victims while other work may run.
    pub(super) fn show_those_away(&mut self) {
        let Some(mut search) = self.group.as_mut().and_then(|cycle| cycle.search.take()) else {
            return;
        };
        search.all.iter_mut().for_each(|one| self.show(one));
        if let Some(cycle) = &mut self.group {
            cycle.search = Some(search);
        }
    }

    fn hide(&mut self, one: &mut InTheWay) {
        if one.hidden.is_empty() {
            one.hidden.extend(one.unit.pods.iter().filter_map(|pod| self.cache.hide(*pod)));
        }
    }

    fn show(&mut self, one: &mut InTheWay) {
        one.hidden.drain(..).for_each(|hidden| self.cache.show(hidden));
    }
}

/// Prepares another dry run of all pods.
fn looks_again(cycle: &mut GroupCycle, search: VictimSearch) {
    let again = search.before.0.iter().map(|one| (one.uid.clone(), Rc::clone(&one.queued)));
    cycle.left = again.collect();
    cycle.needs_room = false;
    cycle.search = Some(search);
}

/// The message of a group that does not fit.
fn unschedulable(cycle: &GroupCycle) -> &str {
    cycle.message.as_deref().unwrap_or(UNSCHEDULABLE)
}

/// Ends the preemption for a group without victims.
fn stops(cycle: &mut GroupCycle, stop: GroupStop) {
    match stop {
        GroupStop::Failed(error) => cycle.came = GroupOutcome::Failed(error),
        GroupStop::Rejected(why) => {
            let usual = if cycle.came == GroupOutcome::NeedsRoom { WAITS } else { UNSCHEDULABLE };
            let message = cycle.message.as_deref().unwrap_or(usual);
            cycle.message = Some(format!("{message}, {why}"));
        }
    }
}
