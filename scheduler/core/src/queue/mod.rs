//! Scheduling queue: pods that wait for a decision, in the order in which they get one.
//!
//! ```text
//!   add ──────────> active ── pop ──> in flight ── done ──> (bound)
//!    │ gate           ^  ^               │ add_unschedulable, with the rejectors
//!    v                │  └── due ── backoff <── worth another try, too early
//!   gated ── event ───┤                  │ (pop takes from it when nothing is active)
//!                     └── event ── unschedulable <── no event since the pop helps
//! ```
//! Input: pods, cluster events, the time. Output: the next pod to decide. Owner: the deciding
//! thread; pure, no clock. [`Hints`] decide whether an event helps a pod. Events that arrive while
//! a pod is in flight are kept and evaluated when the pod comes back, so that no wake-up is missed.
//! Bounds: unbound pods in the cluster; an event is kept as long as a pod is in flight that was
//! popped before the event arrived.
// k8s: pkg/scheduler/backend/queue/{scheduling_queue,active_queue,backoff_queue}.go

mod apart;
mod backoff;
mod places;
#[cfg(test)]
mod proptests;
mod setback;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use pintle_sched_core::Plugin;

use crate::uid::Uid;
use serde::Serialize;

pub use self::backoff::Backoff;
pub use self::setback::Setback;
use self::tenants::Tenants;

/// How much an event helps a rejected pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// The event does not help the pod.
    Nothing,
    /// The pod is retried when its backoff is over.
    TryLater,
    /// The pod is retried at once: a plugin waited for exactly this event.
    TryNow,
}

/// A pending pod.
pub trait QueueCandidate {
    /// The pod's priority: the highest is decided first.
    fn priority(&self) -> i32;
    /// The sort key: the lowest is popped first.
    fn rank(&self) -> i64 {
        -i64::from(self.priority())
    }
    /// The PreEnqueue plugin that gates the pod, if any.
    fn gate(&self) -> Option<Plugin>;
    /// The number of the pod's profile.
    fn profile(&self) -> usize {
        0
    }
    /// The namespace that is charged for its attempts; empty for none.
    fn namespace(&self) -> &str {
        ""
    }
    /// Returns true if the pod must not be decided before [`Queue::release`] is called for it.
    fn is_held(&self) -> bool {
        false
    }
    /// Returns true if the decision of the pod may have to call an extender.
    fn consults(&self) -> bool {
        false
    }
    /// Returns true if the pod is retried after its backoff, whatever rejected it and whatever
    /// events arrive.
    fn only_backs_off(&self) -> bool {
        false
    }
}

/// Queueing hints of the plugins.
pub trait Hints {
    /// A pending pod.
    type Pod: QueueCandidate;
    /// An event in the cluster.
    type Event: Clone;
    /// Upstream's name of an event.
    fn label(&self, event: &Self::Event) -> &'static str;
    /// Returns true if an event of this kind can help pods that this plugin rejected.
    fn may_help(&self, event: &Self::Event, rejector: Plugin) -> bool;
    /// Returns true if a pod that this plugin rejected may pass it after this event.
    fn helps(&self, event: &Self::Event, pod: &Self::Pod, rejector: Plugin) -> bool;
}

/// The plugins that rejected a pod.
pub type Rejectors = BTreeSet<Plugin>;

/// Where a pod is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum QueuePlace {
    /// It is popped when its turn comes.
    Active,
    /// It waits for the end of its backoff; it is popped earlier if no pod is active.
    Backoff,
    /// It waits for the end of its backoff and [`Queue::pop`] never pops it earlier: its attempt
    /// failed with an error or was aborted, or it is a pod of a group.
    ErrorBackoff,
    /// It waits for an event.
    Unschedulable,
    /// A PreEnqueue plugin gates it, or it is held ([`QueueCandidate::is_held`]).
    Gated,
    /// It is being decided.
    InFlight,
    /// It has a node and is being bound: events no longer matter to it.
    Binding,
}

/// Backoff and timeout of pending pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// podInitialBackoffSeconds and podMaxBackoffSeconds.
    pub backoff: Backoff,
    /// An unschedulable pod is retried after this time without any event; at least 30 seconds.
    pub stay_max: Duration,
}

/// Upstream's interval between two flushes of unschedulable pods.
// k8s: pkg/scheduler/backend/queue/scheduling_queue.go Run
const STAY_MIN: Duration = Duration::from_secs(30);

impl Default for Settings {
    fn default() -> Self {
        Self { backoff: Backoff::default(), stay_max: Duration::from_secs(300) }
    }
}

/// A pod in the queue. Times are since the process began.
#[derive(Clone, Debug)]
pub struct WaitingPod<P> {
    /// The pod as last observed.
    pub pod: Rc<P>,
    /// Where it is.
    pub place: QueuePlace,
    /// Number of attempts.
    pub attempts: u32,
    /// When it first became active without a backoff, or was first popped.
    pub first_attempt: Option<Duration>,
    /// Start of the last attempt.
    pub last_attempt: Duration,
    /// Plugins that rejected it in the last attempt.
    pub rejectors: Rejectors,
    /// Rejectors that wait for an event of their own, after which the pod skips its backoff.
    pub pending: Rejectors,
    /// It is retried only because it waited for `stay_max`.
    pub flushed: bool,
    /// When it was added, or came back from an attempt.
    since: Duration,
    /// Breaks ties.
    number: u64,
    unschedulable: u32,
    errors: u32,
    setback: Setback,
    /// The number of the first event that arrived after it was popped.
    sees_from: u64,
    /// It was deleted while it was in flight.
    is_gone: bool,
    /// A retry at once was requested while it was in flight.
    is_wanted: bool,
    /// Its first place was counted in `moved`; until then `place` is only an initial value.
    was_counted: bool,
}

impl<P> WaitingPod<P> {
    /// The pod's place in the order of arrival; the first pod has the lowest.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// The sort key in the active queue, lowest first: rank, then the longest wait.
type Turn = (i64, Duration, u64);

/// The scheduling queue.
#[derive(Debug)]
pub struct Queue<P, E> {
    settings: Settings,
    pods: HashMap<Uid, WaitingPod<P>>,
    active: BTreeSet<(Turn, Uid)>,
    /// Active pods that were held back while an extender was called for another pod.
    behind: BTreeSet<(Turn, Uid)>,
    backoff: BTreeSet<(Duration, Turn, Uid)>,
    error_backoff: BTreeSet<(Duration, u64, Uid)>,
    /// Unschedulable and gated pods, in the order of arrival.
    parked: BTreeSet<(u64, Uid)>,
    /// Unschedulable pods, the longest wait first.
    stays: BTreeSet<(Duration, Uid)>,
    /// How many of the parked pods wait for each plugin; under `None` those that wait for any
    /// event.
    awaited: BTreeMap<Option<Plugin>, usize>,
    /// Pods in flight, by the first event that arrived after they were popped.
    flying: BTreeSet<(u64, Uid)>,
    /// Events that arrived while pods are in flight, numbered from `events_from` on.
    events: VecDeque<E>,
    events_from: u64,
    numbered: u64,
    /// The reason for the moves that are being made.
    cause: &'static str,
    /// Moves by queue and reason since the last `take_moved`.
    moved: BTreeMap<Moved, u64>,
    /// How many pending pods each plugin of a profile has rejected.
    rejected: BTreeMap<(Plugin, usize), usize>,
    tenants: Tenants,
    /// Setbacks of pods from a previous queue that were not added to this one yet.
    inherited: HashMap<Uid, Setback>,
}

/// One of upstream's queues, and the reason for the move to it.
pub type Moved = (&'static str, &'static str);

/// Upstream's labels of reasons that are not cluster events.
// k8s: pkg/scheduler/framework/events.go
mod cause {
    pub(super) const ADDED: &str = "UnschedulablePodAdd";
    pub(super) const FAILED: &str = "ScheduleAttemptFailure";
    pub(super) const BACKOFF_OVER: &str = "BackoffComplete";
    pub(super) const POPPED_EARLY: &str = "PopFromBackoffQ";
    pub(super) const RELEASED: &str = "ForceActivate";
    pub(super) const WAITED_LONG: &str = "UnschedulableTimeout";
}

impl<P: QueueCandidate, E: Clone> Queue<P, E> {
    /// Creates an empty queue.
    pub fn new(settings: Settings) -> Self {
        let stay_max = settings.stay_max.max(STAY_MIN);
        Self {
            settings: Settings { stay_max, ..settings },
            pods: HashMap::new(),
            active: BTreeSet::new(),
            behind: BTreeSet::new(),
            backoff: BTreeSet::new(),
            error_backoff: BTreeSet::new(),
            parked: BTreeSet::new(),
            stays: BTreeSet::new(),
            awaited: BTreeMap::new(),
            flying: BTreeSet::new(),
            events: VecDeque::new(),
            events_from: 0,
            numbered: 0,
            cause: cause::ADDED,
            moved: BTreeMap::new(),
            rejected: BTreeMap::new(),
            tenants: Tenants::default(),
            inherited: HashMap::new(),
        }
    }

    /// Returns the moves since the last call, by queue and reason.
    pub fn take_moved(&mut self) -> BTreeMap<Moved, u64> {
        std::mem::take(&mut self.moved)
    }

    /// Returns how many pending pods each plugin of a profile has rejected.
    pub fn rejected(&self) -> &BTreeMap<(Plugin, usize), usize> {
        &self.rejected
    }

    /// Returns a pod by its uid.
    pub fn get(&self, uid: &str) -> Option<&WaitingPod<P>> {
        self.pods.get(uid)
    }

    /// Returns all pods, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &WaitingPod<P>> {
        self.pods.values()
    }

    /// Returns how many pods are at a place.
    pub fn count(&self, place: QueuePlace) -> usize {
        self.pods.values().filter(|waiting| waiting.place == place).count()
    }

    /// Returns false if no pod is parked or in flight, so that no event can matter.
    pub fn is_listening(&self) -> bool {
        !self.parked.is_empty() || !self.flying.is_empty()
    }

    /// Returns the number of pods in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// Returns the events that are kept for pods in flight.
    pub fn in_flight_events(&self) -> impl Iterator<Item = &E> {
        self.events.iter()
    }

    /// Returns how many events are kept for pods in flight.
    pub fn in_flight_event_count(&self) -> usize {
        self.events.len()
    }

    /// Adds a pod without a node. A pod that is already in the queue stays as it is.
    pub fn add(&mut self, uid: &str, pod: Rc<P>, now: Duration) {
        if self.pods.contains_key(uid) {
            return;
        }
        self.numbered += 1;
        let waiting = WaitingPod {
            pod,
            place: QueuePlace::Gated,
            attempts: 0,
            first_attempt: None,
            last_attempt: now,
            rejectors: Rejectors::new(),
            pending: Rejectors::new(),
            flushed: false,
            since: now,
            number: self.numbered,
            unschedulable: 0,
            errors: 0,
            setback: self.inherited.remove(uid).unwrap_or_default(),
            sees_from: 0,
            is_gone: false,
            is_wanted: false,
            was_counted: false,
        };
        let uid: Uid = uid.into();
        self.cause = cause::ADDED;
        self.pods.insert(uid.clone(), waiting);
        self.requeue(&uid, Worth::TryNow, now);
    }

    /// Replaces a pod by its new version, or adds it if it is not in the queue; `event` is the
    /// change between the two versions.
    pub fn update(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        uid: &str,
        pod: Rc<P>,
        event: E,
        now: Duration,
    ) {
        let Some((uid, _)) = self.pods.get_key_value(uid) else { return self.add(uid, pod, now) };
        let uid = uid.clone();
        let place = self.pods[&uid].place;
        self.cause = hints.label(&event);
        self.take_out(&uid);
        self.change(&uid, |waiting| waiting.pod = pod);
        self.put(&uid, place);
        match place {
            QueuePlace::InFlight => self.keep(event),
            QueuePlace::Unschedulable | QueuePlace::Gated => self.weigh(hints, &uid, &event, now),
            QueuePlace::Active
            | QueuePlace::Backoff
            | QueuePlace::ErrorBackoff
            | QueuePlace::Binding => {}
        }
    }

    /// Removes a pod that was deleted, or that another scheduler has bound. A pod in flight or
    /// being bound is removed when its attempt ends.
    pub fn remove(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (uid.clone(), waiting.place);
        if matches!(place, QueuePlace::InFlight | QueuePlace::Binding) {
            return self.change(&uid, |waiting| waiting.is_gone = true);
        }
        self.leave(&uid);
    }

    /// Pops the first active pod of a namespace within its share of the time, else the first active
    /// pod, else the pod with the earliest end of its backoff. The pod is in flight until `done` or
    /// `add_unschedulable`.
    pub fn pop(&mut self, now: Duration) -> Option<(Uid, Rc<P>)> {
        loop {
            self.bring_back(now);
            let active = self.next_active(now);
            let is_early = active.is_none();
            let uid = active.or_else(|| self.backoff.first().map(|(_, _, uid)| uid.clone()))?;
            // The pod may be held since it was queued, as other pods of its group are.
            if self.pods[&uid].pod.is_held() {
                self.take_out(&uid);
                self.put(&uid, QueuePlace::Gated);
                continue;
            }
            if is_early {
                *self.moved.entry(("active", cause::POPPED_EARLY)).or_default() += 1;
            }
            let pod = self.begins_flight(&uid, now);
            return Some((uid, pod));
        }
    }

    /// Pops this pod before its turn, unless it is gated, held, in flight, being bound or set back.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go PopSpecificPod
    pub fn pop_this(&mut self, uid: &str, now: Duration) -> Option<Rc<P>> {
        let (uid, waiting) = self.pods.get_key_value(uid)?;
        let flies = matches!(waiting.place, QueuePlace::InFlight | QueuePlace::Binding);
        let is_kept = flies || waiting.setback.holds(now);
        if is_kept || waiting.pod.gate().is_some() || waiting.pod.is_held() {
            return None;
        }
        let uid = uid.clone();
        Some(self.begins_flight(&uid, now))
    }

    fn begins_flight(&mut self, uid: &Uid, now: Duration) -> Rc<P> {
        self.take_out(uid);
        let sees_from = self.events_from + self.events.len() as u64;
        self.change(uid, |waiting| {
            waiting.attempts += 1;
            waiting.first_attempt.get_or_insert(now);
            waiting.last_attempt = now;
            waiting.sees_from = sees_from;
            waiting.is_wanted = false;
        });
        self.put(uid, QueuePlace::InFlight);
        Rc::clone(&self.pods[uid].pod)
    }

    /// Marks a pod in flight as being bound. It stays in the queue until `done` or
    /// `add_unschedulable`.
    pub fn mark_binding(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if waiting.place == QueuePlace::InFlight {
            let uid = uid.clone();
            self.take_out(&uid);
            self.put(&uid, QueuePlace::Binding);
            self.forget_seen();
        }
    }

    /// Removes a pod in flight or being bound: it is bound, or needs no node any more.
    pub fn done(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if matches!(waiting.place, QueuePlace::InFlight | QueuePlace::Binding) {
            self.leave(&uid.clone());
        }
    }

    /// Requeues a pod after an attempt without a node or a failed binding, and clears its setback.
    /// `rejectors` and `pending` are empty after an error. A pod that was being bound is
    /// retried in any case. A pod that is not in flight stays as it is.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go AddUnschedulableIfNotPresent
    pub fn add_unschedulable(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        uid: &str,
        rejectors: Rejectors,
        pending: Rejectors,
        now: Duration,
    ) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if !matches!(waiting.place, QueuePlace::InFlight | QueuePlace::Binding) {
            return;
        }
        let (uid, is_gone, sees_from) = (uid.clone(), waiting.is_gone, waiting.sees_from);
        self.cause = cause::FAILED;
        if is_gone {
            return self.leave(&uid);
        }
        // No events were kept while the pod was being bound.
        let was_binding = waiting.place == QueuePlace::Binding;
        self.take_out(&uid);
        self.change(&uid, |waiting| {
            waiting.setback = Setback::default();
            if rejectors.is_empty() && pending.is_empty() {
                waiting.errors += 1;
            } else {
                waiting.unschedulable += 1;
                waiting.errors = 0;
            }
            (waiting.rejectors, waiting.pending) = (rejectors, pending);
            (waiting.since, waiting.flushed) = (now, false);
        });
        let waiting = &self.pods[&uid];
        let is_tried = was_binding || waiting.is_wanted || waiting.pod.only_backs_off();
        let worth = if is_tried || self.has_no_rejector(waiting) {
            Worth::TryLater
        } else {
            let missed = usize::try_from(sees_from.saturating_sub(self.events_from));
            let missed = missed.unwrap_or(usize::MAX);
            let missed = self.events.iter().skip(missed);
            missed.map(|event| self.worth(hints, waiting, event)).max().unwrap_or(Worth::Nothing)
        };
        self.requeue(&uid, worth, now);
        self.forget_seen();
    }

    /// Requeues the pods that an event may help, and keeps the event for pods in flight.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go MoveAllToActiveOrBackoffQueue
    pub fn move_all_to_active_or_backoff(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        event: &E,
        now: Duration,
    ) {
        let may_help = |by: &Option<Plugin>| by.is_none_or(|by| hints.may_help(event, by));
        if self.awaited.keys().any(may_help) {
            self.cause = hints.label(event);
            let parked: Vec<Uid> = self.parked.iter().map(|(_, uid)| uid.clone()).collect();
            for uid in parked {
                self.weigh(hints, &uid, event, now);
            }
        }
        self.keep(event.clone());
    }

    /// Releases a held pod. A pod that was added while it was held, or that an event helped in that
    /// time, is requeued now. With `at_once` the pod is retried even without such an event:
    /// immediately, or after its backoff if it is in flight.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go Activate
    pub fn release(&mut self, uid: &str, at_once: bool, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (uid.clone(), waiting.place);
        self.cause = cause::RELEASED;
        match place {
            QueuePlace::Active | QueuePlace::Binding => {}
            QueuePlace::InFlight => self.change(&uid, |waiting| waiting.is_wanted |= at_once),
            _ if at_once => {
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryNow, now);
            }
            QueuePlace::Gated => {
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryLater, now);
            }
            QueuePlace::Unschedulable | QueuePlace::Backoff | QueuePlace::ErrorBackoff => {}
        }
    }

    /// Schedules a retry of an unschedulable pod, or of a pod in flight, after its backoff.
    pub fn activate_after_backoff(&mut self, uid: &str, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (uid.clone(), waiting.place);
        match place {
            QueuePlace::Unschedulable => {
                self.cause = cause::RELEASED;
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryLater, now);
            }
            QueuePlace::InFlight => self.change(&uid, |waiting| waiting.is_wanted = true),
            _ => {}
        }
    }

    /// Requeues pods after their backoff, and pods that were unschedulable for `stay_max`.
    pub fn flush(&mut self, now: Duration) {
        self.cause = cause::BACKOFF_OVER;
        while let Some(uid) = self.first_due(now) {
            self.take_out(&uid);
            self.put(&uid, QueuePlace::Active);
        }
        self.cause = cause::WAITED_LONG;
        while let Some((since, uid)) = self.stays.first() {
            if now.saturating_sub(*since) <= self.settings.stay_max {
                break;
            }
            let uid = uid.clone();
            self.take_out(&uid);
            self.change(&uid, |waiting| waiting.flushed = true);
            self.requeue(&uid, Worth::TryLater, now);
        }
    }

    /// Returns when `flush` has work next; `None` if no pod waits for the time.
    pub fn next_flush(&self) -> Option<Duration> {
        let ends = [self.backoff.first().map(|b| b.0), self.error_backoff.first().map(|b| b.0)];
        let ends = ends.into_iter().flatten().map(|until| self.settings.backoff.over_at(until));
        let stays = self.stays.first().map(|(since, _)| self.stays_until(*since));
        ends.chain(stays).min()
    }

    /// Returns when a pod is retried at the latest without any event. `None` if the pod is active,
    /// gated, in flight or being bound.
    pub fn tried_again_at(&self, waiting: &WaitingPod<P>) -> Option<Duration> {
        let backoff = self.backoff_of(waiting).map(|until| self.settings.backoff.over_at(until));
        match waiting.place {
            QueuePlace::Backoff | QueuePlace::ErrorBackoff => backoff,
            QueuePlace::Unschedulable => backoff.max(Some(self.stays_until(waiting.since))),
            QueuePlace::Active | QueuePlace::Gated | QueuePlace::InFlight | QueuePlace::Binding => {
                None
            }
        }
    }

    fn stays_until(&self, since: Duration) -> Duration {
        since.saturating_add(self.settings.stay_max) + Duration::from_millis(1)
    }
}
