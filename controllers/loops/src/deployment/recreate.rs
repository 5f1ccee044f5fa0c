//! The strategy `Recreate`: all old pods end before the first new one is created.
// k8s: pkg/controller/deployment/recreate.go

use std::collections::BTreeSet;

use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::meta::Uid;

use super::rollout::Rollout;
use super::scale::ScaleWrite;
use super::sets;
use super::status::is_complete;

impl Rollout<'_> {
    /// Takes the next step; `running` are the sets that have pods that have not ended.
    ///
    /// # Errors
    /// When a write failed.
    // k8s: pkg/controller/deployment/recreate.go rolloutRecreate
    pub(super) fn recreate(
        &mut self,
        running: &BTreeSet<Uid>,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        self.sync_revision(false, transcript)?;
        if self.scale_down_all_old(transcript)? {
            return self.sync_rollout_status(transcript);
        }
        if self.has_old_pods(running) {
            transcript.because("waits for the pods of old ReplicaSets to end");
            return self.sync_rollout_status(transcript);
        }
        if self.new.is_none() {
            self.sync_revision(true, transcript)?;
        }
        if let Some(new) = self.new.clone() {
            self.scale_set(&new, self.spec().wanted(), ScaleWrite::OfSize, transcript)?;
        }
        if is_complete(self, &self.status) {
            self.clean_up(transcript)?;
        }
        self.sync_rollout_status(transcript)
    }

    /// Scales old sets to nothing; says whether any had pods.
    // k8s: pkg/controller/deployment/recreate.go scaleDownOldReplicaSetsForRecreate
    pub(super) fn scale_down_all_old(
        &self,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        let mut is_any_scaled = false;
        for set in sets::active(&self.old) {
            is_any_scaled |= self.scale_set(&set, 0, ScaleWrite::OfSize, transcript)?.is_scaled;
        }
        Ok(is_any_scaled)
    }

    /// Old sets have pods, by their own count or by that of their pods.
    // k8s: pkg/controller/deployment/recreate.go oldPodsRunning
    pub(super) fn has_old_pods(&self, running: &BTreeSet<Uid>) -> bool {
        sets::counted(&self.old, |status| status.replicas) > 0
            || self.old.iter().any(|set| running.contains(&set.metadata.uid))
    }
}
