//! Places of pods in the queue: one heap for each place, changed nowhere else.
//!
//! A pod is taken out of its heap before a field that determines its order changes, and is put into
//! the right heap afterwards.

use std::time::Duration;

use pintle_sched_core::Plugin;

use super::{Hints, Queue, QueueCandidate, QueuePlace, Turn, Uid, WaitingPod, Worth};

/// Upstream's name of the queue that a pending pod at this place is in.
fn queue_of(place: QueuePlace) -> Option<&'static str> {
    match place {
        QueuePlace::Active => Some("active"),
        QueuePlace::Backoff | QueuePlace::ErrorBackoff => Some("backoff"),
        QueuePlace::Unschedulable | QueuePlace::Gated => Some("unschedulable"),
        QueuePlace::InFlight | QueuePlace::Binding => None,
    }
}

impl<P: QueueCandidate, E: Clone> Queue<P, E> {
    /// Returns a pod with a backoff that is over.
    pub(super) fn first_due(&self, now: Duration) -> Option<Uid> {
        let plain = self.backoff.first().map(|(until, _, uid)| (*until, uid));
        let error = self.error_backoff.first().map(|(until, _, uid)| (*until, uid));
        let is_due =
            |(until, _): &(Duration, &Uid)| !self.settings.backoff.is_before_its_end(*until, now);
        plain.into_iter().chain(error).find(is_due).map(|(_, uid)| uid.clone())
    }

    pub(super) fn has_no_rejector(&self, waiting: &WaitingPod<P>) -> bool {
        waiting.rejectors.is_empty() && waiting.pending.is_empty()
    }

    /// How much an event helps a pod: the best answer of the plugins that rejected it.
    pub(super) fn worth(
        &self,
        hints: &impl Hints<Pod = P, Event = E>,
        waiting: &WaitingPod<P>,
        event: &E,
    ) -> Worth {
        let of = |plugin: &Plugin, worth| {
            let helps = hints.helps(event, &waiting.pod, *plugin);
            if helps { worth } else { Worth::Nothing }
        };
        let rejected = waiting.rejectors.iter().map(|plugin| of(plugin, Worth::TryLater));
        let pending = waiting.pending.iter().map(|plugin| of(plugin, Worth::TryNow));
        rejected.chain(pending).max().unwrap_or(Worth::TryLater)
    }

    /// Requeues a parked pod if the event helps it.
    pub(super) fn weigh(
        &mut self,
        hints: &impl Hints<Pod = P, Event = E>,
        uid: &Uid,
        event: &E,
        now: Duration,
    ) {
        let worth = self.worth(hints, &self.pods[uid], event);
        if worth != Worth::Nothing {
            self.take_out(uid);
            self.requeue(uid, worth, now);
        }
    }

    /// Puts a pod that was taken out where it belongs.
    pub(super) fn requeue(&mut self, uid: &Uid, worth: Worth, now: Duration) {
        let waiting = &self.pods[uid];
        if waiting.setback.holds(now) {
            return self.enter(uid, QueuePlace::ErrorBackoff, now);
        }
        let until = self.backoff_of(waiting);
        let is_early = until.is_some_and(|u| self.settings.backoff.is_before_its_end(u, now));
        match worth {
            Worth::Nothing => self.put(uid, QueuePlace::Unschedulable),
            Worth::TryLater if is_early => {
                // A pod that is retried without any event would otherwise be retried in a tight
                // loop.
                let waits = waiting.pod.only_backs_off() || self.has_no_rejector(waiting);
                self.enter(
                    uid,
                    if waits { QueuePlace::ErrorBackoff } else { QueuePlace::Backoff },
                    now,
                );
            }
            _ => self.enter(uid, QueuePlace::Active, now),
        }
    }

    /// Puts a pod that was taken out into this place, unless a plugin gates it.
    pub(super) fn enter(&mut self, uid: &Uid, place: QueuePlace, now: Duration) {
        let pod = &self.pods[uid].pod;
        let Some(plugin) = pod.gate() else {
            let place = if pod.is_held() { QueuePlace::Gated } else { place };
            if place == QueuePlace::Active {
                // k8s: pkg/scheduler/backend/queue/scheduling_queue.go moveToActiveQ
                self.change(uid, |waiting| _ = waiting.first_attempt.get_or_insert(now));
            }
            return self.put(uid, place);
        };
        self.change(uid, |waiting| _ = waiting.rejectors.insert(plugin));
        self.put(uid, QueuePlace::Gated);
    }

    /// Removes a pod from the queue for good.
    pub(super) fn leave(&mut self, uid: &Uid) {
        self.take_out(uid);
        self.pods.remove(uid);
        self.forget_seen();
    }

    /// Returns when the pod's backoff ends, if it has one.
    pub(super) fn backoff_of(&self, waiting: &WaitingPod<P>) -> Option<Duration> {
        let count = if waiting.errors > 0 { waiting.errors } else { waiting.unschedulable };
        self.settings.backoff.until(waiting.since, count).max(waiting.setback.until())
    }

    pub(super) fn turn(waiting: &WaitingPod<P>) -> Turn {
        (waiting.pod.rank(), waiting.since, waiting.number)
    }

    pub(super) fn put(&mut self, uid: &Uid, place: QueuePlace) {
        let was = self.pods[uid].place;
        self.change(uid, |waiting| waiting.place = place);
        self.count_move(uid, was);
        let waiting = &self.pods[uid];
        let until = self.backoff_of(waiting).unwrap_or_default();
        let (turn, number, uid) = (Self::turn(waiting), waiting.number, uid.clone());
        match place {
            QueuePlace::Active => self.active.insert((turn, uid)),
            QueuePlace::Backoff => self.backoff.insert((until, turn, uid)),
            QueuePlace::ErrorBackoff => self.error_backoff.insert((until, number, uid)),
            QueuePlace::Unschedulable | QueuePlace::Gated => self.park(number, uid),
            QueuePlace::InFlight => self.flying.insert((waiting.sees_from, uid)),
            QueuePlace::Binding => true,
        };
    }

    /// Counts a pod that waits in one of upstream's queues, and its move to it.
    fn count_move(&mut self, uid: &Uid, was: QueuePlace) {
        let waiting = &self.pods[uid];
        let Some(queue) = queue_of(waiting.place) else { return };
        if queue_of(was) != Some(queue) || !waiting.was_counted {
            *self.moved.entry((queue, self.cause)).or_default() += 1;
        }
        for (plugin, profile) in Self::rejected_by(waiting) {
            *self.rejected.entry((plugin, profile)).or_default() += 1;
        }
        self.change(uid, |waiting| waiting.was_counted = true);
    }

    /// The plugins that rejected a pending pod, each with the number of the pod's profile.
    fn rejected_by(waiting: &WaitingPod<P>) -> Vec<(Plugin, usize)> {
        let profile = waiting.pod.profile();
        let all = waiting.rejectors.union(&waiting.pending);
        all.map(|plugin| (*plugin, profile)).collect()
    }

    fn forget_rejected(&mut self, uid: &Uid) {
        let waiting = &self.pods[uid];
        if queue_of(waiting.place).is_none() {
            return;
        }
        for key in Self::rejected_by(waiting) {
            if let Some(count) = self.rejected.get_mut(&key) {
                *count = count.saturating_sub(1);
            }
        }
    }

    pub(super) fn take_out(&mut self, uid: &Uid) {
        self.forget_rejected(uid);
        let waiting = &self.pods[uid];
        let until = self.backoff_of(waiting).unwrap_or_default();
        let (turn, number, uid) = (Self::turn(waiting), waiting.number, uid.clone());
        match waiting.place {
            QueuePlace::Active => {
                let is_here = self.active.remove(&(turn, uid.clone()));
                is_here
                    || self.behind.remove(&(turn, uid.clone()))
                    || self.tenants.take(waiting.pod.namespace(), &(turn, uid))
            }
            QueuePlace::Backoff => self.backoff.remove(&(until, turn, uid)),
            QueuePlace::ErrorBackoff => self.error_backoff.remove(&(until, number, uid)),
            QueuePlace::Unschedulable | QueuePlace::Gated => self.unpark(number, &uid),
            QueuePlace::InFlight => self.flying.remove(&(waiting.sees_from, uid)),
            QueuePlace::Binding => true,
        };
    }

    /// The plugins that a pod waits for; `None` alone if any event requeues it.
    fn awaits(waiting: &WaitingPod<P>) -> Vec<Option<Plugin>> {
        let all = waiting.rejectors.iter().chain(&waiting.pending);
        let all: Vec<_> = all.map(|plugin| Some(*plugin)).collect();
        if all.is_empty() { vec![None] } else { all }
    }

    fn park(&mut self, number: u64, uid: Uid) -> bool {
        let waiting = &self.pods[&uid];
        for by in Self::awaits(waiting) {
            *self.awaited.entry(by).or_default() += 1;
        }
        if waiting.place == QueuePlace::Unschedulable {
            self.stays.insert((waiting.since, uid.clone()));
        }
        self.parked.insert((number, uid))
    }

    fn unpark(&mut self, number: u64, uid: &Uid) -> bool {
        let waiting = &self.pods[uid];
        for by in Self::awaits(waiting) {
            if let Some(count) = self.awaited.get_mut(&by) {
                *count -= 1;
                if *count == 0 {
                    self.awaited.remove(&by);
                }
            }
        }
        self.stays.remove(&(waiting.since, uid.clone()));
        self.parked.remove(&(number, uid.clone()))
    }

    pub(super) fn change(&mut self, uid: &Uid, change: impl FnOnce(&mut WaitingPod<P>)) {
        if let Some(waiting) = self.pods.get_mut(uid) {
            change(waiting);
        }
    }

    /// Keeps an event for pods in flight.
    pub(super) fn keep(&mut self, event: E) {
        if !self.flying.is_empty() {
            self.events.push_back(event);
        }
    }

    /// Drops events that arrived before all pods in flight were popped.
    pub(super) fn forget_seen(&mut self) {
        let end = self.events_from + self.events.len() as u64;
        let from = self.flying.first().map_or(end, |(sees_from, _)| *sees_from);
        let seen = usize::try_from(from - self.events_from).unwrap_or(usize::MAX);
        self.events.drain(..seen.min(self.events.len()));
        self.events_from = from;
    }
}
