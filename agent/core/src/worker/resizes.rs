//! Resizes: from the desired to the allocated resources of a pod, and on to those in force.
//!
//! Pure, part of `Pods` and of the worker. A worker only ever sees the pod with its allocated
//! resources; a request of its source beyond that is kept as `wanted` until admission grants it. A
//! resize that cannot be granted now is tried again when room may have become free, and after
//! `RETRY`; nothing is granted before every source has delivered. Owner of the records that must
//! survive a restart. Bounds: one wish for each pod.
// k8s: pkg/kubelet/allocation/allocation_manager.go

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::admit::{self, Grant};
use crate::ledger::Entries;
use crate::resize::allocation::held_requests;
use crate::resize::condition::{DEFERRED, ERROR, INFEASIBLE};
use crate::resize::{PodResources, ResizeConditions, change, message};
use crate::status::{self, PodVerdict};
use crate::sync::plan::{Action, PodResize};
use crate::worker::pods::Pods;
use crate::worker::step::{Worker, WorkerInputs, WorkerStage};
use crate::worker::{Command, DecisionCount, Failure};
use pintle_api_types::ids::{ContainerId, ContainerKind, Now, PodUid, UnixNanos};
use pintle_api_types::pod;
use pintle_api_types::pod::qos::{self, QosClass};
use pintle_api_types::pod::resources::{Amounts, pod_requests};

/// How often pending resizes are tried again without a reason.
// k8s: pkg/kubelet/allocation/allocation_manager.go retryDelay
const RETRY: Duration = Duration::from_secs(180);

/// Why room may have become free: a pod ended, or takes less.
pub(super) const FREED: [&str; 2] = ["pod_terminated", "pod_resized"];

/// A pod's record from an earlier run of the agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResizeRecord {
    pub(super) allocated: Option<PodResources>,
    pub(super) actuated: PodResources,
    /// It was over.
    #[serde(default)]
    pub(super) ended: Option<PodVerdict>,
}

/// A pod at the door.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AdmissionRequest {
    /// With the resources that it was given, if it was admitted before.
    #[serde(with = "crate::arc")]
    pub pod: Arc<Pod>,
    /// As its source has it, when that differs.
    #[serde(with = "crate::arc::option")]
    pub wanted: Option<Arc<Pod>>,
    pub requests: Amounts,
    pub(super) admitted_before: bool,
    actuated: PodResources,
    #[serde(default)]
    ended: Option<PodVerdict>,
}

impl AdmissionRequest {
    pub(crate) fn of(pod: Arc<Pod>, record: Option<ResizeRecord>) -> Self {
        let ResizeRecord { allocated, actuated, ended } = record.unwrap_or_default();
        let admitted_before = allocated.is_some();
        let given = allocated.and_then(|allocated| allocated.apply(&pod));
        let (pod, wanted) = match given {
            Some(given) => (given, Some(pod)),
            None => (pod, None),
        };
        let requests = held_requests(&pod, &actuated);
        Self { pod, wanted, requests, admitted_before, actuated, ended }
    }

    /// A pod that was admitted before is not checked, nor one that will not run because it has
    /// ended or is being deleted.
    pub(super) fn is_asked(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !(self.admitted_before || status::is_terminal(phase) || pod::is_deleted(&self.pod))
    }
}

impl Pods {
    /// Takes over the records of an earlier run.
    pub fn restore(&mut self, allocated: Entries, actuated: Entries) {
        for (uid, entry) in allocated {
            let record = self.resizes.records.entry(uid).or_default();
            (record.allocated, record.ended) = (Some(entry.resources), entry.ended);
        }
        for (uid, entry) in actuated {
            self.resizes.records.entry(uid).or_default().actuated = entry.resources;
        }
        for uid in self.resizes.records.keys() {
            self.book.changed(uid);
        }
    }

    /// A pod that has a worker is wanted differently.
    // k8s: pkg/kubelet/kubelet.go HandlePodUpdates
    pub fn update(&mut self, uid: PodUid, pod: Arc<Pod>, now: Now) {
        let before =
            self.workers.get(&uid).and_then(|w| w.resizing.wanted.as_ref().or(w.pod.as_ref()));
        if let Some(before) = before {
            let asked = crate::resize::asked(before, &pod);
            self.out
                .extend(asked.into_iter().map(|asked| Command::Count(DecisionCount::Asked(asked))));
        }
        let known = self.workers.get(&uid).filter(|worker| worker.resizing.requests.is_some());
        let given = known.and_then(|worker| worker.pod.as_deref()).map(PodResources::of);
        let shown = given.and_then(|given| given.apply(&pod));
        let Some(shown) = shown else {
            self.resizes.pending.retain(|pending| *pending != uid);
            self.with(&uid, now, |w, _| {
                w.resizing.wanted = None;
                w.resizing.conditions.pending = None;
                w.desire(pod);
            });
            return;
        };
        // Checked first: the worker should not act on a pod that is replaced at once.
        if let Some(worker) = self.workers.get_mut(&uid) {
            worker.resizing.wanted = Some(pod);
            worker.see(Arc::clone(&shown));
            self.index.touch(&uid);
            self.taken.set(&uid, worker.admitted());
            self.book.changed(&uid);
        }
        self.put_off(uid.clone());
        self.retry_resizes("pod_updated", now);
        if self.workers.get(&uid).is_some_and(|worker| worker.resizing.wanted.is_some()) {
            self.with(&uid, now, |w, _| w.desire(shown));
        }
    }

    /// Adds a pod to those with a pending resize.
    // k8s: pkg/kubelet/allocation/allocation_manager.go sortPendingResizes
    pub(super) fn put_off(&mut self, uid: PodUid) {
        if !self.resizes.pending.contains(&uid) {
            self.resizes.pending.push(uid);
        }
        let workers = &self.workers;
        self.resizes.pending.sort_by_cached_key(|uid| workers.get(uid).map(Worker::resize_order));
    }

    /// Tries resizes when room became free or their time has come.
    pub(super) fn resizes_due(&mut self, now: Now) {
        if let Some(why) = self.notes.freed.take() {
            self.retry_resizes(why, now);
        } else if now.mono >= self.resizes.at {
            self.retry_resizes("periodic_retry", now);
        }
    }

    /// Grants the resizes that fit, in order.
    // k8s: pkg/kubelet/allocation/allocation_manager.go retryPendingResizes
    pub(super) fn retry_resizes(&mut self, why: &'static str, now: Now) {
        if self.resizes.pending.is_empty() || !self.sources_ready {
            return;
        }
        self.resizes.at = now.mono.plus(RETRY);
        for uid in std::mem::take(&mut self.resizes.pending) {
            if self.try_resize(&uid, why, now) {
                self.resizes.pending.push(uid);
            }
        }
    }

    /// Tries one resize; true when it has to wait.
    // k8s: pkg/kubelet/allocation/allocation_manager.go handlePodResourcesResize
    fn try_resize(&mut self, uid: &PodUid, why: &'static str, now: Now) -> bool {
        let Some(worker) = self.workers.get(uid) else { return false };
        let may = worker.stage <= WorkerStage::Syncing && worker.admitted().is_some();
        let (Some(wanted), Some(given)) = (worker.resizing.wanted.clone(), worker.pod.clone())
        else {
            return false;
        };
        if !may {
            return false;
        }
        let was_deferred =
            worker.resizing.conditions.pending.as_ref().is_some_and(|p| p.reason == DEFERRED);
        if let Some((message, label)) = admit::infeasible(&self.settings.admission, &wanted, &given)
        {
            self.out.push(Command::Count(DecisionCount::Infeasible(label)));
            self.with(uid, now, |w, context| {
                w.resize_waits(&wanted, (INFEASIBLE, INFEASIBLE), message, context);
            });
            return false;
        }
        match self.admit(uid, &wanted, &pod_requests(&wanted)) {
            Ok(grant) => {
                if was_deferred {
                    self.out.push(Command::Count(DecisionCount::Accepted(why)));
                }
                self.grant(uid, wanted, &grant, now);
                false
            }
            Err(refusal) => {
                self.with(uid, now, |w, context| {
                    let reasons = (DEFERRED, refusal.reason.as_str());
                    w.resize_waits(&wanted, reasons, &refusal.message, context);
                });
                true
            }
        }
    }

    fn grant(&mut self, uid: &PodUid, wanted: Arc<Pod>, grant: &Grant, now: Now) {
        self.with(uid, now, |w, context| w.resize_granted(wanted, context));
        self.preempt(grant, now);
    }
}

impl Worker {
    /// The pod was admitted.
    pub(super) fn let_in(&mut self, request: AdmissionRequest) {
        let none = PodStatus::default();
        let status = request.pod.status.as_ref().unwrap_or(&none);
        self.resizing.conditions = ResizeConditions::read(status);
        if request.wanted.is_none() {
            self.resizing.conditions.pending = None;
        }
        self.resizing.requests = Some(request.requests);
        self.resizing.actuated = request.actuated;
        self.resizing.wanted = request.wanted;
        self.desire(request.pod);
        if let Some(verdict) = request.ended {
            self.ended_before(verdict);
        }
    }

    /// The position of a resize among others: one that requests no more comes first, then by
    /// priority, class, and waiting time.
    fn resize_order(&self) -> (bool, Reverse<i32>, bool, UnixNanos) {
        let (Some(wanted), Some(given)) = (self.resizing.wanted.as_deref(), self.pod.as_deref())
        else {
            return (false, Reverse(0), false, UnixNanos::NEVER);
        };
        let (asked, has) = (pod_requests(wanted), pod_requests(given));
        let more = ["cpu", "memory"].iter().any(|name| asked.get(*name) > has.get(*name));
        let priority = pod::spec(wanted).priority.unwrap_or(0);
        let lower = qos::class_of(wanted) != QosClass::Guaranteed;
        // A resize that was never tried has waited least.
        let since =
            self.resizing.conditions.pending.as_ref().map_or(UnixNanos(i64::MAX), |p| p.since);
        (more, Reverse(priority), lower, since)
    }

    /// The resize cannot be granted; `reasons` are the condition's and the one behind it.
    fn resize_waits(
        &mut self,
        wanted: &Pod,
        reasons: (&str, &str),
        why: &str,
        context: &mut WorkerInputs<'_>,
    ) {
        let generation = wanted.metadata.generation;
        if !self.resizing.conditions.set_pending(reasons.0, why, generation, context.now.wall) {
            return;
        }
        let event = match reasons.0 {
            INFEASIBLE => message::INFEASIBLE,
            _ => message::DEFERRED,
        };
        let sentence = format!("Pod resize {}", reasons.1);
        self.emit_event(true, event, message::text(&sentence, wanted, generation, why), context);
    }

    fn resize_granted(&mut self, wanted: Arc<Pod>, context: &mut WorkerInputs<'_>) {
        let generation = wanted.metadata.generation;
        self.resizing.requests = Some(held_requests(&wanted, &self.resizing.actuated));
        self.resizing.wanted = None;
        self.resizing.conditions = ResizeConditions::default();
        self.resizing.conditions.set_in_progress("", "", generation, context.now.wall);
        let text = message::text("Pod resize started", &wanted, generation, "");
        self.emit_event(false, message::STARTED, text, context);
        context.notes.unsaved = true;
        self.desire(wanted);
    }

    /// Reports that a resize is under way, or that it is done.
    // k8s: pkg/kubelet/kubelet.go SyncPod
    pub(super) fn follow_resize(&mut self, context: &mut WorkerInputs<'_>) {
        let ready = self.stage == WorkerStage::Syncing && self.sync.run.is_none() && self.fresh();
        let Some(pod) = self.pod.clone().filter(|_| ready && self.reads.observed_stamp > 0) else {
            return;
        };
        if change::is_in_progress(&pod, &self.reads.observed, &self.resizing.actuated) {
            self.resizing.conditions.set_in_progress(
                "",
                "",
                pod.metadata.generation,
                context.now.wall,
            );
        } else if let Some(done) = self.resizing.conditions.in_progress.take() {
            let text = message::text("Pod resize completed", &pod, done.generation, "");
            self.emit_event(false, message::COMPLETED, text, context);
        }
    }

    /// The resources that the containers of a sync will start with. Recorded before they start, so
    /// that no crash leaves one without a record. Returns those of the containers that the sync
    /// kills first: until that is done they keep their old resources.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go startContainer
    pub(super) fn note_actuated(
        &mut self,
        actions: &[Action],
        context: &mut WorkerInputs<'_>,
    ) -> BTreeMap<String, ResourceRequirements> {
        let mut of_killed = BTreeMap::new();
        let Some(pod) = self.pod.clone() else { return of_killed };
        let spec = pod::spec(&pod);
        for action in actions {
            match action {
                Action::CreateSandbox { .. } => {
                    context.notes.unsaved |= self.resizing.actuated.pod != spec.resources;
                    self.resizing.actuated.pod.clone_from(&spec.resources);
                }
                Action::StartContainer { name, kind, .. } if *kind != ContainerKind::Ephemeral => {
                    let Some((_, container)) = pod::containers::find(spec, name) else { continue };
                    let given = change::allocated(&pod, container);
                    if self.sync.replaced.contains_key(name) {
                        of_killed.insert(name.clone(), given);
                    } else {
                        self.note_given(name, given, context);
                    }
                }
                _ => {}
            }
        }
        of_killed
    }

    /// A container has been killed: if the sync starts it again, it gets the resources of that
    /// start.
    pub(super) fn note_killed(
        &mut self,
        name: &str,
        id: &ContainerId,
        context: &mut WorkerInputs<'_>,
    ) {
        let is_replaced = self.sync.replaced.get(name) == Some(id);
        let run = self.sync.run.as_mut().filter(|_| is_replaced);
        if let Some(given) = run.and_then(|run| run.of_killed.remove(name)) {
            self.note_given(name, given, context);
        }
    }

    fn note_given(
        &mut self,
        name: &str,
        given: ResourceRequirements,
        context: &mut WorkerInputs<'_>,
    ) {
        self.resizing.uncertain.remove(name);
        let before = self.resizing.actuated.containers.insert(name.to_owned(), given.clone());
        context.notes.unsaved |= before != Some(given);
    }

    /// The resources in force, as a sync compares them with the allocated ones: without those of a
    /// container of a failed resize that was taken back. The runtime may have the new numbers, so
    /// the old ones are set again.
    pub(super) fn known_in_force(&self, pod: &Pod) -> Cow<'_, PodResources> {
        let mut known = Cow::Borrowed(&self.resizing.actuated);
        for name in &self.resizing.uncertain {
            let found = pod::containers::find(pod::spec(pod), name);
            let allocated = found.map(|(_, container)| change::allocated(pod, container));
            let in_force = self.resizing.actuated.containers.get(name);
            if allocated.as_ref().map(change::Figures::of) == in_force.map(change::Figures::of) {
                known.to_mut().containers.remove(name);
            }
        }
        known
    }

    /// A resize is in force.
    pub fn resized(&mut self, resize: &PodResize, context: &mut WorkerInputs<'_>) {
        for update in &resize.updates {
            self.resizing.uncertain.remove(&update.name);
            self.resizing.actuated.containers.insert(update.name.clone(), update.resources.clone());
        }
        self.resizing.actuated.pod.clone_from(&resize.of_pod);
        if let Some(pod) = &self.pod {
            self.resizing.requests = Some(held_requests(pod, &self.resizing.actuated));
        }
        context.notes.unsaved = true;
        context.notes.freed = Some(FREED[1]);
    }

    /// The runtime or the kernel refused a resize, or its answer was lost; it is tried again.
    pub(super) fn resize_failed(
        &mut self,
        resize: &PodResize,
        failure: &Failure,
        context: &mut WorkerInputs<'_>,
    ) {
        self.resizing.uncertain.extend(resize.updates.iter().map(|update| update.name.clone()));
        let Some(pod) = self.pod.clone() else { return };
        let generation = pod.metadata.generation;
        if self.resizing.conditions.set_in_progress(
            ERROR,
            &failure.message,
            generation,
            context.now.wall,
        ) {
            let generation =
                self.resizing.conditions.in_progress.as_ref().and_then(|c| c.generation);
            let text = message::text("Pod resize error", &pod, generation, &failure.message);
            self.emit_event(true, message::ERROR, text, context);
        }
    }

    fn emit_event(
        &self,
        warning: bool,
        reason: &'static str,
        message: String,
        context: &mut WorkerInputs<'_>,
    ) {
        context.out.push(Command::Event {
            uid: self.uid.clone(),
            warning,
            reason: reason.into(),
            message,
            container: None,
        });
    }
}
