//! Events of objects, for people. Correlated and limited as client-go does it.
//!
//! ```text
//!   Recorder::event ──Happened(1000)──> Sink::run ─> Correlator (pure) ─> POST or PATCH events
//! ```
//! Input: an object, a reason, a message. Output: `v1::Event`s. A recorder never waits: an event
//! that does not fit the queue is dropped and counted, because no event is worth a delay. A
//! repeated event raises a count; many alike become one; an object that emits too many events is
//! cut off. An outage of `TRIES_MAX * TRY_AGAIN` loses events, as in every other component.
// k8s: staging/src/k8s.io/client-go/tools/record/event.go

mod correlate;
mod recent;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pintle_api_types::jitter;
use pintle_api_types::rate::{Bucket, Rate};
use tokio::sync::mpsc;

pub use correlate::{Correlated, Correlator};

/// Events that wait to be sent.
// k8s: tools/record/event.go queueLength
const QUEUE_MAX: usize = 1000;
/// Attempts to send one event while the API server cannot be reached, and the pause between them.
// k8s: tools/record/event.go maxTriesPerEvent, defaultSleepDuration
const TRIES_MAX: u32 = 12;
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Normal or warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The way it should be.
    Normal,
    /// Something may need help.
    Warning,
}

impl EventKind {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// The involved object; with its field path for one container of a pod.
    pub about: ObjectReference,
    /// Normal or not.
    pub kind: EventKind,
    /// PascalCase word.
    pub reason: String,
    /// Sentence.
    pub message: String,
    /// Annotations of the event itself.
    pub annotations: BTreeMap<String, String>,
    /// When.
    pub at: Timestamp,
}

/// Takes events; clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Happened>,
    dropped: Arc<AtomicU64>,
}

/// Sends the recorder's events.
pub struct Sink {
    client: Client,
    queue: mpsc::Receiver<Happened>,
    correlator: Correlator,
    bucket: Bucket,
}

/// A recorder and its sink, which the caller runs as a task. `component` and `host` are the
/// source of every event: `kubelet` and the node's name, which may be empty.
pub fn recorder(client: Client, component: &str, host: &str, rate: Rate) -> (Recorder, Sink) {
    let (sender, queue) = mpsc::channel(QUEUE_MAX);
    let host = Some(host.to_owned()).filter(|host| !host.is_empty());
    let source = EventSource { component: Some(component.to_owned()), host };
    let (correlator, bucket) = (Correlator::new(source), Bucket::new(rate));
    let recorder = Recorder { queue: sender, dropped: Arc::default() };
    (recorder, Sink { client, queue, correlator, bucket })
}

impl Recorder {
    /// Something happened now. Never waits.
    pub fn event(&self, about: ObjectReference, kind: EventKind, reason: &str, message: &str) {
        self.annotated(about, kind, reason, message, BTreeMap::new());
    }

    /// Emits an event with annotations of its own.
    pub fn annotated(
        &self,
        about: ObjectReference,
        kind: EventKind,
        reason: &str,
        message: &str,
        annotations: BTreeMap<String, String>,
    ) {
        let (reason, message, at) = (reason.to_owned(), message.to_owned(), Timestamp::now());
        let event = Happened { about, kind, reason, message, annotations, at };
        self.put(event);
    }

    /// Takes an event. Never waits.
    pub fn put(&self, event: Happened) {
        if self.queue.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events that were dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Sink {
    /// Until every recorder is gone.
    pub async fn run(mut self) {
        while let Some(happened) = self.queue.recv().await {
            let Some(correlated) = self.correlator.correlate(&happened) else { continue };
            let now = tokio::time::Instant::now();
            tokio::time::sleep(self.bucket.take(now.into_std())).await;
            if let Some(name) = self.send(&correlated).await {
                self.correlator.sent(&correlated, name);
            }
        }
    }

    /// The name under which the API server has the event now; `None` when it is lost.
    async fn send(&self, correlated: &Correlated) -> Option<String> {
        for tried in 1..=TRIES_MAX {
            match tokio::time::timeout(REQUEST_MAX, self.ask(correlated)).await {
                Ok(Ok(event)) => return event.metadata.name,
                // The API server has decided: nothing will change that.
                Ok(Err(kube::Error::Api(status))) => {
                    tracing::debug!(reason = status.reason, "event refused: {}", status.message);
                    return None;
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(pause(tried, jitter::random())).await,
            }
        }
        tracing::debug!("event lost: the API server cannot be reached");
        None
    }

    async fn ask(&self, correlated: &Correlated) -> kube::Result<Event> {
        let event = &correlated.event;
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        if let (Some(patch), Some(name)) = (&correlated.patch, &event.metadata.name) {
            let patched =
                events.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
            // The API server keeps events for an hour: recreate one that is no longer there.
            match patched {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => return other,
            }
        }
        events.create(&PostParams::default(), event).await
    }
}

/// The pause after so many tries. The first is a random part of a full pause, so that clients that
/// lost the API server together do not return together; `chance` is from 0 to 1.
// k8s: staging/src/k8s.io/client-go/tools/record/event.go recordToSink
fn pause(tried: u32, chance: f64) -> Duration {
    if tried == 1 { TRY_AGAIN.mul_f64(chance) } else { TRY_AGAIN }
}
