//! Fair shares: a bounded number of the node's places, divided between pods.
//!
//! Pure. Input: waiting, started and ended attempts, by pod. Output: the attempt that may start
//! next, and the attempt that gives up its place. While there are places, every pod gets one,
//! however many it has. Once all are taken, a pod's share is an equal part of them: places rotate
//! between the pods that wait, those below their share first, and for each of these the pod that
//! holds the most gives up its oldest. So one pod can fill an idle node and cannot keep another one
//! waiting. Bounds: `max` places; waiting attempts are bounded by their owners, each of which waits
//! once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Between pods that hold equally much, only an attempt older than this makes room.
const OLD: Duration = Duration::from_secs(10);

/// Places, their holders and the waiting attempts.
#[derive(Debug)]
pub(super) struct Shares<K, T> {
    max: usize,
    pods: BTreeMap<K, HeldShare<T>>,
    /// Pods with a waiting attempt, in the order of their turns.
    turns: VecDeque<K>,
    taken: usize,
    /// Places that were revoked and have not come back yet.
    asked_back: usize,
}

#[derive(Debug)]
struct HeldShare<T> {
    waiting: VecDeque<T>,
    /// When each place was taken, and if it was revoked; numbers grow with time.
    places: BTreeMap<u64, (Duration, bool)>,
    asked_back: usize,
}

impl<T> HeldShare<T> {
    fn keeps(&self) -> usize {
        self.places.len() - self.asked_back
    }

    /// The oldest place that was not revoked yet.
    fn oldest(&self) -> Option<(u64, Duration)> {
        let mut kept = self.places.iter().filter(|(_, (_, asked_back))| !asked_back);
        kept.next().map(|(number, (since, _))| (*number, *since))
    }
}

impl<K: Ord + Clone, T> Shares<K, T> {
    /// That many places, all of them free.
    pub(super) fn new(max: usize) -> Self {
        let (pods, turns) = (BTreeMap::new(), VecDeque::new());
        Self { max, pods, turns, taken: 0, asked_back: 0 }
    }

    /// An attempt of this pod waits for a place.
    pub(super) fn wait(&mut self, pod: &K, what: T) {
        let held = self.held(pod);
        held.waiting.push_back(what);
        if held.waiting.len() == 1 {
            self.turns.push_back(pod.clone());
        }
    }

    /// Drops the waiting attempts of this pod but for these.
    pub(super) fn keep_waiting(&mut self, pod: &K, keep: impl Fn(&T) -> bool) {
        let Some(held) = self.pods.get_mut(pod) else { return };
        held.waiting.retain(keep);
        if held.waiting.is_empty() {
            self.turns.retain(|turn| turn != pod);
            self.drop_idle(pod);
        }
    }

    /// The next attempt that may start, if there is a place. Its owner calls `take`, unless it is
    /// over.
    pub(super) fn next(&mut self) -> Option<(K, T)> {
        if self.taken >= self.max {
            return None;
        }
        let share = self.share();
        let below = self.turns.iter().position(|pod| self.keeps(pod) < share);
        let pod = self.turns.remove(below.unwrap_or(0))?;
        let held = self.pods.get_mut(&pod)?;
        let what = held.waiting.pop_front()?;
        if held.waiting.is_empty() {
            self.drop_idle(&pod);
        } else {
            self.turns.push_back(pod.clone());
        }
        Some((pod, what))
    }

    /// A place is taken under this number, which is higher than any before.
    pub(super) fn take(&mut self, pod: &K, number: u64, now: Duration) {
        self.taken += 1;
        self.held(pod).places.insert(number, (now, false));
    }

    /// A place is free again.
    pub(super) fn give_back(&mut self, pod: &K, number: u64) {
        let Some(held) = self.pods.get_mut(pod) else { return };
        let Some((_, asked_back)) = held.places.remove(&number) else { return };
        self.taken -= 1;
        if asked_back {
            held.asked_back -= 1;
            self.asked_back -= 1;
        }
        self.drop_idle(pod);
    }

    /// The next place to revoke, for a pod that waits with less than its share; called until there
    /// is none. Each place is returned once.
    pub(super) fn ask_back(&mut self, now: Duration) -> Option<(K, u64)> {
        if self.taken < self.max {
            return None;
        }
        let share = self.share();
        let poor = self.turns.iter().map(|pod| self.keeps(pod)).filter(|keeps| *keeps < share);
        let (wanted, poorest) =
            poor.fold((0, usize::MAX), |(count, least), keeps| (count + 1, least.min(keeps)));
        if self.asked_back >= wanted {
            return None;
        }
        let holders = self.pods.iter().filter_map(|(pod, held)| {
            let (number, since) = held.oldest()?;
            Some((held.keeps(), Reverse(number), since, pod))
        });
        let (keeps, Reverse(number), since, pod) = holders.max()?;
        let is_rich = keeps > poorest + 1;
        let is_old = keeps == poorest + 1 && now.saturating_sub(since) >= OLD;
        if !is_rich && !is_old {
            return None;
        }
        let pod = pod.clone();
        let held = self.held(&pod);
        held.asked_back += 1;
        if let Some((_, asked_back)) = held.places.get_mut(&number) {
            *asked_back = true;
        }
        self.asked_back += 1;
        Some((pod, number))
    }

    /// An attempt waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Places that are taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// An equal part of all places, and no less than one.
    fn share(&self) -> usize {
        (self.max / self.pods.len().max(1)).max(1)
    }

    fn keeps(&self, pod: &K) -> usize {
        self.pods.get(pod).map_or(0, HeldShare::keeps)
    }

    fn held(&mut self, pod: &K) -> &mut HeldShare<T> {
        let empty =
            || HeldShare { waiting: VecDeque::new(), places: BTreeMap::new(), asked_back: 0 };
        self.pods.entry(pod.clone()).or_insert_with(empty)
    }

    fn drop_idle(&mut self, pod: &K) {
        let idle = |held: &HeldShare<T>| held.waiting.is_empty() && held.places.is_empty();
        if self.pods.get(pod).is_some_and(idle) {
            self.pods.remove(pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Places with an owner that follows every order.
    struct ShareWorld {
        shares: Shares<usize, usize>,
        number: u64,
        now: Duration,
        held: Vec<(usize, u64)>,
        gave_up: Vec<usize>,
    }

    impl ShareWorld {
        fn new(max: usize) -> Self {
            let (held, gave_up) = (Vec::new(), Vec::new());
            Self { shares: Shares::new(max), number: 0, now: SECOND, held, gave_up }
        }

        /// Starts the attempts that may start, and returns the revoked places.
        fn run(&mut self) -> Vec<usize> {
            let mut began = Vec::new();
            loop {
                while let Some((pod, _)) = self.shares.next() {
                    self.number += 1;
                    self.shares.take(&pod, self.number, self.now);
                    self.held.push((pod, self.number));
                    began.push(pod);
                }
                let Some((pod, number)) = self.shares.ask_back(self.now) else { return began };
                self.end(pod, number);
                self.gave_up.push(pod);
            }
        }

        fn wait(&mut self, pod: usize, times: usize) {
            (0..times).for_each(|n| self.shares.wait(&pod, n));
        }

        fn end(&mut self, pod: usize, number: u64) {
            self.held.retain(|held| *held != (pod, number));
            self.shares.give_back(&pod, number);
        }

        fn holds(&self, pod: usize) -> usize {
            self.held.iter().filter(|(of, _)| *of == pod).count()
        }
    }

    #[test]
    fn pod_may_exceed_its_share_and_no_attempt_yields_while_a_slot_is_free() {
        let mut world = ShareWorld::new(256);
        world.wait(1, 200);
        world.wait(2, 40);
        world.wait(3, 16);
        assert_eq!(world.run().len(), 256);
        assert_eq!((world.holds(1), world.gave_up.len()), (200, 0));
    }

    #[test]
    fn a_pod_that_holds_everything_gives_way_to_another_at_once() {
        let mut world = ShareWorld::new(256);
        world.wait(1, 272);
        assert_eq!(world.run().len(), 256);
        world.wait(2, 2);
        assert_eq!(world.run(), [2, 2], "and not what waited before it");
        assert_eq!(world.gave_up, [1, 1]);
    }

    #[test]
    fn of_many_pods_that_hold_everything_those_with_more_give_way_the_oldest_first() {
        let mut world = ShareWorld::new(256);
        (0..136).for_each(|pod| world.wait(pod, 2));
        assert_eq!(world.run().len(), 256);
        let oldest = world.held[0];
        assert!((0..120).all(|pod| world.holds(pod) > 0));
        world.wait(1000, 1);
        assert_eq!(world.run(), [1000]);
        assert_eq!(world.gave_up, [oldest.0]);
        assert!(!world.held.contains(&oldest));
    }

    #[test]
    fn among_equal_pods_only_an_old_attempt_yields_its_slot() {
        let mut world = ShareWorld::new(4);
        (0..4).for_each(|pod| world.wait(pod, 1));
        assert_eq!(world.run(), [0, 1, 2, 3]);
        world.wait(9, 1);
        assert_eq!(world.run(), [0; 0]);
        world.now += OLD;
        assert_eq!(world.run(), [9]);
        assert_eq!(world.gave_up, [0]);
    }

    #[test]
    fn waiting_attempts_get_slots_round_robin_across_pods() {
        let mut world = ShareWorld::new(2);
        world.wait(1, 2);
        assert_eq!(world.run(), [1, 1]);
        world.wait(1, 3);
        let ended: Vec<_> = world.held.clone();
        world.wait(2, 2);
        world.wait(3, 2);
        ended.into_iter().for_each(|(pod, number)| world.end(pod, number));
        assert_eq!(world.run(), [1, 2]);
        let mut order = Vec::new();
        while let Some((pod, number)) = world.held.first().copied() {
            world.end(pod, number);
            order.extend(world.run());
        }
        assert_eq!(order, [3, 1, 2, 3, 1]);
        assert_eq!((world.shares.taken(), world.shares.pods.len()), (0, 0));
        assert_eq!(world.gave_up, [0; 0]);
    }

    #[test]
    fn obsolete_attempts_leave_the_waiting_queue() {
        let mut world = ShareWorld::new(1);
        world.wait(1, 3);
        world.wait(2, 2);
        assert_eq!(world.run(), [1]);
        world.shares.keep_waiting(&1, |what| *what == 2);
        world.shares.keep_waiting(&2, |_| false);
        world.shares.keep_waiting(&3, |_| false);
        let (pod, number) = world.held[0];
        world.end(pod, number);
        assert_eq!(world.shares.next(), Some((1, 2)));
        assert!(!world.shares.is_waiting() && world.shares.pods.is_empty());
    }

    proptest! {
        #[test]
        fn slots_never_overflow_or_leak_and_no_pod_below_its_share_waits_for_richer_pods(
            max in 1_usize..8,
            steps in proptest::collection::vec((0_usize..4, 0_usize..6, 0_u64..3), 1..80),
        ) {
            let mut world = ShareWorld::new(max);
            let (mut waited, mut began, mut ended) = (0, 0, 0);
            for (what, pod, wait) in steps {
                world.now += SECOND * u32::try_from(wait).expect("small");
                if what == 0 && !world.held.is_empty() {
                    let (of, number) = world.held[pod % world.held.len()];
                    world.end(of, number);
                    ended += 1;
                } else {
                    world.wait(pod, what);
                    waited += what;
                }
                began += world.run().len();
                prop_assert!(world.held.len() <= max);
                prop_assert_eq!(world.held.len(), world.shares.taken());
                prop_assert_eq!(began, ended + world.gave_up.len() + world.held.len());
                let waiting: usize = world.shares.pods.values().map(|h| h.waiting.len()).sum();
                prop_assert_eq!(waiting, waited - began);
                prop_assert!(waiting == 0 || world.held.len() == max, "a place is left free");
                let share = world.shares.share();
                for poor in &world.shares.turns {
                    let keeps = world.holds(*poor);
                    let richer = (0..6).any(|pod| world.holds(pod) > keeps + 1);
                    prop_assert!(keeps >= share || !richer, "{} waits with {}", poor, keeps);
                }
            }
        }
    }
}
