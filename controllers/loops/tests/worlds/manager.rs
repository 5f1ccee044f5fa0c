//! A controller manager in a world: the frame, what its watches have delivered, and its requests.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use jiff::tz::TimeZone;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, ApiError, Request};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Frame, FrameEffect, MANAGER, Now, ObjectEvent, Ticket};
use pintle_controllers_core::kinds::{ReplicaSet, ReplicationController};
use pintle_controllers_core::tables::{Decoded, DiscoveredKind, DiscoveredKinds, WatchEvent};
use pintle_controllers_loops::cron_job::CronJobController;
use pintle_controllers_loops::daemon_set::DaemonSets;
use pintle_controllers_loops::deployment::DeploymentController;
use pintle_controllers_loops::garbage_collector::GarbageCollector;
use pintle_controllers_loops::job::JobController;
use pintle_controllers_loops::namespace::Namespaces;
use pintle_controllers_loops::replica_set::ReplicaController;
use pintle_controllers_loops::resource_quota::ResourceQuotas;
use pintle_controllers_loops::root_ca::RootCaPublisher;
use pintle_controllers_loops::service_account::ServiceAccounts;
use pintle_controllers_loops::service_account_token::{ServiceAccountTokens, TokenSigner};
use pintle_controllers_loops::stateful_set::StatefulSets;
use pintle_controllers_loops::ttl_after_finished::TtlAfterFinished;
use pintle_memory_api::{Change, Identity, Server};
use serde_json::{Value, json};

/// A request under way.
pub(crate) struct ManagerRequest {
    pub(crate) ticket: Ticket,
    pub(crate) controller: &'static str,
    pub(crate) request: Request,
    pub(crate) at: usize,
    /// The versions that the manager knew when it decided.
    pub(crate) known: BTreeMap<Kind, u64>,
}

/// A ticket's answers so far.
struct Waiting {
    answers: Vec<Option<Answer>>,
}

pub(crate) struct Daemon {
    pub(crate) frame: Frame,
    /// The version up to which events were delivered; none before the first list.
    pub(crate) delivered: BTreeMap<Kind, Option<u64>>,
    pub(crate) calls: Vec<ManagerRequest>,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Syncs that failed, for messages.
    pub(crate) failures: Vec<String>,
    /// Events in their order, by the controller that reports them.
    pub(crate) events: Vec<(&'static str, ObjectEvent)>,
}

/// All controllers.
fn frame() -> Frame {
    let mut frame = Frame::default();
    frame.add(DeploymentController { workers: 5 });
    frame.add(ReplicaController::<ReplicaSet>::new(5));
    frame.add(ReplicaController::<ReplicationController>::new(5));
    frame.add(StatefulSets { workers: 5, has_max_unavailable: false });
    frame.add(DaemonSets::new(2));
    frame.add(JobController::new(5));
    frame.add(CronJobController::new(5, TimeZone::UTC));
    frame.add(TtlAfterFinished { workers: 5 });
    frame.add(GarbageCollector::new(20, Vec::new()));
    frame.add(Namespaces::new(10, true));
    frame.add(ServiceAccounts::default());
    frame.add(RootCaPublisher { root_ca: "a certificate".into() });
    frame.add(ServiceAccountTokens {
        workers: 5,
        signer: Rc::new(signer()),
        root_ca: b"a certificate".as_slice().into(),
    });
    frame.add(ResourceQuotas::new(5, Duration::from_secs(300), true));
    frame
}

impl Daemon {
    pub(crate) fn new() -> Self {
        let frame = frame();
        let delivered = frame.kinds().into_iter().map(|kind| (kind, None)).collect();
        let (calls, waiting) = (Vec::new(), BTreeMap::new());
        Self { frame, delivered, calls, waiting, failures: Vec::new(), events: Vec::new() }
    }

    /// Kinds of which something is to be delivered.
    pub(crate) fn late(&self, server: &Server) -> Vec<Kind> {
        let is_late = |kind: Kind, delivered: Option<u64>| match delivered {
            None => true,
            Some(version) => {
                let new = server.events_since(stored(kind), version);
                new.is_ok_and(|new| !new.is_empty())
            }
        };
        let late = self.delivered.iter().filter(|(kind, at)| is_late(**kind, **at));
        late.map(|(kind, _)| *kind).collect()
    }

    /// Delivers the next event of a kind, or its first list.
    pub(crate) fn deliver(&mut self, kind: Kind, server: &Server, now: Now) {
        let only_metadata = !self.frame.kinds().contains(&kind);
        let decode = |object: &serde_json::Value| {
            let text = object.to_string();
            let decoded = match only_metadata {
                true => Decoded::only_metadata(kind, &text),
                false => Decoded::typed(kind, &text),
            };
            decoded.expect("the server's objects can be read")
        };
        let Some(version) = self.delivered[&kind] else {
            self.frame.apply(WatchEvent::ListBegun(kind), now);
            let followed = server.objects(stored(kind), "");
            for (_, object) in followed.filter(|(_, object)| is_followed(kind, object)) {
                self.frame.apply(WatchEvent::Listed(decode(object)), now);
            }
            self.frame.apply(WatchEvent::ListComplete(kind), now);
            self.frame.apply(WatchEvent::Version(kind, server.version()), now);
            self.delivered.insert(kind, Some(server.version()));
            return;
        };
        let events = server.events_since(stored(kind), version).expect("nothing is compacted");
        let Some(event) = events.first() else { return };
        self.delivered.insert(kind, Some(event.version));
        if !is_followed(kind, &event.object) {
            self.frame.apply(WatchEvent::Version(kind, event.version), now);
            return;
        }
        let object = decode(&event.object);
        let event = match event.change {
            Change::Added | Change::Modified => WatchEvent::Set(object),
            Change::Deleted => WatchEvent::Deleted(object),
        };
        self.frame.apply(event, now);
    }

    /// Reports the kinds that the server serves, whether or not it has objects; follows those that
    /// only metadata is read of.
    pub(crate) fn discover(&mut self, server: &Server, now: Now) {
        let verbs =
            ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let verbs: Vec<_> = verbs.iter().map(|verb| Symbol::of(verb)).collect();
        let whole = Kind::all_known().filter(|kind| kind.fields.is_empty());
        let served: BTreeSet<_> = whole.chain(server.kinds()).collect();
        let kinds = served.into_iter().map(|kind| DiscoveredKind {
            kind,
            verbs: verbs.clone(),
            is_preferred: true,
        });
        let discovery = DiscoveredKinds { kinds: kinds.collect(), ..DiscoveredKinds::default() };
        if self.frame.reads_all_metadata() {
            for found in &discovery.kinds {
                self.delivered.entry(found.kind).or_insert(None);
            }
        }
        self.frame.apply(WatchEvent::Discovered(discovery), now);
    }

    /// Lets the frame decide; keeps its requests.
    pub(crate) fn turn(&mut self, now: Now) {
        for order in self.frame.turn(now) {
            match order {
                FrameEffect::Send { ticket, controller, requests } => {
                    let answers = requests.iter().map(|_| None).collect();
                    self.waiting.insert(ticket, Waiting { answers });
                    let known = self.delivered.iter();
                    let known: BTreeMap<_, _> =
                        known.map(|(kind, at)| (*kind, at.unwrap_or(0))).collect();
                    let requests = requests.into_iter().map(unfiltered);
                    for (at, request) in requests.enumerate() {
                        let known = known.clone();
                        self.calls.push(ManagerRequest { ticket, controller, request, at, known });
                    }
                }
                FrameEffect::Emit { controller, event } => self.events.push((controller, event)),
                FrameEffect::Decided { .. } => {}
                FrameEffect::Failed { controller, key, message, .. } => {
                    self.failures.push(format!("{controller} {key}: {message}"));
                }
            }
        }
    }

    /// A request was answered, or its answer was lost.
    pub(crate) fn answer(&mut self, call: &ManagerRequest, answer: Option<Answer>, now: Now) {
        let lost =
            || Err(ApiError { message: "connection lost".to_owned(), ..ApiError::default() });
        let waiting = self.waiting.get_mut(&call.ticket).expect("it waits");
        let answer = answer.map(|answer| answer.map(|object| as_asked(&call.request, object)));
        waiting.answers[call.at] = Some(answer.unwrap_or_else(lost));
        if waiting.answers.iter().all(Option::is_some) {
            let waiting = self.waiting.remove(&call.ticket).expect("it waits");
            let answers = waiting.answers.into_iter().flatten().collect();
            self.frame.answer(call.ticket, answers, now);
        }
    }
}

/// The part of an object that the API server returns for this request.
fn as_asked(request: &Request, mut object: Value) -> Value {
    let is_whole = matches!(request, Request::Read { .. } | Request::List { .. });
    if request.wants_only_metadata() && !is_whole && object["kind"] != "Status" {
        object = json!({"metadata": object["metadata"].take()});
    }
    object
}

/// The kind under which the server has the objects of a kind of which only some are followed.
fn stored(kind: Kind) -> Kind {
    Kind::interned(kind.group, kind.version, kind.plural, kind.kind, kind.is_namespaced)
}

/// True if the field selector of a kind matches an object.
fn is_followed(kind: Kind, object: &serde_json::Value) -> bool {
    let Some((path, value)) = kind.fields.split_once('=') else { return true };
    path.split('.').fold(object, |part, field| &part[field]) == value
}

/// A request as its path says it: a field selector is no part of it.
fn unfiltered(mut request: Request) -> Request {
    let kind = match &mut request {
        Request::Create { kind, .. } | Request::List { kind, .. } => kind,
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. }
        | Request::Read { target, .. } => &mut target.kind,
        _ => return request,
    };
    *kind = stored(*kind);
    request
}

/// A signer with a key of its own.
fn signer() -> TokenSigner {
    let random = ring::rand::SystemRandom::new();
    let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = ring::signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    let text = base64::engine::general_purpose::STANDARD.encode(key.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    TokenSigner::from_pem(&pem).expect("a key that can be used")
}

/// The identity of a controller's requests.
pub(crate) fn identity(controller: &'static str) -> Identity {
    Identity::Controller(match controller {
        "daemonset-controller" => "daemon-set-controller",
        "garbage-collector-controller" => "generic-garbage-collector",
        "replicationcontroller-controller" => "replication-controller",
        "root-ca-certificate-publisher-controller" => "root-ca-cert-publisher",
        "serviceaccount-controller" => "service-account-controller",
        MANAGER | "serviceaccount-token-controller" => return Identity::Manager,
        name => name,
    })
}
