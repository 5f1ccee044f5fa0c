//! ReplicaSets and ReplicationControllers: keep a number of pods of a template.
//!
//! One core for both kinds, as upstream has: [`Replicated`] is what differs. Reads the sets and
//! pods. Writes: creations, deletions, adoptions and releases of pods, and the sets' status.
//! Bounds: `BURST_MAX` pods a sync. Upstream waits for expected pods and, after five minutes, acts
//! regardless; here the frame's fence waits until the tables show what was written, so that a slow
//! watch never leads to more pods than wanted.
// k8s: pkg/controller/replicaset/replica_set.go, pkg/controller/replication

mod handlers;
mod manage;
mod status;
mod sync;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, PODS};
use pintle_controllers_core::common::ranking::PodsByNode;
use pintle_controllers_core::frame::{
    BATCH_MAX, Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::{Facts, KeptObject};
use pintle_controllers_core::kinds::{
    Pod, ReplicaSet, ReplicaSpec, ReplicaStatus, ReplicationController,
};
use pintle_controllers_core::meta::{Meta, OwnerReference};
use pintle_controllers_core::tables::{Change, Delta, Table, Tables};

/// Pods that one sync creates or deletes, at most.
// k8s: pkg/controller/replicaset/replica_set.go BurstReplicas
pub const BURST_MAX: usize = 500;
const _: () = assert!(BURST_MAX <= BATCH_MAX, "all deletions of a sync are sent at once");

/// A kind of objects that keep a number of pods.
pub trait Replicated: Facts {
    /// The controller's name.
    const NAME: &'static str;
    /// The status has a count of terminating pods.
    const COUNTS_TERMINATING: bool;

    /// The kind's table.
    fn table(tables: &Tables) -> &Table<KeptObject<Self>>;
    /// The change, when it is one of the kind.
    fn delta(change: &Change) -> Option<&Delta<KeptObject<Self>>>;
    /// The desired state.
    fn spec(&self) -> &ReplicaSpec;
    /// The observed state.
    fn status(&self) -> &ReplicaStatus;
}

macro_rules! replicated {
    ($kind:ident, $table:ident, $name:literal, counts_terminating: $counts:literal) => {
        impl Replicated for $kind {
            const NAME: &'static str = $name;
            const COUNTS_TERMINATING: bool = $counts;

            fn table(tables: &Tables) -> &Table<KeptObject<Self>> {
                &tables.$table
            }
            fn delta(change: &Change) -> Option<&Delta<KeptObject<Self>>> {
                match change {
                    Change::$kind(delta) => Some(delta),
                    _ => None,
                }
            }
            fn spec(&self) -> &ReplicaSpec {
                &self.spec
            }
            fn status(&self) -> &ReplicaStatus {
                &self.status
            }
        }
    };
}

replicated!(ReplicaSet, replica_sets, "replicaset-controller", counts_terminating: true);
// The kind's API has no count of terminating pods.
replicated!(
    ReplicationController,
    replication_controllers,
    "replicationcontroller-controller",
    counts_terminating: false
);

/// The controller of one of both kinds.
#[derive(Debug)]
pub struct ReplicaController<W> {
    /// `--concurrent-replicaset-syncs` or `--concurrent-rc-syncs`.
    pub workers: usize,
    kind: PhantomData<W>,
}

impl<W> ReplicaController<W> {
    /// A controller with this many syncs at once.
    pub fn new(workers: usize) -> Self {
        Self { workers, kind: PhantomData }
    }
}

/// The state that one sync reads.
#[derive(Debug)]
pub struct ReplicaSnapshot<W> {
    /// The set.
    set: Rc<KeptObject<W>>,
    /// Pods that it controls, and orphans of its namespace that it selects.
    pods: Vec<Rc<KeptObject<Pod>>>,
    /// Active pods of all sets of the set's own controller; empty unless pods may be deleted.
    related: PodsByNode,
}

impl<W: Replicated> Controller for ReplicaController<W> {
    type Key = ObjectKey;
    type Snapshot = ReplicaSnapshot<W>;
    type Note = ();

    const NAME: &'static str = W::NAME;

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![W::KIND, PODS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        _: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        if let Some(delta) = W::delta(change) {
            wake.now(delta.object().metadata().key());
        } else if let Change::Pod(delta) = change {
            handlers::handle_pod::<W>(delta, tables, wake);
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<ReplicaSnapshot<W>> {
        let set = Rc::clone(W::table(tables).get(key)?);
        let pods = candidates(&set, tables);
        let active = pods.iter().filter(|pod| pod.is_active()).count();
        let has_surplus = i64::try_from(active).is_ok_and(|n| n > i64::from(set.spec().wanted()));
        let related = if has_surplus { related(&set, tables) } else { PodsByNode::new() };
        Some(ReplicaSnapshot { set, pods, related })
    }

    fn sync(
        snapshot: &ReplicaSnapshot<W>,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        sync::sync(snapshot, transcript)
    }
}

/// The reference names this object.
fn names<W: Replicated>(reference: &OwnerReference, owner: &Meta) -> bool {
    reference.uid == owner.uid && &*reference.kind == W::KIND.kind && *reference.name == *owner.name
}

// k8s: pkg/controller/controller_utils.go FilterPodsByOwner
fn candidates<W: Replicated>(set: &KeptObject<W>, tables: &Tables) -> Vec<Rc<KeptObject<Pod>>> {
    let meta = set.metadata();
    let own = tables.pods.controlled_by(&meta.uid).filter(|pod| {
        pod.metadata.namespace == meta.namespace
            && pod.metadata.controller().is_some_and(|owner| names::<W>(owner, meta))
    });
    let selector = &set.spec().selector;
    let orphans = tables.pods.orphans(&meta.namespace);
    let orphans = orphans.filter(|pod| selector.matches(&pod.metadata.labels));
    own.chain(orphans).cloned().collect()
}

/// Counts, by node, the active pods that any set of the same controller selects.
// k8s: pkg/controller/replicaset/replica_set.go getIndirectlyRelatedPods
fn related<W: Replicated>(set: &KeptObject<W>, tables: &Tables) -> PodsByNode {
    let mut by_node = PodsByNode::new();
    let Some(owner) = set.metadata().controller() else { return by_node };
    let sets: Vec<_> = W::table(tables).controlled_by(&owner.uid).collect();
    let namespace = &set.metadata().namespace;
    for pod in tables.pods.in_namespace(namespace).filter(|pod| pod.is_active()) {
        let is_selected = sets.iter().any(|set| {
            set.metadata().namespace == *namespace
                && set.spec().selector.matches(&pod.metadata.labels)
        });
        if is_selected {
            *by_node.entry(pod.spec.node_name.clone()).or_default() += 1;
        }
    }
    by_node
}
