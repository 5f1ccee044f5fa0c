//! The set of the current template: found and brought up to date, or created.
// k8s: pkg/controller/deployment/sync.go getNewReplicaSet

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, REPLICA_SETS};
use pintle_api_types::request::{ApiError, Request, Target};
use pintle_controllers_core::common::owner::controller_reference;
use pintle_controllers_core::frame::{Retry, SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::golang::equal::POD_TEMPLATE_HASH;
use pintle_controllers_core::golang::hash::pod_template_hash;
use serde_json::{Value, json};

use super::annotations;
use super::conditions::{self, CREATE_ERROR, ConditionChange, PROGRESSING, SET_CREATED, SET_FOUND};
use super::limits;
use super::rollout::{Rollout, replace_set, set_of};
use super::sets::{self, REVISION, Set};

/// Longest name of a set.
const NAME_MAX: usize = 253;

/// A set that is to be created.
struct Draft {
    name: String,
    replicas: i32,
    body: Value,
}

impl Rollout<'_> {
    /// Brings the new set, its revision and the Deployment's up to date; creates the set if it is
    /// not there and `may_create`.
    ///
    /// # Errors
    /// When a write failed.
    // k8s: pkg/controller/deployment/sync.go getAllReplicaSetsAndSyncRevision
    pub(super) fn sync_revision(
        &mut self,
        may_create: bool,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let revision = sets::max_revision(&self.old).wrapping_add(1);
        match self.new.clone() {
            Some(set) => self.update_new_set(&set, revision, transcript),
            None if may_create => self.create_new_set(revision, transcript),
            None => Ok(()),
        }
    }

    fn update_new_set(
        &mut self,
        set: &Set,
        revision: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let mut annotations = set.annotations();
        let is_changed = annotations::update_set(&mut annotations, &self.annotations(), revision);
        let min_ready = self.spec().min_ready_seconds;
        if is_changed || set.spec.min_ready_seconds != min_ready {
            let body = || {
                let mut body = set.value();
                annotations::put(&mut body, annotations);
                set_min_ready(&mut body, min_ready);
                body
            };
            self.new = Some(replace_set(set, body, transcript)?);
            return Ok(());
        }
        let mut has_news = self.set_revision(annotations::text(&annotations, REVISION));
        let has_deadline = conditions::progress_deadline(self.spec()).is_some();
        if has_deadline && self.status.condition(PROGRESSING).is_none() {
            let message = format!("Found new replica set {:?}", &*set.metadata.name);
            let finding = ConditionChange::progressing("True", SET_FOUND);
            conditions::set(&mut self.status, finding.condition(&message, transcript.now()));
            has_news = true;
        }
        if has_news { self.write_status(transcript) } else { Ok(()) }
    }

    fn create_new_set(
        &mut self,
        revision: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let draft = self.draft_new_set(revision)?;
        let request = Request::Create {
            kind: REPLICA_SETS,
            namespace: self.deployment.metadata.namespace.to_string(),
            below: None,
            body: draft.body.clone(),
        };
        let mut is_created = false;
        let set = match transcript.send(request)? {
            Ok(created) => {
                is_created = true;
                set_of(&created)?
            }
            Err(error) if error.is_already_exists() => {
                self.settle_name(&draft, error, transcript)?
            }
            Err(error) => return Err(self.report_failure(&draft, error, transcript)?),
        };
        if is_created && draft.replicas > 0 {
            let (name, count) = (&set.metadata.name, draft.replicas);
            let message = format!("Scaled up replica set {name} from 0 to {count}");
            self.note("ScalingReplicaSet", message, transcript);
        }
        let mut has_news = self.set_revision(&revision.to_string());
        if is_created && conditions::progress_deadline(self.spec()).is_some() {
            let message = format!("Created new replica set {:?}", &*set.metadata.name);
            let finding = ConditionChange::progressing("True", SET_CREATED);
            conditions::set(&mut self.status, finding.condition(&message, transcript.now()));
            has_news = true;
        }
        self.new = Some(set);
        if has_news { self.write_status(transcript) } else { Ok(()) }
    }

    fn draft_new_set(&self, revision: i64) -> Result<Draft, TranscriptStop> {
        let meta = &self.deployment.metadata;
        let spec = self.spec();
        let mut template = self.template();
        let hash = pod_template_hash(&template, self.status.collision_count);
        template["metadata"]["labels"][POD_TEMPLATE_HASH] = hash.as_str().into();
        let mut selector = self.deployment.value()["spec"]["selector"].take();
        selector["matchLabels"][POD_TEMPLATE_HASH] = hash.as_str().into();
        let replicas = limits::new_set_replicas(spec, &self.old, 0)?;
        let mut known = annotations::Annotations::new();
        annotations::update_set(&mut known, &self.annotations(), revision);
        annotations::set_replicas(&mut known, spec.wanted(), limits::max_replicas(spec));
        let name = set_name(&meta.name, &hash);
        let mut body = json!({
            "apiVersion": REPLICA_SETS.api_version(),
            "kind": REPLICA_SETS.kind,
            "metadata": {
                "name": name,
                "namespace": &*meta.namespace,
                "labels": template["metadata"]["labels"],
                "annotations": known,
                "ownerReferences": [controller_reference(DEPLOYMENTS, meta)],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        });
        set_min_ready(&mut body, spec.min_ready_seconds);
        Ok(Draft { name, replicas, body })
    }

    /// Resolves a name that exists already: it is the new set, which the tables do not show yet, or
    /// the hash collides with that of another template. Upstream reads it from its cache, which may
    /// lack it.
    fn settle_name(
        &mut self,
        draft: &Draft,
        error: ApiError,
        transcript: &mut Transcript,
    ) -> Result<Set, TranscriptStop> {
        let key = ObjectKey::new(&self.deployment.metadata.namespace, &draft.name);
        let target = Target::object(REPLICA_SETS, key);
        let found = transcript.send(Request::Read { target, only_metadata: false })??;
        let set = set_of(&found)?;
        if set.metadata.is_controlled_by(&self.deployment.metadata.uid)
            && set.template_digest() == self.deployment.template_digest()
        {
            return Ok(set);
        }
        transcript.because(format!("the name {} of the new ReplicaSet is taken", draft.name));
        let count = self.status.collision_count.unwrap_or_default();
        self.status.collision_count = Some(count.wrapping_add(1));
        drop(self.try_write_status(transcript)?); // the conflict is the error to report
        Err(error.into())
    }

    /// Reports that the new set could not be created; returns the failure.
    fn report_failure(
        &mut self,
        draft: &Draft,
        error: ApiError,
        transcript: &mut Transcript,
    ) -> Result<TranscriptStop, TranscriptStop> {
        if error.is_namespace_terminating() {
            let message = error.message;
            transcript.because("the namespace is being deleted: no ReplicaSet is created");
            // k8s: pkg/controller/deployment/deployment_controller.go handleErr
            return Ok(TranscriptStop::Failed(SyncError { message, retry: Retry::NeverSilently }));
        }
        let message = format!("Failed to create new replica set {:?}: {error}", draft.name);
        if conditions::progress_deadline(self.spec()).is_some() {
            let finding = ConditionChange::progressing("False", CREATE_ERROR);
            conditions::set(&mut self.status, finding.condition(&message, transcript.now()));
            drop(self.try_write_status(transcript)?); // the creation is the error to report
        }
        self.warn(CREATE_ERROR, message, transcript);
        Ok(error.into())
    }
}

/// Absent means 0, as Go's encoder has it.
fn set_min_ready(set: &mut Value, seconds: i32) {
    if seconds != 0 {
        set["spec"]["minReadySeconds"] = seconds.into();
    } else if let Some(spec) = set["spec"].as_object_mut() {
        spec.remove("minReadySeconds");
    }
}

/// The name of the set with a template hash.
// k8s: pkg/controller/deployment/sync.go generateReplicaSetName
pub(super) fn set_name(deployment: &str, hash: &str) -> String {
    let room = NAME_MAX.saturating_sub(1 + hash.len());
    let prefix = match deployment.len() > room && room > 0 {
        true => deployment.get(..room).unwrap_or(deployment),
        false => deployment,
    };
    format!("{prefix}-{hash}")
}
