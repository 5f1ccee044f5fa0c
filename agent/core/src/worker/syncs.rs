//! A worker's handling of its sync: the result of each action, and when a failed one is tried
//! again.
//!
//! Pure. A container that could not be started waits alone, and so do a resize and the removal of
//! dead attempts and sandboxes. An action for the whole pod (volumes, sandbox, a stop) holds up the
//! pod; the earliest of a sync's waits counts. A sync that ended is followed by a read, and nothing
//! is planned before its answer.

use std::time::Duration;

use crate::observed::RunState;
use crate::status::{self, PodVerdict, WaitingReason};
use crate::sync::backoff::{Pause, WaitBounds, grown};
use crate::sync::plan::{self, Action};
use crate::worker::step::{Worker, WorkerInputs, WorkerStage};
use crate::worker::{Command, DecisionCount, Failure};
use pintle_api_types::ids::Mono;
use pintle_api_types::pod;

/// The least delay before the read for a new sandbox of a pod that is starting: its status is not
/// written sooner, and mostly its containers run before that, which causes a read of its own.
const READ_STARTING: Duration = Duration::from_secs(1);
/// Wait after a failed sync.
// k8s: pkg/kubelet/kubelet.go backOffPeriod
const RETRY: Duration = Duration::from_secs(10);
/// First and longest wait after a container was made and did not come up. Its crash loop holds it
/// as well, so this only decides how soon it is checked.
const COME_UP_RETRY: WaitBounds = WaitBounds { first: Duration::from_secs(1), longest: RETRY };
/// Such failures.
const MADE: [&str; 2] = ["RunContainerError", "PostStartHookError"];
/// Reason of a failed preparation that ends its pod: the node has no room for another volume of a
/// driver.
// k8s: pkg/kubelet/volumemanager/volume_manager.go VolumeAttachmentLimitExceededReason
pub const ATTACHMENT_LIMIT: &str = "VolumeAttachmentLimitExceeded";
/// First and longest wait after volumes could not be prepared or removed.
// k8s: pkg/util/goroutinemap/exponentialbackoff
pub(super) const VOLUME_RETRY: WaitBounds =
    WaitBounds { first: Duration::from_millis(500), longest: Duration::from_secs(122) };
/// First and longest wait before a kill that left a container running is repeated.
const KILL_RETRY: WaitBounds =
    WaitBounds { first: Duration::from_millis(200), longest: Duration::from_secs(10) };

impl Worker {
    /// An action of the sync ended.
    pub fn progress(
        &mut self,
        ticket: u64,
        index: usize,
        outcome: Result<(), Failure>,
        context: &mut WorkerInputs<'_>,
    ) {
        let Some(run) = self.sync.run.as_mut().filter(|p| p.ticket == ticket) else { return };
        let Some(action) = run.actions.get(index).cloned() else { return };
        run.done = run.done.max(index + 1);
        match outcome {
            Ok(()) => self.action_done(&action, context),
            Err(failure) if failure.cancelled => {}
            Err(_) if action == Action::Refresh => self.refresh_failed(context.now.mono),
            Err(failure) => {
                run.failed = true;
                self.action_failed(&action, failure, context);
            }
        }
    }

    fn action_done(&mut self, action: &Action, context: &mut WorkerInputs<'_>) {
        match action {
            Action::CreateSandbox { .. } => self.read(READ_STARTING, context),
            Action::Prepare => {
                self.files.prepared = true;
                self.retries.failures = 0;
            }
            Action::Refresh => self.files.refresh_failures = 0,
            Action::KillContainer { id, name, .. } => self.note_killed(name, id, context),
            Action::StartContainer { name, .. } => {
                self.shown.waiting.remove(name);
                self.retries.pauses.remove(name);
                self.note_start(name, context.now.mono);
            }
            Action::ResizePod(resize) => {
                self.resizing.pause = None;
                self.resized(resize, context);
            }
            _ => {}
        }
    }

    /// A start after an end counts for the crash loop.
    fn note_start(&mut self, name: &str, now: Mono) {
        let Some(desired) = self.pod.clone() else { return };
        let Some(container) = pod::containers::find(pod::spec(&desired), name).map(|(_, c)| c)
        else {
            return;
        };
        let dead = self.reads.observed.attempts(name).find(|c| c.state == RunState::Exited);
        if let Some(ended_at) = dead.and_then(|c| self.reads.ends.get(&c.id).copied()) {
            self.retries.crash_loop.started(plan::key(container), ended_at, now);
        }
    }

    fn action_failed(&mut self, action: &Action, failure: Failure, context: &mut WorkerInputs<'_>) {
        let now = context.now.mono;
        match action {
            Action::StartContainer { name, .. } => self.start_failed(name, &failure, now),
            Action::ResizePod(resize) => {
                self.resize_failed(resize, &failure, context);
                self.resizing.pause =
                    Some(Pause::after(self.resizing.pause, WaitBounds::constant(RETRY), now));
            }
            Action::Prepare if failure.reason == ATTACHMENT_LIMIT => self.reject(&failure, context),
            Action::RemoveContainer { keep_logs: false, .. } | Action::RemoveSandbox { .. } => {
                self.retries.removal_pause = Some(Pause::after(
                    self.retries.removal_pause,
                    WaitBounds::constant(RETRY),
                    now,
                ));
            }
            _ => self.pod_failed(action, &failure, now),
        }
        self.retries.last_failure = Some(failure);
    }

    /// The pod fails, so that its controller makes another one elsewhere.
    // k8s: pkg/kubelet/kubelet.go SyncPod, rejectPod
    fn reject(&mut self, failure: &Failure, context: &mut WorkerInputs<'_>) {
        context.out.push(Command::Event {
            uid: self.uid.clone(),
            warning: true,
            reason: failure.reason.clone().into(),
            message: failure.message.clone(),
            container: None,
        });
        context.out.push(Command::Count(DecisionCount::Refused(failure.reason.clone())));
        let verdict = PodVerdict {
            phase: status::FAILED.to_owned(),
            reason: failure.reason.clone(),
            message: format!("{}{}", status::REJECTED, failure.message),
        };
        self.kill(verdict, None);
    }

    /// A container could not be started: it alone waits.
    fn start_failed(&mut self, name: &str, failure: &Failure, now: Mono) {
        self.note_start(name, now);
        let before = self.retries.pauses.get(name).copied();
        let bounds = match failure.retry_after {
            _ if MADE.contains(&&*failure.reason) => COME_UP_RETRY,
            Some(wait) => WaitBounds::constant(wait),
            None => WaitBounds::constant(RETRY),
        };
        self.retries.pauses.insert(name.to_owned(), Pause::after(before, bounds, now));
        let (reason, message) = (failure.reason.clone(), failure.message.clone());
        self.shown.waiting.insert(name.to_owned(), WaitingReason { reason, message });
    }

    /// An action for the whole pod failed: volumes, sandbox, a stop.
    fn pod_failed(&mut self, action: &Action, failure: &Failure, now: Mono) {
        self.retries.failures += 1;
        let bounds = match action {
            Action::Prepare | Action::Teardown | Action::Cleanup => VOLUME_RETRY,
            Action::KillPod { .. } | Action::KillContainer { .. } => KILL_RETRY,
            _ => failure.retry_after.map_or(WaitBounds::constant(RETRY), WaitBounds::constant),
        };
        let at = now.plus(grown(bounds, self.retries.failures));
        self.retries.retry_at = Some(self.retries.retry_at.map_or(at, |earlier| earlier.min(at)));
        if *action == Action::Prepare {
            self.files.prepared = false;
        }
    }

    /// True for an action that failed and waits before the next try.
    pub(super) fn is_paused(&self, action: &Action, now: Mono) -> bool {
        let pause = match action {
            Action::ResizePod(_) => self.resizing.pause,
            Action::RemoveContainer { keep_logs: false, .. } | Action::RemoveSandbox { .. } => {
                self.retries.removal_pause
            }
            _ => None,
        };
        pause.is_some_and(|pause| now < pause.until)
    }

    /// The sync ended.
    pub(super) fn sync_done(&mut self, ticket: u64, context: &mut WorkerInputs<'_>) {
        let Some(run) = self.sync.run.take_if(|p| p.ticket == ticket) else { return };
        if !run.failed && !run.cancelled {
            self.retries.failures = 0;
            if self.retries.pauses.values().all(|pause| pause.until <= context.now.mono) {
                self.retries.last_failure = None;
            }
            if run.actions.contains(&Action::Teardown) {
                self.stage = WorkerStage::Finished;
            }
        }
        // Only a read that begins after the sync shows its result.
        self.reads.need_stamp = *context.counter + 1;
        self.read(Duration::ZERO, context);
    }
}
