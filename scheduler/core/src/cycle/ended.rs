//! Results of bindings and preemptions.
// k8s: pkg/scheduler/schedule_one.go handleBindingCycleError, finishBinding

use std::rc::Rc;
use std::time::Duration;

use super::Scheduler;
use super::command::{BindingResult, Evicted, Fact};
use super::decide::PodRejection;
use crate::pod_fields::PodRef;

impl Scheduler {
    /// Handles the result of a binding.
    pub fn ended(&mut self, pod: &PodRef, node: &str, ended: BindingResult, now: Duration) {
        self.netted(now, |scheduler| scheduler.take_end(pod, node, ended, now));
    }

    fn take_end(&mut self, pod: &PodRef, node: &str, ended: BindingResult, now: Duration) {
        match ended {
            BindingResult::Bound => {
                // A pod that is being bound stays in the queue until now.
                let Some(waiting) = self.queue.get(&pod.uid) else { return };
                let queued = Rc::clone(&waiting.pod);
                self.facts.push(Fact::Bound {
                    profile: queued.profile,
                    took: now.saturating_sub(waiting.last_attempt),
                    all: now.saturating_sub(waiting.first_attempt.unwrap_or(now)),
                    attempts: waiting.attempts,
                    was_flushed: waiting.flushed,
                });
                self.queue.done(&pod.uid);
                self.devices.forget_bound(&pod.uid);
                self.plugins.post_bind(&pod.uid, node);
                let (namespace, name) = (pod.key.namespace(), pod.key.name());
                let note = format!("Successfully assigned {namespace}/{name} to {node}");
                self.note(&queued, false, "Scheduled", "Binding", note);
            }
            BindingResult::Failed(error) => {
                self.failed(pod, error, now);
            }
        }
    }

    /// Handles the result of a preemption: the pod, or the group's pods, may be decided again. If a
    /// victim was not deleted they are retried at once, because its deletion would emit no event.
    // k8s: pkg/scheduler/framework/preemption/executor.go prepareCandidateAsync
    pub fn evicted(&mut self, evicted: &Evicted, now: Duration) {
        self.netted(now, |scheduler| scheduler.take_evicted(evicted, now));
    }

    fn take_evicted(&mut self, evicted: &Evicted, now: Duration) {
        let Evicted { pod: PodRef { key, uid }, .. } = evicted;
        let groups = self.cache.groups.as_ref();
        if let Some(pods) = groups.and_then(|groups| groups.end_preemption(key, uid)) {
            pods.iter().for_each(|pod| self.queue.release(pod, !evicted.all, now));
            return;
        }
        if let Some(waiting) = self.queue.get(uid) {
            waiting.pod.preempts.set(false);
            if !evicted.all {
                waiting.pod.victims.borrow_mut().clear();
            }
            self.queue.release(uid, !evicted.all, now);
        }
    }

    pub(super) fn failed(&mut self, pod: &PodRef, message: String, now: Duration) {
        let is_told = self.assumed.get(&pod.uid).is_some_and(|assumed| assumed.is_told);
        self.gives_up(pod, PodRejection::error(message), is_told, now);
    }
}
