//! The API server of a world: the one of `api/memory`, behind a watch that lags, repeats and
//! breaks, writes that fail before they had an effect or after, and outages. Between it and the
//! core stand the product's own `PodSources` and `StatusQueue`.
//!
//! Users write as a restored backup does, unchecked, because a world changes what only
//! subresources may change; all that the agent sends is answered as the real server answers it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::intake;
use pintle_agent_core::observed::RunState;
use pintle_agent_core::source::{PodSources, SourceKind, SourceReading, SourceUpdate};
use pintle_agent_core::status_queue::{
    Ask, QueueInput as Mail, RequestResult, StatusQueue, StatusRequest,
};
use pintle_agent_core::types::{Mono, PodUid, UnixNanos};
use pintle_agent_core::worker::PodsInput;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::PODS;
use pintle_api_types::request::{
    ApiError, DeleteOptions, PatchForm, Request as ApiRequest, Target,
};
use pintle_memory_api::{Change, Identity, Server};
use serde_json::{Value, json};

use crate::faults::Fault;
use crate::pods::Manifest;
use crate::world::{Event, MS, START, World};

const NAMESPACE: &str = "sim";

/// A message on the wire, or an event of the connection.
#[derive(Debug)]
pub enum Wire {
    /// A list arrives.
    Listed { run: u64, epoch: u64, pods: Vec<Pod> },
    /// A watch event arrives.
    Watched { run: u64, epoch: u64, gone: bool, pod: Box<Pod> },
    /// The watch begins, or begins again.
    List { run: u64 },
    /// A request reaches the API server.
    Asked { run: u64, request: StatusRequest },
    /// Its answer arrives.
    Answered { run: u64, ticket: u64, answer: RequestResult },
    /// Time for the status queue.
    Tick { run: u64 },
    /// The API server becomes unreachable for a while, or is back.
    Outage { on: bool },
    /// A copy of its store is made.
    Saved,
    /// The copy takes the place of the store.
    Restored,
}

/// A copy of the store, and the wanted pods of that time.
#[derive(Debug)]
struct Backup {
    server: Server,
    manifests: BTreeMap<String, Manifest>,
}

/// The API server, and the agent's side of it.
pub struct ApiServer {
    server: Server,
    /// Changes up to this version are on their way to the agent.
    seen: u64,
    out: bool,
    /// When the last watch event arrives: they keep their order.
    watched_until: Mono,
    /// Counts the watches of the agent; events of an earlier one are lost.
    epoch: u64,
    /// The agent watches. Changes between two watches are in the list of the next.
    watches: bool,
    sources: PodSources,
    queue: StatusQueue,
    said_ready: bool,
    ticks_at: Option<Mono>,
    /// Objects that were deleted from it by the agent.
    pub completed: u64,
    backup: Option<Backup>,
    /// Its store is an older one: a request under way may be out of date.
    restored: bool,
    /// The statuses of the pods in the older store.
    said_before: BTreeMap<PodUid, Value>,
}

impl ApiServer {
    pub fn new() -> Self {
        Self {
            server: Server::empty(1),
            seen: 0,
            out: false,
            watched_until: Mono::PAST,
            epoch: 0,
            watches: false,
            sources: PodSources::new([SourceKind::Api]),
            queue: StatusQueue::default(),
            said_ready: false,
            ticks_at: None,
            completed: 0,
            backup: None,
            restored: false,
            said_before: BTreeMap::new(),
        }
    }

    pub fn is_out(&self) -> bool {
        self.out
    }

    /// CPU requests of pods that are not over, in millicores.
    pub fn cpu_of_living(&self, known: &BTreeMap<PodUid, Manifest>) -> u64 {
        let living = self.objects().map(|(_, object)| object).filter(|object| !is_over(object));
        living.filter_map(|object| known.get(&uid_of(object))).map(Manifest::cpu_millis).sum()
    }

    /// The pod's status as it was last written.
    pub fn status(&self, name: &str) -> Option<&Value> {
        Some(&self.object(name)?["status"])
    }

    /// True when the API server knows since when the pod runs.
    pub fn knows_start(&self, uid: &PodUid) -> bool {
        self.of_uid(uid).is_some_and(|object| object["status"]["startTime"].is_string())
    }

    /// True when the API server knows that the pod is over.
    pub fn knows_end(&self, uid: &PodUid) -> bool {
        self.of_uid(uid).is_some_and(is_over)
    }

    /// The pod's status as an older store has brought it back.
    pub fn said_before(&self, uid: &PodUid) -> Option<&Value> {
        self.said_before.get(uid)
    }

    pub fn has(&self, name: &str) -> bool {
        self.object(name).is_some()
    }

    fn objects(&self) -> impl Iterator<Item = (&str, &Value)> {
        let objects = self.server.objects(PODS, NAMESPACE);
        objects.map(|(key, object)| (key.name(), &**object))
    }

    fn object(&self, name: &str) -> Option<&Value> {
        self.server.object(PODS, &key_of(name)).map(|object| &**object)
    }

    fn of_uid(&self, uid: &PodUid) -> Option<&Value> {
        self.objects().map(|(_, object)| object).find(|object| uid_of(object) == *uid)
    }

    fn end_watch(&mut self) {
        (self.epoch, self.watches) = (self.epoch + 1, false);
    }

    fn pod(&self, name: &str) -> Pod {
        decoded(self.object(name).expect("an object"))
    }
}

fn key_of(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

fn decoded(object: &Value) -> Pod {
    serde_json::from_value(object.clone()).expect("a pod")
}

fn uid_of(object: &Value) -> PodUid {
    object["metadata"]["uid"].as_str().unwrap_or_default().into()
}

fn is_over(object: &Value) -> bool {
    matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

impl World {
    fn api(&mut self) -> &mut ApiServer {
        self.api.as_mut().expect("a world with an API server")
    }

    /// The agent starts: it knows nothing.
    pub fn api_boot(&mut self) {
        let run = self.run;
        let Some(api) = self.api.as_mut() else { return };
        api.end_watch();
        api.sources = PodSources::new([SourceKind::Api]);
        (api.queue, api.said_ready, api.ticks_at) = (StatusQueue::default(), false, None);
        self.at(MS, Event::Wire(Wire::List { run }));
    }

    /// A client creates a pod, and a scheduler has chosen the node.
    pub fn api_create(&mut self, manifest: &Manifest, name: &str) {
        let mut object = serde_json::to_value(&*manifest.pod).expect("JSON");
        object["metadata"]["generation"] = json!(1);
        object["spec"]["nodeName"] = json!("node");
        object["status"] = json!({"phase": "Pending"});
        self.api_put(name, object);
    }

    /// A client changes a pod's spec.
    pub fn api_update(&mut self, manifest: &Manifest, name: &str) {
        let new = serde_json::to_value(&*manifest.pod).expect("JSON");
        let mut object = self.api().object(name).expect("an object").clone();
        let node = object["spec"]["nodeName"].take();
        object["spec"] = new["spec"].clone();
        object["spec"]["nodeName"] = node;
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        object["metadata"]["generation"] = json!(generation + 1);
        self.api_put(name, object);
    }

    /// A client deletes a pod: with its own grace, with less, or without.
    pub fn api_delete(&mut self, name: &str, grace: i64) {
        let options = DeleteOptions { grace_seconds: Some(grace), ..DeleteOptions::default() };
        let target = Target::object(PODS, key_of(name));
        let deleted = self.api_handle(&ApiRequest::Delete { target, options });
        deleted.expect("a pod may be deleted");
    }

    fn api_put(&mut self, name: &str, object: Value) {
        let now = self.api_now();
        self.api().server.put(PODS, &key_of(name), object, now);
        self.api_changed();
    }

    /// The API server's clock is set by nobody.
    fn api_now(&self) -> Timestamp {
        let nanos = i128::from(START.0) + i128::from(self.now.0);
        Timestamp::from_nanosecond(nanos).expect("a time of this age")
    }

    fn api_handle(&mut self, request: &ApiRequest) -> Result<Value, ApiError> {
        let now = self.api_now();
        let answer = self.api().server.handle(&Identity::Admin, request, now);
        self.api_changed();
        answer
    }

    /// Sends what has changed; of older changes nothing is kept.
    fn api_changed(&mut self) {
        let api = self.api();
        let events = api.server.events_since(PODS, api.seen).expect("newer ones are kept").to_vec();
        api.seen = api.server.version();
        api.server.compact(api.seen);
        for event in events {
            self.api_watch(event.change == Change::Deleted, decoded(&event.object));
        }
    }

    /// The watch delivers in order, late, sometimes twice, and sometimes it breaks.
    fn api_watch(&mut self, gone: bool, pod: Pod) {
        let (run, epoch) = (self.run, self.api().epoch);
        if !self.api().watches {
            return;
        }
        if self.trouble(Fault::Api, 4) {
            self.api().end_watch();
            let delay = self.rng.range(100 * MS, 5_000 * MS);
            self.at(delay, Event::Wire(Wire::List { run }));
            return;
        }
        let lag = self.rng.range(MS, 400 * MS);
        let at = self.now.plus(Duration::from_nanos(lag)).max(self.api().watched_until);
        self.api().watched_until = at;
        let delay = u64::try_from(at.since(self.now).as_nanos()).expect("a short time");
        for _ in 0..if self.rng.chance(10) { 2 } else { 1 } {
            let pod = Box::new(pod.clone());
            self.at(delay, Event::Wire(Wire::Watched { run, epoch, gone, pod }));
        }
    }

    pub fn wire(&mut self, wire: Wire) {
        match wire {
            Wire::Outage { on } => {
                self.api().out = on;
                let run = self.run;
                // The watch breaks with the connection and comes back after it.
                self.api().end_watch();
                if !on {
                    self.at(50 * MS, Event::Wire(Wire::List { run }));
                }
            }
            Wire::Saved => self.api_save(),
            Wire::Restored => self.api_restore(),
            Wire::List { run } => self.api_list(run),
            Wire::Listed { run, epoch, pods } => {
                if run != self.run || epoch != self.api().epoch || self.agent.is_none() {
                    return;
                }
                let copies: Vec<_> = pods.iter().cloned().map(Arc::new).collect();
                let pods = pods.into_iter().map(|pod| (Arc::new(pod), UnixNanos::NEVER)).collect();
                let now = self.clocks().wall;
                let reading = SourceReading { pods, ..SourceReading::default() };
                let updates = self.api().sources.set(SourceKind::Api, reading, now, &|_, _| None);
                self.api_updates(updates);
                for copy in copies {
                    self.mail(Mail::Listed(copy));
                }
                if !std::mem::replace(&mut self.api().said_ready, true) {
                    self.mail(Mail::SourcesReady);
                    self.send(PodsInput::SourcesReady);
                }
            }
            Wire::Watched { run, epoch, gone, pod } => {
                if run != self.run || epoch != self.api().epoch || self.agent.is_none() {
                    return;
                }
                let now = self.clocks().wall;
                let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
                let sources = &mut self.api().sources;
                let update = match gone {
                    true => sources.remove(SourceKind::Api, &uid),
                    false => sources.change(SourceKind::Api, *pod, now),
                };
                self.api_updates(update);
            }
            Wire::Asked { run, request } => self.api_asked(run, request),
            Wire::Answered { run, ticket, answer } if run == self.run => {
                self.mail(Mail::Answered { ticket, answer });
            }
            Wire::Tick { run } if run == self.run => {
                self.api().ticks_at = None;
                self.mail(Mail::Tick);
            }
            Wire::Answered { .. } | Wire::Tick { .. } => {}
        }
    }

    fn api_save(&mut self) {
        let manifests = self.manifests.clone();
        let api = self.api();
        api.backup = Some(Backup { server: api.server.clone(), manifests });
    }

    /// Objects created since are gone, objects deleted since are back, and versions repeat.
    fn api_restore(&mut self) {
        let run = self.run;
        let Some(backup) = self.api().backup.take() else { return };
        backup.manifests.values().for_each(|manifest| self.check.know(manifest));
        self.manifests = backup.manifests;
        let api = self.api();
        (api.seen, api.server) = (backup.server.version(), backup.server);
        let said = |(_, object): (&str, &Value)| (uid_of(object), object["status"].clone());
        api.said_before = api.objects().map(said).collect();
        api.restored = true;
        api.end_watch();
        self.forget_undone();
        self.at(50 * MS, Event::Wire(Wire::List { run }));
    }

    /// Forgets an end that was written only to the replaced store, once the agent that wrote it is
    /// gone.
    pub fn forget_undone(&mut self) {
        let Some(api) = self.api.as_ref().filter(|api| api.restored) else { return };
        let agent = self.agent.as_ref();
        let works = |uid: &PodUid| agent.is_some_and(|agent| agent.worker(uid).is_some());
        self.check.undone(|uid| api.knows_end(uid) || works(uid));
    }

    fn api_list(&mut self, run: u64) {
        if run != self.run {
            return;
        }
        if self.api().out {
            return self.at(500 * MS, Event::Wire(Wire::List { run }));
        }
        self.api().epoch += 1;
        self.api().watches = true;
        let epoch = self.api().epoch;
        let pods = self.api().objects().map(|(_, object)| decoded(object)).collect();
        let lag = self.rng.range(MS, 50 * MS);
        // Changes from here on come after the list.
        let at = self.now.plus(Duration::from_nanos(lag));
        self.api().watched_until = at;
        self.at(lag, Event::Wire(Wire::Listed { run, epoch, pods }));
    }

    fn api_updates(&mut self, updates: impl IntoIterator<Item = SourceUpdate>) {
        for update in updates {
            let Some(pod) = update.pod().cloned() else { continue };
            self.mail(intake::report(SourceKind::Api, &update, &pod));
            if let Some(input) = intake::input_of(SourceKind::Api, &update, &pod) {
                self.send(input);
            }
        }
    }

    /// Gives the status queue an input and sends its requests.
    pub fn mail(&mut self, mail: Mail) {
        let (now, run) = (self.clocks(), self.run);
        let Some(api) = self.api.as_mut() else { return };
        let requests = api.queue.handle(now, mail);
        let wake = api.queue.next_wake();
        if let Some(at) = wake.filter(|at| api.ticks_at.is_none_or(|known| *at < known)) {
            api.ticks_at = Some(at);
            let delay = u64::try_from(at.since(self.now).as_nanos()).expect("a short time");
            self.at(delay, Event::Wire(Wire::Tick { run }));
        }
        for request in requests {
            let delay = self.rng.range(MS, 30 * MS);
            self.at(delay, Event::Wire(Wire::Asked { run, request }));
        }
    }

    /// A request of a dead agent may still arrive.
    fn api_asked(&mut self, run: u64, request: StatusRequest) {
        let ticket = request.ticket;
        let out = self.api().out;
        let answer = if out || self.trouble(Fault::Api, 5) {
            RequestResult::Unreachable("the connection broke".to_owned())
        } else if self.trouble(Fault::Api, 5) {
            let after = Duration::from_secs(self.rng.range(0, 3));
            RequestResult::Busy { after, why: "too many requests".to_owned() }
        } else if self.trouble(Fault::Api, 3) {
            RequestResult::Conflict
        } else {
            let answer = self.api_does(request);
            match self.trouble(Fault::Api, 5) {
                true => RequestResult::Unreachable("the answer was lost".to_owned()),
                false => answer,
            }
        };
        let delay = self.rng.range(MS, 30 * MS);
        self.at(delay, Event::Wire(Wire::Answered { run, ticket, answer }));
    }

    fn api_does(&mut self, request: StatusRequest) -> RequestResult {
        let name = request.name.1;
        let before = self.api().object(&name).cloned();
        let target = Target::object(PODS, key_of(&name));
        match request.ask {
            Ask::Patch(body) => {
                let target = Target::status(PODS, key_of(&name));
                let patch = ApiRequest::Patch { target, form: PatchForm::Strategic, body };
                let new = match self.api_handle(&patch) {
                    Ok(new) => new,
                    Err(error) => return failed(&error),
                };
                let before = before.expect("it was changed");
                let (old, phase) = (&before["status"]["phase"], &new["status"]["phase"]);
                assert!(!is_over(&before) || old == phase, "{name} left {old} for {phase}");
                RequestResult::Copy(Box::new(decoded(&new)))
            }
            Ask::Delete(uid) => {
                let options = DeleteOptions {
                    uid: Some(uid.as_str().to_owned()),
                    grace_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                match self.api_handle(&ApiRequest::Delete { target, options }) {
                    Ok(_) => self.api_completed(&uid, &before.expect("it was deleted")),
                    Err(error) if error.is_conflict() => {}
                    Err(error) => return failed(&error),
                }
                RequestResult::Deleted
            }
            Ask::Refetch if before.is_none() => RequestResult::Missing,
            Ask::Refetch => RequestResult::Copy(Box::new(self.api().pod(&name))),
            Ask::Mirror(of) => panic!("a mirror of {:?} in a world of API pods", of.metadata.name),
        }
    }

    /// The agent has deleted an object.
    fn api_completed(&mut self, uid: &PodUid, object: &Value) {
        let stays = !object["metadata"]["deletionTimestamp"].is_string();
        match stays && self.api().restored {
            // The request was made before the deletion was undone.
            true => {
                let name = object["metadata"]["name"].as_str().expect("a name");
                self.manifests.remove(name);
            }
            false => self.check_completed(uid, object),
        }
        self.api().completed += 1;
    }

    /// A pod leaves the API server when nothing of it runs and its end is known.
    fn check_completed(&self, uid: &PodUid, object: &Value) {
        assert!(is_over(object), "{uid} is deleted as {}", object["status"]["phase"]);
        assert!(object["metadata"]["deletionTimestamp"].is_string(), "{uid} was to stay");
        let mut of_pod = self.runtime.containers.values().filter(|c| c.uid == *uid);
        let runs = of_pod.any(|c| c.state == RunState::Running);
        assert!(!runs, "{uid} is deleted while it runs");
        for status in object["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let state = &status["state"];
            assert!(
                state["running"].is_null(),
                "{uid} is deleted with a running container: {state}"
            );
        }
    }

    /// Nothing is left to be written.
    pub fn api_settled(&self) -> bool {
        let Some(api) = &self.api else { return true };
        api.objects().all(|(_, object)| api.queue.is_settled(&uid_of(object)))
    }

    /// In the end the API server knows what the agent knows, and no deletion is left.
    pub fn api_converged(&self) {
        let Some(api) = &self.api else { return };
        let agent = self.agent.as_ref().expect("the agent lives");
        for (name, object) in api.objects() {
            let deleted = &object["metadata"]["deletionTimestamp"];
            assert!(deleted.is_null(), "{name} is still to be deleted: {object}");
            let uid = uid_of(object);
            assert!(api.queue.is_settled(&uid), "{name}: something is not written");
            let worker = agent.worker(&uid).unwrap_or_else(|| panic!("{name} has no worker"));
            let phase = worker.status().phase.as_deref();
            assert_eq!(
                object["status"]["phase"].as_str(),
                phase,
                "{name}: the phase is not written"
            );
        }
    }
}

/// An error as the agent's client classifies it, see `failed` in `agent/cluster/src/status`.
fn failed(error: &ApiError) -> RequestResult {
    match error.code {
        404 => RequestResult::Missing,
        409 => RequestResult::Conflict,
        400..=428 => RequestResult::Refused(error.message.clone()),
        _ => panic!("the API server fails: {error:?}"),
    }
}
