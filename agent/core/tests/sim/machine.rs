//! The machine of a world: it shuts down, or is about to and stays up.
//!
//! Rules: a group's turn comes when no pod of the one before runs any more, or its time is up; soon
//! after the last one nothing runs at all, however often the agent died meanwhile; and an ended pod
//! is not started again (`check`). The state file survives the agent.

use pintle_agent_core::observed::RunState;
use pintle_agent_core::shutdown::{Notice, ShutdownRecord, Window, group_of};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::worker::PodsInput;

use crate::world::{Event, S, World};

/// Of pods, some of each group.
pub const PRIORITIES: [i32; 5] = [-1, 0, 1_000, 5_000, 2_000_001_000];
/// From the last group's end on: least time of a stop, twice for a sidecar, and an agent that dies
/// at the worst moment and takes its time to come back.
const LAST_STOPS: u64 = 30 * S;
/// An event of the machine.
#[derive(Clone, Copy, Debug)]
pub enum MachineNews {
    /// It is about to shut down.
    Prepares,
    /// It stays up.
    StaysUp,
    /// It is off.
    Down,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Machine {
    windows: Vec<Window>,
    pub is_preparing: bool,
    pub is_down: bool,
    stays_up: bool,
    began_at: UnixNanos,
    /// The state file.
    record: Option<ShutdownRecord>,
}

impl World {
    pub fn plan_shutdown(&mut self) {
        let seconds = [0, 1_000, 2_000_000_000].map(|priority| {
            let seconds = *self.rng.pick(&[0, 2, 5, 20, 40]);
            Window { priority, seconds }
        });
        self.machine.windows = seconds.to_vec();
        self.machine.stays_up = self.rng.chance(35);
        let when = self.rng.range(0, 200 * S);
        self.at(when, Event::Machine(MachineNews::Prepares));
        if self.machine.stays_up {
            let long = self.rng.range(0, 40 * S);
            self.at(when + long, Event::Machine(MachineNews::StaysUp));
        }
    }

    pub fn machine_says(&mut self, news: MachineNews) {
        match news {
            MachineNews::Prepares => {
                (self.machine.is_preparing, self.check.shuts_down) = (true, true);
                self.machine.began_at = self.clocks().wall;
                self.tell_begins(None);
                // It is often reported twice.
                if self.rng.chance(30) {
                    self.tell_begins(None);
                }
            }
            MachineNews::StaysUp => {
                self.machine.is_preparing = false;
                self.stats.given_up += 1;
                self.send(PodsInput::Shutdown(Notice::Cancelled));
                self.check.forgets_shutdown(self.api.as_ref());
            }
            MachineNews::Down => {
                self.stats.shutdowns += 1;
                self.machine.is_down = true;
                let running = self.running_of(|_| true);
                assert!(running.is_empty(), "the machine is off, and there ran {running:?}");
            }
        }
    }

    /// The agent has started; it learns of the machine before it learns of any pod.
    pub fn machine_boot(&mut self) {
        if self.machine.is_preparing {
            let of_this = |record: &ShutdownRecord| record.started_at >= self.machine.began_at;
            let record = self.machine.record.clone();
            self.tell_begins(record.filter(|record| !record.cancelled && of_this(record)));
        }
    }

    fn tell_begins(&mut self, resumed: Option<ShutdownRecord>) {
        let windows = self.machine.windows.clone();
        self.send(PodsInput::Shutdown(Notice::Begins { windows, resumed }));
    }

    /// The agent reports its progress.
    pub fn shutdown_goes_on(&mut self, record: ShutdownRecord) {
        let before = self.machine.record.replace(record.clone());
        if record.cancelled {
            return;
        }
        let group = |record: &ShutdownRecord| {
            record.group.map(|(priority, _)| group_of(&self.machine.windows, priority))
        };
        let began = self.machine.began_at;
        if let Some(before) = before.filter(|before| before.started_at >= began) {
            assert!(group(&before).unwrap_or(usize::MAX) <= group(&record).unwrap_or(usize::MAX));
            let in_time = before.group.is_some_and(|(_, until)| self.clocks().wall < until);
            let last = group(&before).unwrap_or(usize::MAX);
            if in_time && group(&record) != Some(last) {
                let running = self.running_of(|group| group == last);
                assert!(running.is_empty(), "the next group's turn, and there runs {running:?}");
            }
        }
        if record.ended_at.is_some() && !self.machine.stays_up {
            self.at(LAST_STOPS, Event::Machine(MachineNews::Down));
        }
    }

    /// The running containers of pods of these groups, as far as their manifests are still there.
    fn running_of(&self, groups: impl Fn(usize) -> bool) -> Vec<String> {
        let wanted = |uid: &_| self.manifests.values().find(|manifest| manifest.uid == *uid);
        let containers = self.runtime.containers.iter();
        let running = containers.filter(|(_, c)| c.state == RunState::Running);
        let low = running.filter(|(_, c)| {
            wanted(&c.uid).is_some_and(|pod| groups(group_of(&self.machine.windows, pod.priority)))
        });
        low.map(|(id, c)| format!("{id} of {}", c.uid)).collect()
    }
}
