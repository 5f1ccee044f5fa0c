//! The graph of owners and dependents, kept current by changes of metadata.
//!
//! Input: changes of all objects, and owners that live reads did not find. Output: nodes, and which
//! of them are to be examined. An owner that was not observed yet has a virtual node with the
//! coordinates that its first dependent claims. Owner: the collector. Bounds: a node for each
//! object and each claimed owner.
// k8s: pkg/controller/garbagecollector/graph_builder.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use pintle_controllers_core::meta::{Meta, OwnerReference, Uid};

use super::absent::AbsentOwners;
use super::identity::ObjectIdentity;
use super::partition::{Fit, alternative, fit};

/// The finalizer of a deletion that waits for dependents.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go FinalizerDeleteDependents
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of a deletion that leaves dependents alone.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go FinalizerOrphanDependents
pub(super) const ORPHAN: &str = "orphan";

/// An object, or an owner that some object claims.
#[derive(Debug)]
pub(super) struct GraphNode {
    pub(super) identity: ObjectIdentity,
    pub(super) dependents: BTreeSet<Uid>,
    pub(super) owners: Arc<[OwnerReference]>,
    /// It is being deleted in the foreground.
    pub(super) is_deleting_dependents: bool,
    pub(super) is_being_deleted: bool,
    /// No watch has shown it.
    pub(super) is_virtual: bool,
}

/// An examination to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GraphTask {
    /// Decide whether to delete the object.
    Delete(Uid),
    /// The same, after a back-off.
    DeleteLater(Uid),
    /// Find out whether an owner exists that no watch has shown yet.
    Verify(Uid),
    /// The dependents of the object are to be orphaned.
    Orphan(Uid),
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Boxed: the table has up to twice as many places as nodes.
    nodes: HashMap<Uid, Box<GraphNode>>,
    pub(super) absent: Rc<AbsentOwners>,
    tasks: Vec<GraphTask>,
    /// Every kind that is followed is listed.
    pub(super) is_synced: bool,
    /// Owners in other namespaces that events are due about, by the dependent.
    reports: BTreeMap<Uid, Vec<ObjectIdentity>>,
}

impl Graph {
    pub(super) fn get(&self, uid: &Uid) -> Option<&GraphNode> {
        self.nodes.get(uid).map(Box::as_ref)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &GraphNode> {
        self.nodes.values().map(Box::as_ref)
    }

    /// The dependents of a node.
    pub(super) fn dependents<'a>(
        &'a self,
        node: &'a GraphNode,
    ) -> impl Iterator<Item = &'a GraphNode> {
        node.dependents.iter().filter_map(|uid| self.get(uid))
    }

    /// Takes the examinations that were added since the last call.
    pub(super) fn take_tasks(&mut self) -> Vec<GraphTask> {
        std::mem::take(&mut self.tasks)
    }

    /// The invalid owners that an event is due about.
    pub(super) fn take_reports(&mut self, dependent: &Uid) -> Vec<ObjectIdentity> {
        self.reports.remove(dependent).unwrap_or_default()
    }

    /// Records that an owner is absent.
    pub(super) fn add_absent(&mut self, owner: ObjectIdentity) {
        Rc::make_mut(&mut self.absent).add(owner);
    }

    fn wake(&mut self, uid: Uid) {
        self.tasks.push(GraphTask::Delete(uid));
    }

    /// An object was added or modified.
    // k8s: graph_builder.go processGraphChanges, addEvent and updateEvent
    pub(super) fn set(&mut self, identity: ObjectIdentity, old: Option<&Meta>, new: &Meta) {
        let is_deleting_dependents = new.is_deleting() && new.has_finalizer(FOREGROUND);
        self.observe(&identity);
        match self.nodes.get_mut(&identity.uid) {
            None => {
                let node = GraphNode {
                    identity: identity.clone(),
                    dependents: BTreeSet::new(),
                    owners: new.owner_references.clone(),
                    is_deleting_dependents,
                    is_being_deleted: new.is_deleting(),
                    is_virtual: false,
                };
                self.nodes.insert(identity.uid.clone(), Box::new(node));
                self.add_to_owners(&identity, &new.owner_references);
            }
            Some(node) => {
                node.is_being_deleted |= new.is_deleting();
                if node.owners != new.owner_references {
                    let old = std::mem::replace(&mut node.owners, new.owner_references.clone());
                    self.change_owners(&identity, &old, &new.owner_references);
                }
            }
        }
        self.process_transitions(&identity.uid, old, new);
    }

    /// A watch shows the object of a virtual node.
    fn observe(&mut self, identity: &ObjectIdentity) {
        let Some(node) = self.nodes.get_mut(&identity.uid) else { return };
        if !node.is_virtual {
            return;
        }
        node.is_virtual = false;
        if node.identity == *identity {
            return;
        }
        node.identity = identity.clone();
        let dependents: Vec<_> = node.dependents.iter().cloned().collect();
        for uid in dependents {
            let Some(dependent) = self.nodes.get(&uid) else { continue };
            if !fit(dependent, identity).mismatches {
                continue;
            }
            let namespace = dependent.identity.namespace.clone();
            if identity.is_namespaced() && namespace != identity.namespace {
                self.report(&uid, &identity.uid);
            }
            self.wake(uid);
        }
    }

    // k8s: graph_builder.go referencesDiffs and what processGraphChanges does upon it
    fn change_owners(
        &mut self,
        dependent: &ObjectIdentity,
        old: &[OwnerReference],
        new: &[OwnerReference],
    ) {
        let old: BTreeMap<_, _> = old.iter().map(|owner| (&owner.uid, owner)).collect();
        let kept: BTreeSet<_> = new.iter().map(|owner| &owner.uid).collect();
        for owner in new {
            let was_blocking = old.get(&owner.uid).is_some_and(|old| old.block_owner_deletion);
            if was_blocking && !owner.block_owner_deletion && self.nodes.contains_key(&owner.uid) {
                self.wake(owner.uid.clone());
            }
        }
        for (uid, owner) in &old {
            if kept.contains(uid) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(*uid) else { continue };
            node.dependents.remove(&dependent.uid);
            if owner.block_owner_deletion {
                self.wake((*uid).clone());
            }
        }
        let added: Vec<_> =
            new.iter().filter(|owner| !old.contains_key(&owner.uid)).cloned().collect();
        self.add_to_owners(dependent, &added);
    }

    /// Adds a dependent to its owners; an owner that is not known gets a virtual node, which is
    /// examined by a live read unless a watch shows the owner before.
    // k8s: graph_builder.go addDependentToOwners
    fn add_to_owners(&mut self, dependent: &ObjectIdentity, owners: &[OwnerReference]) {
        let mut is_doubtful = false;
        for owner in owners {
            let Some(node) = self.nodes.get_mut(&owner.uid) else {
                self.add_virtual(dependent, owner);
                continue;
            };
            node.dependents.insert(dependent.uid.clone());
            if is_doubtful {
                continue;
            }
            let is_elsewhere = node.identity.namespace != dependent.namespace;
            if node.identity.is_namespaced() && is_elsewhere {
                is_doubtful = true;
                if !node.is_virtual {
                    self.report(&dependent.uid, &owner.uid);
                }
            } else {
                // A virtual owner of the whole cluster may be a namespaced one that an object of
                // the whole cluster names by mistake.
                is_doubtful =
                    !node.identity.is_meant_by(owner) || (is_elsewhere && node.is_virtual);
            }
        }
        if is_doubtful {
            self.wake(dependent.uid.clone());
        }
    }

    fn add_virtual(&mut self, dependent: &ObjectIdentity, owner: &OwnerReference) {
        let node = GraphNode {
            identity: ObjectIdentity::of_owner(owner, &dependent.namespace),
            dependents: BTreeSet::from([dependent.uid.clone()]),
            owners: Arc::default(),
            is_deleting_dependents: false,
            is_being_deleted: false,
            is_virtual: true,
        };
        self.nodes.insert(owner.uid.clone(), Box::new(node));
        self.tasks.push(GraphTask::Verify(owner.uid.clone()));
    }

    // k8s: graph_builder.go reportInvalidNamespaceOwnerRef
    fn report(&mut self, dependent: &Uid, owner: &Uid) {
        let Some(node) = self.nodes.get(dependent) else { return };
        let Some(reference) = node.owners.iter().find(|known| known.uid == *owner) else { return };
        let invalid = ObjectIdentity::of_owner(reference, &node.identity.namespace);
        self.reports.entry(dependent.clone()).or_default().push(invalid);
    }

    // k8s: graph_builder.go processTransitions
    fn process_transitions(&mut self, uid: &Uid, old: Option<&Meta>, new: &Meta) {
        let starts = |finalizer: &str| {
            let waits = |meta: &Meta| meta.is_deleting() && meta.has_finalizer(finalizer);
            waits(new) && !old.is_some_and(waits)
        };
        if starts(ORPHAN) {
            self.tasks.push(GraphTask::Orphan(uid.clone()));
        } else if starts(FOREGROUND) {
            let Some(node) = self.nodes.get_mut(uid) else { return };
            node.is_deleting_dependents = true;
            let dependents: Vec<_> = node.dependents.iter().cloned().collect();
            dependents.into_iter().for_each(|dependent| self.wake(dependent));
            self.wake(uid.clone());
        }
    }

    /// Removes a deleted object.
    // k8s: graph_builder.go processGraphChanges, deleteEvent
    pub(super) fn remove(&mut self, identity: &ObjectIdentity) {
        self.observe(identity);
        self.remove_node(identity);
    }

    /// Marks an object of a kind that is no longer watched as virtual, because its existence is
    /// unknown.
    pub(super) fn forget(&mut self, identity: &ObjectIdentity) {
        let Some(node) = self.nodes.get_mut(&identity.uid) else { return };
        node.is_virtual = true;
        self.tasks.push(GraphTask::Verify(identity.uid.clone()));
    }

    fn remove_node(&mut self, identity: &ObjectIdentity) {
        let Some(node) = self.nodes.remove(&identity.uid) else { return };
        self.reports.remove(&identity.uid);
        if !node.dependents.is_empty() {
            self.add_absent(identity.clone());
        }
        for owner in node.owners.iter() {
            let Some(owner_node) = self.nodes.get_mut(&owner.uid) else { continue };
            owner_node.dependents.remove(&identity.uid);
            if owner_node.is_deleting_dependents {
                self.wake(owner.uid.clone());
            }
        }
        node.dependents.into_iter().for_each(|dependent| self.wake(dependent));
    }

    /// A live read found no object with this identity.
    // k8s: graph_builder.go processGraphChanges, virtual deleteEvent
    pub(super) fn remove_absent(&mut self, identity: &ObjectIdentity) {
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        let fits: Vec<(Uid, Fit)> = self
            .dependents(node)
            .map(|dependent| (dependent.identity.uid.clone(), fit(dependent, identity)))
            .collect();
        let disagrees = fits.iter().any(|(_, fit)| fit.mismatches);
        let is_kept = match node.is_virtual {
            true => disagrees,
            false => node.identity != *identity,
        };
        if !is_kept {
            return self.remove_node(identity);
        }
        let (is_virtual, is_same) = (node.is_virtual, node.identity == *identity);
        let matching = fits.iter().filter(|(_, fit)| fit.matches);
        let matching: Vec<_> = matching.map(|(uid, _)| uid.clone()).collect();
        if !matching.is_empty() {
            self.add_absent(identity.clone());
        }
        matching.into_iter().for_each(|uid| self.wake(uid));
        if is_virtual && is_same {
            self.try_alternative(identity, &fits);
        }
    }

    /// Dependents disagree about the coordinates of an owner: the next ones are examined.
    fn try_alternative(&mut self, absent: &ObjectIdentity, fits: &[(Uid, Fit)]) {
        let disagreeing = fits.iter().filter(|(_, fit)| fit.mismatches);
        let nodes = disagreeing.filter_map(|(uid, _)| self.get(uid));
        let Some(next) = alternative(nodes, absent) else { return };
        if let Some(node) = self.nodes.get_mut(&absent.uid) {
            node.identity = next;
            self.tasks.push(GraphTask::DeleteLater(absent.uid.clone()));
        }
    }
}
