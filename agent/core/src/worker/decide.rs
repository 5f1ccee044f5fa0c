//! The next decision of a pod's worker, from its whole state. The second half of the worker.
//!
//! Pure. `advance` is called after every input: it checks deadline, status, probes and the sync
//! under way, and begins the next sync when an action is due and the record is fresh.
// k8s: pkg/kubelet/pod_workers.go, kubelet.go SyncPod, SyncTerminatingPod, SyncTerminatedPod

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::observed::RunState;
use crate::status::{self, DeriveInput, Lifecycle, PodVerdict, WaitingReason};
use crate::sync::plan::{self, Action, PlanInput};
use crate::worker::step::{SyncRun, Worker, WorkerInputs, WorkerStage};
use crate::worker::{Command, Failure, shown};
use pintle_api_types::duration::GoDuration;
use pintle_api_types::ids::{Mono, Now, UnixNanos};
use pintle_api_types::pod;

/// Wait before another sync of a pod that the runtime cannot connect yet.
// k8s: pkg/kubelet/pod_workers.go backOffOnTransientErrorPeriod
const NETWORK_RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// Checks everything and does the due work. Called after every input.
    pub fn advance(&mut self, context: &mut WorkerInputs<'_>) {
        self.wake_at = None;
        if self.stage == WorkerStage::Waiting {
            return;
        }
        self.check_overdue(context);
        self.judge(context);
        self.follow_resize(context);
        self.derive(context);
        // The first status after a restart of the agent shows since when the pod runs: a check
        // before that would start a pod that has been over for long. The ends of its containers
        // since then change nothing.
        if self.exceeds_deadline(context) {
            self.derive(context);
        }
        if self.stage == WorkerStage::Syncing
            && self.sync.run.is_none()
            && self.fresh()
            && self.settled(context)
        {
            self.terminate(None);
            self.derive(context);
        }
        self.cancel_if_asked(context);
        self.probe(context);
        if self.sync.run.is_none() {
            self.decide(context);
        }
        self.publish(context);
        self.schedule(context);
    }

    /// Updates the prober's containers and their addresses whenever these change. As in the status,
    /// a container runs once its postStart hook is done.
    fn probe(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(pod) = &self.pod else { return };
        if self.reads.observed_stamp == 0 || !has_probes(pod) {
            return;
        }
        let shown = self.shown();
        let observed = shown.as_ref().unwrap_or(&self.reads.observed);
        let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
        let running: Vec<_> = running.map(|c| c.id.clone()).collect();
        let now = (running, self.shown.status.pod_ip.clone(), self.stage > WorkerStage::Syncing);
        if self.shown.probing.as_ref() == Some(&now) {
            return;
        }
        let (pod_ip, terminating) = (now.1.clone(), now.2);
        self.shown.probing = Some(now);
        context.out.push(Command::Probe {
            uid: self.uid.clone(),
            pod: Arc::clone(pod),
            observed: shown.map_or_else(|| Arc::clone(&self.reads.observed), Arc::new),
            pod_ip,
            terminating,
        });
    }

    fn cancel_if_asked(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(run) = &mut self.sync.run else { return };
        let ticket = run.ticket;
        if std::mem::take(&mut run.cancelled) {
            context.out.push(Command::Cancel { uid: self.uid.clone(), ticket });
            // Marked failed so that its end is not taken for success.
            run.failed = true;
        }
    }

    fn decide(&mut self, context: &mut WorkerInputs<'_>) {
        if !self.fresh() {
            if self.reads.reading.is_none() {
                self.read(Duration::ZERO, context);
            }
            return;
        }
        if self.retries.retry_at.is_some_and(|at| context.now.mono < at) {
            return;
        }
        self.retries.retry_at = None;
        match self.stage {
            WorkerStage::Waiting => {}
            WorkerStage::Syncing => self.sync(context),
            _ if self.needs_kill() => {
                let grace_seconds = self.ending.grace_seconds;
                self.run(vec![Action::KillPod { grace_seconds }], context);
            }
            WorkerStage::Terminating => {
                self.stage = WorkerStage::Terminated;
                self.derive(context);
                self.run(vec![Action::Teardown], context);
            }
            WorkerStage::Terminated => self.run(vec![Action::Teardown], context),
            WorkerStage::Finished => {
                let actions = match self.ending.removed {
                    true if self.cleaned() || self.goes_on() => Vec::new(),
                    true => vec![Action::Cleanup],
                    false => self.discarding(context.now.mono),
                };
                if !actions.is_empty() {
                    self.run(actions, context);
                }
            }
        }
    }

    /// A container of the pod runs, as far as is known.
    pub(super) fn needs_kill(&self) -> bool {
        self.reads.observed.any_running() || self.reads.observed.sandboxes.iter().any(|s| s.ready)
    }

    fn sync(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        let mut plan = self.plan(&pod, context.now.mono);
        plan.actions.retain(|action| !self.is_paused(action, context.now.mono));
        if self.lacks_network(&pod, &plan, context) {
            return;
        }
        if !self.files.prepared && !plan.actions.contains(&Action::Prepare) {
            plan.actions.insert(0, Action::Prepare);
        }
        // To prepare is to refresh, and more.
        if self.files.stale && plan.actions.contains(&Action::Prepare) {
            self.files.stale = false;
        } else if self.files.stale && self.files.refresh_at.is_none_or(|at| at <= context.now.mono)
        {
            self.files.stale = false;
            plan.actions.insert(0, Action::Refresh);
        }
        for held in &plan.held {
            self.hold(held, &pod, context);
        }
        // A pod that fails to come up keeps leaving dead containers.
        if plan.is_empty() || self.retries.failures > 0 {
            let mut discards = self.discarding(context.now.mono);
            discards.retain(|action| !plan.actions.contains(action));
            plan.actions.splice(0..0, discards);
        }
        if !plan.is_empty() {
            self.announce(&plan.actions, context);
            self.run(plan.actions, context);
        } else {
            self.derive(context);
        }
    }

    /// No container is started that the runtime could not connect; the pod is tried again soon.
    // k8s: pkg/kubelet/kubelet.go SyncPod networkErrors, pod_workers.go completeWork
    fn lacks_network(
        &mut self,
        pod: &Pod,
        plan: &plan::SyncPlan,
        context: &mut WorkerInputs<'_>,
    ) -> bool {
        let Some(error) = context.node.network_error.as_ref() else { return false };
        let starts = |action: &Action| {
            matches!(action, Action::CreateSandbox { .. } | Action::StartContainer { .. })
        };
        if pod::uses_host_network(pod) || !plan.actions.iter().any(starts) {
            return false;
        }
        let message = format!("network is not ready: {error}");
        self.retries.last_failure = Some(Failure::new("NetworkNotReady", message.clone()));
        context.out.push(Command::Event {
            uid: self.uid.clone(),
            warning: true,
            reason: "NetworkNotReady".into(),
            message,
            container: None,
        });
        self.retries.retry_at = Some(context.now.mono.plus(NETWORK_RETRY));
        true
    }

    pub(crate) fn plan(&self, pod: &Pod, now: Mono) -> plan::SyncPlan {
        plan::plan(&PlanInput {
            pod,
            observed: &self.reads.observed,
            probes: &self.shown.verdicts,
            actuated: &self.known_in_force(pod),
            ends_kept: self.sync.ends_kept,
            backoff: &self.retries.crash_loop,
            ends: &self.reads.ends,
            pauses: &self.retries.pauses,
            // The status may know of an end that the record does not show yet: a container that
            // ended by itself must not be killed.
            restart_all: status::is_restarting(&self.shown.status)
                && !self.reads.observed.containers.iter().any(|c| status::ending(c).is_some()),
            now,
        })
    }

    fn hold(&mut self, held: &plan::DelayedContainer, pod: &Pod, context: &mut WorkerInputs<'_>) {
        let at = held.until;
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        // A container that could not be started waits with the reason of that.
        let Some(wait) = held.wait else { return };
        let full = pod::described(pod);
        let wait = GoDuration::from_std(wait);
        let name = &held.name;
        let message = format!("back-off {wait} restarting failed container={name} pod={full}");
        let waiting = WaitingReason { reason: "CrashLoopBackOff".to_owned(), message };
        if self.shown.waiting.insert(name.clone(), waiting.clone()).as_ref() != Some(&waiting) {
            context.out.push(Command::Event {
                uid: self.uid.clone(),
                warning: true,
                reason: "BackOff".into(),
                message: format!("Back-off restarting failed container {name} in pod {full}"),
                container: Some(name.clone()),
            });
        }
    }

    fn announce(&self, actions: &[Action], context: &mut WorkerInputs<'_>) {
        let replaced =
            actions.iter().any(|a| matches!(a, Action::CreateSandbox { replaces: Some(_), .. }));
        if replaced {
            context.out.push(Command::Event {
                uid: self.uid.clone(),
                warning: false,
                reason: "SandboxChanged".into(),
                message: "Pod sandbox changed, it will be killed and re-created.".to_owned(),
                container: None,
            });
        }
    }

    fn run(&mut self, actions: Vec<Action>, context: &mut WorkerInputs<'_>) {
        assert!(self.sync.run.is_none(), "one sync at a time");
        self.sync.replaced = shown::replaced(&actions);
        let of_killed = self.note_actuated(&actions, context);
        self.note_verdict(&actions, context);
        let ticket = context.next();
        context.out.push(Command::Run {
            uid: self.uid.clone(),
            ticket,
            pod: self.pod.clone(),
            observed: Arc::clone(&self.reads.observed),
            actions: actions.clone(),
        });
        let (done, cancelled, failed) = (0, false, false);
        self.sync.run = Some(SyncRun { ticket, actions, done, cancelled, failed, of_killed });
    }

    /// Ends a pod that has run as long as it may; true when it does so now.
    // k8s: pkg/kubelet/active_deadline.go
    fn exceeds_deadline(&mut self, context: &mut WorkerInputs<'_>) -> bool {
        if self.stage != WorkerStage::Syncing
            || status::is_terminal(self.shown.status.phase.as_deref())
        {
            return false;
        }
        let Some(at) = self.deadline(context.now) else { return false };
        if context.now.mono < at {
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        context.out.push(Command::Event {
            uid: self.uid.clone(),
            warning: false,
            reason: "DeadlineExceeded".into(),
            message: message.clone(),
            container: None,
        });
        let (phase, reason) = ("Failed".to_owned(), "DeadlineExceeded".to_owned());
        self.kill(PodVerdict { phase, reason, message }, None);
        true
    }

    // k8s: pkg/kubelet/pod_workers.go killPodNow
    fn check_overdue(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(at) = self.ending.overdue_at.filter(|_| self.stage < WorkerStage::Terminated)
        else {
            return;
        };
        if context.now.mono < at {
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
            return;
        }
        self.ending.overdue_at = None;
        let message = "Container runtime did not kill the pod within specified grace period.";
        context.out.push(Command::Event {
            uid: self.uid.clone(),
            warning: true,
            reason: "ExceededGracePeriod".into(),
            message: message.to_owned(),
            container: None,
        });
    }

    /// When the pod has run as long as it may. The start is a time of the wall clock: the time
    /// since then is measured once, so that setting the clock later changes nothing.
    fn deadline(&mut self, now: Now) -> Option<Mono> {
        let spec = self.pod.as_ref()?.spec.as_ref()?;
        let seconds = u64::try_from(spec.active_deadline_seconds?).ok()?;
        let start = self.shown.status.start_time.as_ref()?;
        let start = UnixNanos(i64::try_from(start.0.as_nanosecond()).ok()?);
        let known = self.ending.deadline.filter(|(of, _)| *of == (start, seconds));
        let at = || now.mono_of(start).plus(Duration::from_secs(seconds));
        let (_, at) =
            self.ending.deadline.insert(known.unwrap_or_else(|| ((start, seconds), at())));
        Some(*at)
    }

    pub(super) fn derive_input<'a>(
        &'a self,
        pod: &'a Pod,
        context: &'a WorkerInputs<'_>,
    ) -> DeriveInput<'a> {
        let lifecycle = match self.stage {
            WorkerStage::Waiting | WorkerStage::Syncing => Lifecycle::Syncing,
            WorkerStage::Terminating => Lifecycle::Terminating,
            WorkerStage::Terminated | WorkerStage::Finished => Lifecycle::Terminated,
        };
        DeriveInput {
            pod,
            observed: (self.reads.observed_stamp > 0).then_some(&*self.reads.observed),
            previous: self.shown.status.phase.is_some().then_some(&*self.shown.status),
            lifecycle,
            waiting: &self.shown.waiting,
            probes: &self.shown.probes,
            verdict: self.ending.verdict.as_ref(),
            resize: &self.resizing.conditions,
            actuated: &self.resizing.actuated,
            node: context.node,
            now: context.now.wall,
        }
    }

    fn derive(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(pod) = self.pod.clone() else { return };
        // Before the first read it is unknown whether the pod runs or is already over.
        if self.reads.observed_stamp == 0 {
            return;
        }
        if self.sync.run.is_none() && self.fresh() {
            self.sync.replaced.clear();
        }
        let shown = self.unreplaced(&pod, self.shown());
        let mut input = self.derive_input(&pod, context);
        input.observed = shown.as_ref().or(input.observed);
        let derived = status::derive(&input);
        if derived == *self.shown.status {
            return;
        }
        self.shown.status = Arc::new(derived);
    }

    /// Publishes the status at the end of this turn; states within the turn are never published.
    fn publish(&mut self, context: &mut WorkerInputs<'_>) {
        let Some(pod) = &self.pod else { return };
        let stage = self.stage;
        let (status, was) = (&self.shown.published.0, self.shown.published.1);
        let is_same = Arc::ptr_eq(status, &self.shown.status) || *status == self.shown.status;
        let told = is_same && was == stage;
        // Without a status there is nothing to publish, whatever the stage.
        if told || self.shown.status.phase.is_none() {
            return;
        }
        self.shown.published = (Arc::clone(&self.shown.status), stage);
        context.out.push(Command::Publish {
            uid: self.uid.clone(),
            pod: Arc::clone(pod),
            status: Arc::clone(&self.shown.status),
            stage,
        });
    }

    /// True once containers, verdict or history have decided that the pod is over.
    fn settled(&self, context: &WorkerInputs<'_>) -> bool {
        let Some(pod) = &self.pod else { return false };
        status::settled_phase(&self.derive_input(pod, context)).is_some()
    }

    fn schedule(&mut self, context: &mut WorkerInputs<'_>) {
        // Actions due already wait for a read or a sync, and the end of that is an input of its
        // own.
        let due_later = |at: &Mono| *at > context.now.mono;
        let refresh_at = self.files.refresh_at.filter(|_| self.files.stale);
        let pauses = self.resizing.pause.into_iter().chain(self.retries.removal_pause);
        let pauses = pauses.map(|pause| pause.until);
        let at =
            self.retries.retry_at.into_iter().chain(self.wake_at).chain(refresh_at).chain(pauses);
        let mut at = at.filter(due_later).min();
        if self.stage == WorkerStage::Syncing && self.sync.run.is_none() {
            // k8s: syncFrequency with a jitter of up to a half, here fixed per pod.
            let half =
                self.uid.as_str().bytes().fold(0_u32, |h, b| h.wrapping_mul(31) + u32::from(b));
            let jitter = context.sync_period * (half % 512) / 1024;
            let resync = context.now.mono.plus(context.sync_period + jitter);
            at = Some(at.map_or(resync, |at| at.min(resync)));
        }
        self.wake_at = at;
    }
}

/// True when some container has a probe.
fn has_probes(pod: &Pod) -> bool {
    pod::containers::all(pod::spec(pod)).any(|(_, c)| {
        c.liveness_probe.is_some() || c.readiness_probe.is_some() || c.startup_probe.is_some()
    })
}
