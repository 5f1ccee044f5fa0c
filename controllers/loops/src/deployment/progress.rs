//! The status during a rollout: whether it makes progress, is complete, or has stood still for too
//! long.
// k8s: pkg/controller/deployment/progress.go

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::kinds::{ReplicaCondition, ReplicaStatus};

use super::conditions::{
    self, ConditionChange, PROGRESSING, REPLICA_FAILURE, SET_AVAILABLE, SET_UPDATED, TIMED_OUT,
};
use super::rollout::Rollout;
use super::status::is_complete;

/// Wait for a deadline that is about to pass. Upstream tries again at once, many times.
const SHORT_WAIT: Duration = Duration::from_millis(5);

impl Rollout<'_> {
    /// Writes the status if it changed; otherwise the key is synced again when the deadline passes.
    ///
    /// # Errors
    /// When the write failed.
    // k8s: pkg/controller/deployment/progress.go syncRolloutStatus
    pub(super) fn sync_rollout_status(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let now = transcript.now();
        let mut status = self.calculate_status(now);
        let deadline = conditions::progress_deadline(self.spec());
        if deadline.is_none() {
            conditions::remove(&mut status, PROGRESSING);
        }
        let reason = self.status.condition(PROGRESSING).map(|current| &*current.reason);
        let is_at_rest =
            status.replicas == status.updated_replicas && reason == Some(SET_AVAILABLE);
        if let Some(seconds) = deadline.filter(|_| !is_at_rest) {
            self.estimate_progress(&mut status, seconds, now);
        }
        match self.replica_failure() {
            Some(failure) => conditions::set(&mut status, failure),
            None => conditions::remove(&mut status, REPLICA_FAILURE),
        }
        self.explain(&status, transcript);
        if status == self.status {
            return Ok(SyncOutcome::new(self.next_check(&status, now), Vec::new()));
        }
        self.status = status;
        self.write_status(transcript)?;
        Ok(SyncOutcome::done())
    }

    fn estimate_progress(&self, status: &mut ReplicaStatus, deadline: i32, now: Timestamp) {
        let subject = match &self.new {
            Some(new) => format!("ReplicaSet {:?}", &*new.metadata.name),
            None => format!("Deployment {:?}", self.name()),
        };
        if is_complete(self, status) {
            let message = format!("{subject} has successfully progressed.");
            let finding = ConditionChange::progressing("True", SET_AVAILABLE);
            conditions::set(status, finding.condition(&message, now));
        } else if is_progressing(&self.status, status) {
            let message = format!("{subject} is progressing.");
            let mut condition =
                ConditionChange::progressing("True", SET_UPDATED).condition(&message, now);
            // Its time of update moves with each progress, also when its reason stays.
            let current = self.status.condition(PROGRESSING);
            if let Some(current) = current.filter(|current| &*current.status == "True") {
                condition.last_transition_time = current.last_transition_time;
            }
            conditions::remove(status, PROGRESSING);
            conditions::set(status, condition);
        } else if is_timed_out(status, deadline, now) {
            let message = format!("{subject} has timed out progressing.");
            let finding = ConditionChange::progressing("False", TIMED_OUT);
            conditions::set(status, finding.condition(&message, now));
        }
    }

    /// The failure of the new set or, when it has none, of another.
    // k8s: pkg/controller/deployment/progress.go getReplicaFailures
    pub(super) fn replica_failure(&self) -> Option<ReplicaCondition> {
        let mut sets = self.new.iter().chain(&self.old);
        let failure = sets.find_map(|set| set.status.condition(REPLICA_FAILURE))?;
        Some(ReplicaCondition { last_update_time: failure.last_transition_time, ..failure.clone() })
    }

    /// When to look whether the rollout has timed out.
    // k8s: pkg/controller/deployment/progress.go requeueStuckDeployment
    pub(super) fn next_check(&self, status: &ReplicaStatus, now: Timestamp) -> Option<Duration> {
        let deadline = conditions::progress_deadline(self.spec())?;
        let current = self.status.condition(PROGRESSING)?;
        if is_complete(self, status) || &*current.reason == TIMED_OUT {
            return None;
        }
        let at = deadline_of(current, deadline)?;
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        // The second keeps the check from coming too early by a rounding of clocks.
        let slack = Duration::from_secs(1);
        Some(left + if left < slack { SHORT_WAIT } else { slack })
    }

    fn explain(&self, status: &ReplicaStatus, transcript: &mut Transcript) {
        let wanted = self.spec().wanted();
        if status.updated_replicas < wanted {
            let updated = status.updated_replicas;
            transcript.because(format!("{updated} of {wanted} pods are of the current template"));
        }
        if status.available_replicas < wanted {
            let missing = wanted.wrapping_sub(status.available_replicas);
            transcript.because(format!("waits for {missing} of {wanted} pods to become available"));
        }
        if let Some(failure) = status.condition(REPLICA_FAILURE) {
            transcript.because(format!("pods are not created or deleted: {}", failure.message));
        }
        let progress = status.condition(PROGRESSING);
        if progress.is_some_and(|progress| &*progress.reason == TIMED_OUT) {
            transcript.because("there was no progress within the deadline");
        }
    }
}

/// When a rollout has timed out that made no progress since.
fn deadline_of(condition: &ReplicaCondition, deadline: i32) -> Option<Timestamp> {
    condition.last_update_time?.checked_add(SignedDuration::from_secs(deadline.into())).ok()
}

/// More pods are new, ready or available, or fewer are old.
// k8s: pkg/controller/deployment/util/deployment_util.go DeploymentProgressing
pub(super) fn is_progressing(old: &ReplicaStatus, new: &ReplicaStatus) -> bool {
    let outdated = |status: &ReplicaStatus| status.replicas.wrapping_sub(status.updated_replicas);
    new.updated_replicas > old.updated_replicas
        || outdated(new) < outdated(old)
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas
}

/// The last progress is longer ago than the deadline.
// k8s: pkg/controller/deployment/util/deployment_util.go DeploymentTimedOut
pub(super) fn is_timed_out(status: &ReplicaStatus, deadline: i32, now: Timestamp) -> bool {
    let Some(condition) = status.condition(PROGRESSING) else { return false };
    match &*condition.reason {
        // The end of an earlier rollout says nothing about this one.
        SET_AVAILABLE => false,
        TIMED_OUT => true,
        _ => deadline_of(condition, deadline).is_some_and(|at| at < now),
    }
}
