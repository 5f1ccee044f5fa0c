//! From a selected node to the binding: Reserve, Permit and PreBind.
//!
//! Input: a pod with a node, answers and later requests of plugins, the time. Output: the pod is
//! bound, or rejected and retried. Owner: the scheduler. Bounds: pods with nodes; 15 minutes for
//! Permit.
// k8s: pkg/scheduler/schedule_one.go assumeAndReserve, prepareForBindingCycle, bindingCycle

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_sched_core::config::Rank;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::{Plugin, explain};

use super::command::{Command, Fact};
use super::decide::PodRejection;
use super::{Assumed, Happens, QueuedPod, Scheduler, Uid};
use crate::cache::CacheDelta;
use crate::framework::{Attempt, Name, PluginRequest, Stopped, WaitingPod};
use crate::pod_fields::PodRef;

/// The plugin that delays pods of a gang, and its longest wait.
// k8s: pkg/scheduler/framework/plugins/gangscheduling/gangscheduling.go permitTimeoutDuration
const GANG: &str = Plugin::GangScheduling.name();
const GANG_MAX: Duration = Duration::from_secs(300);

/// The message for a victim that was about to be bound.
// k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod, runtime/framework.go RunPreBindPlugins
pub(super) const PREEMPTED: &str = "preempted by DefaultPreemption";

/// The rejection of a waiting pod that is deleted; it comes from no plugin.
// k8s: pkg/scheduler/framework/runtime/framework.go RejectWaitingPod
const NOBODY: &str = "";
const REMOVED: &str = "removed";

/// A pod that waits for Permit.
#[derive(Debug)]
pub(super) struct Waits {
    since: Duration,
    /// By plugin: the end of the wait, and its length.
    pending: BTreeMap<Name, (Duration, Duration)>,
}

impl Scheduler {
    /// Begins an attempt of out-of-tree plugins: runs PreFilter.
    pub(super) fn attempt(
        &mut self,
        queued: &Rc<QueuedPod>,
        own: Option<BTreeSet<String>>,
        before: Rank,
    ) -> Option<(Rc<Attempt>, Option<Stopped>)> {
        let plugins = Rc::clone(self.plugins.of_profile(queued.profile)?);
        let nodes = self.cache.whole_rows();
        let (attempt, stopped) = Attempt::begin(&plugins, &queued.pod.whole(), nodes, own, before);
        Some((Rc::new(attempt), stopped))
    }

    /// Assumes a pod on its selected node, unless a plugin rejects it.
    // k8s: schedule_one.go assume
    pub(super) fn assume(
        &mut self,
        uid: &Uid,
        queued: Rc<QueuedPod>,
        node: &Rc<str>,
        now: Duration,
    ) {
        if let Err(error) = self.choose_devices(uid, &queued, node) {
            self.unreserve(uid);
            return self.refuse(uid, &queued, error, now);
        }
        self.choose_volumes(uid, &queued, node);
        if let Err(why) = self.within_budget() {
            self.give_up_choices(uid, now);
            return self.refuse(uid, &queued, why, now);
        }
        let pod = queued.spec.key;
        let kept = self.cache.nomination(pod).cloned();
        let spec = self.count_devices(uid, &queued, node);
        self.cache.make(&CacheDelta::Bound(spec, Rc::clone(node)));
        if kept.as_ref().is_some_and(|kept| kept.node == *node) {
            // The pod takes the room of its own nomination, so no other pod gains room.
            self.cache.make(&CacheDelta::Nominated { pod, old: kept, new: None });
        }
        self.nominate(&queued, "", now);
        self.cache.volumes.users.put(uid, &queued.pod.whole(), node);
        let is_told = false;
        let assumed = Assumed { queued: Rc::clone(&queued), node: Rc::clone(node), is_told };
        self.assumed.insert(uid.clone(), assumed);
        if let Some(group) = &queued.group {
            group.assume(uid);
        }
        match self.permission(uid, &queued, node) {
            Err(stopped) => self.reject_stopped(uid, &queued, node, stopped, now),
            Ok(pending) => {
                self.queue.mark_binding(uid);
                if pending.is_empty() {
                    self.allow_gang(&queued, now);
                    return self.prepare(uid, now);
                }
                let until = |time: Duration| (now.saturating_add(time), time);
                let pending = pending.into_iter().map(|(name, time)| (name, until(time)));
                let waits = Waits { since: now, pending: pending.collect() };
                self.shows(uid, &waits);
                // Other pods of the gang may follow immediately, so its node is not reported yet.
                let is_alone = !waits.pending.contains_key(GANG);
                self.permits.insert(uid.clone(), waits);
                if is_alone {
                    self.write_nomination(uid);
                }
            }
        }
    }

    /// Drops the assumed volumes and devices of a pod.
    pub(super) fn give_up_choices(&mut self, uid: &Uid, now: Duration) {
        self.forget_volumes(uid);
        self.forget_devices(uid, now);
        self.unreserve(uid);
    }

    /// Runs Reserve and Permit plugins; returns the plugins that the pod waits for.
    pub(super) fn permission(
        &self,
        uid: &Uid,
        queued: &QueuedPod,
        node: &str,
    ) -> Result<BTreeMap<Name, Duration>, Stopped> {
        crate::fault::pass("permit");
        let mut pending = BTreeMap::new();
        if let Some(attempt) = self.plugins.attempt(uid) {
            attempt.reserve(node)?;
            pending = attempt.permit(node)?;
        }
        if let Some(group) = &queued.group
            && !group.is_enough().map_err(|error| Stopped::Failed(error.to_string()))?
        {
            pending.insert(GANG.into(), GANG_MAX);
        }
        Ok(pending)
    }

    /// Allows the waiting pods of a gang that has enough pods with nodes.
    // k8s: pkg/scheduler/framework/plugins/gangscheduling/gangscheduling.go Permit
    fn allow_gang(&mut self, queued: &QueuedPod, now: Duration) {
        let Some(group) = &queued.group else { return };
        group.assumed().iter().for_each(|uid| self.allowed(uid, GANG, now));
    }

    /// Rejects a pod in Reserve or Permit, before its node was reported.
    fn reject_stopped(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        node: &Rc<str>,
        stopped: Stopped,
        now: Duration,
    ) {
        self.assumed.remove(uid);
        self.forget_volumes(uid);
        self.forget_devices(uid, now);
        self.unreserve(uid);
        if let Some(group) = &queued.group {
            group.forget(uid);
        }
        let pod = queued.spec.key;
        self.cache.make(&CacheDelta::Gone { pod, last: None, node: Rc::clone(node) });
        let why = self.why(queued, stopped);
        self.refuse(uid, queued, why, now);
    }

    pub(super) fn why(&self, queued: &QueuedPod, stopped: Stopped) -> PodRejection {
        match stopped {
            Stopped::Failed(error) => PodRejection::error(error),
            Stopped::Rejected(names, code, reason) => {
                let is_gang = names.iter().any(|name| **name == *GANG);
                let by = if is_gang { Plugin::GangScheduling } else { Plugin::OutOfTree };
                *queued.rejected_by.borrow_mut() = if is_gang { Vec::new() } else { names };
                let status = Status { plugin: Some(by), code, reasons: vec![reason] };
                PodRejection::nowhere(explain::summary(1, std::iter::once(&status)), by)
            }
        }
    }

    /// Runs Unreserve plugins and ends the wait for Permit.
    pub(super) fn unreserve(&mut self, uid: &Uid) {
        self.permits.remove(uid);
        self.plugins.unreserve(uid);
    }

    /// Shows a waiting pod to plugins.
    fn shows(&self, uid: &Uid, waits: &Waits) {
        let Some(Assumed { queued, node, .. }) = self.assumed.get(uid) else { return };
        let pending = waits.pending.keys().cloned().collect();
        let waiting = WaitingPod { pod: queued.pod.whole(), node: Rc::clone(node), pending };
        self.plugins.handle.waits(uid, waiting);
    }

    /// Starts PreBind work, then the binding.
    pub(super) fn prepare(&mut self, uid: &Uid, now: Duration) {
        let prepares = self.plugins.attempt(uid).is_some_and(|attempt| attempt.prepares_binding());
        let volumes = self.begin_volumes(uid, now);
        let devices = self.begin_devices(uid);
        if volumes || devices || prepares {
            self.write_nomination(uid);
        }
        if !volumes && !devices {
            self.bind_if_ready(uid);
        }
    }

    /// Writes the nominated node of a pod that is not bound immediately, for readers of the API.
    // k8s: schedule_one.go bindingCycle (NominatedNodeNameForExpectation)
    pub(super) fn write_nomination(&mut self, uid: &Uid) {
        let Some(assumed) = self.assumed.get_mut(uid) else { return };
        if std::mem::replace(&mut assumed.is_told, true) {
            return;
        }
        self.commands.push(Command::Status {
            pod: Rc::clone(&assumed.queued.pod),
            condition: None,
            nominated: Some(assumed.node.to_string()),
        });
    }

    /// Handles requests of plugins, and timeouts of Permit.
    pub fn attend(&mut self, now: Duration) {
        self.netted(now, |scheduler| scheduler.do_requests(now));
    }

    fn do_requests(&mut self, now: Duration) {
        // A request may cause further ones.
        loop {
            let requests = self.plugins.handle.take_requests();
            if requests.is_empty() {
                break;
            }
            requests.into_iter().for_each(|request| self.take_request(request, now));
        }
        while let Some((uid, name, time)) = self.overdue(now) {
            let time = GoDuration::from_std(time);
            let why = format!("rejected due to timeout after waiting {time} at plugin {name}");
            self.rejected_by_plugin(&uid, &name, why, now);
        }
    }

    fn take_request(&mut self, request: PluginRequest, now: Duration) {
        match request {
            PluginRequest::Allow { uid, plugin } => self.allowed(&uid, &plugin, now),
            PluginRequest::Reject { uid, plugin, why } => {
                let uid: Uid = uid.as_str().into();
                if self.permits.contains_key(&uid) {
                    self.rejected_by_plugin(&uid, &plugin.as_str().into(), why, now);
                }
            }
            PluginRequest::Activate(key) => {
                if let Some(uid) = self.names.get(&key).cloned() {
                    self.queue.release(&uid, true, now);
                }
            }
        }
    }

    fn allowed(&mut self, uid: &str, plugin: &str, now: Duration) {
        let Some((uid, _)) = self.permits.get_key_value(uid) else { return };
        let uid = uid.clone();
        let Some(waits) = self.permits.get_mut(&uid) else { return };
        waits.pending.remove(plugin);
        if let Some(waits) = self.permits.get(&uid).filter(|waits| !waits.pending.is_empty()) {
            return self.shows(&uid, waits);
        }
        self.ends_waiting(&uid, "Success", now);
        self.prepare(&uid, now);
    }

    pub(super) fn waits_for_permission(&self, uid: &str) -> bool {
        self.permits.contains_key(uid)
    }

    fn ends_waiting(&mut self, uid: &Uid, result: &'static str, now: Duration) {
        self.plugins.handle.waits_no_more(uid);
        if let Some(waits) = self.permits.remove(uid) {
            let took = now.saturating_sub(waits.since);
            self.facts.push(Fact::Permitted { result, took });
        }
    }

    /// Rejects a pod that waits for Permit. It is retried after its backoff, because no events were
    /// kept while it waited.
    // k8s: schedule_one.go bindingCycle WaitOnPermit, handleBindingCycleError
    fn rejected_by_plugin(&mut self, uid: &Uid, plugin: &Name, why: String, now: Duration) {
        self.ends_waiting(uid, "Unschedulable", now);
        let Some(Assumed { queued, is_told, .. }) = self.assumed.get(uid) else { return };
        let (pod, is_told) = (super::decide::pod_ref(queued, uid), *is_told);
        let stopped = Stopped::Rejected(vec![Rc::clone(plugin)], Code::Unschedulable, why);
        let mut why = self.why(&Rc::clone(queued), stopped);
        if is_told {
            why.nominated = Some(String::new());
        }
        self.gives_up(&pod, why, is_told, now);
    }

    /// Rejects a waiting pod that is being deleted; returns true if it waited.
    // k8s: eventhandlers.go handleAssumedPodDeletion
    pub(super) fn reject_deleted(&mut self, uid: &Uid, now: Duration) -> bool {
        let waits = self.permits.contains_key(uid);
        if waits {
            self.rejected_by_plugin(uid, &NOBODY.into(), REMOVED.to_owned(), now);
        }
        waits
    }

    /// Ends the wait of a deleted pod: it is neither retried nor updated.
    pub(super) fn reject_gone(&mut self, uid: &Uid, now: Duration) {
        let Some(assumed) = self.assumed.get(uid) else { return };
        if !self.permits.contains_key(uid) {
            return;
        }
        let queued = Rc::clone(&assumed.queued);
        self.ends_waiting(uid, "Unschedulable", now);
        self.count_refusal(uid, &queued, false, now);
        let (nobody, why) = (NOBODY.into(), REMOVED.to_owned());
        let why = self.why(&queued, Stopped::Rejected(vec![nobody], Code::Unschedulable, why));
        self.note(&queued, true, "FailedScheduling", "Scheduling", why.message);
        self.queue.done(uid);
    }

    /// Takes the node from an assumed pod and reports why.
    pub(super) fn gives_up(
        &mut self,
        pod: &PodRef,
        why: PodRejection,
        is_told: bool,
        now: Duration,
    ) {
        let uid = &pod.uid;
        let rejected_by = self.assumed.get(uid).map(|a| a.queued.rejected_by.borrow().clone());
        if self.forget(uid, now).is_none() {
            // The pod was bound after all, or deleted.
            self.unreserve(uid);
            return self.queue.done(uid);
        }
        let hints = Happens::new(&self.cache);
        self.queue.add_unschedulable(&hints, uid, why.rejectors, BTreeSet::new(), now);
        // Applies updates of the pod that arrived while it was assumed.
        self.queue_pod(&pod.key, now);
        let Some(waiting) = self.queue.get(uid) else { return };
        let queued = Rc::clone(&waiting.pod);
        *queued.rejected_by.borrow_mut() = rejected_by.unwrap_or_default();
        self.count_refusal(uid, &queued, why.is_error, now);
        let had_nomination = queued.pod.nominated_node().is_some();
        let nominated = Some(String::new()).filter(|_| had_nomination || is_told);
        let reason = if why.is_error { "SchedulerError" } else { "Unschedulable" };
        self.report_rejection(&queued, reason, why.message, nominated);
    }

    /// Takes the node from a victim that is not being bound yet; returns true if it was one.
    // k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod
    pub(super) fn preempt_unbound(&mut self, uid: &str, now: Duration) -> bool {
        self.preempt_waiting(uid, now)
            || self.preempt_volumes(uid, now)
            || self.preempt_devices(uid, now)
    }

    fn preempt_waiting(&mut self, uid: &str, now: Duration) -> bool {
        let Some((uid, _)) = self.permits.get_key_value(uid) else { return false };
        let uid = uid.clone();
        self.ends_waiting(&uid, "Error", now);
        let Some(Assumed { queued, is_told, .. }) = self.assumed.get(&uid) else { return false };
        let (pod, is_told) = (super::decide::pod_ref(queued, &uid), *is_told);
        let why = PodRejection::error("waiting on permit for pod: preempted".to_owned());
        self.gives_up(&pod, why, is_told, now);
        true
    }

    /// Returns a pod whose wait for Permit is over, the plugin, and the length of the wait.
    fn overdue(&self, now: Duration) -> Option<(Uid, Name, Duration)> {
        self.permits.iter().find_map(|(uid, waits)| {
            let mut pending = waits.pending.iter();
            let (name, (_, time)) = pending.find(|(_, (until, _))| *until <= now)?;
            Some((uid.clone(), Rc::clone(name), *time))
        })
    }

    /// Returns when the next wait for Permit times out.
    pub(super) fn permits_due(&self) -> Option<Duration> {
        let all = self.permits.values().flat_map(|waits| waits.pending.values());
        all.map(|(until, _)| *until).min()
    }
}
