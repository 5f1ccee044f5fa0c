//! One registration socket: what is under way for it, and when it is tried again.
//!
//! Pure. The first waits are short, because a plugin makes its socket's file before it listens;
//! from half a second on they are the kubelet's. A recreated file starts over. Bound: `RETRY_MAX`.
// k8s: pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go

use std::path::Path;
use std::time::{Duration, Instant};

use super::CommandTicket;
use super::turns::WaitingSocket;
use crate::csi::Node;
use crate::scan::{FileId, Nanos, Socket};

/// Wait after the first failure.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest wait.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(2 * 60 + 2);

/// What is known about a socket.
#[derive(Debug)]
pub(super) struct SocketEntry {
    pub(super) file: FileId,
    /// Change time of the file when it was first seen: a later chmod does not make it newer.
    changed: Nanos,
    /// Number of its first command: the clock of files stands still for milliseconds.
    arrived: CommandTicket,
    pub(super) state: State,
    failures: u32,
    problem: Option<String>,
}

/// What is under way.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Its plugin is to be asked what it is, since then, once it is its turn.
    Waiting(Instant),
    /// Its plugin is being asked what it is.
    Asking(CommandTicket),
    /// The driver of that name is being asked about itself.
    Inspecting(CommandTicket, String, Node),
    /// It is registered; NotifyRegistrationStatus is under way.
    Confirming(CommandTicket),
    /// It is registered.
    Registered,
    /// It is tried again then.
    Failed(Instant),
    /// A newer socket has the name, and why that is said.
    Older(String, String),
}

impl SocketEntry {
    /// A new socket, which waits for its first turn.
    pub(super) fn new(socket: &Socket, now: Instant, arrived: CommandTicket) -> Self {
        Self {
            file: socket.file,
            changed: socket.changed,
            arrived,
            state: State::Waiting(now),
            failures: 0,
            problem: None,
        }
    }

    /// Grows with each newer socket.
    pub(super) fn age(&self) -> (Nanos, CommandTicket) {
        (self.changed, self.arrived)
    }

    /// The answer that is awaited.
    pub(super) fn ticket(&self) -> Option<CommandTicket> {
        match self.state {
            State::Asking(ticket) | State::Inspecting(ticket, ..) | State::Confirming(ticket) => {
                Some(ticket)
            }
            State::Waiting(_) | State::Registered | State::Failed(_) | State::Older(..) => None,
        }
    }

    /// What its turn depends on, if it waits for one.
    pub(super) fn waits<'a>(&self, path: &'a Path) -> Option<WaitingSocket<'a>> {
        let State::Waiting(since) = self.state else { return None };
        let (failures, arrived) = (self.failures, self.arrived);
        Some(WaitingSocket { path, failures, since, arrived })
    }

    /// When it is tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            State::Failed(due) => Some(due),
            _ => None,
        }
    }

    /// Why it is not registered; `None` when it is.
    pub(super) fn problem(&self) -> Option<Option<String>> {
        match &self.state {
            State::Registered | State::Confirming(_) => None,
            State::Older(_, why) => Some(Some(why.clone())),
            State::Waiting(_) | State::Asking(_) | State::Inspecting(..) | State::Failed(_) => {
                Some(self.problem.clone())
            }
        }
    }

    /// It is registered and knows.
    pub(super) fn succeed(&mut self) {
        self.state = State::Registered;
        self.failures = 0;
        self.problem = None;
    }

    /// It is tried again after a while.
    pub(super) fn fail(&mut self, now: Instant, why: String) {
        let factor = 2u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Failed(now + RETRY_MIN.saturating_mul(factor).min(RETRY_MAX));
        tracing::debug!(why, "a plugin is not registered");
        self.problem = Some(why);
    }
}
