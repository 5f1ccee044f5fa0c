//! The state of one sync: the Deployment and its sets, as they are after the writes so far.

use pintle_api_types::kind::{DEPLOYMENTS, REPLICA_SETS};
use pintle_api_types::request::{Answer, Request, Target};
use pintle_controllers_core::frame::{
    EventTarget, ObjectEvent, Retry, SyncError, Transcript, TranscriptStop,
};
use pintle_controllers_core::kept::{Facts, KeptObject};
use pintle_controllers_core::kinds::{Deployment, DeploymentSpec, ReplicaStatus};
use serde_json::Value;

use super::annotations::{self, Annotations};
use super::sets::{self, REVISION, Set};
use super::status;

/// A Deployment that is being synced.
pub(super) struct Rollout<'a> {
    pub(super) deployment: &'a KeptObject<Deployment>,
    /// The changes that this sync makes to it.
    edits: Edits,
    /// Its status, with what this sync has found so far.
    pub(super) status: ReplicaStatus,
    /// The set with the Deployment's template.
    pub(super) new: Option<Set>,
    /// All others, the oldest first.
    pub(super) old: Vec<Set>,
}

/// Changes of a Deployment by a sync. The whole object is parsed only when it is sent.
#[derive(Default)]
struct Edits {
    annotations: Option<Annotations>,
    template: Option<Value>,
    status: Option<Value>,
    /// The version that this sync wrote.
    version: Option<Value>,
}

impl<'a> Rollout<'a> {
    /// A Deployment without its sets.
    pub(super) fn new(deployment: &'a KeptObject<Deployment>) -> Self {
        let status = deployment.status.clone();
        Self { deployment, edits: Edits::default(), status, new: None, old: Vec::new() }
    }

    /// Finds the new one among the Deployment's sets; of several equal ones it is the oldest.
    // k8s: pkg/controller/deployment/util/deployment_util.go FindNewReplicaSet, FindOldReplicaSets
    pub(super) fn assign_sets(&mut self, mut sets: Vec<Set>) {
        sets.sort_by(sets::by_creation);
        let template = self.deployment.template_digest();
        let is_new = |set: &Set| set.template_digest() == template;
        let at = sets.iter().position(is_new);
        self.new = at.map(|at| sets.remove(at));
        self.old = sets;
    }

    /// The desired state.
    pub(super) fn spec(&self) -> &'a DeploymentSpec {
        &self.deployment.spec
    }

    /// The Deployment's name.
    pub(super) fn name(&self) -> &'a str {
        &self.deployment.metadata.name
    }

    /// The pod template.
    pub(super) fn template(&self) -> Value {
        self.edits.template.clone().unwrap_or_else(|| self.deployment.template())
    }

    /// Replaces the pod template.
    pub(super) fn set_template(&mut self, template: Value) {
        self.edits.template = Some(template);
    }

    /// The annotations.
    pub(super) fn annotations(&self) -> Annotations {
        self.edits.annotations.clone().unwrap_or_else(|| self.deployment.annotations())
    }

    /// Replaces the annotations.
    pub(super) fn set_annotations(&mut self, annotations: Annotations) {
        self.edits.annotations = Some(annotations);
    }

    /// The whole Deployment as it is to be.
    fn body(&self) -> Value {
        let Edits { annotations, template, status, version } = &self.edits;
        let mut body = self.deployment.value();
        if let Some(annotations) = annotations {
            annotations::put(&mut body, annotations.clone());
        }
        if let Some(template) = template {
            body["spec"]["template"] = template.clone();
        }
        if let Some(status) = status {
            body["status"] = status.clone();
        }
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = version.clone();
        }
        body
    }

    /// All sets, the new one last.
    pub(super) fn all(&self) -> Vec<Set> {
        self.old.iter().chain(&self.new).cloned().collect()
    }

    /// Records the current revision; says whether it is another one.
    // k8s: pkg/controller/deployment/util/deployment_util.go SetDeploymentRevision
    pub(super) fn set_revision(&mut self, revision: &str) -> bool {
        let mut known = self.annotations();
        if annotations::text(&known, REVISION) == revision {
            return false;
        }
        known.insert(REVISION.into(), revision.into());
        self.set_annotations(known);
        true
    }

    /// Writes the status and, with it, the annotations.
    ///
    /// # Errors
    /// When that failed.
    pub(super) fn write_status(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        self.try_write_status(transcript)??;
        Ok(())
    }

    /// Writes the status for what it is worth.
    ///
    /// # Errors
    /// Only until there is an answer.
    pub(super) fn try_write_status(
        &mut self,
        transcript: &mut Transcript,
    ) -> Result<Answer, TranscriptStop> {
        self.edits.status = Some(status::to_value(&self.status));
        let target = Target::status(DEPLOYMENTS, self.deployment.metadata.key());
        self.replace(target, transcript)
    }

    /// Writes the Deployment itself.
    ///
    /// # Errors
    /// When that failed.
    pub(super) fn write(&mut self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let target = Target::object(DEPLOYMENTS, self.deployment.metadata.key());
        self.replace(target, transcript)??;
        Ok(())
    }

    fn replace(
        &mut self,
        target: Target,
        transcript: &mut Transcript,
    ) -> Result<Answer, TranscriptStop> {
        let answer = transcript.send_with(|| Request::Replace { target, body: self.body() })?;
        if let Ok(updated) = &answer {
            // The next write of this sync replaces what this one wrote.
            self.edits.version = Some(updated["metadata"]["resourceVersion"].clone());
        }
        Ok(answer)
    }

    /// Records an event about the Deployment as it should be.
    pub(super) fn note(&self, reason: &'static str, message: String, transcript: &mut Transcript) {
        transcript.event(ObjectEvent::normal(self.about(), reason, message));
    }

    /// Records an event about the Deployment as it should not be.
    pub(super) fn warn(&self, reason: &'static str, message: String, transcript: &mut Transcript) {
        transcript.event(ObjectEvent::warning(self.about(), reason, message));
    }

    fn about(&self) -> EventTarget {
        EventTarget::of(DEPLOYMENTS, &self.deployment.metadata)
    }
}

/// Replaces a set; returns it as it is then.
///
/// # Errors
/// When that failed.
pub(super) fn replace_set(
    set: &Set,
    body: impl FnOnce() -> Value,
    transcript: &mut Transcript,
) -> Result<Set, TranscriptStop> {
    let target = Target::object(REPLICA_SETS, set.metadata.key());
    let updated = transcript.send_with(|| Request::Replace { target, body: body() })??;
    set_of(&updated)
}

/// The set in an answer.
///
/// # Errors
/// When it cannot be read.
pub(super) fn set_of(answer: &Value) -> Result<Set, TranscriptStop> {
    decode(answer).map(Into::into)
}

fn decode<T: Facts>(answer: &Value) -> Result<KeptObject<T>, TranscriptStop> {
    KeptObject::of_value(answer).map_err(|error| {
        let message = format!("an answer of the API server cannot be read: {error}");
        TranscriptStop::Failed(SyncError { message, retry: Retry::Backoff })
    })
}
