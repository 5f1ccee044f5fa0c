//! Conditions of a Deployment.
// k8s: pkg/controller/deployment/util/deployment_util.go

use jiff::Timestamp;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::kinds::{DeploymentSpec, ReplicaCondition, ReplicaStatus};

/// Type: the rollout makes progress, or is complete.
pub(super) const PROGRESSING: &str = "Progressing";
/// Type: as many pods are available as have to be.
pub(super) const AVAILABLE: &str = "Available";
/// Type, also of ReplicaSets: pods could not be created or deleted.
pub(super) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Reason: a set was scaled, or pods became ready.
pub(super) const SET_UPDATED: &str = "ReplicaSetUpdated";
/// Reason, also of an event: the new set could not be created.
pub(super) const CREATE_ERROR: &str = "ReplicaSetCreateError";
/// Reason: the new set was created.
pub(super) const SET_CREATED: &str = "NewReplicaSetCreated";
/// Reason: the new set was there.
pub(super) const SET_FOUND: &str = "FoundNewReplicaSet";
/// Reason: the rollout is complete.
pub(super) const SET_AVAILABLE: &str = "NewReplicaSetAvailable";
/// Reason: there was no progress for too long.
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// Reason: the rollout was paused.
pub(super) const PAUSED: &str = "DeploymentPaused";
/// Reason: the rollout was resumed.
pub(super) const RESUMED: &str = "DeploymentResumed";

/// A condition's type, status and reason.
#[derive(Clone, Copy)]
pub(super) struct ConditionChange {
    /// The type.
    pub(super) kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub(super) status: &'static str,
    /// The reason.
    pub(super) reason: &'static str,
}

impl ConditionChange {
    /// A finding about progress.
    pub(super) fn progressing(status: &'static str, reason: &'static str) -> Self {
        Self { kind: PROGRESSING, status, reason }
    }

    /// The condition as of now.
    // k8s: pkg/controller/deployment/util/deployment_util.go NewDeploymentCondition
    pub(super) fn condition(self, message: &str, now: Timestamp) -> ReplicaCondition {
        // Times in objects have whole seconds.
        let now = Timestamp::from_second(now.as_second()).ok();
        ReplicaCondition {
            kind: Symbol::of(self.kind),
            status: Symbol::of(self.status),
            last_update_time: now,
            last_transition_time: now,
            reason: Symbol::of(self.reason),
            message: message.into(),
        }
    }
}

/// Sets a condition, unless one with its status and reason exists.
// k8s: pkg/controller/deployment/util/deployment_util.go SetDeploymentCondition
pub(super) fn set(status: &mut ReplicaStatus, mut condition: ReplicaCondition) {
    let current = status.condition(&condition.kind);
    if let Some(current) = current.filter(|current| current.status == condition.status) {
        if current.reason == condition.reason {
            return;
        }
        condition.last_transition_time = current.last_transition_time;
    }
    remove(status, &condition.kind.clone());
    status.conditions.push(condition);
}

/// Removes the condition of a type.
pub(super) fn remove(status: &mut ReplicaStatus, kind: &str) {
    status.conditions.retain(|condition| &*condition.kind != kind);
}

/// The Deployment says how long a rollout may stand still.
// k8s: pkg/controller/deployment/util/deployment_util.go HasProgressDeadline
pub(super) fn progress_deadline(spec: &DeploymentSpec) -> Option<i32> {
    spec.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX)
}
