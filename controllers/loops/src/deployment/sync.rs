//! One sync of a Deployment: the order of its steps.
// k8s: pkg/controller/deployment/deployment_controller.go syncDeployment

use pintle_api_types::kind::{DEPLOYMENTS, REPLICA_SETS};
use pintle_controllers_core::common::claim::Claim;
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::ReplicaSet;

use super::conditions::{self, ConditionChange, PAUSED, PROGRESSING, RESUMED, TIMED_OUT};
use super::rollback::rollback_to;
use super::rollout::Rollout;
use super::{DeploymentSnapshot, RECREATE, ROLLING_UPDATE};

pub(super) fn sync(
    snapshot: &DeploymentSnapshot,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<()>, TranscriptStop> {
    let deployment = &*snapshot.deployment;
    let mut rollout = Rollout::new(deployment);
    let selector = &deployment.spec.selector;
    if selector.is_everything() {
        return rollout.refuse_selector(transcript);
    }
    let owner = &deployment.metadata;
    let claim = Claim { owner_kind: DEPLOYMENTS, owner, kind: REPLICA_SETS, finalizers: &[] };
    let is_selected = |set: &KeptObject<ReplicaSet>| selector.matches(&set.metadata.labels);
    rollout.assign_sets(claim.claim(&snapshot.sets, is_selected, transcript)?);
    if deployment.metadata.is_deleting() {
        transcript.because("the Deployment is being deleted: only its status is kept current");
        rollout.sync_revision(false, transcript)?;
        return rollout.sync_status(transcript);
    }
    rollout.check_paused(transcript)?;
    if deployment.spec.paused {
        transcript.because("the rollout is paused");
        return rollout.sync_scale(transcript);
    }
    if let Some(revision) = rollback_to(deployment) {
        return rollout.roll_back(revision, transcript);
    }
    if rollout.is_scaling_event(transcript)? {
        return rollout.sync_scale(transcript);
    }
    match &*deployment.spec.strategy.kind {
        RECREATE => rollout.recreate(&snapshot.running, transcript),
        ROLLING_UPDATE => rollout.roll(transcript),
        other => {
            Err(TranscriptStop::failed(format!("unexpected deployment strategy type: {other}")))
        }
    }
}

impl Rollout<'_> {
    fn refuse_selector(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        self.warn("SelectingAll", message.into(), transcript);
        let generation = self.deployment.metadata.generation;
        if self.status.observed_generation < generation {
            self.status.observed_generation = generation;
            drop(self.try_write_status(transcript)?); // nothing else depends on it
        }
        Ok(SyncOutcome::done())
    }

    /// Scales without rolling out.
    // k8s: pkg/controller/deployment/sync.go sync
    fn sync_scale(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        self.sync_revision(false, transcript)?;
        self.scale(transcript)?;
        if self.spec().paused && rollback_to(self.deployment).is_none() {
            self.clean_up(transcript)?;
        }
        self.sync_status(transcript)
    }

    /// Records that the rollout was paused or resumed: the time while it is paused does not count
    /// towards the deadline.
    // k8s: pkg/controller/deployment/sync.go checkPausedConditions
    fn check_paused(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        if conditions::progress_deadline(self.spec()).is_none() {
            return Ok(());
        }
        let reason = self.status.condition(PROGRESSING).map(|condition| &*condition.reason);
        let is_known = reason == Some(PAUSED);
        let is_paused = self.spec().paused;
        if reason == Some(TIMED_OUT) || is_known == is_paused {
            return Ok(());
        }
        let (reason, message) = match is_paused {
            true => (PAUSED, "Deployment is paused"),
            false => (RESUMED, "Deployment is resumed"),
        };
        let finding = ConditionChange::progressing("Unknown", reason);
        conditions::set(&mut self.status, finding.condition(message, transcript.now()));
        self.write_status(transcript)
    }
}
