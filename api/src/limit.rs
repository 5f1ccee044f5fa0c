//! The limit of requests per second, with a burst.
//!
//! `Bucket` is pure: it takes the time and says how long to wait. Requests are let through in the
//! order in which they come.
// k8s: staging/src/k8s.io/client-go/util/flowcontrol/throttle.go

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests per second and how many may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second, above zero.
    pub per_second: f64,
    /// How many may come at once, at least one.
    pub burst: u32,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    /// May be negative: requests that wait have taken theirs already.
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: f64::from(rate.burst.max(1)), filled_at: now }
    }

    /// Takes a token; says how long to wait for it.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        let full = f64::from(self.rate.burst.max(1));
        self.tokens = (self.tokens + passed * self.rate.per_second).min(full) - 1.0;
        self.filled_at = now;
        match self.tokens < 0.0 {
            true => Duration::from_secs_f64(-self.tokens / self.rate.per_second),
            false => Duration::ZERO,
        }
    }
}

/// Holds requests back.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<Bucket>);

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self(Mutex::new(Bucket::new(rate, Instant::now())))
    }

    /// Waits for this request's turn; says how long that took.
    pub(crate) async fn turn(&self) -> Duration {
        let wait = self.0.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits_its_turn() {
        let begun = Instant::now();
        let mut bucket = Bucket::new(Rate { per_second: 10.0, burst: 2 }, begun);
        let millis = |wait: Duration| wait.as_millis();
        assert_eq!([0, 0, 100, 200], [(); 4].map(|()| millis(bucket.take(begun))));
        let later = begun + Duration::from_secs(60);
        assert_eq!([0, 0, 100], [(); 3].map(|()| millis(bucket.take(later))));
    }
}
