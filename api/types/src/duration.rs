//! Durations the way Kubernetes writes them: `1m0s`, `100ms`, `2h45m`, `-1s`.
//!
//! Input: text of a flag, a configuration file or an API object. Output: [`GoDuration`], which
//! prints exactly what Go's `time.Duration` prints, because `/configz` and the files on disk are
//! compared with the kubelet's. Range: signed 64-bit nanoseconds, about 292 years either way;
//! anything beyond is an error, never a wrap.
//!
//! It is a type of its own, and not `std::time::Duration`, because negative values have a meaning
//! here ("off") and because the textual form is part of the contract.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANOS_PER_MICRO: i64 = 1_000;
const NANOS_PER_MILLI: i64 = 1_000_000;
const NANOS_PER_SEC: i64 = 1_000_000_000;
const NANOS_PER_MIN: i64 = 60 * NANOS_PER_SEC;
const NANOS_PER_HOUR: i64 = 60 * NANOS_PER_MIN;

/// A signed duration in nanoseconds with Go's textual form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// A text that is not a Go duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration such as 300ms, 10s or 1h30m")]
pub struct DurationError {
    text: String,
}

impl GoDuration {
    /// A duration of whole seconds.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }

    /// A duration of nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds, negative when the duration is.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// True for exactly zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// True below zero; most fields read this as "switched off".
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// A duration of the standard library; a too long one becomes Go's longest.
    pub fn from_std(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }

    /// The span for timers; negative becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl From<GoDuration> for Duration {
    fn from(value: GoDuration) -> Self {
        value.to_std()
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        parse(text).map(Self).ok_or_else(|| DurationError { text: text.to_owned() })
    }
}

/// Go's `time.ParseDuration`: sign, then one or more `number unit` pairs; only `0` has no unit.
fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_len);
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        nanos = nanos.checked_add(pair_nanos(number, unit_nanos(unit)?)?)?;
        rest = tail;
    }
    i64::try_from(if negative { -nanos } else { nanos }).ok()
}

fn unit_nanos(unit: &str) -> Option<i64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => NANOS_PER_MICRO,
        "ms" => NANOS_PER_MILLI,
        "s" => NANOS_PER_SEC,
        "m" => NANOS_PER_MIN,
        "h" => NANOS_PER_HOUR,
        _ => return None,
    })
}

/// `number` is digits with at most one point; digits finer than a nanosecond are cut off.
fn pair_nanos(number: &str, unit: i64) -> Option<i128> {
    /// More fraction digits than this cannot change the result for any unit.
    const FRACTION_DIGITS_MAX: usize = 18;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let unit = i128::from(unit);
    let whole: i128 = if whole.is_empty() { 0 } else { i128::from(whole.parse::<i64>().ok()?) };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
    let part = if fraction.is_empty() {
        0
    } else {
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        fraction.parse::<i128>().ok()? * unit / scale
    };
    whole.checked_mul(unit)?.checked_add(part)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < NANOS_PER_SEC.unsigned_abs() {
            let (unit, size) = match nanos {
                n if n < NANOS_PER_MICRO.unsigned_abs() => ("ns", 1),
                n if n < NANOS_PER_MILLI.unsigned_abs() => ("\u{b5}s", NANOS_PER_MICRO),
                _ => ("ms", NANOS_PER_MILLI),
            };
            return write!(f, "{sign}{}{unit}", decimal(nanos, size.unsigned_abs()));
        }
        let hours = nanos / NANOS_PER_HOUR.unsigned_abs();
        let minutes = nanos / NANOS_PER_MIN.unsigned_abs() % 60;
        let rest = decimal(nanos % NANOS_PER_MIN.unsigned_abs(), NANOS_PER_SEC.unsigned_abs());
        match (hours, minutes) {
            (0, 0) => write!(f, "{sign}{rest}s"),
            (0, minutes) => write!(f, "{sign}{minutes}m{rest}s"),
            (hours, minutes) => write!(f, "{sign}{hours}h{minutes}m{rest}s"),
        }
    }
}

/// `nanos / unit` as a decimal without trailing zeros; `unit` is a power of ten.
fn decimal(nanos: u64, unit: u64) -> String {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').to_owned()
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| {
            D::Error::invalid_value(Unexpected::Str(&text), &"a duration such as 300ms or 1h30m")
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_print_as_in_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (100 * NANOS_PER_MILLI, "100ms"),
            (3_300 * NANOS_PER_MILLI, "3.3s"),
            (60 * NANOS_PER_SEC, "1m0s"),
            (4 * NANOS_PER_HOUR, "4h0m0s"),
            (4 * NANOS_PER_MIN + 5_001 * NANOS_PER_MILLI, "4m5.001s"),
            (5 * NANOS_PER_HOUR + 6 * NANOS_PER_MIN + 7_001 * NANOS_PER_MILLI, "5h6m7.001s"),
            (-NANOS_PER_SEC, "-1s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration(nanos).to_string(), text);
        }
    }

    #[test]
    fn accepts_durations_that_go_accepts() {
        for (text, nanos) in [
            ("0", 0),
            ("+5s", 5 * NANOS_PER_SEC),
            ("-0", 0),
            ("1.5h", 90 * NANOS_PER_MIN),
            (".5s", 500 * NANOS_PER_MILLI),
            ("1.s", NANOS_PER_SEC),
            ("1h15m30.918s", 4_530_918 * NANOS_PER_MILLI),
            ("0.3333333333333333333h", 20 * NANOS_PER_MIN - 1),
            ("-2562047h47m16.854775808s", i64::MIN),
        ] {
            assert_eq!(text.parse::<GoDuration>().map(GoDuration::as_nanos), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn rejects_durations_that_go_rejects() {
        for text in
            ["", "3", "-", "s", ".", ".s", "1..s", "1.2.3s", "1d", "1 s", "9223372036854775808ns"]
        {
            assert!(text.parse::<GoDuration>().is_err(), "{text:?} must be refused");
        }
    }

    proptest! {
        #[test]
        fn every_duration_survives_being_printed_and_read(nanos: i64) {
            let duration = GoDuration(nanos);
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9.hmsunµ]{0,40}|.{0,40}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
