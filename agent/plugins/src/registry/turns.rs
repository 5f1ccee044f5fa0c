//! Turns of registration sockets: which one is asked next, and when.
//!
//! Input: the sockets that wait, the calls under way, time as an argument. Output: the next socket.
//! Pure. A tenant may fill the folder with sockets, and all calls are made on the main thread: so
//! `CALLS_MAX` calls begin together, further ones at `GAP` apart, and a call that hangs gives its
//! place back after `SLOW_AFTER`, because from then on it only waits. Every second turn belongs to
//! the socket with the fewest failures and the latest arrival, the others to the one that waits
//! longest: neither a flood of new sockets nor one of old ones holds a plugin up.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::CommandTicket;

/// Calls that may run at the same time, not counting slow ones.
pub(super) const CALLS_MAX: usize = 16;
/// From then on a call only waits, and costs the thread nothing.
pub(super) const SLOW_AFTER: Duration = Duration::from_millis(100);
/// Sockets that are asked without a gap after a pause.
pub(super) const BURST: u32 = 32;
/// Least time between two sockets' turns in the long run.
pub(super) const GAP: Duration = Duration::from_millis(10);

/// A socket that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingSocket<'a> {
    pub(super) path: &'a Path,
    pub(super) failures: u32,
    pub(super) since: Instant,
    pub(super) arrived: CommandTicket,
}

/// The calls under way, and the pace of new ones.
#[derive(Debug, Default)]
pub(super) struct CallTurns {
    begun: BTreeMap<CommandTicket, Instant>,
    /// As many gaps ahead of now as turns were taken without one.
    paid_until: Option<Instant>,
    is_oldest_next: bool,
}

impl CallTurns {
    /// A call to a socket or its driver begins.
    pub(super) fn begin(&mut self, now: Instant, ticket: CommandTicket) {
        self.begun.insert(ticket, now);
    }

    /// A call has ended.
    pub(super) fn end(&mut self, ticket: CommandTicket) {
        self.begun.remove(&ticket);
    }

    /// When the next turn may be taken; `None` for at once.
    pub(super) fn free_at(&self) -> Option<Instant> {
        let paced = self.paid_until.and_then(|until| until.checked_sub(GAP * BURST));
        let mut begun: Vec<_> = self.begun.values().copied().collect();
        begun.sort_unstable();
        let last_kept = begun.len().checked_sub(CALLS_MAX).map(|at| begun[at] + SLOW_AFTER);
        paced.max(last_kept)
    }

    /// The next socket, if it may be asked now.
    pub(super) fn next<'a>(
        &mut self,
        now: Instant,
        waiting: impl Iterator<Item = WaitingSocket<'a>>,
    ) -> Option<PathBuf> {
        if self.free_at().is_some_and(|at| at > now) {
            return None;
        }
        let next = match self.is_oldest_next {
            true => waiting.min_by_key(|socket| (socket.since, socket.arrived)),
            false => waiting.min_by_key(|socket| (socket.failures, Reverse(socket.arrived))),
        };
        let path = next?.path.to_owned();
        self.is_oldest_next = !self.is_oldest_next;
        self.paid_until = Some(self.paid_until.map_or(now, |until| until.max(now)) + GAP);
        Some(path)
    }
}
