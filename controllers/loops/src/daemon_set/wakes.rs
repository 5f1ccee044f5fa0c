//! Which changes wake which DaemonSets.
//!
//! Input: changes of pods, revisions and nodes. Output: keys to sync. A node wakes only the sets
//! that it concerns: sets that lack a pod on it, sets with a pod that it should not run, and sets
//! with a possibly stale count of misscheduled pods. A NoSchedule taint on the node of a running
//! pod wakes no set.
// k8s: pkg/controller/daemon/daemon_controller.go addPod, updatePod, addHistory, syncNodeUpdate

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::DAEMON_SETS;
use pintle_controllers_core::frame::Wakes;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{ControllerRevision, DaemonSet, Node, Pod};
use pintle_controllers_core::meta::{Meta, OwnerReference};
use pintle_controllers_core::tables::{Delta, Tables};

use super::nodes::Placement;
use super::template::fit_of;

/// Added to `minReadySeconds`, since times in objects have whole seconds.
const READY_SLACK: Duration = Duration::from_secs(1);

/// Wakes the owner of a pod, or the sets that may adopt it.
pub(super) fn handle_pod(
    delta: &Delta<KeptObject<Pod>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    let pod = delta.object();
    let old = delta.old.as_ref().map(|old| &old.metadata);
    if delta.new.is_none() || pod.metadata.is_deleting() {
        return wake_owner(&pod.metadata, tables, wake);
    }
    let change = MetaChange { old, new: &pod.metadata };
    let Some(set) = change.wake(tables, wake) else { return };
    let became_ready = delta.old.as_ref().is_some_and(|old| !old.is_ready()) && pod.is_ready();
    if let Ok(seconds @ 1..) = u64::try_from(set.spec.min_ready_seconds)
        && became_ready
    {
        wake.after(set.metadata.key(), Duration::from_secs(seconds) + READY_SLACK);
    }
}

/// Wakes the owner of a revision, or the sets that may adopt it.
pub(super) fn handle_revision(
    delta: &Delta<KeptObject<ControllerRevision>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    let meta = &delta.object().metadata;
    let old = delta.old.as_ref().map(|old| &old.metadata);
    let is_gone = delta.new.is_none() || (old.is_none() && meta.is_deleting());
    if is_gone {
        // By name: a set that was created again may use the revision of the former one,
        // which the garbage collector deletes.
        if let Some(owner) = meta.controller().filter(|owner| &*owner.kind == "DaemonSet") {
            wake.now(ObjectKey::new(&meta.namespace, &owner.name));
        }
        return;
    }
    if old.is_some() || meta.controller().is_none() {
        MetaChange { old, new: meta }.wake(tables, wake);
    }
}

/// A change of an object that a set may own.
#[derive(Clone, Copy)]
struct MetaChange<'a> {
    old: Option<&'a Meta>,
    new: &'a Meta,
}

impl MetaChange<'_> {
    /// Wakes its former and its present owner; returns the present one.
    fn wake<'t>(
        &self,
        tables: &'t Tables,
        wake: &mut Wakes<ObjectKey>,
    ) -> Option<&'t Rc<KeptObject<DaemonSet>>> {
        let Self { old, new } = *self;
        let owner = new.controller();
        let is_moved = old.is_some_and(|old| old.controller() != owner);
        if let Some(old) = old.filter(|_| is_moved) {
            wake_owner(old, tables, wake);
        }
        let Some(owner) = owner else {
            if is_moved || old.is_none_or(|old| old.labels != new.labels) {
                wake_selecting(new, tables, wake);
            }
            return None;
        };
        let set = set_of(&new.namespace, owner, tables)?;
        wake.now(set.metadata.key());
        Some(set)
    }
}

/// The set that a reference names.
// k8s: daemon_controller.go resolveControllerRef
fn set_of<'a>(
    namespace: &str,
    owner: &OwnerReference,
    tables: &'a Tables,
) -> Option<&'a Rc<KeptObject<DaemonSet>>> {
    let is_set = &*owner.kind == DAEMON_SETS.kind;
    is_set.then(|| tables.daemon_sets.get_uid(namespace, &owner.name, &owner.uid))?
}

fn wake_owner(meta: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    let set = meta.controller().and_then(|owner| set_of(&meta.namespace, owner, tables));
    if let Some(set) = set {
        wake.now(set.metadata.key());
    }
}

fn wake_selecting(meta: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if meta.labels.iter().len() == 0 {
        return;
    }
    for set in tables.daemon_sets.in_namespace(&meta.namespace) {
        let selector = &set.spec.selector;
        if !selector.is_everything() && selector.matches(&meta.labels) {
            wake.now(set.metadata.key());
        }
    }
}

/// Wakes the sets that a new or changed node concerns.
pub(super) fn handle_node(
    delta: &Delta<KeptObject<Node>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    let Some(node) = &delta.new else { return };
    // k8s: daemon_controller.go shouldIgnoreNodeUpdate
    let is_same = delta.old.as_ref().is_some_and(|old| {
        old.metadata.labels == node.metadata.labels && old.spec.taints == node.spec.taints
    });
    if is_same {
        return;
    }
    let mut scheduled = BTreeSet::new();
    for pod in tables.pods.indexed(&node.metadata.name) {
        let owner = pod.metadata.controller();
        if let Some(owner) = owner.filter(|owner| &*owner.kind == DAEMON_SETS.kind) {
            scheduled.insert(ObjectKey::new(&pod.metadata.namespace, &owner.name));
        }
    }
    for set in tables.daemon_sets.iter() {
        let key = set.metadata.key();
        let is_scheduled = scheduled.contains(&key);
        let is_concerned = match Placement::of(&fit_of(set), node) {
            Placement::Run => !is_scheduled,
            Placement::Stay => false,
            Placement::Leave => is_scheduled,
        };
        if is_concerned || (is_scheduled && set.status.number_misscheduled > 0) {
            wake.now(key);
        }
    }
}
