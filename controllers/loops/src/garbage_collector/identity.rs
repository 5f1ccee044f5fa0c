//! Which object a node of the graph stands for: its UID and its coordinates.
//!
//! A UID alone is not enough: the author of an owner reference chooses its kind and name freely,
//! and a wrong one must not make the collector take a live owner for absent.
// k8s: pkg/controller/garbagecollector/graph.go objectReference

use std::fmt;

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::meta::{Meta, OwnerReference, Uid};

/// An object. The order of the fields is the order in which alternatives are tried.
// k8s: pkg/controller/garbagecollector/graph_builder.go referenceLessThan
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectIdentity {
    /// The name of the kind.
    pub kind: Symbol,
    /// Group and version.
    pub api_version: Symbol,
    /// The namespace; empty for objects of the whole cluster.
    pub namespace: Symbol,
    /// The name.
    pub name: Symbol,
    /// The UID.
    pub uid: Uid,
}

impl ObjectIdentity {
    /// An object that was observed.
    pub(super) fn of(api_version: &Symbol, kind: &Symbol, meta: &Meta) -> Self {
        Self {
            kind: kind.clone(),
            api_version: api_version.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }
    }

    /// The identity that an owner reference of an object in this namespace names.
    pub(super) fn of_owner(owner: &OwnerReference, namespace: &Symbol) -> Self {
        Self {
            kind: owner.kind.clone(),
            api_version: owner.api_version.clone(),
            namespace: namespace.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }
    }

    /// The same in no namespace.
    pub(super) fn of_cluster(self) -> Self {
        Self { namespace: Symbol::default(), ..self }
    }

    /// The reference names this object, its namespace aside.
    // k8s: pkg/controller/garbagecollector/graph.go ownerReferenceMatchesCoordinates
    pub(super) fn is_meant_by(&self, owner: &OwnerReference) -> bool {
        self.uid == owner.uid
            && self.name == owner.name
            && self.kind == owner.kind
            && self.api_version == owner.api_version
    }

    /// The object lives in a namespace.
    pub(super) fn is_namespaced(&self) -> bool {
        !self.namespace.is_empty()
    }
}

impl fmt::Display for ObjectIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, api_version, namespace, name, uid } = self;
        let (kind, api_version) = (kind.as_str(), api_version.as_str());
        let (namespace, name) = (namespace.as_str(), name.as_str());
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}
