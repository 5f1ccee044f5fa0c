//! The desk at the door: who is let in, and who has to go for it.
//!
//! Pure, part of `Pods`. A pod that is new is held against the node and the pods that were
//! admitted before it; a refused one gets its terminal status and never starts. A critical pod
//! may cost others their place: it waits at the door until they have ended. Nothing is asked of a
//! pod that is over or about to end, and of one that was admitted before the agent restarted.
// k8s: pkg/kubelet/kubelet.go HandlePodAdditions, rejectPod

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::admit::{self, Admitted, Candidate, Grant, Refusal};
use crate::status::{self, Verdict};
use crate::worker::pods::Pods;
use crate::worker::resizes::Arrival;
use crate::worker::step::{Stage, Worker};
use crate::worker::{Command, Count};
use pintle_api_types::ids::{Now, PodUid};
use pintle_api_types::pod;
use pintle_api_types::pod::resources::Amounts;

impl Pods {
    /// A pod that has no worker yet.
    pub(super) fn arrive(&mut self, uid: PodUid, pod: Arc<Pod>, now: Now) {
        let arrival = Arrival::of(pod, self.records.remove(&uid));
        let asked = !arrival.admitted_before && !is_ending(&arrival.pod);
        let outcome = match asked {
            true => self.admit(&uid, &arrival.pod, &arrival.requests),
            false => Ok(Grant::default()),
        };
        match outcome {
            Ok(grant) => {
                if !grant.victims.is_empty() {
                    self.blocked.insert(uid.clone(), grant.victims.clone());
                }
                let waits = arrival.wanted.is_some();
                self.create(uid.clone(), Some(Arc::clone(&arrival.pod)));
                self.notes.unsaved = true;
                self.with(&uid, now, |w, _| w.let_in(arrival));
                self.preempt(&grant, now);
                if waits {
                    self.put_off(uid);
                    self.retry_resizes("pods_added", now);
                }
            }
            Err(refusal) => {
                self.create(uid.clone(), Some(Arc::clone(&arrival.pod)));
                self.refused(&uid, &refusal);
                self.with(&uid, now, |w, _| {
                    w.desire(arrival.pod);
                    w.kill(refusal.verdict(), None);
                });
            }
        }
    }

    /// Holds a pod against the node and everybody else who is in.
    pub fn admit(&self, uid: &PodUid, pod: &Pod, requests: &Amounts) -> Result<Grant, Refusal> {
        let others: Vec<_> =
            self.workers().filter(|w| w.uid() != uid).filter_map(Worker::admitted).collect();
        admit::admit(&self.settings.admission, &others, &Candidate { pod, requests })
    }

    fn refused(&mut self, uid: &PodUid, refusal: &Refusal) {
        self.out.push(Command::Event {
            uid: uid.clone(),
            warning: true,
            reason: refusal.reason.clone().into(),
            message: refusal.message.clone(),
            container: None,
        });
        self.out.push(Command::Count(Count::Refused(refusal.reason.clone())));
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
            self.out.push(Command::Count(Count::Preempted(grant.starved.clone())));
            let verdict = Verdict {
                phase: status::FAILED.to_owned(),
                reason: admit::PREEMPTING.to_owned(),
                message: admit::PREEMPTED.to_owned(),
            };
            self.with(victim, now, |w, _| w.evict(verdict, None, now.mono));
        }
    }

    /// True while a pod waits for others to make room for it.
    pub(super) fn is_blocked(&self, uid: &PodUid) -> bool {
        let alive = |victim: &PodUid| {
            self.workers.get(victim).is_some_and(|w| w.stage() < Stage::Terminated)
        };
        self.blocked.get(uid).is_some_and(|victims| victims.iter().any(alive))
    }
}

/// Nothing is asked of a pod that will not run: it has ended, or it is being deleted.
fn is_ending(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    status::is_terminal(phase) || pod::is_deleted(pod)
}

impl Worker {
    /// The pod's share of the node, while it holds one. It is free by the time that the pod's end
    /// can be read in its status: whoever reads that may send another pod at once.
    // k8s: pkg/kubelet/kubelet_pods.go filterOutInactivePods
    pub fn admitted(&self) -> Option<Admitted<'_>> {
        let (pod, requests) = (self.pod.as_deref()?, self.requests.as_ref()?);
        let of_source = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let over =
            status::is_terminal(of_source) || status::is_terminal(self.status.phase.as_deref());
        let holds = match self.stage {
            Stage::Waiting | Stage::Syncing => !over,
            Stage::Terminating => {
                let stopped = self.observed_stamp > 0 && !self.needs_kill();
                !(stopped && status::is_terminal(self.status.phase.as_deref()))
            }
            Stage::Terminated | Stage::Finished => false,
        };
        holds.then_some(Admitted { uid: &self.uid, pod, requests })
    }
}
