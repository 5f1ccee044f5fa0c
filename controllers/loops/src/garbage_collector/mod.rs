//! Garbage collector: deletes objects without any remaining owner, and executes foreground and
//! orphaning deletions.
//!
//! Reads the metadata of every kind and discovery. Writes: deletions, owner references and
//! finalizers. Nothing is deleted upon the graph alone: the object and each of its owners are read
//! live, and a deletion names UID and version. While no list of a kind is complete, owners of this
//! kind count as present.
// k8s: pkg/controller/garbagecollector/garbagecollector.go

mod absent;
mod delete;
mod graph;
mod identity;
mod key;
mod mapper;
mod orphan;
mod partition;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use pintle_api_types::kind::Kind;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::meta::{Meta, Uid};
use pintle_controllers_core::tables::{Change, Tables};

use graph::{Graph, GraphTask};
pub use identity::ObjectIdentity;
pub use key::{NodeKey, NodeReason};
use mapper::Mapper;
pub use view::GraphView;

/// The state that one sync reads.
#[derive(Debug)]
pub enum NodeSnapshot {
    /// For [`NodeReason::Delete`].
    Delete(delete::GarbageCandidate),
    /// For [`NodeReason::Orphan`].
    Orphan(orphan::OrphaningOwner),
}

/// The findings of a sync.
#[derive(Debug)]
pub enum GraphFinding {
    /// No object has this identity.
    Gone(ObjectIdentity),
    /// No owner has this identity.
    Absent(ObjectIdentity),
    /// These nodes are to be examined.
    Wake(Vec<Uid>),
    /// An owner counts as present until this kind is listed.
    Unlisted(Kind),
    /// The API server has no kind that an owner has.
    Unmapped,
}

/// The controller.
#[derive(Debug)]
pub struct GarbageCollector {
    workers: usize,
    /// Groups and plurals that are not followed.
    ignored: Vec<(String, String)>,
    graph: Rc<RefCell<Graph>>,
    mapper: Rc<Mapper>,
    unlisted: Rc<BTreeSet<Kind>>,
    names: HashMap<Kind, KindNames>,
    /// Keys that wait for the list of a kind.
    waiting: BTreeMap<Kind, BTreeSet<NodeKey>>,
    /// Keys that wait for a kind to be discovered.
    unmapped: BTreeSet<NodeKey>,
    /// Owners that are only queued because no watch had shown them, and were not examined yet.
    unverified: BTreeSet<Uid>,
    woken: Vec<NodeKey>,
}

/// How objects name their kind.
#[derive(Clone, Debug)]
struct KindNames {
    api_version: Symbol,
    kind: Symbol,
}

impl GarbageCollector {
    /// A collector with `--concurrent-gc-syncs` workers; `ignored` are groups and plurals of
    /// resources that have no part in it, events aside.
    pub fn new(workers: usize, mut ignored: Vec<(String, String)>) -> Self {
        // k8s: graph_builder.go DefaultIgnoredResources
        for group in ["", "events.k8s.io"] {
            ignored.push((group.to_owned(), "events".to_owned()));
        }
        Self {
            workers,
            ignored,
            graph: Rc::default(),
            mapper: Rc::default(),
            unlisted: Rc::default(),
            names: HashMap::new(),
            waiting: BTreeMap::new(),
            unmapped: BTreeSet::new(),
            unverified: BTreeSet::new(),
            woken: Vec::new(),
        }
    }

    /// The view of the graph for debug endpoints.
    pub fn view(&self) -> GraphView {
        GraphView::new(Rc::clone(&self.graph))
    }

    fn names(&mut self, kind: Kind) -> KindNames {
        let make = || KindNames {
            api_version: Symbol::of(&kind.api_version()),
            kind: Symbol::of(kind.kind),
        };
        self.names.entry(kind).or_insert_with(make).clone()
    }

    /// Applies a change of one object to the graph.
    fn apply(&mut self, kind: Kind, change: &Change, tables: &Tables) {
        let names = self.names(kind);
        let identity = |meta: &Meta| ObjectIdentity::of(&names.api_version, &names.kind, meta);
        let mut graph = self.graph.borrow_mut();
        // Objects of a dropped kind were not deleted: another version may be watched next.
        let is_followed = tables.version(kind).is_some();
        let (old, new) = (change.old_meta(), change.new_meta());
        // An object that was recreated between two lists is another one.
        let same = old.filter(|old| new.is_some_and(|new| new.uid == old.uid));
        if let (Some(old), None) = (old, same) {
            match is_followed {
                true => graph.remove(&identity(old)),
                false => graph.forget(&identity(old)),
            }
        }
        let Some(new) = new else { return };
        let is_known = graph.get(&new.uid).is_some_and(|node| !node.is_virtual);
        if is_known && same.is_some_and(|old| is_same(old, new)) {
            return;
        }
        graph.set(identity(new), same, new);
    }

    fn wake_tasks(&mut self, wake: &mut Wakes<NodeKey>) {
        self.woken.drain(..).for_each(|key| wake.now(key));
        let tasks = self.graph.borrow_mut().take_tasks();
        for task in tasks {
            match task {
                GraphTask::Verify(uid) => {
                    self.unverified.insert(uid.clone());
                    wake.now(self.key(uid, NodeReason::Delete));
                }
                GraphTask::Delete(uid) => {
                    self.unverified.remove(&uid);
                    wake.now(self.key(uid, NodeReason::Delete));
                }
                GraphTask::DeleteLater(uid) => wake.backoff(self.key(uid, NodeReason::Delete)),
                GraphTask::Orphan(uid) => wake.now(self.key(uid, NodeReason::Orphan)),
            }
        }
    }

    fn key(&self, uid: Uid, reason: NodeReason) -> NodeKey {
        let graph = self.graph.borrow();
        let namespace = graph.get(&uid).map(|node| node.identity.namespace.clone());
        NodeKey { uid, reason, namespace: namespace.unwrap_or_default() }
    }

    /// The node was queued as an owner that might not exist, and a watch has shown it since. At a
    /// start these are all owners that are listed after their dependents: a read of each would
    /// delay every cascade behind it by the limit of requests.
    fn is_verified(&self, uid: &Uid) -> bool {
        self.unverified.contains(uid)
            && self.graph.borrow().get(uid).is_none_or(|node| !node.is_virtual)
    }

    /// The resource of a node; none when the key has to wait for it.
    fn map(&mut self, key: &NodeKey, identity: &ObjectIdentity) -> Option<Kind> {
        let Some(mapped) = self.mapper.find(&identity.api_version, &identity.kind) else {
            self.unmapped.insert(key.clone());
            return None;
        };
        Some(mapped.kind)
    }
}

/// True if nothing that the graph reads has changed.
fn is_same(old: &Meta, new: &Meta) -> bool {
    old.owner_references == new.owner_references
        && old.finalizers == new.finalizers
        && old.is_deleting() == new.is_deleting()
}

impl Controller for GarbageCollector {
    type Key = NodeKey;
    type Snapshot = NodeSnapshot;
    type Note = GraphFinding;

    const NAME: &'static str = "garbage-collector-controller";

    /// No kind must be listed before it starts, because it handles each kind on its own.
    fn kinds(&self) -> Vec<Kind> {
        Vec::new()
    }

    fn reads_all_metadata(&self) -> bool {
        true
    }

    // Upstream has as many workers for deletions as for orphans.
    fn workers(&self) -> usize {
        self.workers * 2
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        _: Now,
        wake: &mut Wakes<NodeKey>,
    ) {
        match (change, change.kind()) {
            (Change::Discovered, _) => {
                self.mapper = Rc::new(Mapper::new(&tables.discovery, &self.ignored));
                self.unlisted = Rc::new(self.mapper.unlisted(tables));
                self.woken.extend(std::mem::take(&mut self.unmapped));
                // A kind that is not followed any more will not be listed.
                let is_listed = |kind: &Kind| !self.unlisted.contains(kind);
                let waiting = std::mem::take(&mut self.waiting);
                let (ready, waiting) = waiting.into_iter().partition(|(kind, _)| is_listed(kind));
                self.waiting = waiting;
                let ready: BTreeMap<Kind, BTreeSet<NodeKey>> = ready;
                self.woken.extend(ready.into_values().flatten());
            }
            (Change::Listed(kind), _) => {
                self.unlisted = Rc::new(self.mapper.unlisted(tables));
                self.woken.extend(self.waiting.remove(kind).unwrap_or_default());
            }
            (_, Some(kind)) => {
                let is_ignored =
                    self.ignored.iter().any(|(g, p)| (&**g, &**p) == (kind.group, kind.plural));
                // A part of a kind that is followed twice.
                if kind.fields.is_empty() && !is_ignored {
                    self.apply(kind, change, tables);
                }
            }
            _ => {}
        }
        let is_synced = !self.mapper.is_empty() && self.unlisted.is_empty();
        self.graph.borrow_mut().is_synced = is_synced;
        self.wake_tasks(wake);
    }

    // k8s: pkg/controller/garbagecollector/dump.go ServeHTTP; the other two pages are ours.
    fn debug_page(&self, page: &str, uids: &[&str]) -> Option<String> {
        let view = self.view();
        match page {
            "graph" => Some(view.to_dot(uids)),
            "nodes" => {
                let known: Vec<_> = uids.iter().copied().filter(|uid| view.has_uid(uid)).collect();
                Some(known.join("\n") + "\n")
            }
            "synced" => Some(format!("{}\n", view.is_synced())),
            _ => None,
        }
    }

    fn snapshot(&mut self, key: &NodeKey, _: &Tables, _: Now) -> Option<NodeSnapshot> {
        let uid = &key.uid;
        if key.reason == NodeReason::Delete && self.is_verified(uid) {
            self.unverified.remove(uid);
            return None;
        }
        let identity = self.graph.borrow().get(uid)?.identity.clone();
        let kind = self.map(key, &identity)?;
        let graph = Rc::clone(&self.graph);
        let mut graph = graph.borrow_mut();
        if key.reason == NodeReason::Orphan {
            return Some(NodeSnapshot::Orphan(orphan::OrphaningOwner::gather(
                uid,
                kind,
                &graph,
                &self.mapper,
            )?));
        }
        let item = delete::GarbageCandidate::gather(uid, kind, &mut graph, self)?;
        if item.is_virtual
            && let Some(kind) = item.unlisted_kind()
        {
            self.waiting.entry(kind).or_default().insert(key.clone());
            return None;
        }
        self.unverified.remove(uid);
        Some(NodeSnapshot::Delete(item))
    }

    fn sync(
        snapshot: &NodeSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<GraphFinding>, TranscriptStop> {
        let notes = match snapshot {
            NodeSnapshot::Delete(item) => delete::attempt(item, transcript)?,
            NodeSnapshot::Orphan(owner) => orphan::attempt(owner, transcript)?,
        };
        Ok(SyncOutcome::new(None, notes))
    }

    fn remember(&mut self, key: &NodeKey, note: GraphFinding, _: Now) {
        match note {
            GraphFinding::Gone(identity) => self.graph.borrow_mut().remove_absent(&identity),
            GraphFinding::Absent(identity) => self.graph.borrow_mut().add_absent(identity),
            GraphFinding::Wake(uids) => {
                for uid in uids {
                    self.unverified.remove(&uid);
                    let key = self.key(uid, NodeReason::Delete);
                    self.woken.push(key);
                }
            }
            GraphFinding::Unlisted(kind) if self.unlisted.contains(&kind) => {
                self.waiting.entry(kind).or_default().insert(key.clone());
            }
            // It was listed meanwhile.
            GraphFinding::Unlisted(_) => self.woken.push(key.clone()),
            GraphFinding::Unmapped => {
                self.unmapped.insert(key.clone());
            }
        }
    }

    fn wake_after_notes(&mut self, wake: &mut Wakes<NodeKey>) {
        self.wake_tasks(wake);
    }
}
