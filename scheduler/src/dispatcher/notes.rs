//! Events of events.k8s.io: what the scheduler did, for users. A repeated event becomes a series.
//!
//! Input: notes. Output: events created and patched. Recording never waits; an event without an
//! answer is retried while others are written. Lost events are counted, and logged once nothing
//! waits any more. Bounds: those of `book`; `SINKS` requests at once.
// k8s: staging/src/k8s.io/client-go/tools/events/{event_broadcaster,event_recorder}.go

mod book;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pintle_daemon::tasks;
use pintle_scheduler_core::cycle::command::{Note, Related};
use pintle_scheduler_core::pod_fields::PodRef;
use serde_json::{Value, json};
use tokio::sync::Notify;

use self::book::{Book, EventRequest, EventWritten, Loss, WAITING_MAX};
use super::post;

/// Concurrent requests.
const SINKS: usize = 8;
/// Interval of checking for finished series.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Records notes; clones share the queue.
#[derive(Clone, Debug)]
pub struct NoteRecorder(Rc<EventOutbox>);

#[derive(Debug)]
struct EventOutbox {
    book: RefCell<Book>,
    wakes: [Notify; SINKS],
}

impl NoteRecorder {
    /// Never waits.
    pub fn record(&self, note: Note) {
        let sink = self.0.book.borrow_mut().record(Instant::now(), Timestamp::now(), note);
        match sink {
            Some(sink) => self.0.wakes[sink].notify_one(),
            None => self.0.say_lost(),
        }
    }
}

impl EventOutbox {
    fn say_lost(&self) {
        match self.book.borrow_mut().loss() {
            Some(Loss::Begins) => {
                tracing::warn!("an event is lost: too many wait, or the API server is away");
            }
            Some(Loss::Ended(count)) => tracing::warn!(count, "events were lost"),
            None => {}
        }
    }
}

/// Sends recorded notes.
pub struct NoteSink {
    number: usize,
    client: kube::Client,
    shared: Rc<EventOutbox>,
    host: String,
}

/// Creates the recorder and its sinks, which the caller runs as tasks.
pub fn notes(client: &kube::Client) -> (NoteRecorder, Vec<NoteSink>) {
    let host = pintle_daemon::program::host_name();
    let shared = Rc::new(EventOutbox {
        book: RefCell::new(Book::new(SINKS, WAITING_MAX)),
        wakes: std::array::from_fn(|_| Notify::new()),
    });
    let sink = |number| NoteSink {
        number,
        client: client.clone(),
        shared: Rc::clone(&shared),
        host: host.clone(),
    };
    let sinks = (0..SINKS).map(sink).collect();
    (NoteRecorder(shared), sinks)
}

impl NoteSink {
    /// Sends events, forever.
    pub async fn run(self) {
        let Self { number, shared, .. } = &self;
        let mut looked = Instant::now();
        loop {
            let now = Instant::now();
            if *number == 0 && now >= looked + LOOK_EVERY {
                looked = now;
                shared.book.borrow_mut().look(now);
                shared.wakes.iter().for_each(Notify::notify_one);
            }
            let next = shared.book.borrow_mut().next(*number, now);
            if let Some(request) = next {
                let written = tasks::caught(self.write(&request)).await;
                let written = written.unwrap_or_else(|panic| {
                    tasks::counted("events");
                    tracing::error!(%panic, "an event was not written");
                    EventWritten::Settled
                });
                shared.book.borrow_mut().ended(&request, written, Instant::now());
                shared.say_lost();
                continue;
            }
            let due = shared.book.borrow().due(*number).unwrap_or(now + LOOK_EVERY);
            let wait = due.saturating_duration_since(now).min(LOOK_EVERY);
            // The loop checks again, woken or not.
            let _ = tokio::time::timeout(wait, shared.wakes[*number].notified()).await;
        }
    }

    // k8s: event_broadcaster.go recordEvent
    async fn write(&self, request: &EventRequest) -> EventWritten {
        let code = |error: &kube::Error| match error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        };
        let is_series = request.series().is_some();
        let written = if request.is_made {
            match self.patch(request).await {
                // The event has expired: a new series is created.
                Err(error) if code(&error) == 404 => match self.make(request).await {
                    Err(error) if code(&error) == 409 => return EventWritten::Again,
                    made => made,
                },
                patched => patched,
            }
        } else {
            match self.make(request).await {
                // It was created, but the answer was lost.
                Err(error) if code(&error) == 409 && is_series => self.patch(request).await,
                Err(error) if code(&error) == 409 => Ok(()),
                made => made,
            }
        };
        match written {
            Ok(()) => EventWritten::Settled,
            // The same request would be rejected again.
            Err(
                error @ (kube::Error::Api(_)
                | kube::Error::SerdeError(_)
                | kube::Error::HttpError(_)),
            ) => {
                tracing::debug!(%error, "an event is refused");
                EventWritten::Settled
            }
            Err(error) => {
                tracing::debug!(%error, "an event is not written");
                EventWritten::Again
            }
        }
    }

    async fn make(&self, request: &EventRequest) -> kube::Result<()> {
        let namespace = request.note().about.key.namespace();
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        in_time(post(&self.client, &path, &event(request, &self.host))).await
    }

    async fn patch(&self, request: &EventRequest) -> kube::Result<()> {
        let namespace = request.note().about.key.namespace();
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        let patch = Patch::Strategic(json!({"series": series(request)}));
        let (name, params) = (name(request), PatchParams::default());
        in_time(async { events.patch(&name, &params, &patch).await.map(drop) }).await
    }
}

async fn in_time(request: impl Future<Output = kube::Result<()>>) -> kube::Result<()> {
    let late = |_| Err(kube::Error::Service("no answer in time".into()));
    tokio::time::timeout(ANSWER_MAX, request).await.unwrap_or_else(late)
}

// k8s: staging/src/k8s.io/client-go/tools/record/util/util.go GenerateEventName
fn name(request: &EventRequest) -> String {
    format!("{}.{:x}", request.note().about.key.name(), request.first.as_nanosecond())
}

fn series(request: &EventRequest) -> Value {
    let series = request.series();
    series.map_or(
        Value::Null,
        |(count, last)| json!({"count": count, "lastObservedTime": micro(last)}),
    )
}

fn micro(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn reference(pod: &PodRef, version: Option<&str>) -> Value {
    let mut of = json!({"kind": "Pod", "apiVersion": "v1", "namespace": pod.key.namespace(),
        "name": pod.key.name(), "uid": &*pod.uid});
    if let Some(version) = version {
        of["resourceVersion"] = version.into();
    }
    of
}

fn event(request: &EventRequest, host: &str) -> Value {
    let note = request.note();
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"name": name(request), "namespace": note.about.key.namespace()},
        "eventTime": micro(request.first),
        "reportingController": &*note.reporter,
        "reportingInstance": format!("{}-{host}", note.reporter),
        "action": note.action,
        "reason": note.reason,
        "regarding": reference(&note.about, note.version.as_deref()),
        "note": note.note,
        "type": if note.warning { "Warning" } else { "Normal" },
    });
    if request.series().is_some() {
        event["series"] = series(request);
    }
    if let Some(related) = &note.related {
        event["related"] = match related {
            Related::Pod(pod) => reference(pod, None),
            Related::Group(group, version) => {
                let mut of = reference(group, version.as_deref());
                of["kind"] = "PodGroup".into();
                of["apiVersion"] = "scheduling.k8s.io/v1alpha2".into();
                of
            }
        };
    }
    event
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use http_body_util::BodyExt as _;
    use hyper::{Method, Response};
    use kube::client::Body;
    use pintle_api_types::key::ObjectKey;

    use super::*;

    /// A server with its events, and the requests it got.
    #[derive(Default)]
    struct EventServer {
        events: Vec<Value>,
        asked: Vec<String>,
        is_away: bool,
    }

    impl EventServer {
        fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
            self.asked.push(method.to_string());
            let name = path.rsplit('/').next().unwrap_or_default();
            let named = |event: &Value| event["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let wanted = if *method == Method::POST { named(body) } else { name.to_owned() };
            let found = self.events.iter_mut().find(|event| named(event) == wanted);
            match (found, *method == Method::POST) {
                (Some(_), true) => refusal(409),
                (None, true) => {
                    self.events.push(body.clone());
                    (201, body.clone())
                }
                (Some(event), false) => {
                    event["series"] = body["series"].clone();
                    (200, event.clone())
                }
                (None, false) => refusal(404),
            }
        }
    }

    fn refusal(code: u16) -> (u16, Value) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "no", "reason": "no", "code": code});
        (code, status)
    }

    fn sink(server: &Arc<Mutex<EventServer>>) -> (NoteRecorder, NoteSink) {
        let server = Arc::clone(server);
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body)?;
                let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
                if server.is_away {
                    return Err(tower::BoxError::from("connection refused"));
                }
                let (code, answer) = server.answer(&head.method, head.uri.path(), &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(answer)?)
            }
        });
        let (notes, mut sinks) = notes(&kube::Client::new(service, "default"));
        (notes, sinks.swap_remove(0))
    }

    fn note() -> Note {
        Note {
            about: PodRef { key: ObjectKey::new("default", "p"), uid: "u".into() },
            reporter: "default-scheduler".into(),
            version: None,
            related: None,
            warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            note: "m".to_owned(),
        }
    }

    fn next(notes: &NoteRecorder) -> EventRequest {
        let mut book = notes.0.book.borrow_mut();
        let next = (0..SINKS).find_map(|sink| book.next(sink, Instant::now()));
        next.expect("something to write")
    }

    async fn write(notes: &NoteRecorder, sink: &NoteSink) -> EventWritten {
        let request = next(notes);
        let written = sink.write(&request).await;
        notes.0.book.borrow_mut().ended(&request, written, Instant::now());
        written
    }

    #[tokio::test]
    async fn series_of_a_deleted_event_is_recreated() {
        let server = Arc::new(Mutex::new(EventServer::default()));
        let (notes, sink) = sink(&server);
        notes.record(note());
        assert_eq!(write(&notes, &sink).await, EventWritten::Settled);
        server.lock().expect("no panic").events.clear();
        notes.record(note());
        assert_eq!(write(&notes, &sink).await, EventWritten::Settled);
        let server = server.lock().expect("no panic");
        assert_eq!(server.asked, ["POST", "PATCH", "POST"]);
        assert_eq!(server.events[0]["series"]["count"], 2);
        assert_eq!(server.events[0]["note"], "m");
    }

    #[tokio::test]
    async fn an_event_waits_for_a_server_that_is_away() {
        let server = Arc::new(Mutex::new(EventServer { is_away: true, ..EventServer::default() }));
        let (notes, sink) = sink(&server);
        notes.record(note());
        let request = next(&notes);
        assert_eq!(sink.write(&request).await, EventWritten::Again);
        server.lock().expect("no panic").is_away = false;
        assert_eq!(sink.write(&request).await, EventWritten::Settled);
        // The answer was lost: the event already exists.
        assert_eq!(sink.write(&request).await, EventWritten::Settled);
        let server = server.lock().expect("no panic");
        assert_eq!(server.events.len(), 1);
        assert_eq!(server.events[0].get("series"), None);
    }

    #[tokio::test]
    async fn event_created_without_a_received_response_still_gets_its_series() {
        let server = Arc::new(Mutex::new(EventServer::default()));
        let (notes, sink) = sink(&server);
        notes.record(note());
        let request = next(&notes);
        sink.write(&request).await;
        notes.0.book.borrow_mut().ended(&request, EventWritten::Again, Instant::now());
        notes.record(note());
        let later = Instant::now() + Duration::from_secs(20);
        let next = |sink| notes.0.book.borrow_mut().next(sink, later);
        let again = (0..SINKS).find_map(next).expect("it is due");
        assert_eq!(sink.write(&again).await, EventWritten::Settled);
        assert_eq!(server.lock().expect("no panic").events[0]["series"]["count"], 2);
    }
}
