//! An API server in miniature on the loopback: objects with versions, watches, tokens, faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::testing;

/// A change for watches: version, type, path, object.
type Happened = (u64, &'static str, String, Value);

/// The server's state.
#[derive(Default)]
pub(super) struct World {
    version: u64,
    objects: BTreeMap<String, Value>,
    events: Vec<Happened>,
    /// Watches cannot go on from a version before this.
    oldest: u64,
    /// Requests, in order: method and path with query.
    pub(super) requests: Vec<String>,
    /// Requests with this text in their path are answered by this status.
    pub(super) faults: Vec<(String, u16)>,
    /// Tokens given out.
    pub(super) tokens: u64,
    /// Lifetime of tokens in seconds.
    pub(super) token_seconds: i64,
    /// Watches opened so far that are still open.
    pub(super) open: usize,
    /// Lists come from the watch cache, in one page.
    pub(super) cached: bool,
}

impl World {
    /// An object that is read only.
    pub(super) fn put_raw(&mut self, path: &str, object: Value) {
        self.objects.insert(path.to_owned(), object);
    }
}

/// A running server.
#[derive(Clone)]
pub(super) struct Fake {
    world: Arc<Mutex<World>>,
    /// Grows with every change; odd steps of the second number end all watches.
    ticks: watch::Sender<(u64, u64)>,
    port: u16,
}

impl Fake {
    pub(super) async fn start() -> Self {
        let world = World { version: 100, token_seconds: 3600, cached: true, ..World::default() };
        let (world, ticks) = (Arc::new(Mutex::new(world)), watch::channel((0, 0)).0);
        let mut fake = Self { world, ticks, port: 0 };
        let router = axum::Router::new().fallback(serve).with_state(fake.clone());
        fake.port = testing::served(router).await;
        fake
    }

    pub(super) fn client(&self) -> Client {
        testing::client_at(self.port)
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or changes an object below `/api/v1/namespaces/ns`.
    pub(super) fn put(&self, kind: &str, name: &str, rest: Value) {
        let mut world = self.world();
        world.version += 1;
        let version = world.version;
        let path = format!("/api/v1/namespaces/ns/{kind}/{name}");
        let mut object = rest;
        object["metadata"] = json!({"name": name, "namespace": "ns",
            "resourceVersion": version.to_string(), "managedFields": [{"manager": "test"}]});
        let what = if world.objects.contains_key(&path) { "MODIFIED" } else { "ADDED" };
        world.objects.insert(path.clone(), object.clone());
        world.events.push((version, what, path, object));
        drop(world);
        self.ticks.send_modify(|ticks| ticks.0 += 1);
    }

    pub(super) fn delete(&self, kind: &str, name: &str) {
        let mut world = self.world();
        world.version += 1;
        let version = world.version;
        let path = format!("/api/v1/namespaces/ns/{kind}/{name}");
        let mut object = world.objects.remove(&path).expect("an object to delete");
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        world.events.push((version, "DELETED", path, object));
        drop(world);
        self.ticks.send_modify(|ticks| ticks.0 += 1);
    }

    /// Watches have to begin with a list after they are cut.
    pub(super) fn compact(&self) {
        let mut world = self.world();
        world.version += 1;
        world.oldest = world.version;
        world.events.clear();
    }

    /// Ends all watches.
    pub(super) fn cut(&self) {
        self.ticks.send_modify(|ticks| ticks.1 += 1);
    }

    /// Number of requests with `text` in their line.
    pub(super) fn count(&self, text: &str) -> usize {
        self.world().requests.iter().filter(|line| line.contains(text)).count()
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        let wait = async {
            while !holds(&self.world()) {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), wait).await;
        assert!(waited.is_ok(), "not within 30 s: {what}; requests: {:?}", self.world().requests);
    }
}

async fn serve(State(fake): State<Fake>, request: Request<Body>) -> Response {
    let uri = request.uri().clone();
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    {
        let mut world = fake.world();
        world.requests.push(format!("{} {uri}", request.method()));
        let fault = world.faults.iter().find(|(text, _)| uri.to_string().contains(text));
        if let Some((_, code)) = fault {
            return status(*code, "told to fail");
        }
    }
    if request.method() == Method::POST {
        return token(&fake, request).await;
    }
    if query.contains("watch=true") {
        return open_watch(fake, &path, &query);
    }
    let world = fake.world();
    match world.objects.get(&path) {
        Some(object) => axum::Json(object.clone()).into_response(),
        None if path.ends_with("services") => {
            axum::Json(page(&world, &path, &query)).into_response()
        }
        None => status(404, &format!("{path} not found")),
    }
}

/// A list as the API server sends it: one from the watch cache is never cut into pages.
fn page(world: &World, path: &str, query: &str) -> Value {
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    };
    let in_memory = world.cached && parameter("resourceVersion").is_some();
    let limit = parameter("limit").filter(|_| !in_memory);
    let limit = limit.and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let begin: usize = parameter("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
    let all: Vec<&Value> = of_collection(world, path, "").skip(begin).collect();
    let next = if all.len() > limit { (begin + limit).to_string() } else { String::new() };
    let items = &all[..all.len().min(limit)];
    json!({"metadata": {"resourceVersion": world.version.to_string(), "continue": next},
        "items": items})
}

fn of_collection<'a>(
    world: &'a World,
    path: &'a str,
    name: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let all = world.objects.iter();
    all.filter(move |(at, _)| belongs(at, path, name)).map(|(_, object)| object)
}

/// True for objects of a collection, which is one of a namespace or of all.
fn belongs(at: &str, path: &str, name: &str) -> bool {
    let kind = path.rsplit('/').next().unwrap_or_default();
    at.contains(&format!("/{kind}/")) && (name.is_empty() || at.ends_with(&format!("/{name}")))
}

async fn token(fake: &Fake, request: Request<Body>) -> Response {
    let body = axum::body::to_bytes(request.into_body(), 1 << 16).await.expect("a body");
    let asked: Value = serde_json::from_slice(&body).expect("JSON");
    let mut world = fake.world();
    world.tokens += 1;
    let number = world.tokens;
    let uid = asked["spec"]["boundObjectRef"]["uid"].as_str().unwrap_or_default();
    let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(world.token_seconds);
    let status = json!({"token": format!("token {number} of {uid}"),
        "expirationTimestamp": ends.to_string()});
    let spec = json!({"expirationSeconds": world.token_seconds});
    (StatusCode::CREATED, axum::Json(json!({"spec": spec, "status": status}))).into_response()
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({"kind": "Status", "code": code, "message": message});
    let code = StatusCode::from_u16(code).expect("a code");
    (code, axum::Json(body)).into_response()
}

fn line(what: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": what, "object": object}))
}

fn open_watch(fake: Fake, path: &str, query: &str) -> Response {
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
    };
    let selector = parameter("fieldSelector").unwrap_or_default();
    let name = selector.strip_prefix("metadata.name%3D").unwrap_or_default().to_owned();
    let from: u64 = parameter("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
    let mut world = fake.world();
    let mut first = String::new();
    if from == 0 {
        let there = of_collection(&world, path, &name);
        first.extend(there.map(|object| line("ADDED", object)));
    } else if from < world.oldest {
        // As from a watch that was accepted and then found to be too old.
        let gone = json!({"kind": "Status", "code": 410, "message": "too old"});
        return Response::new(Body::from(line("ERROR", &gone)));
    }
    world.open += 1;
    let sent = if from == 0 { world.version } else { from };
    drop(world);
    let opened = Opened(fake.clone());
    let ticks = fake.ticks.subscribe();
    let cuts = ticks.borrow().1;
    let state = (opened, ticks, cuts, sent, first, path.to_owned(), name);
    let body = stream::unfold(
        state,
        |(opened, mut ticks, cuts, mut sent, first, path, name)| async move {
            let mut text = first;
            loop {
                {
                    let world = opened.0.world();
                    let new = world.events.iter().filter(|(version, ..)| *version > sent);
                    for (_, what, _, object) in new.filter(|(.., at, _)| belongs(at, &path, &name))
                    {
                        text.push_str(&line(what, object));
                    }
                    sent = world.version;
                }
                if !text.is_empty() {
                    let next = (opened, ticks, cuts, sent, String::new(), path, name);
                    return Some((Ok::<_, std::io::Error>(text), next));
                }
                if ticks.borrow_and_update().1 != cuts || ticks.changed().await.is_err() {
                    return None;
                }
            }
        },
    );
    Response::new(Body::from_stream(body))
}

/// Counts a watch while it is open.
struct Opened(Fake);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.world().open -= 1;
    }
}
