//! The frame: all controllers of a process, their tables and queues, as a state machine.
//!
//! Input: watch events, answers, the time. Output: [`FrameEffect`]s. The daemon carries them out with
//! real requests, the simulator against an API server in memory. One thread owns it. It never
//! waits.

mod controller;
mod drive;
mod event;
mod explain;
mod fence;
mod fences;
mod queue;
#[cfg(test)]
mod queue_tests;
mod running;
#[cfg(test)]
mod running_tests;
mod transcript;

use std::collections::BTreeMap;
use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};

pub use controller::{Controller, Now, SyncOutcome, Wakes};
pub use drive::{Driven, drive};
pub use event::{EventLevel, EventTarget, ObjectEvent};
pub use explain::{DrySync, Findings, KeyState, KeyWait, is_write};
pub use queue::{KeyBackoff, QueueKey, QueueStats, WorkQueue};
pub use running::ControllerStats;
pub use transcript::{BATCH_MAX, Retry, SyncError, Transcript, TranscriptStep, TranscriptStop};

use crate::common::sample::SampleTotals;
use crate::tables::{Change, Tables, WatchEvent};
use running::{ControllerTurn, ErasedController, RunningController};

/// Names requests until they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Instead of a controller's name: the manager's own identity, which may list every kind.
pub const MANAGER: &str = "";

/// An effect that the frame requests.
#[derive(Debug)]
pub enum FrameEffect {
    /// Requests are to be sent at once, and all their answers brought back together.
    Send {
        /// Names them.
        ticket: Ticket,
        /// The controller that sends them under its identity, or [`MANAGER`].
        controller: &'static str,
        /// The requests.
        requests: Vec<Request>,
    },
    /// An event is to be recorded.
    Emit {
        /// The controller that reports it.
        controller: &'static str,
        /// The event.
        event: ObjectEvent,
    },
    /// A sync of a controller in shadow ended; it would have made these writes.
    Decided {
        /// The controller.
        controller: &'static str,
        /// The key.
        key: String,
        /// The writes, in order; none were made.
        writes: Vec<Request>,
    },
    /// A sync failed; to be logged and counted.
    Failed {
        /// The controller.
        controller: &'static str,
        /// The key.
        key: String,
        /// The reason.
        message: String,
        /// No line in the log at the default level.
        is_quiet: bool,
    },
}

/// All controllers of a process.
#[derive(Default)]
pub struct Frame {
    tables: Tables,
    controllers: Vec<FrameEntry>,
    /// Which controller asked.
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    orders: Vec<FrameEffect>,
}

struct FrameEntry {
    run: Box<dyn ErasedController>,
    kinds: Vec<Kind>,
    is_started: bool,
}

impl Frame {
    /// Adds a controller.
    pub fn add(&mut self, controller: impl Controller) {
        let run = Box::new(RunningController::new(controller));
        let kinds = run.kinds();
        self.controllers.push(FrameEntry { run, kinds, is_started: false });
    }

    /// The cluster's objects.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The kinds that some controller reads in full.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<_> =
            self.controllers.iter().flat_map(|entry| entry.kinds.iter().copied()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn reads_whole(&self, kind: Kind) -> bool {
        self.controllers.iter().any(|entry| entry.kinds.contains(&kind))
    }

    /// Some controller reads the metadata of every kind.
    pub fn reads_all_metadata(&self) -> bool {
        self.controllers.iter().any(|entry| entry.run.reads_all_metadata())
    }

    /// The names of the controllers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.controllers.iter().map(|entry| entry.run.name())
    }

    /// Puts a controller in shadow, where its writes are reported and not made, or has it act. One
    /// that acts from now on syncs everything again that it decided in shadow.
    pub fn set_shadow(&mut self, controller: &str, is_shadow: bool, now: Now) {
        for entry in &mut self.controllers {
            if entry.run.name() == controller {
                entry.run.set_shadow(is_shadow, now);
            }
        }
    }

    /// Requeues the key of an object with a controller.
    pub fn resync(&mut self, controller: &str, object: &ObjectKey, now: Now) {
        let found = self.controllers.iter_mut().find(|entry| entry.run.name() == controller);
        if let Some(entry) = found {
            entry.run.resync(object, now);
        }
    }

    /// Applies what a watch reports; returns what changed.
    pub fn apply(&mut self, event: WatchEvent, now: Now) -> Vec<Change> {
        let kind = event.kind();
        if let WatchEvent::ListBegun(kind) = &event {
            self.tables.begin_metadata_unless(*kind, self.reads_whole(*kind));
        }
        let changes = self.tables.apply(event);
        if let Some(kind) = kind {
            for entry in &mut self.controllers {
                entry.run.note_progress(kind, &changes, &self.tables);
            }
        }
        for change in &changes {
            self.dispatch(change, now);
        }
        self.start_synced(now);
        changes
    }

    fn dispatch(&mut self, change: &Change, now: Now) {
        let kind = change.kind();
        for entry in &mut self.controllers {
            let is_read = kind.is_none_or(|kind| entry.kinds.contains(&kind));
            if is_read || entry.run.reads_all_metadata() {
                entry.run.handle_change(change, &self.tables, now);
            }
        }
    }

    fn start_synced(&mut self, now: Now) {
        for entry in &mut self.controllers {
            let is_synced = || entry.kinds.iter().all(|kind| self.tables.is_synced(*kind));
            if !entry.is_started && is_synced() {
                entry.is_started = true;
                entry.run.start(&self.tables, now);
            }
        }
    }

    /// Every controller's kinds are listed.
    pub fn is_started(&self) -> bool {
        self.controllers.iter().all(|entry| entry.is_started)
    }

    /// Applies the answers to the requests of a ticket, one for each in order.
    ///
    /// # Panics
    /// When the ticket was answered before.
    pub fn answer(&mut self, ticket: Ticket, answers: Vec<Answer>, now: Now) {
        let at = self.tickets.remove(&ticket).expect("a ticket is answered once");
        let mut turn = ControllerTurn {
            tables: &self.tables,
            now,
            orders: &mut self.orders,
            next_ticket: &mut self.next_ticket,
        };
        self.controllers[at].run.answer(ticket, answers, &mut turn);
        self.note_tickets(at, 0);
    }

    /// Starts all syncs that can start; returns the requested effects.
    pub fn turn(&mut self, now: Now) -> Vec<FrameEffect> {
        for at in 0..self.controllers.len() {
            let from = self.orders.len();
            let mut turn = ControllerTurn {
                tables: &self.tables,
                now,
                orders: &mut self.orders,
                next_ticket: &mut self.next_ticket,
            };
            self.controllers[at].run.turn(&mut turn);
            self.note_tickets(at, from);
        }
        std::mem::take(&mut self.orders)
    }

    fn note_tickets(&mut self, at: usize, from: usize) {
        for order in &self.orders[from..] {
            if let FrameEffect::Send { ticket, .. } = order {
                self.tickets.entry(*ticket).or_insert(at);
            }
        }
    }

    /// When a waiting key is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.controllers.iter().filter_map(|entry| entry.run.next_due()).min()
    }

    /// No controller has anything to do before its next due key.
    pub fn is_idle(&self) -> bool {
        self.controllers.iter().all(|entry| entry.run.is_idle())
    }

    /// The controller has nothing to do before its next due key.
    pub fn is_resting(&self, controller: &str) -> bool {
        let named = self.controllers.iter().filter(|entry| entry.run.name() == controller);
        named.into_iter().all(|entry| entry.run.is_idle())
    }

    /// Metrics, by controller.
    pub fn stats(&self, now: Now) -> Vec<NamedStats> {
        let all = self.controllers.iter();
        all.map(|entry| NamedStats { name: entry.run.name(), stats: entry.run.stats(now) })
            .collect()
    }

    /// The metric samples of each controller's syncs.
    pub fn totals(&self) -> impl Iterator<Item = &SampleTotals> {
        self.controllers.iter().filter_map(|entry| entry.run.totals())
    }

    /// A page of a controller, as [`Controller::debug_page`] has it.
    pub fn debug_page(&self, controller: &str, page: &str, uids: &[&str]) -> Option<String> {
        let found = self.controllers.iter().find(|entry| entry.run.name() == controller)?;
        found.run.debug_page(page, uids)
    }

    /// A controller's state of an object; `None` when it does not run or has no such keys.
    pub fn key_state(
        &mut self,
        controller: &str,
        object: &ObjectKey,
        now: Now,
    ) -> Option<KeyState> {
        let mut all = self.controllers.iter_mut();
        let found = all.find(|entry| entry.run.name() == controller)?;
        found.run.key_state(object, &self.tables, now)
    }
}

/// Metrics of a named controller.
#[derive(Debug)]
pub struct NamedStats {
    /// The controller.
    pub name: &'static str,
    /// Its metrics.
    pub stats: ControllerStats,
}
