//! Fixtures of the Job controller's tests: a Job with its pods in tables, and one sync of it
//! against answers that a test can make fail.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{JOBS, PODS};
use pintle_api_types::request::{Answer, ApiError, Request};
use pintle_controllers_core::common::sample::MetricValue;
use pintle_controllers_core::frame::{Controller, Driven, Now, ObjectEvent, drive};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Job, Pod};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

use super::super::backoff::{BackoffRecord, JobBackoff};
use super::super::{JobController, JobKey};

/// The time of tests that have none of their own.
pub(super) const NOON: &str = "2026-03-01T12:01:40Z";

/// A time.
pub(super) fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// Requests that fail.
#[derive(Clone, Debug, Default)]
pub(super) struct JobFaults {
    /// The update of the status that conflicts, counted from 1.
    pub(super) conflict_at: usize,
    pub(super) patch_fails: BTreeSet<String>,
    pub(super) patch_not_found: BTreeSet<String>,
    pub(super) delete_fails: BTreeSet<String>,
    /// Pods that can be created; the others fail.
    pub(super) create_limit: Option<usize>,
}

/// A Job with its pods.
pub(super) struct JobCase {
    pub(super) controller: JobController,
    pub(super) tables: Tables,
    pub(super) now: Timestamp,
    pub(super) faults: JobFaults,
    /// The Job that a live read finds.
    live: Option<Value>,
    key: ObjectKey,
}

/// The outcome of a sync.
#[derive(Debug)]
pub(super) struct Synced {
    pub(super) driven: Driven<MetricValue>,
    /// Bodies of created pods.
    pub(super) created: Vec<Value>,
    /// Names and bodies of patched pods.
    pub(super) patched: Vec<(String, Value)>,
    /// Names of deleted pods.
    pub(super) deleted: Vec<String>,
    /// Statuses that were written.
    pub(super) statuses: Vec<Value>,
}

impl JobCase {
    pub(super) fn new(job: &Value, pods: &[Value]) -> Self {
        let mut tables = Tables::default();
        set(&mut tables, Decoded::typed(JOBS, &job.to_string()));
        for pod in pods {
            set(&mut tables, Decoded::typed(PODS, &pod.to_string()));
        }
        let text = |field: &str| job["metadata"][field].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let controller = JobController { workers: 1, ..JobController::default() };
        Self { controller, tables, now: time(NOON), faults: JobFaults::default(), live: None, key }
    }

    /// The Job failed before.
    pub(super) fn with_backoff(mut self, record: BackoffRecord) -> Self {
        self.controller.backoffs.insert(self.key.clone(), JobBackoff::of(record));
        self
    }

    /// A live read of the Job finds this one.
    pub(super) fn serving(mut self, live: Value) -> Self {
        self.live = Some(live);
        self
    }

    /// The time on both clocks.
    pub(super) fn now_both(&self) -> Now {
        Now { instant: std::time::Instant::now(), wall: self.now }
    }

    pub(super) fn failing(mut self, faults: JobFaults) -> Self {
        self.faults = faults;
        self
    }

    /// Syncs the Job.
    pub(super) fn sync(&mut self) -> Synced {
        self.sync_key(&JobKey::Job(self.key.clone()))
    }

    /// Syncs a key.
    pub(super) fn sync_key(&mut self, key: &JobKey) -> Synced {
        let now = self.now_both();
        let snapshot = self.controller.snapshot(key, &self.tables, now).expect("it is there");
        let (faults, live) = (self.faults.clone(), self.live.clone());
        let mut server = JobServer { faults, live, updates: 0, created: 0 };
        let driven = drive::<JobController>(&snapshot, self.now, |request| server.answer(request));
        Synced::of(driven, self.faults.create_limit)
    }
}

fn set(tables: &mut Tables, object: Result<Decoded, serde_json::Error>) {
    tables.apply(WatchEvent::Set(object.expect("an object that can be read")));
}

struct JobServer {
    faults: JobFaults,
    live: Option<Value>,
    updates: usize,
    created: usize,
}

impl JobServer {
    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Create { body, .. } => {
                self.created += 1;
                if self.faults.create_limit.is_some_and(|limit| self.created > limit) {
                    return Err(error(500, "InternalError"));
                }
                let mut pod = body.clone();
                pod["metadata"]["name"] = format!("created-{}", self.created).into();
                Ok(pod)
            }
            Request::Replace { body, .. } => {
                self.updates += 1;
                if self.updates == self.faults.conflict_at {
                    return Err(error(409, "Conflict"));
                }
                Ok(body.clone())
            }
            Request::Patch { target, .. } => {
                let name = target.key.name();
                if self.faults.patch_fails.contains(name) {
                    return Err(error(500, "InternalError"));
                }
                if self.faults.patch_not_found.contains(name) {
                    return Err(error(404, "NotFound"));
                }
                Ok(json!({}))
            }
            Request::Delete { target, .. } => {
                if self.faults.delete_fails.contains(target.key.name()) {
                    return Err(error(500, "InternalError"));
                }
                Ok(json!({}))
            }
            Request::Read { .. } => self.live.clone().ok_or_else(|| error(404, "NotFound")),
            other => panic!("not expected: {other:?}"),
        }
    }
}

/// An error of the API server.
pub(super) fn error(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message: reason.to_owned(), ..ApiError::default() }
}

impl Synced {
    fn of(driven: Driven<MetricValue>, create_limit: Option<usize>) -> Self {
        let (mut created, mut patched) = (Vec::new(), Vec::new());
        let (mut deleted, mut statuses) = (Vec::new(), Vec::new());
        for request in &driven.requests {
            match request {
                Request::Create { body, .. } => created.push(body.clone()),
                Request::Patch { target, body, .. } => {
                    patched.push((target.key.name().to_owned(), body.clone()));
                }
                Request::Delete { target, .. } => deleted.push(target.key.name().to_owned()),
                Request::Replace { body, .. } => statuses.push(body["status"].clone()),
                _ => {}
            }
        }
        created.truncate(create_limit.unwrap_or(usize::MAX));
        Self { driven, created, patched, deleted, statuses }
    }

    /// The last status that was written.
    pub(super) fn status(&self) -> &Value {
        self.statuses.last().expect("a status was written")
    }

    /// Level, reason and message of the events, without those about single pods.
    pub(super) fn events(&self) -> Vec<String> {
        let of_job = self.driven.events.iter().filter(|event| !is_of_pod(event));
        of_job
            .map(|event| format!("{:?} {} {}", event.level, event.reason, event.message))
            .collect()
    }
}

fn is_of_pod(event: &ObjectEvent) -> bool {
    matches!(
        event.reason,
        "SuccessfulCreate" | "FailedCreate" | "SuccessfulDelete" | "FailedDelete"
    )
}

/// Facts of a Job.
pub(super) fn job(value: &Value) -> KeptObject<Job> {
    KeptObject::of_value(value).expect("a good Job")
}

/// Facts of a pod.
pub(super) fn pod(value: &Value) -> KeptObject<Pod> {
    KeptObject::of_value(value).expect("a good pod")
}
