//! Decides pods without extenders while an extender is called for another pod.
//!
//! ```text
//!   active ── it needs an extender ──> behind ── its turn, no call under way ──> active
//!      └── it needs none ── pop_without_extenders ──> in flight
//! ```
//! Input: an extender that has not answered for a while. Output: the first active pod that needs no
//! extender. Owner: the queue; pure, no clock. Bounds: a pod is held back at most once between two
//! answers, so that the cost of a pop does not grow with the pods that wait for the extender.
//! Reason: without it a hanging extender would block every pod of the cluster until its
//! `httpTimeout`, again for each pod that it is called for.

use std::rc::Rc;
use std::time::Duration;

use super::{Queue, QueueCandidate, QueuePlace, Uid};

impl<P: QueueCandidate, E: Clone> Queue<P, E> {
    /// Pops the next active pod that needs no extender.
    pub fn pop_without_extenders(&mut self, now: Duration) -> Option<(Uid, Rc<P>)> {
        loop {
            let uid = self.next_active(now)?;
            let pod = &self.pods[&uid].pod;
            if pod.is_held() {
                self.take_out(&uid);
                self.put(&uid, QueuePlace::Gated);
            } else if pod.consults() {
                self.hold_back(&uid);
            } else {
                let pod = self.begins_flight(&uid, now);
                return Some((uid, pod));
            }
        }
    }

    /// Moves an active pod to `behind`.
    fn hold_back(&mut self, uid: &Uid) {
        let waiting = &self.pods[uid];
        let entry = (Self::turn(waiting), uid.clone());
        let was_active =
            self.active.remove(&entry) || self.tenants.take(waiting.pod.namespace(), &entry);
        assert!(was_active, "the next active pod is active");
        self.behind.insert(entry);
    }

    /// Moves pods that were held back to the active ones, as far as it is their turn.
    pub(super) fn bring_back(&mut self, now: Duration) {
        while let Some(head) = self.behind.first() {
            if self.active.first().is_some_and(|active| active < head) {
                return;
            }
            let Some(entry) = self.behind.pop_first() else { return };
            let namespace = self.pods[&entry.1].pod.namespace();
            match self.tenants.defers(namespace, now) {
                true => self.tenants.put(namespace, entry),
                false => {
                    self.active.insert(entry);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Settings;
    use crate::queue::tests::{Helps, TestPod, pod};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn popped(found: Option<(Uid, Rc<TestPod>)>) -> Option<String> {
        found.map(|(uid, _)| uid.to_string())
    }

    fn queue() -> Queue<TestPod, Helps> {
        let mut queue = Queue::new(Settings::default());
        // Pods of an odd priority need an extender.
        for (seconds, (uid, priority)) in (0..).zip([("a", 9), ("b", 6), ("c", 5), ("d", 0)]) {
            queue.add(uid, pod(priority, false), at(seconds));
        }
        queue
    }

    #[test]
    fn pods_that_need_no_extender_are_popped_in_their_order() {
        let mut queue = queue();
        assert_eq!(popped(queue.pop(at(9))).as_deref(), Some("a"));
        for want in [Some("b"), Some("d"), None] {
            assert_eq!(popped(queue.pop_without_extenders(at(9))).as_deref(), want);
        }
        assert_eq!(queue.count(QueuePlace::Active), 1, "the pod that is held back is active");
        assert_eq!(popped(queue.pop(at(9))).as_deref(), Some("c"));
        assert_eq!(popped(queue.pop(at(9))), None, "the others are in flight");
    }

    #[test]
    fn pod_that_was_held_back_keeps_its_turn() {
        let mut queue = queue();
        assert_eq!(popped(queue.pop_without_extenders(at(9))).as_deref(), Some("b"));
        for want in ["a", "c", "d"] {
            assert_eq!(popped(queue.pop(at(9))).as_deref(), Some(want));
        }
    }

    #[test]
    fn pod_deleted_while_held_back_is_not_popped() {
        let mut queue = queue();
        assert_eq!(popped(queue.pop_without_extenders(at(9))).as_deref(), Some("b"));
        queue.remove("a");
        assert_eq!(popped(queue.pop(at(9))).as_deref(), Some("c"));
    }
}
