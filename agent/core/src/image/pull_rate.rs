//! A token bucket for the start of image pulls.
//!
//! Pure: the caller brings the time. `registryPullQPS` tokens a second, at most `registryBurst`
//! saved up; a rate of 0 never refuses.

use std::time::Instant;

/// The bucket.
#[derive(Debug)]
pub struct PullRate {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Instant,
}

impl PullRate {
    /// A full bucket.
    pub fn new(per_second: f64, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self { per_second, burst, tokens: burst, filled_at: now }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        if self.per_second <= 0.0 {
            return true;
        }
        let since = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + since * self.per_second).min(self.burst);
        self.filled_at = now;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = PullRate::new(5.0, 10, start);
        assert_eq!((0..20).filter(|_| rate.take(start)).count(), 10);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| rate.take(later)).count(), 5);
    }

    #[test]
    fn a_rate_of_zero_never_refuses() {
        let start = Instant::now();
        let mut rate = PullRate::new(0.0, 1, start);
        assert!((0..100).all(|_| rate.take(start)));
    }
}
