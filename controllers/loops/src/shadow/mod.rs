//! Shadow: the controllers decide what another manager decides, write nothing, and are compared.
//!
//! ```text
//!   WatchEvent ─> held by version for SETTLE_WAIT ─> deeds of the acting manager ─┐
//!                        └─> frame (in shadow) ─> oracle ─> writes it would make ─┴─> Ledger ─> Report
//! ```
//! Input: watch events, answers to live reads, the time. Output: live reads, and a [`ShadowReport`].
//! Pure. Watches of different kinds are apart by milliseconds, so events wait for [`SETTLE_WAIT`]
//! and are applied in the order of versions. Before an event is applied, everything is decided that
//! was known before it: so the frame decides what a write of the acting manager was decided upon.
//! Bounds: `HELD_MAX` events wait; more are applied before their time.

mod first;
mod ledger;
mod mark;
mod oracle;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Frame, FrameEffect, Now, Ticket};
use pintle_controllers_core::tables::{Change, WatchEvent};

pub use first::{HELD_BACK, ShadowFirst};
pub use ledger::{DOUBT_WAIT, Ledger};
pub use oracle::Oracle;
pub use report::{ReasonCounts, ShadowReport, WriteDifference, WriteSide};

/// How long an event waits for earlier ones of other kinds.
pub const SETTLE_WAIT: Duration = Duration::from_millis(1000);
/// Events that wait.
const HELD_MAX: usize = 64 * 1024;
/// Turns of the frame for one event.
const TURNS_MAX: usize = 1000;

/// Reads that the API server has to answer.
#[derive(Debug)]
pub struct LiveReads {
    /// Names them.
    pub ticket: Ticket,
    /// The controller that reads.
    pub controller: &'static str,
    /// The reads.
    pub requests: Vec<Request>,
}

/// A frame with all controllers in shadow.
pub struct Shadow {
    frame: Frame,
    ledger: Ledger,
    oracle: Oracle,
    held: BTreeMap<(u64, u64), (Now, WatchEvent)>,
    numbered: u64,
    newest: u64,
}

impl Shadow {
    /// Puts the controllers of a frame in shadow.
    pub fn new(mut frame: Frame, now: Now) -> Self {
        let names: Vec<_> = frame.names().collect();
        names.iter().for_each(|name| frame.set_shadow(name, true, now));
        Self {
            frame,
            ledger: Ledger::new(names),
            oracle: Oracle::default(),
            held: BTreeMap::new(),
            numbered: 0,
            newest: 0,
        }
    }

    /// The frame, as of the events that were applied.
    pub fn frame(&mut self) -> &mut Frame {
        &mut self.frame
    }

    /// The result of the comparison so far.
    pub fn report(&self) -> &ShadowReport {
        self.ledger.report()
    }

    /// The differences since the last call, to be logged.
    pub fn take_fresh(&mut self) -> Vec<WriteDifference> {
        self.ledger.take_fresh()
    }

    /// Takes an event that a watch reported now.
    pub fn take(&mut self, event: WatchEvent, now: Now) -> Vec<LiveReads> {
        let (version, kind) = match &event {
            WatchEvent::Set(object) | WatchEvent::Deleted(object) => {
                (object.meta().version, object.kind())
            }
            WatchEvent::Version(kind, version) => (*version, *kind),
            WatchEvent::DeletedUnreadable(kind, _) => (self.newest, *kind),
            // A list is no history: nothing that was done is seen in it.
            WatchEvent::ListBegun(kind) | WatchEvent::Dropped(kind) => {
                let reads = self.apply_held(*kind);
                self.frame.apply(event, earlier(now));
                return reads;
            }
            WatchEvent::Listed(_)
            | WatchEvent::Unreadable(..)
            | WatchEvent::ListComplete(_)
            | WatchEvent::Discovered(_) => {
                self.frame.apply(event, earlier(now));
                return Vec::new();
            }
        };
        debug_assert!(kind.plural != "events", "events are not followed");
        self.numbered += 1;
        self.newest = self.newest.max(version);
        self.held.insert((version, self.numbered), (now, event));
        let mut reads = Vec::new();
        while self.held.len() > HELD_MAX {
            self.apply_first(&mut reads);
        }
        reads
    }

    /// Applies what has waited long enough. Returns the reads that have to be answered live.
    pub fn settle(&mut self, now: Now) -> Vec<LiveReads> {
        let mut reads = Vec::new();
        let is_due = |(since, _): &(Now, WatchEvent)| since.instant + SETTLE_WAIT <= now.instant;
        while self.held.first_key_value().is_some_and(|(_, held)| is_due(held)) {
            self.apply_first(&mut reads);
        }
        self.turn(earlier(now), &mut reads);
        for (controller, key) in self.ledger.tick(earlier(now), self.frame.tables()) {
            self.frame.resync(controller, &key, earlier(now));
        }
        reads
    }

    /// Brings the answers to live reads.
    pub fn answer(&mut self, ticket: Ticket, answers: Vec<Answer>, now: Now) -> Vec<LiveReads> {
        self.frame.answer(ticket, answers, earlier(now));
        let mut reads = Vec::new();
        self.turn(earlier(now), &mut reads);
        reads
    }

    /// When there is something to do.
    pub fn next_due(&self) -> Option<Instant> {
        let held = self.held.first_key_value().map(|(_, (since, _))| since.instant);
        let queue = self.frame.next_due();
        held.into_iter().chain(queue).min().map(|due| due + SETTLE_WAIT)
    }

    /// Applies the held events of a kind, before a list of it.
    fn apply_held(&mut self, kind: Kind) -> Vec<LiveReads> {
        let is_its = |event: &WatchEvent| match event {
            WatchEvent::Set(object) | WatchEvent::Deleted(object) => object.kind() == kind,
            WatchEvent::Version(of, _) | WatchEvent::DeletedUnreadable(of, _) => *of == kind,
            _ => false,
        };
        let last = self.held.iter().rev().find(|(_, (_, event))| is_its(event));
        let Some(last) = last.map(|(at, _)| *at) else { return Vec::new() };
        let mut reads = Vec::new();
        while self.held.first_key_value().is_some_and(|(at, _)| *at <= last) {
            self.apply_first(&mut reads);
        }
        reads
    }

    fn apply_first(&mut self, reads: &mut Vec<LiveReads>) {
        let Some((_, (since, event))) = self.held.pop_first() else { return };
        // Everything is decided that was known before the event.
        self.turn(since, reads);
        let changes = self.frame.apply(event, since);
        note(&mut self.ledger, &changes, &self.frame, since);
    }

    fn turn(&mut self, now: Now, reads: &mut Vec<LiveReads>) {
        for _ in 0..TURNS_MAX {
            let orders = self.frame.turn(now);
            if orders.is_empty() {
                return;
            }
            for order in orders {
                self.carry_out(order, now, reads);
            }
        }
    }

    fn carry_out(&mut self, order: FrameEffect, now: Now, reads: &mut Vec<LiveReads>) {
        match order {
            FrameEffect::Send { ticket, controller, requests } => {
                let tables = self.frame.tables();
                let answers: Option<Vec<_>> =
                    requests.iter().map(|request| self.oracle.answer(request, tables)).collect();
                match answers {
                    Some(answers) => self.frame.answer(ticket, answers, now),
                    None => reads.push(LiveReads { ticket, controller, requests }),
                }
            }
            FrameEffect::Decided { controller, key, writes } => {
                self.ledger.decide(controller, key, &writes, self.frame.tables(), now);
            }
            FrameEffect::Emit { .. } => {}
            FrameEffect::Failed { controller, .. } => self.ledger.note_failure(controller),
        }
    }
}

/// Enters changes into a ledger.
pub fn note(ledger: &mut Ledger, changes: &[Change], frame: &Frame, now: Now) {
    for change in changes {
        ledger.note_change(change, frame.tables(), now);
    }
}

/// The time that the frame lives in.
fn earlier(now: Now) -> Now {
    let instant = now.instant.checked_sub(SETTLE_WAIT).unwrap_or(now.instant);
    Now { instant, wall: now.wall - SETTLE_WAIT }
}
