//! Which start of a CronJob is due: the newest one that was missed, and when the next one comes.
//!
//! Input: the schedule, the last start, the deadline, and the time. Output: the start to catch up
//! with. Only the newest missed start is made up for, however many there were; more than a hundred
//! of them are worth a warning, because then a clock may be wrong. How many there were is estimated
//! from the distance of two starts.
// k8s: pkg/controller/cronjob/utils.go

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_controllers_core::kinds::CronJob;

use super::schedule::CronSchedule;

/// Added to the wait for the next start, because clocks differ a little.
const NEXT_START_DELAY: SignedDuration = SignedDuration::from_millis(100);
/// So many missed starts are worth no warning.
const MISSED_MAX: i64 = 100;

/// How many starts were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    None,
    Few,
    Many,
}

/// The newest start that was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecentStart {
    /// The time after which starts are searched.
    pub(super) earliest: Timestamp,
    /// The newest start since then; `None` when it is not time yet.
    pub(super) newest: Option<Timestamp>,
    pub(super) missed: Missed,
}

/// A schedule that never comes, such as the 31st of February.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
pub(super) struct NeverDue;

/// The time after which starts are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartBase {
    /// The last start, or when the CronJob was created.
    pub(super) last: Timestamp,
    /// Seconds after its time until which a start is made up for.
    pub(super) deadline_seconds: Option<i64>,
}

impl StartBase {
    /// That of a CronJob with this last start.
    pub(super) fn new(cron_job: &CronJob, last: Option<Timestamp>) -> Self {
        let created = cron_job.metadata.creation_timestamp.unwrap_or(Timestamp::UNIX_EPOCH);
        let deadline_seconds = cron_job.spec.starting_deadline_seconds;
        Self { last: last.unwrap_or(created), deadline_seconds }
    }

    /// Without the deadline.
    fn without_deadline(self) -> Self {
        Self { deadline_seconds: None, ..self }
    }
}

/// Finds the newest start that was missed.
// k8s: pkg/controller/cronjob/utils.go mostRecentScheduleTime
pub(super) fn recent_start(
    base: StartBase,
    now: Timestamp,
    schedule: &CronSchedule,
) -> Result<RecentStart, NeverDue> {
    let mut earliest = base.last;
    if let Some(seconds) = base.deadline_seconds {
        let deadline = now.saturating_sub(SignedDuration::from_secs(seconds));
        earliest = earliest.max(deadline.unwrap_or(Timestamp::MIN));
    }
    let first = schedule.next(earliest).ok_or(NeverDue)?;
    if now < first {
        return Ok(RecentStart { earliest, newest: None, missed: Missed::None });
    }
    let second = schedule.next(first).ok_or(NeverDue)?;
    if now < second {
        return Ok(RecentStart { earliest, newest: Some(first), missed: Missed::None });
    }
    let distance = second.as_second() - first.as_second();
    if distance < 1 {
        return Err(NeverDue);
    }
    let count = now.duration_since(first).as_secs() / distance + 1;
    // One step further back than the newest start should be: distances can vary.
    let back = SignedDuration::from_secs((count - 2) * distance);
    let before = first.saturating_add(back).unwrap_or(first);
    let starts = std::iter::successors(schedule.next(before), |start| schedule.next(*start));
    let newest = starts.take_while(|start| *start <= now).last();
    let missed = if count > MISSED_MAX { Missed::Many } else { Missed::Few };
    Ok(RecentStart { earliest, newest, missed })
}

/// How long it is until the next start.
// k8s: pkg/controller/cronjob/utils.go nextScheduleTimeDuration
pub(super) fn wait_for_next(base: StartBase, now: Timestamp, schedule: &CronSchedule) -> Duration {
    let after = match recent_start(base.without_deadline(), now, schedule) {
        Err(NeverDue) => now,
        Ok(RecentStart { newest: Some(newest), .. }) => newest,
        Ok(RecentStart { missed: Missed::None, earliest, .. }) => earliest,
        Ok(_) => now,
    };
    let next = schedule.next(after).unwrap_or(now);
    let wait = next.duration_since(now).saturating_add(NEXT_START_DELAY);
    Duration::try_from(wait).unwrap_or_default()
}
