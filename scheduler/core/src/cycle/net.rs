//! Limits of an attempt's cost, and isolation of panics.
//!
//! ```text
//!   decide ──> in_attempt: budget, charge of the tenant
//!                  └──> netted: a panic leaves the cache torn: no further decision or event
//!                          └──> evaluate: reads of the cache; a panic is the pod's error
//! ```
//! Input: work of the scheduler. Output: its result, or a pod that is rejected and set back. Owner:
//! the scheduler; the clock is a function, and without one there is no deadline. Bounds:
//! `DEADLINE`, `WORK_MAX`, `BYTES_MAX` per attempt, `GROUP_DEADLINE` for a whole group. Two levels,
//! because filters, scores and dry runs only read the cache, and a dry run removes the pods that it
//! adds; a panic anywhere else may leave half of a change. A torn scheduler is replaced by one that
//! lists everything again, as a standby does: see `succeed`.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::panics::{self, Panicked};
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted, Limits};

use super::command::Fact;
use super::decide::PodRejection;
use super::{QueuedPod, Scheduler, Uid};
use crate::cache::ClusterCache;
use crate::diagnosis::PodEvaluator;
use crate::explain::{self, Explanation, Unexplained};
use crate::queue::Setback;
use crate::watch_event::{WatchEvent, WatchedKind};

/// Time for one pod: a thousand times a plain decision among 5,000 nodes, and short enough for
/// every other pod to wait.
const DEADLINE: Duration = Duration::from_secs(1);
/// Time for all pods of a group, which share one attempt.
const GROUP_DEADLINE: Duration = Duration::from_secs(2);
/// Work, in units of about ten nanoseconds: twice what the deadline allows, because prices are
/// estimates. It ends attempts also where nothing reads a clock.
const WORK_MAX: u64 = 200_000_000;
/// Total bytes: a quarter of the memory of a scheduler in a small cluster.
const BYTES_MAX: u64 = 256 << 20;
/// Time charged to the pod's namespace for a panic, because the cluster may have to be listed
/// again.
const PANIC_CHARGE: Duration = Duration::from_secs(5);
/// Characters of a panic's message in a pod's condition.
const PANIC_CHARS_MAX: usize = 300;
/// Versions of one object that may panic before every later one is skipped.
const FLAWS_MAX: u32 = 3;

/// A monotonic clock.
pub type Clock = Rc<dyn Fn() -> Duration>;

/// An object with a watch event that panicked.
#[derive(Clone, Debug, Default)]
struct Suspect {
    version: Option<String>,
    count: u32,
}

/// Limits of attempts, the attempt under way, and the effects of panics.
pub(super) struct Net {
    clock: Option<Clock>,
    limits: Limits,
    /// The budget between attempts.
    unlimited: Rc<AttemptBudget>,
    /// The pods of the attempt under way.
    under_way: Vec<(Uid, Rc<QueuedPod>)>,
    /// A panic ended an evaluation of this attempt.
    has_panicked: bool,
    is_torn: bool,
    /// Setbacks of the pods in the attempt that tore the cache.
    setbacks: HashMap<Uid, Setback>,
    suspects: HashMap<(WatchedKind, ObjectKey), Suspect>,
    /// Each evaluation spends a unit of the budget.
    #[cfg(test)]
    pub(super) pays: bool,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_torn, under_way, .. } = self;
        f.debug_struct("Net")
            .field("is_torn", is_torn)
            .field("under_way", &under_way.len())
            .finish_non_exhaustive()
    }
}

impl Default for Net {
    fn default() -> Self {
        Self {
            clock: None,
            limits: Limits { work: WORK_MAX, bytes: BYTES_MAX },
            unlimited: Rc::default(),
            under_way: Vec::new(),
            has_panicked: false,
            is_torn: false,
            setbacks: HashMap::new(),
            suspects: HashMap::new(),
            #[cfg(test)]
            pays: false,
        }
    }
}

impl Net {
    fn budget(&self, deadline: Duration) -> Rc<AttemptBudget> {
        Rc::new(match &self.clock {
            None => AttemptBudget::new(self.limits, || false),
            Some(clock) => {
                let (clock, end) = (Rc::clone(clock), clock().saturating_add(deadline));
                AttemptBudget::new(self.limits, move || clock() >= end)
            }
        })
    }

    fn elapsed(&self) -> Duration {
        self.clock.as_ref().map_or(Duration::ZERO, |clock| clock())
    }

    /// Returns true if no attempt is under way.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && !self.has_panicked
    }

    /// Returns true if the object is skipped because applying it has panicked before.
    fn skips(&self, key: &(WatchedKind, ObjectKey), version: Option<&str>) -> bool {
        self.suspects.get(key).is_some_and(|suspect| {
            suspect.count >= FLAWS_MAX || suspect.version.as_deref() == version
        })
    }
}

impl Scheduler {
    /// Gives attempts a deadline on this monotonic clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.net.clock = Some(clock);
        self
    }

    /// Replaces the limits of attempts.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_limits(mut self, limits: Limits) -> Self {
        self.net.limits = limits;
        self
    }

    /// Returns true after a panic has left the cache torn: a successor has to list everything
    /// again.
    pub fn is_torn(&self) -> bool {
        self.net.is_torn
    }

    /// Runs one attempt within a budget, and charges the namespaces of its pods.
    pub(super) fn in_attempt<T: Default>(
        &mut self,
        now: Duration,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let began = self.net.elapsed();
        self.cache.attempt_budget = self.net.budget(DEADLINE);
        let done = self.netted(now, work);
        if let Some(spent) = self.exhausted() {
            self.facts.push(Fact::Exhausted(spent.limit));
        }
        self.cache.attempt_budget = Rc::clone(&self.net.unlimited);
        let took = self.net.elapsed().saturating_sub(began);
        let has_panicked = std::mem::take(&mut self.net.has_panicked) || self.net.is_torn;
        let took = if has_panicked { took.max(PANIC_CHARGE) } else { took };
        if let Some((_, queued)) = self.net.under_way.first() {
            self.queue.charge(queued.key.namespace(), took, now);
        }
        self.net.under_way.clear();
        done
    }

    /// Adds a pod to the attempt under way.
    pub(super) fn attempts(&mut self, uid: &Uid, queued: &Rc<QueuedPod>) {
        self.net.under_way.push((uid.clone(), Rc::clone(queued)));
    }

    /// Adds all pods of a group to the attempt under way.
    pub(super) fn attempts_all(&mut self, pods: impl IntoIterator<Item = (Uid, Rc<QueuedPod>)>) {
        self.net.under_way.extend(pods);
        self.cache.attempt_budget = self.net.budget(GROUP_DEADLINE);
    }

    /// Runs work that changes the cache or the queue. After a panic in it both are unreliable: no
    /// further work runs, and its commands are discarded.
    pub(super) fn netted<T: Default>(
        &mut self,
        now: Duration,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if self.net.is_torn {
            return T::default();
        }
        let (commands, facts) = (self.commands.len(), self.facts.len());
        match panics::catch(|| work(self)) {
            Ok(done) => done,
            Err(panic) => {
                self.commands.truncate(commands);
                self.facts.truncate(facts);
                self.tear(&panic, now);
                T::default()
            }
        }
    }

    fn tear(&mut self, panic: &Panicked, now: Duration) {
        self.net.is_torn = true;
        panics::counted("scheduling");
        let pods: Vec<_> = self.net.under_way.iter().map(|(_, of)| of.key.as_str()).collect();
        let pods = if pods.is_empty() { "no pod".to_owned() } else { pods.join(", ") };
        tracing::error!("{panic}; scheduling {pods}; the cluster is read again");
        for (uid, queued) in self.net.under_way.clone() {
            let setback = self.queue.setback(&uid).after_another(now);
            self.net.setbacks.insert(uid, setback);
            let message = of_panic(panic);
            // The pod is set back even if its condition cannot be reported.
            let _ =
                panics::catch(|| self.report_rejection(&queued, "SchedulerError", message, None));
        }
    }

    /// Evaluates a pod, which changes neither the cache nor the queue.
    ///
    /// # Errors
    /// After a panic, or an exhausted budget: the result is incomplete then.
    pub(super) fn evaluate<T>(
        &mut self,
        evaluate: impl FnOnce(&mut PodEvaluator, &mut ClusterCache) -> T,
    ) -> Result<T, PodRejection> {
        #[cfg(test)]
        if self.net.pays {
            let budget = &self.cache.attempt_budget;
            let _ = budget.pay_at_once(1, "testing").and(budget.pay_bytes(1, "testing"));
        }
        match panics::catch(|| evaluate(&mut self.evaluator, &mut self.cache)) {
            Ok(found) => self.within_budget().map(|()| found),
            // The panic left pods of a dry run in the cache.
            Err(panic) if self.cache.is_changing.get() => {
                std::panic::resume_unwind(Box::new(panic.0))
            }
            Err(panic) => {
                self.evaluator = PodEvaluator::default();
                self.net.has_panicked = true;
                panics::counted("scheduling");
                let pods = self.net.under_way.iter().map(|(_, queued)| queued.key.as_str());
                let pods: Vec<_> = pods.collect();
                tracing::error!("{panic}; evaluating {}", pods.join(", "));
                Err(PodRejection::error(of_panic(&panic)))
            }
        }
    }

    /// Checks that the budget of the attempt is not exhausted.
    ///
    /// # Errors
    /// The message for the pod.
    pub(super) fn within_budget(&self) -> Result<(), PodRejection> {
        self.exhausted().map_or(Ok(()), |spent| Err(PodRejection::error(of_exhausted(spent))))
    }

    pub(super) fn exhausted(&self) -> Option<Exhausted> {
        self.cache.attempt_budget.exhausted()
    }

    /// Explains a pod within the budget of an attempt.
    ///
    /// # Errors
    /// As [`explain::explain`], and when the budget is exhausted.
    pub(super) fn explain_pod(
        &mut self,
        pod: &Pod,
        node: Option<&str>,
        now: Duration,
    ) -> Result<Explanation, Unexplained> {
        self.cache.attempt_budget = self.net.budget(DEADLINE);
        let found = self.netted(now, |scheduler| {
            let (cache, evaluator) = (&mut scheduler.cache, &mut scheduler.evaluator);
            Some(explain::explain(cache, evaluator, pod, node))
        });
        let spent = self.exhausted();
        self.cache.attempt_budget = Rc::clone(&self.net.unlimited);
        match (found, spent) {
            (_, Some(spent)) => Err(Unexplained::NotFinished(spent.to_string())),
            (None, None) => Err(Unexplained::NotFinished("the scheduler failed on it".to_owned())),
            (Some(found), None) => found,
        }
    }

    /// Returns true if pods of the attempt under way are set back, whatever its result.
    pub(super) fn is_set_back(&self) -> bool {
        self.net.has_panicked || self.exhausted().is_some()
    }

    /// Applies a watch event. After a panic the object counts as failed to decode, and this version
    /// is not applied again.
    pub(super) fn apply(
        &mut self,
        watch_event: WatchEvent,
        now: Duration,
        apply: impl FnOnce(&mut Self, WatchEvent) -> Option<&'static str>,
    ) -> Option<&'static str> {
        let (about, is_end) = match &watch_event {
            WatchEvent::Listed(thing) | WatchEvent::Set(thing) => {
                let key = (thing.kind(), thing.key());
                (Some((key, thing.metadata().resource_version.clone())), false)
            }
            WatchEvent::Gone(thing) => (Some(((thing.kind(), thing.key()), None)), true),
            WatchEvent::Lost(kind, key) => (Some(((*kind, key.clone()), None)), true),
            _ => (None, false),
        };
        let Some((key, version)) = about else {
            return self.netted(now, |s| apply(s, watch_event));
        };
        if is_end {
            self.net.suspects.remove(&key);
        } else if self.net.skips(&key, version.as_deref()) {
            let (kind, key) = key;
            self.cache.put_flawed(kind, &key, matches!(watch_event, WatchEvent::Listed(_)));
            return None;
        }
        let was_torn = self.net.is_torn;
        let event = self.netted(now, |s| apply(s, watch_event));
        if self.net.is_torn && !was_torn {
            tracing::error!("applying {:?} {} ended in this panic", key.0, key.1.as_str());
            let suspect = self.net.suspects.entry(key).or_default();
            *suspect = Suspect { version, count: suspect.count + 1 };
        } else if !self.net.is_torn && self.net.suspects.remove(&key).is_some() {
            self.cache.mark_applied(key.0, &key.1);
        }
        event
    }

    /// Hands setbacks, debts and suspects over to a scheduler that lists everything again. The work
    /// under way of this one has to be over.
    pub fn succeed(&mut self, successor: &mut Self, now: Duration) {
        // This scheduler is torn: a failure here loses only what it would hand over.
        let retired = panics::catch(|| self.retire());
        let setbacks = panics::catch(|| {
            let mut setbacks = self.queue.setbacks();
            setbacks.extend(std::mem::take(&mut self.net.setbacks));
            setbacks
        });
        for panic in [retired.err(), setbacks.as_ref().err().cloned()].into_iter().flatten() {
            tracing::error!("{panic}; handing over");
        }
        successor.queue.inherit(setbacks.unwrap_or_default(), &mut self.queue, now);
        successor.net.suspects = std::mem::take(&mut self.net.suspects);
        successor.net.clock = self.net.clock.take();
        successor.net.limits = self.net.limits;
        successor.random = self.random;
    }

    /// Runs Unreserve for its pods and stops their writes.
    fn retire(&mut self) {
        self.plugins.unreserve_all();
        self.binding_volumes.stop_all();
    }
}

/// A panic's message may have any length.
fn of_panic(panic: &Panicked) -> String {
    let says: String = panic.to_string().chars().take(PANIC_CHARS_MAX).collect();
    format!("the scheduler failed on this pod and tries it again later: {says}")
}

fn of_exhausted(spent: Exhausted) -> String {
    format!("the pod was not scheduled: {spent}")
}
