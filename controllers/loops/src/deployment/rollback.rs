//! Rollbacks that clients of an old API ask for by an annotation.
// k8s: pkg/controller/deployment/rollback.go

use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::golang::equal::POD_TEMPLATE_HASH;
use pintle_controllers_core::kinds::Deployment;

use super::annotations::{self, ROLLBACK_TO};
use super::rollout::Rollout;
use super::sets::{self, Set};

const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
const UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
const DONE: &str = "DeploymentRollback";

/// The revision that a Deployment is to be rolled back to; 0 means the last one.
// k8s: pkg/controller/deployment/rollback.go getRollbackTo
pub(super) fn rollback_to(deployment: &Deployment) -> Option<i64> {
    deployment.metadata.annotation(ROLLBACK_TO)?.parse().ok()
}

impl Rollout<'_> {
    /// Rolls back to a revision; in any case the request for it is removed.
    ///
    /// # Errors
    /// When a write failed.
    // k8s: pkg/controller/deployment/rollback.go rollback
    pub(super) fn roll_back(
        &mut self,
        revision: i64,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        self.sync_revision(true, transcript)?;
        let all = self.all();
        let revision = match revision {
            0 => sets::last_revision(&all),
            revision => revision,
        };
        if revision == 0 {
            self.warn(NOT_FOUND, "Unable to find last revision.".into(), transcript);
            return self.clear_rollback(transcript);
        }
        match all.iter().find(|set| sets::revision(set) == Some(revision)) {
            Some(set) => self.roll_back_to_set(set, revision, transcript),
            None => {
                let message = "Unable to find the revision to rollback to.".into();
                self.warn(NOT_FOUND, message, transcript);
                self.clear_rollback(transcript)
            }
        }
    }

    // k8s: pkg/controller/deployment/rollback.go rollbackToTemplate
    fn roll_back_to_set(
        &mut self,
        set: &Set,
        revision: i64,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let name = self.name();
        let mut template = set.template();
        if set.template_digest() == self.deployment.template_digest() {
            let message = format!(
                "The rollback revision contains the same template as current deployment {name:?}"
            );
            self.warn(UNCHANGED, message, transcript);
            return self.clear_rollback(transcript);
        }
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove(POD_TEMPLATE_HASH);
        }
        self.set_template(template);
        // Otherwise the new set would take over the annotations of the revision that is left.
        self.set_annotations(annotations::roll_back(self.annotations(), set.annotations()));
        let outcome = self.clear_rollback(transcript)?;
        let message = format!("Rolled back deployment {name:?} to revision {revision}");
        self.note(DONE, message, transcript);
        Ok(outcome)
    }

    // k8s: pkg/controller/deployment/rollback.go updateDeploymentAndClearRollbackTo
    fn clear_rollback(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let mut known = self.annotations();
        known.remove(ROLLBACK_TO);
        self.set_annotations(known);
        self.write(transcript)?;
        Ok(SyncOutcome::done())
    }
}
