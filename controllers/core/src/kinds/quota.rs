//! Quotas of namespaces.

use std::collections::BTreeMap;

use pintle_api_types::quantity::Quantity;
use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired limits and scopes.
    pub spec: QuotaSpec,
    /// The observed usage.
    pub status: QuotaStatus,
}
facts!(ResourceQuota, RESOURCE_QUOTAS, whole: true);

/// The spec of a quota.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QuotaSpec {
    /// The limits.
    #[serde(deserialize_with = "or_default")]
    pub hard: BTreeMap<Symbol, Quantity>,
    /// Scopes that an object must have to be counted.
    #[serde(deserialize_with = "or_default")]
    pub scopes: Box<[Symbol]>,
    /// The same with values.
    #[serde(deserialize_with = "or_default")]
    pub scope_selector: ScopeSelector,
}

/// Scopes with values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScopeSelector {
    /// All of them have to hold.
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Box<[ScopeRequirement]>,
}

/// A scope that an object must have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScopeRequirement {
    /// The scope.
    pub scope_name: Symbol,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: Symbol,
    /// The values of `In` and `NotIn`.
    #[serde(deserialize_with = "or_default")]
    pub values: Box<[Symbol]>,
}

/// The status of a quota.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct QuotaStatus {
    /// The limits that are enforced.
    pub hard: Option<BTreeMap<Symbol, Quantity>>,
    /// The usage of the limited resources.
    pub used: Option<BTreeMap<Symbol, Quantity>>,
}
