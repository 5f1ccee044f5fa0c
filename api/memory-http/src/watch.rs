//! The stream of a watch.
//!
//! Input: a collection, a field selector, a version. Output: lines of JSON: the objects that exist
//! if no version is given, then changes, until the server is gone or a test cuts the watch. An
//! object that is no longer selected is reported as deleted. Bounds: one answer holds all events
//! since the one before.
// k8s: staging/src/k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go convertToWatchEvent

use std::collections::BTreeSet;

use axum::body::Body;
use futures_util::stream;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::request::ApiError;
use pintle_memory_api::{Change, Event};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fields;
use crate::request::{HttpCall, refusal};
use crate::route::Route;
use crate::shared::{SharedServer, State, WatchProgress};

/// An open watch.
struct Watch {
    server: SharedServer,
    progress: watch::Receiver<WatchProgress>,
    /// Cuts before it began.
    cuts: u64,
    collection: Route,
    selector: String,
    /// Events up to here are sent.
    version: u64,
    /// Objects whose last state is not selected.
    hidden: BTreeSet<ObjectKey>,
    /// Lines to be sent first.
    first: String,
    is_over: bool,
}

/// Opens a watch; `status` writes an error as an object.
pub(crate) fn open(
    server: &SharedServer,
    collection: Route,
    call: &HttpCall<'_>,
) -> Result<Body, ApiError> {
    if !call.parameter("labelSelector").is_empty() {
        return Err(refusal(400, "label selectors of watches are not modelled"));
    }
    let version = match call.parameter("resourceVersion") {
        "" => 0,
        text => text.parse().map_err(|_| refusal(400, "invalid resource version"))?,
    };
    let progress = server.progress();
    let cuts = progress.borrow().cuts;
    let mut watch = Watch {
        server: server.clone(),
        progress,
        cuts,
        collection,
        selector: call.parameter("fieldSelector").to_owned(),
        version,
        hidden: BTreeSet::new(),
        first: String::new(),
        is_over: false,
    };
    watch.begin(call.parameter("sendInitialEvents") == "true");
    Ok(Body::from_stream(stream::unfold(watch, |mut watch| async move {
        let text = watch.next().await?;
        Some((Ok::<_, std::io::Error>(text), watch))
    })))
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// An error as watches report it.
pub(crate) fn status(error: &ApiError) -> Value {
    let causes: Vec<Value> = error.causes.iter().map(|reason| json!({"reason": reason})).collect();
    let mut details = json!({});
    if !causes.is_empty() {
        details["causes"] = causes.into();
    }
    if let Some(after) = error.retry_after {
        details["retryAfterSeconds"] = after.as_secs().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": error.message, "reason": error.reason, "details": details, "code": error.code})
}

impl Watch {
    fn begin(&mut self, wants_initial: bool) {
        let server = self.server.clone();
        let mut state = server.state();
        state.open_watches += 1;
        let sends_all = self.version == 0 || wants_initial;
        let Route { kind, ref namespace, .. } = self.collection;
        for (key, object) in state.server.objects(kind, namespace) {
            let of_object: u64 = text(object, "resourceVersion").parse().unwrap_or_default();
            match fields::are_selected(&self.selector, object) {
                true if sends_all => self.first.push_str(&line("ADDED", object)),
                false if sends_all || of_object <= self.version => {
                    self.hidden.insert(key.clone());
                }
                _ => {}
            }
        }
        if sends_all {
            self.version = state.server.version();
        }
        if wants_initial {
            let metadata = json!({"resourceVersion": self.version.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"}});
            let end = json!({"kind": kind.kind, "apiVersion": kind.api_version(),
                "metadata": metadata});
            self.first.push_str(&line("BOOKMARK", &end));
        }
    }

    /// The next lines; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            let is_cut = self.progress.borrow_and_update().cuts != self.cuts;
            if is_cut || self.is_over {
                return None;
            }
            let server = self.server.clone();
            let mut text = std::mem::take(&mut self.first);
            text.push_str(&self.lines_since(&server.state()));
            if !text.is_empty() {
                return Some(text);
            }
            self.progress.changed().await.ok()?;
        }
    }

    fn lines_since(&mut self, state: &State) -> String {
        let events = match state.server.events_since(self.collection.kind, self.version) {
            Ok(events) => events,
            // The watch was accepted before its version was found to be too old.
            Err(error) => {
                self.is_over = true;
                return line("ERROR", &status(&error));
            }
        };
        self.version = self.version.max(state.server.version());
        events.iter().filter_map(|event| self.line_of(event)).collect()
    }

    fn line_of(&mut self, event: &Event) -> Option<String> {
        let namespace = &self.collection.namespace;
        if !namespace.is_empty() && event.key.namespace() != namespace {
            return None;
        }
        let is_selected = fields::are_selected(&self.selector, &event.object);
        let was_hidden = match is_selected {
            true => self.hidden.remove(&event.key),
            false => !self.hidden.insert(event.key.clone()),
        };
        let kind = match (event.change, is_selected) {
            (Change::Added, true) => "ADDED",
            (Change::Modified, true) if was_hidden => "ADDED",
            (Change::Modified, true) => "MODIFIED",
            (Change::Added, false) => return None,
            (Change::Deleted | Change::Modified, _) if was_hidden => return None,
            (Change::Deleted | Change::Modified, _) => "DELETED",
        };
        if event.change == Change::Deleted {
            self.hidden.remove(&event.key);
        }
        Some(line(kind, &event.object))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.server.state().open_watches -= 1;
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
