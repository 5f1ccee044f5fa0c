//! Schedulers that die in a random world, and their successors.

use super::*;
use crate::cycle::tests::{deliver_lists, without_second_look};
use crate::plugins::dynamicresources::DeviceGates;

impl SchedulerWorld {
    /// Replaces the leader, which dies, by a successor. Of the leader's pending writes some arrive
    /// and some do not; their results are lost. The successor is a standby that received the same
    /// events, or a new scheduler that lists all objects. No write of the leader arrives after the
    /// successor has begun, because the leader's lease has expired.
    pub(super) fn hand_over(&mut self, scheduler: &mut Scheduler) {
        while !self.binds.is_empty() {
            match self.chance.one_in(2) {
                true => self.bind(),
                false => _ = self.binds.pop(),
            }
        }
        // Some of its other writes arrive, in any order.
        for _ in 0..self.chance.below(8) {
            self.write();
        }
        (self.statuses, self.evictions, self.answers) = (Vec::new(), Vec::new(), Vec::new());
        (self.evicted, self.of_claims) = (Vec::new(), claims::ClaimWrites::default());
        self.hand_overs += 1;
        let mut successor = self.newcomer();
        if self.chance.one_in(2) {
            let now = Duration::from_secs(self.now);
            for watch_event in &self.delivered {
                successor.handle(watch_event.clone(), now);
            }
            while let Some(watch_event) = self.next_delivered() {
                successor.handle(watch_event, now);
            }
        } else {
            self.undelivered.clear();
            self.list(&mut successor);
        }
        *scheduler = successor;
    }

    /// Delivers a list of each kind to the successor.
    pub(super) fn list(&mut self, successor: &mut Scheduler) {
        let now = Duration::from_secs(self.now);
        self.delivered.clear();
        self.known.clear();
        let has_groups = self.has_groups;
        let kinds = self.kinds().iter().copied();
        for kind in kinds.filter(|kind| *kind != WatchedKind::PodGroup || has_groups) {
            let things: Vec<WatchedObject> =
                self.all(kind).values().map(|one| thing(kind, one)).collect();
            things.iter().for_each(|thing| self.hears(&WatchEvent::Set(thing.clone())));
            let listed = things.into_iter().map(WatchEvent::Listed);
            let list = std::iter::once(WatchEvent::Begun(kind)).chain(listed);
            for watch_event in list.chain([WatchEvent::Complete(kind)]) {
                self.delivered.push(watch_event.clone());
                self.hears(&watch_event);
                successor.handle(watch_event, now);
            }
        }
    }

    /// A scheduler that has observed only the objects that never change.
    pub(super) fn newcomer(&self) -> Scheduler {
        let mut scheduler = self.scheduler_with(&[claims::class()]);
        if self.has_groups {
            scheduler = scheduler.with_groups(groups::groups(self.preempts_whole));
            scheduler.handle(WatchEvent::Complete(WatchedKind::PodGroup), Duration::ZERO);
        }
        if self.has_rules {
            scheduler.handle(WatchEvent::Complete(WatchedKind::DeviceTaintRule), Duration::ZERO);
        }
        scheduler
    }

    /// A scheduler with the feature gates of this world that has observed these objects.
    pub(super) fn scheduler_with(&self, things: &[WatchedObject]) -> Scheduler {
        let mut scheduler = self.knows_nothing();
        deliver_lists(&mut scheduler, things);
        scheduler
    }

    /// A scheduler with the feature gates of this world that has observed no object.
    pub(super) fn knows_nothing(&self) -> Scheduler {
        Scheduler::new(Vec::new(), without_second_look(), 1).with_device_gates(DeviceGates {
            taint_rules: self.has_rules,
            lists: false,
            allocatable: self.takes.is_some(),
        })
    }
}
