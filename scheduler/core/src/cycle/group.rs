//! Pod groups: all pending pods of a group are decided together. A dry run assumes their nodes one
//! after the other and reverts that; then each pod is assumed or rejected, as enough pods fit or
//! not.
//!
//! ```text
//!   pop ──> other pods of the group ──> find, reserve, permit (dry run) ──> revert ────┐
//!                                         (one after the other)                        v
//!       fits: assume each pod    waits for victims: nominate    does not fit: reject all pods
//! ```
//! Input: the popped pod, the other pods of its group, the cluster. Output: the result of each pod,
//! and a condition of the group. Owner: the scheduler; an extender call suspends the dry run, and
//! no other pod is decided meanwhile. Bounds: the pods of a group.
// k8s: pkg/scheduler/schedule_one_podgroup.go

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::command::{Command, Fact};
use super::consult::ExtenderAnswers;
use super::decide::{NodeSearch, PodRejection};
use super::devices::Reserving;
use super::group_room::{NOT_ONE_BY_ONE, VictimSearch};
use super::topology::Trials;
use super::{QueuedPod, Scheduler, Uid};
use crate::cache::{CacheDelta, Nominee};
use crate::framework::Attempt;
use crate::groups::{OfGroup, SCHEDULED};
use crate::queue::Rejectors;

/// Upstream's messages.
// k8s: schedule_one_podgroup.go errPodGroupUnschedulable, podGroupSchedulingDefaultAlgorithm,
//      gangscheduling.go Permit, framework/runtime/framework.go RunPermitPlugins
pub(super) const UNSCHEDULABLE: &str = "pod group is unschedulable";
pub(super) const WAITS: &str =
    "pod group is unschedulable, pod group is waiting for preemption to complete";
const TOO_FEW: &str = "pod group is unschedulable, waiting for minCount pods from a gang to be \
    scheduled, one or more plugins asked to wait and no plugin rejected pod";
const OTHER_FAILED: &str = "failed to schedule other pod from a pod group";

/// The outcome of a group so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GroupOutcome {
    /// Too few pods fit.
    Nowhere,
    /// Enough pods would fit after a preemption.
    NeedsRoom,
    /// Enough pods fit.
    Fits,
    /// An error.
    Failed(String),
}

/// A group that is being decided.
#[derive(Debug)]
pub(super) struct GroupCycle {
    pub(super) group: OfGroup,
    pub(super) profile: usize,
    pub(super) left: VecDeque<(Uid, Rc<QueuedPod>)>,
    pub(super) tried: Vec<Tried>,
    pub(super) came: GroupOutcome,
    pub(super) needs_room: bool,
    /// The message for the group, if not the default.
    pub(super) message: Option<String>,
    /// The reason why its pods do not preempt one by one.
    pub(super) never_preempts: Option<&'static str>,
    /// The placements to try, one after the other.
    pub(super) trials: Option<Trials>,
    /// The search for victims of the whole group.
    pub(super) search: Option<VictimSearch>,
    /// Claims to release if none of its pods gets a node.
    pub(super) unreserved: Vec<Rc<ResourceClaim>>,
    /// Claims to deallocate for pods without a node; such a pod may still get a node in another
    /// placement.
    pub(super) gives_back: Vec<(Uid, Rc<ResourceClaim>)>,
    /// Pods that fit in some placement.
    pub(super) had_node: HashSet<Uid>,
}

impl GroupCycle {
    /// Returns the pods of the group that are decided, the current one excepted.
    pub(super) fn pods(&self) -> Vec<(Uid, Rc<QueuedPod>)> {
        let tried = self.tried.iter().map(|one| (one.uid.clone(), Rc::clone(&one.queued)));
        tried.chain(self.left.iter().cloned()).collect()
    }
}

/// A pod of the group after its dry run.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) uid: Uid,
    pub(super) queued: Rc<QueuedPod>,
    pub(super) place: Option<ReservedNode>,
    /// Why it has no node, or cannot have it yet.
    why: Option<PodRejection>,
    /// Its reverted device reservation: a pod that gets a node keeps the written claims.
    devices: Option<Reserving>,
}

/// A node that a pod has in the dry run.
#[derive(Debug)]
pub(super) struct ReservedNode {
    node: Rc<str>,
    attempt: Option<Rc<Attempt>>,
    /// The pod's nomination before the dry run.
    kept: Option<Nominee>,
    /// The pod would be bound without waiting for Permit.
    is_permitted: bool,
}

impl Scheduler {
    /// Decides all pending pods of the group of this pod.
    // k8s: schedule_one_podgroup.go scheduleOnePodGroup, podGroupInfoForPod
    pub(super) fn decide_group(&mut self, uid: Uid, queued: Rc<QueuedPod>, now: Duration) {
        let Some(group) = queued.group.clone() else { return };
        let mut all = vec![(uid.clone(), queued)];
        for other in group.waiting().into_iter().filter(|other| *other != uid) {
            all.extend(self.queue.pop_this(&other, now).map(|queued| (other, queued)));
        }
        all.sort_by_key(|(uid, queued)| {
            let waiting = self.queue.get(uid);
            let since = waiting.map(|waiting| (waiting.first_attempt, waiting.number()));
            (Reverse(queued.spec.priority), since)
        });
        let profile = all[0].1.profile;
        if let Some((_, other)) = all.iter().find(|(_, other)| other.profile != profile) {
            let name = |of: usize| self.cache.profile(of).scheduler_name.clone();
            let (first, other) = (name(profile), name(other.profile));
            let error = format!(
                "all pods in a single pod group should have the same .spec.schedulerName set, \
                 got: {other:?} and {first:?}"
            );
            for (uid, queued) in all {
                self.refuse(&uid, &queued, PodRejection::error(error.clone()), now);
            }
            return;
        }
        all.retain(|(uid, queued)| {
            let skips = self.skips(uid, queued);
            if skips {
                self.queue.done(uid);
            }
            !skips
        });
        if all.is_empty() {
            return;
        }
        self.attempts_all(all.iter().cloned());
        let never_preempts = group.preempts_whole().then_some(NOT_ONE_BY_ONE);
        let mut cycle = GroupCycle {
            group,
            profile,
            left: all.into(),
            tried: Vec::new(),
            came: GroupOutcome::Nowhere,
            needs_room: false,
            message: None,
            never_preempts,
            trials: None,
            search: None,
            unreserved: Vec::new(),
            gives_back: Vec::new(),
            had_node: HashSet::new(),
        };
        if cycle.group.has_placements() && !self.find_placements(&mut cycle) {
            self.makes_room(&mut cycle, now);
            return self.submit(cycle, now);
        }
        self.cache.devices.decides_group(true);
        self.group = Some(cycle);
        self.go_on(now);
    }

    /// Continues the dry run with the next pod of the group.
    pub(super) fn go_on(&mut self, now: Duration) {
        self.hide_those_away();
        // Each pod continues in `goes_on`, unless extenders are called.
        while self.consulting.is_none()
            && let Some(cycle) = &mut self.group
        {
            let next = if matches!(cycle.came, GroupOutcome::Failed(_)) {
                None
            } else {
                cycle.left.pop_front()
            };
            match next {
                // The pod was deleted or bound by another scheduler during an extender call.
                Some((uid, queued)) if !self.still_waits(&uid, &queued) => self.queue.done(&uid),
                Some((uid, queued)) => {
                    self.decides_since = now;
                    let found = self.find(&uid, &queued, &ExtenderAnswers::Nothing, now);
                    self.count_found(&found, now);
                    self.found_for_group(&uid, &queued, found, now);
                }
                None => {
                    let Some(mut cycle) = self.group.take() else { return };
                    self.take_all_back(&mut cycle.tried);
                    if self.is_set_back() {
                        self.fail_group(&mut cycle);
                        self.submit(cycle, now);
                    } else if self.tries_elsewhere(&mut cycle) || self.makes_room(&mut cycle, now) {
                        self.group = Some(cycle);
                    } else {
                        self.submit(cycle, now);
                    }
                }
            }
        }
        self.show_those_away();
    }

    /// Fails the group after an aborted attempt: its results are dropped.
    fn fail_group(&mut self, cycle: &mut GroupCycle) {
        let came = cycle.came.clone();
        if let Some(search) = cycle.search.take() {
            self.end_search(cycle, search);
        }
        let spent = self.within_budget().err().map(|why| why.message);
        cycle.came = match (spent, came) {
            (Some(spent), _) => GroupOutcome::Failed(spent),
            (None, failed @ GroupOutcome::Failed(_)) => failed,
            (None, _) => GroupOutcome::Failed(OTHER_FAILED.to_owned()),
        };
    }

    /// Records the result of a pod of the group, and continues with the next one.
    pub(super) fn goes_on(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        found: Result<NodeSearch, PodRejection>,
        now: Duration,
    ) {
        self.found_for_group(uid, queued, found, now);
        self.go_on(now);
    }

    // k8s: schedule_one_podgroup.go podGroupPodSchedulingAlgorithm, podGroupSchedulingDefaultAlgorithm
    pub(super) fn found_for_group(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        found: Result<NodeSearch, PodRejection>,
        now: Duration,
    ) {
        let (node, attempt, why) = match found {
            Ok(NodeSearch::Later) => return,
            Ok(NodeSearch::Node(node, attempt)) => (Some(node), attempt, None),
            Err(why) => {
                let node = why.nominated.as_deref().filter(|node| !node.is_empty());
                (node.map(Rc::from), None, Some(why))
            }
        };
        let (uid, queued) = (uid.clone(), Rc::clone(queued));
        let mut tried = Tried { uid, queued, place: None, why, devices: None };
        if let Some(node) = node {
            self.plugins.keep(&tried.uid, attempt, &node);
            match self.reserve(&tried.uid, &tried.queued, node, now) {
                Ok(place) => tried.place = Some(place),
                Err(why) => tried.why = Some(why),
            }
        }
        let Some(cycle) = &mut self.group else { return };
        match (&tried.place, &tried.why) {
            (Some(place), why) => {
                if cycle.search.is_none() {
                    cycle.had_node.insert(tried.uid.clone());
                }
                cycle.needs_room |= why.is_some();
                if place.is_permitted {
                    cycle.came =
                        if cycle.needs_room { GroupOutcome::NeedsRoom } else { GroupOutcome::Fits };
                }
            }
            (None, Some(why)) if why.is_error => {
                cycle.came = GroupOutcome::Failed(format!("{OTHER_FAILED}: {}", why.message));
            }
            (None, _) => {}
        }
        cycle.tried.push(tried);
    }

    /// Assumes a pod on a node for the dry run.
    fn reserve(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        node: Rc<str>,
        now: Duration,
    ) -> Result<ReservedNode, PodRejection> {
        if let Err(error) = self.choose_devices(uid, queued, &node) {
            self.unreserve(uid);
            return Err(error);
        }
        self.choose_volumes(uid, queued, &node);
        if let Err(why) = self.within_budget() {
            self.give_up_choices(uid, now);
            return Err(why);
        }
        let pod = queued.spec.key;
        let kept = self.cache.nomination(pod).cloned();
        let spec = self.count_devices(uid, queued, &node);
        self.cache.make(&CacheDelta::Bound(spec, Rc::clone(&node)));
        if kept.is_some() {
            self.cache.make(&CacheDelta::Nominated { pod, old: kept.clone(), new: None });
        }
        self.cache.volumes.users.put(uid, &queued.pod.whole(), &node);
        if let Some(group) = &queued.group {
            group.assume(uid);
        }
        let attempt = self.plugins.attempt(uid).cloned();
        let permission = self.permission(uid, queued, &node);
        let is_permitted = permission.as_ref().is_ok_and(|pending| pending.is_empty());
        let reserved = ReservedNode { node, attempt, kept, is_permitted };
        match permission {
            Ok(_) => Ok(reserved),
            Err(stopped) => {
                self.forget_devices(uid, now);
                self.take_back(uid, queued, &reserved);
                Err(self.why(queued, stopped))
            }
        }
    }

    /// Reverts `reserve`.
    // k8s: schedule_one.go unreserveAndForget
    fn take_back(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        reserved: &ReservedNode,
    ) -> Option<Reserving> {
        self.forget_volumes(uid);
        let devices = self.unchoose_devices(uid);
        self.unreserve(uid);
        if let Some(group) = &queued.group {
            group.forget(uid);
        }
        let pod = queued.spec.key;
        // Another scheduler may have bound the pod during an extender call.
        if self.cache.node_of(&queued.key).is_some() {
            return devices;
        }
        self.cache.make(&CacheDelta::Gone { pod, last: None, node: Rc::clone(&reserved.node) });
        if reserved.kept.is_some() && self.cache.waiting(&queued.key).is_some() {
            let new = reserved.kept.clone();
            self.cache.make(&CacheDelta::Nominated { pod, old: None, new });
        }
        devices
    }

    pub(super) fn take_all_back(&mut self, tried: &mut [Tried]) {
        for Tried { uid, queued, place, devices, .. } in tried.iter_mut().rev() {
            if let Some(reserved) = place {
                *devices = self.take_back(uid, queued, reserved);
            }
        }
    }

    /// Applies the outcome of a group to each of its pods.
    // k8s: schedule_one_podgroup.go submitPodGroupAlgorithmResult
    fn submit(&mut self, cycle: GroupCycle, now: Duration) {
        self.submit_each(cycle, now);
        self.cache.devices.decides_group(false);
    }

    fn submit_each(&mut self, cycle: GroupCycle, now: Duration) {
        let GroupCycle { group, profile, left, tried, came, message, unreserved, .. } = cycle;
        let mut gives_back = cycle.gives_back;
        gives_back.retain(|(uid, _)| !cycle.had_node.contains(uid));
        if came != GroupOutcome::Fits {
            self.unreserve_of_group(&group, unreserved);
        }
        let mut bound = Vec::new();
        for Tried { uid, queued, place, why, devices } in tried {
            if !self.still_waits(&uid, &queued) {
                devices.into_iter().for_each(|devices| _ = self.release_devices(devices, now));
                self.queue.done(&uid);
                continue;
            }
            let why = match (&came, place, why) {
                (GroupOutcome::Failed(_), _, Some(why)) if why.is_error => why,
                (GroupOutcome::Failed(error), ..) => PodRejection::error(error.clone()),
                (GroupOutcome::Fits, Some(reserved), None) => {
                    bound.push(uid.clone());
                    self.plugins.keep(&uid, reserved.attempt, &reserved.node);
                    self.assume(&uid, queued, &reserved.node, now);
                    continue;
                }
                (GroupOutcome::NeedsRoom, Some(reserved), None) => {
                    rejected(message.as_deref().unwrap_or(WAITS), &reserved.node)
                }
                (GroupOutcome::Nowhere, Some(_), _) => rejected(TOO_FEW, ""),
                (_, _, Some(why)) => why,
                (_, None, None) => rejected(UNSCHEDULABLE, ""),
            };
            if let Some(devices) = devices {
                self.release_devices(devices, now);
            }
            for (_, claim) in gives_back.iter().filter(|(of, _)| *of == uid) {
                self.give_back(&uid, &queued, claim);
            }
            self.refuse(&uid, &queued, why, now);
        }
        for (uid, queued) in left {
            if !self.still_waits(&uid, &queued) {
                self.queue.done(&uid);
                continue;
            }
            let why = match &came {
                GroupOutcome::Failed(error) => PodRejection::error(error.clone()),
                _ => rejected(message.as_deref().unwrap_or(UNSCHEDULABLE), ""),
            };
            self.refuse(&uid, &queued, why, now);
        }
        // The nodes of pods that still wait for Permit are not reported yet.
        for uid in bound.iter().filter(|uid| self.waits_for_permission(uid)).collect::<Vec<_>>() {
            self.write_nomination(uid);
        }
        self.report_group(&group, profile, came, message);
    }

    /// Counts the outcome of a group and writes its condition.
    fn report_group(
        &mut self,
        group: &OfGroup,
        profile: usize,
        came: GroupOutcome,
        message: Option<String>,
    ) {
        let (result, status, reason, message) = match came {
            GroupOutcome::Fits => ("scheduled", "True", "Scheduled", String::new()),
            GroupOutcome::NeedsRoom => {
                let message = message.unwrap_or_else(|| WAITS.to_owned());
                ("waiting_on_preemption", "False", "Unschedulable", message)
            }
            GroupOutcome::Nowhere => {
                let message = message.unwrap_or_else(|| UNSCHEDULABLE.to_owned());
                ("unschedulable", "False", "Unschedulable", message)
            }
            GroupOutcome::Failed(error) => ("error", "False", "SchedulerError", error),
        };
        self.facts.push(Fact::Group { profile, result });
        let condition = PodCondition {
            type_: SCHEDULED.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            ..PodCondition::default()
        };
        let groups = self.cache.groups.as_ref();
        if let Some((group, condition)) =
            groups.and_then(|g| g.changed_condition(&group.key, condition))
        {
            self.commands.push(Command::GroupStatus { group, condition });
        }
    }
}

/// A rejection by the group's outcome, not by a plugin.
fn rejected(message: &str, node: &str) -> PodRejection {
    PodRejection {
        is_error: false,
        message: message.to_owned(),
        rejectors: Rejectors::new(),
        nominated: Some(node.to_owned()),
    }
}
