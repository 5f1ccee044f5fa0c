//! Nodes.

use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: NodeSpec,
}
facts!(Node, NODES, whole: false);

/// The spec of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSpec {
    /// The node's taints.
    #[serde(deserialize_with = "or_default")]
    pub taints: Box<[Taint]>,
}

/// A taint, which repels pods that do not tolerate it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    pub key: Symbol,
    /// Its value.
    pub value: Symbol,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: Symbol,
}
