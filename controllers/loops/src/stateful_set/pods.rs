//! Creates, updates and deletes the pods of a StatefulSet with their claims, and records events
//! about that.
//!
//! Input: the set, its claims and a pod. Output: requests and events. A claim exists before its
//! pod. A pod that is updated is read live first, because tables keep only some of its fields.
// k8s: pkg/controller/statefulset/stateful_pod_control.go

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_api_types::kind::{PERSISTENT_VOLUME_CLAIMS, PODS};
use pintle_api_types::request::{ApiError, Request, Target};
use pintle_controllers_core::common::lockstep::{aggregate, attempt};
use pintle_controllers_core::common::pods;
use pintle_controllers_core::frame::{
    EventTarget, ObjectEvent, Retry, SyncError, Transcript, TranscriptStop,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{PersistentVolumeClaim, Pod, StatefulSet};
use serde_json::Value;

use super::claims::{self, ClaimUser, OwnedClaim};
use super::identity;

/// How often an update of a pod is tried.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultBackoff
const UPDATES_MAX: u32 = 4;

/// Claims by name.
pub(super) type Claims = BTreeMap<String, Rc<KeptObject<PersistentVolumeClaim>>>;

/// The action on a pod, for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Update,
    Delete,
}

/// Acts on the pods of a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodControl<'a> {
    /// The set.
    pub(super) set: &'a StatefulSet,
    /// The whole set.
    pub(super) whole: &'a Value,
    /// The claims of its pods that exist.
    pub(super) claims: &'a Claims,
    /// The set as events name it.
    pub(super) about: &'a EventTarget,
}

impl PodControl<'_> {
    fn owned<'b>(
        &'b self,
        pod: ClaimUser<'b>,
        ordinal: i64,
    ) -> impl Iterator<Item = (OwnedClaim<'b>, &'b KeptObject<PersistentVolumeClaim>)> {
        claims::claim_names(self.set, ordinal).filter_map(move |name| {
            let claim = self.claims.get(&name)?;
            Some((OwnedClaim { set: self.set, pod, claim }, &**claim))
        })
    }

    /// A claim still belongs to an earlier pod of this name: the pod cannot be created yet.
    // k8s: stateful_pod_control.go PodClaimIsStale
    pub(super) fn has_stale_claim(&self, pod: ClaimUser<'_>, ordinal: i64) -> bool {
        let policy = &self.set.spec.persistent_volume_claim_retention_policy;
        &*policy.when_scaled != "Retain"
            && self.owned(pod, ordinal).any(|(claim, _)| claim.is_stale_for_pod())
    }

    /// The pod's claims have the owners that the retention policy asks for.
    // k8s: stateful_pod_control.go ClaimsMatchRetentionPolicy
    pub(super) fn match_policy(&self, pod: ClaimUser<'_>, ordinal: i64) -> bool {
        self.owned(pod, ordinal).all(|(claim, _)| claim.is_up_to_date())
    }

    /// Gives the pod's claims the owners that the retention policy asks for.
    ///
    /// # Errors
    /// When the API server refuses a claim.
    // k8s: stateful_pod_control.go UpdatePodClaimForRetentionPolicy
    pub(super) fn apply_policy(
        &self,
        pod: ClaimUser<'_>,
        ordinal: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        for (owned, claim) in self.owned(pod, ordinal) {
            let name = &claim.metadata.name;
            if owned.has_foreign_controller() {
                let message = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a \
                     manging controller, the retention policy is ignored for this claim"
                );
                transcript.event(ObjectEvent::warning(
                    self.about.clone(),
                    "ConflictingController",
                    message,
                ));
            }
            if owned.is_up_to_date() {
                continue;
            }
            let mut body = claim.value();
            owned.set_owners(&mut body);
            let target = Target::object(PERSISTENT_VOLUME_CLAIMS, claim.metadata.key());
            if let Err(error) = transcript.send(Request::Replace { target, body })? {
                let retry = if error.is_conflict() { Retry::Quietly } else { Retry::Backoff };
                let message =
                    format!("could not update claim {name} for delete policy ownerRefs: {error}");
                return Err(TranscriptStop::Failed(SyncError { message, retry }));
            }
        }
        Ok(())
    }

    /// Gives the pod's claims their owners unless they have them all.
    ///
    /// # Errors
    /// As [`Self::apply_policy`].
    pub(super) fn apply_policy_if_needed(
        &self,
        pod: ClaimUser<'_>,
        ordinal: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        match self.match_policy(pod, ordinal) {
            true => Ok(()),
            false => self.apply_policy(pod, ordinal, transcript),
        }
    }

    /// Creates the claims that the pod of an ordinal lacks.
    ///
    /// # Errors
    /// When one of them cannot be created, or is being deleted.
    // k8s: stateful_pod_control.go createPersistentVolumeClaims
    fn create_claims(
        &self,
        ordinal: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let names: Vec<_> = claims::claim_names(self.set, ordinal).collect();
        let is_missing = |at: &usize| !self.claims.contains_key(&names[*at]);
        let create = |at: usize| Request::Create {
            kind: PERSISTENT_VOLUME_CLAIMS,
            namespace: self.set.metadata.namespace.as_str().to_owned(),
            below: None,
            body: claims::new_claim(self.set, self.whole, at, ordinal),
        };
        let requests = (0..names.len()).filter(is_missing).map(create).collect();
        let mut answers = transcript.send_all(requests)?.into_iter();
        let mut errors = Vec::new();
        for name in &names {
            match self.claims.get(name) {
                Some(claim) if claim.metadata.is_deleting() => {
                    errors.push(failed(format!("pvc {name} is being deleted")));
                }
                Some(_) => {}
                None => {
                    let error = answers.next().expect("an answer for each request").err();
                    if error.as_ref().is_none_or(|error| !error.is_already_exists()) {
                        self.record_claim(name, ordinal, error.as_ref(), transcript);
                    }
                    let message =
                        error.map(|error| format!("failed to create PVC {name}: {error}"));
                    errors.extend(message.map(failed));
                }
            }
        }
        aggregate(errors).map_or(Ok(()), |error| Err(TranscriptStop::Failed(error)))
    }

    /// Creates the claims that a pending pod lacks, and gives all of them their owners.
    ///
    /// # Errors
    /// As [`Self::apply_policy`] and when a claim cannot be created.
    // k8s: stateful_pod_control.go createMissingPersistentVolumeClaims
    pub(super) fn complete_claims(
        &self,
        pod: &Pod,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let name = &*pod.metadata.name;
        let ordinal = identity::ordinal(name).expect("a replica has an ordinal");
        self.create_claims(ordinal, transcript)?;
        let applied = self.apply_policy(ClaimUser::of(pod), ordinal, transcript);
        self.record_failure(Verb::Update, name, applied, transcript)
    }

    /// Creates the pod of an ordinal after its claims.
    ///
    /// # Errors
    /// When a claim or the pod cannot be created.
    // k8s: stateful_pod_control.go CreateStatefulPod
    pub(super) fn create(
        &self,
        ordinal: i64,
        pod: Value,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let name = identity::pod_name(self.set, ordinal);
        let claimed = self.create_claims(ordinal, transcript);
        self.record_failure(Verb::Create, &name, claimed, transcript)?;
        let answer = transcript.send(pods::create(&self.set.metadata.namespace, pod)?)?;
        if let Err(error) = &answer
            && error.is_already_exists()
        {
            return Err(error.clone().into());
        }
        let user = ClaimUser { name: &name, uid: "" };
        let applied = self.apply_policy(user, ordinal, transcript);
        self.record_failure(Verb::Update, &name, applied, transcript)?;
        let created = answer.map(drop).map_err(TranscriptStop::from);
        self.record(Verb::Create, &name, created, transcript)
    }

    /// The pod has its identity, volumes, and claims with the right owners.
    pub(super) fn is_consistent(&self, pod: &Pod) -> bool {
        let ordinal = identity::ordinal(&pod.metadata.name);
        identity::has_identity(self.set, pod)
            && claims::has_storage(self.set, pod)
            && ordinal.is_none_or(|ordinal| self.match_policy(ClaimUser::of(pod), ordinal))
    }

    /// Gives a pod its identity and volumes, and its claims their owners.
    ///
    /// # Errors
    /// When the API server refuses the pod or a claim.
    // k8s: stateful_pod_control.go UpdateStatefulPod
    pub(super) fn update(
        &self,
        pod: &Pod,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let name = &*pod.metadata.name;
        let ordinal = identity::ordinal(name).expect("a replica has an ordinal");
        if !claims::has_storage(self.set, pod) {
            let claimed = self.create_claims(ordinal, transcript);
            self.record_failure(Verb::Update, name, claimed, transcript)?;
        }
        let applied = self.apply_policy_if_needed(ClaimUser::of(pod), ordinal, transcript);
        self.record_failure(Verb::Update, name, applied, transcript)?;
        let updated = self.replace(pod, ordinal, transcript);
        self.record(Verb::Update, name, updated, transcript)
    }

    /// Replaces a pod by its newest state with identity and volumes; retries on conflicts.
    fn replace(
        &self,
        pod: &Pod,
        ordinal: i64,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let target = Target::object(PODS, pod.metadata.key());
        let mut updates = 0;
        loop {
            let read = Request::Read { target: target.clone(), only_metadata: false };
            let mut body = transcript.send(read)??;
            if body["metadata"]["uid"] != pod.metadata.uid.as_str() {
                let message = format!("pod {} was recreated meanwhile", pod.metadata.key());
                return Err(TranscriptStop::Failed(SyncError { message, retry: Retry::Quietly }));
            }
            if !identity::has_identity(self.set, pod) {
                identity::set_identity(self.set, ordinal, &mut body);
            }
            if !claims::has_storage(self.set, pod) {
                claims::set_volumes(self.set, ordinal, &mut body);
            }
            updates += 1;
            match transcript.send(Request::Replace { target: target.clone(), body })? {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && updates < UPDATES_MAX => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes a pod; one that no longer exists counts as deleted.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: stateful_pod_control.go DeleteStatefulPod
    pub(super) fn delete(
        &self,
        pod: &Pod,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let deleted = match transcript.send(pods::delete(&pod.metadata.key()))? {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        };
        self.record(Verb::Delete, &pod.metadata.name, deleted, transcript)
    }

    /// Records an event if something failed, and returns the failure.
    fn record_failure(
        &self,
        verb: Verb,
        pod: &str,
        result: Result<(), TranscriptStop>,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        match attempt(result)? {
            Ok(()) => Ok(()),
            Err(error) => self.record(verb, pod, Err(TranscriptStop::Failed(error)), transcript),
        }
    }

    /// Records an event about what was done to a pod, and returns the failure if there is one.
    // k8s: stateful_pod_control.go recordPodEvent
    fn record(
        &self,
        verb: Verb,
        pod: &str,
        result: Result<(), TranscriptStop>,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let about = self.about.clone();
        let result = attempt(result)?;
        let (done, failed) = match verb {
            Verb::Create => ("SuccessfulCreate", "FailedCreate"),
            Verb::Update => ("SuccessfulUpdate", "FailedUpdate"),
            Verb::Delete => ("SuccessfulDelete", "FailedDelete"),
        };
        let subject = format!("{verb:?} Pod {pod} in StatefulSet {}", self.set.metadata.name);
        transcript.event(match &result {
            Ok(()) => ObjectEvent::normal(about, done, format!("{subject} successful")),
            Err(error) => {
                ObjectEvent::warning(about, failed, format!("{subject} failed error: {error}"))
            }
        });
        result.map_err(TranscriptStop::Failed)
    }

    // k8s: stateful_pod_control.go recordClaimEvent
    fn record_claim(
        &self,
        claim: &str,
        ordinal: i64,
        error: Option<&ApiError>,
        transcript: &mut Transcript,
    ) {
        let (pod, set) = (identity::pod_name(self.set, ordinal), &self.set.metadata.name);
        let about = self.about.clone();
        transcript.event(match error {
            None => {
                let message =
                    format!("Create Claim {claim} Pod {pod} in StatefulSet {set} success");
                ObjectEvent::normal(about, "SuccessfulCreate", message)
            }
            Some(error) => {
                let message = format!(
                    "Create Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {error}"
                );
                ObjectEvent::warning(about, "FailedCreate", message)
            }
        });
    }
}

fn failed(message: String) -> SyncError {
    SyncError { message, retry: Retry::Backoff }
}
