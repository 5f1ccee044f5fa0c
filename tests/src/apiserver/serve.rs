//! The HTTP side: requests become reads and changes of the world, watches become streams.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Key, Refusal, Shared, World, selected};

/// Longest request that is read, in bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

pub(super) async fn run(shared: Shared, listener: std::net::TcpListener) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let router = axum::Router::new().fallback(serve).with_state(shared);
    axum::serve(listener, router).await
}

async fn serve(State(shared): State<Shared>, request: Request<Body>) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await;
    let body: Value =
        body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
    let fault = {
        let world = shared.world();
        let mut faults = world.faults.iter();
        faults.find(|f| f.method == method.as_str() && path.contains(&f.path)).cloned()
    };
    if let Some(fault) = fault {
        return refusal((fault.code, "Refused", fault.message));
    }
    let Some((key, subresource)) = Key::parse(&path) else {
        return refusal((404, "NotFound", format!("{path} not found")));
    };
    if method == Method::GET && parameter(&query, "watch").is_some() {
        return open_watch(shared, key, &query);
    }
    let answer = match (method, subresource.as_str()) {
        (Method::GET, _) if key.name.is_empty() => Ok(list(&shared.world(), &key, &query)),
        (Method::GET, _) => shared.world().find(&key).cloned(),
        (Method::POST, "token") => Ok(token(&body)),
        (Method::POST, _) => shared.change(|world| world.create(key, body)),
        (Method::PUT, _) => shared.change(|world| world.replace(key, body)),
        (Method::PATCH, _) => shared.change(|world| world.patch(key, &body)),
        (Method::DELETE, _) => shared.change(|world| world.delete(&key, &body)),
        _ => Err((405, "MethodNotAllowed", "no such method".to_owned())),
    };
    answer.map_or_else(refusal, |object| axum::Json(object).into_response())
}

/// A query's parameter; selectors have their equals signs back.
fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(key, _)| *key == name);
    found.next().map(|(_, value)| value.replace("%3D", "=").replace("%2C", ","))
}

fn refusal((code, reason, message): Refusal) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": message});
    (StatusCode::from_u16(code).expect("a code"), axum::Json(body)).into_response()
}

fn list(world: &World, collection: &Key, query: &str) -> Value {
    let selector = parameter(query, "fieldSelector").unwrap_or_default();
    let members = world.objects.iter().filter(|(key, _)| collection.has(key));
    let items: Vec<&Value> =
        members.map(|(_, object)| object).filter(|object| selected(&selector, object)).collect();
    json!({"metadata": {"resourceVersion": world.version.to_string()}, "items": items})
}

fn token(asked: &Value) -> Value {
    let seconds = asked["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    let ends = ends.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"spec": {"audiences": [], "expirationSeconds": seconds},
        "status": {"token": "a.token.of-the-test", "expirationTimestamp": ends}})
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// A watch under way.
struct Watch {
    shared: Shared,
    changes: watch::Receiver<u64>,
    collection: Key,
    selector: String,
    /// Sent up to here.
    sent: u64,
    first: String,
}

fn open_watch(shared: Shared, collection: Key, query: &str) -> Response {
    let selector = parameter(query, "fieldSelector").unwrap_or_default();
    let from: u64 =
        parameter(query, "resourceVersion").and_then(|v| v.parse().ok()).unwrap_or_default();
    let changes = shared.changed.subscribe();
    let mut first = String::new();
    let sent = {
        let world = shared.world();
        if from == 0 {
            let members = world.objects.iter().filter(|(key, _)| collection.has(key));
            let there = members.map(|(_, object)| object);
            first.extend(there.filter(|o| selected(&selector, o)).map(|o| line("ADDED", o)));
        }
        if parameter(query, "sendInitialEvents").is_some() {
            let meta = json!({"resourceVersion": world.version.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"}});
            first.push_str(&line("BOOKMARK", &json!({ "metadata": meta })));
        }
        if from == 0 { world.version } else { from }
    };
    let watch = Watch { shared, changes, collection, selector, sent, first };
    Response::new(Body::from_stream(stream::unfold(watch, |mut watch| async move {
        let text = watch.next().await?;
        Some((Ok::<_, std::io::Error>(text), watch))
    })))
}

impl Watch {
    /// The next lines; `None` when the server ends.
    async fn next(&mut self) -> Option<String> {
        loop {
            let mut text = std::mem::take(&mut self.first);
            {
                let world = self.shared.world();
                let new = world.changes.iter().filter(|change| change.version > self.sent);
                let new = new.filter(|change| self.collection.has(&change.key));
                for change in new.filter(|change| selected(&self.selector, &change.object)) {
                    text.push_str(&line(change.kind, &change.object));
                }
                self.sent = self.sent.max(world.version);
            }
            if !text.is_empty() {
                return Some(text);
            }
            self.changes.changed().await.ok()?;
        }
    }
}
