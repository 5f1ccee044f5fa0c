//! StatefulSets.

use pintle_api_types::symbol::Symbol;
use serde::{Deserialize, Deserializer};

use super::facts;
use super::replica::Strategy;
use crate::meta::{Meta, or_default};
use crate::selector::PodSelector;

/// A StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: StatefulSetSpec,
    /// The observed state.
    pub status: StatefulSetStatus,
}
facts!(StatefulSet, STATEFUL_SETS, whole: true);

/// The spec of a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetSpec {
    /// How many pods are wanted; 1 when not given.
    pub replicas: Option<i32>,
    /// Which pods are its own.
    pub selector: PodSelector,
    /// The Service that gives the pods their names in DNS.
    pub service_name: Symbol,
    /// `OrderedReady` or `Parallel`.
    pub pod_management_policy: Symbol,
    /// `RollingUpdate` or `OnDelete`, and the limits.
    pub update_strategy: Strategy,
    /// Seconds that a pod has to be ready before it counts as available.
    pub min_ready_seconds: i32,
    /// Old revisions that are kept; 10 when not given.
    pub revision_history_limit: Option<i32>,
    /// The ordinal of the first pod.
    #[serde(rename = "ordinals", deserialize_with = "start")]
    pub first_ordinal: i32,
    /// Templates of the claims of each pod.
    #[serde(deserialize_with = "or_default")]
    pub volume_claim_templates: Box<[ClaimTemplate]>,
    /// The retention of claims after the deletion of their pod or of the set.
    #[serde(deserialize_with = "or_default")]
    pub persistent_volume_claim_retention_policy: RetentionPolicy,
}

/// A claim that each pod of a StatefulSet has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimTemplate {
    /// The name of the volume, and the start of the claim's name.
    #[serde(rename = "metadata", deserialize_with = "name")]
    pub name: Symbol,
}

/// The retention of claims after their pod or the set is deleted: `Retain` or `Delete`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RetentionPolicy {
    /// When the set is deleted.
    pub when_deleted: Symbol,
    /// When the set is scaled down.
    pub when_scaled: Symbol,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        let retain = Symbol::of("Retain");
        Self { when_deleted: retain.clone(), when_scaled: retain }
    }
}

/// The status of a StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetStatus {
    /// The generation that the status is about.
    pub observed_generation: i64,
    /// Pods that were created.
    pub replicas: i32,
    /// Pods that are ready.
    pub ready_replicas: i32,
    /// Pods that are ready long enough.
    pub available_replicas: i32,
    /// Pods of the current revision.
    pub current_replicas: i32,
    /// Pods of the update revision.
    pub updated_replicas: i32,
    /// The revision that is rolled out from.
    pub current_revision: Box<str>,
    /// The revision that is rolled out to.
    pub update_revision: Box<str>,
    /// How often the name of a new revision was taken.
    pub collision_count: Option<i32>,
}

impl StatefulSetSpec {
    /// How many pods are wanted.
    pub fn replicas_wanted(&self) -> i64 {
        self.replicas.unwrap_or(1).into()
    }
}

fn start<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Ordinals {
        start: i32,
    }
    Ok(or_default::<D, Ordinals>(from)?.start)
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Symbol, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        name: Symbol,
    }
    Ok(or_default::<D, Metadata>(from)?.name)
}
