//! Schedulers that die in a world, and those who take over from them.

use super::*;

impl World {
    /// Whoever leads dies, and a successor goes on: what was under way arrives or does not, and no
    /// answer is heard any more. It is a standby that was told what its predecessor was, or one that
    /// has just read all there is. Until a lease is over all that its holder did has been told.
    pub(super) fn hand_over(&mut self, scheduler: &mut Scheduler) {
        while !self.binds.is_empty() {
            match self.chance.one_in(2) {
                true => self.bind(),
                false => _ = self.binds.pop(),
            }
        }
        // The rest of what it wrote has no order.
        for _ in 0..self.chance.below(8) {
            self.write();
        }
        (self.statuses, self.evictions, self.answers) = (Vec::new(), Vec::new(), Vec::new());
        (self.evicted, self.of_claims) = (Vec::new(), claims::UnderWay::default());
        self.hand_overs += 1;
        let mut successor = self.newcomer();
        if self.chance.one_in(2) {
            let now = Duration::from_secs(self.now);
            for told in &self.told {
                successor.tell(told.clone(), now);
            }
            while let Some(told) = self.next_told() {
                successor.tell(told, now);
            }
        } else {
            self.untold.clear();
            self.list(&mut successor);
        }
        *scheduler = successor;
    }

    /// Reads all there is.
    fn list(&mut self, successor: &mut Scheduler) {
        let now = Duration::from_secs(self.now);
        self.told.clear();
        self.known.clear();
        let has_groups = self.has_groups;
        let kinds = self.kinds().iter().copied();
        for kind in kinds.filter(|kind| *kind != Kind::PodGroup || has_groups) {
            let things: Vec<Thing> = self.all(kind).values().map(|one| thing(kind, one)).collect();
            things.iter().for_each(|thing| self.hears(&Told::Set(thing.clone())));
            let listed = things.into_iter().map(Told::Listed);
            let list = std::iter::once(Told::Begun(kind)).chain(listed);
            for told in list.chain([Told::Complete(kind)]) {
                self.told.push(told.clone());
                self.hears(&told);
                successor.tell(told, now);
            }
        }
    }
}
