//! The status queue: which status, deletion or mirror pod is to be written to the API server now.
//!
//! Pure. Input: statuses of the workers, the API server's copies of the pods as the watch shows
//! them, and answers to earlier requests. Output: `StatusRequest`s. Each patch is the difference
//! between our status and the newest copy, so a status that is overtaken by the next one is never
//! sent, and a copy that another writer has changed is put right. Nothing is dropped before the API
//! server has it or reports that the pod is gone: an outage only delays. Bounds: one request under
//! way for each pod, `FLIGHTS_MAX` in all; retries wait up to `RETRY.1`.
// k8s: pkg/kubelet/status/status_manager.go

mod entry;
pub mod merge;
pub mod patch;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;

use crate::api_health::Unwritten;
use crate::worker::WorkerStage;
use entry::{EntryWork, PodEntry};
use pintle_api_types::ids::{Mono, Now, PodUid};
use pintle_api_types::pod;

/// Requests under way at the same time.
const FLIGHTS_MAX: usize = 32;
/// First and longest wait before a failed request is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How long a change may gather others if no client waits for it. The API server has as long to
/// remove a pod without grace by itself.
const GATHER: Duration = Duration::from_millis(100);
const GATHER_GOING: Duration = Duration::from_secs(1);
/// The same until a container has been started, and while the pod is stopped: the statuses of an
/// accepted pod, of its sandbox and of its container are one write when the pod starts at the usual
/// speed, and so are the containers' ends and the pod's. With many pods, each waits for the ones
/// before it. One takes two cores about 100 ms, and this is for half of that speed: a hundred pods
/// that start cost one write of a status each instead of three, and one instead of three to end.
const GATHER_CHANGING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const GATHER_CHANGING_EACH: Duration = Duration::from_millis(200);
/// How long a write that the API server took without effect is not repeated.
// k8s: pkg/kubelet/status/status_manager.go syncPeriod
const REPEAT: Duration = Duration::from_secs(10);

/// Namespace and name of a pod.
pub type FullName = (String, String);

/// An input of the status queue.
#[derive(Clone, Debug)]
pub enum QueueInput {
    /// A source wants this pod; its status may follow later.
    Wanted(Arc<Pod>),
    /// A worker derived a status or came to another stage.
    Derived {
        /// The pod as desired.
        pod: Arc<Pod>,
        /// Its status.
        status: Arc<PodStatus>,
        /// The stage of its worker.
        stage: WorkerStage,
    },
    /// Nothing is left of the pod on this node.
    Gone(PodUid),
    /// The API server has this pod, or this mirror pod.
    Seen(Arc<Pod>),
    /// A complete list of the API server's objects shows this copy; its metadata is enough.
    Listed(Arc<Pod>),
    /// It has it no longer.
    Unseen(Arc<Pod>),
    /// Every source has delivered: a mirror pod without a static pod is an orphan.
    SourcesReady,
    /// Answer to a request.
    Answered {
        /// The request's.
        ticket: u64,
        /// The answer.
        answer: RequestResult,
    },
    /// Time has passed.
    Tick,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusRequest {
    /// To be returned with the answer.
    pub ticket: u64,
    /// The object.
    pub name: FullName,
    /// The operation.
    pub ask: Ask,
}

/// An operation on an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// PATCH its status with this strategic merge patch.
    Patch(Value),
    /// DELETE it without grace, if it still has this uid.
    Delete(PodUid),
    /// Create the mirror of this static pod.
    Mirror(Arc<Pod>),
    /// GET it.
    Refetch,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestResult {
    /// The object as it is now; its spec may be missing.
    Copy(Box<Pod>),
    /// Done, and the object is gone or will be.
    Deleted,
    /// There is no such object.
    Missing,
    /// The object is another one than meant, or has changed.
    Conflict,
    /// The API server requests a pause, or failed.
    Busy {
        /// How long to wait at least.
        after: Duration,
        /// Its words.
        why: String,
    },
    /// It refused the request.
    Refused(String),
    /// It could not be reached.
    Unreachable(String),
}

/// The key of an entry of the status queue: a pod of the API by uid, a mirror pod by name, because
/// its uid changes whenever it is created again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueKey {
    Pod(PodUid),
    Mirror(FullName),
}

impl QueueKey {
    /// The key of a pod as a worker has it.
    fn of_local(pod: &Pod) -> Self {
        if pod::is_static(pod) { Self::Mirror(full_name(pod)) } else { Self::Pod(pod::uid(pod)) }
    }

    /// The key of an object of the API server.
    fn of_copy(pod: &Pod) -> Self {
        if pod::is_mirror(pod) { Self::Mirror(full_name(pod)) } else { Self::Pod(pod::uid(pod)) }
    }
}

fn full_name(pod: &Pod) -> FullName {
    (pod::namespace(pod).to_owned(), pod::name(pod).to_owned())
}

/// In which order waiting work is done. Ready changes and ends come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkClass {
    Urgent,
    Normal,
}

/// All objects that are or may have to be written.
#[derive(Debug, Default)]
pub struct StatusQueue {
    entries: BTreeMap<QueueKey, PodEntry>,
    flights: BTreeMap<u64, QueueKey>,
    queue: BTreeSet<(WorkClass, u64, QueueKey)>,
    timers: BTreeSet<(Mono, QueueKey)>,
    /// Which mirror pods a static pod of this uid belongs to.
    mirrors: BTreeMap<PodUid, BTreeSet<FullName>>,
    /// Source of tickets and of the order in the queue; only grows.
    counter: u64,
    sources_ready: bool,
    /// The API server could not be reached at the last request.
    outage: bool,
    out: Vec<StatusRequest>,
    /// How long each status that was written since the last question had differed.
    written: Vec<Duration>,
    /// Pending writes that changed since they were last taken.
    unwritten: BTreeMap<PodUid, Option<Unwritten>>,
}

impl StatusQueue {
    /// Takes one input; returns the requests for the API server.
    pub fn handle(&mut self, now: Now, input: QueueInput) -> Vec<StatusRequest> {
        match input {
            QueueInput::Wanted(pod) => self.wanted(pod, now.mono),
            QueueInput::Derived { pod, status, stage } => {
                let key = self.key_of_local(&pod);
                let entry = self.entries.entry(key.clone()).or_default();
                entry.derived(pod, status, stage);
                self.look_at(&key, now.mono);
            }
            QueueInput::Gone(uid) => self.gone(&uid, now.mono),
            QueueInput::Seen(pod) => {
                let key = QueueKey::of_copy(&pod);
                self.entries.entry(key.clone()).or_default().seen(pod);
                self.look_at(&key, now.mono);
            }
            QueueInput::Listed(pod) => {
                let key = QueueKey::of_copy(&pod);
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.listed(&pod);
                }
                self.look_at(&key, now.mono);
            }
            QueueInput::Unseen(pod) => {
                let key = QueueKey::of_copy(&pod);
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.unseen(&pod);
                }
                self.look_at(&key, now.mono);
            }
            QueueInput::SourcesReady => {
                self.sources_ready = true;
                self.everything(now.mono);
            }
            QueueInput::Answered { ticket, answer } => self.answered(ticket, answer, now),
            QueueInput::Tick => self.due(now.mono),
        }
        self.dispatch(now.mono);
        std::mem::take(&mut self.out)
    }

    /// When the next `QueueInput::Tick` is needed.
    pub fn next_wake(&self) -> Option<Mono> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// How long each status that was written since the last question had waited for that.
    pub fn take_written(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.written)
    }

    /// True while the API server cannot be reached.
    pub fn is_outage(&self) -> bool {
        self.outage
    }

    /// True when nothing of this pod waits or is under way.
    pub fn is_settled(&self, uid: &PodUid) -> bool {
        self.keys_of(uid).iter().filter_map(|key| self.entries.get_key_value(key)).all(
            |(key, entry)| entry.flight.is_none() && entry.work(key, self.sources_ready).is_none(),
        )
    }

    /// Writes that the API server has not accepted although they were sent, of each pod for which
    /// that changed since the last call.
    pub fn take_unwritten(&mut self) -> BTreeMap<PodUid, Option<Unwritten>> {
        std::mem::take(&mut self.unwritten)
    }

    /// The key of a pod as a worker has it, which is remembered for its end.
    fn key_of_local(&mut self, pod: &Pod) -> QueueKey {
        let key = QueueKey::of_local(pod);
        if let QueueKey::Mirror(name) = &key {
            self.mirrors.entry(pod::uid(pod)).or_default().insert(name.clone());
        }
        key
    }

    /// The keys of entries that may concern this pod.
    fn keys_of(&self, uid: &PodUid) -> Vec<QueueKey> {
        let names = self.mirrors.get(uid).into_iter().flatten();
        let mirrors = names.map(|name| QueueKey::Mirror(name.clone()));
        mirrors.chain([QueueKey::Pod(uid.clone())]).collect()
    }

    fn wanted(&mut self, pod: Arc<Pod>, now: Mono) {
        let key = self.key_of_local(&pod);
        self.entries.entry(key.clone()).or_default().wanted(pod);
        self.look_at(&key, now);
    }

    fn gone(&mut self, uid: &PodUid, now: Mono) {
        for key in self.keys_of(uid) {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.forget(uid);
            }
            self.look_at(&key, now);
        }
        self.mirrors.remove(uid);
        self.unwritten.insert(uid.clone(), None);
    }

    fn everything(&mut self, now: Mono) {
        for key in self.entries.keys().cloned().collect::<Vec<_>>() {
            self.look_at(&key, now);
        }
    }

    fn due(&mut self, now: Mono) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            self.timers.remove(&(at, key.clone()));
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.timer = None;
            }
            self.look_at(&key, now);
        }
    }

    fn answered(&mut self, ticket: u64, answer: RequestResult, now: Now) {
        let Some(key) = self.flights.remove(&ticket) else { return };
        let unreachable = matches!(answer, RequestResult::Unreachable(_));
        let back = self.outage && !unreachable;
        self.outage = unreachable;
        if let Some(entry) = self.entries.get_mut(&key) {
            self.written.extend(entry.answered(&key, answer, now));
            self.unwritten.extend(entry.unwritten());
        }
        self.look_at(&key, now.mono);
        if back {
            // Entries that waited for the API server need not wait any longer.
            for entry in self.entries.values_mut() {
                entry.retry_at = None;
            }
            self.everything(now.mono);
        }
    }

    /// Puts a pod where it belongs: in the queue, at a timer, or nowhere.
    fn look_at(&mut self, key: &QueueKey, now: Mono) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some((class, order)) = entry.queued.take() {
            self.queue.remove(&(class, order, key.clone()));
        }
        if let Some(at) = entry.timer.take() {
            self.timers.remove(&(at, key.clone()));
        }
        if entry.flight.is_some() {
            return;
        }
        if entry.is_empty() {
            self.entries.remove(key);
            return;
        }
        let Some(work) = entry.work(key, self.sources_ready) else {
            (entry.gather_since, entry.differs_since) = (None, None);
            return;
        };
        if matches!(work, EntryWork::Patch { .. }) {
            entry.differs_since.get_or_insert(now);
        }
        let goes = entry.goes_by_itself();
        let class = if goes { WorkClass::Normal } else { entry.class(&work) };
        let gather = match () {
            () if goes => GATHER_GOING,
            () if entry.is_stopping() || entry.is_starting() => gather_among(self.timers.len()),
            () => GATHER,
        };
        let gathers = (class == WorkClass::Normal)
            .then(|| entry.gather_since.get_or_insert(now).plus(gather));
        let until = gathers.max(entry.retry_at).max(entry.repeat_at(&work));
        if let Some(at) = until.filter(|at| *at > now) {
            entry.timer = Some(at);
            self.timers.insert((at, key.clone()));
            return;
        }
        self.counter += 1;
        entry.queued = Some((class, self.counter));
        self.queue.insert((class, self.counter, key.clone()));
    }

    fn dispatch(&mut self, now: Mono) {
        while self.flights.len() < FLIGHTS_MAX {
            let Some((_, _, key)) = self.queue.pop_first() else { return };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.queued = None;
            let Some(work) = entry.work(&key, self.sources_ready) else { continue };
            self.counter += 1;
            let ticket = self.counter;
            let Some((name, ask)) = entry.begin(&key, ticket, work, now) else { continue };
            self.flights.insert(ticket, key);
            self.out.push(StatusRequest { ticket, name, ask });
        }
    }
}

/// How long statuses of a changing pod may gather while this many other pods wait as well.
fn gather_among(others: usize) -> Duration {
    let others = u32::try_from(others).unwrap_or(u32::MAX);
    let (least, most) = GATHER_CHANGING;
    GATHER_CHANGING_EACH.saturating_mul(others).clamp(least, most)
}

/// True for a request with a delay that users would notice.
fn is_urgent(work: &EntryWork) -> bool {
    !matches!(work, EntryWork::Patch { urgent: false, .. })
}
