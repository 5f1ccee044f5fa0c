//! The server: one value that answers requests.
//!
//! Input: an identity, a request and the time. Output: the answer of the real API server, and
//! events for watches. Owner: a test or a simulator; nothing here waits or fails by itself. Bounds:
//! history grows until [`Server::compact`]. Everything follows from the seed and the requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, Request, Target};
use pintle_api_types::rng::Rng;
use serde_json::{Value, json};

use crate::change::scale::ReplicasOwner;
use crate::change::status;
use crate::identity::Identity;
use crate::refusal::Refusal;
use crate::rights::Rights;
use crate::store::{Event, Store};
use crate::{below, canonical, defaults, errors, meta, rules};

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// An API server in memory.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) store: Store,
    pub(crate) rng: Rng,
    /// Objects that the next update changes in any case, see [`crate::create`].
    pub(crate) unsettled: BTreeSet<(Kind, ObjectKey)>,
    /// Owners of the replicas of workloads that were scaled.
    pub(crate) scaled: BTreeMap<(Kind, ObjectKey), ReplicasOwner>,
    rights: Arc<Rights>,
    refusals: Vec<Refusal>,
    /// Tokens issued so far.
    pub(crate) tokens: u64,
    /// Answers to paths that are no objects.
    paths: BTreeMap<String, Value>,
}

impl Server {
    /// A server without objects but the namespaces that every cluster has; the seed decides UIDs
    /// and generated names.
    pub fn new(seed: u64) -> Self {
        let mut server = Self::empty(seed);
        for name in NAMESPACES {
            let body = json!({"metadata": {"name": name}});
            let created = server.create(kind::NAMESPACES, "", &body, Timestamp::UNIX_EPOCH);
            created.expect("an empty server has no such namespace");
        }
        server
    }

    /// A server without any object.
    pub fn empty(seed: u64) -> Self {
        Self {
            store: Store::default(),
            rng: Rng::new(seed),
            unsettled: BTreeSet::new(),
            scaled: BTreeMap::new(),
            rights: Arc::new(Rights::upstream()),
            refusals: Vec::new(),
            tokens: 0,
            paths: BTreeMap::new(),
        }
    }

    /// Answers a request.
    pub fn handle(&mut self, identity: &Identity, request: &Request, now: Timestamp) -> Answer {
        self.rights.check(identity, request)?;
        if let Some(refusal) = self.refusals.iter_mut().find(|refusal| refusal.matches(request)) {
            refusal.count();
            return Err(refusal.error.clone());
        }
        self.answer(request, now)
    }

    fn answer(&mut self, request: &Request, now: Timestamp) -> Answer {
        match request {
            Request::Create { kind, namespace, below: None, body } => {
                match below::review(*kind, body) {
                    Some(answer) => Ok(answer),
                    None => self.create(*kind, namespace, body, now),
                }
            }
            Request::Create { kind, namespace, below: Some(below), body } => {
                self.create_below(*kind, namespace, below, body, now)
            }
            Request::Replace { target, body } => {
                check_path(target)?;
                self.replace(target, body, now)
            }
            Request::Patch { target, form, body } => {
                check_path(target)?;
                self.patch(target, form, body, now)
            }
            Request::Delete { target, options } => self.delete(target, options, now),
            Request::DeleteCollection { kind, namespace, propagation } => {
                self.delete_collection(*kind, namespace, *propagation, now)
            }
            Request::Read { target, only_metadata } => {
                check_path(target)?;
                self.read(target, *only_metadata)
            }
            Request::List { kind, namespace, labels, only_metadata } => {
                self.list(*kind, namespace, labels, *only_metadata)
            }
            Request::Get { path } => self.paths.get(path).cloned().ok_or_else(errors::no_such_path),
        }
    }

    /// Stores a state of an object.
    pub(crate) fn write(&mut self, kind: Kind, object: Value) -> Arc<Value> {
        let key = (kind, meta::key(&object));
        self.unsettled.remove(&key);
        self.store.write(kind, object)
    }

    /// Stores an object unchecked, as a restored backup brings it back: its UID and status stay.
    /// What it lacks is added: names, defaults, version, UID, creation time, the namespace.
    pub fn put(
        &mut self,
        kind: Kind,
        key: &ObjectKey,
        object: Value,
        now: Timestamp,
    ) -> Arc<Value> {
        let namespace = ObjectKey::new("", key.namespace());
        let has_namespace =
            key.namespace().is_empty() || self.store.object(kind::NAMESPACES, &namespace).is_some();
        if !has_namespace {
            let active = json!({"spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"}});
            self.put(kind::NAMESPACES, &namespace, active, now);
        }
        let mut object = object;
        meta::set(&mut object, "name", key.name().into());
        if kind.is_namespaced {
            meta::set(&mut object, "namespace", key.namespace().into());
        }
        let old = self.store.object(kind, key).map(Arc::clone);
        for (field, new) in [("uid", self.new_uid()), ("creationTimestamp", meta::time(now))] {
            if meta::text(&object, field).is_empty() {
                let kept = old.as_ref().map(|old| meta::text(old, field).to_owned());
                meta::set(&mut object, field, kept.unwrap_or(new).into());
            }
        }
        let rules = rules::of(kind);
        canonical::settle(kind, &rules, &mut object);
        defaults::apply(kind, &mut object);
        canonical::settle(kind, &rules, &mut object);
        self.write(kind, object)
    }

    /// Refuses requests from now on; the first refusal that matches a request decides.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusals.push(refusal);
    }

    /// Ends all refusals.
    pub fn refuse_nothing(&mut self) {
        self.refusals.clear();
    }

    /// Answers a path that is no object, such as a metrics API's, with this value.
    pub fn serve(&mut self, path: &str, answer: Value) {
        self.paths.insert(path.to_owned(), answer);
    }

    /// The version of the newest change: what a bookmark says to a watch that has all events.
    pub fn version(&self) -> u64 {
        self.store.version()
    }

    /// The events of a kind after a version.
    ///
    /// # Errors
    /// 410 when some of them are no longer kept.
    pub fn events_since(&self, kind: Kind, version: u64) -> Result<&[Event], ApiError> {
        let events = self.store.events_since(kind, version);
        events.ok_or_else(|| errors::expired(version, self.store.version()))
    }

    /// Forgets the events up to a version, so that watches from before it get 410.
    pub fn compact(&mut self, version: u64) {
        self.store.compact(version);
    }

    /// The stored state of an object, as no client is asked for.
    pub fn object(&self, kind: Kind, key: &ObjectKey) -> Option<&Arc<Value>> {
        self.store.object(kind, key)
    }

    /// The stored objects of a namespace, or of all when it is empty.
    pub fn objects<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Value>)> {
        self.store.objects(kind, namespace)
    }

    /// The kinds that objects were ever stored of.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.store.kinds()
    }

    /// The identities that have roles: the manager and its controllers.
    pub fn identities(&self) -> impl Iterator<Item = Identity> {
        self.rights.identities()
    }

    /// True if the table of roles has an identity.
    pub fn knows(&self, identity: &Identity) -> bool {
        self.rights.knows(identity)
    }
}

fn check_path(target: &Target) -> Result<(), ApiError> {
    let rules = rules::of(target.kind);
    match status::exists(target.kind, &rules, target.sub) {
        true => Ok(()),
        // Paths of custom resources are all there.
        false if rules.is_custom => Err(errors::not_found(target.kind, target.key.name())),
        false => Err(errors::no_such_path()),
    }
}
