//! Compares the references of dependents with the coordinates of an owner.
//!
//! Input: nodes of dependents, the identity of an owner. Output: whether they agree, and other
//! coordinates that dependents claim for the owner. Pure.

use std::collections::BTreeSet;

use super::graph::GraphNode;
use super::identity::ObjectIdentity;

/// How a dependent references an owner; both are true when two references differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// A reference has the owner's coordinates.
    pub(super) matches: bool,
    /// A reference has the owner's UID and other coordinates.
    pub(super) mismatches: bool,
}

/// Returns how a dependent references an owner.
// k8s: pkg/controller/garbagecollector/graph_builder.go partitionDependents
pub(super) fn fit(dependent: &GraphNode, owner: &ObjectIdentity) -> Fit {
    if owner.is_namespaced() && owner.namespace != dependent.identity.namespace {
        return Fit { matches: false, mismatches: true };
    }
    let mut fit = Fit::default();
    for reference in dependent.owners.iter().filter(|reference| reference.uid == owner.uid) {
        match owner.is_meant_by(reference) {
            true => fit.matches = true,
            false => fit.mismatches = true,
        }
    }
    fit
}

/// The coordinates that some dependent claims for an owner and that follow those found absent;
/// after the last of them the first. None when all dependents agree.
// k8s: pkg/controller/garbagecollector/graph_builder.go getAlternateOwnerIdentity
pub(super) fn alternative<'a>(
    dependents: impl Iterator<Item = &'a GraphNode>,
    absent: &ObjectIdentity,
) -> Option<ObjectIdentity> {
    let mut claimed = BTreeSet::new();
    for dependent in dependents {
        let namespace = &dependent.identity.namespace;
        for reference in dependent.owners.iter().filter(|known| known.uid == absent.uid) {
            let is_near = !absent.is_namespaced() || absent.namespace == *namespace;
            if is_near && absent.is_meant_by(reference) {
                continue;
            }
            let mut claim = ObjectIdentity::of_owner(reference, namespace);
            let is_same_kind = claim.kind == absent.kind && claim.api_version == absent.api_version;
            if !absent.is_namespaced() && is_same_kind {
                // Objects of this kind live in no namespace.
                claim = claim.of_cluster();
            }
            claimed.insert(claim);
        }
    }
    claimed.remove(absent);
    let following = claimed.iter().find(|claim| *claim > absent);
    following.or_else(|| claimed.first()).cloned()
}
