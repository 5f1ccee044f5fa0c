//! Backoff of rejected pods: longer after each rejection.
//!
//! Pure. Times are since the process began. Ends of backoffs are rounded down to whole windows;
//! within a window the order is that of the active pods.
// k8s: pkg/scheduler/backend/queue/backoff_queue.go

use std::time::Duration;

/// Backoffs that end within one window end together.
const WINDOW: Duration = Duration::from_secs(1);

/// The initial backoff and the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// podInitialBackoffSeconds.
    pub initial: Duration,
    /// podMaxBackoffSeconds; zero disables backoff.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// Returns the end of the backoff of a pod that came back at `since`, for the `count`th time;
    /// `None` without backoff.
    pub(super) fn until(&self, since: Duration, count: u32) -> Option<Duration> {
        (count > 0 && !self.max.is_zero()).then(|| aligned(since + self.wait(count)))
    }

    fn wait(&self, count: u32) -> Duration {
        let factor = 1_u32.checked_shl(count - 1).unwrap_or(u32::MAX);
        self.initial.saturating_mul(factor).min(self.max)
    }

    /// Returns true until the window in which the backoff ends is over.
    pub(super) fn is_before_its_end(&self, until: Duration, now: Duration) -> bool {
        until >= aligned(now)
    }

    /// Returns when the backoff is over.
    pub(super) fn over_at(&self, until: Duration) -> Duration {
        aligned(until) + WINDOW
    }
}

pub(super) fn aligned(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(backoff: Backoff, count: u32) -> Option<u64> {
        backoff.until(Duration::ZERO, count).map(|until| until.as_secs())
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let usual = Backoff::default();
        let waits: Vec<_> = (0..7).map(|count| seconds(usual, count)).collect();
        assert_eq!(waits, [None, Some(1), Some(2), Some(4), Some(8), Some(10), Some(10)]);
        assert_eq!(seconds(usual, 1000), Some(10));
        let none = Backoff { max: Duration::ZERO, ..usual };
        assert_eq!(seconds(none, 5), None);
        let long_first = Backoff { initial: Duration::from_secs(20), ..usual };
        assert_eq!(seconds(long_first, 1), Some(10), "never longer than the longest");
    }

    #[test]
    fn backoff_ends_on_whole_seconds_and_expires_in_the_next_second() {
        let usual = Backoff::default();
        let until = usual.until(Duration::from_millis(2_700), 1).expect("it waits");
        assert_eq!(until, Duration::from_secs(3));
        for (now, early) in [(2_999, true), (3_000, true), (3_999, true), (4_000, false)] {
            let now = Duration::from_millis(now);
            assert_eq!(usual.is_before_its_end(until, now), early, "{now:?}");
        }
        assert_eq!(usual.over_at(until), Duration::from_secs(4));
    }
}
