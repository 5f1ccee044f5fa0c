//! Waits after failures, as client-go's reflector has them: pure.
//!
//! From the first, doubling up to the longest, each up to twice as long by chance. After `RESET` without
//! one, the next is short again. (client-go begins anew every two minutes of an outage, too, which
//! its own comment does not ask for.)
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go defaultBackoffInit

use std::time::Duration;

/// First and longest wait, without chance.
pub const CLIENT_GO: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
const RESET: Duration = Duration::from_secs(120);
/// Parts of itself that a wait may be longer.
const JITTER: f64 = 1.0;

/// The waits of one reflector.
#[derive(Clone, Debug)]
pub(super) struct ReflectorBackoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    /// When the last wait ended.
    ended: Duration,
}

impl ReflectorBackoff {
    pub(super) fn new((first, longest): (Duration, Duration)) -> Self {
        Self { first, longest, next: first, ended: Duration::ZERO }
    }

    /// The next wait; `chance` is from 0 to 1.
    pub(super) fn wait(&mut self, now: Duration, chance: f64) -> Duration {
        if now.saturating_sub(self.ended) > RESET {
            self.next = self.first;
        }
        let wait = self.next.mul_f64(1.0 + JITTER * chance);
        self.next = (self.next * 2).min(self.longest);
        self.ended = now + wait;
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_begin_anew_after_peace() {
        let mut backoff = ReflectorBackoff::new(CLIENT_GO);
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = backoff.wait(now, 0.0);
            now += wait;
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff.wait(now + RESET, 0.5), CLIENT_GO.1.mul_f64(1.5), "trouble goes on");
        let now = backoff.ended + RESET + Duration::from_millis(1);
        assert_eq!(backoff.wait(now, 1.0), CLIENT_GO.0 * 2);
    }
}
