//! The next time of a schedule.
//!
//! Input: a schedule and a time. Output: the first later time that matches, if there is one within
//! five years. The search advances field by field in local time, exactly as upstream's, because
//! this decides the starts at clock changes: a skipped time has no start, and a repeated time has
//! as many starts as the search finds. One difference: where a time zone skipped a whole day,
//! upstream's search loops for ever, and this one continues with the next day. Bounds: five years
//! of days.
// Search: github.com/robfig/cron v3.0.1, spec.go Next

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::schedule::{CronSchedule, STAR, Times};

/// Years that are searched.
const YEARS_MAX: i16 = 5;
const DAY_SECONDS: i64 = 24 * 3600;

impl CronSchedule {
    /// The first time after another one.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let second = after.as_nanosecond().div_euclid(1_000_000_000);
        let second = i64::try_from(second).ok()?;
        let next = match self {
            Self::Every(seconds) => second.checked_add(*seconds)?,
            Self::Times(times) => times.next(second)?,
        };
        Timestamp::from_second(next).ok()
    }
}

impl Times {
    /// Seconds since 1970 of the first time after a second.
    fn next(&self, after: i64) -> Option<i64> {
        let fields = [self.minute, self.hour, self.day, self.month, self.weekday];
        if fields.iter().any(|field| field & !STAR == 0) {
            return None;
        }
        let mut search = TimeSearch { at: after + 1, zone: &self.zone, is_cut: false };
        let last_year = search.local()?.year().saturating_add(YEARS_MAX);
        while search.local()?.year() <= last_year {
            if self.step(&mut search)? {
                return Some(search.at);
            }
        }
        None
    }

    /// Advances to the first matching month, day, hour and minute; false when a higher field
    /// changed and must be matched again.
    fn step(&self, search: &mut TimeSearch<'_>) -> Option<bool> {
        while !has(self.month, search.local()?.month()) {
            search.cut(Unit::Month)?;
            search.add_date(1, 0)?;
            if search.local()?.month() == 1 {
                return Some(false);
            }
        }
        while !self.matches_day(search.local()?) {
            search.cut(Unit::Day)?;
            let before = search.at;
            search.add_date(0, 1)?;
            search.go_to_midnight()?;
            search.at = search.at.max(before + 1);
            if search.local()?.day() == 1 {
                return Some(false);
            }
        }
        while !has(self.hour, search.local()?.hour()) {
            search.cut(Unit::Hour)?;
            search.at += 3600;
            if search.local()?.hour() == 0 {
                return Some(false);
            }
        }
        while !has(self.minute, search.local()?.minute()) {
            search.cut(Unit::Minute)?;
            search.at += 60;
            if search.local()?.minute() == 0 {
                return Some(false);
            }
        }
        let second = i64::from(search.local()?.second());
        if second != 0 {
            search.is_cut = true;
            search.at += 60 - second;
            return Some(false);
        }
        Some(true)
    }

    /// Both the day of the month and of the week match, or one of them if neither was a star.
    // Go: cron dayMatches
    fn matches_day(&self, local: DateTime) -> bool {
        let by_month = has(self.day, local.day());
        let by_week = has(self.weekday, local.weekday().to_sunday_zero_offset());
        match (self.day | self.weekday) & STAR {
            0 => by_month || by_week,
            _ => by_month && by_week,
        }
    }
}

fn has(field: u64, value: i8) -> bool {
    field & (1 << value) != 0
}

/// The unit below which lower fields are truncated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Month,
    Day,
    Hour,
    Minute,
}

/// Where the search is.
struct TimeSearch<'a> {
    /// Seconds since 1970.
    at: i64,
    zone: &'a TimeZone,
    /// Lower fields are at their first value.
    is_cut: bool,
}

impl TimeSearch<'_> {
    fn local(&self) -> Option<DateTime> {
        let at = Timestamp::from_second(self.at).ok()?;
        Some(self.zone.to_datetime(at))
    }

    /// Sets the fields below a unit to their first value, once.
    fn cut(&mut self, unit: Unit) -> Option<()> {
        if self.is_cut {
            return Some(());
        }
        self.is_cut = true;
        let local = self.local()?;
        let day = if unit == Unit::Month { 1 } else { i64::from(local.day()) };
        let hour = if unit == Unit::Hour { i64::from(local.hour()) } else { 0 };
        self.at = match unit {
            Unit::Minute => self.at - self.at.rem_euclid(60),
            _ => {
                let month = i64::from(local.month());
                self.date(Date { year: local.year().into(), month, day, second: hour * 3600 })?
            }
        };
        Some(())
    }

    /// Adds months and days in local time.
    // Go: time.Time.AddDate
    fn add_date(&mut self, months: i64, days: i64) -> Option<()> {
        let local = self.local()?;
        let seconds = i64::from(local.hour()) * 3600
            + i64::from(local.minute()) * 60
            + i64::from(local.second());
        let before = self.at;
        self.at = self.date(Date {
            year: local.year().into(),
            month: i64::from(local.month()) + months,
            day: i64::from(local.day()) + days,
            second: seconds,
        })?;
        if self.at <= before {
            // The zone has no such day.
            self.at = before + DAY_SECONDS;
        }
        Some(())
    }

    /// Corrects for a midnight that a change of the clocks skipped or repeated.
    fn go_to_midnight(&mut self) -> Option<()> {
        let hour = i64::from(self.local()?.hour());
        self.at += match hour {
            0 => 0,
            13.. => (24 - hour) * 3600,
            _ => -hour * 3600,
        };
        Some(())
    }

    /// The time of a local date. Where clocks change, the offset is that of the same numbers in
    /// UTC, or the one that applies at the resulting time.
    // Go: time.Date
    fn date(&self, date: Date) -> Option<i64> {
        let utc = date.in_utc()?;
        let first = self.offset(utc)?;
        let offset = if first == 0 { 0 } else { self.offset(utc - first)? };
        Some(utc - offset)
    }

    fn offset(&self, at: i64) -> Option<i64> {
        let at = Timestamp::from_second(at).ok()?;
        Some(self.zone.to_offset(at).seconds().into())
    }
}

/// A local date; months and days may be beyond their range.
struct Date {
    year: i64,
    month: i64,
    day: i64,
    /// Of the day.
    second: i64,
}

impl Date {
    /// Seconds since 1970, if the date is one of UTC.
    fn in_utc(&self) -> Option<i64> {
        let year = self.year + (self.month - 1).div_euclid(12);
        let month = (self.month - 1).rem_euclid(12) + 1;
        let first = DateTime::new(year.try_into().ok()?, month.try_into().ok()?, 1, 0, 0, 0, 0);
        let first = TimeZone::UTC.to_timestamp(first.ok()?).ok()?.as_second();
        Some(first + (self.day - 1) * DAY_SECONDS + self.second)
    }
}
