//! The status of a Deployment: summed up from its sets, and written when it changed.
// k8s: pkg/controller/deployment/sync.go

use jiff::Timestamp;
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::kinds::{ReplicaCondition, ReplicaStatus};
use serde_json::{Map, Value, json};

use super::conditions::{self, AVAILABLE, ConditionChange};
use super::limits;
use super::rollout::Rollout;
use super::sets;

impl Rollout<'_> {
    /// Writes the status if it changed.
    ///
    /// # Errors
    /// When the write failed.
    // k8s: pkg/controller/deployment/sync.go syncDeploymentStatus
    pub(super) fn sync_status(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let status = self.calculate_status(transcript.now());
        if status != self.status {
            self.status = status;
            self.write_status(transcript)?;
        }
        Ok(SyncOutcome::done())
    }

    /// The status as it should be.
    // k8s: pkg/controller/deployment/sync.go calculateStatus
    pub(super) fn calculate_status(&self, now: Timestamp) -> ReplicaStatus {
        let all = self.all();
        let available = sets::available(&all);
        let mut status = ReplicaStatus {
            observed_generation: self.deployment.metadata.generation,
            replicas: sets::counted(&all, |set| set.replicas),
            updated_replicas: self.new.as_ref().map_or(0, |set| set.status.replicas),
            ready_replicas: sets::counted(&all, |set| set.ready_replicas),
            available_replicas: available,
            // While it is scaled down, more pods are available than wanted.
            unavailable_replicas: sets::wanted(&all).wrapping_sub(available).max(0),
            terminating_replicas: sets::terminating(&all),
            collision_count: self.status.collision_count,
            conditions: self.status.conditions.clone(),
            ..ReplicaStatus::default()
        };
        let spec = self.spec();
        let min_available = spec.wanted().wrapping_sub(limits::max_unavailable(spec));
        let condition = if available >= min_available {
            let finding = ConditionChange {
                kind: AVAILABLE,
                status: "True",
                reason: "MinimumReplicasAvailable",
            };
            finding.condition("Deployment has minimum availability.", now)
        } else {
            let finding = ConditionChange {
                kind: AVAILABLE,
                status: "False",
                reason: "MinimumReplicasUnavailable",
            };
            finding.condition("Deployment does not have minimum availability.", now)
        };
        conditions::set(&mut status, condition);
        status
    }
}

/// All wanted pods are updated and available, and no old pods are left.
// k8s: pkg/controller/deployment/util/deployment_util.go DeploymentComplete
pub(super) fn is_complete(rollout: &Rollout<'_>, status: &ReplicaStatus) -> bool {
    let wanted = rollout.spec().wanted();
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= rollout.deployment.metadata.generation
}

/// The status as the API server reads it.
pub(super) fn to_value(status: &ReplicaStatus) -> Value {
    let mut value = Map::new();
    if status.observed_generation != 0 {
        value.insert("observedGeneration".into(), status.observed_generation.into());
    }
    for (field, count) in [
        ("replicas", status.replicas),
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
        ("unavailableReplicas", status.unavailable_replicas),
    ] {
        if count != 0 {
            value.insert(field.into(), count.into());
        }
    }
    for (field, count) in [
        ("terminatingReplicas", status.terminating_replicas),
        ("collisionCount", status.collision_count),
    ] {
        if let Some(count) = count {
            value.insert(field.into(), count.into());
        }
    }
    if !status.conditions.is_empty() {
        let conditions = status.conditions.iter().map(condition_to_value);
        value.insert("conditions".into(), conditions.collect());
    }
    value.into()
}

fn condition_to_value(condition: &ReplicaCondition) -> Value {
    let time = |at: Option<Timestamp>| at.map_or(Value::Null, |at| at.to_string().into());
    let mut value = json!({
        "type": &*condition.kind,
        "status": &*condition.status,
        "lastUpdateTime": time(condition.last_update_time),
        "lastTransitionTime": time(condition.last_transition_time),
    });
    for (field, text) in [("reason", &*condition.reason), ("message", &*condition.message)] {
        if !text.is_empty() {
            value[field] = text.into();
        }
    }
    value
}
