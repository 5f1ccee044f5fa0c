//! Deletes old sets beyond the number that the Deployment keeps for rollbacks.
// k8s: pkg/controller/deployment/sync.go cleanupDeployment

use pintle_api_types::kind::REPLICA_SETS;
use pintle_api_types::request::{DeleteOptions, Request, Target};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};

use super::rollout::Rollout;
use super::sets::{self, Set};

impl Rollout<'_> {
    /// Deletes the old sets of the lowest revisions that have no pods.
    ///
    /// # Errors
    /// With the first failure; sets after it stay.
    pub(super) fn clean_up(&self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let limit = self.spec().revision_history_limit.filter(|limit| *limit != i32::MAX);
        let Some(limit) = limit else { return Ok(()) };
        let mut old: Vec<_> =
            self.old.iter().filter(|set| !set.metadata.is_deleting()).cloned().collect();
        old.sort_by(sets::by_revision);
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        for set in old.iter().take(surplus).filter(|set| is_unused(set)) {
            let target = Target::object(REPLICA_SETS, set.metadata.key());
            let options = DeleteOptions::default();
            match transcript.send(Request::Delete { target, options })? {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The set has no pods, and its controller has seen that it wants none.
fn is_unused(set: &Set) -> bool {
    set.status.replicas == 0
        && set.spec.wanted() == 0
        && set.metadata.generation <= set.status.observed_generation
}
