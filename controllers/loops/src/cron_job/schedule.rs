//! The schedule of a CronJob: cron's five fields, or `@hourly`, `@every 1h` and the like.
//!
//! Input: the text, with a time zone in front of it if it has one. Output: the minutes, hours,
//! days, months and weekdays as bits, or the sentence that says what is wrong with it. The grammar
//! is that of upstream's parser with all its liberties, because texts in clusters use them.
// Grammar: github.com/robfig/cron v3.0.1, parser.go ParseStandard

use jiff::tz::TimeZone;
use pintle_api_types::duration::GoDuration;

use super::zones::{ZoneError, load_zone};

/// Set in the bits of a field that was a star: days of month and week then both have to match.
pub(super) const STAR: u64 = 1 << 63;

/// When Jobs are to be started.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CronSchedule {
    /// So many seconds after the last time.
    Every(i64),
    /// At local times.
    Times(Box<Times>),
}

/// Local times, a bit for each value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) minute: u64,
    pub(super) hour: u64,
    pub(super) day: u64,
    pub(super) month: u64,
    pub(super) weekday: u64,
    pub(super) zone: TimeZone,
}

/// An error in a schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum ScheduleError {
    #[error("empty spec string")]
    Empty,
    #[error("invalid schedule format: runtime error: slice bounds out of range [:-1]")]
    ZoneAlone,
    #[error("provided bad location {name}: {source}")]
    Zone { name: String, source: ZoneError },
    #[error("expected exactly 5 fields, found {found}: [{fields}]")]
    Fields { found: usize, fields: String },
    #[error("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {problem}")]
    Number { text: String, problem: &'static str },
    #[error("negative number ({number}) not allowed: {text}")]
    Negative { number: i64, text: String },
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("beginning of range ({start}) below minimum ({min}): {text}")]
    BelowMinimum { start: i64, min: i64, text: String },
    #[error("end of range ({end}) above maximum ({max}): {text}")]
    AboveMaximum { end: i64, max: i64, text: String },
    #[error("beginning of range ({start}) beyond end of range ({end}): {text}")]
    Reversed { start: i64, end: i64, text: String },
    #[error("step of range should be a positive number: {0}")]
    NoStep(String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("failed to parse duration {descriptor}: time: invalid duration {duration:?}")]
    Duration { descriptor: String, duration: String },
}

/// The values of a field.
struct FieldBounds {
    min: i64,
    max: i64,
    /// Names of values, from `min` on.
    names: &'static [&'static str],
}

const MINUTES: FieldBounds = FieldBounds { min: 0, max: 59, names: &[] };
const HOURS: FieldBounds = FieldBounds { min: 0, max: 23, names: &[] };
const DAYS: FieldBounds = FieldBounds { min: 1, max: 31, names: &[] };
const MONTHS: FieldBounds = FieldBounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: FieldBounds =
    FieldBounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl CronSchedule {
    /// Parses a schedule; one without a time zone is in the local one.
    // Go: cron.ParseStandard
    pub(super) fn parse(text: &str, local: &TimeZone) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let (zone, text) = split_zone(text, local)?;
        if text.starts_with('@') {
            return parse_descriptor(text, zone);
        }
        let fields: Vec<_> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = *fields else {
            let found = fields.len();
            return Err(ScheduleError::Fields { found, fields: fields.join(" ") });
        };
        Ok(Self::Times(Box::new(Times {
            minute: parse_field(minute, &MINUTES)?,
            hour: parse_field(hour, &HOURS)?,
            day: parse_field(day, &DAYS)?,
            month: parse_field(month, &MONTHS)?,
            weekday: parse_field(weekday, &WEEKDAYS)?,
            zone,
        })))
    }
}

/// Takes `TZ=` or `CRON_TZ=` off the front.
fn split_zone<'a>(text: &'a str, local: &TimeZone) -> Result<(TimeZone, &'a str), ScheduleError> {
    let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) else {
        return Ok((local.clone(), text));
    };
    let (name, rest) = rest.split_once(' ').ok_or(ScheduleError::ZoneAlone)?;
    let zone = load_zone(name, local)
        .map_err(|source| ScheduleError::Zone { name: name.to_owned(), source })?;
    Ok((zone, rest.trim()))
}

/// The bits of a field: ranges with commas between them.
fn parse_field(field: &str, bounds: &FieldBounds) -> Result<u64, ScheduleError> {
    let ranges = field.split(',').filter(|range| !range.is_empty());
    ranges.map(|range| parse_range(range, bounds)).try_fold(0, |bits, range| Ok(bits | range?))
}

/// The bits of `*`, `5`, `1-5`, `*/2`, `1-5/2` or `5/2`, which means from 5 on.
fn parse_range(range: &str, bounds: &FieldBounds) -> Result<u64, ScheduleError> {
    let text = || range.to_owned();
    let mut parts = range.split('/');
    let limits: Vec<_> = parts.next().unwrap_or_default().split('-').collect();
    let is_star = matches!(limits[0], "*" | "?");
    let (start, mut end) = if is_star {
        (bounds.min, bounds.max)
    } else {
        let start = parse_value(limits[0], bounds)?;
        match *limits {
            [_] => (start, start),
            [_, end] => (start, parse_value(end, bounds)?),
            _ => return Err(ScheduleError::Hyphens(text())),
        }
    };
    let steps: Vec<_> = parts.collect();
    let step = match *steps {
        [] => 1,
        [step] => {
            if limits.len() == 1 {
                end = bounds.max;
            }
            parse_number(step)?
        }
        _ => return Err(ScheduleError::Slashes(text())),
    };
    let star = if is_star && step <= 1 { STAR } else { 0 };
    Ok(star | checked_bits(Steps { start, end, step }, bounds, range)?)
}

/// The values from `start` to `end`, in steps.
struct Steps {
    start: i64,
    end: i64,
    step: i64,
}

fn checked_bits(steps: Steps, bounds: &FieldBounds, range: &str) -> Result<u64, ScheduleError> {
    let Steps { start, end, step } = steps;
    let (min, max, text) = (bounds.min, bounds.max, range.to_owned());
    match () {
        () if start < min => Err(ScheduleError::BelowMinimum { start, min, text }),
        () if end > max => Err(ScheduleError::AboveMaximum { end, max, text }),
        () if start > end => Err(ScheduleError::Reversed { start, end, text }),
        () if step == 0 => Err(ScheduleError::NoStep(text)),
        () => Ok(bits(start, end, step)),
    }
}

fn parse_value(text: &str, bounds: &FieldBounds) -> Result<i64, ScheduleError> {
    let lower = text.to_lowercase();
    match (bounds.min..).zip(bounds.names).find(|(_, name)| **name == lower) {
        Some((value, _)) => Ok(value),
        None => parse_number(text),
    }
}

fn parse_number(text: &str) -> Result<i64, ScheduleError> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let number = text.parse::<i64>().map_err(|error| {
        let problem = match error.kind() {
            NegOverflow | PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        ScheduleError::Number { text: text.to_owned(), problem }
    })?;
    if number < 0 {
        return Err(ScheduleError::Negative { number, text: text.to_owned() });
    }
    Ok(number)
}

/// The bits from `start` to `end`, which are valid values, in steps.
fn bits(start: i64, end: i64, step: i64) -> u64 {
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    (start..=end).step_by(step).fold(0, |bits, value| bits | 1 << value)
}

fn all(bounds: &FieldBounds) -> u64 {
    STAR | bits(bounds.min, bounds.max, 1)
}

// Go: cron parseDescriptor
fn parse_descriptor(text: &str, zone: TimeZone) -> Result<CronSchedule, ScheduleError> {
    if let Some(duration) = text.strip_prefix("@every ") {
        return match duration.parse::<GoDuration>() {
            Ok(duration) => Ok(CronSchedule::Every((duration.as_nanos() / 1_000_000_000).max(1))),
            Err(_) => Err(ScheduleError::Duration {
                descriptor: text.to_owned(),
                duration: duration.to_owned(),
            }),
        };
    }
    let hourly = Times {
        minute: 1,
        hour: all(&HOURS),
        day: all(&DAYS),
        month: all(&MONTHS),
        weekday: all(&WEEKDAYS),
        zone,
    };
    let daily = Times { hour: 1, ..hourly.clone() };
    let first_day = 1 << DAYS.min;
    let times = match text {
        "@yearly" | "@annually" => Times { day: first_day, month: 1 << MONTHS.min, ..daily },
        "@monthly" => Times { day: first_day, ..daily },
        "@weekly" => Times { weekday: 1, ..daily },
        "@daily" | "@midnight" => daily,
        "@hourly" => hourly,
        _ => return Err(ScheduleError::Descriptor(text.to_owned())),
    };
    Ok(CronSchedule::Times(Box::new(times)))
}
