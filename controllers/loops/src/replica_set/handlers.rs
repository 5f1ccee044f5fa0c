//! Which sets a change of a pod wakes: its controller's, before and after, and those that could
//! adopt it.

use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_controllers_core::frame::Wakes;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Pod;
use pintle_controllers_core::meta::Meta;
use pintle_controllers_core::tables::{Delta, Tables};

use super::{Replicated, names};

/// Wakes the sets that a change of a pod concerns.
pub(super) fn handle_pod<W: Replicated>(
    delta: &Delta<KeptObject<Pod>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) if old.metadata.uid == new.metadata.uid => {
            handle_update::<W>(old, new, tables, wake);
        }
        (old, new) => {
            if let Some(old) = old {
                wake_controller::<W>(old, tables, wake);
            }
            if let Some(new) = new {
                handle_add::<W>(new, tables, wake);
            }
        }
    }
}

// k8s: pkg/controller/replicaset/replica_set.go addPod
fn handle_add<W: Replicated>(pod: &KeptObject<Pod>, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    let is_orphan = pod.metadata.controller().is_none();
    if is_orphan && !pod.metadata.is_deleting() {
        wake_adopters::<W>(&pod.metadata, tables, wake);
    } else {
        wake_controller::<W>(pod, tables, wake);
    }
}

// k8s: pkg/controller/replicaset/replica_set.go updatePod
fn handle_update<W: Replicated>(
    old: &KeptObject<Pod>,
    new: &KeptObject<Pod>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    let are_labels_changed = old.metadata.labels != new.metadata.labels;
    if new.metadata.is_deleting() {
        wake_controller::<W>(new, tables, wake);
        if are_labels_changed {
            wake_controller::<W>(old, tables, wake);
        }
        return;
    }
    let is_controller_changed = old.metadata.controller() != new.metadata.controller();
    if is_controller_changed {
        wake_controller::<W>(old, tables, wake);
    }
    if new.metadata.controller().is_some() {
        let Some(set) = controller::<W>(&new.metadata, tables) else { return };
        wake.now(set.metadata().key());
        let min_ready = u64::try_from(set.spec().min_ready_seconds).unwrap_or_default();
        if min_ready > 0 && new.is_ready() && !old.is_ready() {
            wake.after(set.metadata().key(), Duration::from_secs(min_ready));
        }
    } else if are_labels_changed || is_controller_changed {
        wake_adopters::<W>(&new.metadata, tables, wake);
    }
}

fn wake_controller<W: Replicated>(
    pod: &KeptObject<Pod>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    if let Some(set) = controller::<W>(&pod.metadata, tables) {
        wake.now(set.metadata().key());
    }
}

/// The set that controls an object, if it is of the kind and known.
// k8s: pkg/controller/replicaset/replica_set.go resolveControllerRef
fn controller<'a, W: Replicated>(
    object: &Meta,
    tables: &'a Tables,
) -> Option<&'a Rc<KeptObject<W>>> {
    let owner = object.controller()?;
    let set = W::table(tables).get(&ObjectKey::new(&object.namespace, &owner.name))?;
    names::<W>(owner, set.metadata()).then_some(set)
}

/// Wakes the sets that select an orphan; an empty selector selects nothing here.
// k8s: staging/src/k8s.io/client-go/listers/apps/v1/replicaset_expansion.go GetPodReplicaSets
fn wake_adopters<W: Replicated>(orphan: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if orphan.labels.iter().len() == 0 {
        return;
    }
    for set in W::table(tables).in_namespace(&orphan.namespace) {
        let selector = &set.spec().selector;
        if !selector.is_everything() && selector.matches(&orphan.labels) {
            wake.now(set.metadata().key());
        }
    }
}
