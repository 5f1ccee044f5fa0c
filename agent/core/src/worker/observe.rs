//! A worker's use of a read: when it believes the runtime, when the kernel, when to read again.
//!
//! Pure. The kernel is ahead of the runtime: after an exit event the pod is read again until the
//! runtime agrees, a bounded number of times. Facts that only the kernel knows are kept as
//! evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::observed::{ObservedPod, RunState};
use crate::sync::plan;
use crate::worker::ReadFailure;
use crate::worker::step::{Worker, WorkerInputs, WorkerStage};
use pintle_api_types::ids::{ContainerId, Mono, Now};

/// Delay before the first re-read after an exit event of the kernel or of the task. containerd
/// needs 30 to 45 ms to list the end and then reports it itself: each read before that competes
/// with it. With 5 ms, after an immediate first read, there were ten reads for every end.
const REREAD_FIRST: Duration = Duration::from_millis(20);
/// Longest such wait.
const REREAD_MAX: Duration = Duration::from_millis(160);
/// Longest wait before a failed read is repeated.
const READ_RETRY_MAX: Duration = Duration::from_secs(10);
/// Reads in a row that may disagree with the kernel before the relist is left to settle it.
const REREADS_MAX: u32 = 40;
/// The same for a container for which the kernel reported a false exit before.
const REREADS_DOUBTED_MAX: u32 = 6;

impl Worker {
    /// A sync is under way that starts nothing any more.
    pub(super) fn is_being_stopped(&self) -> bool {
        self.stage >= WorkerStage::Terminating && self.sync.run.is_some()
    }

    /// Has the pod read until the runtime shows this end; returns the delay before the first read.
    pub(super) fn expect_exit(&mut self, id: ContainerId) -> Duration {
        let known = self.reads.observed.containers.iter().find(|c| c.id == id);
        if known.is_none_or(|c| c.state == RunState::Exited) {
            return Duration::ZERO;
        }
        self.reads.expected_exits.insert(id);
        self.reads.rereads = 0;
        REREAD_FIRST
    }

    /// A read's answer.
    pub fn observe(
        &mut self,
        stamp: u64,
        result: Result<ObservedPod, ReadFailure>,
        context: &mut WorkerInputs<'_>,
    ) {
        if self.reads.reading == Some(stamp) {
            self.reads.reading = None;
        }
        let Ok(mut pod) = result else {
            // The runtime did not answer: the record stays as it is and the read is repeated.
            self.reads.failures += 1;
            let steps = self.reads.failures.min(8);
            self.read((REREAD_MAX * 2_u32.pow(steps)).min(READ_RETRY_MAX), context);
            return;
        };
        self.reads.failures = 0;
        if stamp < self.reads.observed_stamp {
            return;
        }
        pod.version = pintle_api_types::ids::Version(self.reads.observed.version.0 + 1);
        let before = std::mem::replace(&mut self.reads.observed, Arc::new(pod));
        self.reads.observed_stamp = stamp;
        self.apply_evidence();
        self.note_ends(&before, context.now);
        self.forget_dead();
        let behind = self.behind_kernel() && !self.is_being_stopped();
        let rereads = if self.was_wrong() { REREADS_DOUBTED_MAX } else { REREADS_MAX };
        if behind && self.reads.rereads < rereads {
            let wait = (REREAD_FIRST * 2_u32.pow(self.reads.rereads.min(3))).min(REREAD_MAX);
            self.reads.rereads += 1;
            self.read(wait, context);
        } else if behind {
            self.disbelieve();
        }
        if !self.adopted {
            self.adopted = true;
            self.adopt_backoff(context.now);
        }
    }

    /// The kernel saw an end that the runtime does not show yet.
    fn behind_kernel(&mut self) -> bool {
        let observed = &self.reads.observed;
        self.reads.expected_exits.retain(|id| {
            observed.containers.iter().any(|c| c.id == *id && c.state != RunState::Exited)
        });
        !self.reads.expected_exits.is_empty()
    }

    /// The kernel has reported false exits of one of these containers.
    fn was_wrong(&self) -> bool {
        self.reads.expected_exits.iter().any(|id| self.reads.doubted.contains(id))
    }

    /// The runtime still lists these containers as running, so another process than their first one
    /// ended: a pod that shares the host's processes may make more that look like it.
    fn disbelieve(&mut self) {
        for id in std::mem::take(&mut self.reads.expected_exits) {
            if let Some(evidence) = self.reads.evidence.get_mut(&id) {
                evidence.exit = None;
            }
            self.reads.doubted.insert(id);
        }
        let observed = Arc::make_mut(&mut self.reads.observed);
        for container in
            observed.containers.iter_mut().filter(|c| self.reads.doubted.contains(&c.id))
        {
            container.evidence.exit = None;
        }
    }

    pub(super) fn apply_evidence(&mut self) {
        if self.reads.evidence.is_empty() {
            return;
        }
        let observed = Arc::make_mut(&mut self.reads.observed);
        for container in &mut observed.containers {
            let Some(evidence) = self.reads.evidence.get(&container.id) else { continue };
            container.evidence = evidence.clone();
            let lost = container.exit_code == 255 && container.reason == "Unknown";
            if let (RunState::Exited, true, Some(exit)) = (container.state, lost, evidence.end()) {
                container.exit_code = exit.code;
                container.finished_at = exit.at;
                container.reason = if exit.code == 0 { "Completed" } else { "Error" }.to_owned();
            }
        }
    }

    /// Notes when containers ended, once for each: the runtime's stamp is one of the wall clock,
    /// which may have been set since or may yet be. A container that ran at the last read ended
    /// after it.
    fn note_ends(&mut self, before: &ObservedPod, now: Now) {
        let ran = before.containers.iter().filter(|c| c.state == RunState::Running);
        let ran: BTreeSet<_> = ran.map(|c| &c.id).collect();
        let dead = self.reads.observed.containers.iter().filter(|c| c.state == RunState::Exited);
        for container in dead {
            let earliest =
                if ran.contains(&container.id) { self.reads.observed_at } else { Mono::PAST };
            let end = self.reads.ends.entry(container.id.clone()).or_insert(Mono::PAST);
            // A runtime that was down reports the end first and its time later.
            if *end == Mono::PAST {
                *end = now.mono_of(container.finished_at).max(earliest);
            }
        }
        self.reads.observed_at = now.mono;
    }

    /// Drops the state of containers that the runtime no longer has.
    fn forget_dead(&mut self) {
        let ids: BTreeSet<_> = self.reads.observed.containers.iter().map(|c| &c.id).collect();
        self.reads.evidence.retain(|id, _| ids.contains(id));
        self.shown.verdicts.retain(|id, _| ids.contains(id));
        self.reads.ends.retain(|id, _| ids.contains(id));
        self.reads.doubted.retain(|id| ids.contains(id));
        self.shown.probes.ready.retain(|id, _| ids.contains(id));
        self.shown.probes.started.retain(|id, _| ids.contains(id));
        // The last that is put in for a name is the newest.
        let oldest_first = self.reads.observed.containers.iter().rev();
        let states: BTreeMap<_, _> = oldest_first.map(|c| (&*c.name, c.state)).collect();
        self.shown.waiting.retain(|name, _| states.get(&**name) != Some(&RunState::Running));
    }

    /// Continues the crash loops of an earlier run of the agent.
    fn adopt_backoff(&mut self, now: Now) {
        let Some(pod) = self.pod.clone() else { return };
        let Some(spec) = pod.spec.as_ref() else { return };
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            let mut attempts = self.reads.observed.attempts(&container.name);
            let (Some(latest), previous) = (attempts.next(), attempts.next()) else { continue };
            if latest.restart_count == 0 {
                continue;
            }
            let gap = previous.map(|p| latest.created_at.since(p.finished_at));
            let gap = gap.unwrap_or_default();
            self.retries.crash_loop.adopt(
                plan::key(container),
                gap,
                now.mono_of(latest.created_at),
            );
        }
    }
}
