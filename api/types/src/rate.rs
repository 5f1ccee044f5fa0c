//! A token bucket: how many events may come at once, and how many each second in the long run.
//!
//! Pure: the caller brings the time and does the waiting. Input: a `Rate`, and the time at which a
//! caller needs a token. Output: whether there is one, or how long to wait for it.
// k8s: staging/src/k8s.io/client-go/util/flowcontrol/throttle.go

use std::time::{Duration, Instant};

/// A wait that is left when all but a rounding error has passed: none would be a turn of its own.
const WAIT_MIN: Duration = Duration::from_micros(1);

/// Limits of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Each second in the long run; no limit at all when it is not above zero.
    pub per_second: f64,
    /// Events at once; at least one.
    pub burst: u32,
}

impl Rate {
    /// The rate of client-go for these settings: zero stands for its own defaults.
    // k8s: staging/src/k8s.io/client-go/rest/config.go RESTClientForConfigAndClient
    #[must_use]
    pub fn of_settings(per_second: impl Into<f64>, burst: i32) -> Self {
        let per_second = per_second.into();
        let per_second = if per_second == 0.0 { 5.0 } else { per_second };
        let burst = if burst == 0 { 10 } else { burst };
        Self { per_second, burst: u32::try_from(burst).unwrap_or(0) }
    }
}

/// Tokens that come back with time.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    /// `None` before the first use: it is full.
    filled_at: Option<Instant>,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate) -> Self {
        let rate = Rate { burst: rate.burst.max(1), ..rate };
        Self { rate, tokens: f64::from(rate.burst), filled_at: None }
    }

    /// The wait for a token; zero when there is one.
    pub fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        if self.is_open() || self.tokens >= 1.0 {
            return Duration::ZERO;
        }
        self.time_for(1.0 - self.tokens).max(WAIT_MIN)
    }

    /// Takes a token that is there.
    pub fn spend(&mut self) {
        if !self.is_open() {
            self.tokens -= 1.0;
        }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let is_there = self.wait(now).is_zero();
        if is_there {
            self.spend();
        }
        is_there
    }

    /// Takes a token, even one that is not there yet; returns how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.spend();
        self.time_for((-self.tokens).max(0.0))
    }

    /// Nothing was taken that has not come back.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.tokens >= f64::from(self.rate.burst)
    }

    fn is_open(&self) -> bool {
        self.rate.per_second <= 0.0
    }

    fn time_for(&self, tokens: f64) -> Duration {
        if self.is_open() {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(tokens / self.rate.per_second).unwrap_or(Duration::MAX)
    }

    fn fill(&mut self, now: Instant) {
        let before = self.filled_at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(before).as_secs_f64();
        let more = passed * self.rate.per_second.max(0.0);
        self.tokens = (self.tokens + more).min(f64::from(self.rate.burst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64, burst: u32) -> Bucket {
        Bucket::new(Rate { per_second, burst })
    }

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let begun = Instant::now();
        let mut bucket = rate(10.0, 2);
        let mut waits = |after_ms: u64, count: usize| -> Vec<_> {
            let now = begun + Duration::from_millis(after_ms);
            let one = |_| {
                let wait = bucket.wait(now);
                if wait.is_zero() {
                    bucket.spend();
                }
                wait.as_millis()
            };
            (0..count).map(one).collect()
        };
        assert_eq!(waits(0, 4), [0, 0, 100, 100]);
        assert_eq!(waits(100, 2), [0, 100]);
        assert_eq!(waits(60_000, 3), [0, 0, 100], "no more is saved up than the burst");
    }

    #[test]
    fn take_from_an_empty_bucket_waits_behind_earlier_takes() {
        let now = Instant::now();
        let mut bucket = rate(10.0, 3);
        let waits: Vec<_> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert!(!bucket.is_full(now));
        let later = now + Duration::from_secs(1);
        assert!(bucket.is_full(later));
        assert_eq!(bucket.take(later), Duration::ZERO);
    }

    #[test]
    fn try_take_is_refused_beyond_the_rate() {
        let start = Instant::now();
        let mut bucket = rate(5.0, 10);
        assert_eq!((0..20).filter(|_| bucket.try_take(start)).count(), 10);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| bucket.try_take(later)).count(), 5);
        assert!(!bucket.try_take(start), "a clock that goes back gives nothing");
    }

    #[test]
    fn settings_of_zero_are_client_gos_own() {
        for ((per_second, burst), want) in [
            ((50, 100), (50.0, 100)),
            ((0, 100), (5.0, 100)),
            ((50, 0), (50.0, 10)),
            ((0, 0), (5.0, 10)),
            ((-1, 0), (-1.0, 10)),
        ] {
            let rate = Rate::of_settings(per_second, burst);
            assert_eq!((rate.per_second, rate.burst), want, "{per_second} {burst}");
        }
    }

    #[test]
    fn zero_rate_means_no_limit_and_the_smallest_rate_does_not_overflow() {
        let now = Instant::now();
        for mut open in [rate(0.0, 0), rate(-1.0, 1)] {
            assert!((0..100).all(|_| open.try_take(now)));
            assert_eq!(open.take(now), Duration::ZERO);
        }
        let mut least = rate(f64::MIN_POSITIVE, 1);
        assert_eq!(least.take(now), Duration::ZERO);
        assert_eq!(least.take(now), Duration::MAX);
    }
}
