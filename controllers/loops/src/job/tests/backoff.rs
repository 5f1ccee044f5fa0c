//! Tests of the back-off of pod creation.
// k8s: pkg/controller/job/backoff_utils_test.go

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Pod;
use serde_json::{Value, json};

use super::super::JobSettings;
use super::super::backoff::{BackoffRecord, JobBackoff};
use super::super::pods::{FinishedPods, JobPod, finished_at};
use super::kit::{NOON, job, pod, time};

/// A pod that ended so many seconds after noon.
fn ended(seconds: i64) -> Rc<KeptObject<Pod>> {
    let at = time(NOON) + SignedDuration::from_secs(seconds);
    Rc::new(pod(&json!({"metadata": {"name": "p", "uid": format!("u{seconds}"),
        "finalizers": ["batch.kubernetes.io/job-tracking"]},
        "status": {"containerStatuses": [
            {"name": "c", "state": {"terminated": {"finishedAt": at.to_string()}}}]}})))
}

fn after(record: BackoffRecord, succeeded: &[i64], failed: &[i64]) -> BackoffRecord {
    let pods = |ends: &[i64]| ends.iter().map(|end| ended(*end)).collect();
    record.after(&FinishedPods { succeeded: pods(succeeded), failed: pods(failed) })
}

fn record(failures: u32, last: Option<i64>) -> BackoffRecord {
    let last_failure = last.map(|end| time(NOON) + SignedDuration::from_secs(end));
    BackoffRecord { failures, last_failure }
}

#[test]
fn record_counts_failures_since_the_last_success() {
    let empty = BackoffRecord::default();
    for (before, succeeded, failed, wanted) in [
        (empty, &[][..], &[0][..], record(1, Some(0))),
        (empty, &[], &[0, -1], record(2, Some(0))),
        (empty, &[0], &[-2, -1], record(0, None)),
        (empty, &[-2], &[0, -4, -3, -1], record(2, Some(0))),
        (record(2, None), &[], &[0], record(3, Some(0))),
        (empty, &[0], &[0], record(0, None)),
        (empty, &[], &[], empty),
        (empty, &[0], &[], record(0, None)),
        (record(3, Some(-9)), &[0], &[], record(0, None)),
        (record(3, Some(-9)), &[], &[], record(3, Some(-9))),
    ] {
        assert_eq!(after(before, succeeded, failed), wanted);
    }
}

#[test]
fn wait_doubles_with_each_failure_up_to_its_limit() {
    let backoff = JobSettings::default().failure_backoff;
    let wait = |failures, last, now: i64| {
        let now = time(NOON) + SignedDuration::from_secs(now);
        backoff.remaining(record(failures, last), now).as_secs()
    };
    for (failures, last, now, left) in [
        (0, None, 0, 0),
        (1, Some(0), 0, 10),
        (1, Some(0), 4, 6),
        (1, Some(0), 10, 0),
        (2, Some(0), 0, 20),
        (3, Some(0), 5, 35),
        (6, Some(0), 0, 320),
        (7, Some(0), 0, 600),
        (500, Some(0), 100, 500),
    ] {
        assert_eq!(wait(failures, last, now), left, "{failures} failures");
    }
}

#[test]
fn pod_that_stays_tracked_is_counted_once() {
    let pod = ended(0);
    let job = job(&json!({"metadata": {"name": "j", "uid": "j"}}));
    let pods = [JobPod::claimed(Rc::clone(&pod), &job)];
    let finished = || FinishedPods { failed: vec![Rc::clone(&pod)], ..FinishedPods::default() };
    let mut backoff = JobBackoff::default();
    assert_eq!(backoff.observe(&pods, finished()), record(1, Some(0)));
    assert_eq!(backoff.observe(&pods, finished()), record(1, Some(0)), "a sync failed");
    assert_eq!(backoff.observe(&[], FinishedPods::default()), record(1, Some(0)));
}

#[test]
fn end_of_a_pod_is_read_from_containers_conditions_deletion_or_creation() {
    let terminated = |at: &str| json!({"terminated": {"finishedAt": at}});
    let (one, two, three) =
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z");
    let of = |pod_json: Value| finished_at(&pod(&pod_json));
    let at = |text: &str| -> Option<Timestamp> { Some(time(text)) };
    let both = json!({"status": {"containerStatuses": [
        {"name": "a", "state": terminated(two)}, {"name": "b", "state": terminated(one)}]}});
    assert_eq!(of(both), at(two));
    let sidecar = json!({
        "spec": {"initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]},
        "status": {"containerStatuses": [{"name": "a", "state": terminated(one)}],
            "initContainerStatuses": [{"name": "s", "state": terminated(two)},
                {"name": "i", "state": terminated(three)}]}});
    assert_eq!(of(sidecar), at(two), "an init container that is no sidecar does not count");
    let unready = json!({"metadata": {"creationTimestamp": one}, "status": {
        "containerStatuses": [{"name": "a", "state": {"running": {}}}],
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": two}]}});
    assert_eq!(of(unready), at(two));
    let deleted = json!({"metadata": {"creationTimestamp": one, "deletionTimestamp": three,
        "deletionGracePeriodSeconds": 1}});
    assert_eq!(of(deleted), at(two));
    assert_eq!(of(json!({"metadata": {"creationTimestamp": one}})), at(one));
}
