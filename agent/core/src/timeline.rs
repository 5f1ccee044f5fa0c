//! The timeline of each pod, with microsecond stamps: stages, calls, events. Bounded in bytes.
//!
//! Input: entries from all stages, through a cheap clonable `Recorder`. Output: `timeline POD`, the
//! last events of `explain POD`. Memory: at most `ENTRIES_MAX` entries a pod, each at most
//! `TEXT_BYTES_MAX` long, for at most `PODS_MAX` pods; the oldest is dropped first. A repeated
//! event raises the count of its entry instead of adding one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::Serialize;

use crate::sync::plan::Action;
use crate::worker::Failure;
use pintle_api_types::ids::{PodUid, UnixNanos};

/// Entries kept of one pod.
const ENTRIES_MAX: usize = 64;
/// Longest text of an entry in bytes.
const TEXT_BYTES_MAX: usize = 512;
/// The last entries among which a repeated one is searched.
const REPEATS_WITHIN: usize = 16;
/// Pods that entries are kept of, gone ones included.
const PODS_MAX: usize = 1024;

/// Stage of a changed status.
const STATUS: &str = "Status";

/// How an entry counts.
#[derive(Clone, Copy, Default)]
struct EntryClass {
    /// It is an event of the API as well.
    event: bool,
    warning: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineEntry {
    /// Wall-clock time in nanoseconds since the epoch.
    #[serde(rename = "unixNanos")]
    pub at: i64,
    /// Microseconds since the pod's first entry.
    #[serde(rename = "sinceSeenMicros")]
    pub since_seen_us: i64,
    /// Stage or event reason.
    pub what: String,
    /// The container it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// More.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// True for an event of Kubernetes, false for a stage.
    pub event: bool,
    /// True for a warning.
    pub warning: bool,
    /// How often it happened.
    pub count: u32,
    /// Microseconds between the pod's first entry and the last time.
    #[serde(rename = "lastSinceSeenMicros")]
    pub last_since_seen_us: i64,
}

#[derive(Debug, Default)]
struct Pods {
    entries: BTreeMap<PodUid, VecDeque<TimelineEntry>>,
    order: VecDeque<PodUid>,
    overflowed: u64,
}

/// Emits pod events at the API server. Never waits.
pub trait EventSink: std::fmt::Debug + Send + Sync {
    /// Registers a pod, so that events about it can be emitted.
    fn register(&self, pod: &Arc<Pod>);

    /// Nothing is left of the pod.
    fn forget(&self, uid: &PodUid);

    /// Emits an event; drops events of pods that no source has named.
    fn emit_event(
        &self,
        uid: &PodUid,
        warning: bool,
        reason: &str,
        message: &str,
        container: Option<&str>,
        annotations: &BTreeMap<String, String>,
    );

    /// Emits a warning about a pod that is rejected, and so is not registered.
    fn emit_warning(&self, pod: &Pod, reason: &str, message: &str);
}

/// The source of an entry's time.
#[derive(Clone, Debug)]
enum Clock {
    Runs(fn() -> UnixNanos),
    /// A replay's, which is set to the time of each input.
    Set(Arc<AtomicI64>),
}

/// Takes entries; clones share one store.
#[derive(Clone, Debug)]
pub struct Recorder {
    pods: Arc<Mutex<Pods>>,
    clock: Clock,
    sink: Option<Arc<dyn EventSink>>,
}

impl Default for Recorder {
    /// One without a clock: no entry has a time.
    fn default() -> Self {
        Self::new(|| UnixNanos::NEVER)
    }
}

impl Recorder {
    /// A recorder that stamps its entries with this clock.
    pub fn new(clock: fn() -> UnixNanos) -> Self {
        Self { pods: Arc::default(), clock: Clock::Runs(clock), sink: None }
    }

    /// A recorder with a fixed clock, set in nanoseconds since the epoch.
    pub fn at(clock: Arc<AtomicI64>) -> Self {
        Self { pods: Arc::default(), clock: Clock::Set(clock), sink: None }
    }

    /// The same, with a sink that emits events at the API server.
    #[must_use]
    pub fn announcing(self, sink: impl EventSink + 'static) -> Self {
        Self { sink: Some(Arc::new(sink)), ..self }
    }

    /// Registers a pod, so that events about it can be emitted.
    pub fn register(&self, pod: &Arc<Pod>) {
        if let Some(sink) = &self.sink {
            sink.register(pod);
        }
    }

    /// Nothing is left of the pod.
    pub fn forget(&self, uid: &PodUid) {
        if let Some(sink) = &self.sink {
            sink.forget(uid);
        }
    }

    /// Notes a stage that a pod reached.
    pub fn stage(&self, uid: &PodUid, what: &str, container: Option<&str>, text: &str) {
        self.add(uid, what, container, text, EntryClass::default());
    }

    /// Records a persistent failure, and how often it occurred.
    pub fn trouble(&self, uid: &PodUid, what: &str, container: Option<&str>, text: &str) {
        self.add(uid, what, container, text, EntryClass { event: false, warning: true });
    }

    /// Notes an action that ended: how long it took, or why it failed.
    pub fn action(&self, uid: &PodUid, action: &Action, ended: Result<Duration, &Failure>) {
        let (verb, container) = (action.verb(), action.container());
        match ended {
            Ok(time) => self.stage(uid, verb, container, &took(time)),
            Err(failure) => {
                let text = format!("{}: {}", failure.reason, failure.message);
                self.add(
                    uid,
                    verb,
                    container,
                    &text,
                    EntryClass { event: false, warning: !failure.cancelled },
                );
            }
        }
    }

    /// Notes an event, as the Kubernetes API would show it.
    pub fn event(
        &self,
        uid: &PodUid,
        warning: bool,
        reason: &str,
        message: &str,
        container: Option<&str>,
    ) {
        self.annotated(uid, warning, reason, message, container, &BTreeMap::new());
    }

    /// The same with annotations of the event itself.
    pub fn annotated(
        &self,
        uid: &PodUid,
        warning: bool,
        reason: &str,
        message: &str,
        container: Option<&str>,
        annotations: &BTreeMap<String, String>,
    ) {
        if warning {
            tracing::info!(pod = %uid, reason, container, "{message}");
        } else {
            tracing::debug!(pod = %uid, reason, container, "{message}");
        }
        if let Some(sink) = &self.sink {
            sink.emit_event(uid, warning, reason, message, container, annotations);
        }
        self.add(uid, reason, container, message, EntryClass { event: true, warning });
    }

    /// Emits a warning about a rejected pod, without a timeline entry, which would be that of a
    /// namesake.
    pub fn emit_warning(&self, pod: &Pod, reason: &str, message: &str) {
        tracing::info!(pod = pod.metadata.uid, reason, "{message}");
        if let Some(sink) = &self.sink {
            sink.emit_warning(pod, reason, message);
        }
    }

    /// Records changes of the pod's phase and readiness.
    pub fn status(&self, uid: &PodUid, status: &PodStatus) {
        let mut text = status.phase.clone().unwrap_or_default();
        for condition in status.conditions.iter().flatten().filter(|c| c.status == "True") {
            text.push(' ');
            text.push_str(&condition.type_);
        }
        let last = {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            let entries = pods.entries.get(uid);
            let last = entries.and_then(|e| e.iter().rev().find(|e| e.what == STATUS).cloned());
            last.map(|entry| entry.text)
        };
        if last.as_deref() != Some(&text) {
            self.add(uid, STATUS, None, &text, EntryClass::default());
        }
    }

    /// The entries of one pod, oldest first.
    pub fn entries(&self, uid: &PodUid) -> Vec<TimelineEntry> {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.entries.get(uid).map(|e| e.iter().cloned().collect()).unwrap_or_default()
    }

    /// Entries that were dropped because a bound was met.
    pub fn overflowed(&self) -> u64 {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).overflowed
    }

    fn add(
        &self,
        uid: &PodUid,
        what: &str,
        container: Option<&str>,
        text: &str,
        class: EntryClass,
    ) {
        let EntryClass { event, warning } = class;
        let at = match &self.clock {
            Clock::Runs(now) => now().0,
            Clock::Set(at) => at.load(Ordering::Relaxed),
        };
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let pods = &mut *pods;
        if !pods.entries.contains_key(uid) {
            pods.order.push_back(uid.clone());
            if pods.order.len() > PODS_MAX
                && let Some(oldest) = pods.order.pop_front()
            {
                pods.entries.remove(&oldest);
            }
        }
        let entries = pods.entries.entry(uid.clone()).or_default();
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let same = |e: &&mut TimelineEntry| {
            e.what == what && e.text == text && e.container.as_deref() == container
        };
        let first = entries.front().map_or(at, |e| e.at);
        let since_seen_us = (at - first) / 1000;
        let mut latest = entries.iter_mut().rev().take(REPEATS_WITHIN);
        if let Some(last) = latest.find(same).filter(|_| event || warning) {
            (last.count, last.last_since_seen_us) = (last.count + 1, since_seen_us);
            return;
        }
        if entries.len() == ENTRIES_MAX {
            // The first entries show the start, so the one after them is dropped.
            entries.remove(ENTRIES_MAX / 2);
            pods.overflowed += 1;
        }
        entries.push_back(TimelineEntry {
            at,
            since_seen_us,
            last_since_seen_us: since_seen_us,
            what: what.to_owned(),
            container: container.map(str::to_owned),
            text: text.to_owned(),
            event,
            warning,
            count: 1,
        });
    }
}

/// Formats a duration for users: `85 us`, `12.3 ms`, `2.04 s`.
pub fn took(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{}.{} ms", micros / 1000, micros / 100 % 10),
        _ => format!("{}.{:02} s", micros / 1_000_000, micros / 10_000 % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_entry_is_counted_even_between_other_entries() {
        let (recorder, uid) = (Recorder::default(), PodUid::from("u"));
        for _ in 0..3 {
            recorder.trouble(&uid, "Prepare", None, "FailedMount: no");
            recorder.event(&uid, true, "FailedMount", "a", None);
            recorder.event(&uid, true, "FailedMount", "b", None);
            recorder.stage(&uid, "Status", None, "Pending");
        }
        let counts: Vec<_> =
            recorder.entries(&uid).iter().map(|e| (e.what.clone(), e.count)).collect();
        let counted = |what: &str| (what.to_owned(), 3);
        assert_eq!(counts[..3], ["Prepare", "FailedMount", "FailedMount"].map(counted));
        assert_eq!(counts.len(), 6, "stages are not counted together: {counts:?}");
    }

    #[test]
    fn spans_have_three_digits_at_most_before_their_unit() {
        for (micros, text) in
            [(85, "85 us"), (12_345, "12.3 ms"), (999_999, "999.9 ms"), (2_045_000, "2.04 s")]
        {
            assert_eq!(took(Duration::from_micros(micros)), text);
        }
    }
}
