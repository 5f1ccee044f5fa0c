//! Syncs of random Deployments compared with what upstream's controller does.
//!
//! Each line of the vectors has a Deployment, its sets and pods, the time, and what upstream's
//! `syncDeployment` writes and reports (`tests/upstream/vectors/replicas`). `PINTLE_VECTORS` names
//! another file of such lines. Not compared: syncs in which upstream writes the same set twice,
//! because it does not use the answer to its own write; ours continues with the status there.

use std::time::Instant;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, PODS, REPLICA_SETS};
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Controller, Driven, EventLevel, Now, drive};
use pintle_controllers_core::tables::Tables;
use serde_json::{Map, Value, json};

use super::super::DeploymentController;
use crate::stub_api::put;

const VECTORS: &str = include_str!("vectors.jsonl");

/// The fake client of upstream's tests agrees to everything and changes nothing.
fn answer(request: &Request) -> Answer {
    Ok(match request {
        Request::Create { body, .. } | Request::Replace { body, .. } => body.clone(),
        _ => json!({}),
    })
}

fn synced(vector: &Value) -> Driven<()> {
    let mut tables = Tables::default();
    put(&mut tables, DEPLOYMENTS, &vector["deployment"]);
    for (kind, field) in [(REPLICA_SETS, "sets"), (PODS, "pods")] {
        for object in vector[field].as_array().into_iter().flatten() {
            put(&mut tables, kind, object);
        }
    }
    let number = |field: &str| vector[field].as_i64().expect("a number");
    let nanos = i32::try_from(number("nanos")).expect("less than a second");
    let wall = Timestamp::new(number("now"), nanos).expect("a time");
    let at = Now { instant: Instant::now(), wall };
    let key = ObjectKey::new("n", "foo");
    let snapshot = DeploymentController { workers: 1 }.snapshot(&key, &tables, at);
    drive::<DeploymentController>(&snapshot.expect("it is there"), wall, answer)
}

/// The value without what Go's encoder writes for nothing.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), normal(value)));
            let is_empty =
                |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
            kept.filter(|(_, value)| !is_empty(value)).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(normal).collect(),
        other => other.clone(),
    }
}

fn body(object: &Value) -> Value {
    let mut object = normal(object);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
        // A new set has no status yet.
        if fields.get("status") == Some(&json!({"replicas": 0})) {
            fields.remove("status");
        }
    }
    object
}

fn upstream_writes(vector: &Value) -> Vec<String> {
    let writes = vector["want"]["writes"].as_array().into_iter().flatten();
    let line = |write: &Value| {
        let text = |field: &str| write[field].as_str().unwrap_or_default();
        match text("verb") {
            "delete" => format!("delete {} {}", text("resource"), text("name")),
            verb => {
                format!("{verb} {}/{} {}", text("resource"), text("sub"), body(&write["object"]))
            }
        }
    };
    writes.map(line).collect()
}

fn own_writes(driven: &Driven<()>) -> Vec<String> {
    let line = |request: &Request| match request {
        Request::Create { kind, body: object, .. } => {
            format!("create {}/ {}", kind.plural, body(object))
        }
        Request::Replace { target, body: object } => {
            format!("update {}/{} {}", target.kind.plural, target.sub, body(object))
        }
        Request::Delete { target, .. } => {
            format!("delete {} {}", target.kind.plural, target.key.name())
        }
        other => panic!("{other:?}"),
    };
    driven.requests.iter().map(line).collect()
}

fn own_events(driven: &Driven<()>) -> Vec<String> {
    let line = |event: &pintle_controllers_core::frame::ObjectEvent| {
        let level = if event.level == EventLevel::Normal { "Normal" } else { "Warning" };
        format!("{level} {} {}", event.reason, event.message)
    };
    driven.events.iter().map(line).collect()
}

/// Upstream wrote a set twice without a change in between.
fn is_repeated(writes: &[String]) -> bool {
    let is_set = |line: &&String| line.starts_with("update replicasets");
    writes
        .iter()
        .filter(is_set)
        .any(|line| writes.iter().filter(|other| *other == line).count() > 1)
}

#[test]
fn sync_of_a_random_deployment_is_upstreams() {
    let given = std::env::var_os("PINTLE_VECTORS");
    let text = given.map(|path| std::fs::read_to_string(path).expect("the file is there"));
    let text = text.as_deref().unwrap_or(VECTORS);
    let (mut compared, mut differences) = (0, Vec::new());
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).expect("a line is JSON");
        let theirs = upstream_writes(&vector);
        if is_repeated(&theirs) {
            continue;
        }
        compared += 1;
        let driven = synced(&vector);
        let events: Vec<_> = vector["want"]["events"].as_array().into_iter().flatten().collect();
        let is_equal = theirs == own_writes(&driven)
            && own_events(&driven).iter().eq(events.iter().filter_map(|event| event.as_str()))
            && driven.outcome.is_err() == (vector["want"]["failed"] == true);
        if !is_equal {
            differences.push(format!(
                "{line}\n  upstream {theirs:#?} {events:?}\n  ours {:#?} {:?} {:?}",
                own_writes(&driven),
                own_events(&driven),
                driven.outcome
            ));
        }
    }
    println!("{compared} syncs were compared");
    assert!(compared * 3 > text.lines().count(), "only {compared} syncs can be compared");
    let shown = differences.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {compared} syncs differ:\n{shown}", differences.len());
}
