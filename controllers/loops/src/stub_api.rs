//! Fixtures of controllers' tests: tables from objects, an API server that accepts everything,
//! and steps of a sync run to their end.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pintle_api_types::kind::{Kind, REPLICA_SETS};
use pintle_api_types::request::{Answer, ApiError, Request};
use pintle_controllers_core::frame::{ObjectEvent, SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::kept::{Facts, KeptObject};
use pintle_controllers_core::tables::{Change, Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

/// Applies an object to tables; returns the changes.
pub(crate) fn put(tables: &mut Tables, kind: Kind, object: &Value) -> Vec<Change> {
    let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
    tables.apply(WatchEvent::Set(object))
}

/// Removes an object from tables; returns the changes.
pub(crate) fn remove(tables: &mut Tables, kind: Kind, object: &Value) -> Vec<Change> {
    let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
    tables.apply(WatchEvent::Deleted(object))
}

/// The facts of an object.
pub(crate) fn kept<T: Facts>(object: &Value) -> KeptObject<T> {
    KeptObject::of_value(object).expect("a good object")
}

/// Agrees to a request: the object as it was sent, of a newer version.
pub(crate) fn agree(request: &Request) -> Answer {
    let mut object = match request {
        Request::Create { body, .. } | Request::Replace { body, .. } => body.clone(),
        Request::Patch { body, .. } => body.clone(),
        _ => json!({}),
    };
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or("0");
    let version = version.parse::<u64>().expect("a version is a number") + 1000;
    object["metadata"]["resourceVersion"] = version.to_string().into();
    if let Some(prefix) = object["metadata"]["generateName"].as_str() {
        object["metadata"]["name"] = format!("{prefix}abcde").into();
    }
    Ok(object)
}

/// A refusal.
pub(crate) fn refusal(code: u16, reason: &str, message: &str) -> ApiError {
    ApiError { code, reason: reason.into(), message: message.into(), ..ApiError::default() }
}

/// A step that was run to its end.
pub(crate) struct StepRun<T> {
    pub(crate) result: Result<T, SyncError>,
    pub(crate) requests: Vec<Request>,
    pub(crate) events: Vec<ObjectEvent>,
}

/// Runs a step of a sync to its end.
pub(crate) fn run<T>(
    now: Timestamp,
    mut answer: impl FnMut(&Request) -> Answer,
    step: impl Fn(&mut Transcript) -> Result<T, TranscriptStop>,
) -> StepRun<T> {
    let mut transcript = Transcript::new(now);
    let result = loop {
        match step(&mut transcript) {
            Ok(value) => break Ok(value),
            Err(TranscriptStop::Failed(error)) => break Err(error),
            Err(TranscriptStop::Pending) => {
                let answers = transcript.wanted().iter().map(&mut answer).collect();
                transcript.answer(answers);
            }
        }
    };
    let requests =
        transcript.steps().iter().flat_map(|step| step.requests.iter().cloned()).collect();
    StepRun { result, requests, events: transcript.events().to_vec() }
}

/// The sizes that requests give to ReplicaSets, by name.
pub(crate) fn sizes(requests: &[Request]) -> BTreeMap<String, i64> {
    let mut sizes = BTreeMap::new();
    for request in requests {
        if let Request::Replace { target, body } = request
            && target.kind == REPLICA_SETS
        {
            let size = body["spec"]["replicas"].as_i64().expect("a size");
            sizes.insert(target.key.name().to_owned(), size);
        }
    }
    sizes
}

/// Requests in a few words each: verb, resource and subresource.
pub(crate) fn verbs(requests: &[Request]) -> Vec<String> {
    let of = |target: &pintle_api_types::request::Target| match target.sub {
        "" => target.kind.plural.to_owned(),
        sub => format!("{}/{sub}", target.kind.plural),
    };
    let words = requests.iter().map(|request| match request {
        Request::Create { kind, .. } => format!("create {}", kind.plural),
        Request::Replace { target, .. } => format!("update {}", of(target)),
        Request::Patch { target, .. } => format!("patch {}", of(target)),
        Request::Delete { target, .. } => format!("delete {}", of(target)),
        Request::Read { target, .. } => format!("get {}", of(target)),
        other => format!("{other:?}"),
    });
    words.collect()
}

/// The messages of events, with their reasons.
pub(crate) fn messages(events: &[ObjectEvent]) -> Vec<String> {
    events.iter().map(|event| format!("{}: {}", event.reason, event.message)).collect()
}
