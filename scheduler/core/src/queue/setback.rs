//! Setbacks: after an attempt that exceeded its budget or panicked a pod waits for the time alone.
//!
//! Input: the number of such attempts in a row. Output: the time until which the pod is not
//! retried, whatever events arrive. Owner: the queue. Bounds: `WAIT_MAX` for one wait; a pod is
//! always retried in the end. The usual backoff does not do: events end it early, and ten seconds
//! of rest are too short after an attempt that took one second.

use std::collections::HashMap;
use std::time::Duration;

use super::backoff::aligned;
use super::{Queue, QueueCandidate, QueuePlace, Uid, WaitingPod, cause};

/// The first wait; each further one is twice as long.
const WAIT_FIRST: Duration = Duration::from_secs(5);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The wait of a pod after aborted attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setback {
    /// Aborted attempts in a row.
    count: u32,
    /// When the wait ends, in whole seconds since the process began.
    until: Option<Duration>,
}

impl Setback {
    /// Returns the state after one more aborted attempt, which ended `now`.
    #[must_use]
    pub fn after_another(self, now: Duration) -> Self {
        let count = self.count.saturating_add(1);
        let factor = 1_u32.checked_shl(count - 1).unwrap_or(u32::MAX);
        let wait = WAIT_FIRST.saturating_mul(factor).min(WAIT_MAX);
        Self { count, until: Some(aligned(now.saturating_add(wait))) }
    }

    /// Returns when the wait ends.
    pub(super) fn until(self) -> Option<Duration> {
        self.until
    }

    /// Returns true if the pod must not be retried yet.
    pub(super) fn holds(self, now: Duration) -> bool {
        self.until.is_some_and(|until| until >= aligned(now))
    }
}

impl<P: QueueCandidate, E: Clone> Queue<P, E> {
    /// Sets a pod in flight aside after an aborted attempt. Neither an event nor another pod of its
    /// group gets it retried before the wait is over.
    pub fn set_back(&mut self, uid: &str, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        if !matches!(waiting.place, QueuePlace::InFlight | QueuePlace::Binding) {
            return;
        }
        let (uid, is_gone) = (uid.clone(), waiting.is_gone);
        self.cause = cause::FAILED;
        if is_gone {
            return self.leave(&uid);
        }
        self.take_out(&uid);
        self.change(&uid, |waiting| {
            waiting.setback = waiting.setback.after_another(now);
            waiting.errors += 1;
            (waiting.rejectors, waiting.pending) = Default::default();
            (waiting.since, waiting.flushed) = (now, false);
        });
        self.enter(&uid, QueuePlace::ErrorBackoff, now);
        self.forget_seen();
    }

    /// Returns the setback of a pod in the queue.
    pub fn setback(&self, uid: &str) -> Setback {
        self.pods.get(uid).map_or_else(Setback::default, |waiting| waiting.setback)
    }

    /// Returns pods that must not be retried yet.
    pub fn setbacks(&self) -> HashMap<Uid, Setback> {
        let is_held = |(_, waiting): &(&Uid, &WaitingPod<P>)| waiting.setback.until.is_some();
        let held = self.pods.iter().filter(is_held);
        held.map(|(uid, waiting)| (uid.clone(), waiting.setback)).collect()
    }

    /// Takes over the debts of namespaces and the setbacks of pods from a previous queue.
    pub fn inherit(&mut self, setbacks: HashMap<Uid, Setback>, before: &mut Self, now: Duration) {
        self.inherited = setbacks.into_iter().filter(|(_, setback)| setback.holds(now)).collect();
        self.tenants = before.tenants.without_pods();
    }
}

#[cfg(test)]
mod tests {
    use pintle_sched_core::Plugin;

    use super::*;
    use crate::queue::Rejectors;
    use crate::queue::tests::{Fake, pod};
    use crate::queue::{Backoff, Settings};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn waits_double_up_to_five_minutes() {
        let mut setback = Setback::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            setback = setback.after_another(at(100));
            waits.push(setback.until().expect("it waits").as_secs() - 100);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    fn queue_after_setback(settings: Settings) -> Queue<crate::queue::tests::TestPod, Vec<Plugin>> {
        let mut queue = Queue::new(settings);
        queue.add("a", pod(0, false), at(1));
        assert!(queue.pop(at(1)).is_some());
        queue.set_back("a", at(1));
        queue
    }

    #[test]
    fn event_release_update_and_empty_queue_do_not_shorten_the_wait() {
        let no_backoff = Backoff { max: Duration::ZERO, ..Backoff::default() };
        for backoff in [Backoff::default(), no_backoff] {
            let mut queue = queue_after_setback(Settings { backoff, ..Settings::default() });
            for seconds in 1..=6 {
                let now = at(seconds);
                queue.move_all_to_active_or_backoff(&Fake, &vec![Plugin::NodeResourcesFit], now);
                queue.release("a", true, now);
                queue.update(&Fake, "a", pod(0, false), vec![Plugin::NodeResourcesFit], now);
                queue.activate_after_backoff("a", now);
                queue.flush(now);
                assert!(queue.pop(now).is_none(), "at {seconds} s with {backoff:?}");
                assert!(queue.pop_this("a", now).is_none(), "at {seconds} s");
            }
            assert_eq!(queue.next_flush(), Some(at(7)));
            queue.flush(at(7));
            assert!(queue.pop(at(7)).is_some(), "it is tried again by itself");
        }
    }

    #[test]
    fn gate_that_opens_does_not_shorten_the_wait() {
        let mut queue = queue_after_setback(Settings::default());
        queue.update(&Fake, "a", pod(0, true), vec![Plugin::SchedulingGates], at(2));
        queue.update(&Fake, "a", pod(0, false), vec![Plugin::SchedulingGates], at(3));
        assert!(queue.pop(at(3)).is_none());
        queue.flush(at(7));
        assert!(queue.pop(at(7)).is_some());
    }

    #[test]
    fn usual_refusal_ends_the_row_of_setbacks() {
        let mut queue = queue_after_setback(Settings::default());
        queue.flush(at(7));
        assert!(queue.pop(at(7)).is_some());
        queue.set_back("a", at(7));
        assert_eq!(queue.setback("a").until(), Some(at(17)), "the second in a row");
        queue.flush(at(18));
        assert!(queue.pop(at(18)).is_some());
        let by: Rejectors = [Plugin::NodeResourcesFit].into();
        queue.add_unschedulable(&Fake, "a", by, Rejectors::new(), at(18));
        assert_eq!(queue.setback("a"), Setback::default());
    }

    #[test]
    fn setback_is_inherited_by_the_next_queue() {
        let mut before = queue_after_setback(Settings::default());
        let mut after: Queue<_, Vec<Plugin>> = Queue::new(Settings::default());
        after.inherit(before.setbacks(), &mut before, at(2));
        after.add("a", pod(0, false), at(2));
        after.add("b", pod(0, false), at(2));
        let popped = after.pop(at(2)).map(|(uid, _)| uid);
        assert_eq!(popped.as_deref(), Some("b"));
        assert!(after.pop(at(3)).is_none());
        after.flush(at(7));
        assert!(after.pop(at(7)).is_some());
    }
}
