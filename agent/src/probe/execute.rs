//! The prober: owns the schedules of all probes and begins attempts as they fall due.
//!
//! Effects, on the agent's main thread. Orders change the `Board` at once; one task sleeps until
//! the earliest due time, begins what is due and passes results on. A waiting probe is an entry of
//! a heap and nothing else; an attempt is a task of its own while it lasts. An attempt whose
//! container is no longer to be probed is given up, which also ends its command at the runtime.
//! Bounds: one attempt per probe, `ATTEMPTS_MAX` of them at a time; what is due beyond that waits
//! in order, and no limit of time runs while it waits. When the worker is slow to take results, no
//! new attempts begin.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use pintle_cri::Client;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::attempt::Tools;
use super::board::{Attempt, Board, Facts, Order};
use super::plan::Outcome;
use crate::clock;
use crate::metrics::{ProbeCounts, ProbeResult};
use crate::status::timeline::Recorder;
use crate::types::{PodUid, UnixNanos};
use crate::worker::{Command, Input};

/// Attempts under way at a time. Far above what a node of 110 pods has due at once, so that
/// attempts that hang do not hold up others; far below the runtime client's bound of calls.
pub(super) const ATTEMPTS_MAX: usize = 256;
/// Longest sleep of the task.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Probes containers; see the module's header.
#[derive(Debug)]
pub struct Prober {
    board: RefCell<Board>,
    changed: Notify,
    tools: Tools,
    facts: Facts,
    counts: ProbeCounts,
    epoch: Instant,
}

impl Prober {
    /// Starts probing. Must be called within a `LocalSet`. Results go to `inputs`, their numbers
    /// to `counts`; `facts` are the addresses of pods on the node's network and when this agent
    /// began.
    pub fn start(
        client: Client,
        recorder: Recorder,
        inputs: mpsc::Sender<Input>,
        facts: (Vec<IpAddr>, UnixNanos),
        counts: ProbeCounts,
    ) -> Rc<Self> {
        let (host_ips, agent_started_at) = facts;
        let prober = Rc::new(Self {
            board: RefCell::default(),
            changed: Notify::new(),
            tools: Tools { client, recorder },
            facts: Facts { host_ips, agent_started_at },
            counts,
            epoch: Instant::now(),
        });
        crate::tasks::singleton("prober", Rc::clone(&prober).run(inputs));
        prober
    }

    async fn run(self: Rc<Self>, inputs: mpsc::Sender<Input>) {
        loop {
            while let Some(input) = self.take_result() {
                if inputs.send(input).await.is_err() {
                    return;
                }
            }
            while let Some(attempt) = self.take_due() {
                self.begin(attempt);
            }
            let until_due = self.until_due();
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(until_due) => {}
                () = inputs.closed() => return,
            }
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn take_result(&self) -> Option<Input> {
        self.board.borrow_mut().take_result()
    }

    fn take_due(&self) -> Option<Attempt> {
        self.board.borrow_mut().take_due(self.now(), ATTEMPTS_MAX)
    }

    fn until_due(&self) -> Duration {
        let next = self.board.borrow_mut().next_due(ATTEMPTS_MAX);
        next.map_or(SLEEP_MAX, |at| at.saturating_sub(self.now()).min(SLEEP_MAX))
    }

    fn begin(self: &Rc<Self>, attempt: Attempt) {
        let key = attempt.key.clone();
        let slot = Slot { prober: Rc::clone(self), attempt, outcome: Outcome::Unknown };
        let task = crate::tasks::spawn("probe", slot.fill());
        self.board.borrow_mut().began(&key, task.abort_handle());
    }
}

/// Gives an attempt's place back however the attempt ends: done, given up or panicked.
struct Slot {
    prober: Rc<Prober>,
    attempt: Attempt,
    outcome: Outcome,
}

impl Slot {
    async fn fill(mut self) {
        let Attempt { target, key, timeout } = &self.attempt;
        let begun = Instant::now();
        self.outcome = self.prober.tools.attempt(target, key.kind, *timeout).await;
        let result = match self.outcome {
            Outcome::Success => ProbeResult::Successful,
            Outcome::Failure => ProbeResult::Failed,
            Outcome::Unknown => ProbeResult::Unknown,
        };
        let name = &target.container.name;
        self.prober.counts.ended(&target.uid, name, key.kind, result, begun.elapsed());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let now = self.prober.now();
        self.prober.board.borrow_mut().ended(&self.attempt.key, now, self.outcome);
        self.prober.changed.notify_one();
    }
}

impl Prober {
    /// Executes a `Command::Probe`.
    pub fn order(&self, command: Command) {
        let Command::Probe { uid, pod, observed, terminating } = command else { return };
        let order = Order { uid, pod, observed, terminating };
        let times = (self.now(), clock::now());
        self.board.borrow_mut().order(&order, &self.facts, times);
        self.changed.notify_one();
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.board.borrow_mut().forget(uid);
        self.changed.notify_one();
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
