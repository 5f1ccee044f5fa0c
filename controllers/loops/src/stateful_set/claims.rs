//! The claims of a StatefulSet's pods: their names, volumes and owners.
//!
//! Input: a set, its pods and claims. Output: volumes, new claims, and whether and how the owners
//! of a claim have to change, so that the garbage collector deletes it when the retention policy
//! says so. Claims of another controller are not touched. Pure.
// k8s: pkg/controller/statefulset/stateful_set_utils.go

use pintle_api_types::kind::{Kind, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::common::owner::controller_reference;
use pintle_controllers_core::kinds::{ClaimTemplate, PersistentVolumeClaim, Pod, StatefulSet};
use pintle_controllers_core::meta::{Meta, OwnerReference};
use serde_json::{Value, json};

use super::identity::{is_in_range, ordinal};

/// The name of the claim of an ordinal.
// k8s: stateful_set_utils.go getPersistentVolumeClaimName
pub(super) fn claim_name(set: &StatefulSet, template: &ClaimTemplate, ordinal: i64) -> String {
    format!("{}-{}-{ordinal}", template.name, set.metadata.name)
}

/// The names of the claims of an ordinal, in the order of the templates.
pub(super) fn claim_names(set: &StatefulSet, ordinal: i64) -> impl Iterator<Item = String> {
    set.spec.volume_claim_templates.iter().map(move |one| claim_name(set, one, ordinal))
}

/// The pod has a volume for each of its claims.
// k8s: stateful_set_utils.go storageMatches
pub(super) fn has_storage(set: &StatefulSet, pod: &Pod) -> bool {
    let Some(ordinal) = ordinal(&pod.metadata.name) else { return false };
    set.spec.volume_claim_templates.iter().all(|template| {
        let mut volumes = pod.spec.claim_volumes.iter();
        let volume = volumes.find(|volume| volume.name == template.name);
        volume.is_some_and(|volume| *volume.claim == *claim_name(set, template, ordinal))
    })
}

/// Gives a pod a volume for each of its claims, in place of volumes of the same names.
// k8s: stateful_set_utils.go updateStorage
pub(super) fn set_volumes(set: &StatefulSet, ordinal: i64, pod: &mut Value) {
    let templates = &set.spec.volume_claim_templates;
    let of_claim = |template: &ClaimTemplate| {
        let source = json!({"claimName": claim_name(set, template, ordinal)});
        json!({"name": &*template.name, "persistentVolumeClaim": source})
    };
    let mut volumes: Vec<Value> = templates.iter().map(of_claim).collect();
    let others = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let is_claim = |volume: &&Value| templates.iter().any(|one| volume["name"] == *one.name);
    volumes.extend(others.filter(|volume| !is_claim(volume)).cloned());
    if !volumes.is_empty() || !pod["spec"]["volumes"].is_null() {
        pod["spec"]["volumes"] = Value::Array(volumes);
    }
}

/// The claim that a template describes for an ordinal.
// k8s: stateful_set_utils.go getPersistentVolumeClaims
pub(super) fn new_claim(set: &StatefulSet, whole: &Value, at: usize, ordinal: i64) -> Value {
    let mut claim = whole["spec"]["volumeClaimTemplates"][at].clone();
    claim["apiVersion"] = PERSISTENT_VOLUME_CLAIMS.api_version().into();
    claim["kind"] = PERSISTENT_VOLUME_CLAIMS.kind.into();
    let template = &set.spec.volume_claim_templates[at];
    let metadata = &mut claim["metadata"];
    metadata["name"] = claim_name(set, template, ordinal).into();
    metadata["namespace"] = set.metadata.namespace.as_str().into();
    for (key, value) in whole["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten() {
        metadata["labels"][key] = value.clone();
    }
    claim
}

/// A pod as the owner of claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimUser<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Its UID; empty before it is created.
    pub(super) uid: &'a str,
}

impl<'a> ClaimUser<'a> {
    /// A pod that exists.
    pub(super) fn of(pod: &'a Pod) -> Self {
        Self { name: &pod.metadata.name, uid: pod.metadata.uid.as_str() }
    }
}

/// A claim of a pod of a set.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnedClaim<'a> {
    /// The set.
    pub(super) set: &'a StatefulSet,
    /// The pod.
    pub(super) pod: ClaimUser<'a>,
    /// The claim.
    pub(super) claim: &'a PersistentVolumeClaim,
}

/// Which owners a claim should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WantedOwners {
    set: bool,
    pod: bool,
}

impl OwnedClaim<'_> {
    fn references(&self) -> &[OwnerReference] {
        &self.claim.metadata.owner_references
    }

    fn set_uid(&self) -> &str {
        self.set.metadata.uid.as_str()
    }

    fn is_set(&self, reference: &OwnerReference) -> bool {
        names(reference, STATEFUL_SETS, &self.set.metadata.name)
    }

    fn is_pod(&self, reference: &OwnerReference) -> bool {
        names(reference, PODS, self.pod.name)
    }

    fn has_owner(&self, uid: &str) -> bool {
        self.references().iter().any(|one| one.uid.as_str() == uid)
    }

    /// A pod of the same name, but of another UID, owns the claim: it waits for that pod's removal.
    // k8s: stateful_set_utils.go hasStaleOwnerRef
    pub(super) fn is_stale_for_pod(&self) -> bool {
        let reference = self.references().iter().find(|one| self.is_pod(one));
        reference.is_some_and(|one| one.uid.as_str() != self.pod.uid)
    }

    fn is_stale_for_set(&self) -> bool {
        let reference = self.references().iter().find(|one| self.is_set(one));
        reference.is_some_and(|one| one.uid.as_str() != self.set_uid())
    }

    /// The retention policy applies, and another controller has the claim.
    // k8s: stateful_set_utils.go hasUnexpectedController
    pub(super) fn has_foreign_controller(&self) -> bool {
        let policy = &self.set.spec.persistent_volume_claim_retention_policy;
        if &*policy.when_scaled == "Retain" && &*policy.when_deleted == "Retain" {
            return false;
        }
        self.references().iter().any(|one| {
            if self.is_set(one) {
                one.uid.as_str() != self.set_uid()
            } else if self.is_pod(one) {
                one.uid.as_str() != self.pod.uid
            } else {
                one.controller
            }
        })
    }

    // k8s: stateful_set_utils.go hasNonControllerOwner
    fn has_plain_owner(&self) -> bool {
        self.references().iter().any(|one| {
            let uid = one.uid.as_str();
            (uid == self.set_uid() || uid == self.pod.uid) && !one.controller
        })
    }

    fn wanted_owners(&self) -> WantedOwners {
        let policy = &self.set.spec.persistent_volume_claim_retention_policy;
        let is_scaled_down = !is_in_range(self.set, self.pod.name);
        match (&*policy.when_scaled, &*policy.when_deleted) {
            ("Retain", "Delete") => WantedOwners { set: true, pod: false },
            ("Delete", "Retain") => WantedOwners { set: false, pod: is_scaled_down },
            ("Delete", "Delete") => WantedOwners { set: !is_scaled_down, pod: is_scaled_down },
            // Also what an unknown policy means.
            _ => WantedOwners { set: false, pod: false },
        }
    }

    /// The claim has the owners that the retention policy asks for, or is not to be touched.
    // k8s: stateful_set_utils.go isClaimOwnerUpToDate
    pub(super) fn is_up_to_date(&self) -> bool {
        let (has_set, has_pod) = (self.has_owner(self.set_uid()), self.has_owner(self.pod.uid));
        if self.is_stale_for_set() || self.is_stale_for_pod() {
            return true;
        }
        if self.has_foreign_controller() {
            return !has_set && !has_pod;
        }
        !self.has_plain_owner()
            && self.wanted_owners() == WantedOwners { set: has_set, pod: has_pod }
    }

    /// Gives the claim the owners that the retention policy asks for.
    // k8s: stateful_set_utils.go updateClaimOwnerRefForSetAndPod
    pub(super) fn set_owners(&self, claim: &mut Value) {
        let references = claim["metadata"]["ownerReferences"].as_array().cloned();
        let mut references = references.unwrap_or_default();
        references.retain(|one| {
            let names = |kind: Kind, name: &str| {
                one["apiVersion"] == kind.api_version()
                    && one["kind"] == kind.kind
                    && one["name"] == name
            };
            !names(STATEFUL_SETS, &self.set.metadata.name) && !names(PODS, self.pod.name)
        });
        if !self.has_foreign_controller() {
            let wanted = self.wanted_owners();
            if wanted.pod {
                let pod = Meta {
                    name: Symbol::of(self.pod.name),
                    uid: pintle_controllers_core::meta::Uid::of(self.pod.uid),
                    ..Meta::default()
                };
                add(&mut references, controller_reference(PODS, &pod));
            }
            if wanted.set {
                add(&mut references, controller_reference(STATEFUL_SETS, &self.set.metadata));
            }
        }
        claim["metadata"]["ownerReferences"] = Value::Array(references);
    }
}

fn names(reference: &OwnerReference, kind: Kind, name: &str) -> bool {
    *reference.api_version == *kind.api_version()
        && &*reference.kind == kind.kind
        && &*reference.name == name
}

// k8s: stateful_set_utils.go addControllerRef
fn add(references: &mut Vec<Value>, reference: Value) {
    if !references.iter().any(|one| one["uid"] == reference["uid"]) {
        references.push(reference);
    }
}
