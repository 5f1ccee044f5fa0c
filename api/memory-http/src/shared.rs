//! The server that clients share, and what a test does to it.
//!
//! Input: requests of clients, acts of a test. Output: answers, objects, a log of requests. Owner:
//! all that hold a copy. Bounds: one lock, held for a request at a time. Only this file looks at
//! the clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Request};
use pintle_memory_api::{Identity, Server};
use serde_json::Value;
use tokio::sync::watch;

use crate::request::refusal;
use crate::route::Route;

/// An API server in memory, with several clients.
#[derive(Clone, Debug)]
pub struct SharedServer {
    state: Arc<Mutex<State>>,
    /// What watches wait for.
    progress: watch::Sender<WatchProgress>,
}

/// Counts what watches have to react to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchProgress {
    pub(crate) writes: u64,
    /// Each ends the watches that began before it.
    pub(crate) cuts: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) open_watches: usize,
    /// The server's clock is behind the machine's.
    behind: SignedDuration,
    faults: Vec<HttpFault>,
    /// Method, path and query of each request.
    requests: Vec<String>,
}

/// Requests of HTTP that are refused, watches among them; the server itself knows no watch, and
/// refuses by verb and object ([`pintle_memory_api::Refusal`]).
#[derive(Clone, Debug)]
struct HttpFault {
    /// Empty for all.
    method: String,
    /// A part of the path with its query.
    part: String,
    error: ApiError,
}

impl SharedServer {
    /// A server with the namespaces that every cluster has; the seed decides UIDs.
    pub fn new(seed: u64) -> Self {
        let state = State {
            server: Server::new(seed),
            open_watches: 0,
            behind: SignedDuration::ZERO,
            faults: Vec::new(),
            requests: Vec::new(),
        };
        let (state, progress) = (Arc::new(Mutex::new(state)), watch::Sender::default());
        Self { state, progress }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere should still be able to look.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn progress(&self) -> watch::Receiver<WatchProgress> {
        self.progress.subscribe()
    }

    /// Logs a request; returns the error with which a test wants it refused.
    pub(crate) fn receive(&self, method: &str, path: &str) -> Option<ApiError> {
        let mut state = self.state();
        state.requests.push(format!("{method} {path}"));
        let mut faults = state.faults.iter();
        let is_meant = |fault: &&HttpFault| {
            (fault.method.is_empty() || fault.method == method) && path.contains(&fault.part)
        };
        faults.find(is_meant).map(|fault| fault.error.clone())
    }

    /// Answers a request of an administrator.
    pub fn handle(&self, request: &Request) -> Answer {
        self.act(|server, now| server.handle(&Identity::Admin, request, now))
    }

    /// Acts on the server itself, at its time.
    pub fn act<T>(&self, act: impl FnOnce(&mut Server, Timestamp) -> T) -> T {
        let mut state = self.state();
        let now = Timestamp::now() - state.behind;
        let before = state.server.version();
        let result = act(&mut state.server, now);
        let is_changed = state.server.version() != before;
        drop(state);
        if is_changed {
            self.progress.send_modify(|progress| progress.writes += 1);
        }
        result
    }

    /// Creates or replaces an object at a path such as `/api/v1/namespaces/ns/secrets/s`, unchecked
    /// and whole, see [`Server::put`].
    pub fn put(&self, path: &str, object: Value) {
        let route = object_at(path);
        self.act(|server, now| drop(server.put(route.kind, &route.key(), object, now)));
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        let route = object_at(path);
        let state = self.state();
        state.server.object(route.kind, &route.key()).map(|object| Value::clone(object))
    }

    /// Deletes the object at a path, as a user does: a pod has its own grace period.
    ///
    /// # Panics
    /// When the server refuses that.
    pub fn delete(&self, path: &str) {
        self.delete_within(path, None);
    }

    /// Deletes the object at a path without a grace period.
    ///
    /// # Panics
    /// When the server refuses that.
    pub fn remove(&self, path: &str) {
        self.delete_within(path, Some(0));
    }

    fn delete_within(&self, path: &str, grace_seconds: Option<i64>) {
        let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
        let deleted = self.handle(&Request::Delete { target: object_at(path).target(), options });
        deleted.unwrap_or_else(|error| panic!("{path} cannot be deleted: {error}"));
    }

    /// The events about an object, in the order in which they were first emitted.
    pub fn events(&self, namespace: &str, name: &str) -> Vec<Value> {
        let state = self.state();
        let events = state.server.objects(pintle_api_types::kind::EVENTS, namespace);
        let about = events.filter(|(_, event)| event["involvedObject"]["name"] == name);
        let mut events: Vec<Value> = about.map(|(_, event)| Value::clone(event)).collect();
        // Names end with the time of the first emission.
        // k8s: staging/src/k8s.io/client-go/tools/record/event.go makeEvent
        events.sort_by_key(|event| {
            let name = event["metadata"]["name"].as_str().unwrap_or_default();
            let stamp = name.rsplit('.').next().unwrap_or_default();
            i64::from_str_radix(stamp, 16).unwrap_or_default()
        });
        events
    }

    /// Refuses requests from now on; `part` is a part of the path with its query, an empty method
    /// means every one.
    pub fn refuse(&self, method: &str, part: &str, code: u16, message: &str) {
        let (method, part) = (method.to_owned(), part.to_owned());
        self.state().faults.push(HttpFault { method, part, error: refusal(code, message) });
    }

    /// Refuses nothing from now on.
    pub fn refuse_nothing(&self) {
        self.state().faults.clear();
    }

    /// Puts the server's clock behind the machine's.
    pub fn put_clock_behind(&self, by: SignedDuration) {
        self.state().behind = by;
    }

    /// Ends all watches.
    pub fn cut_watches(&self) {
        self.progress.send_modify(|progress| progress.cuts += 1);
    }

    /// Forgets all events so far: an earlier version is too old for a watch.
    pub fn compact(&self) {
        let mut state = self.state();
        let version = state.server.version();
        state.server.compact(version);
    }

    /// Number of open watches.
    pub fn open_watches(&self) -> usize {
        self.state().open_watches
    }

    /// Method, path and query of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// Number of requests with this text in method, path or query.
    pub fn count(&self, text: &str) -> usize {
        self.state().requests.iter().filter(|line| line.contains(text)).count()
    }
}

fn object_at(path: &str) -> Route {
    let route = Route::parse(path).filter(|route| !route.name.is_empty() && route.sub.is_empty());
    route.unwrap_or_else(|| panic!("not the path of an object of a served kind: {path}"))
}
