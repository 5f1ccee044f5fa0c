//! Deployments, ReplicaSets and ReplicationControllers.

use pintle_api_types::symbol::Symbol;
use serde::Deserialize;
use serde_json::Value;

use super::facts;
use crate::meta::Meta;
use crate::selector::PodSelector;

/// A Deployment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Its metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: DeploymentSpec,
    /// What is.
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
    /// What is wanted.
    pub spec: ReplicaSpec,
    /// What is.
    pub status: ReplicaStatus,
}
facts!(ReplicaSet, REPLICA_SETS, whole: true);

/// A ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    /// Its metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ReplicationControllerSpec,
    /// What is.
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
}

/// The spec of a ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicationControllerSpec {
    /// How many pods are wanted; 1 when not given.
    pub replicas: Option<i32>,
    /// Which pods are its own.
    #[serde(deserialize_with = "PodSelector::from_map")]
    pub selector: PodSelector,
    /// Seconds that a pod has to be ready before it counts as available.
    pub min_ready_seconds: i32,
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
    /// Pods that are being deleted; `None` when not counted.
    pub terminating_replicas: Option<i32>,
    /// How often the name of a new set was taken.
    pub collision_count: Option<i32>,
}
