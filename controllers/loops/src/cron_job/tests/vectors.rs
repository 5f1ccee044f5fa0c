//! Syncs of random CronJobs compared with what upstream's controller does.
//!
//! Each line of the vectors has a CronJob, its Jobs, Jobs that only the API server has, the time,
//! requests that fail, and what upstream's `sync` asks for, writes and reports.
//! `tests/upstream/_controllers/cronjob/vectors.go` writes them; `PINTLE_CRON_VECTORS` names a file
//! with more.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CRON_JOBS, JOBS};
use pintle_api_types::request::{Answer, ApiError, Request};
use pintle_controllers_core::frame::{Controller, Driven, Now, drive};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::{CronJobController, CronJobSnapshot};

const VECTORS: &str = include_str!("vectors.jsonl");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronVector {
    cron_job: Value,
    jobs: Vec<Value>,
    live: Vec<Value>,
    now: Timestamp,
    get_fails: bool,
    delete_fails: Vec<String>,
    create: String,
    conflict: bool,
    want: CronWant,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronWant {
    requests: Vec<String>,
    creates: Vec<Value>,
    status: Option<Value>,
    events: Vec<String>,
    failed: bool,
    after_ms: i64,
}

fn error(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message: reason.to_owned(), ..ApiError::default() }
}

impl CronVector {
    fn snapshot(&self) -> CronJobSnapshot {
        let mut tables = Tables::default();
        let mut set = |kind, object: &Value| {
            let object = Decoded::typed(kind, &object.to_string());
            tables.apply(WatchEvent::Set(object.expect("an object that can be read")));
        };
        set(CRON_JOBS, &self.cron_job);
        self.jobs.iter().for_each(|job| set(JOBS, job));
        let now = Now { instant: std::time::Instant::now(), wall: self.now };
        let mut controller = CronJobController::new(1, TimeZone::UTC);
        let key = ObjectKey::new("ns", "cron");
        controller.snapshot(&key, &tables, now).expect("it is there")
    }

    fn job(&self, name: &str) -> Option<&Value> {
        self.jobs.iter().chain(&self.live).find(|job| job["metadata"]["name"] == name)
    }

    fn answer(&self, request: &Request) -> Answer {
        match request {
            Request::Read { target, .. } if target.kind == CRON_JOBS => Ok(self.cron_job.clone()),
            Request::Read { .. } if self.get_fails => Err(error(500, "InternalError")),
            Request::Read { target, .. } => {
                self.job(target.key.name()).cloned().ok_or_else(|| error(404, "NotFound"))
            }
            Request::Create { body, .. } => self.answer_create(body),
            Request::Delete { target, .. } => {
                let fails = self.delete_fails.iter().any(|name| name == target.key.name());
                if fails { Err(error(500, "InternalError")) } else { Ok(Value::Null) }
            }
            Request::Replace { .. } if self.conflict => Err(error(409, "Conflict")),
            Request::Replace { body, .. } => Ok(body.clone()),
            other => panic!("not expected: {other:?}"),
        }
    }

    fn answer_create(&self, body: &Value) -> Answer {
        match &*self.create {
            "fails" => return Err(error(500, "InternalError")),
            "terminating" => {
                let causes = vec!["NamespaceTerminating".to_owned()];
                return Err(ApiError { causes, ..error(403, "Forbidden") });
            }
            _ => {}
        }
        if self.job(body["metadata"]["name"].as_str().unwrap_or_default()).is_some() {
            return Err(error(409, "AlreadyExists"));
        }
        let mut job = body.clone();
        job["metadata"]["uid"] = "new-uid".into();
        job["metadata"]["resourceVersion"] = "99".into();
        job["metadata"]["namespace"] = "ns".into();
        Ok(job)
    }
}

fn describe(request: &Request) -> String {
    match request {
        Request::Read { target, .. } if target.kind == CRON_JOBS => {
            format!("read {}", target.key.name())
        }
        Request::Read { target, .. } => format!("get {}", target.key.name()),
        Request::Create { body, .. } => {
            format!("create {}", body["metadata"]["name"].as_str().unwrap_or_default())
        }
        Request::Delete { target, .. } => format!("delete {}", target.key.name()),
        Request::Replace { .. } => "update".to_owned(),
        other => panic!("not expected: {other:?}"),
    }
}

/// Values that are null or empty are left out.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), normal(value)));
            let is_something = |(_, value): &(String, Value)| {
                !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty())
            };
            Value::Object(fields.filter(is_something).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        other => other.clone(),
    }
}

/// Without the text of an error that the API server made.
fn without_error(event: String) -> String {
    ["FailedDelete", "FailedCreate", "FailedGet"]
        .into_iter()
        .find(|reason| event.contains(*reason))
        .map_or(event, str::to_owned)
}

fn done<N>(driven: &Driven<N>) -> CronWant {
    let (mut creates, mut status) = (Vec::new(), None);
    for request in &driven.requests {
        match request {
            Request::Create { body, .. } => creates.push(normal(body)),
            Request::Replace { body, .. } => status = Some(normal(&body["status"])),
            _ => {}
        }
    }
    let events = driven.events.iter();
    let events =
        events.map(|event| format!("{:?} {} {}", event.level, event.reason, event.message));
    let mut events: Vec<_> = events.map(without_error).collect();
    events.sort();
    let outcome = driven.outcome.as_ref().ok();
    let again = outcome.and_then(|outcome| outcome.again);
    CronWant {
        requests: driven.requests.iter().map(describe).collect(),
        creates,
        status,
        events,
        failed: outcome.is_none(),
        after_ms: again.map_or(-1, |wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
    }
}

impl CronWant {
    fn normalized(self) -> Self {
        let mut creates: Vec<_> = self.creates.iter().map(normal).collect();
        for create in &mut creates {
            create["apiVersion"] = JOBS.api_version().into();
            create["kind"] = JOBS.kind.into();
        }
        // The order of Jobs is chance.
        let mut events: Vec<_> = self.events.into_iter().map(without_error).collect();
        events.sort();
        Self { creates, status: self.status.as_ref().map(normal), events, ..self }
    }
}

#[test]
fn random_cron_job_syncs_match_upstream() {
    let more = std::env::var("PINTLE_CRON_VECTORS").ok();
    let more = more.map(|path| std::fs::read_to_string(path).expect("vectors that can be read"));
    let (mut compared, mut differ) = (0, 0);
    for line in VECTORS.lines().chain(more.iter().flat_map(|text| text.lines())) {
        let vector: CronVector = serde_json::from_str(line).expect("a vector");
        let snapshot = vector.snapshot();
        let driven =
            drive::<CronJobController>(&snapshot, vector.now, |request| vector.answer(request));
        let done = done(&driven);
        let want = vector.want.normalized();
        compared += 1;
        if done != want {
            differ += 1;
            if differ <= 3 {
                eprintln!("line {compared}: {line}\n ours     {done:#?}\n upstream {want:#?}");
            }
        }
    }
    println!("{compared} syncs were compared");
    assert!(compared >= 100, "{compared} vectors");
    assert_eq!(differ, 0, "of {compared} vectors");
}
