//! Timestamps and durations of expressions.
//!
//! Input: texts and numbers. Output: times, or errors. Owner: pure functions except for names of
//! zones, which are read from this machine and cached by each thread. Bounds: the years 1 to 9999,
//! durations of 64 bits of nanoseconds, `ZONES_MAX` cached zones a thread.
// k8s: vendor/github.com/google/cel-go/common/types/{timestamp,duration,overflow}.go

use std::cell::RefCell;
use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use pintle_api_types::duration::GoDuration;

use super::error::CelError;
use super::eval::{Evaluated, no_overload};
use super::texts::quote;
use super::value::Value;

/// CEL's names of the types.
pub(super) const TIME: &str = "google.protobuf.Timestamp";
pub(super) const DURATION: &str = "google.protobuf.Duration";
/// Years 1 to 9999, in seconds from 1970 on.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
const DAY: i64 = 86_400;
const NANOS: i64 = 1_000_000_000;
/// Zones that a thread caches; at the limit its cache is cleared.
const ZONES_MAX: usize = 64;
/// Directory of time zones.
const ZONES: &str = "/usr/share/zoneinfo";

/// A timestamp, and its offset east of Greenwich as written.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    seconds: i64,
    nanos: i64,
    east: i64,
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Time {
    /// Returns the key by which times are ordered.
    pub(super) fn key(self) -> (i64, i64) {
        (self.seconds, self.nanos)
    }

    /// Creates a time from seconds since 1970.
    pub(super) fn of(seconds: i64) -> Result<Self, CelError> {
        match SECONDS.contains(&seconds) {
            true => Ok(Self { seconds, nanos: 0, east: 0 }),
            false => Err("timestamp overflow".into()),
        }
    }

    /// Parses a timestamp; `None` for an invalid one.
    pub(super) fn parse(text: &str) -> Option<Result<Self, CelError>> {
        let number = |from: usize, to: usize| {
            let digits = text.get(from..to)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
        };
        let signs = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        let bytes = text.as_bytes();
        if signs.iter().any(|(at, sign)| bytes.get(*at) != Some(sign)) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        if !(1..=12).contains(&month) || day < 1 || day > days_of(year, month) {
            return None;
        }
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let (nanos, zone) = fraction(text.get(19..)?)?;
        let east = east(zone)?;
        let local = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
        Some(Self::of(local - east).map(|time| Self { nanos, east, ..time }))
    }

    /// Adds nanoseconds.
    fn plus(self, nanos: i64) -> Result<Self, CelError> {
        let all = self.nanos + nanos % NANOS;
        let seconds = self.seconds + nanos / NANOS + all.div_euclid(NANOS);
        let time = Self::of(seconds)?;
        Ok(Self { nanos: all.rem_euclid(NANOS), east: self.east, ..time })
    }

    pub(super) fn seconds(self) -> i64 {
        self.seconds
    }

    /// Returns year, month, day, the day of the year from 0 on, and seconds of the day, at this
    /// offset.
    fn civil(self, east: i64) -> ([i64; 4], i64) {
        let local = self.seconds + east;
        let day_number = local.div_euclid(DAY);
        let (year, month, day) = date(day_number);
        ([year, month, day, day_number - days(year, 1, 1)], local.rem_euclid(DAY))
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ([year, month, day, _], time) = self.civil(self.east);
        let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if self.nanos != 0 {
            let digits = format!("{:09}", self.nanos);
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        match self.east {
            0 => f.write_str("Z"),
            east => {
                let sign = if east < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", east.abs() / 3600, east.abs() / 60 % 60)
            }
        }
    }
}

/// Returns true if the text is a date such as `2024-02-29`.
pub(super) fn is_date(text: &str) -> bool {
    text.len() == 10 && Time::parse(&format!("{text}T00:00:00Z")).is_some()
}

/// Parses a fraction of a second after a point or a comma; returns nanoseconds and the rest.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix(['.', ',']) else { return Some((0, text)) };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return None;
    }
    let nanos = format!("{:0<9}", &rest[..digits.min(9)]).parse().ok()?;
    Some((nanos, &rest[digits..]))
}

/// Parses an offset into seconds east of Greenwich.
fn east(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let bytes = zone.as_bytes();
    let number = |at: usize| {
        let digits = zone.get(at..at + 2)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
    };
    let sign = match bytes {
        [b'+', _, _, b':', _, _] => 1,
        [b'-', _, _, b':', _, _] => -1,
        _ => return None,
    };
    let (hours, minutes) = (number(1)?, number(4)?);
    (hours <= 24 && minutes <= 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns days since 1970, by a calendar whose years start in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Parses a duration; returns nanoseconds.
pub(super) fn duration(text: &str) -> Option<i64> {
    text.parse::<GoDuration>().ok().map(GoDuration::as_nanos)
}

/// Formats a duration in seconds.
pub(super) fn duration_text(nanos: i64) -> String {
    format!("{}s", in_units(nanos, NANOS))
}

/// Converts a duration to units of this many nanoseconds.
fn in_units(nanos: i64, unit: i64) -> f64 {
    (nanos / unit) as f64 + (nanos % unit) as f64 / unit as f64
}

/// Adds or subtracts timestamps and durations.
pub(super) fn calculate(sign: &str, left: &Value, right: &Value) -> Evaluated {
    let checked = |nanos: Option<i64>| nanos.ok_or_else(|| CelError::from("integer overflow"));
    match (sign, left, right) {
        ("+", Value::Duration(a), Value::Duration(b)) => {
            checked(a.checked_add(*b)).map(Value::Duration)
        }
        ("-", Value::Duration(a), Value::Duration(b)) => {
            checked(a.checked_sub(*b)).map(Value::Duration)
        }
        ("+", Value::Time(time), Value::Duration(nanos))
        | ("+", Value::Duration(nanos), Value::Time(time)) => time.plus(*nanos).map(Value::Time),
        ("-", Value::Time(time), Value::Duration(nanos)) => {
            time.plus(checked(nanos.checked_neg())?).map(Value::Time)
        }
        ("-", Value::Time(a), Value::Time(b)) => {
            let seconds = (a.seconds - b.seconds).checked_mul(NANOS);
            let nanos = checked(seconds)?.checked_add(a.nanos - b.nanos);
            checked(nanos).map(Value::Duration)
        }
        _ => Err(no_overload()),
    }
}

/// Calls a function of a timestamp.
pub(super) fn call(name: &str, time: Time, rest: &[Value]) -> Evaluated {
    let east = match rest {
        [] => 0,
        [Value::Str(zone)] => zone_east(zone, time)?,
        _ => return Err(no_overload()),
    };
    let ([year, month, day, of_year], clock) = time.civil(east);
    Ok(Value::Int(match name {
        "getFullYear" => year,
        "getMonth" => month - 1,
        "getDate" => day,
        "getDayOfMonth" => day - 1,
        "getDayOfWeek" => (time.seconds + east).div_euclid(DAY).wrapping_add(4).rem_euclid(7),
        "getDayOfYear" => of_year,
        "getHours" => clock / 3600,
        "getMinutes" => clock / 60 % 60,
        "getSeconds" => clock % 60,
        "getMilliseconds" => time.nanos / 1_000_000,
        _ => return Err(no_overload()),
    }))
}

/// Calls a function of a duration.
pub(super) fn call_duration(name: &str, nanos: i64, rest: &[Value]) -> Evaluated {
    let unit = match name {
        _ if !rest.is_empty() => return Err(no_overload()),
        "getHours" => 3600 * NANOS,
        "getMinutes" => 60 * NANOS,
        "getSeconds" => NANOS,
        "getMilliseconds" => return Ok(Value::Int(nanos / 1_000_000)),
        _ => return Err(no_overload()),
    };
    Ok(Value::Int(in_units(nanos, unit) as i64))
}

/// Returns the offset of a zone at a time, in seconds east of Greenwich.
fn zone_east(zone: &str, time: Time) -> Result<i64, CelError> {
    let Some((hours, minutes)) = zone.split_once(':') else { return named_east(zone, time) };
    let number = |text: &str| {
        let parsed = text.parse::<i32>().map(i64::from);
        parsed.map_err(|_| {
            CelError::from(format!("strconv.Atoi: parsing {}: invalid syntax", quote(text)))
        })
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let minutes = if zone.starts_with('-') { -minutes } else { minutes };
    Ok((hours * 60 + minutes) * 60)
}

fn named_east(name: &str, time: Time) -> Result<i64, CelError> {
    if matches!(name, "" | "UTC") {
        return Ok(0);
    }
    if name.starts_with(['/', '\\']) || name.split(['/', '\\']).any(|part| part == "..") {
        return Err("time: invalid location name".into());
    }
    thread_local! {
        static KNOWN: RefCell<BTreeMap<String, Option<TimeZone>>> = RefCell::default();
    }
    let zone = KNOWN.with_borrow_mut(|known| {
        if let Some(zone) = known.get(name) {
            return zone.clone();
        }
        if known.len() >= ZONES_MAX {
            known.clear();
        }
        let data = std::fs::read(std::path::Path::new(ZONES).join(name)).ok();
        let zone = data.and_then(|data| TimeZone::tzif(name, &data).ok());
        known.insert(name.to_owned(), zone.clone());
        zone
    });
    let zone = zone.ok_or_else(|| CelError::from(format!("unknown time zone {name}")))?;
    // The end of the year 9999 is beyond the library's range; zones do not change there.
    let (first, last) = (jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    let at = jiff::Timestamp::from_second(time.seconds.clamp(first, last));
    let at = at.map_err(|error| CelError::from(error.to_string()))?;
    Ok(i64::from(zone.to_offset(at).seconds()))
}
