//! Which start is due, at clock changes and after outages, and what changes wake.
// k8s: pkg/controller/cronjob/utils_test.go, cronjob_controllerv2_test.go

use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CRON_JOBS, JOBS, Kind};
use pintle_api_types::request::Request;
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{Controller, Driven, Now, Wakes, drive};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

use super::super::CronJobController;
use super::super::missed::{Missed, NeverDue, StartBase, recent_start, wait_for_next};
use super::super::schedule::CronSchedule;

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn schedule(text: &str) -> CronSchedule {
    CronSchedule::parse(text, &TimeZone::UTC).expect("a schedule")
}

fn starts(text: &str, after: &str, count: usize) -> Vec<String> {
    let schedule = schedule(text);
    let starts = std::iter::successors(schedule.next(time(after)), |at| schedule.next(*at));
    starts.take(count).map(|at| at.to_string()).collect()
}

#[test]
fn start_that_a_clock_change_skips_is_not_made() {
    // 2026-03-08, 02:00 to 03:00 in New York.
    assert_eq!(
        starts("TZ=America/New_York 30 2 * * *", "2026-03-07T12:00:00Z", 2),
        ["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"]
    );
}

#[test]
fn hour_repeated_by_a_clock_change_has_its_starts_twice() {
    // 2026-11-01, 02:00 back to 01:00 in New York.
    assert_eq!(
        starts("TZ=America/New_York 30 1 * * *", "2026-10-31T12:00:00Z", 3),
        ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]
    );
}

fn base(last: &str, deadline_seconds: Option<i64>) -> StartBase {
    StartBase { last: time(last), deadline_seconds }
}

#[test]
fn newest_missed_start_is_due_after_an_outage() {
    let last = "2026-01-01T00:00:00Z";
    for (text, now, deadline, newest, missed) in [
        ("0 * * * *", "2026-01-01T00:59:59Z", None, None, Missed::None),
        ("0 * * * *", "2026-01-01T01:00:00Z", None, Some("2026-01-01T01:00:00Z"), Missed::None),
        ("0 * * * *", "2026-01-01T03:30:00Z", None, Some("2026-01-01T03:00:00Z"), Missed::Few),
        ("* * * * *", "2026-01-08T00:00:30Z", None, Some("2026-01-08T00:00:00Z"), Missed::Many),
        ("* * * * *", "2026-01-08T00:00:30Z", Some(90), Some("2026-01-08T00:00:00Z"), Missed::None),
        ("@every 7m", "2026-01-01T00:30:00Z", None, Some("2026-01-01T00:28:00Z"), Missed::Few),
        // Upstream estimates by the distance of two starts; a weekend hides Friday's.
        ("0 6 * * 1-5", "2026-01-05T05:00:00Z", None, None, Missed::Few),
    ] {
        let found = recent_start(base(last, deadline), time(now), &schedule(text));
        let found = found.expect("a schedule that comes");
        assert_eq!((found.newest, found.missed), (newest.map(time), missed), "{text} at {now}");
    }
    let never = schedule("59 23 31 2 *");
    assert_eq!(recent_start(base(last, None), time(last), &never), Err(NeverDue));
}

#[test]
fn wait_for_the_next_start_has_a_tenth_of_a_second_more() {
    let last = "2026-01-01T00:00:00Z";
    for (now, millis) in [
        ("2026-01-01T00:20:00Z", 2_400_100),
        ("2026-01-01T01:00:01Z", 3_599_100),
        ("2026-01-03T12:34:56Z", 1_504_100),
    ] {
        let wait = wait_for_next(base(last, Some(10)), time(now), &schedule("0 * * * *"));
        assert_eq!(wait, Duration::from_millis(millis), "{now}");
    }
}

struct CaseWatch {
    controller: CronJobController,
    tables: Tables,
    now: Now,
}

impl CaseWatch {
    fn at(now: &str) -> Self {
        let controller = CronJobController::new(1, TimeZone::UTC);
        let now = Now { instant: Instant::now(), wall: time(now) };
        Self { controller, tables: Tables::default(), now }
    }

    /// Applies a state; returns the wakes.
    fn set(&mut self, kind: Kind, object: &Value) -> Vec<String> {
        let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
        let mut wakes = Wakes::default();
        for change in self.tables.apply(WatchEvent::Set(object)) {
            self.controller.handle_change(&change, &self.tables, self.now, &mut wakes);
        }
        wakes.waits().map(|(key, wait)| format!("{key} {}", wait.as_millis())).collect()
    }

    fn sync(&mut self) -> Driven<MetricValue> {
        let key = ObjectKey::new("ns", "cron");
        let snapshot = self.controller.snapshot(&key, &self.tables, self.now);
        let snapshot = snapshot.expect("it is there");
        drive::<CronJobController>(&snapshot, self.now.wall, |request| match request {
            Request::Create { body, .. } | Request::Replace { body, .. } => Ok(body.clone()),
            other => panic!("not expected: {other:?}"),
        })
    }
}

fn cron_job(version: u32, schedule: &str) -> Value {
    json!({"metadata": {"name": "cron", "namespace": "ns", "uid": "cron-uid",
            "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"schedule": schedule, "timeZone": "Asia/Kolkata", "concurrencyPolicy": "Allow",
            "jobTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}},
                "spec": {"parallelism": 1}}}})
}

#[test]
fn new_schedule_wakes_at_its_next_start_and_other_changes_at_once() {
    let mut watch = CaseWatch::at("2026-01-01T00:10:00Z");
    assert_eq!(watch.set(CRON_JOBS, &cron_job(1, "0 * * * *")), ["ns/cron 0"]);
    assert_eq!(watch.set(CRON_JOBS, &cron_job(2, "0 * * * *")), ["ns/cron 0"]);
    // Kolkata is at half past.
    assert_eq!(watch.set(CRON_JOBS, &cron_job(3, "0 * * * *")), ["ns/cron 0"]);
    assert_eq!(watch.set(CRON_JOBS, &cron_job(4, "15 * * * *")), ["ns/cron 2100100"]);
    assert_eq!(watch.set(CRON_JOBS, &cron_job(5, "bad")), ["ns/cron 0"]);
}

#[test]
fn change_of_a_job_wakes_the_cron_job_that_controls_it() {
    let mut watch = CaseWatch::at("2026-01-01T00:10:00Z");
    watch.set(CRON_JOBS, &cron_job(1, "0 * * * *"));
    let job = |version: u32, uid: &str| {
        json!({"metadata": {"name": "j", "namespace": "ns", "uid": "j",
            "resourceVersion": version.to_string(), "ownerReferences": [{"kind": "CronJob",
                "apiVersion": "batch/v1", "name": "cron", "uid": uid, "controller": true}]}})
    };
    assert_eq!(watch.set(JOBS, &job(2, "other")), [""; 0]);
    assert_eq!(watch.set(JOBS, &job(3, "cron-uid")), ["ns/cron 0"]);
}

#[test]
fn job_has_the_time_of_its_start_in_its_name_and_annotation() {
    let mut watch = CaseWatch::at("2026-01-01T01:30:07Z");
    watch.set(CRON_JOBS, &cron_job(1, "0 * * * *"));
    let driven = watch.sync();
    let Request::Create { body, .. } = &driven.requests[0] else { panic!("{driven:?}") };
    let metadata = &body["metadata"];
    assert_eq!(metadata["name"], format!("cron-{}", time("2026-01-01T01:30:00Z").as_second() / 60));
    let at = "batch.kubernetes.io/cronjob-scheduled-timestamp";
    assert_eq!(metadata["annotations"], json!({"x": "y", at: "2026-01-01T07:00:00+05:30"}));
    assert_eq!(
        (&metadata["labels"], &body["spec"]),
        (&json!({"a": "b"}), &json!({"parallelism": 1}))
    );
    let outcome = driven.outcome.expect("no failure");
    assert_eq!(outcome.again, Some(Duration::from_millis(3_593_100)));
}

#[test]
fn week_of_missed_starts_makes_one_job_and_one_warning() {
    let mut watch = CaseWatch::at("2026-01-08T00:00:30Z");
    watch.set(CRON_JOBS, &cron_job(1, "* * * * *"));
    let driven = watch.sync();
    let creations = driven.requests.iter().filter(|one| matches!(one, Request::Create { .. }));
    assert_eq!(creations.count(), 1);
    let reasons: Vec<_> = driven.events.iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["TooManyMissedTimes", "SuccessfulCreate"]);
}
