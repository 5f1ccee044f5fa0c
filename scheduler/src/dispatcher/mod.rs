//! Dispatcher: sends API writes; bindings never queue behind statuses and events.
//!
//! ```text
//!   Command ─┬─ Bind ───> BINDS_MAX at once ──Ended──> the deciding thread
//!            ├─ Status ─> one of a pod at a time, the latest wins, STATUS_LANES pods at once
//!            ├─ GroupStatus > the latest of each group, one after the other
//!            ├─ BindVolumes > volumes and claims, one after the other
//!            ├─ ReserveDevices, ReleaseDevices, GiveDevicesBack > claims of devices, the same
//!            ├─ Evict ──> its victims, EVICTIONS_MAX at once
//!            ├─ Consult > extenders: one after the other takes nodes out, all score at once
//!            └─ RecordEvent > notes: events of events.k8s.io, a repeated one raises a count
//! ```
//! Input: commands. Output: requests, and the result of each binding, even if its task panics.
//! Owner: one thread. Bounds: `BINDS_MAX` bindings in flight (more wait, as assumed pods do); one
//! waiting status a pod; waiting events are bounded by `notes::book`.

mod bind;
#[cfg(test)]
mod bind_tests;
mod devices;
pub mod extender;
mod groups;
pub mod notes;
mod shares;
mod status;
mod volumes;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::header::CONTENT_TYPE;
use k8s_openapi::api::core::v1::{NodeAllocatableResourceClaimStatus, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DeleteParams, Preconditions};
use pintle_api::Clients;
use pintle_api_types::key::ObjectKey;
use pintle_daemon::tasks;
use pintle_scheduler_core::cycle::command::{BindingResult, Command, Evicted, Note};
use pintle_scheduler_core::cycle::{ReservationResult, Reserve, VolumeWrites};
use pintle_scheduler_core::extender::{Consult, Consulted, ExtenderError};
use pintle_scheduler_core::framework::Attempt;
use pintle_scheduler_core::plugins::volumes::bind::Write;
use pintle_scheduler_core::pod_fields::PodRef;
use pintle_scheduler_core::uid::Uid;
use serde::Serialize;
use serde::de::IgnoredAny;
use tokio::sync::{Semaphore, mpsc};

use self::bind::{BindJob, BindLane};
use self::extender::Caller;
use self::groups::GroupLane;
use self::notes::NoteRecorder;
use self::status::StatusLane;

/// Content type of requests.
const JSON: &str = "application/json";
/// Bindings under way.
const BINDS_MAX: usize = 128;
/// Victims deleted at once.
const EVICTIONS_MAX: usize = 16;
/// Longest wait for one answer, from when the request got its permit.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Concurrent writes of pod statuses.
const STATUS_LANES: usize = 16;

/// Something that ended.
#[derive(Clone, Debug, PartialEq)]
pub enum EndedWork {
    /// A binding.
    Bind(BindEnd),
    /// Making room.
    Evict(Evicted),
    /// A pod's reservations were released; the claims as they are now, as far as they could be
    /// read.
    Released(Uid, Vec<ResourceClaim>),
    /// A claim was to be deallocated for this pod: true on success, and the claim as it is now, if
    /// it could be read.
    GaveBack(Uid, bool, Vec<ResourceClaim>),
    /// Extenders have answered.
    Consult(Consulted),
    /// The chosen volumes of a pod were written, or the write failed.
    Volumes(VolumeWrites),
    /// Claims were reserved for a pod, or the reservation failed.
    Devices(ReservationResult),
}

/// A binding that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindEnd {
    /// The pod.
    pub pod: PodRef,
    /// The node.
    pub node: Rc<str>,
    /// The result.
    pub ended: BindingResult,
    /// Duration, from when it got its permit.
    pub took: Duration,
    /// The component that made it, or was to.
    pub by: BoundBy,
}

/// Component that makes a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    /// The scheduler itself.
    Default,
    /// An out-of-tree plugin.
    Plugin,
    /// An extender.
    Extender,
    /// It was not sent.
    Nobody,
}

/// The dispatcher of API writes.
pub struct WriteDispatcher {
    /// Client for bindings; `later` is for all other requests.
    client: kube::Client,
    later: kube::Client,
    evictions: Rc<Semaphore>,
    binds: Rc<BindLane>,
    ends: mpsc::UnboundedSender<EndedWork>,
    status: Rc<StatusLane>,
    groups: Rc<GroupLane>,
    turns: Rc<devices::ClaimTurns>,
    notes: NoteRecorder,
    under_way: Rc<Cell<usize>>,
    /// Pods with writes of volumes or devices in flight.
    prepared: Rc<Cell<usize>>,
    extenders: Rc<[Rc<Caller>]>,
}

impl WriteDispatcher {
    /// Creates a dispatcher, within a `LocalSet`; results are sent to the channel.
    pub fn new(
        clients: &Clients,
        events: kube::Client,
    ) -> (Self, mpsc::UnboundedReceiver<EndedWork>) {
        let (ends, ended) = mpsc::unbounded_channel();
        // Bindings have priority; one of eight requests is for the rest.
        let later = clients.bulk_within(ANSWER_MAX);
        let status = Rc::new(StatusLane::new(later.clone()));
        for _ in 0..STATUS_LANES {
            let lane = Rc::clone(&status);
            tasks::singleton("status", async move { lane.run().await });
        }
        let binds = BindLane::new(clients.within(ANSWER_MAX), BINDS_MAX, Rc::clone(&status));
        let groups = Rc::new(GroupLane::new(later.clone()));
        let lane = Rc::clone(&groups);
        tasks::singleton("group status", async move { lane.run().await });
        let (notes, sinks) = notes::notes(&events);
        for sink in sinks {
            tasks::singleton("events", sink.run());
        }
        let dispatcher = Self {
            client: clients.within(ANSWER_MAX),
            later,
            evictions: Rc::new(Semaphore::new(EVICTIONS_MAX)),
            binds: Rc::new(binds),
            ends,
            status,
            groups,
            turns: Rc::default(),
            notes,
            under_way: Rc::default(),
            prepared: Rc::default(),
            extenders: Rc::new([]),
        };
        (dispatcher, ended)
    }

    /// Adds extenders.
    #[must_use]
    pub fn with_extenders(mut self, callers: Vec<Caller>) -> Self {
        self.extenders = callers.into_iter().map(Rc::new).collect();
        self
    }

    /// Stops starting bindings; those in the queue have failed.
    pub fn close(&self) {
        self.binds.close();
    }

    /// Returns the number of bindings without a result.
    pub fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// Returns the number of pods with a node and a write of their binding, volumes or claims in
    /// flight.
    pub fn ahead(&self) -> usize {
        self.under_way.get() + self.prepared.get()
    }

    /// Executes a command asynchronously.
    pub fn run(&self, command: Command) {
        match command {
            Command::Bind { pod, node, object, attempt } => self.bind(pod, node, &object, attempt),
            Command::Consult(consult) => self.consult(consult),
            Command::BindVolumes { pod, number, writes, is_wanted } => {
                self.bind_volumes(pod, number, writes, is_wanted);
            }
            Command::ReserveDevices { pod, number, claims, statuses } => {
                self.reserve(pod, number, claims, statuses);
            }
            Command::ReleaseDevices { pod, claims, clears } => self.release(pod, claims, clears),
            Command::GiveDevicesBack { pod, claim } => {
                let owed = self.owes(EndedWork::GaveBack(pod.uid.clone(), false, Vec::new()));
                let client = self.later.clone();
                tokio::task::spawn_local(async move {
                    let (did, claims) = devices::give_back(&client, &claim).await;
                    owed.pay(EndedWork::GaveBack(pod.uid, did, claims));
                });
            }
            Command::Status { pod, condition, nominated } => {
                self.status.put(pod, condition, nominated);
            }
            Command::Evict { victims, pod, message, notes } => {
                let victims = victims.into_iter().zip(notes).collect();
                self.make_room(pod, victims, message);
            }
            Command::GroupStatus { group, condition } => self.groups.put(group, condition),
            Command::RecordEvent(note) => self.notes.record(note),
        }
    }

    fn bind(&self, pod: PodRef, node: Rc<str>, object: &Pod, attempt: Option<Rc<Attempt>>) {
        let owed = Owed {
            ends: self.ends.clone(),
            end: Some(EndedWork::Bind(BindEnd {
                pod: pod.clone(),
                node: Rc::clone(&node),
                ended: BindingResult::Failed(
                    "the task that bound it ended without an answer".to_owned(),
                ),
                took: Duration::ZERO,
                by: BoundBy::Nobody,
            })),
            under_way: Some(InFlightCount::one_more(&self.under_way)),
        };
        // k8s: pkg/scheduler/schedule_one.go extendersBinding
        let binder = extender::binder(&self.extenders, object).cloned();
        BindLane::put(&self.binds, BindJob { pod, node, binder, attempt, owed });
    }

    fn bind_volumes(
        &self,
        pod: PodRef,
        number: u64,
        writes: Vec<Write>,
        is_wanted: Rc<Cell<bool>>,
    ) {
        let error = Some("the task that wrote it ended without an answer".to_owned());
        let (versions, of) = (Vec::new(), pod.clone());
        let end = EndedWork::Volumes(VolumeWrites { pod: of, number, versions, error });
        let owed = self.prepares(end);
        let client = self.client.clone();
        tokio::task::spawn_local(async move {
            let (versions, error) = volumes::write(client, &writes, &is_wanted).await;
            owed.pay(EndedWork::Volumes(VolumeWrites { pod, number, versions, error }));
        });
    }

    fn reserve(
        &self,
        pod: PodRef,
        number: u64,
        claims: Vec<Reserve>,
        statuses: Vec<NodeAllocatableResourceClaimStatus>,
    ) {
        let error = Some("the task that reserved it ended without an answer".to_owned());
        let end =
            ReservationResult { pod: pod.clone(), number, claims: Vec::new(), error, made: None };
        let owed = self.prepares(EndedWork::Devices(end));
        let (client, turns) = (self.client.clone(), Rc::clone(&self.turns));
        tokio::task::spawn_local(async move {
            let (claims, mut error, made) = devices::reserve(&client, &turns, &pod, claims).await;
            if error.is_none() && !statuses.is_empty() {
                let said = shares::say(&client, &pod, &statuses).await;
                error = said.err().map(|error| error.to_string());
            }
            owed.pay(EndedWork::Devices(ReservationResult { pod, number, claims, error, made }));
        });
    }

    fn release(&self, pod: PodRef, claims: Vec<Rc<ResourceClaim>>, clears: bool) {
        let owed = self.owes(EndedWork::Released(pod.uid.clone(), Vec::new()));
        let client = self.later.clone();
        tokio::task::spawn_local(async move {
            let claims = devices::release(&client, &pod, &claims).await;
            if clears {
                shares::clear(&client, &pod).await;
            }
            owed.pay(EndedWork::Released(pod.uid, claims));
        });
    }

    /// Returns a guard that reports this end if nothing else is reported.
    fn owes(&self, end: EndedWork) -> Owed {
        Owed { ends: self.ends.clone(), end: Some(end), under_way: None }
    }

    /// Like `owes`, for a pod that counts as `ahead` until then.
    fn prepares(&self, end: EndedWork) -> Owed {
        let mut owed = self.owes(end);
        owed.under_way = Some(InFlightCount::one_more(&self.prepared));
        owed
    }

    fn consult(&self, consult: Consult) {
        let answer = Err(ExtenderError::NoTask);
        let end = EndedWork::Consult(Consulted { about: consult.about.clone(), answer });
        let owed = self.owes(end);
        let extenders = Rc::clone(&self.extenders);
        tokio::task::spawn_local(async move {
            owed.pay(EndedWork::Consult(extender::consult(&extenders, consult).await));
        });
    }

    // k8s: pkg/scheduler/framework/preemption/executor.go prepareCandidateAsync
    fn make_room(&self, pod: PodRef, victims: Vec<(PodRef, Note)>, message: String) {
        let end = EndedWork::Evict(Evicted { pod: pod.clone(), all: false, took: Duration::ZERO });
        let owed = self.owes(end);
        let (client, notes) = (self.later.clone(), self.notes.clone());
        let turns = Rc::clone(&self.evictions);
        let began = Instant::now();
        tokio::task::spawn_local(async move {
            let all = last_after_all(&turns, victims, async |(victim, note)| {
                evict(client.clone(), notes.clone(), victim, &message, note).await
            });
            let all = all.await;
            owed.pay(EndedWork::Evict(Evicted { pod, all, took: began.elapsed() }));
        });
    }
}

/// Sends an object; only the status of the answer matters.
async fn send(
    client: &kube::Client,
    method: Method,
    path: &str,
    content: &'static str,
    object: &impl Serialize,
) -> kube::Result<()> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = hyper::Request::builder().method(method).uri(path);
    let request = request.header(CONTENT_TYPE, content).body(body);
    client.request::<IgnoredAny>(request.map_err(kube::Error::HttpError)?).await.map(drop)
}

async fn post(client: &kube::Client, path: &str, object: &impl Serialize) -> kube::Result<()> {
    send(client, Method::POST, path, JSON, object).await
}

/// Returns the API path of a pod.
fn path_of(key: &ObjectKey) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", key.namespace(), key.name())
}

/// Runs all but the last at once, then the last; true if all succeeded. After a failure no further
/// one starts, because the preemptor then looks for other victims and the remaining ones may stay.
// k8s: pkg/scheduler/framework/preemption/executor.go prepareCandidateAsync
async fn last_after_all<T>(
    turns: &Semaphore,
    mut all: Vec<T>,
    does: impl AsyncFn(T) -> bool,
) -> bool {
    let (failed, does) = (&Cell::new(false), &does);
    let one = |each| async move {
        let turn = turns.acquire().await;
        if !failed.get() && (turn.is_err() || !does(each).await) {
            failed.set(true);
        }
    };
    let last = all.pop();
    futures_util::future::join_all(all.into_iter().map(one)).await;
    if let Some(last) = last {
        one(last).await;
    }
    !failed.get()
}

/// Deletes a victim; true if it is deleted or being deleted.
// k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod
async fn evict(
    client: kube::Client,
    notes: NoteRecorder,
    victim: PodRef,
    message: &str,
    note: Note,
) -> bool {
    // A conflict means that the uid differs: a new pod has the same name.
    let is_gone =
        |error: &kube::Error| matches!(error, kube::Error::Api(s) if [404, 409].contains(&s.code));
    let failed = |error: kube::Error| {
        tracing::warn!(%error, pod = victim.key.as_str(), "preemption failed");
        false
    };
    match status::disrupt(&client, &victim, message).await {
        Ok(()) => {}
        Err(error) if is_gone(&error) => return true,
        Err(error) => return failed(error),
    }
    let only = Preconditions { uid: Some(victim.uid.to_string()), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    let path = path_of(&victim.key);
    match send(&client, Method::DELETE, &path, JSON, &params).await {
        Ok(()) => notes.record(note),
        Err(error) if is_gone(&error) => {}
        Err(error) => return failed(error),
    }
    true
}

/// Counts one in flight, until it is dropped.
struct InFlightCount(Rc<Cell<usize>>);

impl InFlightCount {
    fn one_more(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// A result that is sent whatever happens to the task.
struct Owed {
    ends: mpsc::UnboundedSender<EndedWork>,
    end: Option<EndedWork>,
    under_way: Option<InFlightCount>,
}

impl Owed {
    fn pay(mut self, end: EndedWork) {
        self.end = Some(end);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        drop(self.under_way.take());
        if let Some(end) = self.end.take() {
            // The receiver is closed only when the process is about to end.
            let _ = self.ends.send(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use pintle_api::{Access, ClientOptions};

    use super::*;

    #[tokio::test]
    async fn last_call_starts_after_all_others_and_no_call_starts_after_a_failure() {
        for (fails, expected) in [(0, "1 2 3 "), (1, "1 "), (2, "1 2 "), (3, "1 2 3 ")] {
            let (turns, begun) = (Semaphore::new(1), RefCell::new(String::new()));
            let all = last_after_all(&turns, vec![1, 2, 3], async |each| {
                begun.borrow_mut().push_str(&format!("{each} "));
                tokio::task::yield_now().await;
                each != fails
            });
            assert_eq!((all.await, &**begun.borrow()), (fails == 0, expected));
        }
        // Concurrently, as far as permits allow.
        let (turns, begun) = (Semaphore::new(4), Cell::new(0));
        let all = last_after_all(&turns, vec![1, 2, 3], async |each| {
            begun.set(begun.get() + 1);
            tokio::task::yield_now().await;
            begun.get() == if each == 3 { 3 } else { 2 }
        });
        assert!(all.await);
    }

    #[tokio::test]
    async fn volume_and_device_writes_count_as_ahead_until_they_end() {
        tokio::task::LocalSet::new()
            .run_until(async {
                let access = Access::anonymous(Path::new("test"), "http://127.0.0.1:9");
                let access = access.expect("an address");
                let clients = access.clients(ClientOptions::default());
                let (dispatcher, mut ended) = WriteDispatcher::new(&clients, clients.urgent());
                let pod = PodRef { key: ObjectKey::new("ns", "p"), uid: "u".into() };
                let (writes, is_wanted) = (Vec::new(), Rc::default());
                dispatcher.run(Command::BindVolumes {
                    pod: pod.clone(),
                    number: 1,
                    writes,
                    is_wanted,
                });
                let (claims, statuses) = (Vec::new(), Vec::new());
                dispatcher.run(Command::ReserveDevices { pod, number: 1, claims, statuses });
                assert_eq!((dispatcher.ahead(), dispatcher.under_way()), (2, 0));
                for _ in 0..2 {
                    ended.recv().await.expect("it ends");
                }
                assert_eq!(dispatcher.ahead(), 0);
            })
            .await;
    }
}
