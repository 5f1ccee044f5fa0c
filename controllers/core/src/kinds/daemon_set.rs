//! DaemonSets.

use serde::Deserialize;

use super::facts;
use super::replica::Strategy;
use crate::common::node_match::NodeFit;
use crate::meta::Meta;
use crate::selector::PodSelector;

/// A DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: DaemonSetSpec,
    /// The observed state.
    pub status: DaemonSetStatus,
}
facts!(DaemonSet, DAEMON_SETS, whole: true);

/// The spec of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetSpec {
    /// Which pods are its own.
    pub selector: PodSelector,
    /// The parts of the pod template that decide which nodes the pods run on.
    pub template: DaemonTemplate,
    /// `RollingUpdate` or `OnDelete`, and the limits.
    pub update_strategy: Strategy,
    /// Seconds that a pod has to be ready before it counts as available.
    pub min_ready_seconds: i32,
    /// Old revisions that are kept; 10 when not given.
    pub revision_history_limit: Option<i32>,
}

/// The template of a DaemonSet's pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DaemonTemplate {
    /// Which nodes the pods fit.
    pub spec: NodeFit,
}

/// The status of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStatus {
    /// The generation that the status is about.
    pub observed_generation: i64,
    /// Nodes that should run a pod.
    pub desired_number_scheduled: i32,
    /// Of these, nodes that have one.
    pub current_number_scheduled: i32,
    /// Nodes that have one and should not.
    pub number_misscheduled: i32,
    /// Nodes with a ready pod.
    pub number_ready: i32,
    /// Nodes with a pod of the current template.
    pub updated_number_scheduled: i32,
    /// Nodes with an available pod.
    pub number_available: i32,
    /// Nodes that should run a pod and have none that is available.
    pub number_unavailable: i32,
    /// How often the name of a new revision was taken.
    pub collision_count: Option<i32>,
}
