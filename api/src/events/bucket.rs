//! A token bucket: how long to wait before the next one.
//!
//! Pure: the caller has the clock and does the waiting.

use std::time::{Duration, Instant};

use super::Limits;

/// Tokens that come back with time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    limits: Limits,
    tokens: f64,
    at: Option<Instant>,
}

impl Bucket {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, tokens: f64::from(limits.burst), at: None }
    }

    /// Takes a token; tells how long to wait until there is one.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        if self.limits.per_second <= 0.0 {
            return Duration::ZERO;
        }
        self.fill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(-self.tokens / self.limits.per_second)
    }

    /// Takes a token if there is one.
    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    fn fill(&mut self, now: Instant) {
        let since = self.at.replace(now).map_or(Duration::ZERO, |at| now.duration_since(at));
        let more = since.as_secs_f64() * self.limits.per_second;
        self.tokens = (self.tokens + more).min(f64::from(self.limits.burst));
    }
}
