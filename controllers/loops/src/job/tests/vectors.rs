//! Syncs of random Jobs compared with what upstream's controller does.
//!
//! Each line of the vectors has a Job, its pods, the failures so far, the time, requests that fail,
//! and what upstream's `syncJob` asks for, writes and reports. Syncs that depend on chance are left
//! out. `tests/upstream/_controllers/job/vectors.go` writes them; `PINTLE_JOB_VECTORS` names a file
//! with more.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::backoff::BackoffRecord;
use super::kit::{JobCase, JobFaults, Synced};

const VECTORS: &str = include_str!("vectors.jsonl");

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobVector {
    job: Value,
    pods: Option<Vec<Value>>,
    failures: u32,
    last_failure: Option<Timestamp>,
    now: Timestamp,
    faults: FaultsInVector,
    want: JobWant,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FaultsInVector {
    status_conflict_at: usize,
    patch_fails: Option<Vec<String>>,
    patch_gone: Option<Vec<String>>,
    delete_fails: Option<Vec<String>>,
    create_limit: usize,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobWant {
    creates: Vec<Value>,
    patches: Vec<String>,
    deletes: Vec<String>,
    statuses: Vec<Value>,
    events: Vec<String>,
    failed: bool,
    after_ms: i64,
}

impl JobVector {
    fn case(&self) -> JobCase {
        let mut case = JobCase::new(&self.job, self.pods.as_deref().unwrap_or_default());
        case.now = self.now;
        let all = |names: &Option<Vec<String>>| names.iter().flatten().cloned().collect();
        let faults = JobFaults {
            conflict_at: self.faults.status_conflict_at,
            patch_fails: all(&self.faults.patch_fails),
            patch_not_found: all(&self.faults.patch_gone),
            delete_fails: all(&self.faults.delete_fails),
            create_limit: Some(self.faults.create_limit).filter(|limit| *limit > 0),
        };
        let record = BackoffRecord { failures: self.failures, last_failure: self.last_failure };
        case.failing(faults).with_backoff(record)
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

fn with_sorted_uids(status: &Value) -> Value {
    let mut status = status.clone();
    for list in ["succeeded", "failed"] {
        if let Some(uids) = status["uncountedTerminatedPods"][list].as_array_mut() {
            uids.sort_by_key(|uid| uid.to_string());
        }
    }
    normal(&status)
}

fn creation(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    normal(&json!({
        "generateName": metadata["generateName"],
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "finalizers": metadata["finalizers"],
        "owners": metadata["ownerReferences"],
        "spec": pod["spec"],
    }))
}

/// The outcome of the sync, in the format of the vectors.
fn done(synced: &Synced) -> JobWant {
    let mut creates: Vec<_> = synced.created.iter().map(creation).collect();
    creates.sort_by_key(Value::to_string);
    let patches = synced.patched.iter().map(|(name, body)| format!("{name} {body}"));
    let mut patches: Vec<_> = patches.collect();
    patches.sort();
    let mut deletes = synced.deleted.clone();
    deletes.sort();
    let outcome = synced.driven.outcome.as_ref().ok();
    let again = outcome.and_then(|outcome| outcome.again);
    JobWant {
        creates,
        patches,
        deletes,
        statuses: synced.statuses.iter().map(with_sorted_uids).collect(),
        events: synced.events(),
        failed: outcome.is_none(),
        after_ms: again.map_or(-1, |wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)),
    }
}

impl JobWant {
    fn normalized(mut self) -> Self {
        self.creates = self.creates.iter().map(normal).collect();
        self.creates.sort_by_key(Value::to_string);
        self.statuses = self.statuses.iter().map(with_sorted_uids).collect();
        let patches = self.patches.iter().map(|patch| {
            let (name, body) = patch.split_once(' ').expect("a name and a body");
            let body: Value = serde_json::from_str(body).expect("a body in JSON");
            format!("{name} {body}")
        });
        self.patches = patches.collect();
        self.patches.sort();
        if self.failed {
            // A failed sync is retried after its back-off.
            self.after_ms = -1;
        }
        self
    }
}

/// Creations of one batch are sent at once, and which of them a limit refuses is chance: only their
/// number is the same then.
fn is_same_but_refused(limit: usize, ours: &JobWant, theirs: &JobWant) -> bool {
    let without_creates = |want: &JobWant| JobWant {
        creates: Vec::new(),
        patches: want.patches.clone(),
        deletes: want.deletes.clone(),
        statuses: want.statuses.clone(),
        events: want.events.clone(),
        ..*want
    };
    let is_limited = limit > 0 && theirs.failed && theirs.creates.len() == limit;
    is_limited
        && ours.creates.len() == theirs.creates.len()
        && without_creates(ours) == without_creates(theirs)
}

#[test]
fn random_job_syncs_match_upstream() {
    let more = std::env::var("PINTLE_JOB_VECTORS").ok();
    let more = more.map(|path| std::fs::read_to_string(path).expect("vectors that can be read"));
    let (mut compared, mut chosen, mut differ) = (0, 0, 0);
    for line in VECTORS.lines().chain(more.iter().flat_map(|text| text.lines())) {
        let vector: JobVector = serde_json::from_str(line).expect("a vector");
        let done = done(&vector.case().sync());
        let want = vector.want.normalized();
        compared += 1;
        if done != want && is_same_but_refused(vector.faults.create_limit, &done, &want) {
            chosen += 1;
        } else if done != want {
            differ += 1;
            if differ <= 3 {
                eprintln!("line {compared}: {line}\n ours     {done:#?}\n upstream {want:#?}");
            }
        }
    }
    println!("{compared} syncs were compared, {chosen} of them created other pods of a batch");
    assert!(chosen * 100 <= compared, "{chosen} of {compared} created other pods of a batch");
    assert!(compared >= 100, "{compared} vectors");
    assert_eq!(differ, 0, "of {compared} vectors");
}
