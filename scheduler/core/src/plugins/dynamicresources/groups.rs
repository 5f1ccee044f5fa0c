//! Claims that belong to a group of pods: made for it, reserved for it, used by all its pods.
//!
//! Input: pods, groups, claims. Output: the owner of a claim, and its reservations. Owner: pure
//! functions. Bounds: the claims that a group names.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/resourceclaim/resourceclaim.go

use std::rc::Rc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::api::scheduling::v1alpha2::{PodGroup, PodGroupResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;

use super::known::{Claims, allocation};
use super::look::{ClaimError, is_reserved};

/// API names of a pod group in references.
const API_GROUP: &str = "scheduling.k8s.io";
const RESOURCE: &str = "podgroups";
const KIND: &str = "PodGroup";

fn group_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()
}

fn controller(claim: &ResourceClaim) -> Option<&OwnerReference> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Was the claim created for this pod, or for its group if that is allowed?
///
/// # Errors
/// The claim was not created for it.
// k8s: resourceclaim.go IsForPod
pub(super) fn check_owner(
    pod: &Pod,
    claim: &ResourceClaim,
    of_groups: bool,
) -> Result<(), ClaimError> {
    let owner = controller(claim);
    if owner.is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
        return Ok(());
    }
    let group = group_name(pod).filter(|_| of_groups);
    let is_its = |owner: &OwnerReference| {
        let of_kind = owner.kind == KIND && owner.api_version.starts_with("scheduling.k8s.io/");
        of_kind && group == Some(&*owner.name)
    };
    if owner.is_some_and(is_its) {
        return Ok(());
    }
    let group = group.map(str::to_owned);
    Err(ClaimError::NotOwner { claim: key_of(claim), pod: key_of(pod), group })
}

/// Is this consumer of a claim the group of this name?
pub(super) fn is_it(user: &ResourceClaimConsumerReference, group: &str) -> bool {
    let of_kind = user.api_group.as_deref() == Some(API_GROUP) && user.resource == RESOURCE;
    of_kind && user.name == group
}

/// Returns the group as consumer of a claim that a pod names, if the claim is the group's.
// k8s: resourceclaim.go BindTo
pub(super) fn user(
    group: &PodGroup,
    named: &PodResourceClaim,
) -> Option<ResourceClaimConsumerReference> {
    let is_it = |of: &PodGroupResourceClaim| {
        of.name == named.name
            && of.resource_claim_name == named.resource_claim_name
            && of.resource_claim_template_name == named.resource_claim_template_name
    };
    group.spec.resource_claims.iter().flatten().any(is_it).then(|| ResourceClaimConsumerReference {
        api_group: Some(API_GROUP.to_owned()),
        name: group.metadata.name.clone().unwrap_or_default(),
        resource: RESOURCE.to_owned(),
        uid: group.metadata.uid.clone().unwrap_or_default(),
    })
}

/// Returns the group's claims that are allocated and reserved for it; stops at a claim without a
/// known name.
// k8s: dynamicresources.go unreservePodGroupClaims
pub(crate) fn reserved(group: &PodGroup, known: &Claims) -> Vec<Rc<ResourceClaim>> {
    let known = known.borrow();
    let key = key_of(group);
    let mut found = Vec::new();
    for of in group.spec.resource_claims.iter().flatten() {
        let name = match &of.resource_claim_name {
            Some(name) => Some(name),
            None => {
                let made = group.status.as_ref().and_then(|s| s.resource_claim_statuses.as_ref());
                match made.into_iter().flatten().find(|made| made.name == of.name) {
                    Some(made) => made.resource_claim_name.as_ref(),
                    None => break,
                }
            }
        };
        let Some(name) = name else { continue };
        let Some(claim) = known.get(&ObjectKey::new(key.namespace(), name)) else { break };
        let owner = controller(claim).map(|owner| &owner.uid);
        let is_its = of.resource_claim_name.is_some() || owner == group.metadata.uid.as_ref();
        if is_its && allocation(claim).is_some() && is_reserved(claim, "", Some(key.name())) {
            found.push(Rc::clone(claim));
        }
    }
    found
}
