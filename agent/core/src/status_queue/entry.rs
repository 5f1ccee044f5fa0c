//! One object of the API server in the status queue: our state, its copy, and the next request.
//!
//! Pure. A entry has the pod's last status, or for a mirror pod those of every static pod of that
//! name, since a changed manifest is another pod and both are there for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::Value;

use super::{
    Ask, FullName, QueueKey, REPEAT, RETRY, RequestResult, WorkClass, full_name, is_urgent,
};
use crate::api_health::{Trouble, Unwritten};
use crate::status::is_terminal;
use crate::status::phase::PENDING;
use crate::status_queue::{merge, patch};
use crate::worker::WorkerStage;
use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};
use pintle_api_types::pod;

/// A pod as this node has it.
#[derive(Debug)]
struct Local {
    pod: Arc<Pod>,
    /// `None` before the first derivation.
    status: Option<Arc<PodStatus>>,
    stage: WorkerStage,
}

/// The work due for an entry.
#[derive(Debug, PartialEq)]
pub(crate) enum EntryWork {
    Patch { body: Value, urgent: bool },
    Delete(PodUid),
    Mirror(PodUid),
    Refetch,
}

#[derive(Debug, Default)]
pub(crate) struct PodEntry {
    locals: BTreeMap<PodUid, Local>,
    copy: Option<Arc<Pod>>,
    /// Uid of the copy that the API server has agreed to delete.
    deleted: Option<PodUid>,
    /// The copy may be out of date: read it before anything else.
    doubt: bool,
    /// The version that was known when the request under way began.
    begun_with: Option<u64>,
    /// The last body that the API server took, and when.
    written: Option<(Value, Mono)>,
    /// The body under way.
    writing: Option<Value>,
    /// The request under way creates a mirror pod.
    creating: bool,
    failures: u32,
    /// The requested change, in words, and why it has not been made so far.
    asked: &'static str,
    pub trouble: Option<Trouble>,
    /// Since when the API server has another status than we have.
    pub(super) differs_since: Option<Mono>,
    pub flight: Option<u64>,
    pub(super) queued: Option<(WorkClass, u64)>,
    pub timer: Option<Mono>,
    pub(super) retry_at: Option<Mono>,
    /// When the first of the changes came that wait for others.
    pub(super) gather_since: Option<Mono>,
}

impl PodEntry {
    pub(crate) fn wanted(&mut self, pod: Arc<Pod>) {
        let uid = pod::uid(&pod);
        let fresh = Local { pod: Arc::clone(&pod), status: None, stage: WorkerStage::Waiting };
        self.locals.entry(uid).or_insert(fresh).pod = pod;
    }

    pub(crate) fn derived(&mut self, pod: Arc<Pod>, status: Arc<PodStatus>, stage: WorkerStage) {
        self.locals.insert(pod::uid(&pod), Local { pod, status: Some(status), stage });
    }

    #[cfg(test)]
    pub(super) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.locals.keys()
    }

    pub(crate) fn forget(&mut self, uid: &PodUid) {
        self.locals.remove(uid);
    }

    /// Takes a copy unless it is older than the known one: an answer and the watch may overtake
    /// each other.
    pub(crate) fn seen(&mut self, copy: Arc<Pod>) {
        let known = self.copy.as_deref().filter(|known| known.metadata.uid == copy.metadata.uid);
        if known.is_none_or(|known| version(&copy) >= version(known)) {
            self.copy = Some(copy);
        }
    }

    /// A complete list has this copy. A copy older than the known one, or a deleted one, may come
    /// from a restored store: the API server is asked.
    pub(super) fn listed(&mut self, copy: &Pod) {
        let uid = &copy.metadata.uid;
        let known = self.copy.as_deref().filter(|known| known.metadata.uid == *uid);
        let back = known.is_some_and(|known| version(copy) < version(known));
        if back || self.outlives_deletion(copy) {
            self.deleted = None;
            self.doubt = true;
        }
    }

    /// True for a copy that the API server has agreed to delete and shows without our deletion, which
    /// has no grace, also where finalizers keep the object.
    fn outlives_deletion(&self, copy: &Pod) -> bool {
        let is_deleted = self.deleted.as_ref() == Some(&pod::uid(copy));
        is_deleted && copy.metadata.deletion_grace_period_seconds != Some(0)
    }

    /// Takes the copy of an answer. Requests see the newest state: a copy older than the one known
    /// before the request comes from a restored store, and an object that outlives its deletion is
    /// still to be deleted.
    fn answer(&mut self, copy: Arc<Pod>) {
        if self.outlives_deletion(&copy) {
            self.deleted = None;
        }
        let is_back = version(&copy) < self.begun_with;
        match is_back {
            true => self.copy = Some(copy),
            false => self.seen(copy),
        }
    }

    pub(super) fn unseen(&mut self, gone: &Pod) {
        if self.copy.as_ref().is_some_and(|copy| copy.metadata.uid == gone.metadata.uid) {
            self.copy = None;
        }
    }

    /// True when every pod of the entry is being stopped and has not ended.
    pub(super) fn is_stopping(&self) -> bool {
        let stopping = |local: &Local| local.stage == WorkerStage::Terminating;
        !self.locals.is_empty() && self.locals.values().all(stopping)
    }

    /// True when every pod of the entry waits for its first container, and none has a waiting
    /// reason that a user might want to read.
    pub(super) fn is_starting(&self) -> bool {
        let starting = |local: &Local| {
            let status = local.status.as_deref();
            local.stage == WorkerStage::Syncing && status.is_some_and(is_untouched)
        };
        !self.locals.is_empty() && self.locals.values().all(starting)
    }

    /// True for a pod that is over and is being deleted without grace: the API server completes
    /// that by itself, unless it stops half-way.
    pub(super) fn goes_by_itself(&self) -> bool {
        let grace = self.present().and_then(|copy| copy.metadata.deletion_grace_period_seconds);
        grace == Some(0) && self.locals.values().all(|local| local.stage == WorkerStage::Finished)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locals.is_empty() && self.copy.is_none() && self.flight.is_none()
    }

    /// The API server's copy, unless it is being deleted.
    fn present(&self) -> Option<&Arc<Pod>> {
        self.copy.as_ref().filter(|copy| self.deleted.as_ref() != Some(&pod::uid(copy)))
    }

    pub(crate) fn work(&self, key: &QueueKey, sources_ready: bool) -> Option<EntryWork> {
        if self.doubt {
            return Some(EntryWork::Refetch);
        }
        match key {
            QueueKey::Pod(uid) => self.pod_work(uid),
            QueueKey::Mirror(_) => self.mirror_work(sources_ready),
        }
    }

    /// The final status is written first, then the deletion is completed.
    // k8s: pkg/kubelet/status/status_manager.go syncPod, canBeDeleted
    fn pod_work(&self, uid: &PodUid) -> Option<EntryWork> {
        let (copy, local) = (self.present()?, self.locals.get(uid)?);
        let patch = patch_work(copy, local);
        let phase = copy.status.as_ref().and_then(|status| status.phase.as_deref());
        let ended = local.stage == WorkerStage::Finished && is_terminal(phase);
        // A write without effect is tried again some day, but it holds nothing up.
        let told = patch.as_ref().is_none_or(|work| self.repeat_at(work).is_some());
        let completes = pod::is_deleted(copy) && ended && told;
        if completes { Some(EntryWork::Delete(uid.clone())) } else { patch }
    }

    // k8s: pkg/kubelet/kubelet.go tryReconcileMirrorPods, kubelet_pods.go HandlePodCleanups
    fn mirror_work(&self, sources_ready: bool) -> Option<EntryWork> {
        let lives = |local: &&Local| local.stage == WorkerStage::Syncing && local.status.is_some();
        let living = self.locals.values().find(lives);
        let Some(copy) = self.present() else {
            return living.map(|local| EntryWork::Mirror(pod::uid(&local.pod)));
        };
        let hash = pod::annotation(copy, pod::ANNOTATION_MIRROR);
        let is_of = |local: &&Local| pod::annotation(&local.pod, pod::ANNOTATION_HASH) == hash;
        let stale = living.is_some_and(|local| pod::is_deleted(copy) || !is_of(&local));
        let orphan = self.locals.is_empty() && sources_ready;
        if stale || orphan {
            return Some(EntryWork::Delete(pod::uid(copy)));
        }
        patch_work(copy, self.locals.values().find(is_of)?)
    }

    pub(crate) fn class(&self, work: &EntryWork) -> WorkClass {
        if is_urgent(work) { WorkClass::Urgent } else { WorkClass::Normal }
    }

    /// Until when a write is held back because the same one had no effect.
    pub(super) fn repeat_at(&self, work: &EntryWork) -> Option<Mono> {
        let (body, at) = self.written.as_ref()?;
        matches!(work, EntryWork::Patch { body: now, .. } if now == body).then(|| at.plus(REPEAT))
    }

    /// Records that the work is under way; returns the request.
    pub(crate) fn begin(
        &mut self,
        key: &QueueKey,
        ticket: u64,
        work: EntryWork,
        now: Mono,
    ) -> Option<(FullName, Ask)> {
        let name = match key {
            QueueKey::Mirror(name) => name.clone(),
            QueueKey::Pod(_) => full_name(self.copy.as_ref()?),
        };
        self.asked = match &work {
            EntryWork::Patch { .. } => "its status",
            EntryWork::Delete(_) => "its deletion",
            EntryWork::Mirror(_) => "its mirror pod",
            EntryWork::Refetch => self.asked,
        };
        let ask = match work {
            EntryWork::Patch { body, .. } => {
                self.written = None;
                self.writing = Some(body.clone());
                Ask::Patch(body)
            }
            EntryWork::Delete(uid) => Ask::Delete(uid),
            EntryWork::Mirror(uid) => {
                self.creating = true;
                Ask::Mirror(Arc::clone(&self.locals.get(&uid)?.pod))
            }
            EntryWork::Refetch => Ask::Refetch,
        };
        self.flight = Some(ticket);
        self.begun_with = self.copy.as_deref().and_then(version);
        self.gather_since = None;
        // A request that never comes back to us counts from its begin.
        self.retry_at = self.retry_at.filter(|at| *at > now);
        Some((name, ask))
    }

    /// Takes the answer; returns how long the written status had differed.
    pub(crate) fn answered(
        &mut self,
        key: &QueueKey,
        answer: RequestResult,
        now: Now,
    ) -> Option<Duration> {
        let is_written = self.writing.is_some() && matches!(&answer, RequestResult::Copy(_));
        let since = if is_written { self.differs_since.take() } else { None };
        self.take(key, answer, now);
        since.map(|since| now.mono.since(since))
    }

    fn take(&mut self, key: &QueueKey, answer: RequestResult, Now { wall, mono: now }: Now) {
        self.flight = None;
        let writing = self.writing.take();
        let creating = std::mem::take(&mut self.creating);
        self.note(&answer, creating, wall);
        match answer {
            RequestResult::Copy(copy) if is_its(key, &copy) => {
                self.written = writing.map(|body| (body, now));
                self.calm();
                self.answer(Arc::new(*copy));
            }
            RequestResult::Deleted => {
                self.deleted = self.copy.as_deref().map(pod::uid);
                self.calm();
            }
            // No namespace, or another pod has the mirror pod's name.
            RequestResult::Missing if creating => self.wait(now, Duration::ZERO),
            RequestResult::Copy(_) if matches!(key, QueueKey::Mirror(_)) => {
                self.copy = None;
                self.doubt = false;
                self.wait(now, RETRY.1);
            }
            RequestResult::Missing | RequestResult::Copy(_) => {
                self.copy = None;
                self.calm();
            }
            RequestResult::Conflict => {
                self.doubt = true;
                self.wait(now, Duration::ZERO);
            }
            RequestResult::Busy { after, .. } => self.wait(now, after),
            RequestResult::Refused(_) | RequestResult::Unreachable(_) => {
                self.wait(now, Duration::ZERO)
            }
        }
    }

    /// Remembers why a change is not written, and since when by the wall clock.
    fn note(&mut self, answer: &RequestResult, creating: bool, now: UnixNanos) {
        let words = match answer {
            RequestResult::Busy { why, .. }
            | RequestResult::Refused(why)
            | RequestResult::Unreachable(why) => why,
            RequestResult::Missing if creating => "its namespace does not exist",
            RequestResult::Conflict => return,
            RequestResult::Copy(_) | RequestResult::Deleted | RequestResult::Missing => {
                self.trouble = None;
                return;
            }
        };
        self.trouble = Some(Trouble::again(self.trouble.take(), words, now));
    }

    /// The pending writes of its pods.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = (PodUid, Option<Unwritten>)> {
        let unwritten = self.trouble.clone().map(|trouble| Unwritten { what: self.asked, trouble });
        self.locals.keys().map(move |uid| (uid.clone(), unwritten.clone()))
    }

    fn calm(&mut self) {
        (self.failures, self.retry_at, self.doubt) = (0, None, false);
    }

    fn wait(&mut self, now: Mono, at_least: Duration) {
        self.failures += 1;
        let own = (RETRY.0 * 2_u32.pow((self.failures - 1).min(8))).min(RETRY.1);
        self.retry_at = Some(now.plus(own.max(at_least)));
    }
}

/// True for the object that the entry is about.
fn is_its(key: &QueueKey, copy: &Pod) -> bool {
    match key {
        QueueKey::Pod(uid) => pod::uid(copy) == *uid,
        QueueKey::Mirror(_) => pod::is_mirror(copy),
    }
}

fn patch_work(copy: &Pod, local: &Local) -> Option<EntryWork> {
    let ours = local.status.as_deref()?;
    let none = PodStatus::default();
    let theirs = copy.status.as_ref().unwrap_or(&none);
    let status = match pod::is_mirror(copy) {
        true => merge::mirrored(theirs, ours),
        false => merge::merged(theirs, ours),
    };
    let body = patch::patch(pod::uid(copy).as_str(), theirs, &status)?;
    // A pod that is over by itself is news before its sandbox is gone; the ends of a pod that is
    // stopped on demand are reported together.
    // k8s: pkg/kubelet/kubelet.go SyncPod writes the status before it returns isTerminal
    let over = !pod::is_deleted(&local.pod) && !pod::is_deleted(copy) && !any_running(ours);
    let stopping = local.stage >= WorkerStage::Terminating && !over;
    Some(EntryWork::Patch { body, urgent: has_urgent_change(theirs, ours, stopping) })
}

/// The API server's count of changes of the object; compared only between copies of one object.
fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// True when services, controllers or users wait for just this change. While a pod is stopped its
/// containers end one after the other: their ends are reported together.
fn has_urgent_change(theirs: &PodStatus, ours: &PodStatus, stopping: bool) -> bool {
    let ready = |status: &PodStatus| {
        let mut all = status.conditions.iter().flatten();
        all.any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let ends = is_terminal(ours.phase.as_deref()) && ours.phase != theirs.phase;
    let newly_ended = ended(ours).any(|end| !ended(theirs).any(|known| known == end));
    let has_address = is_networked(ours) && !has_same_network(theirs, ours);
    match (ends, newly_ended || has_address || sidecar_started(theirs, ours)) {
        (true, _) => true,
        (false, true) => !stopping,
        (false, false) => ready(theirs) != ready(ours),
    }
}

/// True when a sidecar has started: the next container is started for just this, and its own change
/// would otherwise come in the same write.
// k8s: pkg/kubelet/kubelet.go SyncPod writes the status before the next init container is started
fn sidecar_started(theirs: &PodStatus, ours: &PodStatus) -> bool {
    // Of init containers that end, `started` is never true.
    let started = |status: &PodStatus| -> Vec<(String, Option<String>)> {
        let all = status.init_container_statuses.iter().flatten();
        let started = all.filter(|container| container.started == Some(true));
        started.map(|container| (container.name.clone(), container.container_id.clone())).collect()
    };
    let known = started(theirs);
    started(ours).iter().any(|container| !known.contains(container))
}

/// True once the pod has an address and a sandbox: headless services and network policies wait for
/// just this.
// k8s: pkg/kubelet/kubelet.go SyncPod writes the sandbox's addresses before anything is started
fn is_networked(status: &PodStatus) -> bool {
    let mut all = status.conditions.iter().flatten();
    status.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty())
        && all.any(|c| c.type_ == "PodReadyToStartContainers" && c.status == "True")
}

fn has_same_network(theirs: &PodStatus, ours: &PodStatus) -> bool {
    is_networked(theirs) && (&theirs.pod_ip, &theirs.pod_ips) == (&ours.pod_ip, &ours.pod_ips)
}

/// Containers that have ended, by id.
fn ended(status: &PodStatus) -> impl Iterator<Item = (&str, &Option<String>)> {
    let has_ended =
        |c: &&ContainerStatus| c.state.as_ref().is_some_and(|state| state.terminated.is_some());
    containers(status).filter(has_ended).map(|c| (c.name.as_str(), &c.container_id))
}

/// True while no container has come further than to be made.
fn is_untouched(status: &PodStatus) -> bool {
    let first = |c: &ContainerStatus| {
        let waiting = c.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        c.last_state.as_ref().is_none_or(|last| last.terminated.is_none())
            && matches!(reason, Some("ContainerCreating" | "PodInitializing"))
    };
    matches!(status.phase.as_deref(), None | Some(PENDING)) && containers(status).all(first)
}

fn any_running(status: &PodStatus) -> bool {
    containers(status).any(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()))
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}
