//! Syncs of random ReplicaSets compared with what upstream's controller does.
//!
//! Each line of the vectors has a set, a sibling, pods, the time, which requests fail, and what
//! upstream's `syncReplicaSet` asks for and writes (`tests/upstream/vectors/replicas`).
//! `PINTLE_VECTORS_RS` names another file of such lines. The order of requests that are sent at
//! once is chance there.

use std::time::Instant;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{PODS, REPLICA_SETS};
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Controller, Driven, Now, drive};
use pintle_controllers_core::kinds::ReplicaSet;
use pintle_controllers_core::tables::Tables;
use serde_json::{Value, json};

use super::super::ReplicaController;
use crate::stub_api::{put, refusal};

const VECTORS: &str = include_str!("vectors.jsonl");

fn failure(why: &str) -> Answer {
    Err(refusal(500, "InternalError", &format!("Internal error occurred: {why}")))
}

fn synced(vector: &Value) -> Driven<()> {
    let mut tables = Tables::default();
    put(&mut tables, REPLICA_SETS, &vector["set"]);
    put(&mut tables, REPLICA_SETS, &vector["sibling"]);
    for pod in vector["pods"].as_array().into_iter().flatten() {
        put(&mut tables, PODS, pod);
    }
    let number = |field: &str| vector[field].as_i64().expect("a number");
    let nanos = i32::try_from(number("nanos")).expect("less than a second");
    let wall = Timestamp::new(number("now"), nanos).expect("a time");
    let at = Now { instant: Instant::now(), wall };
    let mut controller = ReplicaController::<ReplicaSet>::new(1);
    let snapshot = controller.snapshot(&ObjectKey::new("n", "rs"), &tables, at).expect("a set");
    // Less than 0 means no limit.
    let mut left = vector["createLimit"].as_i64().expect("a number");
    drive::<ReplicaController<ReplicaSet>>(&snapshot, wall, |request| match request {
        Request::Create { .. } if left == 0 => failure("no more"),
        Request::Create { body, .. } => {
            left -= 1;
            Ok(body.clone())
        }
        Request::Delete { .. } if vector["deleteFails"] == true => failure("no way"),
        Request::Read { .. } => Ok(vector["set"].clone()),
        Request::Replace { body, .. } => Ok(body.clone()),
        _ => Ok(json!({})),
    })
}

/// The outcome of a sync, in the format of the vectors.
fn outcome(driven: &Driven<()>) -> Value {
    let (mut creates, mut deletes, mut patches) = (0, Vec::new(), Vec::new());
    let mut status = Value::Null;
    for request in &driven.requests {
        match request {
            Request::Create { .. } => creates += 1,
            Request::Delete { target, .. } => deletes.push(target.key.name().to_owned()),
            Request::Patch { target, body, .. } => patches.push(json!([target.key.name(), body])),
            Request::Replace { body, .. } => status = body["status"].clone(),
            _ => {}
        }
    }
    deletes.sort_unstable();
    patches.sort_by_key(Value::to_string);
    json!({"creates": creates, "deletes": deletes, "patches": patches, "status": status,
        "failed": driven.outcome.is_err()})
}

fn upstreams(vector: &Value) -> Value {
    let mut want = vector["want"].clone();
    let texts = |value: &Value| -> Vec<String> {
        let texts = value.as_array().into_iter().flatten();
        texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut deletes = texts(&want["deletes"]);
    deletes.sort_unstable();
    let patch = |text: String| {
        let (name, patch) = text.split_once(' ').expect("a name and a patch");
        json!([name, serde_json::from_str::<Value>(patch).expect("a patch is JSON")])
    };
    let mut patches: Vec<_> = texts(&want["patches"]).into_iter().map(patch).collect();
    patches.sort_by_key(Value::to_string);
    want["deletes"] = json!(deletes);
    want["patches"] = json!(patches);
    want
}

/// Upstream's order of pods is cyclic for pods that became ready within one step, so the deleted
/// pod depends on the order of its cache, which is a map. All else is equal.
// k8s: pkg/controller/controller_utils.go ActivePodsWithRanks.Less
fn is_same_but_chosen(theirs: &Value, ours: &Value) -> bool {
    let numbered = |want: &Value| {
        let mut want = want.clone();
        want["deletes"] = want["deletes"].as_array().map_or(0, Vec::len).into();
        want
    };
    numbered(theirs) == numbered(ours)
}

#[test]
fn sync_of_a_random_set_is_upstreams() {
    let given = std::env::var_os("PINTLE_VECTORS_RS");
    let text = given.map(|path| std::fs::read_to_string(path).expect("the file is there"));
    let text = text.as_deref().unwrap_or(VECTORS);
    let (mut chosen, mut differences) = (0, Vec::new());
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).expect("a line is JSON");
        let (theirs, ours) = (upstreams(&vector), outcome(&synced(&vector)));
        if theirs != ours && is_same_but_chosen(&theirs, &ours) {
            chosen += 1;
        } else if theirs != ours {
            differences.push(format!("{line}\n  upstream {theirs}\n  ours     {ours}"));
        }
    }
    let compared = text.lines().count();
    println!("{compared} syncs were compared, {chosen} of them deleted other pods of a circle");
    assert!(chosen * 1_000 <= compared, "{chosen} of {compared} syncs deleted other pods");
    assert!(compared > 10, "there are syncs to compare");
    let shown = differences.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} syncs differ:\n{shown}", differences.len());
}
