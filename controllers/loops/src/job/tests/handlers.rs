//! Tests of what changes of Jobs and pods wake.
// k8s: pkg/controller/job/job_controller_test.go TestAddPod and others

use std::time::{Duration, Instant};

use pintle_api_types::kind::{JOBS, Kind, PODS};
use pintle_controllers_core::frame::{Controller, Now, Wakes};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

use super::super::{JobController, JobKey};
use super::kit::{NOON, time};

struct HandlerWatch {
    controller: JobController,
    tables: Tables,
}

impl HandlerWatch {
    /// A watch of Jobs with these names, all of them selecting `a: b`.
    fn of(jobs: &[&str]) -> Self {
        let mut watch = Self { controller: JobController::default(), tables: Tables::default() };
        jobs.iter().for_each(|name| drop(watch.set(JOBS, &job(name))));
        watch
    }

    /// Applies a state; returns the wakes.
    fn set(&mut self, kind: Kind, object: &Value) -> Vec<String> {
        self.apply(WatchEvent::Set(decoded(kind, object)))
    }

    fn delete(&mut self, kind: Kind, object: &Value) -> Vec<String> {
        self.apply(WatchEvent::Deleted(decoded(kind, object)))
    }

    fn apply(&mut self, event: WatchEvent) -> Vec<String> {
        let now = Now { instant: Instant::now(), wall: time(NOON) };
        let mut wakes = Wakes::default();
        for change in self.tables.apply(event) {
            self.controller.handle_change(&change, &self.tables, now, &mut wakes);
        }
        woken(&wakes)
    }
}

fn woken(wakes: &Wakes<JobKey>) -> Vec<String> {
    let print = |(key, wait): (&JobKey, Duration)| format!("{key:?} {}", wait.as_secs());
    wakes.waits().map(print).collect()
}

fn decoded(kind: Kind, object: &Value) -> Decoded {
    Decoded::typed(kind, &object.to_string()).expect("an object that can be read")
}

fn job(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "generation": 1,
        "resourceVersion": "1"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}})
}

fn pod(version: u32, owner: Option<&str>) -> Value {
    let owner = owner.map(|name| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name,
            "controller": true})
    });
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p", "labels": {"a": "b"},
        "resourceVersion": version.to_string(), "ownerReferences": owner.into_iter()
            .collect::<Vec<_>>(), "finalizers": ["batch.kubernetes.io/job-tracking"]}})
}

fn deleting(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = NOON.into();
    pod
}

#[test]
fn changes_of_a_pod_wake_its_job_after_the_batch_period() {
    let mut watch = HandlerWatch::of(&["one", "two"]);
    assert_eq!(watch.set(PODS, &pod(2, Some("one"))), ["ns/one 1"]);
    assert_eq!(watch.set(PODS, &pod(3, Some("one"))), ["ns/one 1"]);
    assert_eq!(watch.set(PODS, &pod(4, Some("two"))), ["ns/one 1", "ns/two 1"]);
    assert_eq!(watch.set(PODS, &deleting(pod(5, Some("two")))), ["ns/two 1"]);
    assert_eq!(watch.delete(PODS, &deleting(pod(6, Some("two")))), ["ns/two 1"]);
}

#[test]
fn orphan_wakes_jobs_that_select_it_and_loses_its_finalizer() {
    let mut watch = HandlerWatch::of(&["one", "two"]);
    let all = ["orphan pod ns/p 0", "ns/one 1", "ns/two 1"];
    assert_eq!(watch.set(PODS, &pod(2, None)), all);
    assert_eq!(watch.set(PODS, &pod(3, None)), ["orphan pod ns/p 0"], "its labels are the same");
    let mut other = pod(4, None);
    other["metadata"]["labels"] = json!({"a": "b", "c": "d"});
    assert_eq!(watch.set(PODS, &other), all);
    assert_eq!(watch.set(PODS, &deleting(pod(5, None))), ["orphan pod ns/p 0"]);
}

#[test]
fn pod_that_is_deleted_after_its_job_ended_loses_its_finalizer() {
    let mut watch = HandlerWatch::of(&["one"]);
    watch.set(PODS, &pod(2, Some("one")));
    let mut ended = job("one");
    ended["metadata"]["resourceVersion"] = "3".into();
    ended["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    assert_eq!(watch.set(JOBS, &ended), ["orphan pod ns/p 0"]);
    assert_eq!(watch.set(PODS, &deleting(pod(4, Some("one")))), ["orphan pod ns/p 0"]);
}

#[test]
fn pod_that_is_created_after_its_job_ended_loses_its_finalizer() {
    let mut watch = HandlerWatch::of(&[]);
    let mut ended = job("one");
    ended["status"] = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    watch.set(JOBS, &ended);
    assert_eq!(watch.set(PODS, &pod(2, Some("one"))), ["orphan pod ns/p 0"]);
    assert_eq!(watch.set(PODS, &pod(3, Some("one"))), ["orphan pod ns/p 0"]);
    let mut released = pod(4, Some("one"));
    released["metadata"]["finalizers"] = json!([]);
    assert!(watch.set(PODS, &released).is_empty(), "nothing holds it");
}

#[test]
fn new_spec_wakes_at_once_and_a_new_status_after_the_batch_period() {
    let mut watch = HandlerWatch::of(&["one"]);
    let mut changed = job("one");
    changed["metadata"]["resourceVersion"] = "2".into();
    assert_eq!(watch.set(JOBS, &changed), ["ns/one 1"]);
    changed["metadata"]["resourceVersion"] = "3".into();
    changed["metadata"]["generation"] = 2.into();
    changed["spec"]["activeDeadlineSeconds"] = 130.into();
    changed["status"] = json!({"startTime": "2026-03-01T12:00:00Z"});
    assert_eq!(watch.set(JOBS, &changed), ["ns/one 0", "ns/one 30"]);
}

#[test]
fn deleted_job_wakes_its_tracked_pods() {
    let mut watch = HandlerWatch::of(&["one"]);
    watch.set(PODS, &pod(2, Some("one")));
    let mut gone = job("one");
    gone["metadata"]["resourceVersion"] = "3".into();
    assert_eq!(watch.delete(JOBS, &gone), ["orphan pod ns/p 0", "ns/one 0"]);
}

#[test]
fn start_wakes_tracked_pods_that_no_job_counts() {
    let mut watch = HandlerWatch::of(&["one"]);
    watch.set(PODS, &pod(2, Some("gone")));
    let mut wakes = Wakes::default();
    watch.controller.handle_start(&watch.tables, &mut wakes);
    assert_eq!(woken(&wakes), ["stray pod ns/p 0"]);
    watch.set(PODS, &pod(3, Some("one")));
    let mut wakes = Wakes::default();
    watch.controller.handle_start(&watch.tables, &mut wakes);
    assert!(woken(&wakes).is_empty());
}
