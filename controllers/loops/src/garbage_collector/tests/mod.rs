//! The collector against a small API server in memory, event by event.

mod coordinates;
mod graph;
mod items;
mod server;
mod worlds;

use std::collections::VecDeque;

use pintle_api_types::kind::{DEPLOYMENTS, NODES, PODS, SECRETS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::{Driven, drive};
use pintle_controllers_core::tables::{
    Change, Decoded, DiscoveredKind, DiscoveredKinds, WatchEvent,
};
use serde_json::{Value, json};

use super::*;
use crate::testing::at;
use server::GarbageServer;

/// The kinds of these tests; the last one is served, not preferred.
pub(super) fn kinds() -> [Kind; 6] {
    [PODS, NODES, SECRETS, DEPLOYMENTS, foos(), old_foos()]
}

/// A custom kind.
pub(super) fn foos() -> Kind {
    Kind::interned("example.com", "v1", "foos", "Foo", true)
}

/// An old version of it.
pub(super) fn old_foos() -> Kind {
    Kind::interned("example.com", "v1beta1", "foos", "Foo", true)
}

/// An object without owners.
pub(super) fn object(kind: Kind, namespace: &str, name: &str, uid: &str) -> Value {
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.kind,
        "metadata": {"name": name, "uid": uid}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

/// The object with one owner more.
pub(super) fn owned(mut object: Value, owner: &Value) -> Value {
    let reference = json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]});
    let references = &mut object["metadata"]["ownerReferences"];
    match references.as_array_mut() {
        Some(references) => references.push(reference),
        None => *references = json!([reference]),
    }
    object
}

/// The object, with all its references set to block the deletion of their owners.
pub(super) fn blocking(mut object: Value) -> Value {
    let references = object["metadata"]["ownerReferences"].as_array_mut().expect("owners");
    references.iter_mut().for_each(|known| known["blockOwnerDeletion"] = true.into());
    object
}

/// A collector, what it knows, and the API server.
pub(super) struct CollectorWorld {
    server: GarbageServer,
    pub(super) tables: Tables,
    pub(super) collector: GarbageCollector,
    pub(super) pending: VecDeque<NodeKey>,
    pub(super) events: Vec<String>,
}

impl CollectorWorld {
    /// Everything is discovered and listed.
    pub(super) fn new() -> Self {
        let mut world = Self::unlisted();
        let listed = kinds().into_iter().filter(|kind| *kind != old_foos());
        listed.for_each(|kind| world.list(kind));
        world
    }

    /// Everything is discovered, and nothing listed.
    pub(super) fn unlisted() -> Self {
        let mut world = Self {
            server: GarbageServer::default(),
            tables: Tables::default(),
            collector: GarbageCollector::new(1, Vec::new()),
            pending: VecDeque::new(),
            events: Vec::new(),
        };
        let verbs = ["list", "watch", "delete"].map(Symbol::of).to_vec();
        let found = kinds().into_iter().map(|kind| DiscoveredKind {
            kind,
            verbs: verbs.clone(),
            is_preferred: kind != old_foos(),
        });
        let discovery = DiscoveredKinds { kinds: found.collect(), ..DiscoveredKinds::default() };
        world.apply(WatchEvent::Discovered(discovery));
        world
    }

    /// A list of the kind that finds nothing new is complete.
    pub(super) fn list(&mut self, kind: Kind) {
        self.apply(WatchEvent::ListComplete(kind));
    }

    pub(super) fn apply(&mut self, event: WatchEvent) {
        for change in self.tables.apply(event) {
            self.change(&change);
        }
    }

    fn change(&mut self, change: &Change) {
        let mut wakes = Wakes::default();
        self.collector.handle_change(change, &self.tables, at(0), &mut wakes);
        self.wake(&wakes);
    }

    fn wake(&mut self, wakes: &Wakes<NodeKey>) {
        for (key, _) in wakes.waits() {
            if !self.pending.contains(key) {
                self.pending.push_back(key.clone());
            }
        }
    }

    /// A watch shows an object.
    pub(super) fn observe(&mut self, object: &Value) {
        self.apply(WatchEvent::Set(decoded(object)));
    }

    /// Applies a watch event that an object was deleted.
    pub(super) fn observe_gone(&mut self, object: &Value) {
        self.apply(WatchEvent::Deleted(decoded(object)));
    }

    /// Syncs the next key; returns its requests.
    pub(super) fn process(&mut self) -> Vec<String> {
        let key = self.pending.pop_front().expect("a key that waits");
        let Some(snapshot) = self.collector.snapshot(&key, &self.tables, at(0)) else {
            return Vec::new();
        };
        let driven: Driven<GraphFinding> =
            drive::<GarbageCollector>(&snapshot, at(0).wall, |request| self.server.answer(request));
        self.events.extend(driven.events.into_iter().map(|event| event.message));
        match driven.outcome {
            Err(_) => self.pending.push_back(key),
            Ok(outcome) => {
                for note in outcome.notes {
                    self.collector.remember(&key, note, at(0));
                }
                let mut wakes = Wakes::default();
                self.collector.wake_after_notes(&mut wakes);
                self.wake(&wakes);
            }
        }
        driven.requests.iter().map(describe).collect()
    }

    /// The UIDs that wait for their examination.
    pub(super) fn pending(&self) -> Vec<&str> {
        self.pending.iter().map(|key| key.uid.as_str()).collect()
    }

    /// The nodes of the graph; a question mark marks those that are virtual.
    pub(super) fn nodes(&self) -> Vec<String> {
        let graph = self.collector.graph.borrow();
        let nodes = graph.nodes().map(|node| {
            let (kind, namespace) = (&*node.identity.kind, &*node.identity.namespace);
            let mark = if node.is_virtual { "?" } else { "" };
            let version = &*node.identity.api_version;
            format!("{version} {kind} {namespace}/{}{mark}", &*node.identity.name)
        });
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable();
        nodes
    }
}

pub(super) fn kind_of(object: &Value) -> Kind {
    let is_it =
        |kind: &Kind| object["kind"] == kind.kind && object["apiVersion"] == kind.api_version();
    kinds().into_iter().find(is_it).expect("a kind of these tests")
}

pub(super) fn decoded(object: &Value) -> Decoded {
    Decoded::typed(kind_of(object), &object.to_string()).expect("a good object")
}

pub(super) fn describe(request: &Request) -> String {
    match request {
        Request::Read { target, .. } => format!("get {:?} {}", target.kind, target.key),
        Request::Delete { target, options } => {
            let manner = options.propagation.map_or("", |known| known.as_str());
            format!("delete {:?} {} {manner}", target.kind, target.key)
        }
        Request::Patch { target, form, .. } => {
            let form = format!("{form:?}").to_lowercase();
            format!("patch {:?} {} {form}", target.kind, target.key)
        }
        other => format!("{other:?}"),
    }
}
