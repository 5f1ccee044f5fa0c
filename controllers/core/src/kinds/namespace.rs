//! Namespaces, and the ConfigMap with the root CA that each of them has.

use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: NamespaceSpec,
    /// The observed state.
    pub status: NamespaceStatus,
}
facts!(Namespace, NAMESPACES, whole: false);

/// The spec of a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    /// Finalizers that must be removed before the namespace is.
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Box<[Symbol]>,
}

/// The status of a Namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active` or `Terminating`.
    pub phase: Symbol,
}

impl Namespace {
    /// Objects can be created in it.
    pub fn is_active(&self) -> bool {
        &*self.status.phase == "Active"
    }
}

/// A ConfigMap named `kube-root-ca.crt`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RootCaConfigMap {
    /// Its metadata.
    pub metadata: Meta,
}
facts!(RootCaConfigMap, ROOT_CA_CONFIG_MAPS, whole: true);
