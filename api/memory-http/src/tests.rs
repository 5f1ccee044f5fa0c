//! Paths, selectors, watches, pages and refusals, as clients see them.

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::answer::answer;
use crate::route::Route;
use crate::{HttpServer, SharedServer, fields};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

/// Sends a request; an empty text has no body.
fn ask(server: &SharedServer, method: &str, path: &str, body: &str) -> Response<Body> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/merge-patch+json");
    answer(server, &request.body(body.as_bytes().to_vec()).expect("a request"))
}

async fn object(response: Response<Body>) -> (u16, Value) {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head.status.as_u16(), serde_json::from_slice(&body).expect("JSON"))
}

/// The open watch's next so many events: type and name.
async fn events(watch: &mut Response<Body>, count: usize) -> Vec<String> {
    let mut text = String::new();
    while text.lines().count() < count {
        let part = watch.body_mut().into_data_stream().next().await.expect("an event");
        text.push_str(std::str::from_utf8(&part.expect("a part")).expect("text"));
    }
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let (kind, object) = (event["type"].as_str(), &event["object"]);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", kind.expect("a type")).trim_end().to_owned()
    };
    text.lines().map(event).collect()
}

#[test]
fn paths_name_collections_objects_and_subresources() {
    let parsed = |path: &str| {
        let route = Route::parse(path).expect("a path of a served kind");
        format!("{:?} {} {} {}", route.kind, route.namespace, route.name, route.sub)
    };
    assert_eq!(parsed("/api/v1/pods"), "pods   ");
    assert_eq!(parsed("/api/v1/namespaces/ns/pods/p/status"), "pods ns p status");
    assert_eq!(parsed("/api/v1/nodes/n"), "nodes  n ");
    assert_eq!(parsed("/api/v1/namespaces"), "namespaces   ");
    assert_eq!(parsed("/api/v1/namespaces/ns"), "namespaces  ns ");
    assert_eq!(parsed("/api/v1/namespaces/ns/finalize"), "namespaces  ns finalize");
    assert_eq!(
        parsed("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
        "leases.coordination.k8s.io ns l "
    );
    assert_eq!(parsed("/apis/storage.k8s.io/v1/csinodes/n"), "csinodes.storage.k8s.io  n ");
    for path in ["/healthz", "/api/v1", "/api/v1/nothings", "/api/v1/pods/p/nothing"] {
        assert_eq!(Route::parse(path), None, "{path}");
    }
}

#[test]
fn fields_select() {
    let object = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}});
    let selects = |selector: &str| fields::are_selected(selector, &object);
    assert!(selects("") && selects("metadata.name=a,spec.nodeName==n"));
    assert!(selects("spec.nodeName!=m") && selects("spec.host="));
    assert!(!selects("spec.nodeName=m") && !selects("metadata.name!=a"));
}

#[tokio::test]
async fn objects_are_created_read_patched_and_deleted() {
    let server = SharedServer::new(1);
    server.put("/api/v1/namespaces/a", json!({}));
    let body = r#"{"metadata": {"name": "m"}, "data": {"k": "v"}}"#;
    let (code, made) = object(ask(&server, "POST", MAPS, body)).await;
    assert_eq!((code, &made["kind"]), (201, &json!("ConfigMap")));
    let (code, error) = object(ask(&server, "POST", MAPS, body)).await;
    assert_eq!((code, &error["reason"]), (409, &json!("AlreadyExists")));
    let one = format!("{MAPS}/m");
    let (code, patched) = object(ask(&server, "PATCH", &one, r#"{"data": {"k": "w"}}"#)).await;
    assert_eq!((code, &patched["data"]["k"]), (200, &json!("w")));
    let (code, read) = object(ask(&server, "GET", &one, "")).await;
    assert_eq!((code, read), (200, patched));
    let other = r#"{"preconditions": {"uid": "another"}}"#;
    assert_eq!(object(ask(&server, "DELETE", &one, other)).await.0, 409);
    assert_eq!(object(ask(&server, "DELETE", &one, "")).await.0, 200);
    let (code, error) = object(ask(&server, "GET", &one, "")).await;
    assert_eq!((code, &error["message"]), (404, &json!("configmaps \"m\" not found")));
    assert_eq!(object(ask(&server, "GET", "/api/v1/nothings", "")).await.0, 404);
    assert_eq!(server.count(&format!("GET {one}")), 2);
}

#[tokio::test]
async fn watch_sends_existing_objects_then_changes_that_match_the_selector() {
    let server = SharedServer::new(1);
    let pod = |name: &str| format!("/api/v1/namespaces/a/pods/{name}");
    let on = |node: &str| json!({"spec": {"nodeName": node}});
    server.put(&pod("here"), on("n"));
    server.put(&pod("there"), on("m"));
    let path = "/api/v1/pods?watch=true&sendInitialEvents=true&fieldSelector=spec.nodeName%3Dn";
    let mut watch = ask(&server, "GET", path, "");
    assert_eq!(events(&mut watch, 2).await, ["ADDED here", "BOOKMARK"]);
    server.put(&pod("there"), on("m"));
    server.put(&pod("there"), on("n"));
    server.put(&pod("here"), on("m"));
    server.remove(&pod("here"));
    server.remove(&pod("there"));
    assert_eq!(
        events(&mut watch, 4).await,
        ["ADDED there", "DELETED here", "MODIFIED there", "DELETED there"],
        "a deletion without grace is two events"
    );
    assert_eq!(server.open_watches(), 1);
    server.cut_watches();
    assert!(watch.body_mut().into_data_stream().next().await.is_none());
    drop(watch);
    assert_eq!(server.open_watches(), 0);
}

#[tokio::test]
async fn watch_resumes_at_its_version_unless_compacted() {
    let server = SharedServer::new(1);
    server.put(&format!("{MAPS}/one"), json!({}));
    let version = server.act(|server, _| server.version());
    server.put(&format!("{MAPS}/two"), json!({}));
    let path = format!("{MAPS}?watch=1&resourceVersion={version}");
    assert_eq!(events(&mut ask(&server, "GET", &path, ""), 1).await, ["ADDED two"]);
    server.compact();
    let mut late = ask(&server, "GET", &path, "");
    let part = late.body_mut().into_data_stream().next().await.expect("an event");
    let event: Value = serde_json::from_slice(&part.expect("a part")).expect("JSON");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(late.body_mut().into_data_stream().next().await.is_none());
}

#[tokio::test]
async fn list_is_paged_unless_any_version_is_accepted() {
    let server = SharedServer::new(1);
    for name in ["one", "three", "two"] {
        server.put(&format!("{MAPS}/{name}"), json!({}));
    }
    let page = async |query: &str| {
        let (_, list) = object(ask(&server, "GET", &format!("{MAPS}?{query}"), "")).await;
        let items = list["items"].as_array().expect("items").len();
        (items, list["metadata"]["continue"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(page("limit=2").await, (2, "2".to_owned()));
    assert_eq!(page("limit=2&continue=2").await, (1, String::new()));
    assert_eq!(page("limit=2&resourceVersion=0").await, (3, String::new()));
    assert_eq!(page("fieldSelector=metadata.name%3Dtwo").await, (1, String::new()));
}

#[tokio::test]
async fn server_with_a_clock_behind_issues_tokens_that_end_sooner() {
    let server = SharedServer::new(1);
    server.put("/api/v1/namespaces/a/serviceaccounts/sa", json!({}));
    server.put_clock_behind(SignedDuration::from_secs(3_600));
    let before = jiff::Timestamp::now();
    let path = "/api/v1/namespaces/a/serviceaccounts/sa/token";
    let body = r#"{"spec": {"expirationSeconds": 3600}}"#;
    let (code, token) = object(ask(&server, "POST", path, body)).await;
    let until = token["status"]["expirationTimestamp"].as_str().expect("a time");
    let until: jiff::Timestamp = until.parse().expect("a time");
    assert_eq!(code, 201);
    assert!((until - before).get_seconds().abs() < 1_800, "{until} instead of about {before}");
}

#[test]
fn injected_refusal_is_answered_over_http_until_cleared() {
    let server = HttpServer::start(SharedServer::new(1)).expect("a port");
    server.refuse("GET", "/configmaps", 403, "no");
    let url = server.url();
    assert_eq!(server.kubeconfig()["clusters"][0]["cluster"]["server"], url);
    let get = || {
        use std::io::{Read as _, Write as _};
        let address = url.strip_prefix("http://").expect("plain HTTP");
        let mut stream = std::net::TcpStream::connect(address).expect("it is served");
        let head = format!("GET {MAPS} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let refused = get();
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("Forbidden"), "{refused}");
    server.refuse_nothing();
    assert!(get().starts_with("HTTP/1.1 200"));
    assert_eq!(server.count("GET"), 2);
}

#[tokio::test]
async fn client_in_this_process_gets_the_same_answers() {
    let server = SharedServer::new(1);
    server.put(&format!("{MAPS}/m"), json!({"data": {"k": "v"}}));
    let request = Request::get(format!("{MAPS}/m")).body(Vec::new()).expect("a request");
    let map: Value = server.client().request(request).await.expect("it is there");
    assert_eq!(map["data"]["k"], "v");
}
