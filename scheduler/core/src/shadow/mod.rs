//! The shadow: repeats the decisions of another scheduler, and reports differences.
//!
//! ```text
//!   WatchEvent ─> by version, SETTLE_WAIT ─> is it a decision? ─> judged ─> ComparisonReport
//!                          │                                        ^
//!                          └─> cache: one step after the other ─────┘ nearby states
//! ```
//! Input: watch events, and the time. Output: a [`ComparisonReport`]. Owner: one task; pure, no
//! clock. Watches of different kinds are apart by milliseconds, so a change is applied only after it has
//! waited for `SETTLE_WAIT`, in the order of versions. The other scheduler binds pods at the same
//! time and sees changes later than they are written: its decision is compared with the state
//! before the binding, then with states nearby (`nearby`), before it counts as a difference; and
//! again until `DOUBT_WAIT`, because an earlier decision may be written later. Bounds: `HELD_MAX`
//! changes wait; beyond that the oldest are applied early. `PAST_MAX` are remembered.

#[cfg(test)]
mod control_tests;
mod judge;
mod nearby;
pub mod report;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_sched_core::Profile;

use self::report::{ComparisonReport, ShadowVerdict};
use crate::cache::{CacheDelta, ClusterCache};
use crate::diagnosis::PodEvaluator;
use crate::pod_fields::{node_name, scheduler_name};
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

/// Wait of a change for earlier ones of other kinds, and for related ones.
const SETTLE_WAIT: Duration = Duration::from_millis(1000);
/// Wait of a decision that seems different for earlier decisions that are written later: a busy API
/// server takes seconds for it.
const DOUBT_WAIT: Duration = Duration::from_secs(10);
/// Changes that wait.
const HELD_MAX: usize = 16 * 1024;
/// Steps that can be undone.
const PAST_MAX: usize = 64;

/// The scheduler that the shadow follows.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Its profile.
    pub profile: Profile,
    /// Its percentageOfNodesToScore; 0 is upstream's own choice.
    pub percentage: i32,
}

/// A change that waits.
#[derive(Debug)]
enum HeldChange {
    Set(WatchedObject),
    Gone(WatchedKind, ObjectKey, Option<WatchedObject>),
}

/// The shadow.
#[derive(Debug)]
pub struct Shadow {
    /// The cluster after the last applied change.
    pub cache: ClusterCache,
    /// Result so far.
    pub report: ComparisonReport,
    /// Memory of decisions.
    pub evaluator: PodEvaluator,
    followed: Followed,
    held: BTreeMap<(u64, u64), (Duration, HeldChange)>,
    numbered: u64,
    last: u64,
    past: VecDeque<CacheDelta>,
}

impl Shadow {
    /// Creates an empty shadow.
    pub fn new(followed: Followed) -> Self {
        Self {
            cache: ClusterCache::new(followed.profile.clone()),
            report: ComparisonReport::default(),
            evaluator: PodEvaluator::default(),
            followed,
            held: BTreeMap::new(),
            numbered: 0,
            last: 0,
            past: VecDeque::new(),
        }
    }

    /// Takes a watch event at time `now`, which only grows.
    pub fn handle(&mut self, now: Duration, watch_event: WatchEvent) {
        let (version, held) = match watch_event {
            WatchEvent::Set(thing) => (thing.version(), HeldChange::Set(thing)),
            WatchEvent::Gone(thing) => {
                (thing.version(), HeldChange::Gone(thing.kind(), thing.key(), Some(thing)))
            }
            WatchEvent::Lost(kind, key) => (self.last, HeldChange::Gone(kind, key, None)),
            list => return self.list(list),
        };
        self.numbered += 1;
        self.held.insert((version, self.numbered), (now, held));
        while self.held.len() > HELD_MAX {
            self.take_first(true);
        }
    }

    /// A list is no history: it is applied as it is, and no decision is read from it.
    fn list(&mut self, watch_event: WatchEvent) {
        if let WatchEvent::Listed(thing) = &watch_event {
            self.last = self.last.max(thing.version());
        }
        for step in self.cache.list(watch_event) {
            self.cache.make(&step);
        }
    }

    /// Applies changes that have waited long enough; returns when more are due.
    pub fn settle(&mut self, now: Duration) -> Option<Duration> {
        while let Some((_, (since, _))) = self.held.first_key_value() {
            let (due, is_late) = (*since + SETTLE_WAIT, *since + DOUBT_WAIT <= now);
            if due > now || !self.cache.is_complete() {
                return Some(due.max(now + SETTLE_WAIT / 10));
            }
            if !self.take_first(is_late) {
                return Some(now + SETTLE_WAIT);
            }
        }
        None
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.held.len()
    }

    /// Applies the next change, unless it is a decision in doubt that may wait.
    fn take_first(&mut self, at_any_rate: bool) -> bool {
        let Some((_, (_, first))) = self.held.first_key_value() else { return false };
        if let Some(decision) = self.decision(first) {
            match self.judge(&decision) {
                ShadowVerdict::Other(_) if !at_any_rate => return false,
                verdict => self.report.take(&decision, verdict),
            }
        }
        let Some(((version, _), (_, held))) = self.held.pop_first() else { return false };
        self.last = self.last.max(version);
        let steps = match held {
            HeldChange::Set(thing) => self.cache.set(thing),
            HeldChange::Gone(kind, key, last) => self.cache.gone(kind, &key, last.as_ref()),
        };
        for step in steps {
            self.cache.make(&step);
            if step.matters() {
                self.past.push_back(step);
            }
        }
        let over = self.past.len().saturating_sub(PAST_MAX);
        self.past.drain(..over);
        true
    }

    /// Returns the decision of the other scheduler, if the change is one.
    fn decision(&self, held: &HeldChange) -> Option<Decision> {
        let HeldChange::Set(WatchedObject::Pod(pod)) = held else { return None };
        let before = self.cache.waiting(&key_of(&**pod))?;
        if before.uid() != pod.metadata.uid.as_deref()
            || scheduler_name(pod) != self.followed.profile.scheduler_name
        {
            return None;
        }
        let before = before.whole();
        if let Some(node) = node_name(pod) {
            return Some(Decision::Bound { before, node: node.to_owned() });
        }
        let said = unschedulable(pod).filter(|said| unschedulable(&before) != Some(said))?;
        Some(Decision::Refused { said: said.to_owned(), before })
    }
}

/// Decision of the other scheduler, and the pod as it was before.
#[derive(Debug)]
enum Decision {
    Bound { before: Rc<Pod>, node: String },
    Refused { before: Rc<Pod>, said: String },
}

/// Returns the scheduler's message for a pod that fits no node.
fn unschedulable(pod: &Pod) -> Option<&str> {
    let is_refusal = |c: &&PodCondition| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && c.reason.as_deref() == Some("Unschedulable")
    };
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(is_refusal)?.message.as_deref()
}
