//! An API server in memory, and a frame that gets its answers at once.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    CONFIG_MAPS, DEPLOYMENTS, Kind, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, PODS, REPLICA_SETS,
    RESOURCE_QUOTAS, ROOT_CA_CONFIG_MAPS, SERVICE_ACCOUNTS, SERVICES,
};
use pintle_api_types::request::{ApiError, DeleteOptions, PatchForm, Propagation, Request, Target};
use pintle_api_types::rng::Rng;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Frame, FrameEffect, MANAGER, Now};
use pintle_controllers_core::tables::{Decoded, DiscoveredKind, DiscoveredKinds, WatchEvent};
use pintle_controllers_loops::garbage_collector::GarbageCollector;
use pintle_controllers_loops::namespace::Namespaces;
use pintle_controllers_loops::resource_quota::ResourceQuotas;
use pintle_controllers_loops::root_ca::RootCaPublisher;
use pintle_controllers_loops::service_account::ServiceAccounts;
use pintle_controllers_loops::shadow::ShadowFirst;
use pintle_memory_api::{Change, Identity, Server};
use serde_json::{Value, json};

/// Turns after which a cluster that still moves has failed.
const TURNS_MAX: usize = 2000;
const KINDS: [Kind; 9] = [
    PODS,
    NAMESPACES,
    CONFIG_MAPS,
    SERVICE_ACCOUNTS,
    RESOURCE_QUOTAS,
    SERVICES,
    PERSISTENT_VOLUME_CLAIMS,
    DEPLOYMENTS,
    REPLICA_SETS,
];

/// A server, a frame, and the time.
pub(crate) struct MetadataCluster {
    server: Server,
    frame: Frame,
    delivered: BTreeMap<Kind, u64>,
    now: Now,
    /// Syncs that failed aloud.
    pub(crate) failures: Vec<String>,
    /// Some controllers are in shadow first.
    first: Option<ShadowFirst>,
    faults: Option<Rng>,
    /// Kinds with a silent watch.
    silent: BTreeSet<Kind>,
    /// Answers that were lost.
    pub(crate) lost: usize,
    /// Live reads of the garbage collector.
    pub(crate) collector_reads: usize,
}

impl MetadataCluster {
    pub(crate) fn new() -> Self {
        let mut frame = Frame::default();
        frame.add(Namespaces::new(2, true));
        frame.add(GarbageCollector::new(20, Vec::new()));
        frame.add(ServiceAccounts::default());
        frame.add(RootCaPublisher { root_ca: Rc::from("ca") });
        frame.add(ResourceQuotas::new(5, Duration::from_secs(300), false));
        let wall: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let now = Now { instant: Instant::now(), wall };
        let server = Server::new(1);
        let mut cluster = Self {
            server,
            frame,
            delivered: BTreeMap::new(),
            now,
            failures: Vec::new(),
            first: None,
            faults: None,
            silent: BTreeSet::new(),
            lost: 0,
            collector_reads: 0,
        };
        let verbs = ["create", "delete", "deletecollection", "list", "watch"].map(Symbol::of);
        let kinds =
            KINDS.map(|kind| DiscoveredKind { kind, verbs: verbs.to_vec(), is_preferred: true });
        let discovery = DiscoveredKinds { kinds: kinds.to_vec(), ..DiscoveredKinds::default() };
        cluster.frame.apply(WatchEvent::Discovered(discovery), now);
        cluster
    }

    /// Has the controllers that delete wait in shadow for this long.
    pub(crate) fn begin_in_shadow(&mut self, wait: Duration) {
        self.first = ShadowFirst::begin(&mut self.frame, wait, self.now);
        assert!(self.first.is_some());
    }

    /// They act.
    pub(crate) fn is_acting(&self) -> bool {
        self.first.is_none()
    }

    /// From now on answers are lost, and watches lag behind.
    pub(crate) fn begin_faults(&mut self, seed: u64) {
        self.faults = Some(Rng::new(seed));
    }

    /// Ends the injection of faults.
    pub(crate) fn end_faults(&mut self) {
        self.faults = None;
    }

    /// From now on the watch of a kind shows nothing.
    pub(crate) fn silence(&mut self, kind: Kind) {
        self.silent.insert(kind);
    }

    /// Watches show everything again.
    pub(crate) fn end_silence(&mut self) {
        self.silent.clear();
    }

    /// The rarer it is, the larger the number.
    fn is_fault(&mut self, one_of: u64) -> bool {
        self.faults.as_mut().is_some_and(|rng| rng.range(0, one_of) == 0)
    }

    /// Does what a user asks for.
    fn ask(&mut self, request: &Request) -> Value {
        let answer = self.server.handle(&Identity::Admin, request, self.now.wall);
        answer.unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    pub(crate) fn create(&mut self, kind: Kind, namespace: &str, mut body: Value) -> Value {
        body["apiVersion"] = kind.api_version().into();
        body["kind"] = kind.kind.into();
        self.ask(&Request::Create { kind, namespace: namespace.to_owned(), below: None, body })
    }

    pub(crate) fn delete(
        &mut self,
        kind: Kind,
        namespace: &str,
        name: &str,
        propagation: Option<Propagation>,
    ) {
        let target = Target::object(kind, ObjectKey::new(namespace, name));
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        self.ask(&Request::Delete { target, options });
    }

    /// Takes all finalizers off an object.
    pub(crate) fn unfinalize(&mut self, kind: Kind, namespace: &str, name: &str) {
        self.patch(kind, namespace, name, json!({"metadata": {"finalizers": null}}));
    }

    pub(crate) fn patch(&mut self, kind: Kind, namespace: &str, name: &str, body: Value) {
        let target = Target::object(kind, ObjectKey::new(namespace, name));
        self.ask(&Request::Patch { target, form: PatchForm::Merge, body });
    }

    pub(crate) fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        self.server.object(kind, &ObjectKey::new(namespace, name)).map(|object| &**object)
    }

    /// Runs until nothing is left to do within this time.
    pub(crate) fn settle(&mut self, time: Duration) {
        let end = self.now.instant + time;
        for _ in 0..TURNS_MAX {
            self.deliver();
            let orders = self.turn();
            if orders.is_empty() {
                // Short waits are no time at all.
                let soon = end.max(self.now.instant + Duration::from_millis(100));
                let held = self.first.as_ref().and_then(ShadowFirst::due);
                // In shadow differences are looked for now and then.
                let look = self.first.as_ref().map(|_| self.now.instant + Duration::from_secs(1));
                let dues = self.frame.next_due().into_iter().chain(held).chain(look);
                let due = dues.min().filter(|due| *due <= soon);
                let passed = due.unwrap_or(end).saturating_duration_since(self.now.instant);
                self.now.instant += passed;
                self.now.wall += passed;
                if due.is_none() {
                    return;
                }
            }
            orders.into_iter().for_each(|order| self.execute(order));
        }
        panic!("the cluster does not come to rest: {:?}", self.failures);
    }

    fn turn(&mut self) -> Vec<FrameEffect> {
        let mut orders = self.turn_once();
        // As in the process: what was decided is compared first.
        if let Some(first) = &mut self.first {
            if first.end_if_clean(&mut self.frame, self.now) {
                self.first = None;
            }
            orders.extend(self.turn_once());
        }
        orders
    }

    fn turn_once(&mut self) -> Vec<FrameEffect> {
        match &mut self.first {
            Some(first) => first.turn(&mut self.frame, self.now),
            None => self.frame.turn(self.now),
        }
    }

    fn apply(&mut self, event: WatchEvent) {
        let changes = self.frame.apply(event, self.now);
        if let Some(first) = &mut self.first {
            first.note(&changes, &self.frame, self.now);
        }
    }

    fn execute(&mut self, order: FrameEffect) {
        match order {
            FrameEffect::Send { ticket, controller, requests } => {
                let identity = identity(controller);
                if controller == "garbage-collector-controller" {
                    let is_read = |one: &&Request| matches!(one, Request::Read { .. });
                    self.collector_reads += requests.iter().filter(is_read).count();
                }
                let answers = requests.into_iter().map(|request| {
                    let is_lost = self.is_fault(12);
                    self.lost += usize::from(is_lost);
                    if is_lost && self.is_fault(2) {
                        return Err(ApiError::default());
                    }
                    let answer = self.server.handle(&identity, &unfiltered(request), self.now.wall);
                    if is_lost { Err(ApiError::default()) } else { answer }
                });
                let answers = answers.collect();
                self.frame.answer(ticket, answers, self.now);
            }
            FrameEffect::Failed { message, is_quiet: false, controller, .. } => {
                self.failures.push(format!("{controller}: {message}"));
            }
            _ => {}
        }
    }

    /// Delivers all that watches have to show.
    fn deliver(&mut self) {
        let typed: BTreeSet<Kind> = self.frame.kinds().into_iter().collect();
        let kinds: BTreeSet<Kind> = typed.iter().copied().chain(KINDS).collect();
        for kind in kinds {
            if self.is_fault(2) || self.silent.contains(&kind) {
                continue;
            }
            let stored = if kind == ROOT_CA_CONFIG_MAPS { CONFIG_MAPS } else { kind };
            let is_meant =
                |object: &Value| kind == stored || object["metadata"]["name"] == "kube-root-ca.crt";
            let decoded = |object: &Value| {
                let text = object.to_string();
                let decoded = match typed.contains(&kind) {
                    true => Decoded::typed(kind, &text),
                    false => Decoded::only_metadata(kind, &text),
                };
                decoded.expect("the server's objects can be read")
            };
            let Some(version) = self.delivered.get(&kind).copied() else {
                self.apply(WatchEvent::ListBegun(kind));
                let all = self.server.objects(stored, "").map(|(_, object)| object);
                let all: Vec<_> =
                    all.filter(|object| is_meant(object)).map(|one| decoded(one)).collect();
                all.into_iter().for_each(|one| self.apply(WatchEvent::Listed(one)));
                self.apply(WatchEvent::ListComplete(kind));
                self.delivered.insert(kind, self.server.version());
                continue;
            };
            let events = self.server.events_since(stored, version).expect("all are kept");
            let events = events.iter().filter(|event| is_meant(&event.object));
            let events: Vec<_> = events
                .map(|event| match event.change {
                    Change::Added | Change::Modified => WatchEvent::Set(decoded(&event.object)),
                    Change::Deleted => WatchEvent::Deleted(decoded(&event.object)),
                })
                .collect();
            events.into_iter().for_each(|event| self.apply(event));
            let version = self.server.version();
            self.apply(WatchEvent::Version(kind, version));
            self.delivered.insert(kind, version);
        }
    }
}

/// A request as its path says it: a field selector is no part of it.
fn unfiltered(mut request: Request) -> Request {
    let kind = match &mut request {
        Request::Create { kind, .. } => kind,
        Request::Replace { target, .. } => &mut target.kind,
        _ => return request,
    };
    if *kind == ROOT_CA_CONFIG_MAPS {
        *kind = CONFIG_MAPS;
    }
    request
}

fn identity(controller: &'static str) -> Identity {
    Identity::Controller(match controller {
        "garbage-collector-controller" => "generic-garbage-collector",
        "root-ca-certificate-publisher-controller" => "root-ca-cert-publisher",
        "serviceaccount-controller" => "service-account-controller",
        MANAGER => return Identity::Manager,
        name => name,
    })
}
