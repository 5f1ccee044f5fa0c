//! Reads, lists, metadata and watches.

use std::time::Duration;

use pintle_api_types::kind;
use pintle_api_types::request::{ApiError, Subresource};
use serde_json::json;

use super::*;
use crate::{Change, Refusal, Verb};

fn list(world: &mut ServerWorld, labels: &str, only_metadata: bool) -> Value {
    let request = Request::List {
        kind: kind::CONFIG_MAPS,
        namespace: "a".to_owned(),
        labels: labels.to_owned(),
        only_metadata,
    };
    world.ask(&request).expect("a list")
}

fn with_labels(world: &mut ServerWorld, name: &str, labels: Value) {
    let body = json!({"metadata": {"name": name, "labels": labels}, "data": {"k": "v"}});
    world.made(kind::CONFIG_MAPS, body);
}

#[test]
fn lists_select_by_labels_and_have_the_version_of_everything() {
    let mut world = ServerWorld::new();
    with_labels(&mut world, "one", json!({"app": "x", "tier": "t"}));
    with_labels(&mut world, "two", json!({"app": "y"}));
    for (labels, names) in [
        ("", vec!["one", "two"]),
        ("app=x", vec!["one"]),
        ("app==y", vec!["two"]),
        ("app!=x", vec!["two"]),
        ("app in (x, y),tier", vec!["one"]),
        ("app notin (x),!tier", vec!["two"]),
    ] {
        let list = list(&mut world, labels, false);
        let items = list["items"].as_array().expect("items");
        let found: Vec<_> = items.iter().map(|item| &item["metadata"]["name"]).collect();
        assert_eq!(found, names, "{labels}");
        assert_eq!(list["metadata"]["resourceVersion"], world.server.version().to_string());
        assert_eq!(list["kind"], "ConfigMapList");
    }
}

#[test]
fn metadata_alone_is_answered_without_the_rest() {
    let mut world = ServerWorld::new();
    with_labels(&mut world, "one", json!({}));
    let list = list(&mut world, "", true);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0]["data"].is_null());
    let read = Request::Read { target: target(kind::CONFIG_MAPS, "one", ""), only_metadata: true };
    assert_eq!(world.ask(&read).expect("it is there")["metadata"]["name"], "one");
}

#[test]
fn events_follow_versions_until_history_is_compacted() {
    let mut world = ServerWorld::new();
    let start = world.server.version();
    with_labels(&mut world, "one", json!({}));
    with_labels(&mut world, "two", json!({}));
    world.delete(kind::CONFIG_MAPS, "one", DeleteOptions::default()).expect("deleted");
    let events = world.server.events_since(kind::CONFIG_MAPS, start).expect("kept").to_vec();
    let changes: Vec<_> = events.iter().map(|event| event.change).collect();
    assert_eq!(changes, [Change::Added, Change::Added, Change::Deleted]);
    for event in &events {
        assert_eq!(event.object["metadata"]["resourceVersion"], event.version.to_string());
    }
    world.server.compact(start + 1);
    let error = world.server.events_since(kind::CONFIG_MAPS, start).expect_err("compacted");
    assert_eq!((error.code, error.reason.as_str()), (410, "Expired"));
    let rest = world.server.events_since(kind::CONFIG_MAPS, start + 1).expect("kept");
    assert_eq!(rest, &events[1..]);
}

#[test]
fn refusal_applies_its_configured_number_of_times() {
    let mut world = ServerWorld::new();
    let error =
        ApiError { code: 429, retry_after: Some(Duration::from_secs(1)), ..ApiError::default() };
    world.server.refuse(Refusal {
        verb: Some(Verb::Create),
        kind: Some(kind::CONFIG_MAPS),
        times: Some(1),
        error: error.clone(),
        ..Refusal::default()
    });
    let body = json!({"metadata": {"name": "x"}});
    assert_eq!(world.create(kind::CONFIG_MAPS, body.clone()), Err(error));
    assert!(world.create(kind::CONFIG_MAPS, body).is_ok());
}

#[test]
fn service_account_token_expires_as_requested() {
    let mut world = ServerWorld::new();
    let request = |name: &str| Request::Create {
        kind: kind::SERVICE_ACCOUNTS,
        namespace: "a".to_owned(),
        below: Some(Subresource { name: name.to_owned(), sub: "token" }),
        body: json!({"spec": {"expirationSeconds": 600, "boundObjectRef": {"uid": "of-pod"}}}),
    };
    assert!(world.ask(&request("x")).expect_err("no account").is_not_found());
    world.made(kind::SERVICE_ACCOUNTS, json!({"metadata": {"name": "x"}}));
    let token = world.ask(&request("x")).expect("a token");
    assert_eq!(token["status"]["expirationTimestamp"], "1970-01-01T00:10:00Z");
    let text = token["status"]["token"].as_str().expect("a text");
    assert!(text.starts_with("token-1-") && text.contains("-bound-to-of-pod-"), "{text}");
    let next = world.ask(&request("x")).expect("another token");
    assert_ne!(next["status"]["token"], token["status"]["token"]);
}

#[test]
fn binding_assigns_a_pod_once() {
    let mut world = ServerWorld::new();
    world.made(kind::PODS, pod("x", ""));
    let bind = Request::Create {
        kind: kind::PODS,
        namespace: "a".to_owned(),
        below: Some(Subresource { name: "x".to_owned(), sub: "binding" }),
        body: json!({"target": {"kind": "Node", "name": "n"}}),
    };
    world.ask(&bind).expect("bound");
    assert_eq!(world.read(kind::PODS, "x").expect("it is there")["spec"]["nodeName"], "n");
    let error = world.ask(&bind).expect_err("bound already");
    assert_eq!(
        error.message,
        "Operation cannot be fulfilled on pods/binding \"x\": pod x is already assigned to node \
         \"n\""
    );
}

#[test]
fn deleting_a_collection_returns_the_deleted_objects() {
    let mut world = ServerWorld::new();
    with_labels(&mut world, "one", json!({}));
    with_labels(&mut world, "two", json!({}));
    let request = Request::DeleteCollection {
        kind: kind::CONFIG_MAPS,
        namespace: "a".to_owned(),
        propagation: None,
    };
    let list = world.ask(&request).expect("deleted");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(world.server.objects(kind::CONFIG_MAPS, "").count(), 0);
}
