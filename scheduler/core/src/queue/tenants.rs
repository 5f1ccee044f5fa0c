//! Shares of the deciding thread: pods of a namespace with long attempts wait behind all others.
//!
//! ```text
//!   active ── head of a namespace in debt ──> deferred (by namespace)
//!      └──────── pop: the first pod of a namespace within its share, else any ────────┘
//! ```
//! Input: the duration of each attempt of a namespace. Output: the active pod that is decided next.
//! Owner: the queue; pure, no clock. Bounds: a debt is at most `DEBT_MAX` and is dropped when it is
//! paid; an attempt below `CHEAP` is free, so that a namespace with many plain pods never owes.
//! Work-conserving: when only pods of namespaces in debt wait, they are decided as if there were no
//! shares. Pods are moved one by one when they are popped, so that without debts a pop costs the
//! same.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use super::{Queue, QueueCandidate, Turn, Uid};

/// Attempts up to this duration are free: a plain decision takes a thousandth of it.
const CHEAP: Duration = Duration::from_millis(20);
/// Time that a namespace may spend at once.
const BURST: Duration = Duration::from_millis(500);
/// A deferred namespace returns at this debt, and not at `BURST`: each attempt would defer it
/// again.
const PAID: Duration = Duration::from_millis(250);
/// A namespace's share of the time is one part in this many.
const SHARE: u32 = 10;
/// The largest debt; it is paid within five minutes.
const DEBT_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Debt {
    /// Time spent and not paid back, as of `at`.
    owes: Duration,
    at: Duration,
    is_deferred: bool,
}

impl Debt {
    fn left(&self, now: Duration) -> Duration {
        self.owes.saturating_sub(now.saturating_sub(self.at) / SHARE)
    }
}

/// Debts of namespaces, and the active pods of deferred namespaces.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    debts: HashMap<Rc<str>, Debt>,
    deferred: BTreeMap<Rc<str>, BTreeSet<(Turn, Uid)>>,
}

impl Tenants {
    fn charge(&mut self, namespace: &str, took: Duration, now: Duration) {
        if took < CHEAP || namespace.is_empty() {
            return;
        }
        self.debts.retain(|_, debt| !debt.left(now).is_zero());
        let known = self.debts.get(namespace);
        let owes = known.map_or(Duration::ZERO, |debt| debt.left(now)).saturating_add(took);
        let was_deferred = known.is_some_and(|debt| debt.is_deferred);
        let debt =
            Debt { owes: owes.min(DEBT_MAX), at: now, is_deferred: was_deferred || owes > BURST };
        self.debts.insert(namespace.into(), debt);
    }

    /// Returns the debt of a deferred namespace.
    fn owes(&self, namespace: &str, now: Duration) -> Option<Duration> {
        let debt = self.debts.get(namespace).filter(|debt| debt.is_deferred)?;
        Some(debt.left(now)).filter(|left| *left > PAID)
    }

    /// Returns true if pods of the namespace wait behind other pods. Drops a debt that is paid.
    pub(super) fn defers(&mut self, namespace: &str, now: Duration) -> bool {
        if self.debts.is_empty() {
            return false;
        }
        let is_deferred = self.owes(namespace, now).is_some();
        if let Some(debt) = self.debts.get_mut(namespace) {
            debt.is_deferred = is_deferred;
        }
        is_deferred
    }

    fn count(&self, now: Duration) -> usize {
        self.debts.keys().filter(|namespace| self.owes(namespace, now).is_some()).count()
    }

    pub(super) fn put(&mut self, namespace: &str, pod: (Turn, Uid)) {
        match self.deferred.get_mut(namespace) {
            Some(pods) => _ = pods.insert(pod),
            None => _ = self.deferred.insert(namespace.into(), BTreeSet::from([pod])),
        }
    }

    /// Removes a deferred pod; returns false if it was not deferred.
    pub(super) fn take(&mut self, namespace: &str, pod: &(Turn, Uid)) -> bool {
        let Some(pods) = self.deferred.get_mut(namespace) else { return false };
        let was_here = pods.remove(pod);
        if pods.is_empty() {
            self.deferred.remove(namespace);
        }
        was_here
    }

    /// Returns the first deferred pod of namespaces without a debt, and the first of all deferred
    /// pods.
    fn first(&mut self, now: Duration) -> [Option<(Turn, Uid)>; 2] {
        if self.deferred.is_empty() {
            return [None, None];
        }
        let deferred = std::mem::take(&mut self.deferred);
        let heads: Vec<(bool, &(Turn, Uid))> = deferred
            .iter()
            .filter_map(|(namespace, pods)| Some((self.defers(namespace, now), pods.first()?)))
            .collect();
        let paid = heads.iter().filter(|(defers, _)| !defers).map(|(_, pod)| *pod).min().cloned();
        let any = heads.iter().map(|(_, pod)| *pod).min().cloned();
        self.deferred = deferred;
        [paid, any]
    }

    /// Returns the debts alone.
    pub(super) fn without_pods(&mut self) -> Self {
        Self { debts: std::mem::take(&mut self.debts), deferred: BTreeMap::new() }
    }

    #[cfg(test)]
    pub(super) fn deferred(&self) -> impl Iterator<Item = &(Turn, Uid)> {
        self.deferred.values().flatten()
    }
}

impl<P: QueueCandidate, E: Clone> Queue<P, E> {
    /// Charges a namespace for an attempt.
    pub fn charge(&mut self, namespace: &str, took: Duration, now: Duration) {
        self.tenants.charge(namespace, took, now);
    }

    /// Returns the time that a namespace spent beyond its share, if its pods are deferred.
    pub fn over_share(&self, namespace: &str, now: Duration) -> Option<Duration> {
        self.tenants.owes(namespace, now)
    }

    /// Returns how many namespaces have spent more than their share.
    pub fn namespaces_over_share(&self, now: Duration) -> usize {
        self.tenants.count(now)
    }

    /// Returns the active pod that is decided next.
    pub(super) fn next_active(&mut self, now: Duration) -> Option<Uid> {
        while let Some((turn, uid)) = self.active.first() {
            let namespace = self.pods[uid].pod.namespace();
            if !self.tenants.defers(namespace, now) {
                break;
            }
            let pod = (*turn, uid.clone());
            self.tenants.put(namespace, pod.clone());
            self.active.remove(&pod);
        }
        let [paid, any] = self.tenants.first(now);
        let within = self.active.first().into_iter().chain(paid.as_ref()).min();
        within.or(any.as_ref()).map(|(_, uid)| uid.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::Settings;
    use crate::queue::tests::{Helps, TestPod, pod_of};

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn namespace_owes_time_beyond_its_burst_until_the_debt_is_repaid() {
        let mut tenants = Tenants::default();
        let mut owes = |took: u64, now: u64| {
            tenants.charge("a", ms(took), ms(now));
            tenants.owes("a", ms(now)).map(|owes| owes.as_millis())
        };
        for (took, now, left) in [
            (19, 0, None),
            (300, 0, None),
            (200, 0, None),
            (1, 0, None),
            (100, 0, Some(600)),
            (0, 1_000, Some(500)),
            (0, 3_400, Some(260)),
            (0, 3_500, None),
            (30, 6_000, None),
            (60_000, 6_000, Some(30_000)),
        ] {
            assert_eq!(owes(took, now), left, "{took} ms at {now} ms");
        }
    }

    #[test]
    fn debt_that_is_paid_is_forgotten() {
        let mut tenants = Tenants::default();
        for at in 0..1_000 {
            tenants.charge(&format!("n{at}"), ms(20), ms(at * 20));
            assert!(tenants.debts.len() <= 11, "{}", tenants.debts.len());
        }
    }

    fn popped(queue: &mut Queue<TestPod, Helps>, now: u64) -> Option<String> {
        queue.pop(ms(now)).map(|(uid, _)| uid.to_string())
    }

    #[test]
    fn pod_within_its_share_is_popped_before_all_pods_in_debt() {
        let mut queue: Queue<TestPod, Helps> = Queue::new(Settings::default());
        (0..9).for_each(|at| queue.add(&format!("bad{at}"), pod_of("bad", 9), ms(0)));
        assert_eq!(popped(&mut queue, 0).as_deref(), Some("bad0"));
        queue.charge("bad", ms(1_000), ms(1_000));
        queue.add("good", pod_of("good", 0), ms(1_000));
        assert_eq!(queue.over_share("bad", ms(1_000)), Some(ms(1_000)));
        assert_eq!(popped(&mut queue, 1_000).as_deref(), Some("good"));
        assert_eq!(popped(&mut queue, 1_000).as_deref(), Some("bad1"), "nothing else waits");
        queue.add("late", pod_of("bad", 8), ms(8_000));
        queue.add("good2", pod_of("good", 0), ms(8_000));
        assert_eq!(popped(&mut queue, 8_000).as_deref(), Some("good2"));
        // The debt is paid: all pods are in their order again.
        queue.add("good3", pod_of("good", 0), ms(9_000));
        assert_eq!(popped(&mut queue, 9_000).as_deref(), Some("bad2"));
    }

    proptest! {
        #[test]
        fn pods_in_debt_are_popped_last_and_other_pods_in_the_usual_order(
            pods in proptest::collection::vec((0..4_usize, -2..3_i32), 1..40),
            charges in proptest::collection::vec((0..4_usize, 0..2_000_u64), 0..6),
        ) {
            let names = ["", "a", "b", "c"];
            let mut queue: Queue<TestPod, Helps> = Queue::new(Settings::default());
            let mut plain: Queue<TestPod, Helps> = Queue::new(Settings::default());
            for (at, (of, priority)) in pods.iter().enumerate() {
                for queue in [&mut queue, &mut plain] {
                    queue.add(&at.to_string(), pod_of(names[*of], *priority), ms(0));
                }
            }
            for (of, took) in charges {
                queue.charge(names[of], ms(took), ms(0));
            }
            let in_debt = |queue: &Queue<TestPod, Helps>, uid: &str| {
                let number: usize = uid.parse().expect("a number");
                queue.over_share(names[pods[number].0], ms(0)).is_some()
            };
            let usual: Vec<String> = std::iter::from_fn(|| popped(&mut plain, 0)).collect();
            let (last, first): (Vec<_>, Vec<_>) =
                usual.into_iter().partition(|uid| in_debt(&queue, uid));
            let wanted: Vec<String> = first.into_iter().chain(last).collect();
            let found: Vec<String> = std::iter::from_fn(|| popped(&mut queue, 0)).collect();
            prop_assert_eq!(found, wanted);
            prop_assert!(queue.tenants.deferred.is_empty());
        }
    }
}
