//! A moment as people name it on the command line: `2026-11-22T21:15:00Z`, `10m`, `21:15:00`.
//!
//! Pure: the caller passes the current time, to which the latter two are relative.

use std::time::Duration;

use jiff::Timestamp;
use pintle_api_types::duration::GoDuration;

use super::ConfigError;

const DAY_SECONDS: i64 = 86_400;
const NANOS_PER_SEC: i64 = 1_000_000_000;

/// A moment in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastMoment {
    /// This one.
    At(Timestamp),
    /// So long before now.
    Ago(Duration),
    /// The last time that it was so many seconds after midnight, UTC.
    OClock(u32),
}

impl PastMoment {
    /// Reads the value of a flag.
    pub(super) fn parse(flag: &str, text: &str) -> Result<Self, ConfigError> {
        if let Some(seconds) = o_clock(text) {
            return Ok(Self::OClock(seconds));
        }
        if let Ok(duration) = text.parse::<GoDuration>()
            && !duration.is_negative()
        {
            return Ok(Self::Ago(duration.to_std()));
        }
        text.parse().map(Self::At).map_err(|_| {
            let remedy = "write 2026-01-31T21:15:00Z, 21:15:00 (UTC), or 10m for ten minutes ago";
            ConfigError::new(flag, format!("{text:?}"), "it is not a valid time", remedy)
        })
    }

    /// Nanoseconds since the Unix epoch, where `now` are as many.
    pub fn unix_nanos(self, now: i64) -> i64 {
        match self {
            Self::At(at) => i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX),
            Self::Ago(ago) => now.saturating_sub(GoDuration::from_std(ago).as_nanos()),
            Self::OClock(seconds) => {
                let today = now.div_euclid(NANOS_PER_SEC).div_euclid(DAY_SECONDS) * DAY_SECONDS;
                let nanos = |second: i64| second.saturating_mul(NANOS_PER_SEC);
                let at = nanos(today + i64::from(seconds));
                if at <= now { at } else { at.saturating_sub(nanos(DAY_SECONDS)) }
            }
        }
    }
}

/// `21:15` or `21:15:30`, in seconds after midnight.
fn o_clock(text: &str) -> Option<u32> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str, below: u32| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number < below)
    };
    match parts.as_slice() {
        [hour, minute] => Some(number(hour, 24)? * 3600 + number(minute, 60)? * 60),
        [hour, minute, second] => {
            Some(number(hour, 24)? * 3600 + number(minute, 60)? * 60 + number(second, 60)?)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-31T12:00:00.5Z
    const NOW: i64 = 1_769_860_800_500_000_000;

    #[test]
    fn moments_are_times_spans_before_now_and_times_of_the_day() {
        let second = NANOS_PER_SEC;
        for (text, nanos) in [
            ("2026-01-31T12:00:00.5Z", NOW),
            ("2026-01-31T13:00:00+01:00", NOW - second / 2),
            ("10m", NOW - 600 * second),
            ("1h30m", NOW - 5400 * second),
            ("0s", NOW),
            ("12:00:00", NOW - second / 2),
            ("11:59", NOW - second / 2 - 60 * second),
            // That was yesterday.
            ("12:00:01", NOW - second / 2 + second - 86_400 * second),
            ("9999-01-01T00:00:00Z", i64::MAX),
        ] {
            let moment = PastMoment::parse("--at", text).expect(text);
            assert_eq!(moment.unix_nanos(NOW), nanos, "{text}");
        }
    }

    #[test]
    fn invalid_time_is_refused_with_examples() {
        for text in ["", "yesterday", "-10m", "24:00:00", "1:2", "12:60", "2026-01-31"] {
            let error = PastMoment::parse("--at", text).expect_err(text).to_string();
            assert!(error.contains("it is not a valid time") && error.contains("10m"), "{error}");
        }
    }
}
