//! Claims of devices: reserved for a pod that has a node, released, or made to give devices back.
//!
//! Input: claims as they are known. Output: the same as they are now. Owner: a task a pod. Bounds:
//! [`TRIES_MAX`] writes of a claim that somebody else writes as well.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go bindClaim, Unreserve, PostFilter

use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerExtendedResourceRequest, Pod};
use k8s_openapi::api::resource::v1::{
    AllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cycle::Reserve;
use crate::cycle::command::PodRef;
use crate::devices::extended::is_of_resources;
use crate::devices::known::{allocation, uid};
use crate::devices::request::name;

/// A claim has devices: somebody has to give them back before it goes.
// k8s: staging/src/k8s.io/api/resource/v1/types.go Finalizer
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// How often a write is tried, and the time between.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultRetry
const TRIES_MAX: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
const CONFLICT: u16 = 409;
/// How often a claim is asked for whose write failed; the time between doubles, 20 s in all.
const LOOKS_MAX: u32 = 10;

/// A write that failed.
struct Failed {
    error: String,
    is_conflict: bool,
}

impl Failed {
    fn new(error: impl Into<String>) -> Self {
        Self { error: error.into(), is_conflict: false }
    }

    fn of(what: &str, error: kube::Error) -> Self {
        let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == CONFLICT);
        Self { error: format!("{what}: {}", text(error)), is_conflict }
    }
}

fn text(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

fn api(client: &kube::Client, claim: &ResourceClaim) -> Api<ResourceClaim> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(client.clone(), namespace)
}

fn own_name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

/// Reserves claims for a pod: those that were, as they are now, and why the next was not. That one is
/// told as well, as it is: it may have been written though the answer was lost. And whether a claim was
/// made, where one was to be.
pub(super) async fn reserve(
    client: &kube::Client,
    pod: &PodRef,
    claims: Vec<Reserve>,
) -> (Vec<ResourceClaim>, Option<String>, Option<bool>) {
    let (mut done, mut made) = (Vec::new(), None);
    for mut one in claims {
        let mappings = std::mem::take(&mut one.mappings);
        if !mappings.is_empty() {
            match make(&api(client, &one.claim), &one.claim).await {
                Ok(claim) => (one.claim, made) = (Rc::new(claim), Some(true)),
                Err(error) => return (done, Some(error), Some(false)),
            }
        }
        let (api, name) = (api(client, &one.claim), own_name(&one.claim).to_owned());
        match reserve_one(&api, pod, one).await {
            Ok(claim) => done.push(claim),
            Err(error) => {
                done.extend(look_again(&api, &name).await);
                return (done, Some(error), made);
            }
        }
        if !mappings.is_empty()
            && let Err(error) = tell_pod(client, pod, &name, mappings).await
        {
            return (done, Some(error), made);
        }
    }
    (done, None, made)
}

/// Makes a claim for extended resources.
// k8s: extendeddynamicresources.go createExtendedResourceClaimInAPI
async fn make(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<ResourceClaim, String> {
    let mut new = claim.clone();
    new.metadata.uid = None;
    let made = api.create(&PostParams::default(), &new).await;
    let whose = name(claim);
    made.map_err(|error| format!("create claim for extended resources {whose}: {}", text(error)))
}

/// Says in the pod's status which claim has its extended resources.
// k8s: extendeddynamicresources.go patchPodExtendedResourceClaimStatus
async fn tell_pod(
    client: &kube::Client,
    pod: &PodRef,
    claim: &str,
    mappings: Vec<ContainerExtendedResourceRequest>,
) -> Result<(), String> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let status = json!({"resourceClaimName": claim, "requestMappings": mappings});
    let patch = json!({"metadata": {"uid": &*pod.uid},
        "status": {"extendedResourceClaimStatus": status}});
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let written = pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    written.map(drop).map_err(|error| {
        format!("update pod {namespace}/{name} ExtendedResourceClaimStatus: {}", text(error))
    })
}

/// Deletes a claim that was made for extended resources; whether it is gone or going.
// k8s: extendeddynamicresources.go deleteClaim
async fn delete(client: &kube::Client, claim: &ResourceClaim) -> bool {
    let api = api(client, claim);
    let own = own_name(claim);
    let unprotected = json!({"metadata": {"uid": uid(claim), "finalizers": null}});
    let params = PatchParams::default();
    let is_gone = |error: &kube::Error| matches!(error, kube::Error::Api(s) if s.code == 404);
    let written = api.patch(own, &params, &Patch::Merge(unprotected)).await.map(drop);
    let written = match written {
        Ok(()) => api.delete(own, &DeleteParams::default()).await.map(drop),
        failed => failed,
    };
    match written {
        Err(error) if !is_gone(&error) => {
            tracing::warn!(%error, claim = name(claim), "a claim that nobody needs is still there");
            false
        }
        _ => true,
    }
}

/// A claim as it is, if it is there and somebody answers.
async fn look_again(api: &Api<ResourceClaim>, name: &str) -> Option<ResourceClaim> {
    let mut wait = BETWEEN_TRIES;
    for _ in 0..LOOKS_MAX {
        match api.get_opt(name).await {
            Ok(found) => return found,
            Err(error) => tracing::debug!(%error, claim = name, "nobody says what became of it"),
        }
        wait *= 2;
        tokio::time::sleep(wait).await;
    }
    None
}

async fn reserve_one(
    api: &Api<ResourceClaim>,
    pod: &PodRef,
    Reserve { claim, allocation: given, user, .. }: Reserve,
) -> Result<ResourceClaim, String> {
    // With these devices the node was chosen.
    let decided = given.as_ref().or_else(|| allocation(&claim)).cloned();
    let (whose, mut claim) = (name(&claim), ResourceClaim::clone(&claim));
    let user = user.unwrap_or_else(|| ResourceClaimConsumerReference {
        api_group: None,
        name: pod.key.name().to_owned(),
        resource: "pods".to_owned(),
        uid: pod.uid.to_string(),
    });
    let mut tries = 1;
    loop {
        let failed = match write(api, &user, claim, (&decided, given.is_some())).await {
            Ok(claim) => return Ok(claim),
            Err(failed) if !failed.is_conflict || tries >= TRIES_MAX => return Err(failed.error),
            Err(failed) => failed,
        };
        tracing::debug!(claim = whose, failed.error, "it is tried again");
        tries += 1;
        // Nobody tells when the other one is done with it.
        tokio::time::sleep(BETWEEN_TRIES).await;
        let again = |error| format!("get updated claim {whose} after conflict: {}", text(error));
        let short = whose.split_once('/').map_or("", |(_, name)| name);
        claim = api.get(short).await.map_err(again)?;
    }
}

/// Writes the devices of a claim, where it has none, and that the pod uses it.
async fn write(
    api: &Api<ResourceClaim>,
    user: &ResourceClaimConsumerReference,
    mut claim: ResourceClaim,
    (decided, is_given): (&Option<AllocationResult>, bool),
) -> Result<ResourceClaim, Failed> {
    let (whose, params) = (name(&claim), PatchParams::default());
    let fails = |what: &str| Failed::new(format!("claim {whose} got {what} in the meantime"));
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(fails("deleted"));
    }
    // Another pod of the group may have been the first to write the same.
    let is_new = allocation(&claim).is_none();
    match (allocation(&claim), decided) {
        (Some(has), Some(decided)) if is_same(has, decided) => {}
        (Some(_), _) => return Err(fails("allocated elsewhere")),
        (None, _) if !is_given => return Err(fails("deallocated elsewhere")),
        (None, _) => claim = protect(api, claim).await?,
    }
    let has = allocation(&claim).or(decided.as_ref()).cloned();
    let mut has = has.ok_or_else(|| fails("deallocated elsewhere"))?;
    has.allocation_timestamp.get_or_insert_with(now);
    let mut status = claim.status.take().unwrap_or_default();
    let mut users = status.reserved_for.take().unwrap_or_default();
    if users.iter().any(|known| known.uid == user.uid) {
        return Ok(ResourceClaim {
            status: Some(ResourceClaimStatus { reserved_for: Some(users), ..status }),
            ..claim
        });
    }
    users.push(user.clone());
    let patch = json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"allocation": has, "reservedFor": users},
    });
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let written = api.patch_status(name, &params, &Patch::Merge(patch)).await;
    written.map_err(|error| {
        let what = if is_new { "allocation and reservation" } else { "reservation" };
        Failed::of(&format!("add {what} to claim {whose}"), error)
    })
}

/// Whether these are the same devices, whenever they were given.
fn is_same(one: &AllocationResult, other: &AllocationResult) -> bool {
    one.devices == other.devices && one.node_selector == other.node_selector
}

/// The time in whole seconds, as the API has it.
fn now() -> Time {
    let seconds = Timestamp::now().as_second();
    Time(Timestamp::from_second(seconds).unwrap_or_default())
}

/// It is not to go before its devices are given back.
async fn protect(api: &Api<ResourceClaim>, claim: ResourceClaim) -> Result<ResourceClaim, Failed> {
    let mut finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(claim);
    }
    finalizers.push(FINALIZER.to_owned());
    let version = &claim.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
    let params = PatchParams::default();
    let written = api.patch(own_name(&claim), &params, &Patch::Merge(patch)).await;
    written.map_err(|error| Failed::of(&format!("add finalizer to claim {}", name(&claim)), error))
}

/// A pod uses claims no longer; these as they are now. Whether one that failed was written is looked
/// up; the controller of claims does it once the pod is gone.
pub(super) async fn release(
    client: &kube::Client,
    pod: &PodRef,
    claims: &[Rc<ResourceClaim>],
) -> Vec<ResourceClaim> {
    let mut now = Vec::new();
    for claim in claims {
        if is_of_resources(claim) {
            delete(client, claim).await;
            continue;
        }
        let patch = json!({
            "metadata": {"uid": uid(claim)},
            "status": {"reservedFor": [{"$patch": "delete", "uid": &*pod.uid}]},
        });
        let params = PatchParams::default();
        let api = api(client, claim);
        match api.patch_status(own_name(claim), &params, &Patch::Strategic(patch)).await {
            Ok(claim) => now.push(claim),
            Err(error) => {
                let claim_name = name(claim);
                tracing::warn!(%error, claim = claim_name, pod = pod.key.as_str(),
                    "a pod without a node still has a claim");
                now.extend(look_again(&api, own_name(claim)).await);
            }
        }
    }
    now
}

/// A claim gives its devices back; whether it did.
pub(super) async fn give_back(client: &kube::Client, claim: &ResourceClaim) -> bool {
    if is_of_resources(claim) {
        return delete(client, claim).await;
    }
    let patch = json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"reservedFor": null, "allocation": null, "devices": null},
    });
    let params = PatchParams::default();
    let (api, patch) = (api(client, claim), Patch::Merge(patch));
    let written = api.patch_status(own_name(claim), &params, &patch).await;
    if let Err(error) = &written {
        tracing::warn!(%error, claim = name(claim), "it could not give its devices back");
    }
    written.is_ok()
}
