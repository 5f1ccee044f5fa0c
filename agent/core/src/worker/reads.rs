//! Which reads of pods are made: one at a time for each pod, and at most one behind it.
//!
//! Pure, the same for the driver and the simulator. Input: the core requests a read (`asked`), its
//! delay is over (`due`), a read has ended (`ended`), a pod is gone (`forget`). Output: the stamp
//! of the read to begin now, if any. A read answers every request made before it began, so requests
//! that arrive while one is under way share the next one. Nothing is awaited between the end of a
//! read and the decision about the next one: a request that arrives while an answer is on its way
//! to the worker is never lost. Bounds: an entry per requested pod that is not gone.

use std::collections::HashMap;

use pintle_api_types::ids::PodUid;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    /// The read under way.
    running: Option<u64>,
    /// The stamp that the read after it has to reach.
    next: Option<u64>,
    /// The newest read that has ended.
    done: u64,
}

/// The reads under way and those that follow them.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    slots: HashMap<PodUid, Slot>,
}

impl Reads {
    /// The core wants a read of this pod, now or later; `due` follows.
    pub fn asked(&mut self, uid: &PodUid) {
        self.slots.entry(uid.clone()).or_default();
    }

    /// The read of this stamp is due. True when it must be made now; otherwise a read already made,
    /// or the one after the read under way, answers the request, or the pod is gone.
    #[must_use]
    pub fn due(&mut self, uid: &PodUid, stamp: u64) -> bool {
        let Some(slot) = self.slots.get_mut(uid) else { return false };
        if slot.done >= stamp {
            return false;
        }
        match slot.running {
            // Began after the question: stamps are given in the order of the questions.
            Some(running) if running >= stamp => false,
            Some(_) => {
                slot.next = slot.next.max(Some(stamp));
                false
            }
            None => {
                slot.running = Some(stamp);
                true
            }
        }
    }

    /// The read of this stamp has ended, with any result. Returns the stamp of the next read, which
    /// is under way from now on.
    #[must_use]
    pub fn ended(&mut self, uid: &PodUid, stamp: u64) -> Option<u64> {
        // A pod that was forgotten meanwhile has no place any more.
        let slot = self.slots.get_mut(uid).filter(|slot| slot.running == Some(stamp))?;
        slot.done = slot.done.max(stamp);
        slot.running = slot.next.take();
        slot.running
    }

    /// The read under way ends without an answer, and none follows it: the caller is notified of
    /// the failure and asks again.
    pub fn given_up(&mut self, uid: &PodUid) {
        if let Some(slot) = self.slots.get_mut(uid) {
            (slot.running, slot.next) = (None, None);
        }
    }

    /// Nothing is left of the pod. The end of a read that is still under way is ignored.
    pub fn forget(&mut self, uid: &PodUid) {
        self.slots.remove(uid);
    }

    /// Pods with an entry here.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True when no pod has an entry here.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid() -> PodUid {
        PodUid::from("u")
    }

    fn asked() -> Reads {
        let mut reads = Reads::default();
        reads.asked(&uid());
        reads
    }

    #[test]
    fn requests_during_a_read_share_the_next_read() {
        let mut reads = asked();
        assert!(reads.due(&uid(), 1));
        assert!(!reads.due(&uid(), 2));
        assert!(!reads.due(&uid(), 3));
        assert_eq!(reads.ended(&uid(), 1), Some(3));
        assert_eq!(reads.ended(&uid(), 3), None);
        assert!(!reads.due(&uid(), 2), "a delayed question that read 3 has answered");
        assert!(reads.due(&uid(), 4));
    }

    /// The answer is on its way to a worker with a full queue: a new request must cause a read,
    /// although the answer has not been taken yet.
    #[test]
    fn request_between_the_end_of_a_read_and_its_delivery_causes_a_new_read() {
        let mut reads = asked();
        assert!(reads.due(&uid(), 1));
        assert_eq!(reads.ended(&uid(), 1), None);
        assert!(reads.due(&uid(), 2));
    }

    #[test]
    fn a_read_that_outlives_its_pod_leaves_no_trace() {
        let mut reads = asked();
        assert!(reads.due(&uid(), 1));
        reads.forget(&uid());
        assert_eq!(reads.ended(&uid(), 1), None);
        assert!(reads.is_empty());
        assert!(!reads.due(&uid(), 2), "a delayed read of a pod that is gone");
        assert!(reads.is_empty());
        // The pod is restarted while the old read is still under way.
        reads.asked(&uid());
        assert!(reads.due(&uid(), 2));
        assert_eq!(reads.ended(&uid(), 1), None);
        assert!(!reads.due(&uid(), 3), "read 2 is still under way");
        assert_eq!(reads.ended(&uid(), 2), Some(3));
    }

    #[test]
    fn after_a_read_that_was_given_up_the_next_question_is_read() {
        let mut reads = asked();
        assert!(reads.due(&uid(), 1));
        assert!(!reads.due(&uid(), 2));
        reads.given_up(&uid());
        assert!(reads.due(&uid(), 3));
    }

    proptest! {
        /// Whatever the order: never two reads of a pod at once, and in the end every question was
        /// answered by a read that began after it.
        #[test]
        fn every_question_is_answered_by_a_later_read(steps in prop::collection::vec(0..3u8, 1..200)) {
            let mut reads = asked();
            let (mut asked, mut delayed) = (0, Vec::new());
            // The stamp of the read under way, and the newest question when it began.
            let mut running: Option<(u64, u64)> = None;
            let mut answered = 0;
            for step in steps.iter().copied().chain(std::iter::repeat_n(2, 400)) {
                match step {
                    0 => {
                        asked += 1;
                        if reads.due(&uid(), asked) {
                            prop_assert!(running.is_none());
                            running = Some((asked, asked));
                        }
                    }
                    // A request with a read that begins later.
                    1 => {
                        asked += 1;
                        delayed.push(asked);
                    }
                    _ => {
                        if let Some((stamp, newest)) = running.take() {
                            answered = answered.max(newest);
                            running = reads.ended(&uid(), stamp).map(|next| (next, asked));
                        } else if let Some(stamp) = delayed.pop()
                            && reads.due(&uid(), stamp)
                        {
                            running = Some((stamp, asked));
                        }
                    }
                }
            }
            prop_assert!(running.is_none() && delayed.is_empty());
            prop_assert_eq!(answered, asked);
        }
    }
}
