//! PreEnqueue and PreFilter: the claims of a pod before any node is filtered.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go PreEnqueue, PreFilter

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceRequest, ResourceClaim, ResourceClaimConsumerReference,
};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::bits::Bits;
use pintle_sched_core::{Cluster, Plugin};

use super::allocatable::Sharer;
use super::extended::Extended;
use super::known::{Claims, Devices, allocation};
use super::request::{name, requests};
use super::row::RowMemory;
use super::{groups, ready, request};
use crate::groups::GroupError;
use crate::plugins::volumes::Refused;

/// Limit of consumers that a claim may be reserved for.
// k8s: staging/src/k8s.io/api/resource/v1/types.go ResourceClaimReservedForMaxSize
const USERS_MAX: usize = 256;

/// Work units of reading a claim.
const CLAIM_WORK: u64 = 64;
/// Label of budget steps spent on reading claims.
const READING: &str = "reading the pod's claims of devices";

/// Reason why a pod's claims cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(
        "pod \"{}\", spec.resourceClaim {claim:?}: none of the supported fields are set",
        pod.as_str()
    )]
    NoField { pod: ObjectKey, claim: String },
    #[error("pod \"{}\": ResourceClaim not created yet", .0.as_str())]
    NotCreated(ObjectKey),
    #[error("{0}")]
    Exhausted(Exhausted),
    #[error("could not find ResourceClaim {:?}", .0.as_str())]
    NotFound(ObjectKey),
    #[error("resourceclaim {:?} is being deleted", .0.name())]
    Deleted(ObjectKey),
    #[error(
        "ResourceClaim {} was not created for Pod {} ({})",
        claim.as_str(), pod.as_str(), not_owner(group.as_deref())
    )]
    NotOwner { claim: ObjectKey, pod: ObjectKey, group: Option<String> },
    #[error("resource claim {0} is in the process of being allocated")]
    InAllocation(String),
    #[error("resource claim {claim}, request {request}: unknown request type")]
    UnknownType { claim: String, request: String },
    #[error("request {0}: unsupported request type")]
    UnsupportedType(String),
    #[error("request {request}: device class {class} does not exist")]
    NoClass { request: String, class: String },
}

fn not_owner(group: Option<&str>) -> String {
    match group {
        Some(group) => format!("neither Pod nor PodGroup {group} is the owner"),
        None => "Pod is not owner".to_owned(),
    }
}

/// A pod that may have claims.
pub(crate) struct ClaimingPod<'a> {
    pub pod: &'a Pod,
    /// Its requests for resources other than CPU and memory, which devices may provide.
    pub resources: &'a [(String, i64)],
    /// Its group, if claims of groups count.
    pub group: Option<Result<Rc<PodGroup>, GroupError>>,
}

/// Limits of the plugin: from the profile, and the budget of the attempt.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLimits {
    /// Time limit of the search on one node; zero for none.
    pub filter: Duration,
    /// Time limit until devices are ready on the node.
    pub binding: Duration,
    /// Budget of the attempt for all nodes.
    pub budget: Rc<AttemptBudget>,
}

/// A claim of a pod.
#[derive(Clone, Debug)]
pub(super) struct PodClaim {
    pub(super) claim: Rc<ResourceClaim>,
    /// Its pending allocation, decided with another pod of the group.
    pub(super) shared: Option<AllocationResult>,
    /// The consumer to reserve the claim for, if not the pod itself.
    pub(super) user: Option<ResourceClaimConsumerReference>,
    /// Rows on which its devices can be used; `None` for all, or if it is not allocated.
    pub(super) reach: Option<Rc<Bits>>,
    /// Its devices were not made ready.
    pub(super) is_broken: bool,
}

/// The claims of a pod.
#[derive(Clone, Debug)]
pub struct DeviceClaims {
    pub(super) all: Vec<PodClaim>,
    /// Claims not yet allocated.
    pub(super) wanted: Vec<Rc<ResourceClaim>>,
    /// Extended resources of device classes that the pod requests.
    pub(super) extended: Option<Extended>,
    pub(super) names: Rc<[Rc<str>]>,
    pub(super) reachable: Rc<HashMap<*const NodeSelector, Rc<Bits>>>,
    pub(super) limits: DeviceLimits,
    /// The pod.
    pub(super) uid: String,
    /// The pod's state for node-allocatable devices, if their gate is on.
    pub(super) sharer: Option<Rc<Sharer>>,
    /// Results so far.
    pub(super) memory: RefCell<RowMemory>,
}

/// Does the pod name ResourceClaims?
pub(crate) fn has_claims(pod: &Pod) -> bool {
    !named(pod).is_empty()
}

fn named(pod: &Pod) -> &[PodResourceClaim] {
    let claims = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref());
    claims.unwrap_or_default()
}

/// Returns the name of a claim, and whether it was created for the pod; `None` if the pod needs
/// none.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/resourceclaim/resourceclaim.go Name
fn name_of(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<(ObjectKey, bool)>, ClaimError> {
    let whose = key_of(pod);
    let key = |name: &str| ObjectKey::new(whose.namespace(), name);
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some((key(name), false)));
    }
    if claim.resource_claim_template_name.is_none() {
        return Err(ClaimError::NoField { pod: whose, claim: claim.name.clone() });
    }
    let made = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    match made.into_iter().flatten().find(|made| made.name == claim.name) {
        Some(made) => Ok(made.resource_claim_name.as_deref().map(|name| (key(name), true))),
        None => Err(ClaimError::NotCreated(whose)),
    }
}

/// Returns the claims of a pod, in its order.
///
/// # Errors
/// A claim does not exist, is being deleted, or belongs to another pod.
// k8s: dynamicresources.go foreachPodResourceClaim
pub(crate) fn claims_of(pod: &Pod, known: &Claims) -> Result<Vec<Rc<ResourceClaim>>, ClaimError> {
    let all = named_claims_of(pod, known, &AttemptBudget::unlimited())?;
    Ok(all.into_iter().map(|(_, claim)| claim).collect())
}

/// The pod's entry for a claim, and the claim.
type NamedClaim<'a> = (&'a PodResourceClaim, Rc<ResourceClaim>);

/// Returns the claims of a pod by its names for them, charging for each: a claim with several names
/// is listed several times, as upstream does.
fn named_claims_of<'a>(
    pod: &'a Pod,
    known: &Claims,
    budget: &AttemptBudget,
) -> Result<Vec<NamedClaim<'a>>, ClaimError> {
    let known = known.borrow();
    let mut found = Vec::new();
    for named in named(pod) {
        budget.pay(CLAIM_WORK, READING).map_err(ClaimError::Exhausted)?;
        let Some((key, is_made)) = name_of(pod, named)? else { continue };
        let missing = || ClaimError::NotFound(key.clone());
        let claim = known.get(&key).ok_or_else(missing)?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimError::Deleted(key));
        }
        if is_made {
            groups::check_owner(pod, claim, known.of_groups)?;
        }
        found.push((named, Rc::clone(claim)));
    }
    Ok(found)
}

/// Does the pod use a claim of this name, and do all its claims exist?
pub(crate) fn uses(pod: &Pod, known: &Claims, claim: &str) -> bool {
    let all = claims_of(pod, known);
    all.is_ok_and(|all| all.iter().any(|own| key_of(&**own).as_str() == claim))
}

/// Is the claim already reserved for the pod, or for its group?
// k8s: resourceclaim.go IsReservedForPod
pub fn is_reserved(claim: &ResourceClaim, uid: &str, group: Option<&str>) -> bool {
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    let mut users = users.into_iter().flatten();
    users.any(|user| user.uid == uid || group.is_some_and(|group| groups::is_it(user, group)))
}

impl Devices {
    /// Runs PreFilter: restricts the nodes to those that the pod's claims allow; `None` for a pod
    /// without claims.
    ///
    /// # Errors
    /// The claims allow no node.
    pub(crate) fn look(
        &mut self,
        ClaimingPod { pod, resources, group }: ClaimingPod<'_>,
        cluster: &mut Cluster,
        nodes: u64,
        limits: DeviceLimits,
    ) -> Result<Option<DeviceClaims>, Refused> {
        let on = cluster.view().profile().filters(Plugin::DynamicResources);
        let is_offered =
            |(name, amount): &(String, i64)| *amount != 0 && self.extended.contains_key(name);
        let is_extended = resources.iter().any(is_offered);
        if !(has_claims(pod) || is_extended) || !on {
            return Ok(None);
        }
        self.end_outlived();
        let refused = |reason| Refused { plugin: Plugin::DynamicResources, reason };
        let claims = named_claims_of(pod, self.claims(), &limits.budget);
        let claims = claims.map_err(|error| refused(error.to_string()))?;
        let group = group.transpose().map_err(|error| refused(error.to_string()))?;
        let group_name = group.as_ref().and_then(|group| group.metadata.name.as_deref());
        if claims.is_empty() && !is_extended {
            return Ok(None);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let sharer = self.sharer(pod, &claims, resources, cluster);
        let (mut all, mut wanted) = (Vec::new(), Vec::new());
        for (named, claim) in claims {
            let (mut reach, mut is_broken) = (None, false);
            let shared = self.shared(&claim).cloned().filter(|_| allocation(&claim).is_none());
            match shared.as_ref().or_else(|| allocation(&claim)) {
                Some(has) => {
                    if !is_reserved(&claim, &uid, group_name) && users(&claim) >= USERS_MAX {
                        return Err(refused("resourceclaim in use".to_owned()));
                    }
                    let selector = has.node_selector.as_ref();
                    let mut rows = |s: &NodeSelector| cluster.rows_matching(&s.node_selector_terms);
                    reach = selector.map(|selector| Rc::new(rows(selector)));
                    is_broken = ready::is_broken(&claim, limits.binding, (self.clock)());
                }
                None => {
                    let possible = self.check_possible(&claim);
                    possible.map_err(|error| refused(error.to_string()))?;
                    wanted.push(Rc::clone(&claim));
                }
            }
            let user = group.as_ref().and_then(|group| groups::user(group, named));
            all.push(PodClaim { claim, shared, user, reach, is_broken });
        }
        let extended = is_extended.then(|| self.extended(pod, resources, cluster));
        let reachable = match wanted.is_empty() && extended.is_none() {
            true => HashMap::new(),
            false => self.reachable(cluster, nodes),
        };
        let names = self.names(cluster, nodes);
        let (reachable, memory) = (Rc::new(reachable), RefCell::default());
        Ok(Some(DeviceClaims {
            all,
            wanted,
            extended,
            names,
            reachable,
            limits,
            uid,
            sharer,
            memory,
        }))
    }

    /// Returns the pod's state if its devices may take allocatable resources of their node.
    fn sharer(
        &self,
        pod: &Pod,
        claims: &[NamedClaim],
        resources: &[(String, i64)],
        cluster: &Cluster,
    ) -> Option<Rc<Sharer>> {
        let takes = self.takes_of_nodes() && self.offers.all().any(|slice| !slice.takes.is_empty());
        let claims = claims.iter().map(|(named, claim)| (&named.name, claim));
        takes.then(|| Rc::new(Sharer::new(pod, claims, resources, &self.offers, cluster)))
    }

    /// Can the claim be allocated at all?
    fn check_possible(&self, claim: &ResourceClaim) -> Result<(), ClaimError> {
        let whose = name(claim);
        if self.is_given(claim) {
            return Err(ClaimError::InAllocation(whose));
        }
        requests(claim).iter().try_for_each(|request| self.check_class(&whose, request))
    }

    // k8s: dynamicresources.go validateDeviceClass
    fn check_class(&self, whose: &str, request: &DeviceRequest) -> Result<(), ClaimError> {
        let all = request::AskedDevice::all(request);
        if all.is_empty() {
            let (claim, request) = (whose.to_owned(), request.name.clone());
            return Err(ClaimError::UnknownType { claim, request });
        }
        for one in all {
            let (name, class) = (one.full_name(), one.class);
            if class.is_empty() {
                return Err(ClaimError::UnsupportedType(name.to_string()));
            }
            if !self.classes.contains_key(class) {
                let (request, class) = (name.to_string(), class.to_owned());
                return Err(ClaimError::NoClass { request, class });
            }
        }
        Ok(())
    }
}

fn users(claim: &ResourceClaim) -> usize {
    let status = claim.status.as_ref();
    status.and_then(|status| status.reserved_for.as_ref()).map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use pintle_sched_core::attempt_budget;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_claim_name_is_charged_to_the_attempt_budget() {
        let mut devices = Devices::default();
        for name in ["a", "b"] {
            let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {}});
            devices.set_claim(serde_json::from_value(claim).expect("a claim"));
        }
        let name = |at: usize| if at == 7 { "b" } else { "a" };
        let named = |at| json!({"name": format!("n{at}"), "resourceClaimName": name(at)});
        let claims: Vec<_> = (0..5_000).map(named).collect();
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [], "resourceClaims": claims}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let budget = AttemptBudget::unlimited();
        let found = named_claims_of(&pod, devices.claims(), &budget).expect("its claims");
        assert_eq!(found.len(), 5_000);
        let few = attempt_budget::Limits { work: 1_000, bytes: 0 };
        let few = AttemptBudget::new(few, || false);
        let refused = named_claims_of(&pod, devices.claims(), &few).expect_err("it is long");
        assert!(
            refused.to_string().ends_with("exceeded while reading the pod's claims of devices"),
            "{refused}"
        );
    }
}
