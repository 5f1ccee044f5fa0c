//! DeviceTaintRules in a world.

use super::*;

impl SchedulerWorld {
    /// The kinds of this world: worlds without rules behave as before rules were added.
    pub(super) fn kinds(&self) -> &'static [WatchedKind] {
        &KINDS[..KINDS.len() - usize::from(!self.has_rules)]
    }

    /// Deletes all rules at the end, in some worlds; returns true if it did.
    pub(super) fn end_rules(&mut self) -> bool {
        let names: Vec<String> = self.rules.keys().cloned().collect();
        let end = !names.is_empty() && self.chance.one_in(2);
        names
            .iter()
            .filter(|_| end)
            .for_each(|name| self.delete(WatchedKind::DeviceTaintRule, name));
        end
    }

    /// Sends the current rules to another scheduler.
    pub(super) fn send_rules(&self, scheduler: &mut Scheduler) {
        let rules = self.rules.values().map(|rule| thing(WatchedKind::DeviceTaintRule, rule));
        rules.for_each(|rule| _ = scheduler.handle(WatchEvent::Set(rule), Duration::ZERO));
    }

    /// Adds, changes or deletes a rule at random; returns true if it did.
    pub(super) fn change_rule(&mut self) -> bool {
        if !self.has_rules || !self.chance.one_in(12) {
            return false;
        }
        let name = self.chance.of(&["r0", "r1", "r2"]).to_owned();
        if self.rules.contains_key(&name) && self.chance.one_in(2) {
            self.delete(WatchedKind::DeviceTaintRule, &name);
            return true;
        }
        let node = format!("n{}", self.chance.below(6));
        let selector = match self.chance.below(5) {
            0 => Value::Null,
            1 => json!({"device": self.chance.of(&["g0", "g1"])}),
            2 => json!({"driver": self.chance.of(&["d", "other"])}),
            _ => json!({"driver": "d", "pool": node}),
        };
        let taint = json!({"key": "k", "effect": self.chance.of(&["NoSchedule", "None"])});
        let rule = json!({"metadata": {"name": name},
            "spec": {"deviceSelector": selector, "taint": taint}});
        self.set(WatchedKind::DeviceTaintRule, &name, rule);
        true
    }
}
