//! Controllers of an acting manager that start in shadow, because they delete objects that they do
//! not know.
//!
//! Input: a frame, its orders, the time. Output: the orders that are left to execute. Until the
//! held back controllers were clean for the wait, an [`Oracle`] answers their writes, and their
//! events are dropped. Clean means: no wanted deletion became unwanted while its object existed,
//! and no other manager made a write for them that they did not want. A deletion that no manager
//! makes is expected where no other manager acts. At the end all their pending writes are decided
//! once more, because nothing else may have triggered a new sync. Pure. Bounds: those of the
//! [`Ledger`], `TURNS_MAX`.

use std::time::{Duration, Instant};

use pintle_controllers_core::frame::{Frame, FrameEffect, Now};
use pintle_controllers_core::tables::Change;

use super::{Ledger, Oracle, WriteDifference, note};

/// The controllers that are held back.
pub const HELD_BACK: [&str; 2] = ["garbage-collector-controller", "namespace-controller"];
/// Turns of the frame in a row: an oracle's answer may begin the next sync.
const TURNS_MAX: usize = 1000;

/// The time before the held back controllers act.
#[derive(Debug)]
pub struct ShadowFirst {
    ledger: Ledger,
    oracle: Oracle,
    wait: Duration,
    /// Since when nothing was found; `None` until all kinds are listed.
    clean_since: Option<Instant>,
    /// The wait is over, and everything is decided once more.
    is_reviewing: bool,
    found: u64,
}

impl ShadowFirst {
    /// Puts them in shadow; `None` when there is nothing to wait for.
    pub fn begin(frame: &mut Frame, wait: Duration, now: Now) -> Option<Self> {
        let running: Vec<_> = frame.names().filter(|name| HELD_BACK.contains(name)).collect();
        if wait.is_zero() || running.is_empty() {
            return None;
        }
        running.iter().for_each(|name| frame.set_shadow(name, true, now));
        let (ledger, oracle) = (Ledger::new(running), Oracle::default());
        Some(Self { ledger, oracle, wait, clean_since: None, is_reviewing: false, found: 0 })
    }

    /// How long nothing may be found.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// The differences since the last call, to be logged.
    pub fn take_fresh(&mut self) -> Vec<WriteDifference> {
        self.ledger.take_fresh()
    }

    /// Something changed in the cluster.
    pub fn note(&mut self, changes: &[Change], frame: &Frame, now: Now) {
        note(&mut self.ledger, changes, frame, now);
    }

    /// Turns the frame until only the API server can bring it further; returns what is to be done.
    pub fn turn(&mut self, frame: &mut Frame, now: Now) -> Vec<FrameEffect> {
        let mut left = Vec::new();
        for _ in 0..TURNS_MAX {
            let orders = frame.turn(now);
            if orders.is_empty() {
                break;
            }
            left.extend(orders.into_iter().filter_map(|order| self.filter(order, frame, now)));
        }
        left
    }

    /// Keeps writes and events of the held back controllers from being made.
    fn filter(&mut self, order: FrameEffect, frame: &mut Frame, now: Now) -> Option<FrameEffect> {
        match order {
            FrameEffect::Send { ticket, controller, requests }
                if HELD_BACK.contains(&controller) =>
            {
                match self.oracle.answer_writes(&requests, frame.tables()) {
                    Some(answers) => frame.answer(ticket, answers, now),
                    None => return Some(FrameEffect::Send { ticket, controller, requests }),
                }
                None
            }
            FrameEffect::Decided { controller, key, writes } => {
                self.ledger.decide(controller, key, &writes, frame.tables(), now);
                None
            }
            FrameEffect::Emit { controller, .. } if HELD_BACK.contains(&controller) => None,
            // What was not written is missed by the next request.
            FrameEffect::Failed { controller, .. } if HELD_BACK.contains(&controller) => {
                self.ledger.note_failure(controller);
                None
            }
            other => Some(other),
        }
    }

    /// Has the controllers act once nothing was found for long enough. Returns whether they act.
    /// [`Self::turn`] has to be called before, because a decision that was not compared yet counts
    /// as clean, and afterwards, because the last decisions begin here.
    pub fn end_if_clean(&mut self, frame: &mut Frame, now: Now) -> bool {
        if !frame.is_started() {
            return false;
        }
        for (controller, key) in self.ledger.tick(now, frame.tables()) {
            frame.resync(controller, &key, now);
        }
        let counts = self.ledger.report().counts.values().flat_map(|reasons| reasons.values());
        let found = counts.map(|counts| counts.withdrawn + counts.theirs_only).sum();
        if self.clean_since.is_none() || found > self.found {
            (self.clean_since, self.found) = (Some(now.instant), found);
            self.is_reviewing = false;
        }
        if self.clean_since.is_none_or(|since| since + self.wait > now.instant) {
            return false;
        }
        if !self.is_reviewing {
            // Has them decide again what they would have written for.
            self.is_reviewing = true;
            HELD_BACK.iter().for_each(|name| frame.set_shadow(name, true, now));
            return false;
        }
        let is_over = HELD_BACK.iter().all(|name| frame.is_resting(name));
        if is_over {
            HELD_BACK.iter().for_each(|name| frame.set_shadow(name, false, now));
        }
        is_over
    }

    /// When the wait is over if nothing is found until then.
    pub fn due(&self) -> Option<Instant> {
        self.clean_since.filter(|_| !self.is_reviewing).map(|since| since + self.wait)
    }
}
