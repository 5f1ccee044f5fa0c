//! Schedules and their next times, compared with upstream's parser and search.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::super::schedule::CronSchedule;

/// Lines with a schedule, a time, and the five next times or the error, as upstream has them.
/// `PINTLE_SCHEDULE_VECTORS` names a file with more.
const VECTORS: &str = include_str!("schedules.jsonl");

#[derive(Deserialize)]
struct ScheduleVector {
    spec: String,
    #[serde(default)]
    error: String,
    from: Timestamp,
    next: Vec<Timestamp>,
}

/// How Go prints that there is no next time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The next times, or the error.
#[derive(Debug, PartialEq)]
enum Starts {
    Times(Vec<Timestamp>),
    Error(String),
}

impl ScheduleVector {
    fn wanted(&self) -> Starts {
        let never: Timestamp = NEVER.parse().expect("a time");
        match self.error.is_empty() {
            true => Starts::Times(self.next.iter().copied().filter(|at| *at != never).collect()),
            false => Starts::Error(self.error.clone()),
        }
    }

    fn found(&self) -> Starts {
        let schedule = match CronSchedule::parse(&self.spec, &TimeZone::UTC) {
            Ok(schedule) => schedule,
            Err(error) => return Starts::Error(error.to_string()),
        };
        let starts = std::iter::successors(schedule.next(self.from), |start| schedule.next(*start));
        Starts::Times(starts.take(5).collect())
    }
}

/// A zone that the time zone database changed after Go's release, and the year from which they
/// differ: ours has a newer database than the program that wrote the vectors.
const NEWER_RULES: [(&str, &str); 1] = [("America/Havana", "2026-11-01T00:00:00Z")];

/// True if the two databases may disagree about one of these times.
fn is_of_newer_rules(spec: &str, starts: &Starts) -> bool {
    let Starts::Times(times) = starts else { return false };
    let is_in = |zone: &str| spec.split_once('=').is_some_and(|(_, rest)| rest.starts_with(zone));
    NEWER_RULES.iter().any(|(zone, since)| {
        let since: Timestamp = since.parse().expect("a time");
        is_in(zone) && times.iter().any(|time| *time >= since)
    })
}

#[test]
fn schedules_and_next_times_match_upstream() {
    let more = std::env::var("PINTLE_SCHEDULE_VECTORS").ok();
    let more = more.map(|path| std::fs::read_to_string(path).expect("vectors that can be read"));
    let (mut compared, mut differ) = (0, Vec::new());
    for line in VECTORS.lines().chain(more.iter().flat_map(|text| text.lines())) {
        let vector: ScheduleVector = serde_json::from_str(line).expect("a vector");
        if is_of_newer_rules(&vector.spec, &vector.wanted()) {
            continue;
        }
        compared += 1;
        if vector.found() != vector.wanted() {
            differ.push(format!("{line}\n  ours {:?}", vector.found()));
        }
    }
    println!("{compared} schedules were compared");
    assert!(compared >= 100, "{compared} vectors");
    differ.truncate(10);
    assert!(differ.is_empty(), "of {compared} vectors:\n{}", differ.join("\n"));
}

#[test]
fn next_start_is_found_although_the_time_zone_skipped_a_day() {
    // Samoa had no 30 December 2011.
    let schedule = CronSchedule::parse("TZ=Pacific/Apia 0 0 15 * *", &TimeZone::UTC);
    let schedule = schedule.expect("a schedule");
    let next = schedule.next("2011-12-28T00:00:00Z".parse().expect("a time"));
    assert_eq!(next.map(|next| next.to_string()).as_deref(), Some("2012-01-14T10:00:00Z"));
}
