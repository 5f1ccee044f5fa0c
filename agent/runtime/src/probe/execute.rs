//! The prober: owns the schedules of all probes and begins attempts as they fall due.
//!
//! Effects, on the agent's main thread. Orders change the `ProbeSchedule` at once; one task sleeps
//! until the earliest due time, starts due attempts and passes results on. A waiting probe is an
//! entry of a heap and nothing else; an attempt is a task of its own while it lasts. An attempt at
//! a container that is no longer probed is given up, which also ends its command at the runtime.
//! Bounds: one attempt per probe, `ATTEMPTS_MAX` of them at a time, shared fairly between pods
//! (`shares`); due attempts beyond that wait, and their time limit does not run meanwhile. Under
//! pressure an attempt of a pod that holds more than its share is given up and counts as neither
//! success nor failure. When the worker is slow to take results, no new attempts begin.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::worker::{Command, PodsInput};
use pintle_agent_metrics::{Metrics, ProbeCounts};
use pintle_cri::Client;
use pintle_daemon::clock;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::attempt::Tools;
use super::plan::ProbeOutcome;
use super::schedule::{AttemptKey, ProbeAttempt, ProbeOrder, ProbeSchedule};
use crate::resolver::Resolver;

/// Attempts under way at a time. Far above the attempts due at once on a node of 110 pods, far
/// below the runtime client's bound of calls.
pub(super) const ATTEMPTS_MAX: usize = 1024;
/// Of the files that the agent may have open, attempts take one part in this many.
const FILES_PART: u64 = 4;
/// Attempts started in one go; then the rest of the agent runs.
const BEGINS_MAX: usize = 32;
/// Attempts due within this time start together: each wake-up costs more than the work in it, and
/// no probe has a period below twenty times as much.
const TOGETHER: Duration = Duration::from_millis(50);
/// Longest sleep of the task.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Longest sleep while an attempt waits for a place.
const SLEEP_WAITING: Duration = Duration::from_secs(1);

/// Probes containers; see the module's header.
#[derive(Debug)]
pub struct Prober {
    schedule: RefCell<ProbeSchedule>,
    changed: Notify,
    /// When the task wakes up by itself; never while it does not sleep.
    wakes_at: Cell<Duration>,
    tools: Tools,
    metrics: Arc<Metrics>,
    counts: ProbeCounts,
    epoch: Instant,
}

impl Prober {
    /// Starts probing. Must be called within a `LocalSet`. Results go to `inputs`, their numbers
    /// to `metrics`; this agent began at `agent_started_at`.
    pub fn start(
        client: Client,
        recorder: Recorder,
        inputs: mpsc::Sender<PodsInput>,
        agent_started_at: UnixNanos,
        metrics: Arc<Metrics>,
    ) -> Rc<Self> {
        let prober = Rc::new(Self {
            schedule: RefCell::new(ProbeSchedule::new(agent_started_at, attempts_max())),
            changed: Notify::new(),
            wakes_at: Cell::new(Duration::MAX),
            tools: Tools { client, recorder, resolver: Resolver::default() },
            counts: metrics.probes(),
            metrics,
            epoch: Instant::now(),
        });
        pintle_daemon::tasks::singleton("prober", Rc::clone(&prober).run(inputs));
        prober
    }

    async fn run(self: Rc<Self>, inputs: mpsc::Sender<PodsInput>) {
        loop {
            while let Some(input) = self.take_result() {
                if inputs.send(input).await.is_err() {
                    return;
                }
            }
            if self.begin_due() == BEGINS_MAX {
                tokio::task::yield_now().await;
                continue;
            }
            self.make_room();
            let wakes_at = self.next_wake();
            self.wakes_at.set(wakes_at);
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wakes_at.saturating_sub(self.now())) => {}
                () = inputs.closed() => return,
            }
            self.wakes_at.set(Duration::MAX);
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn take_result(&self) -> Option<PodsInput> {
        self.schedule.borrow_mut().take_result()
    }

    /// Begins attempts that are due; returns how many.
    fn begin_due(self: &Rc<Self>) -> usize {
        let take = || self.schedule.borrow_mut().take_due(self.now());
        std::iter::from_fn(take).take(BEGINS_MAX).map(|attempt| self.begin(attempt)).count()
    }

    fn make_room(&self) {
        let given_up = self.schedule.borrow_mut().make_room(self.now());
        for _ in 0..given_up {
            self.metrics.limit_hit("probe attempts");
        }
    }

    /// When the task next wakes without an order.
    fn next_wake(&self) -> Duration {
        let mut schedule = self.schedule.borrow_mut();
        let longest = if schedule.is_waiting() { SLEEP_WAITING } else { SLEEP_MAX };
        let latest = self.now().saturating_add(longest);
        schedule.next_due().map_or(latest, |at| together(at).min(latest))
    }

    /// Wakes the task if an attempt's end makes work due before its next wake-up: an attempt with
    /// the result of the one before it does not.
    fn attempt_ended(&self) {
        let schedule = self.schedule.borrow();
        let has_news = schedule.has_results() || schedule.is_waiting();
        drop(schedule);
        if has_news || self.next_wake() < self.wakes_at.get() {
            self.changed.notify_one();
        }
    }

    fn begin(self: &Rc<Self>, attempt: ProbeAttempt) {
        let key = attempt.key.clone();
        let prober = Rc::clone(self);
        let slot = AttemptSlot { prober: Rc::clone(self), key: attempt.key.clone(), outcome: None };
        let work = async move {
            let ProbeAttempt { target, key, timeout } = &attempt;
            let begun = Instant::now();
            let outcome = prober.tools.attempt(target, key.kind, *timeout).await;
            let name = &target.container.name;
            prober.counts.ended(&target.uid, name, key.kind, outcome, begun.elapsed());
            outcome
        };
        let task = pintle_daemon::tasks::spawn("probe", slot.fill(work));
        self.schedule.borrow_mut().began(&key, task.abort_handle());
    }
}

/// The next time at which attempts begin: the same one for all that fall due shortly before it.
fn together(at: Duration) -> Duration {
    let beyond = at.as_nanos() % TOGETHER.as_nanos();
    let beyond = Duration::from_nanos(u64::try_from(beyond).expect("less than TOGETHER"));
    if beyond.is_zero() { at } else { at.saturating_add(TOGETHER - beyond) }
}

/// As many attempts as the files that the agent may have open allow.
fn attempts_max() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(files / FILES_PART).unwrap_or(usize::MAX).clamp(1, ATTEMPTS_MAX)
}

/// Gives an attempt's place back however the attempt ends: done, given up or panicked. Without an
/// outcome it counts as neither success nor failure, as upstream has it.
// k8s: pkg/kubelet/prober/worker.go doProbe (HandleCrash)
struct AttemptSlot {
    prober: Rc<Prober>,
    key: AttemptKey,
    outcome: Option<ProbeOutcome>,
}

impl AttemptSlot {
    async fn fill(mut self, work: impl Future<Output = ProbeOutcome>) {
        self.outcome = Some(work.await);
    }
}

impl Drop for AttemptSlot {
    fn drop(&mut self) {
        let now = self.prober.now();
        let outcome = self.outcome.unwrap_or(ProbeOutcome::Unknown);
        self.prober.schedule.borrow_mut().ended(&self.key, now, outcome);
        self.prober.attempt_ended();
    }
}

impl Prober {
    /// Executes a `Command::Probe`.
    pub fn order(&self, command: Command) {
        let Command::Probe { uid, pod, observed, pod_ip, terminating } = command else { return };
        let order = ProbeOrder { uid, pod, observed, pod_ip, terminating };
        let (now, wall) = (self.now(), clock::now());
        self.schedule.borrow_mut().order(&order, now, wall);
        self.changed.notify_one();
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.schedule.borrow_mut().forget(uid);
        self.changed.notify_one();
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
