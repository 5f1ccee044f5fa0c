//! The scheduling cycle: pending pods get nodes, one after the other.
//!
//! ```text
//!   WatchEvent ────> cache ──events──> queue ──pop──> decide ──> assume ──> Command::Bind
//!                      ^                  ^              └── rejected: Status, Evict, back
//!                      └──── forget ──────┴── results <──────── (the dispatcher executes them)
//! ```
//! Input: watch events, results of bindings, the time. Output: [`Command`]s. Owner: one task; pure,
//! no clock, no I/O. A pod with a selected node counts as bound (assumed) until the API reports its
//! node or the binding fails. Bounds: the objects in the API server; events are kept only while a
//! pod is being decided.
// k8s: pkg/scheduler/{scheduler,schedule_one,eventhandlers}.go

#[cfg(test)]
mod allocatable_tests;
pub mod command;
mod consult;
mod decide;
#[cfg(test)]
mod device_tests;
mod devices;
mod ended;
mod evict;
#[cfg(test)]
mod flaw_tests;
#[cfg(test)]
mod give_back_tests;
mod group;
#[cfg(test)]
mod group_device_tests;
mod group_room;
#[cfg(test)]
mod group_room_tests;
#[cfg(test)]
mod group_tests;
mod handed;
mod intake;
mod net;
#[cfg(test)]
mod net_tests;
mod out_of_tree;
mod permit;
#[cfg(test)]
mod preempt_tests;
mod reprieve;
#[cfg(test)]
mod said_tests;
#[cfg(test)]
mod taint_rule_tests;
#[cfg(test)]
pub(crate) mod tests;
mod topology;
mod volumes;
#[cfg(test)]
mod wake_tests;
#[cfg(test)]
mod worlds;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::hint::{HintEvent, Rejected};
use pintle_sched_core::intern::Str;
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::{Plugin, Profile};

pub use self::command::{BindingResult, Command, Evicted, Fact};
use self::consult::Consulting;
pub use self::devices::ReservationResult;
pub use self::handed::Batches;
pub use self::net::Clock;
use self::out_of_tree::OutOfTreePlugins;
pub use self::volumes::VolumeWrites;
use crate::cache::{ClusterCache, Nominee};
use crate::diagnosis::PodEvaluator;
use crate::explain::{Explanation, Queued, Unexplained};
use crate::extender::Extender;
use crate::framework::{Handle, Happened, Name, Plugins};
use crate::groups::{Groups, OfGroup};
use crate::kept::KeptPod;
use crate::plugins::dynamicresources::DeviceGates;
use crate::plugins::dynamicresources::known::Claims;
use crate::plugins::dynamicresources::look;
pub use crate::plugins::dynamicresources::row::Reserve;
use crate::plugins::volumes::users;
use crate::queue::{Hints, Queue, QueueCandidate, QueuePlace, Settings, WaitingPod};
use crate::uid::Uid;

/// A pending pod.
#[derive(Debug)]
pub struct QueuedPod {
    /// The pod as last observed.
    pub pod: Rc<KeptPod>,
    /// Its name.
    pub key: ObjectKey,
    /// Its requests and constraints.
    spec: Rc<PodSpec>,
    /// The number of its profile.
    profile: usize,
    is_gated: bool,
    /// Its last attempt, compiled for queueing hints.
    rejected: RefCell<Option<Rejected>>,
    /// Its preemption is under way: it is not decided until that ends.
    preempts: Cell<bool>,
    /// Uids of its victims. Until they are gone, the deletion of another pod requeues it only if it
    /// then fits without preemption.
    victims: RefCell<Vec<Uid>>,
    /// A release of its claims is being written: it is not decided until that ends.
    releases: Cell<bool>,
    /// A digest of the last condition reported for it, which may not be written yet.
    condition_digest: Cell<Option<u64>>,
    /// The known ResourceClaims, if it has any.
    claims: Option<Claims>,
    /// The group that it is decided with, if any.
    group: Option<OfGroup>,
    /// An extender may have to be called for it or for another pod of its group.
    consults: bool,
    /// Out-of-tree plugins of its profile, and those that rejected it.
    plugins: Option<Rc<Plugins>>,
    rejected_by: RefCell<Vec<Name>>,
    rank: i64,
}

impl QueueCandidate for QueuedPod {
    fn priority(&self) -> i32 {
        self.spec.priority
    }

    fn rank(&self) -> i64 {
        self.rank
    }

    fn profile(&self) -> usize {
        self.profile
    }

    fn namespace(&self) -> &str {
        self.key.namespace()
    }

    fn consults(&self) -> bool {
        self.consults
    }

    // k8s: schedulinggates/scheduling_gates.go PreEnqueue
    fn gate(&self) -> Option<Plugin> {
        if self.is_gated {
            return Some(Plugin::SchedulingGates);
        }
        // k8s: dynamicresources/dynamicresources.go PreEnqueue
        let lacks = |all: &Claims| look::claims_of(&self.pod.whole(), all).is_err();
        if self.claims.as_ref().is_some_and(lacks) {
            return Some(Plugin::DynamicResources);
        }
        if self.group.as_ref().is_some_and(OfGroup::is_gated) {
            return Some(Plugin::GangScheduling);
        }
        let by = self.plugins.as_ref()?.gate(&self.pod.whole())?;
        *self.rejected_by.borrow_mut() = vec![by];
        Some(Plugin::OutOfTree)
    }

    // k8s: defaultpreemption/default_preemption.go PreEnqueue
    fn is_held(&self) -> bool {
        let of_group = || self.group.as_ref().is_some_and(OfGroup::is_held);
        self.preempts.get() || self.releases.get() || of_group()
    }

    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go determineSchedulingHintForInFlightPod
    fn only_backs_off(&self) -> bool {
        self.group.is_some()
    }
}

/// A node, and the pods nominated to it.
type Expected = (Rc<str>, Vec<(Str, Nominee)>);

/// Queueing hints, evaluated with the cluster as it is at the event.
struct Happens<'a> {
    cache: &'a ClusterCache,
    /// The pods nominated to the last node.
    expected: RefCell<Option<Expected>>,
}

impl<'a> Happens<'a> {
    fn new(cache: &'a ClusterCache) -> Self {
        Self { cache, expected: RefCell::new(None) }
    }

    /// Returns true if the deletion of another pod on a node may help the pod. While victims of the
    /// pod are terminating it may not preempt again, so it has to fit on that node without
    /// preemption. Always true once the last victim is gone or its nominated node no longer accepts
    /// the pod.
    // k8s: defaultpreemption/default_preemption.go PodEligibleToPreemptOthers
    fn has_room(&self, pod: &QueuedPod, rejected: &Rejected, node: &Rc<str>) -> bool {
        let Some(kept) = self.cache.nomination(pod.spec.key) else { return true };
        let cluster = &self.cache.cluster;
        let goes = |victim: &Uid| cluster.is_placed(victim);
        if !pod.victims.borrow().iter().any(goes) || !cluster.is_open(rejected, &kept.node) {
            return true;
        }
        let mut last = self.expected.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| known != node) {
            *last = Some((Rc::clone(node), self.cache.nominated_on(node)));
        }
        let expected = last.iter().flat_map(|(_, expected)| expected);
        let expected = expected.filter(|(key, nominee)| {
            *key != pod.spec.key && nominee.spec.priority >= pod.spec.priority
        });
        cluster.has_room(rejected, node, expected.map(|(_, nominee)| &*nominee.spec))
    }

    /// Returns true if the pod's nominated node was deleted or its taints changed: the pod may now
    /// preempt on another node. Upstream retries all pods when taints change.
    // k8s: pkg/scheduler/scheduler.go buildQueueingHintMap
    fn is_of_kept_node(&self, event: &HintEvent, pod: &QueuedPod) -> bool {
        let HintEvent::Node { old: Some(old), new } = event else { return false };
        let is_it = |kept: &Nominee| *kept.node == *self.cache.cluster.text(old.name);
        let changes = new.as_ref().is_none_or(|new| new.taints != old.taints);
        changes && self.cache.nomination(pod.spec.key).is_some_and(is_it)
    }

    /// Returns true if the deletion or scale-down of a pod may free resources of its node for
    /// node-allocatable devices, or a claim of such devices for other pods. Upstream's plugin
    /// registers neither event, so its pods wait for the unschedulable flush, even after their own
    /// preemption.
    // k8s: dynamicresources/dynamicresources.go EventsToRegister
    fn leaves_room_for_devices(&self, event: &HintEvent, rejector: Plugin) -> bool {
        let leaves = match event {
            HintEvent::PodGone(..) => true,
            HintEvent::PodChanged(old, new) => !new.asks_as(old),
            _ => false,
        };
        leaves && rejector == Plugin::DynamicResources && self.cache.devices.takes_of_nodes()
    }
}

impl Hints for Happens<'_> {
    type Pod = QueuedPod;
    type Event = HintEvent;

    fn label(&self, event: &HintEvent) -> &'static str {
        event.label()
    }

    fn may_help(&self, event: &HintEvent, rejector: Plugin) -> bool {
        event.may_help(rejector) || self.leaves_room_for_devices(event, rejector)
    }

    fn helps(&self, event: &HintEvent, pod: &QueuedPod, rejector: Plugin) -> bool {
        if !event.concerns(pod.spec.priority) {
            return false;
        }
        if rejector == Plugin::OutOfTree {
            return may_help_others(event, pod);
        }
        if event.may_help(rejector) && self.is_of_kept_node(event, pod)
            || self.leaves_room_for_devices(event, rejector)
        {
            return true;
        }
        if let HintEvent::Group(group, _) = event {
            let is_it = |of: &OfGroup| of.key.as_str() == &**group;
            return rejector == Plugin::GangScheduling && pod.group.as_ref().is_some_and(is_it);
        }
        if let HintEvent::Claim(claim, _) = event
            && rejector != Plugin::Extender
        {
            return event.may_help(rejector) && users::uses(&pod.pod.whole(), claim);
        }
        if let HintEvent::PodGone(gone, _) = event
            && let Some(names) = gone.volumes()
            && rejector == Plugin::VolumeRestrictions
        {
            return users::shares(&pod.pod.whole(), names);
        }
        if let HintEvent::ResourceClaim(claim, _) = event
            && rejector == Plugin::DynamicResources
        {
            let all = pod.claims.as_ref();
            return all.is_none_or(|all| look::uses(&pod.pod.whole(), all, claim));
        }
        match &*pod.rejected.borrow() {
            Some(rejected) => {
                let is_room = match event {
                    HintEvent::PodGone(_, node) if rejector == Plugin::NodeResourcesFit => {
                        self.has_room(pod, rejected, node)
                    }
                    _ => true,
                };
                is_room && self.cache.cluster.helps(event, rejected, rejector)
            }
            None => match event {
                HintEvent::Own(key, changes) => *key == pod.spec.key && changes.may_pass(rejector),
                // The pod changed since its last attempt: the plugins that would reject it now are
                // unknown.
                _ => !matches!(rejector, Plugin::SchedulingGates | Plugin::GangScheduling),
            },
        }
    }
}

/// Returns true if an out-of-tree plugin that rejected the pod says that the event may help.
fn may_help_others(event: &HintEvent, pod: &QueuedPod) -> bool {
    let happened = match event {
        HintEvent::Node { old: None, .. } => Happened::NodeAdded,
        HintEvent::Node { new: None, .. } => Happened::NodeGone,
        HintEvent::Node { .. } => Happened::NodeChanged,
        HintEvent::PodAdded(_) => Happened::PodAdded,
        HintEvent::PodChanged(..) => Happened::PodChanged,
        HintEvent::PodGone(..) => Happened::PodGone,
        HintEvent::Own(key, _) if *key != pod.spec.key => return false,
        HintEvent::Own(..) => Happened::Itself,
        HintEvent::Claim(..)
        | HintEvent::ResourceClaim(..)
        | HintEvent::Group(..)
        | HintEvent::Other(..) => Happened::Other,
    };
    let by = pod.rejected_by.borrow();
    pod.plugins.as_ref().is_none_or(|plugins| plugins.may_help(&by, &pod.pod.whole(), happened))
}

/// An assumed pod: it has a node that the API has not reported yet.
#[derive(Debug)]
struct Assumed {
    queued: Rc<QueuedPod>,
    node: Rc<str>,
    /// A write of the nominated node to the pod's status was requested before the binding.
    is_told: bool,
}

/// The scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// The cluster as observed, with assumed pods.
    pub cache: ClusterCache,
    /// Pods without a node.
    pub queue: Queue<QueuedPod, HintEvent>,
    evaluator: PodEvaluator,
    assumed: HashMap<Uid, Assumed>,
    /// Pods that are queued or assumed, by name.
    names: HashMap<ObjectKey, Uid>,
    /// The extender call under way. No other pod that needs an extender is decided meanwhile.
    consulting: Option<Consulting>,
    /// When the current decision began.
    decides_since: Duration,
    /// The group that is being decided.
    group: Option<group::GroupCycle>,
    /// Pods with a node that wait for their volumes.
    binding_volumes: volumes::Bindings,
    /// Pods with a node and ResourceClaims, until they are bound.
    devices: devices::All,
    /// Pods with a node that wait for Permit.
    permits: HashMap<Uid, permit::Waits>,
    extenders: Vec<Extender>,
    plugins: OutOfTreePlugins,
    commands: Vec<Command>,
    facts: Vec<Fact>,
    /// Reuse of earlier decisions, by profile.
    batches: Vec<Batches>,
    /// The number of the last selection of volumes.
    volumes_chosen: u64,
    random: u64,
    net: net::Net,
}

impl Scheduler {
    /// Creates a scheduler without any objects. `seed` breaks ties.
    pub fn new(profiles: Vec<Profile>, settings: Settings, seed: u64) -> Self {
        let batches = vec![Batches::default(); profiles.len().max(1)];
        Self {
            cache: ClusterCache::with_profiles(profiles),
            queue: Queue::new(settings),
            evaluator: PodEvaluator::default(),
            assumed: HashMap::new(),
            names: HashMap::new(),
            consulting: None,
            decides_since: Duration::ZERO,
            group: None,
            binding_volumes: volumes::Bindings::default(),
            devices: devices::All::default(),
            permits: HashMap::new(),
            extenders: Vec::new(),
            plugins: OutOfTreePlugins::default(),
            commands: Vec::new(),
            facts: Vec::new(),
            batches,
            volumes_chosen: 0,
            random: seed | 1,
            net: net::Net::default(),
        }
    }

    /// Sets the extenders.
    #[must_use]
    pub fn with_extenders(mut self, extenders: Vec<Extender>) -> Self {
        let takes_nodes =
            |extender: &Extender| extender.filters_or_scores() && !extender.node_cache_capable;
        if extenders.iter().any(takes_nodes) {
            self.cache.keep_nodes();
        }
        self.extenders = extenders;
        self
    }

    /// Sets the out-of-tree plugins by profile, and their common handle.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Vec<Option<Rc<Plugins>>>, handle: Handle) -> Self {
        if plugins.iter().any(Option::is_some) {
            self.cache.keep_nodes();
            self.cache.whole_pods = Some(Rc::clone(handle.pods()));
        }
        self.plugins = OutOfTreePlugins::new(plugins, handle);
        self
    }

    /// Enables pod groups: pods of a group are decided together, and those of a gang all or none,
    /// as the feature gates say.
    #[must_use]
    pub fn with_groups(mut self, groups: Groups) -> Self {
        if groups.have_claims() {
            self.cache.devices.of_groups();
        }
        self.cache.groups = Some(groups);
        self
    }

    /// Sets the feature gates of devices.
    #[must_use]
    pub fn with_device_gates(mut self, gates: DeviceGates) -> Self {
        self.cache.devices.use_gates(gates);
        self
    }

    /// Returns the commands since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Returns the metric samples since the last call.
    pub fn take_facts(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.facts)
    }

    /// Returns the number of assumed pods.
    pub fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// Returns the number of a queued pod's profile.
    pub fn profile_of(&self, uid: &str) -> Option<usize> {
        self.queue.get(uid).map(|waiting| waiting.pod.profile)
    }

    /// Returns a line for each pod of the queue, at most this many.
    pub fn queue_lines(&self, most: usize, now: Duration) -> Vec<String> {
        let line = |waiting: &WaitingPod<QueuedPod>| {
            let rejectors: Vec<_> = waiting.rejectors.iter().map(|by| by.name()).collect();
            let (pod, place) = (waiting.pod.key.as_str(), waiting.place);
            let (attempts, by) = (waiting.attempts, rejectors.join(","));
            let over = self.queue.over_share(waiting.pod.key.namespace(), now);
            let over = over.map_or_else(String::new, |over| {
                format!(" namespaceOverShare={:.1}s", over.as_secs_f64())
            });
            format!("{pod} {place:?} attempts={attempts} rejectedBy={by}{over}")
        };
        let mut lines: Vec<String> = self.queue.iter().map(line).take(most).collect();
        lines.sort_unstable();
        lines
    }

    /// Explains why a pending pod has no node, whether this node fits, and when the pod is retried.
    ///
    /// # Errors
    /// When the pod is not pending or cannot be read, and when there is no such node.
    pub fn explain(
        &mut self,
        pod: &ObjectKey,
        node: Option<&str>,
        now: Duration,
    ) -> Result<Explanation, Unexplained> {
        let waits = self.cache.waiting(pod).map(|waits| waits.whole());
        let waits = waits.ok_or_else(|| Unexplained::NotWaiting(pod.as_str().to_owned()))?;
        let answer = self.explain_pod(&waits, node, now)?;
        Ok(Explanation { queue: self.queued(pod, now), ..answer })
    }

    fn queued(&self, pod: &ObjectKey, now: Duration) -> Option<Queued> {
        let waiting = self.queue.get(self.names.get(pod)?)?;
        let mut rejected_by = Vec::new();
        for by in waiting.rejectors.union(&waiting.pending) {
            let others = waiting.pod.rejected_by.borrow();
            match by {
                // Out-of-tree plugins have names of their own.
                Plugin::OutOfTree if !others.is_empty() => {
                    rejected_by.extend(others.iter().map(ToString::to_string));
                }
                by => rejected_by.push(by.name().to_owned()),
            }
        }
        let (place, attempts) = (waiting.place, waiting.attempts);
        let tried_again = self.queue.tried_again_at(waiting);
        let tried_again = tried_again.map(|until| Queued::seconds(until, now));
        let over_share = self.queue.over_share(pod.namespace(), now).map(|over| over.as_secs_f64());
        Some(Queued { place, attempts, rejected_by, tried_again, over_share })
    }

    /// Returns the number of kept events by label, and of the pods in flight that they are kept
    /// for.
    pub fn in_flight_events(&self) -> BTreeMap<&'static str, usize> {
        let mut kept = BTreeMap::from([("PodPopped", self.queue.in_flight())]);
        for event in self.queue.in_flight_events() {
            *kept.entry(event.label()).or_default() += 1;
        }
        kept
    }

    /// Requeues pods that an event may help.
    fn requeue_after(&mut self, event: &HintEvent, now: Duration) {
        self.queue.move_all_to_active_or_backoff(&Happens::new(&self.cache), event, now);
    }

    /// Returns true if a pod in the queue may need the next event.
    fn is_listened_to(&self) -> bool {
        self.queue.is_listening()
    }

    /// A number below `end`.
    fn random(&mut self, end: usize) -> usize {
        // xorshift: random enough to spread pods over equally good nodes.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 11).unwrap_or(0) % end.max(1)
    }

    /// Returns true while no pod is decided: the first lists are not complete, or an extender call
    /// is under way and its patience is not over.
    pub fn is_blocked(&self, now: Duration) -> bool {
        !self.cache.is_complete() || self.waits_for_extenders(now)
    }

    /// Returns when the next timeout is due.
    pub fn next_due(&self, is_blocked: bool) -> Option<Duration> {
        // Retries and the timeouts of volumes and devices are handled between decisions, so they
        // are not due while decisions are blocked.
        let between = [self.queue.next_flush(), self.volumes_due(), self.devices_due()];
        let between = between.into_iter().filter(|_| !is_blocked);
        between.chain([self.permits_due()]).flatten().min()
    }

    /// Returns the number of pods at a place of the queue.
    pub fn count(&self, place: QueuePlace) -> usize {
        self.queue.count(place)
    }
}
