//! Pods that wait for a decision, in the order in which they get one.
//!
//! ```text
//!   add ──────────> active ── pop ──> in flight ── done ──> (bound)
//!    │ gate           ^  ^               │ back, with who rejected it
//!    v                │  └── due ── backoff <── worth another try, too early
//!   gated ── event ───┤                  │ (pop takes from it when nothing is active)
//!                     └── event ── unschedulable <── nothing that happened meanwhile helps
//! ```
//! Input: pods, what happens in the cluster, the time. Output: the pod that is decided next. Owner:
//! whoever decides; pure, no clock. What an event means to a pod is [`Hints`]' to say; what happened
//! while a pod was being decided is asked of them when it comes back, so that no wake-up is missed.
//! Bounds: the pods that are told; an event is kept while a pod that was popped before it is in
//! flight.
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
use serde::Serialize;

pub use self::backoff::Backoff;
pub use self::setback::Setback;
use self::tenants::Tenants;

/// What an event is worth to a pod that was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// It cannot help.
    Nothing,
    /// Another try, when its backoff is over.
    TryLater,
    /// Another try at once: somebody who waited for this says so.
    TryNow,
}

/// A pod that waits for its turn.
pub trait Candidate {
    /// Who is decided first.
    fn priority(&self) -> i32;
    /// The same as a number: the lowest goes first.
    fn rank(&self) -> i64 {
        -i64::from(self.priority())
    }
    /// Who keeps it from being decided at all, if anybody does.
    fn gate(&self) -> Option<Plugin>;
    /// The number of its profile.
    fn profile(&self) -> usize {
        0
    }
    /// The tenant that pays for its attempts; empty for none.
    fn namespace(&self) -> &str {
        ""
    }
    /// Whether it is not decided until [`Queue::released`] says so.
    fn is_held(&self) -> bool {
        false
    }
    /// Whether an extender may have to be asked about it.
    fn consults(&self) -> bool {
        false
    }
    /// Whether it is tried again after its backoff, whatever rejected it and whatever happens.
    fn only_backs_off(&self) -> bool {
        false
    }
}

/// Those who say what happens to pods.
pub trait Hints {
    /// A pod that waits.
    type Pod: Candidate;
    /// What happens in a cluster.
    type Event: Clone;
    /// Upstream's name of an event.
    fn label(&self, event: &Self::Event) -> &'static str;
    /// Whether an event of this kind can help anybody whom this plugin rejected.
    fn may_help(&self, event: &Self::Event, rejector: Plugin) -> bool;
    /// Whether a pod that this plugin rejected may pass it after this event.
    fn helps(&self, event: &Self::Event, pod: &Self::Pod, rejector: Plugin) -> bool;
}

/// Who rejected a pod.
pub type Rejectors = BTreeSet<Plugin>;

/// Where a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// It is decided when its turn comes.
    Active,
    /// It has to wait for its backoff first, unless nothing else is to be done.
    Backoff,
    /// The same after an error, or as one of a group, which is no reason to hurry.
    ErrorBackoff,
    /// It waits for an event.
    Unschedulable,
    /// A plugin keeps it from being decided.
    Gated,
    /// It is being decided.
    InFlight,
    /// It has a node and is being bound there: no event can matter to it any more.
    Binding,
}

/// How long pods wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// podInitialBackoffSeconds and podMaxBackoffSeconds.
    pub backoff: Backoff,
    /// After so long an unschedulable pod is tried again, whatever happened; half a minute at least.
    pub stay_max: Duration,
}

/// So often upstream looks whether pods have waited for too long.
// k8s: pkg/scheduler/backend/queue/scheduling_queue.go Run
const STAY_MIN: Duration = Duration::from_secs(30);

impl Default for Settings {
    fn default() -> Self {
        Self { backoff: Backoff::default(), stay_max: Duration::from_secs(300) }
    }
}

/// A pod that waits. Times are since the process began.
#[derive(Clone, Debug)]
pub struct Waiting<P> {
    /// As it was told last.
    pub pod: Rc<P>,
    /// Where it is.
    pub place: Place,
    /// How often it was popped.
    pub attempts: u32,
    /// When it was popped first.
    pub first_attempt: Option<Duration>,
    /// When it was popped last.
    pub last_attempt: Duration,
    /// Who rejected it the last time.
    pub rejectors: Rejectors,
    /// Of these, who waits for something and says when it is there.
    pub pending: Rejectors,
    /// It is tried again only because it waited for `stay_max`.
    pub flushed: bool,
    /// When it was told, or came back.
    since: Duration,
    /// Breaks ties.
    number: u64,
    unschedulable: u32,
    errors: u32,
    setback: Setback,
    /// Of the events, the first that it did not see when it was popped.
    sees_from: u64,
    /// It was deleted while it was in flight.
    is_gone: bool,
    /// Somebody wanted it tried at once while it was in flight.
    is_wanted: bool,
    /// It has been in a queue.
    was_counted: bool,
}

impl<P> Waiting<P> {
    /// Whoever was told first has the lowest.
    pub fn number(&self) -> u64 {
        self.number
    }
}

type Uid = Rc<str>;
/// The lowest goes first: by rank, then who has waited longest.
type Turn = (i64, Duration, u64);

/// The queue.
#[derive(Debug)]
pub struct Queue<P, E> {
    settings: Settings,
    pods: HashMap<Uid, Waiting<P>>,
    active: BTreeSet<(Turn, Uid)>,
    /// Active ones that were held back while extenders were asked about another.
    behind: BTreeSet<(Turn, Uid)>,
    backoff: BTreeSet<(Duration, Turn, Uid)>,
    error_backoff: BTreeSet<(Duration, u64, Uid)>,
    /// Unschedulable and gated ones, who came first first.
    parked: BTreeSet<(u64, Uid)>,
    /// Unschedulable ones, who has waited longest first.
    stays: BTreeSet<(Duration, Uid)>,
    /// How many of the parked ones wait for each plugin; for whatever happens under `None`.
    awaited: BTreeMap<Option<Plugin>, usize>,
    /// Those in flight, by the first event that they did not see.
    flying: BTreeSet<(u64, Uid)>,
    /// What happened while pods are in flight, numbered from `events_from` on.
    events: VecDeque<E>,
    events_from: u64,
    numbered: u64,
    /// Why pods move now, and how many have moved where for which reason since that was asked.
    cause: &'static str,
    moved: BTreeMap<Moved, u64>,
    /// How many of those that wait each plugin of a profile has rejected.
    rejected: BTreeMap<(Plugin, usize), usize>,
    tenants: Tenants,
    /// Setbacks of pods that were not added again yet, from a queue before this one.
    inherited: HashMap<Uid, Setback>,
}

/// To which of upstream's queues, and why.
pub type Moved = (&'static str, &'static str);

/// Upstream's words for what is no event of the cluster.
// k8s: pkg/scheduler/framework/events.go
mod cause {
    pub(super) const ADDED: &str = "UnschedulablePodAdd";
    pub(super) const FAILED: &str = "ScheduleAttemptFailure";
    pub(super) const BACKOFF_OVER: &str = "BackoffComplete";
    pub(super) const POPPED_EARLY: &str = "PopFromBackoffQ";
    pub(super) const RELEASED: &str = "ForceActivate";
    pub(super) const WAITED_LONG: &str = "UnschedulableTimeout";
}

impl<P: Candidate, E: Clone> Queue<P, E> {
    /// An empty one.
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

    /// How many pods have moved where since the last call, and why.
    pub fn take_moved(&mut self) -> BTreeMap<Moved, u64> {
        std::mem::take(&mut self.moved)
    }

    /// How many of those that wait each plugin of a profile has rejected.
    pub fn rejected(&self) -> &BTreeMap<(Plugin, usize), usize> {
        &self.rejected
    }

    /// A pod that waits, by its uid.
    pub fn get(&self, uid: &str) -> Option<&Waiting<P>> {
        self.pods.get(uid)
    }

    /// All pods, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<P>> {
        self.pods.values()
    }

    /// How many pods are at a place.
    pub fn count(&self, place: Place) -> usize {
        self.pods.values().filter(|waiting| waiting.place == place).count()
    }

    /// Whether an event can matter to anybody.
    pub fn is_listening(&self) -> bool {
        !self.parked.is_empty() || !self.flying.is_empty()
    }

    /// Pods in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// Events that are kept for these.
    pub fn kept(&self) -> impl Iterator<Item = &E> {
        self.events.iter()
    }

    /// Events that are kept for pods in flight.
    pub fn kept_events(&self) -> usize {
        self.events.len()
    }

    /// A pod without a node was told for the first time. One that is known is left as it is.
    pub fn add(&mut self, uid: &str, pod: Rc<P>, now: Duration) {
        if self.pods.contains_key(uid) {
            return;
        }
        self.numbered += 1;
        let waiting = Waiting {
            pod,
            place: Place::Gated,
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
        self.pods.insert(Rc::clone(&uid), waiting);
        self.requeue(&uid, Worth::TryNow, now);
    }

    /// A pod that waits is another one than before, which is this event.
    pub fn update(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        uid: &str,
        pod: Rc<P>,
        event: E,
        now: Duration,
    ) {
        let Some((uid, _)) = self.pods.get_key_value(uid) else { return self.add(uid, pod, now) };
        let uid = Rc::clone(uid);
        let place = self.pods[&uid].place;
        self.cause = hints.label(&event);
        self.take_out(&uid);
        self.change(&uid, |waiting| waiting.pod = pod);
        self.put(&uid, place);
        match place {
            Place::InFlight => self.keep(event),
            Place::Unschedulable | Place::Gated => self.weigh(hints, &uid, &event, now),
            Place::Active | Place::Backoff | Place::ErrorBackoff | Place::Binding => {}
        }
    }

    /// A pod is gone, or somebody else has bound it.
    pub fn remove(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (Rc::clone(uid), waiting.place);
        if matches!(place, Place::InFlight | Place::Binding) {
            return self.change(&uid, |waiting| waiting.is_gone = true);
        }
        self.leave(&uid);
    }

    /// Pops the next pod: the first active one of a namespace within its share of the time, else the
    /// first active one, else the one with the earliest end of its backoff. It is in flight until `done`
    /// or `back`.
    pub fn pop(&mut self, now: Duration) -> Option<(Rc<str>, Rc<P>)> {
        loop {
            self.bring_back(now);
            let active = self.next_active(now);
            let is_early = active.is_none();
            let uid = active.or_else(|| self.backoff.first().map(|(_, _, uid)| Rc::clone(uid)))?;
            // It may be held since it came here, as those of its group are.
            if self.pods[&uid].pod.is_held() {
                self.take_out(&uid);
                self.put(&uid, Place::Gated);
                continue;
            }
            if is_early {
                *self.moved.entry(("active", cause::POPPED_EARLY)).or_default() += 1;
            }
            let pod = self.begins_flight(&uid, now);
            return Some((uid, pod));
        }
    }

    /// Pops this pod before its turn, unless it may not be decided now.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go PopSpecificPod
    pub fn pop_this(&mut self, uid: &str, now: Duration) -> Option<Rc<P>> {
        let (uid, waiting) = self.pods.get_key_value(uid)?;
        let flies = matches!(waiting.place, Place::InFlight | Place::Binding);
        let is_kept = flies || waiting.setback.holds(now);
        if is_kept || waiting.pod.gate().is_some() || waiting.pod.is_held() {
            return None;
        }
        let uid = Rc::clone(uid);
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
        self.put(uid, Place::InFlight);
        Rc::clone(&self.pods[uid].pod)
    }

    /// A pod in flight has a node. Until `done` or `back` it is not gone.
    pub fn binds(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if waiting.place == Place::InFlight {
            let uid = Rc::clone(uid);
            self.take_out(&uid);
            self.put(&uid, Place::Binding);
            self.forget_seen();
        }
    }

    /// A pod in flight or being bound is no pod without a node any more.
    pub fn done(&mut self, uid: &str) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if matches!(waiting.place, Place::InFlight | Place::Binding) {
            self.leave(&Rc::clone(uid));
        }
    }

    /// A pod in flight has no node: these plugins rejected it, some of which wait for something;
    /// nobody did where an error came between. One that was being bound is tried again in any case.
    /// An attempt that ends in this way is no setback.
    pub fn back(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        uid: &str,
        rejectors: Rejectors,
        pending: Rejectors,
        now: Duration,
    ) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if !matches!(waiting.place, Place::InFlight | Place::Binding) {
            return;
        }
        let (uid, is_gone, sees_from) = (Rc::clone(uid), waiting.is_gone, waiting.sees_from);
        self.cause = cause::FAILED;
        if is_gone {
            return self.leave(&uid);
        }
        // Nobody kept what happened while it was being bound.
        let was_binding = waiting.place == Place::Binding;
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
        let worth = if is_tried || self.is_rejected_by_nobody(waiting) {
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

    /// Something happened in the cluster: pods that it may help are tried again.
    pub fn happened(&mut self, hints: &impl Hints<Pod = P, Event = E>, event: &E, now: Duration) {
        let may_help = |by: &Option<Plugin>| by.is_none_or(|by| hints.may_help(event, by));
        if self.awaited.keys().any(may_help) {
            self.cause = hints.label(event);
            let parked: Vec<Uid> = self.parked.iter().map(|(_, uid)| Rc::clone(uid)).collect();
            for uid in parked {
                self.weigh(hints, &uid, event, now);
            }
        }
        self.keep(event.clone());
    }

    /// A pod is held no longer. What helped it meanwhile helps now; with `at_once` it is tried
    /// whether anything did or not, after its backoff if it is being decided.
    // k8s: pkg/scheduler/backend/queue/scheduling_queue.go Activate
    pub fn released(&mut self, uid: &str, at_once: bool, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (Rc::clone(uid), waiting.place);
        self.cause = cause::RELEASED;
        match place {
            Place::Active | Place::Binding => {}
            Place::InFlight => self.change(&uid, |waiting| waiting.is_wanted |= at_once),
            _ if at_once => {
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryNow, now);
            }
            Place::Gated => {
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryLater, now);
            }
            Place::Unschedulable | Place::Backoff | Place::ErrorBackoff => {}
        }
    }

    /// A pod that waits is to be tried again once its backoff is over.
    pub fn later(&mut self, uid: &str, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (Rc::clone(uid), waiting.place);
        match place {
            Place::Unschedulable => {
                self.cause = cause::RELEASED;
                self.take_out(&uid);
                self.requeue(&uid, Worth::TryLater, now);
            }
            Place::InFlight => self.change(&uid, |waiting| waiting.is_wanted = true),
            _ => {}
        }
    }

    /// What is due goes on: backoffs that are over, pods that have waited for too long.
    pub fn flush(&mut self, now: Duration) {
        self.cause = cause::BACKOFF_OVER;
        while let Some(uid) = self.first_due(now) {
            self.take_out(&uid);
            self.put(&uid, Place::Active);
        }
        self.cause = cause::WAITED_LONG;
        while let Some((since, uid)) = self.stays.first() {
            if now.saturating_sub(*since) <= self.settings.stay_max {
                break;
            }
            let uid = Rc::clone(uid);
            self.take_out(&uid);
            self.change(&uid, |waiting| waiting.flushed = true);
            self.requeue(&uid, Worth::TryLater, now);
        }
    }

    /// When `flush` has something to do next; `None` when no pod waits for the time.
    pub fn next_flush(&self) -> Option<Duration> {
        let ends = [self.backoff.first().map(|b| b.0), self.error_backoff.first().map(|b| b.0)];
        let ends = ends.into_iter().flatten().map(|until| self.settings.backoff.over_at(until));
        let stays = self.stays.first().map(|(since, _)| self.stays_until(*since));
        ends.chain(stays).min()
    }

    /// When a pod is tried again at the latest, by the time alone; `None` for one that waits for its
    /// turn or for something to happen, and for one that is being decided.
    pub fn tried_again_at(&self, waiting: &Waiting<P>) -> Option<Duration> {
        let backoff = self.backoff_of(waiting).map(|until| self.settings.backoff.over_at(until));
        match waiting.place {
            Place::Backoff | Place::ErrorBackoff => backoff,
            Place::Unschedulable => backoff.max(Some(self.stays_until(waiting.since))),
            Place::Active | Place::Gated | Place::InFlight | Place::Binding => None,
        }
    }

    fn stays_until(&self, since: Duration) -> Duration {
        since.saturating_add(self.settings.stay_max) + Duration::from_millis(1)
    }
}
