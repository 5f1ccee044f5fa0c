//! Single syncs of Jobs: what upstream's table of `syncJob` has beyond the vectors, and what ours
//! does in addition.
// k8s: pkg/controller/job/job_controller_test.go

use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::{Controller, drive};
use serde_json::{Value, json};

use super::super::{JobController, JobKey};
use super::kit::{JobCase, NOON, time};

fn job() -> Value {
    json!({"metadata": {"name": "job", "namespace": "ns", "uid": "job-uid", "generation": 1},
        "spec": {"parallelism": 2, "completions": 2, "backoffLimit": 6,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}},
        "status": {"startTime": "2026-03-01T12:00:00Z"}})
}

fn pod(name: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"a": "b"},
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "job",
                "uid": "job-uid", "controller": true}]},
        "status": {"phase": phase}})
}

fn conditions(status: &Value) -> Vec<&str> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.filter_map(|condition| condition["type"].as_str()).collect()
}

#[test]
fn orphan_that_the_job_selects_is_adopted_with_the_finalizer_and_counted() {
    let mut orphan = pod("p", "Succeeded");
    orphan["metadata"]["ownerReferences"] = json!([]);
    orphan["metadata"]["finalizers"] = json!([]);
    let mut case = JobCase::new(&job(), &[orphan]).serving(job());
    let synced = case.sync();
    assert!(matches!(synced.driven.requests[0], Request::Read { .. }), "the Job is read live");
    assert_eq!(
        synced.patched[0].1["metadata"]["finalizers"][0],
        "batch.kubernetes.io/job-tracking"
    );
    assert_eq!(synced.status()["succeeded"], 1);
}

#[test]
fn job_past_its_deadline_fails_once_its_pods_have_ended() {
    let mut late = job();
    late["spec"]["activeDeadlineSeconds"] = 100.into();
    let synced = JobCase::new(&late, &[pod("p", "Running")]).sync();
    assert_eq!(synced.deleted, ["p"]);
    let status = synced.status();
    assert_eq!(conditions(status), ["FailureTarget"], "p terminates");
    assert_eq!((&status["terminating"], &status["failed"]), (&json!(1), &json!(1)));
    assert_eq!(synced.driven.events.len(), 1, "the end is not reported yet");
    let synced = JobCase::new(&late, &[]).sync();
    assert_eq!(conditions(synced.status()), ["FailureTarget", "Failed"]);
    let event = "Warning DeadlineExceeded Job was active longer than specified deadline";
    assert_eq!(synced.events(), [event]);
}

#[test]
fn job_with_a_deadline_is_synced_again_at_the_deadline() {
    let mut job = job();
    job["spec"]["activeDeadlineSeconds"] = 250.into();
    let synced = JobCase::new(&job, &[pod("p", "Running"), pod("q", "Running")]).sync();
    let outcome = synced.driven.outcome.expect("no failure");
    assert_eq!(outcome.again, Some(Duration::from_secs(150)));
}

#[test]
fn status_lists_no_more_pods_than_its_limit() {
    let pods: Vec<_> = (0..5).map(|at| pod(&format!("p{at}"), "Failed")).collect();
    let mut case = JobCase::new(&job(), &pods);
    case.controller.settings.uncounted_max = 2;
    let synced = case.sync();
    let listed = synced.statuses[0]["uncountedTerminatedPods"]["failed"].as_array();
    assert_eq!(listed.map(Vec::len), Some(2));
    assert_eq!((synced.patched.len(), &synced.status()["failed"]), (2, &json!(2)));
}

#[test]
fn one_sync_creates_no_more_pods_than_its_limit() {
    let mut big = job();
    big["spec"]["parallelism"] = 9.into();
    big["spec"]["completions"] = 9.into();
    let mut case = JobCase::new(&big, &[]);
    case.controller.settings.pods_per_sync_max = 4;
    let synced = case.sync();
    assert_eq!((synced.created.len(), &synced.status()["active"]), (4, &json!(4)));
}

#[test]
fn suspended_job_keeps_its_start_time_without_the_gate() {
    let mut job = job();
    job["spec"]["suspend"] = true.into();
    for (is_cleared, start) in [(true, Value::Null), (false, "2026-03-01T12:00:00Z".into())] {
        let mut case = JobCase::new(&job, &[]);
        case.controller.settings.clears_start_time = is_cleared;
        let synced = case.sync();
        assert_eq!(synced.status()["startTime"], start);
        assert_eq!(synced.events(), ["Normal Suspended Job suspended"]);
    }
}

#[test]
fn job_that_is_finished_or_managed_by_another_controller_is_left_alone() {
    let mut finished = job();
    finished["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    let mut managed = job();
    managed["spec"]["managedBy"] = "example.com/other".into();
    let mut unknown = job();
    unknown["spec"]["completionMode"] = "Sometimes".into();
    for (job, events) in [(finished, 0), (managed, 0), (unknown, 1)] {
        let synced = JobCase::new(&job, &[pod("p", "Failed")]).sync();
        assert!(synced.driven.requests.is_empty() && synced.driven.outcome.is_ok());
        assert_eq!(synced.driven.events.len(), events);
        assert_eq!(synced.driven.reasons.len(), 1, "explain has a reason");
    }
}

#[test]
fn field_of_the_status_that_is_not_known_is_kept() {
    let mut job = job();
    job["status"]["later"] = json!({"x": 1});
    let synced = JobCase::new(&job, &[]).sync();
    assert_eq!(synced.status()["later"], json!({"x": 1}));
}

#[test]
fn status_that_cannot_be_read_is_not_written() {
    let mut job = job();
    job["status"]["succeeded"] = "many".into();
    let synced = JobCase::new(&job, &[]).sync();
    assert!(synced.driven.requests.is_empty() && synced.driven.outcome.is_err());
}

#[test]
fn pods_without_a_job_that_counts_them_lose_the_finalizer() {
    let mut finished = job();
    finished["status"]["conditions"] = json!([{"type": "Failed", "status": "True"}]);
    let mut managed = finished.clone();
    managed["spec"]["managedBy"] = "example.com/other".into();
    let mut other = job();
    other["metadata"]["uid"] = "another".into();
    let mut replica = pod("p", "Failed");
    replica["metadata"]["ownerReferences"][0]["kind"] = "ReplicaSet".into();
    for (job, pod, is_patched) in [
        (job(), pod("p", "Failed"), false),
        (finished, pod("p", "Failed"), true),
        (managed, pod("p", "Failed"), false),
        (other.clone(), pod("p", "Failed"), true),
        (other, replica, false),
    ] {
        let mut case = JobCase::new(&job, &[pod]);
        let synced = case.sync_key(&JobKey::Orphan(ObjectKey::new("ns", "p")));
        assert_eq!(synced.patched.len(), usize::from(is_patched));
        assert!(synced.driven.outcome.is_ok());
    }
}

#[test]
fn stray_pod_keeps_the_finalizer_if_the_server_has_its_job() {
    let mut other = job();
    other["metadata"]["uid"] = "another".into();
    let key = JobKey::Stray(ObjectKey::new("ns", "p"));
    for (live, is_patched) in [(job(), false), (other.clone(), true)] {
        let mut case = JobCase::new(&other, &[pod("p", "Failed")]).serving(live);
        assert_eq!(case.sync_key(&key).patched.len(), usize::from(is_patched));
    }
}

#[test]
fn sync_sends_the_same_requests_when_repeated() {
    let pods = [pod("p", "Succeeded"), pod("q", "Failed"), pod("r", "Running")];
    let mut case = JobCase::new(&job(), &pods);
    let now = case.now_both();
    let key = JobKey::Job(ObjectKey::new("ns", "job"));
    let snapshot = case.controller.snapshot(&key, &case.tables, now).expect("it is there");
    let run = || {
        drive::<JobController>(&snapshot, time(NOON), |request| match request {
            Request::Replace { body, .. } => Ok(body.clone()),
            _ => Ok(Value::Null),
        })
    };
    let (one, other) = (run(), run());
    assert_eq!(one.requests, other.requests);
    assert!(!one.reasons.is_empty());
}
