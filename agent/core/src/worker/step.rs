//! One pod's worker: `Waiting -> Syncing -> Terminating -> Terminated -> Finished`, never back.
//!
//! Pure. A worker has at most one sync (list of actions) under way and at most one read. It plans
//! only on a record that was read after its last sync ended, so that it never repeats what it has
//! just done. Everything it knows is either desired, observed, or rebuilt from those after a
//! restart of the agent; nothing is started because of an event alone.
// k8s: pkg/kubelet/pod_workers.go, kubelet.go SyncPod, SyncTerminatingPod, SyncTerminatedPod

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::observed::{KernelExit, ObservedPod, OomKill};
use crate::resize::PodResources;
use crate::status::PodVerdict;
use crate::sync::backoff::Curve;
use crate::sync::plan::{self, Action};
use crate::types::NodeFacts;
use crate::volume;
use crate::worker::index::Indexed;
use crate::worker::parts::{
    EndState, FileState, ReadState, ResizeState, RetryState, StatusState, SyncState,
};
use crate::worker::pods::FullName;
use crate::worker::{Command, Failure, Hint, ProbeKind};
use pintle_api_types::ids::{ContainerId, Mono, Now, PodUid};
use pintle_api_types::pod;

/// Least delay between reads of a pod that is being stopped, for users' status: its next action
/// waits for the end of the sync and a read after that. Without it, a hundred pods that end
/// together had the runtime list everything all the time, in competition with the stops.
const READ_STOPPING: Duration = Duration::from_secs(1);
/// Grace period of a pod that no source knows, in seconds.
// k8s: pkg/kubelet/kubelet_pods.go HandlePodCleanups
const ORPHAN_GRACE_SECONDS: i64 = 1;

/// The stage of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkerStage {
    /// An earlier pod of the same name has not ended yet.
    Waiting,
    /// Containers may be started.
    Syncing,
    /// Being stopped.
    Terminating,
    /// No container runs any more; volumes and cgroup are being removed.
    Terminated,
    /// Nothing is left but records in the runtime.
    Finished,
}

/// A sync under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SyncRun {
    pub ticket: u64,
    pub actions: Vec<Action>,
    /// Actions that have ended.
    pub done: usize,
    pub cancelled: bool,
    pub failed: bool,
    /// New resources of containers that it kills and starts again, until they are killed.
    #[serde(default)]
    pub of_killed: BTreeMap<String, ResourceRequirements>,
}

/// The inputs of a worker at one call.
pub struct WorkerInputs<'a> {
    pub now: Now,
    pub node: &'a NodeFacts,
    pub sync_period: Duration,
    /// Source of tickets and stamps; only grows.
    pub counter: &'a mut u64,
    pub(super) notes: &'a mut Notes,
    pub out: &'a mut Vec<Command>,
}

/// The effects of a worker's turn on the rest of the core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Notes {
    /// Records that survive a restart of the agent have changed.
    pub unsaved: bool,
    /// Room may have become free: why.
    pub(super) freed: Option<&'static str>,
}

impl WorkerInputs<'_> {
    pub fn next(&mut self) -> u64 {
        *self.counter += 1;
        *self.counter
    }
}

/// One pod's worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worker {
    pub(crate) uid: PodUid,
    pub(crate) full_name: FullName,
    #[serde(with = "crate::arc::option")]
    pub(crate) pod: Option<Arc<Pod>>,
    pub(crate) stage: WorkerStage,
    pub(crate) adopted: bool,
    pub(crate) wake_at: Option<Mono>,
    pub(crate) reads: ReadState,
    pub(crate) ending: EndState,
    pub(crate) retries: RetryState,
    pub(crate) resizing: ResizeState,
    pub(crate) files: FileState,
    pub(crate) sync: SyncState,
    pub(crate) shown: StatusState,
}

impl Worker {
    /// A worker for a pod that a source wants, or, without `pod`, for a pod that only the runtime
    /// knows.
    pub(crate) fn new(
        uid: PodUid,
        pod: Option<Arc<Pod>>,
        full_name: FullName,
        curve: Curve,
    ) -> Self {
        Self {
            reads: ReadState::new(&uid, &full_name.0, &full_name.1),
            uid,
            full_name,
            pod,
            stage: WorkerStage::Waiting,
            adopted: false,
            wake_at: None,
            ending: EndState::default(),
            retries: RetryState::new(curve),
            resizing: ResizeState::default(),
            files: FileState::default(),
            sync: SyncState::new(),
            shown: StatusState::new(),
        }
    }

    /// The pod's uid.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The pod as desired; `None` for a pod that only the runtime knows.
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        self.pod.as_ref()
    }

    /// Its stage.
    pub fn stage(&self) -> WorkerStage {
        self.stage
    }

    /// True until it begins.
    pub fn is_waiting(&self) -> bool {
        self.stage == WorkerStage::Waiting
    }

    /// True once no source wants it any more.
    pub fn is_removed(&self) -> bool {
        self.ending.removed
    }

    /// The last derived status.
    pub fn status(&self) -> &Arc<PodStatus> {
        &self.shown.status
    }

    /// The last observed record.
    pub fn observed(&self) -> &Arc<ObservedPod> {
        &self.reads.observed
    }

    /// The plan it would make now, for the dry run; empty while a sync is under way.
    pub fn dry_run(&self, now: Mono) -> plan::SyncPlan {
        match &self.pod {
            Some(pod) if self.stage <= WorkerStage::Syncing => self.plan(pod, now),
            _ => plan::SyncPlan::default(),
        }
    }

    /// The remaining actions of the sync under way, the current one first.
    pub fn current_actions(&self) -> &[Action] {
        self.sync.run.as_ref().map_or(&[], |p| p.actions.get(p.done..).unwrap_or_default())
    }

    /// The last failure of a sync, until one succeeds.
    pub fn last_failure(&self) -> Option<&Failure> {
        self.retries.last_failure.as_ref()
    }

    /// When it next wakes.
    pub fn wake_at(&self) -> Option<Mono> {
        self.wake_at
    }

    /// Its values in the indices over all workers.
    pub(super) fn indexed(&self) -> Indexed {
        (self.wake_at, self.reads.observed.version)
    }

    /// True for a pod that may not run at the same time as another one of its name: a static pod,
    /// because its files and mirror pod are identified by name, and a pod that only the runtime
    /// knows.
    // k8s: pkg/kubelet/pod_workers.go allowStaticPodStart
    pub(super) fn is_serial(&self) -> bool {
        self.pod.as_ref().is_none_or(|pod| pod::is_static(pod))
    }

    /// True once nothing of the pod is left anywhere and no source wants it, or only the remains
    /// from which the same pod continues.
    pub fn is_gone(&self) -> bool {
        let is_over =
            self.ending.removed && self.stage == WorkerStage::Finished && self.sync.run.is_none();
        is_over && (self.cleaned() || self.goes_on())
    }

    /// The pod was removed and is wanted again under its uid, for example because its manifest is
    /// put back into its folder. Its ended containers stay in the runtime, and their restart counts
    /// go on. If its policy does not restart ended containers, it begins without them, because it
    /// would be over at once.
    // k8s: pkg/kubelet/kubelet_pods.go HandlePodCleanups (restartable static pods)
    pub(super) fn goes_on(&self) -> bool {
        let restarts = |pod: &Arc<Pod>| {
            let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
            pod::is_static(pod) && matches!(policy, None | Some("Always"))
        };
        self.ending.again.as_ref().is_some_and(restarts) && self.fresh() && !self.needs_kill()
    }

    /// The pod to start over with after this worker is gone.
    pub(super) fn take_again(&mut self) -> Option<Arc<Pod>> {
        self.ending.again.take()
    }

    pub(crate) fn cleaned(&self) -> bool {
        self.reads.observed.sandboxes.is_empty()
            && self.reads.observed.containers.is_empty()
            && self.fresh()
    }

    pub(crate) fn fresh(&self) -> bool {
        self.reads.observed_stamp >= self.reads.need_stamp
    }

    /// Lets a waiting worker begin.
    pub fn begin(&mut self) {
        if self.stage == WorkerStage::Waiting {
            self.stage = WorkerStage::Syncing;
        }
    }

    // ---- inputs -------------------------------------------------------------------------------

    /// A source wants the pod (again).
    pub(super) fn desire(&mut self, pod: Arc<Pod>) {
        if self.ending.removed || (self.pod.is_none() && self.stage > WorkerStage::Waiting) {
            self.ending.again = Some(pod);
            return;
        }
        let deleted = pod.metadata.deletion_timestamp.is_some();
        let grace = pod.metadata.deletion_grace_period_seconds;
        self.see(pod);
        self.retries.retry_at = None;
        self.retries.pauses.clear();
        self.resizing.pause = None;
        if deleted {
            self.terminate(grace);
        }
    }

    /// Replaces the pod; its projected volumes may be out of date.
    pub(super) fn see(&mut self, pod: Arc<Pod>) {
        let before = self.pod.replace(pod);
        if let (Some(before), Some(now)) = (before, &self.pod) {
            self.files.stale |= volume::plan::shows_change(&before, now);
        }
    }

    /// Takes a pod with a status written by others. Waits go on: the agent's own write comes back
    /// this way, and must not restart anything.
    pub fn reconcile(&mut self, pod: Arc<Pod>) {
        if let Some(again) = &mut self.ending.again {
            // The next start of the pod begins with the newest known object: the pod may be over.
            *again = pod;
            return;
        }
        let Some(own) = self.pod.clone().filter(|_| !self.ending.removed) else { return };
        // While it requests more, the worker sees the pod with its allocated resources.
        let asks = self.resizing.wanted.is_some();
        match asks.then(|| PodResources::of(&own).apply(&pod)).flatten() {
            Some(shown) => (self.resizing.wanted, self.pod) = (Some(pod), Some(shown)),
            None => self.pod = Some(pod),
        }
    }

    /// No source wants the pod any more.
    pub fn remove(&mut self) {
        self.ending.removed = true;
        self.ending.again = None;
        let own = self.pod.as_ref().and_then(|p| p.metadata.deletion_grace_period_seconds);
        self.terminate(own);
    }

    /// The pod ends with this verdict. Of several the last one counts, until nothing of it runs.
    // k8s: pkg/kubelet/pod_workers.go acknowledgeTerminating
    pub fn kill(&mut self, verdict: PodVerdict, grace_seconds: Option<i64>) {
        if self.stage < WorkerStage::Terminated {
            self.ending.verdict = Some(verdict);
        }
        self.terminate(grace_seconds);
    }

    /// As `kill`, with an event when it takes much longer than its grace period.
    // k8s: pkg/kubelet/pod_workers.go killPodNow
    pub fn evict(&mut self, verdict: PodVerdict, grace: Option<i64>, now: Mono) {
        let own = self.pod.as_ref().map_or(0, |pod| pod::grace_seconds(pod));
        self.ending.overdue_at = Some(now.plus(pod::patience(grace.unwrap_or(own))));
        self.kill(verdict, grace);
    }

    /// The runtime knows the pod and no source does.
    pub fn orphaned(&mut self) {
        self.ending.removed = true;
        self.terminate(Some(ORPHAN_GRACE_SECONDS));
    }

    // k8s: pkg/kubelet/pod_workers.go calculateEffectiveGracePeriod
    pub(crate) fn terminate(&mut self, grace_seconds: Option<i64>) {
        let spec = self.pod.as_ref().and_then(|p| p.spec.as_ref());
        let own = spec.and_then(|s| s.termination_grace_period_seconds);
        let asked = grace_seconds.or(self.ending.grace_seconds).or(own).unwrap_or(1);
        let asked = asked.clamp(1, pod::GRACE_SECONDS_MAX);
        let shrunk = self.ending.grace_seconds.is_none_or(|current| asked < current);
        if shrunk {
            self.ending.grace_seconds = Some(asked);
        }
        if self.stage < WorkerStage::Terminating {
            self.stage = WorkerStage::Terminating;
            self.retries.retry_at = None;
            self.retries.failures = 0;
        } else if !shrunk {
            return;
        }
        self.retries.retry_at = None;
        if let Some(run) = &mut self.sync.run {
            // Given up below, in `advance`: a sync that starts must not start anything more, one
            // that stops continues with less time.
            run.cancelled = run.cancelled || self.stage == WorkerStage::Terminating;
        }
    }

    /// The pod may have changed.
    pub fn hint(&mut self, hint: Hint, context: &mut WorkerInputs<'_>) {
        let mut soon = Duration::ZERO;
        match hint {
            Hint::Exited { container: Some(id), code, at } => {
                if let Some(code) = code {
                    let evidence = self.reads.evidence.entry(id.clone()).or_default();
                    if evidence.exit.as_ref().is_none_or(|known| known.at < at) {
                        evidence.exit = Some(KernelExit { code, at });
                    }
                }
                soon = self.expect_exit(id);
                self.apply_evidence();
            }
            Hint::TaskExit { container: id, end } => {
                self.reads.evidence.entry(id.clone()).or_default().told.get_or_insert(end);
                soon = self.expect_exit(id);
                self.apply_evidence();
            }
            Hint::Oom { container: Some(id), init, pid, comm, at } => {
                let evidence = self.reads.evidence.entry(id).or_default();
                let count = evidence.oom.as_ref().map_or(0, |o| o.count) + 1;
                let init = init || evidence.oom.as_ref().is_some_and(|o| o.init);
                evidence.oom = Some(OomKill { init, count, pid, comm, at });
                self.apply_evidence();
            }
            Hint::Exited { .. } | Hint::Oom { .. } | Hint::Changed => {}
        }
        match self.is_being_stopped() {
            false => self.read(soon, context),
            true if self.reads.reading.is_none() => self.read(READ_STOPPING, context),
            true => {}
        }
    }

    /// A probe's result changed.
    pub fn probed(&mut self, container: ContainerId, probe: ProbeKind, healthy: bool) {
        if !self.reads.observed.containers.iter().any(|c| c.id == container) {
            return;
        }
        let verdicts = self.shown.verdicts.entry(container.clone()).or_default();
        match probe {
            ProbeKind::Liveness => verdicts.liveness = Some(healthy),
            ProbeKind::Startup => {
                verdicts.startup = Some(healthy);
                self.shown.probes.started.insert(container, healthy);
            }
            ProbeKind::Readiness => {
                self.shown.probes.ready.insert(container, healthy);
            }
        }
    }

    pub(crate) fn read(&mut self, after: Duration, context: &mut WorkerInputs<'_>) {
        // A read under way may have begun before the cause of this one.
        let stamp = context.next();
        self.reads.reading = Some(stamp);
        context.out.push(Command::Read { uid: self.uid.clone(), stamp, after });
    }
}
