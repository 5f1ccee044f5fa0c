//! Which Deployments a change of a ReplicaSet or pod wakes.

use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, REPLICA_SETS};
use pintle_controllers_core::frame::Wakes;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Deployment, Pod, ReplicaSet};
use pintle_controllers_core::meta::Meta;
use pintle_controllers_core::tables::{Delta, Tables};

use super::RECREATE;

/// Wakes the Deployments that a change of a set concerns.
pub(super) fn handle_set(
    delta: &Delta<KeptObject<ReplicaSet>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) if old.metadata.uid == new.metadata.uid => {
            handle_update(&old.metadata, &new.metadata, tables, wake);
        }
        (old, new) => {
            if let Some(old) = old {
                wake_controller(&old.metadata, tables, wake);
            }
            if let Some(new) = new {
                handle_add(&new.metadata, tables, wake);
            }
        }
    }
}

// k8s: pkg/controller/deployment/deployment_controller.go addReplicaSet
fn handle_add(set: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if set.controller().is_none() && !set.is_deleting() {
        wake_adopters(set, tables, wake);
    } else {
        wake_controller(set, tables, wake);
    }
}

// k8s: pkg/controller/deployment/deployment_controller.go updateReplicaSet
fn handle_update(old: &Meta, new: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    let is_controller_changed = old.controller() != new.controller();
    if is_controller_changed {
        wake_controller(old, tables, wake);
    }
    if new.controller().is_some() {
        wake_controller(new, tables, wake);
    } else if is_controller_changed || old.labels != new.labels {
        wake_adopters(new, tables, wake);
    }
}

/// Wakes a Deployment with strategy `Recreate` once its last pod is deleted.
// k8s: pkg/controller/deployment/deployment_controller.go deletePod
pub(super) fn handle_pod(
    delta: &Delta<KeptObject<Pod>>,
    tables: &Tables,
    wake: &mut Wakes<ObjectKey>,
) {
    let Some(old) = &delta.old else { return };
    let is_gone = delta.new.as_ref().is_none_or(|new| new.metadata.uid != old.metadata.uid);
    if !is_gone {
        return;
    }
    let Some(deployment) = deployment_of_pod(old, tables) else { return };
    if &*deployment.spec.strategy.kind != RECREATE {
        return;
    }
    let meta = &deployment.metadata;
    let mut sets = tables.replica_sets.controlled_by(&meta.uid).filter(|set| {
        set.metadata.namespace == meta.namespace
            && deployment.spec.selector.matches(&set.metadata.labels)
    });
    if sets.all(|set| pods_of(set, tables).next().is_none()) {
        wake.now(meta.key());
    }
}

/// The pods that a set controls.
pub(super) fn pods_of<'a>(
    set: &'a KeptObject<ReplicaSet>,
    tables: &'a Tables,
) -> impl Iterator<Item = &'a Rc<KeptObject<Pod>>> {
    let pods = tables.pods.controlled_by(&set.metadata.uid);
    pods.filter(|pod| pod.metadata.namespace == set.metadata.namespace)
}

// k8s: pkg/controller/deployment/deployment_controller.go getDeploymentForPod
fn deployment_of_pod<'a>(pod: &Pod, tables: &'a Tables) -> Option<&'a Rc<KeptObject<Deployment>>> {
    let owner = pod.metadata.controller().filter(|owner| &*owner.kind == REPLICA_SETS.kind)?;
    let set = tables.replica_sets.get_uid(&pod.metadata.namespace, &owner.name, &owner.uid)?;
    controller(&set.metadata, tables)
}

/// The Deployment that controls an object, if it is known.
// k8s: pkg/controller/deployment/deployment_controller.go resolveControllerRef
fn controller<'a>(object: &Meta, tables: &'a Tables) -> Option<&'a Rc<KeptObject<Deployment>>> {
    let owner = object.controller().filter(|owner| &*owner.kind == DEPLOYMENTS.kind)?;
    tables.deployments.get_uid(&object.namespace, &owner.name, &owner.uid)
}

fn wake_controller(object: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if let Some(deployment) = controller(object, tables) {
        wake.now(deployment.metadata.key());
    }
}

/// Wakes the Deployments that select an orphan; an empty selector selects nothing here.
// k8s: pkg/controller/deployment/util/deployment_util.go GetDeploymentsForReplicaSet
fn wake_adopters(orphan: &Meta, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
    if orphan.labels.iter().len() == 0 {
        return;
    }
    for deployment in tables.deployments.in_namespace(&orphan.namespace) {
        let selector = &deployment.spec.selector;
        if !selector.is_everything() && selector.matches(&orphan.labels) {
            wake.now(deployment.metadata.key());
        }
    }
}
