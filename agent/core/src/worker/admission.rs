//! Admission: which pods may start, and which victims are preempted for a critical one.
//!
//! Pure, part of `Pods`. A new pod is checked against the node and the pods admitted before it; a
//! refused one gets its terminal status and never starts. A critical pod may preempt others: it
//! waits until they have ended, as any pod waits for pods that no source wants any more, but not
//! for ever. A pod that is over or about to end, or was admitted before the agent restarted, is not
//! checked.
// k8s: pkg/kubelet/kubelet.go HandlePodAdditions, rejectPod

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::admit::{self, AdmissionCandidate, AdmissionRefusal, Admitted, Grant, TakenResources};
use crate::status::{self, PodVerdict};
use crate::worker::line::Blocked;
use crate::worker::pods::Pods;
use crate::worker::resizes::AdmissionRequest;
use crate::worker::step::{Worker, WorkerStage};
use crate::worker::{Command, DecisionCount};
use pintle_api_types::ids::{Now, PodUid};
use pintle_api_types::pod;
use pintle_api_types::pod::resources::Amounts;

impl Pods {
    /// A pod that has no worker yet.
    pub(super) fn arrive(&mut self, uid: PodUid, pod: Arc<Pod>, now: Now) {
        let record = self.resizes.records.remove(&uid);
        self.book.changed(&uid);
        let request = AdmissionRequest::of(pod, record);
        if request.is_asked() && self.lobby.must_wait(&request.pod) && !self.is_closed() {
            return self.wait_for_node(uid, request);
        }
        self.decide(uid, request, false, now);
    }

    /// Lets a pod in or refuses it; `fresh` when the node was read after it came.
    pub(super) fn decide(&mut self, uid: PodUid, request: AdmissionRequest, fresh: bool, now: Now) {
        let waited_for = self.lobby.leave(&uid);
        let outcome = match request.is_asked() {
            // The node's labels are not known yet, and are not needed.
            true if self.is_closed() && self.lobby.must_wait(&request.pod) => {
                Err(admit::node_shutdown())
            }
            true => self.admit_new(&uid, &request),
            false => Ok((Grant::default(), Vec::new())),
        };
        match outcome {
            Ok((grant, leaving)) => {
                self.block(&uid, &grant, leaving, now);
                let waits = request.wanted.is_some();
                self.create(uid.clone(), Some(Arc::clone(&request.pod)));
                self.notes.unsaved = true;
                self.book.changed(&uid);
                self.with(&uid, now, |w, _| w.let_in(request));
                self.preempt(&grant, now);
                if waits {
                    self.put_off(uid);
                    self.retry_resizes("pods_added", now);
                }
            }
            Err(refusal)
                if refusal.by_affinity_alone
                    && !fresh
                    && self.may_look_again()
                    && !self.is_closed() =>
            {
                self.wait_for_fresh_node(uid, request, waited_for);
            }
            Err(refusal) => {
                self.create(uid.clone(), Some(Arc::clone(&request.pod)));
                self.refused(&uid, &refusal);
                self.with(&uid, now, |w, _| {
                    w.desire(request.pod);
                    w.kill(refusal.verdict(), None);
                });
            }
        }
    }

    /// Holds a new pod against the node. Pods that no source wants any more take nothing from it:
    /// where it needs their share it waits until they have ended.
    // k8s: pkg/kubelet/kubelet.go HandlePodAdditions: removed pods are not among the active ones
    fn admit_new(
        &self,
        uid: &PodUid,
        request: &AdmissionRequest,
    ) -> Result<(Grant, Vec<PodUid>), AdmissionRefusal> {
        let (pod, requests) = (&*request.pod, &request.requests);
        let first = self.admit(uid, pod, requests);
        if first.as_ref().is_ok_and(|grant| grant.victims.is_empty()) {
            return first.map(|grant| (grant, Vec::new()));
        }
        let others = || self.workers().filter(|w| w.uid() != uid);
        let leaving = others().filter(|w| w.is_removed() && w.admitted().is_some());
        let leaving: Vec<_> = leaving.map(|w| w.uid().clone()).collect();
        if leaving.is_empty() {
            return first.map(|grant| (grant, leaving));
        }
        let staying = others().filter(|w| !w.is_removed()).filter_map(Worker::admitted);
        let (node, staying) = (&self.settings.admission, TakenResources::of(staying));
        let grant = admit::admit(node, &staying.all(), &AdmissionCandidate { pod, requests })?;
        Ok((grant, leaving))
    }

    /// The pod starts when its victims have ended, and the pods that leave anyway.
    fn block(&mut self, uid: &PodUid, grant: &Grant, leaving: Vec<PodUid>, now: Now) {
        let others = [grant.victims.clone(), leaving].concat();
        let graces = others.iter().filter_map(|other| {
            let other = self.workers.get(other)?;
            other.ending.grace_seconds.or_else(|| other.pod.as_deref().map(pod::grace_seconds))
        });
        if let Some(grace) = graces.max() {
            let until = now.mono.plus(pod::patience(grace));
            self.line.block(uid, Blocked { others, until });
        }
    }

    /// Checks a pod against the node and all other admitted pods.
    pub fn admit(
        &self,
        uid: &PodUid,
        pod: &Pod,
        requests: &Amounts,
    ) -> Result<Grant, AdmissionRefusal> {
        let others = self.taken.but(uid);
        admit::admit(&self.settings.admission, &others, &AdmissionCandidate { pod, requests })
    }

    fn refused(&mut self, uid: &PodUid, refusal: &AdmissionRefusal) {
        self.out.push(Command::Event {
            uid: uid.clone(),
            warning: true,
            reason: refusal.reason.clone().into(),
            message: refusal.message.clone(),
            container: None,
        });
        self.out.push(Command::Count(DecisionCount::Refused(refusal.reason.clone())));
    }

    /// Ends the pods that make room.
    // k8s: pkg/kubelet/preemption/preemption.go evictPodsToFreeRequests
    pub fn preempt(&mut self, grant: &Grant, now: Now) {
        for victim in &grant.victims {
            self.out.push(Command::Event {
                uid: victim.clone(),
                warning: true,
                reason: admit::PREEMPTING.into(),
                message: admit::PREEMPTED.to_owned(),
                container: None,
            });
            self.out.push(Command::Count(DecisionCount::Preempted(grant.starved.clone())));
            let verdict = PodVerdict {
                phase: status::FAILED.to_owned(),
                reason: admit::PREEMPTING.to_owned(),
                message: admit::PREEMPTED.to_owned(),
            };
            self.with(victim, now, |w, _| w.evict(verdict, None, now.mono));
        }
    }

    /// True while a pod waits for others to make room for it.
    pub(super) fn is_blocked(&self, uid: &PodUid) -> bool {
        let alive = |other: &PodUid| {
            self.workers.get(other).is_some_and(|w| w.stage() < WorkerStage::Terminated)
        };
        self.line.blocked(uid).is_some_and(|blocked| blocked.others.iter().any(alive))
    }
}

impl Worker {
    /// The pod's share of the node, while it holds one. It is free before the pod's end can be read
    /// in its status, because a scheduler that reads the end may bind another pod at once.
    // k8s: pkg/kubelet/kubelet_pods.go filterOutInactivePods
    pub fn admitted(&self) -> Option<Admitted<'_>> {
        #[cfg(test)]
        super::visits::count();
        let (pod, requests) = (self.pod.as_ref()?, self.resizing.requests.as_ref()?);
        let of_source = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let over = status::is_terminal(of_source)
            || status::is_terminal(self.shown.status.phase.as_deref());
        let holds = match self.stage {
            WorkerStage::Waiting | WorkerStage::Syncing => !over,
            // A pod that was over before this agent started was reported as over only when all of
            // it had stopped. The first read shows whether that holds.
            // k8s: pkg/kubelet/pod_workers.go UpdatePod isPodStatusCacheTerminal
            WorkerStage::Terminating if self.reads.observed_stamp == 0 => {
                !status::is_terminal(of_source)
            }
            WorkerStage::Terminating => {
                self.needs_kill() || !status::is_terminal(self.shown.status.phase.as_deref())
            }
            WorkerStage::Terminated | WorkerStage::Finished => false,
        };
        holds.then_some(Admitted { uid: &self.uid, pod, requests })
    }
}
