//! ResourceClaims: reserved for a pod that has a node, released, or deallocated.
//!
//! Input: claims as cached. Output: the same claims as written. Owner: a task a pod, and [`ClaimTurns`]
//! for all. Bounds: [`TRIES_MAX`] writes of a claim that another client writes as well; a claim is
//! kept while pods wait for it.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go bindClaim, Unreserve, PostFilter

use std::cell::RefCell;
use std::collections::HashMap;
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
use pintle_scheduler_core::cycle::Reserve;
use pintle_scheduler_core::plugins::dynamicresources::extended::is_of_resources;
use pintle_scheduler_core::plugins::dynamicresources::known::{allocation, uid};
use pintle_scheduler_core::plugins::dynamicresources::look::is_reserved;
use pintle_scheduler_core::plugins::dynamicresources::request::name;
use pintle_scheduler_core::pod_fields::PodRef;
use serde_json::json;
use tokio::sync::Mutex;

/// Finalizer of an allocated claim: it must be deallocated before it is deleted.
// k8s: staging/src/k8s.io/api/resource/v1/types.go Finalizer
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Number of tries of a write, and the time between.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultRetry
const TRIES_MAX: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
const CONFLICT: u16 = 409;
/// Reads of a claim after a failed write; the time between them doubles, 20 s in all.
const LOOKS_MAX: u32 = 10;

/// Failure of a write of claims, or of a pod's status about them.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimWriteError {
    #[error("create claim for extended resources {claim}: {why}")]
    Create { claim: String, why: String },
    #[error("update pod {pod} {field}: {why}")]
    PodStatus { pod: String, field: &'static str, why: String },
    #[error("updating pod {pod} NodeAllocatableResourceClaimStatuses: {why}")]
    Shares { pod: String, why: String },
    #[error("get updated claim {claim} after conflict: {why}")]
    ReadAgain { claim: String, why: String },
    /// A reservation; with what was being written.
    #[error("{0}")]
    Write(String),
}

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

/// Claims being reserved, by uid, at their last written version: pods that share a claim are
/// written into it one after the other, because concurrent writes would conflict.
#[derive(Debug, Default)]
pub(super) struct ClaimTurns(RefCell<HashMap<String, Turn>>);

type Turn = Rc<Mutex<Option<ResourceClaim>>>;

impl ClaimTurns {
    /// Reserves a claim after the pods before it.
    async fn reserve(
        &self,
        api: &Api<ResourceClaim>,
        pod: &PodRef,
        one: Reserve,
    ) -> Result<ResourceClaim, ClaimWriteError> {
        let uid = uid(&one.claim).to_owned();
        let turn = Rc::clone(self.0.borrow_mut().entry(uid.clone()).or_default());
        let mut last = turn.lock().await;
        let written = reserve_one(api, pod, one, last.take()).await;
        *last = written.as_ref().ok().cloned();
        drop(last);
        // Only the table and this task still refer to the turn.
        if Rc::strong_count(&turn) == 2 {
            self.0.borrow_mut().remove(&uid);
        }
        written
    }
}

/// Reserves claims for a pod, one after the other. Returns the claims as written, and the error of
/// the first failure. The claim that failed is read again and returned too, because it may have
/// been written though the answer was lost. The last value says if a claim for extended resources
/// was created, if the pod needs one.
pub(super) async fn reserve(
    client: &kube::Client,
    turns: &ClaimTurns,
    pod: &PodRef,
    claims: Vec<Reserve>,
) -> (Vec<ResourceClaim>, Option<String>, Option<bool>) {
    let (mut done, mut made) = (Vec::new(), None);
    for mut one in claims {
        let mappings = std::mem::take(&mut one.mappings);
        if !mappings.is_empty() {
            match make(&api(client, &one.claim), &one.claim).await {
                Ok(claim) => (one.claim, made) = (Rc::new(claim), Some(true)),
                Err(error) => return (done, Some(error.to_string()), Some(false)),
            }
        }
        let (api, name) = (api(client, &one.claim), own_name(&one.claim).to_owned());
        match turns.reserve(&api, pod, one).await {
            Ok(claim) => done.push(claim),
            Err(error) => {
                done.extend(look_again(&api, &name).await);
                return (done, Some(error.to_string()), made);
            }
        }
        if !mappings.is_empty()
            && let Err(error) = write_claim_status(client, pod, &name, mappings).await
        {
            return (done, Some(error.to_string()), made);
        }
    }
    (done, None, made)
}

/// Creates a claim for extended resources.
// k8s: extendeddynamicresources.go createExtendedResourceClaimInAPI
async fn make(
    api: &Api<ResourceClaim>,
    claim: &ResourceClaim,
) -> Result<ResourceClaim, ClaimWriteError> {
    let mut new = claim.clone();
    new.metadata.uid = None;
    let made = api.create(&PostParams::default(), &new).await;
    made.map_err(|error| ClaimWriteError::Create { claim: name(claim), why: text(error) })
}

/// Writes the claim of the pod's extended resources into its status.
// k8s: extendeddynamicresources.go patchPodExtendedResourceClaimStatus
async fn write_claim_status(
    client: &kube::Client,
    pod: &PodRef,
    claim: &str,
    mappings: Vec<ContainerExtendedResourceRequest>,
) -> Result<(), ClaimWriteError> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let status = json!({"resourceClaimName": claim, "requestMappings": mappings});
    let patch = json!({"metadata": {"uid": &*pod.uid},
        "status": {"extendedResourceClaimStatus": status}});
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let written = pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    written.map(drop).map_err(|error| {
        let pod = format!("{namespace}/{name}");
        ClaimWriteError::PodStatus { pod, field: "ExtendedResourceClaimStatus", why: text(error) }
    })
}

/// Deletes a claim for extended resources; true if it is deleted or being deleted.
// k8s: extendeddynamicresources.go deleteClaim
async fn delete(client: &kube::Client, claim: &ResourceClaim) -> bool {
    let api = api(client, claim);
    let own = own_name(claim);
    // Finalizers set by other controllers stay.
    let unprotected = json!({"metadata": {"uid": uid(claim),
        "$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
    let params = PatchParams::default();
    let is_gone = |error: &kube::Error| matches!(error, kube::Error::Api(s) if s.code == 404);
    let written = api.patch(own, &params, &Patch::Strategic(unprotected)).await.map(drop);
    let written = match written {
        Ok(()) => api.delete(own, &DeleteParams::default()).await.map(drop),
        failed => failed,
    };
    match written {
        Err(error) if !is_gone(&error) => {
            tracing::warn!(%error, claim = name(claim), "could not delete an unused ResourceClaim");
            false
        }
        _ => true,
    }
}

/// Reads a claim again; `None` if it does not exist or no read succeeds.
async fn look_again(api: &Api<ResourceClaim>, name: &str) -> Option<ResourceClaim> {
    let mut wait = BETWEEN_TRIES;
    for _ in 0..LOOKS_MAX {
        match api.get_opt(name).await {
            Ok(found) => return found,
            Err(error) => tracing::debug!(%error, claim = name, "could not read the claim again"),
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
    newest: Option<ResourceClaim>,
) -> Result<ResourceClaim, ClaimWriteError> {
    // The node was chosen with these devices.
    let decided = given.as_ref().or_else(|| allocation(&claim)).cloned();
    let whose = name(&claim);
    // An existing reservation may be left over from before the pod was unreserved.
    let is_new = |newest: &ResourceClaim| user.is_some() || !is_reserved(newest, &pod.uid, None);
    let mut claim = newest.filter(is_new).unwrap_or_else(|| ResourceClaim::clone(&claim));
    let user = user.unwrap_or_else(|| ResourceClaimConsumerReference {
        api_group: None,
        name: pod.key.name().to_owned(),
        resource: "pods".to_owned(),
        uid: pod.uid.to_string(),
    });
    let mut tries = 1;
    loop {
        let failed = match write(api, &user, claim, &decided, given.is_some()).await {
            Ok(claim) => return Ok(claim),
            Err(failed) if !failed.is_conflict || tries >= TRIES_MAX => {
                return Err(ClaimWriteError::Write(failed.error));
            }
            Err(failed) => failed,
        };
        tracing::debug!(claim = whose, failed.error, "it is tried again");
        tries += 1;
        // No event announces when the other writer is done.
        tokio::time::sleep(BETWEEN_TRIES).await;
        let again = |error| ClaimWriteError::ReadAgain { claim: whose.clone(), why: text(error) };
        let short = whose.split_once('/').map_or("", |(_, name)| name);
        claim = api.get(short).await.map_err(again)?;
    }
}

/// Writes the allocation of a claim, if it has none, and the reservation for the pod.
async fn write(
    api: &Api<ResourceClaim>,
    user: &ResourceClaimConsumerReference,
    mut claim: ResourceClaim,
    decided: &Option<AllocationResult>,
    is_given: bool,
) -> Result<ResourceClaim, Failed> {
    let (whose, params) = (name(&claim), PatchParams::default());
    let fails = |what: &str| Failed::new(format!("claim {whose} got {what} in the meantime"));
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(fails("deleted"));
    }
    // Another pod of the group may have written the same allocation first.
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

/// Are these the same devices, whenever they were allocated?
fn is_same(one: &AllocationResult, other: &AllocationResult) -> bool {
    one.devices == other.devices && one.node_selector == other.node_selector
}

/// Returns the time in whole seconds, as the API stores it.
fn now() -> Time {
    let seconds = Timestamp::now().as_second();
    Time(Timestamp::from_second(seconds).unwrap_or_default())
}

/// Adds the finalizer, so that the claim is not deleted before it is deallocated.
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

/// Releases a pod's reservations. Returns the claims as they are now; after a failed write the
/// claim is read again. The ResourceClaim controller releases the rest once the pod is deleted.
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

/// Deallocates a claim. Returns true on success, and the claim as it is now, which after a failed
/// write is read again.
pub(super) async fn give_back(
    client: &kube::Client,
    claim: &ResourceClaim,
) -> (bool, Vec<ResourceClaim>) {
    if is_of_resources(claim) {
        return (delete(client, claim).await, Vec::new());
    }
    let patch = json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"reservedFor": null, "allocation": null, "devices": null},
    });
    let params = PatchParams::default();
    let (api, patch) = (api(client, claim), Patch::Merge(patch));
    match api.patch_status(own_name(claim), &params, &patch).await {
        Ok(claim) => (true, vec![claim]),
        Err(error) => {
            tracing::warn!(%error, claim = name(claim), "it could not give its devices back");
            (false, look_again(&api, own_name(claim)).await.into_iter().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use http_body_util::BodyExt as _;
    use hyper::{Request, Response};
    use kube::client::Body;
    use pintle_api_types::key::ObjectKey;
    use serde_json::Value;

    use super::*;

    /// A claim at a server that rejects writes of older versions.
    #[derive(Default)]
    struct ClaimServer {
        claim: std::sync::Mutex<Value>,
        writes: AtomicU32,
        conflicts: AtomicU32,
    }

    impl ClaimServer {
        fn with(claim: &Value) -> Arc<Self> {
            Arc::new(Self { claim: std::sync::Mutex::new(claim.clone()), ..Self::default() })
        }

        fn client(self: &Arc<Self>) -> kube::Client {
            let server = Arc::clone(self);
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = Arc::clone(&server);
                async move {
                    let body = request.into_body().collect().await?.to_bytes();
                    // The other writer has read the claim by this point.
                    tokio::task::yield_now().await;
                    let (code, answer) = server.answer(&body);
                    let answer = Body::from(answer.to_string().into_bytes());
                    Ok::<_, tower::BoxError>(Response::builder().status(code).body(answer)?)
                }
            });
            kube::Client::new(service, "default")
        }

        fn answer(&self, body: &[u8]) -> (u16, Value) {
            let mut claim = self.claim.lock().expect("not poisoned");
            let Ok(patch) = serde_json::from_slice::<Value>(body) else {
                return (200, claim.clone());
            };
            if patch["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"] {
                self.conflicts.fetch_add(1, Ordering::Relaxed);
                let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": "Conflict", "message": "it has changed", "code": CONFLICT});
                return (CONFLICT, refusal);
            }
            let version = self.writes.fetch_add(1, Ordering::Relaxed) + 2;
            claim["metadata"]["resourceVersion"] = json!(version.to_string());
            claim["status"] = patch["status"].clone();
            (200, claim.clone())
        }
    }

    #[tokio::test]
    async fn pods_that_share_a_claim_do_not_make_each_other_begin_again() {
        let devices = json!({"devices": {"results": []}});
        let claim = json!({
            "metadata": {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": "1",
                "finalizers": [FINALIZER]},
            "spec": {},
            "status": {"allocation": devices},
        });
        let server = ClaimServer::with(&claim);
        let (client, turns) = (server.client(), ClaimTurns::default());
        let claim: Rc<ResourceClaim> = Rc::new(serde_json::from_value(claim).expect("a claim"));
        let reserves = (0..50).map(|at| {
            let one = Reserve {
                claim: Rc::clone(&claim),
                allocation: None,
                user: None,
                mappings: Vec::new(),
            };
            let (name, uid) = (format!("p{at}"), format!("u{at}"));
            let pod = PodRef { key: ObjectKey::new("default", &name), uid: uid.into() };
            let (client, turns) = (&client, &turns);
            async move { reserve(client, turns, &pod, vec![one]).await }
        });
        for (done, error, _) in futures_util::future::join_all(reserves).await {
            assert_eq!((done.len(), error), (1, None));
        }
        let count = |count: &AtomicU32| count.load(Ordering::Relaxed);
        assert_eq!((count(&server.writes), count(&server.conflicts)), (50, 0));
        let users = server.claim.lock().expect("not poisoned")["status"]["reservedFor"].clone();
        assert_eq!(users.as_array().map(Vec::len), Some(50));
        assert!(turns.0.borrow().is_empty(), "no write is queued");
    }

    #[tokio::test]
    async fn claim_is_read_again_after_a_write_conflict() {
        let of = |version: &str| {
            json!({
                "metadata": {"name": "c", "namespace": "default", "uid": "u",
                    "resourceVersion": version, "finalizers": [FINALIZER]},
                "spec": {},
                "status": {"allocation": {"devices": {"results": []}}},
            })
        };
        let server = ClaimServer::with(&of("1"));
        let claim = Rc::new(serde_json::from_value(of("0")).expect("a claim"));
        let one = Reserve { claim, allocation: None, user: None, mappings: Vec::new() };
        let pod = PodRef { key: ObjectKey::new("default", "p"), uid: "p".into() };
        let (done, error, _) =
            reserve(&server.client(), &ClaimTurns::default(), &pod, vec![one]).await;
        assert_eq!((done.len(), error), (1, None));
        assert_eq!(server.conflicts.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn deallocation_returns_the_current_claim() {
        let of = |version: &str| {
            json!({
                "metadata": {"name": "c", "namespace": "default", "uid": "u",
                    "resourceVersion": version},
                "spec": {},
                "status": {"allocation": {"devices": {"results": []}}},
            })
        };
        let server = ClaimServer::with(&of("1"));
        let claim = |version: &str| -> ResourceClaim {
            serde_json::from_value(of(version)).expect("a claim")
        };
        let (did, now) = give_back(&server.client(), &claim("0")).await;
        assert_eq!((did, now), (false, vec![claim("1")]), "another client wrote it");
        let (did, now) = give_back(&server.client(), &claim("1")).await;
        let version = now[0].metadata.resource_version.as_deref();
        assert_eq!((did, allocation(&now[0]), version), (true, None, Some("2")));
    }

    #[tokio::test]
    async fn released_reservation_is_written_again() {
        let of = |version: &str, users: Value| {
            json!({
                "metadata": {"name": "c", "namespace": "default", "uid": "u",
                    "resourceVersion": version, "finalizers": [FINALIZER]},
                "spec": {},
                "status": {"allocation": {"devices": {"results": []}}, "reservedFor": users},
            })
        };
        let given_up = of("2", json!([]));
        let server = ClaimServer::with(&given_up);
        let api = Api::namespaced(server.client(), "default");
        let claim = Rc::new(serde_json::from_value(given_up).expect("a claim"));
        let one = Reserve { claim, allocation: None, user: None, mappings: Vec::new() };
        let pod = PodRef { key: ObjectKey::new("default", "p"), uid: "p".into() };
        let before = of("1", json!([{"resource": "pods", "name": "p", "uid": "p"}]));
        let before = serde_json::from_value(before).expect("a claim");
        reserve_one(&api, &pod, one, Some(before)).await.expect("reserved");
        assert_eq!(server.writes.load(Ordering::Relaxed), 1);
    }
}
