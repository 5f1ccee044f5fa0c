//! Waits after failures, as client-go's reflector has them: pure.
//!
//! The waits double from the first up to the longest, and jitter makes each up to twice as long. A
//! wait that begins more than `RESET` after the last restart is the first one again, even during an
//! outage, because the waits of a request that fails once a minute must not grow to the longest.
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go defaultBackoffInit

use std::time::Duration;

/// First and longest wait, without jitter.
pub const REFLECTOR_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(800), Duration::from_secs(30));
const RESET: Duration = Duration::from_secs(120);
/// The most jitter, as a multiple of the wait that it is added to.
const JITTER: f64 = 1.0;

/// The waits of one reflector.
#[derive(Clone, Debug)]
pub(super) struct ReflectorBackoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    /// Time of the last restart at the first wait.
    began: Duration,
}

impl ReflectorBackoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first, began: Duration::ZERO }
    }

    /// The next wait; `chance` is a random number from 0 to 1.
    // k8s: staging/src/k8s.io/apimachinery/pkg/util/wait/backoff.go backoffManager.Step
    pub(super) fn wait(&mut self, now: Duration, chance: f64) -> Duration {
        if now.saturating_sub(self.began) > RESET {
            (self.next, self.began) = (self.first, now);
        }
        let wait = self.next.mul_f64(1.0 + JITTER * chance);
        self.next = (self.next * 2).min(self.longest);
        wait
    }

    /// The server works again: the next wait is the first one.
    pub(super) fn well(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_limit_and_resets_after_two_minutes() {
        let mut backoff = ReflectorBackoff::new(REFLECTOR_BACKOFF.0, REFLECTOR_BACKOFF.1);
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..10 {
            let wait = backoff.wait(now, 0.0);
            now += wait;
            waits.push(wait.as_millis());
        }
        let doubling = [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000, 30_000];
        assert_eq!((&waits[..9], waits[9]), (&doubling[..], 800));
        assert_eq!(
            backoff.wait(now, 0.5),
            REFLECTOR_BACKOFF.0 * 3,
            "doubled, with half the jitter"
        );
        backoff.well();
        assert_eq!(backoff.wait(now, 1.0), REFLECTOR_BACKOFF.0 * 2);
    }

    #[test]
    fn backoff_stays_short_for_failures_100_seconds_apart() {
        let mut backoff = ReflectorBackoff::new(REFLECTOR_BACKOFF.0, REFLECTOR_BACKOFF.1);
        let mut now = Duration::ZERO;
        for _ in 0..20 {
            let wait = backoff.wait(now, 0.0);
            assert!(wait <= REFLECTOR_BACKOFF.0 * 2, "{wait:?} after {now:?}");
            now += wait + Duration::from_secs(100);
        }
    }
}
