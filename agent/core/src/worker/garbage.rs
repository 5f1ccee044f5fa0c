//! Garbage of wanted pods: dead containers beyond the limits, empty sandboxes.
//!
//! Pure, part of `Pods`. Once in `EVERY`, with a list of the runtime, `garbage::containers`
//! chooses; each worker removes its chosen containers in a sync of its own, when it has nothing
//! else to do, after a new read of the pod. Eviction does all of that at once, and removes all
//! containers of pods that are over. An evicted pod loses its containers as soon as it has ended,
//! even if its source does not know of the end: a node that cannot reach the API server would be as
//! short as before, and the next pod would be evicted. Its verdict is then kept on disk (`ledger`),
//! so that no agent starts it again. No container is removed before every pod is known. Unwanted
//! pods are not chosen from: their workers remove all of them (`Action::Cleanup`).
//!
//! Bounds: an id for each container to remove; `RECLAIM_MAX` for those before images are removed.
// k8s: pkg/kubelet/kubelet.go StartGarbageCollection, pkg/kubelet/container/container_gc.go

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use serde::{Deserialize, Serialize};

use crate::eviction::observed::Freed;
use crate::eviction::signal::Signal;
use crate::garbage::containers::{self, Discarded, KeptPod, Need};
use crate::node::conditions::NodeEvent;
use crate::observed::{ObservedContainer, RunState};
use crate::status::PodVerdict;
use crate::sync::plan::{self, Action};
use crate::worker::Command;
use crate::worker::pods::Pods;
use crate::worker::step::{Worker, WorkerInputs, WorkerStage};
use crate::{eviction, status};
use pintle_api_types::ids::{ContainerId, Mono, Now, PodUid};
use pintle_api_types::pod;

/// How often is chosen at most.
// k8s: pkg/kubelet/kubelet.go ContainerGCPeriod
const EVERY: Duration = Duration::from_secs(60);
/// How long images wait at most for the containers that may be made of them.
const RECLAIM_MAX: Duration = Duration::from_secs(60);
/// Pods that end for these reasons have nothing left to show.
// k8s: pkg/kubelet/pod_workers.go ShouldPodContentBeRemoved
const PUSHED_OUT: [&str; 2] = [eviction::REASON, "Preempting"];

/// The state of garbage collection over all pods.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Garbage {
    due_at: Mono,
    reclaim: Option<Reclaim>,
}

/// A reclaim that eviction requested.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reclaim {
    ticket: u64,
    signal: Signal,
    images: bool,
    /// The chosen containers, and those of them that still exist.
    chosen: Discarded,
    until: Mono,
    /// The number of removed containers, once the rest is requested.
    removed: Option<u32>,
}

/// The containers of a pod to remove.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Discards {
    containers: BTreeSet<ContainerId>,
    /// Not even its newest sandbox is needed.
    all_sandboxes: bool,
    /// Nothing is: records, logs, directories.
    everything: bool,
}

impl Pods {
    /// Removes surplus containers once the runtime has listed its pods.
    pub(super) fn collect_garbage(&mut self, now: Now) {
        if now.mono >= self.garbage.due_at && self.knows_all() {
            self.garbage.due_at = now.mono.plus(EVERY);
            self.discard(false, now);
        }
    }

    /// The runtime could not list its pods.
    pub(super) fn garbage_stays(&mut self, error: String, now: Now) {
        if now.mono >= self.garbage.due_at {
            self.garbage.due_at = now.mono.plus(EVERY);
            let event = NodeEvent { warning: true, reason: "ContainerGCFailed", message: error };
            self.out.push(Command::NodeEvent(event));
        }
    }

    /// Chooses the surplus and informs the workers; returns the chosen containers.
    fn discard(&mut self, of_ended: bool, now: Now) -> Discarded {
        let need = |worker: &Worker| {
            let need = worker.need()?;
            Some(if of_ended && need == Need::Limits { Need::Nothing } else { need })
        };
        let kept = self.workers.values().filter_map(|worker| {
            let need = need(worker).filter(|_| !worker.leaves_everything())?;
            Some(KeptPod { pod: worker.observed(), need })
        });
        let kept: Vec<_> = kept.collect();
        let mut chosen = containers::discard(&self.settings.garbage, &kept, now.wall);
        let mut told = Vec::new();
        for worker in self.workers.values() {
            let Some(need) = need(worker) else { continue };
            let discards = Discards {
                containers: chosen.get(worker.uid()).cloned().unwrap_or_default(),
                all_sandboxes: need == Need::Nothing,
                everything: worker.leaves_everything(),
            };
            if discards.everything {
                let all = worker.observed().containers.iter().map(|c| c.id.clone()).collect();
                chosen.insert(worker.uid().clone(), all);
            }
            if discards != Discards::default() || worker.has_spare_sandbox(false) {
                told.push((worker.uid().clone(), discards));
            }
        }
        for (uid, discards) in told {
            self.with(&uid, now, |worker, _| worker.sync.discards = Some(discards));
        }
        chosen
    }

    /// Frees a resource: first containers, so that no image is in use for a dead one.
    pub(super) fn reclaim(&mut self, of: (u64, Signal), what: (bool, bool), now: Now) {
        let ((ticket, signal), (containers, images)) = (of, what);
        let chosen = match containers && self.knows_all() {
            true => self.discard(true, now),
            false => Discarded::new(),
        };
        let until = now.mono.plus(RECLAIM_MAX);
        self.garbage.reclaim =
            Some(Reclaim { ticket, signal, images, chosen, until, removed: None });
    }

    /// Requests the rest of the reclaim once the containers are gone.
    pub(super) fn reclaim_due(&mut self, now: Mono) {
        let Some(reclaim) = self.garbage.reclaim.as_mut().filter(|r| r.removed.is_none()) else {
            return;
        };
        let workers = &self.workers;
        let is_there = |uid: &PodUid, id: &ContainerId| {
            let worker = workers.get(uid);
            worker.is_some_and(|w| w.observed().containers.iter().any(|c| c.id == *id))
        };
        let all = reclaim.chosen.iter().flat_map(|(uid, ids)| ids.iter().map(move |id| (uid, id)));
        let (left, gone): (Vec<_>, Vec<_>) = all.partition(|(uid, id)| is_there(uid, id));
        if !left.is_empty() && now < reclaim.until {
            return;
        }
        let removed = u32::try_from(gone.len()).unwrap_or(u32::MAX);
        reclaim.removed = Some(removed);
        let (ticket, signal, images) = (reclaim.ticket, reclaim.signal, reclaim.images);
        self.evictor.reclaiming(ticket, now);
        self.out.push(Command::Reclaim { ticket, signal, containers: removed, images });
    }

    /// The freed amount, plus the containers removed before.
    pub(super) fn with_containers(&mut self, ticket: u64, freed: &Freed) -> Freed {
        let own = self.garbage.reclaim.take_if(|reclaim| reclaim.ticket == ticket);
        let removed = own.and_then(|reclaim| reclaim.removed).unwrap_or_default();
        Freed { containers: freed.containers.saturating_add(removed), ..freed.clone() }
    }

    /// When the containers are waited for no longer.
    pub(super) fn reclaim_wake(&self) -> Option<Mono> {
        let reclaim = self.garbage.reclaim.as_ref().filter(|r| r.removed.is_none());
        reclaim.map(|reclaim| reclaim.until)
    }
}

impl Worker {
    /// The containers of it that are still needed; `None` for a pod that removes all of itself, or
    /// is being stopped.
    fn need(&self) -> Option<Need> {
        let is_wanted = self.pod.is_some() && !self.ending.removed;
        let is_settled = matches!(self.stage, WorkerStage::Syncing | WorkerStage::Finished);
        let need = if self.is_over() { Need::Limits } else { Need::LastEnds };
        (is_wanted && is_settled).then_some(need)
    }

    /// It has ended for good and its source knows: no restart of the agent starts it again. The
    /// source of a static pod records no end.
    fn is_over(&self) -> bool {
        let known = self.pod.as_ref().filter(|pod| !pod::is_static(pod));
        let status = known.and_then(|pod| pod.status.as_ref());
        self.stage == WorkerStage::Finished
            && status.is_some_and(|s| status::is_terminal(s.phase.as_deref()))
    }

    /// It was preempted or evicted, and some container of it is still there.
    // k8s: pkg/kubelet/pod_workers.go ShouldPodContentBeRemoved
    fn leaves_everything(&self) -> bool {
        let status = self.pod.as_ref().and_then(|pod| pod.status.as_ref());
        let pushed_out = is_pushed_out(status) && self.is_over();
        (pushed_out || self.was_pushed_out()) && !self.cleaned()
    }

    /// It has ended because this agent ended it, which its source may not know yet. The record of
    /// that outlasts the agent where the pod was admitted, and a static pod's source knows no such
    /// end.
    fn was_pushed_out(&self) -> bool {
        let is_kept = self.resizing.requests.is_some()
            && self.pod.as_ref().is_some_and(|p| !pod::is_static(p));
        let is_own =
            self.ending.verdict.as_ref().is_some_and(|v| PUSHED_OUT.contains(&v.reason.as_str()));
        is_own
            && is_kept
            && self.stage == WorkerStage::Finished
            && is_pushed_out(Some(&self.shown.status))
    }

    /// Keeps the verdict before the last record of a pod's end is removed, like the results of a
    /// resize.
    pub(super) fn note_verdict(&mut self, actions: &[Action], context: &mut WorkerInputs<'_>) {
        let tells = !self.ending.keeps_verdict
            && !self.ending.removed
            && actions.contains(&Action::Cleanup);
        if tells && self.was_pushed_out() && !self.is_over() {
            self.ending.keeps_verdict = true;
            context.notes.unsaved = true;
        }
    }

    /// Ends a pod that an earlier agent has ended, and of which it removed all other records.
    pub(super) fn ended_before(&mut self, verdict: PodVerdict) {
        self.ending.keeps_verdict = true;
        self.kill(verdict, None);
    }

    /// The verdict of its end, as long as no other record of it would reach a later agent.
    pub fn kept_verdict(&self) -> Option<&PodVerdict> {
        let status = self.pod.as_ref().and_then(|pod| pod.status.as_ref());
        let is_known = status.is_some_and(|s| status::is_terminal(s.phase.as_deref()));
        self.ending.verdict.as_ref().filter(|_| self.ending.keeps_verdict && !is_known)
    }

    /// True if only the record of its end will show another agent that it is over once these
    /// actions are done.
    pub fn needs_record(&self, actions: &[Action]) -> bool {
        !self.ending.removed && self.kept_verdict().is_some() && actions.contains(&Action::Cleanup)
    }

    fn has_spare_sandbox(&self, all: bool) -> bool {
        containers::sandboxes(&self.reads.observed, !all).next().is_some()
    }

    /// The removals that are due now; none once all of it is gone. Containers that have come to run
    /// since they were chosen stay.
    pub(super) fn discarding(&mut self, now: Mono) -> Vec<Action> {
        if self.leaves_everything() {
            // At once: its logs may hold the scarce resource.
            self.sync.discards = Some(Discards { everything: true, ..Discards::default() });
        }
        let Some(discards) = self.sync.discards.clone() else { return Vec::new() };
        if discards.everything && !self.cleaned() {
            return vec![Action::Cleanup];
        }
        // A container of unknown state is removed as well: its removal ends a process that it may
        // still have.
        let is_chosen = |c: &&ObservedContainer| {
            discards.containers.contains(&c.id) && c.state != RunState::Running
        };
        let chosen = self.reads.observed.containers.iter().filter(is_chosen);
        let mut actions: Vec<_> = chosen.map(|c| plan::remove(c, false)).collect();
        if actions.is_empty() {
            let spare = containers::sandboxes(&self.reads.observed, !discards.all_sandboxes);
            actions.extend(spare.map(|s| Action::RemoveSandbox { id: s.id.clone() }));
        }
        if actions.is_empty() {
            self.sync.discards = None;
        }
        actions.retain(|action| !self.is_paused(action, now));
        actions
    }
}

/// The pod ended for others.
fn is_pushed_out(status: Option<&PodStatus>) -> bool {
    let ended = status.filter(|status| status::is_terminal(status.phase.as_deref()));
    let reason = ended.and_then(|status| status.reason.as_deref());
    reason.is_some_and(|reason| PUSHED_OUT.contains(&reason))
}
