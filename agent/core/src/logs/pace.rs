//! The times of checks of a log, so that it never outgrows its limit by much: pure.
//!
//! Input: the size of a live log at some instant. Output: rotate, check again after some time, or
//! wait for a write. A growing log is checked before it can have grown past a tenth over its limit,
//! at twice its observed speed; one that does not grow costs nothing until its next write wakes us
//! up. Upstream checks every 10 s, in which a 6 MB/s writer is 60 MB further.

use std::time::Duration;

/// Speed that is assumed before one was seen.
const RATE_ASSUMED: u64 = 8 << 20;
/// Growth beyond the limit at which the next look is aimed: a tenth. The other tenth up to the
/// promised 1.2 is for the rotation itself.
const SLACK_DIVISOR: u64 = 10;
/// First look after a log's first write: soon, to learn its speed.
const LEARN: Duration = Duration::from_millis(20);
/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(10);
/// Longest time between two checks of a growing log.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// A log that did not grow for that long is waited for instead of checked.
const QUIET_AFTER: Duration = Duration::from_secs(2);

/// The next step for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// It is at its limit.
    Rotate,
    /// Look again after this time.
    Look(Duration),
    /// Wait for its next write.
    Sleep,
}

/// Growth of one log.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    limit: u64,
    size: u64,
    /// Instants are durations since any fixed origin.
    at: Duration,
    grew_at: Duration,
    /// Bytes per second, the fastest seen of late.
    rate: Option<u64>,
}

impl Pace {
    /// A log that is at `size` at the instant `at`.
    pub fn new(limit: u64, size: u64, at: Duration) -> Self {
        Self { limit, size, at, grew_at: at, rate: None }
    }

    /// Size at the last look.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The log was woken up by a write: look soon.
    pub fn woken(&mut self, at: Duration) -> LogStep {
        self.at = at;
        self.grew_at = at;
        self.rate = None;
        LogStep::Look(LEARN)
    }

    /// The log is at `size` now.
    pub fn observe(&mut self, size: u64, at: Duration) -> LogStep {
        let elapsed = at.saturating_sub(self.at);
        let grown = size.saturating_sub(self.size);
        if grown > 0 {
            self.grew_at = at;
        }
        if !elapsed.is_zero() {
            let rate = u128::from(grown) * 1_000_000 / elapsed.as_micros().max(1);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            // Falls by halves only, so that a pause between bursts is not taken for their end.
            self.rate = Some(rate.max(self.rate.unwrap_or(0) / 2));
        }
        (self.size, self.at) = (size, at);
        if size >= self.limit {
            return LogStep::Rotate;
        }
        if at.saturating_sub(self.grew_at) >= QUIET_AFTER {
            return LogStep::Sleep;
        }
        LogStep::Look(self.until_over())
    }

    /// The live file is a new one.
    pub fn rotated(&mut self, size: u64, at: Duration) -> LogStep {
        self.size = size;
        self.at = at;
        self.grew_at = at;
        LogStep::Look(self.until_over().min(LEARN))
    }

    /// Until the log may be a tenth over its limit.
    fn until_over(&self) -> Duration {
        let ceiling = self.limit.saturating_add(self.limit / SLACK_DIVISOR);
        let room = ceiling.saturating_sub(self.size);
        let speed = self.rate.map_or(RATE_ASSUMED, |r| r.saturating_mul(2).max(RATE_ASSUMED));
        let micros = u128::from(room) * 1_000_000 / u128::from(speed);
        let time = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        time.clamp(LOOK_MIN, LOOK_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Largest live size that a writer of `rate` bytes/s reaches in `seconds`, when a rotation
    /// takes `rotation`; and how often the log was checked.
    fn largest(limit: u64, rate: u64, rotation: Duration, seconds: u64) -> (u64, u64) {
        let bytes = |time: Duration| u64::try_from(u128::from(rate) * time.as_micros() / 1_000_000);
        let (mut now, mut started) = (Duration::ZERO, Duration::ZERO);
        let mut pace = Pace::new(limit, 0, now);
        let mut next = pace.woken(now);
        let (mut largest, mut looks) = (0, 0);
        while now < Duration::from_secs(seconds) {
            match next {
                LogStep::Look(after) => {
                    now += after;
                    looks += 1;
                    next = pace.observe(bytes(now - started).expect("small"), now);
                }
                LogStep::Rotate => {
                    now += rotation;
                    largest = largest.max(bytes(now - started).expect("small"));
                    started = now;
                    next = pace.rotated(0, now);
                }
                LogStep::Sleep => break,
            }
            largest = largest.max(bytes(now - started).expect("small"));
        }
        (largest, looks)
    }

    #[test]
    fn log_at_6_mb_per_second_stays_below_120_percent_of_its_limit() {
        let slow_rotation = Duration::from_millis(80);
        for limit in [5 * MIB, 10 * MIB, 50 * MIB] {
            let (largest, looks) = largest(limit, 6_000_000, slow_rotation, 60);
            assert!(largest < limit + limit / 5, "{limit}: {largest}");
            assert!(looks < 60 * 40, "{limit}: {looks} looks in a minute");
        }
    }

    #[test]
    fn slow_log_is_checked_about_once_a_second_and_a_silent_log_stops_being_checked() {
        let (_, looks) = largest(10 * MIB, 1000, Duration::ZERO, 60);
        assert!(looks <= 80, "{looks}");
        let mut pace = Pace::new(10 * MIB, 100, Duration::ZERO);
        let mut now = Duration::ZERO;
        let mut looks = 0;
        while let LogStep::Look(after) = pace.observe(100, now) {
            now += after;
            looks += 1;
        }
        assert!(looks <= 4, "{looks}");
    }

    proptest! {
        #[test]
        fn no_steady_writer_outgrows_the_limit_by_a_fifth(
            limit_mib in 1_u64..200,
            rate in 0_u64..20_000_000,
        ) {
            let limit = limit_mib * MIB;
            // As fast as a rotation is at least a fiftieth of the limit away.
            let rate = rate.min(limit);
            let (largest, _) = largest(limit, rate, Duration::from_millis(40), 30);
            prop_assert!(largest < limit + limit / 5, "{}", largest);
        }
    }
}
