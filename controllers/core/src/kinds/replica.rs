//! Deployments, ReplicaSets and ReplicationControllers.

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use pintle_api_types::symbol_map::SymbolMap;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::facts;
use crate::meta::{Meta, or_default, time};
use crate::selector::PodSelector;

/// A Deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: DeploymentSpec,
    /// The observed state.
    pub status: ReplicaStatus,
}
facts!(Deployment, DEPLOYMENTS, whole: true);

/// The spec of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeploymentSpec {
    /// How many pods are wanted; 1 when not given.
    pub replicas: Option<i32>,
    /// Which pods and sets are its own.
    pub selector: PodSelector,
    /// How a change is rolled out.
    pub strategy: Strategy,
    /// Seconds that a pod has to be ready before it counts as available.
    pub min_ready_seconds: i32,
    /// Old sets that are kept; all when not given.
    pub revision_history_limit: Option<i32>,
    /// No change is rolled out.
    pub paused: bool,
    /// Seconds without progress after which the rollout has failed.
    pub progress_deadline_seconds: Option<i32>,
}

impl DeploymentSpec {
    /// How many pods are wanted.
    pub fn wanted(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }
}

/// How a change is rolled out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Strategy {
    /// `RollingUpdate` or `Recreate`.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// Limits of a rolling update.
    pub rolling_update: Option<RollingUpdate>,
}

/// Limits of a rolling update; numbers or percentages.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    /// How many pods may be unavailable.
    pub max_unavailable: Value,
    /// How many pods there may be beyond those wanted.
    pub max_surge: Value,
    /// StatefulSet: pods from this ordinal on are updated.
    pub partition: Option<i32>,
}

/// A ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: ReplicaSpec,
    /// The observed state.
    pub status: ReplicaStatus,
}
facts!(ReplicaSet, REPLICA_SETS, whole: true);

/// A ReplicationController; its spec reads as that of a ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    #[serde(deserialize_with = "controller_spec")]
    pub spec: ReplicaSpec,
    /// The observed state.
    pub status: ReplicaStatus,
}
facts!(ReplicationController, REPLICATION_CONTROLLERS, whole: true);

/// The spec of a ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaSpec {
    /// How many pods are wanted; 1 when not given.
    pub replicas: Option<i32>,
    /// Which pods are its own.
    pub selector: PodSelector,
    /// Seconds that a pod has to be ready before it counts as available.
    pub min_ready_seconds: i32,
    /// The pod template.
    #[serde(deserialize_with = "or_default")]
    pub template: TemplateFacts,
}

impl ReplicaSpec {
    /// How many pods are wanted.
    pub fn wanted(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }
}

/// The fields of a pod template that controllers read; the rest is in the whole object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplateFacts {
    /// Its metadata.
    #[serde(deserialize_with = "or_default")]
    pub metadata: TemplateMeta,
}

/// The metadata of a pod template.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Labels of its pods.
    pub labels: SymbolMap,
}

/// The spec of a ReplicationController; its selector is a map.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ControllerSpec {
    replicas: Option<i32>,
    #[serde(deserialize_with = "PodSelector::from_map")]
    selector: PodSelector,
    min_ready_seconds: i32,
    #[serde(deserialize_with = "or_default")]
    template: TemplateFacts,
}

// k8s: pkg/controller/replication/conversion.go convertRCtoRS
fn controller_spec<'de, D: Deserializer<'de>>(from: D) -> Result<ReplicaSpec, D::Error> {
    let ControllerSpec { replicas, selector, min_ready_seconds, template } =
        Deserialize::deserialize(from)?;
    Ok(ReplicaSpec { replicas, selector, min_ready_seconds, template })
}

/// The status of a Deployment, ReplicaSet or ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The generation that the status is about.
    pub observed_generation: i64,
    /// How many pods there are.
    pub replicas: i32,
    /// A set's pods with the labels of its template.
    pub fully_labeled_replicas: i32,
    /// A Deployment's pods of the current template.
    pub updated_replicas: i32,
    /// Pods that are ready.
    pub ready_replicas: i32,
    /// Pods that are ready long enough.
    pub available_replicas: i32,
    /// A Deployment's wanted pods that are not available.
    pub unavailable_replicas: i32,
    /// Pods that are being deleted; `None` when not counted.
    pub terminating_replicas: Option<i32>,
    /// How often the name of a new set was taken.
    pub collision_count: Option<i32>,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<ReplicaCondition>,
}

impl ReplicaStatus {
    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&ReplicaCondition> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }
}

/// A condition of a Deployment, ReplicaSet or ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaCondition {
    /// Such as `Progressing`.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// `True`, `False` or `Unknown`.
    pub status: Symbol,
    /// When it was last updated; of a Deployment.
    #[serde(deserialize_with = "time")]
    pub last_update_time: Option<Timestamp>,
    /// When the status last changed.
    #[serde(deserialize_with = "time")]
    pub last_transition_time: Option<Timestamp>,
    /// The reason in a word.
    pub reason: Symbol,
    /// The sentence.
    pub message: Box<str>,
}
