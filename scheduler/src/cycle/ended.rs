//! How a binding ended.
// k8s: pkg/scheduler/schedule_one.go handleBindingCycleError, finishBinding

use std::collections::BTreeSet;
use std::time::Duration;

use super::Scheduler;
use super::command::{Ended, Fact, PodRef};

impl Scheduler {
    /// Takes how a binding ended.
    pub fn ended(&mut self, pod: &PodRef, node: &str, ended: Ended, now: Duration) {
        match ended {
            Ended::Bound => {
                let waiting = self.queue.get(&pod.uid);
                let version = waiting.and_then(|w| super::decide::version(&w.pod));
                self.facts.extend(waiting.map(|w| Fact::Bound {
                    took: now.saturating_sub(w.last_attempt),
                    all: now.saturating_sub(w.first_attempt.unwrap_or(now)),
                    attempts: w.attempts,
                    was_flushed: w.flushed,
                }));
                self.queue.done(&pod.uid);
                let (namespace, name) = (pod.key.namespace(), pod.key.name());
                let note = format!("Successfully assigned {namespace}/{name} to {node}");
                self.note(pod.clone(), version, false, ("Scheduled", "Binding"), note);
            }
            Ended::Failed(error) => self.failed(pod, error, now),
        }
    }

    fn failed(&mut self, pod: &PodRef, error: String, now: Duration) {
        let Some(asked) = self.forget(&pod.uid, now) else {
            // It is bound after all, or gone.
            return self.queue.done(&pod.uid);
        };
        let latest = self.queue.get(&pod.uid).map(|waiting| std::rc::Rc::clone(&waiting.pod));
        let hints = super::Happens(&self.mirror.cluster);
        self.queue.back(&hints, &pod.uid, BTreeSet::new(), BTreeSet::new(), now);
        if self.queue.get(&pod.uid).is_none() {
            return;
        }
        let asked = latest.unwrap_or(asked);
        self.facts.push(Fact::Refused { is_error: true });
        let message = format!("running Bind plugin \"DefaultBinder\": {error}");
        self.say(&pod.uid, &asked, "SchedulerError", message, Some(String::new()));
    }
}
