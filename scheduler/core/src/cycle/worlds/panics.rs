//! Schedulers that panic in a world: within an attempt, or while an event is applied.

use super::*;
use crate::fault;

impl SchedulerWorld {
    fn panics(&mut self, one_in: usize) -> bool {
        self.has_panics && self.chance.one_in(one_in)
    }

    /// Makes one decision, which may panic. A panicked attempt must leave nothing behind.
    pub(super) fn decide_with_panics(&mut self, scheduler: &mut Scheduler, now: Duration) -> bool {
        if !self.panics(8) {
            return scheduler.decide_next(now);
        }
        let point = self.chance.of(&fault::POINTS);
        let point = fault::POINTS.into_iter().find(|known| *known == point).expect("a point");
        fault::arm(point, self.chance.below(4));
        let decided = scheduler.decide_next(now);
        let panicked = !fault::disarm();
        self.panicked += usize::from(panicked);
        assert!(scheduler.is_torn() || scheduler.is_sound(), "after a panic at {point}");
        // A decision that panicked counts as made.
        decided || panicked
    }

    /// Applies an event, which may panic once per object.
    pub(super) fn apply(&mut self, scheduler: &mut Scheduler, watch_event: WatchEvent) {
        let now = Duration::from_secs(self.now);
        let about = match &watch_event {
            WatchEvent::Set(thing) => Some((thing.kind(), thing.key().name().to_owned())),
            _ => None,
        };
        let Some(about) = about.filter(|about| self.panics(40) && !self.flawed.contains(about))
        else {
            scheduler.handle(watch_event, now);
            return;
        };
        fault::arm("event", 0);
        scheduler.handle(watch_event, now);
        fault::disarm();
        if scheduler.is_torn() {
            self.flawed.push(about);
            scheduler.take_commands().into_iter().for_each(|command| self.carry_out(command));
            self.read_again(scheduler);
        }
    }

    /// Ends the work of a torn scheduler; then its successor lists everything.
    pub(super) fn read_again(&mut self, scheduler: &mut Scheduler) {
        while !self.binds.is_empty() {
            self.bind();
        }
        // Its other writes arrive in any order.
        for _ in 0..self.chance.below(8) {
            self.write();
        }
        (self.statuses, self.evictions, self.answers) = (Vec::new(), Vec::new(), Vec::new());
        (self.evicted, self.of_claims) = (Vec::new(), claims::ClaimWrites::default());
        self.hand_overs += 1;
        let mut successor = self.newcomer();
        scheduler.succeed(&mut successor, Duration::from_secs(self.now));
        self.undelivered.clear();
        self.list(&mut successor);
        *scheduler = successor;
    }

    /// Ends the panics, with a later version of each object that panicked.
    pub(super) fn end_panics(&mut self) {
        self.has_panics = false;
        for (kind, name) in std::mem::take(&mut self.flawed) {
            if let Some(value) = self.all(kind).get(&name).cloned() {
                self.set(kind, &name, value);
            }
        }
    }
}
