//! How long a call to the runtime takes on this node lately, to recognize one that hangs.
//!
//! Input: how long calls took that ended. Output: how long to wait for another one. A fixed limit
//! takes every call of a slow node, or of a busy one, for one that hangs, and then the limits on
//! simultaneous work have no effect. Pure. The estimate moves to the median, so calls that a pod
//! makes slow lengthen no wait while most calls are quick. Bounds: `WAIT_MAX`.

use std::cell::Cell;
use std::time::Duration;

/// Longest wait for a call that takes long.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A call hangs that takes this many times as long as others.
const TIMES: u32 = 4;
/// Part of the estimate by which a call that took longer, or less long, changes it.
const STEP: u32 = 5;
/// Where the estimate begins, and the least it can be.
const LEAST: Duration = Duration::from_millis(50);

/// The estimate.
#[derive(Debug)]
pub(crate) struct CallPace(Cell<Duration>);

impl Default for CallPace {
    fn default() -> Self {
        Self(Cell::new(LEAST))
    }
}

impl CallPace {
    /// A call has ended.
    pub(crate) fn ended(&self, took: Duration) {
        let usual = self.0.get();
        let next = if took > usual { usual + usual / STEP } else { usual - usual / STEP };
        self.0.set(next.clamp(LEAST, WAIT_MAX));
    }

    /// How long to wait for a call that should take no longer than `least` on a quick node.
    pub(crate) fn wait(&self, least: Duration) -> Duration {
        (self.0.get() * TIMES).min(WAIT_MAX).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The wait after these calls, in turn.
    fn after(calls: impl IntoIterator<Item = u64>) -> Duration {
        let pace = CallPace::default();
        calls.into_iter().for_each(|ms| pace.ended(Duration::from_millis(ms)));
        pace.wait(SECOND)
    }

    #[test]
    fn wait_grows_on_a_slow_node_and_shrinks_when_calls_are_quick_again() {
        assert_eq!(after([]), SECOND);
        assert_eq!(after([100; 50]), SECOND, "a quick node");
        let slow = after([2_000; 50]);
        assert!(slow > 6 * SECOND && slow <= WAIT_MAX, "{slow:?}");
        assert_eq!(after([60_000; 500]), WAIT_MAX);
        assert_eq!(after([[2_000; 50], [100; 50]].concat()), SECOND);
    }

    #[test]
    fn minority_of_slow_calls_does_not_lengthen_the_wait() {
        let calls = (0..1_000).map(|n| if n % 3 == 0 { 60_000 } else { 100 });
        assert_eq!(after(calls), SECOND);
    }
}
