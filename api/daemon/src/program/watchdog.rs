//! Checks that the deciding thread still makes turns, on a thread of its own.
//!
//! ```text
//!   deciding thread ── mark, each turn ─> DecisionTurns <── look, each second ── watchdog
//!                                             │                            │ no turn for STALL_MAX
//!                     /livez, /healthz fail <─┴── given up <───────────────┴──> lease ends, exit 1
//! ```
//! Input: turns. Output: health, the end of the lease and of the process. Owner: [`DecisionTurns`] is
//! shared atomics; the thread. Bounds: `STALL_MAX`. The deciding thread makes a turn each five
//! seconds when it has nothing to do, so a missing turn means that the thread is blocked. Time in
//! which the whole process did not run does not count: a check counts `LOOK_EVERY` twice at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::StartError;
use super::lease::LeaseKeeper;
use crate::serve::checks::CheckFault;
use crate::tasks;

/// A thread that made no turn for so long is stuck: an attempt has a second or two.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a process that gave up continues, so that its failing health check is observed.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// Longest wait for the lease to be released.
const LEASE_MAX: Duration = Duration::from_secs(3);

/// The deciding thread's state, for other threads.
#[derive(Debug, Default)]
pub struct DecisionTurns {
    count: AtomicU64,
    /// Writes without an answer.
    ahead: AtomicUsize,
    is_given_up: AtomicBool,
}

impl DecisionTurns {
    /// The thread begins another turn.
    pub fn mark(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of writes in flight: the API server may have seen only some of them.
    pub fn set_ahead(&self, ahead: usize) {
        self.ahead.store(ahead, Ordering::SeqCst);
    }

    /// True if the process is about to end because the thread is stuck: no write may begin any
    /// more.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }

    /// The health of the thread.
    ///
    /// # Errors
    /// When it was given up.
    pub fn check(&self) -> Result<(), CheckFault> {
        if self.is_given_up() {
            return Err(CheckFault::StuckThread(STALL_MAX));
        }
        Ok(())
    }

    /// Ends the lease because the thread may be stuck for ever. It is released only if no write is
    /// in flight: one without an answer may still take effect. Otherwise it expires.
    pub fn give_up(&self, lease: Option<&LeaseKeeper>) {
        self.is_given_up.store(true, Ordering::SeqCst);
        let Some(lease) = lease else { return };
        match self.ahead.load(Ordering::SeqCst) {
            0 => lease.release_within(LEASE_MAX),
            _ => lease.abandon(),
        }
    }
}

/// The observed state of a thread.
#[derive(Debug, Default)]
struct Watchdog {
    turns: u64,
    stalled: Duration,
}

impl Watchdog {
    /// Returns true if the thread is stuck, by the number of its turns and the time since the last
    /// check. A thread that has not begun is not stuck.
    fn look(&mut self, turns: u64, passed: Duration) -> bool {
        if turns == 0 || turns != self.turns {
            *self = Self { turns, stalled: Duration::ZERO };
            return false;
        }
        self.stalled = self.stalled.saturating_add(passed.min(LOOK_EVERY * 2));
        self.stalled >= STALL_MAX
    }
}

/// Watches the deciding thread until the process ends.
///
/// # Errors
/// When there is no thread to be had.
pub fn start(turns: Arc<DecisionTurns>, lease: Option<LeaseKeeper>) -> Result<(), StartError> {
    let watches = move || {
        let (mut watchdog, mut last) = (Watchdog::default(), Instant::now());
        loop {
            std::thread::sleep(LOOK_EVERY);
            let passed = last.elapsed();
            last = Instant::now();
            if watchdog.look(turns.count.load(Ordering::Relaxed), passed) {
                break;
            }
        }
        tracing::error!(
            "the deciding thread is stuck: no turn for {STALL_MAX:?}; the lease and this process end"
        );
        let began = Instant::now();
        turns.give_up(lease.as_ref());
        std::thread::sleep(LAST_LOOK.saturating_sub(began.elapsed()));
        std::process::exit(1);
    };
    let started = tasks::thread("watchdog", watches);
    started.map(drop).map_err(|source| StartError::Thread { name: "watchdog", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a thread that makes these turns, one entry a look, is stuck.
    fn stuck_after(turns: impl IntoIterator<Item = (u64, u64)>) -> Option<usize> {
        let mut watchdog = Watchdog::default();
        let mut looks = turns.into_iter();
        looks.position(|(turns, passed)| watchdog.look(turns, Duration::from_secs(passed)))
    }

    #[test]
    fn thread_without_a_turn_for_a_minute_is_stuck() {
        let same = |turns: u64, looks: usize| std::iter::repeat_n((turns, 1), looks);
        assert_eq!(stuck_after(same(0, 500)), None, "it has not begun");
        assert_eq!(stuck_after(same(7, 60)), None, "59 s after the first look");
        assert_eq!(stuck_after(same(7, 100)), Some(60));
        assert_eq!(stuck_after(same(7, 59).chain(same(8, 60))), None, "a turn begins it again");
        assert_eq!(stuck_after((1..500).map(|at| (at / 50, 1))), None, "one turn in 50 s");
    }

    #[test]
    fn time_in_which_the_process_did_not_run_does_not_count() {
        assert_eq!(stuck_after([(7, 1), (7, 3_600), (7, 1), (8, 1), (8, 3_600)]), None);
    }

    #[test]
    fn health_fails_once_the_thread_was_given_up() {
        let turns = DecisionTurns::default();
        assert_eq!(turns.check(), Ok(()));
        turns.give_up(None);
        assert_eq!(turns.check(), Err(CheckFault::StuckThread(STALL_MAX)));
    }
}
