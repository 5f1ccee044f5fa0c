//! The strategy `RollingUpdate`: scales the new set up and old ones down, within limits.
// k8s: pkg/controller/deployment/rolling.go

use pintle_controllers_core::frame::{Retry, SyncError, SyncOutcome, Transcript, TranscriptStop};

use super::limits;
use super::rollout::Rollout;
use super::scale::ScaleWrite;
use super::sets::{self, Set};
use super::status::is_complete;

impl Rollout<'_> {
    /// Takes the next step of a rolling update.
    ///
    /// # Errors
    /// When a write failed.
    // k8s: pkg/controller/deployment/rolling.go rolloutRolling
    pub(super) fn roll(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        self.sync_revision(true, transcript)?;
        let Some(new) = self.new.clone() else { return Ok(SyncOutcome::done()) };
        if self.reconcile_new_set(&new, transcript)? {
            return self.sync_rollout_status(transcript);
        }
        let shrunk = match self.reconcile_old_sets(&new, transcript) {
            // The status of a set lags behind its size: its next change wakes the key.
            Err(TranscriptStop::Failed(error)) if error.retry == Retry::Never => Ok(false),
            // Upstream drops this error; here the status is synced as there, and the key retried.
            Err(TranscriptStop::Failed(error)) => Err(error),
            result => Ok(result?),
        };
        if !matches!(shrunk, Ok(true)) && is_complete(self, &self.status) {
            self.clean_up(transcript)?;
        }
        let outcome = self.sync_rollout_status(transcript)?;
        shrunk.map(|_| outcome).map_err(|error: SyncError| TranscriptStop::Failed(error))
    }

    /// Scales the new set; says whether its size changed.
    // k8s: pkg/controller/deployment/rolling.go reconcileNewReplicaSet
    pub(super) fn reconcile_new_set(
        &self,
        new: &Set,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        let (size, wanted) = (new.spec.wanted(), self.spec().wanted());
        let target = match size >= wanted {
            true => wanted,
            false => limits::new_set_replicas(self.spec(), &self.all(), size)?,
        };
        if target == size && size < wanted {
            let surge = limits::max_surge(self.spec());
            transcript.because(format!(
                "the new ReplicaSet has {size} of {wanted} pods, and no more than {surge} may be \
                 added to those wanted before old ones go"
            ));
        }
        Ok(self.scale_set(new, target, ScaleWrite::OfSize, transcript)?.is_scaled)
    }

    /// Scales old sets down as far as enough pods stay available; says whether any was.
    // k8s: pkg/controller/deployment/rolling.go reconcileOldReplicaSets
    pub(super) fn reconcile_old_sets(
        &self,
        new: &Set,
        transcript: &mut Transcript,
    ) -> Result<bool, TranscriptStop> {
        let old = sets::active(&self.old);
        if sets::wanted(&old) == 0 {
            return Ok(false);
        }
        let min_available = self.min_available();
        // Pods of the new set that are not available must not cost old ones that are.
        let new_unavailable = new.spec.wanted().wrapping_sub(new.status.available_replicas);
        let max_shrink =
            sets::wanted(&self.all()).wrapping_sub(min_available).wrapping_sub(new_unavailable);
        if max_shrink <= 0 {
            transcript.because(format!(
                "waits for {new_unavailable} of {} new pods to become available",
                new.spec.wanted()
            ));
            return Ok(false);
        }
        let cleaned = self.clean_up_unhealthy(old, max_shrink, transcript)?;
        let shrunk = self.scale_down_old_sets(&cleaned.old, new, transcript)?;
        Ok(cleaned.count.wrapping_add(shrunk) > 0)
    }

    fn min_available(&self) -> i32 {
        self.spec().wanted().wrapping_sub(limits::max_unavailable(self.spec()))
    }

    /// Takes pods that are not available from old sets, the oldest first: they would block the
    /// rollout.
    // k8s: pkg/controller/deployment/rolling.go cleanupUnhealthyReplicas
    pub(super) fn clean_up_unhealthy(
        &self,
        mut old: Vec<Set>,
        max: i32,
        transcript: &mut Transcript,
    ) -> Result<Cleaned, TranscriptStop> {
        old.sort_by(sets::by_creation);
        let mut count = 0_i32;
        for set in &mut old {
            if count >= max {
                break;
            }
            let size = set.spec.wanted();
            let unhealthy = size.wrapping_sub(set.status.available_replicas);
            if size == 0 || unhealthy == 0 {
                continue;
            }
            let shrink = unhealthy.min(max.wrapping_sub(count));
            let target = size.wrapping_sub(shrink);
            if target > size {
                return Err(self.invalid_scale("cleaning up unhealthy replicas", set, target));
            }
            *set = self.scale_set(set, target, ScaleWrite::OfSize, transcript)?.set;
            count = count.wrapping_add(shrink);
        }
        Ok(Cleaned { old, count })
    }

    /// Scales old sets down, the oldest first, by the pods that are available beyond those that
    /// have to be; returns by how many.
    // k8s: pkg/controller/deployment/rolling.go scaleDownOldReplicaSetsForRollingUpdate
    pub(super) fn scale_down_old_sets(
        &self,
        old: &[Set],
        new: &Set,
        transcript: &mut Transcript,
    ) -> Result<i32, TranscriptStop> {
        let all: Vec<_> = old.iter().chain([new]).cloned().collect();
        let available = sets::available(&all);
        let min_available = self.min_available();
        if available <= min_available {
            transcript.because(format!(
                "{available} pods are available, and {min_available} have to be: old ones stay"
            ));
            return Ok(0);
        }
        let total = available.wrapping_sub(min_available);
        let mut count = 0_i32;
        for set in old {
            if count >= total {
                break;
            }
            let size = set.spec.wanted();
            if size == 0 {
                continue;
            }
            let shrink = size.min(total.wrapping_sub(count));
            let target = size.wrapping_sub(shrink);
            if target > size {
                return Err(self.invalid_scale("scaling down old RS", set, target));
            }
            self.scale_set(set, target, ScaleWrite::OfSize, transcript)?;
            count = count.wrapping_add(shrink);
        }
        Ok(count)
    }

    fn invalid_scale(&self, what: &str, set: &Set, target: i32) -> TranscriptStop {
        let (key, size) = (set.metadata.key(), set.spec.wanted());
        let message =
            format!("when {what}, got invalid request to scale down {key} {size} -> {target}");
        TranscriptStop::Failed(SyncError { message, retry: Retry::Never })
    }
}

/// Old sets without the pods that were not available.
pub(super) struct Cleaned {
    /// All old sets, the oldest first.
    pub(super) old: Vec<Set>,
    /// By how many pods they were scaled down.
    pub(super) count: i32,
}
