//! Events of events.k8s.io: what the scheduler did, for people. The same again becomes a series.
//!
//! Input: notes. Output: events made and patched. A note never waits: what finds no room is dropped
//! and counted. Bounds: `WAITING_MAX` notes wait, `KNOWN_MAX` events are remembered, those told
//! longest ago are forgotten first.
// k8s: staging/src/k8s.io/client-go/tools/events/{event_broadcaster,event_recorder}.go

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::post;
use crate::cycle::command::{Note, PodRef, Related};

/// Notes that wait.
pub const WAITING_MAX: usize = 4096;
/// Events that are sent at once.
const SINKS: usize = 8;
/// Events that are remembered, by each sink.
const KNOWN_MAX: usize = 512;
/// After so long without the same again a series is over.
// k8s: event_broadcaster.go finishTime
const SERIES_OVER: Duration = Duration::from_secs(6 * 60);
/// How often a series that goes on is written.
// k8s: event_broadcaster.go refreshTime
const WRITE_AGAIN: Duration = Duration::from_secs(30 * 60);
/// How often it looks for these.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Takes notes; clones share their queues.
#[derive(Clone, Debug)]
pub struct Notes(Rc<[mpsc::Sender<(Timestamp, Note)>]>);

impl Notes {
    /// Never waits.
    pub fn tell(&self, note: Note) {
        // What is told of one pod stays in order.
        let mut hasher = DefaultHasher::new();
        note.about.uid.hash(&mut hasher);
        let at = hasher.finish() % self.0.len() as u64;
        let queue = &self.0[usize::try_from(at).unwrap_or(0)];
        if queue.try_send((Timestamp::now(), note)).is_err() {
            tracing::debug!("an event is dropped: too many wait");
        }
    }
}

/// What makes two events the same.
type Key = (&'static str, &'static str, PodRef, String, Option<Related>);

/// An event that was told.
#[derive(Debug)]
struct Known {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
    seen: Instant,
    written: Instant,
    /// Times that were not written.
    is_behind: bool,
}

/// Sends what was noted.
pub struct Sink {
    client: kube::Client,
    notes: mpsc::Receiver<(Timestamp, Note)>,
    host: String,
    known: HashMap<Key, Known>,
}

/// Notes and their sinks, which the caller runs as tasks.
pub fn notes(client: &kube::Client) -> (Notes, Vec<Sink>) {
    let host = crate::run::host_name();
    let sink = |_| {
        let (tell, notes) = mpsc::channel(WAITING_MAX / SINKS);
        let sink =
            Sink { client: client.clone(), notes, host: host.clone(), known: HashMap::new() };
        (tell, sink)
    };
    let (tells, sinks): (Vec<_>, Vec<_>) = (0..SINKS).map(sink).unzip();
    (Notes(tells.into()), sinks)
}

impl Sink {
    /// Until nobody notes anything any more.
    pub async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                note = self.notes.recv() => match note {
                    Some((at, note)) => self.take(at, note).await,
                    None => return,
                },
                _ = look.tick() => self.look().await,
            }
        }
    }

    async fn take(&mut self, at: Timestamp, note: Note) {
        let key = key(&note);
        let now = Instant::now();
        if let Some(known) = self.known.get_mut(&key) {
            known.count += 1;
            (known.last, known.seen) = (at, now);
            // The second time it becomes a series; from then on it is written now and then.
            known.is_behind = true;
            if known.count == 2 {
                write(&self.client, known).await;
            }
            return;
        }
        if let Some(name) = self.make(at, &note).await {
            self.forget_one();
            let namespace = note.about.key.namespace().to_owned();
            let known = Known {
                namespace,
                name,
                count: 1,
                last: at,
                seen: now,
                written: now,
                is_behind: false,
            };
            self.known.insert(key, known);
        }
    }

    fn forget_one(&mut self) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let oldest = self.known.iter().min_by_key(|(_, known)| known.seen);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.known.remove(&key);
        }
    }

    async fn make(&self, at: Timestamp, note: &Note) -> Option<String> {
        let name = format!("{}.{:x}", note.about.key.name(), at.as_nanosecond());
        let event = event(at, note, &name, &self.host);
        let namespace = note.about.key.namespace();
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        match tokio::time::timeout(ANSWER_MAX, post(&self.client, &path, &event)).await {
            Ok(Ok(())) => Some(name),
            Ok(Err(error)) => {
                tracing::debug!(%error, "an event is lost");
                None
            }
            Err(_) => None,
        }
    }

    /// Series that are over are forgotten, those that go on are written.
    async fn look(&mut self) {
        let now = Instant::now();
        for known in self.known.values_mut() {
            let is_over = now.duration_since(known.seen) > SERIES_OVER;
            let is_due = now.duration_since(known.written) > WRITE_AGAIN;
            if known.is_behind && (is_over || is_due) {
                write(&self.client, known).await;
            }
        }
        self.known.retain(|_, known| now.duration_since(known.seen) <= SERIES_OVER);
    }
}

async fn write(client: &kube::Client, known: &mut Known) {
    let events = Api::<Event>::namespaced(client.clone(), &known.namespace);
    let series = json!({"count": known.count, "lastObservedTime": micro(known.last)});
    let patch = Patch::Strategic(json!({"series": series}));
    let params = PatchParams::default();
    let written = events.patch(&known.name, &params, &patch);
    if let Ok(Err(error)) = tokio::time::timeout(ANSWER_MAX, written).await {
        tracing::debug!(%error, "a series of events is not written");
    }
    (known.written, known.is_behind) = (Instant::now(), false);
}

fn key(note: &Note) -> Key {
    let version = note.version.clone().unwrap_or_default();
    (note.reason, note.action, note.about.clone(), version, note.related.clone())
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

fn event(at: Timestamp, note: &Note, name: &str, host: &str) -> Value {
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"name": name, "namespace": note.about.key.namespace()},
        "eventTime": micro(at),
        "reportingController": &*note.reporter,
        "reportingInstance": format!("{}-{host}", note.reporter),
        "action": note.action,
        "reason": note.reason,
        "regarding": reference(&note.about, note.version.as_deref()),
        "note": note.note,
        "type": if note.warning { "Warning" } else { "Normal" },
    });
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
