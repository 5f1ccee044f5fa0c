//! Claims of pods: read when a pod is prepared, and again while one of them cannot be used.
//!
//! The node authorizer gives claims and PersistentVolumes by `get` only, so nothing is watched. An
//! unusable claim is read again after 0.5 s, then with waits that grow to 7 s, and the pod's worker
//! is woken when the answer changes. While the API server does not answer, the last resolution
//! stays valid, because the volumes are mounted.
//!
//! Effects. Owner: `Objects`. Bounds: the claims of a pod, one task a pod with unusable claims;
//! each read takes at most `READ_MAX` and is made in the pod's share.
// k8s: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go

use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use pintle_agent_core::storage::USED_BY_ANOTHER_POD;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::claim::{
    self, BoundClaim, ClaimError, ClaimRef, ClaimedVolume, Claims, FetchError,
};
use pintle_agent_core::worker::PodsInput;
use pintle_api::TenantShare;
use pintle_api_types::pod;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use super::wire::{self, RetryPace, WireError};
use super::{Objects, ObjectsCore};

/// First and longest wait before a claim that cannot be used is read again: at first as often as
/// the kubelet looks for a claim that has just been bound, later more rarely.
// k8s: pkg/kubelet/volumemanager/volume_manager.go desiredStateOfWorldPopulatorLoopSleepPeriod
// k8s: pkg/volume/csi/csi_attacher.go (its waits for an attachment)
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));
/// First and longest wait after a refusal: the API server learns of a pod a moment after the node.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(800));
/// Reads that may be refused before the refusal counts.
const REFUSALS_MAX: u32 = 5;
/// Longest read.
const READ_MAX: Duration = Duration::from_secs(10);

/// A claim that cannot be used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableClaim {
    /// Name of the volume within the pod.
    pub volume: String,
    /// The kubelet's sentence.
    pub why: String,
}

/// A volume that must not be set up for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedVolume {
    /// Name of the volume within the pod.
    pub volume: String,
    /// The step that refuses it, as the kubelet names it.
    pub step: &'static str,
    /// The reason.
    pub why: String,
}

/// The claims of a pod.
#[derive(Clone, Debug, Default)]
pub struct ResolvedClaims {
    /// Resolved claims.
    pub claims: Arc<Claims>,
    /// Claims without a usable volume.
    pub unusable: Vec<UnusableClaim>,
    /// Resolved claims that cannot be used because of this node or another pod.
    pub refused: Vec<RefusedVolume>,
}

/// Reads a pod's claims again until the answer changes; ends with its owner.
struct Waiter(JoinHandle<()>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Default)]
struct PodClaims {
    claims: Arc<Claims>,
    /// Ends with the entry.
    _waiter: Option<Waiter>,
}

/// Claims of all pods.
#[derive(Default)]
pub(super) struct ClaimTable {
    pods: BTreeMap<PodUid, PodClaims>,
    /// The pod that holds a PersistentVolume for one pod.
    holders: BTreeMap<String, PodUid>,
    /// Pods that wait until another one leaves such a volume.
    queued: BTreeSet<PodUid>,
}

impl ClaimTable {
    fn claims(&self, uid: &PodUid) -> Arc<Claims> {
        self.pods.get(uid).map(|pod| Arc::clone(&pod.claims)).unwrap_or_default()
    }

    /// True when the pod may use the volume, which is then its own.
    fn take(&mut self, uid: &PodUid, volume: &str) -> bool {
        let holder = self.holders.entry(volume.to_owned()).or_insert_with(|| uid.clone());
        let is_own = holder == uid;
        if !is_own {
            self.queued.insert(uid.clone());
        }
        is_own
    }

    /// Forgets a pod without mounts. Returns the pods that waited for one of its volumes.
    fn forget(&mut self, uid: &PodUid) -> BTreeSet<PodUid> {
        self.pods.remove(uid);
        self.queued.remove(uid);
        let before = self.holders.len();
        self.holders.retain(|_, holder| holder != uid);
        match self.holders.len() < before {
            true => std::mem::take(&mut self.queued),
            false => BTreeSet::new(),
        }
    }
}

impl Objects {
    /// Reads the claims of a pod; to be called when its volumes are about to be set up.
    pub async fn resolve_claims(&self, uid: &PodUid, pod: &Pod) -> ResolvedClaims {
        let wanted = claim::of(pod);
        if wanted.is_empty() {
            return ResolvedClaims::default();
        }
        let Some(shared) = &self.0 else {
            let why = |wanted: &ClaimRef| UnusableClaim {
                volume: wanted.volume.clone(),
                why: "claims need an API server, and this node has none".to_owned(),
            };
            let unusable = wanted.iter().map(why).collect();
            return ResolvedClaims { unusable, ..ResolvedClaims::default() };
        };
        let known = shared.volumes.borrow().claims(uid);
        let (claims, unusable) = resolve(shared, uid, pod, &known).await;
        let claims = Arc::new(claims);
        let refused = shared.refused(uid, &claims);
        let waiter = (!unusable.is_empty()).then(|| shared.wait(uid, pod, &unusable));
        let entry = PodClaims { claims: Arc::clone(&claims), _waiter: waiter };
        shared.volumes.borrow_mut().pods.insert(uid.clone(), entry);
        shared.settings.claims.set(uid, &claims);
        ResolvedClaims { claims, unusable, refused }
    }

    /// The pod's claims as they were resolved last.
    pub fn claims(&self, uid: &PodUid) -> Arc<Claims> {
        self.0.as_ref().map(|shared| shared.volumes.borrow().claims(uid)).unwrap_or_default()
    }
}

impl ObjectsCore {
    /// Forgets the claims of a pod of which nothing is mounted, and wakes those that waited for it.
    pub(super) fn forget_claims(self: &Rc<Self>, uid: &PodUid) {
        self.settings.claims.remove(uid);
        let waiting = self.volumes.borrow_mut().forget(uid);
        if waiting.is_empty() {
            return;
        }
        let inputs = self.inputs.clone();
        drop(pintle_daemon::tasks::spawn("claims", async move {
            for uid in waiting {
                // The driver has ended: no worker is left to wake.
                let _ = inputs.send(PodsInput::Content { uid, files: false }).await;
            }
        }));
    }

    fn refused(&self, uid: &PodUid, claims: &Claims) -> Vec<RefusedVolume> {
        let node = self.settings.node.as_ref().and_then(|node| node.borrow().object().cloned());
        let labels = node.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        let mut volumes = self.volumes.borrow_mut();
        let refuse = |(volume, claimed): (&str, &Arc<ClaimedVolume>)| {
            let name = claimed.volume_name();
            // The state machine of drivers' volumes decides over those.
            let is_known = claimed.kind().staged().is_some();
            let is_exclusive = claimed.is_for_one_pod() && !is_known;
            let is_taken = is_exclusive && !volumes.take(uid, name);
            let step = match claimed.is_block() {
                true => "MapVolume.SetUpDevice",
                false => "MountVolume.SetUp",
            };
            let taken = is_taken.then(|| (step, USED_BY_ANOTHER_POD.to_owned()));
            let (step, why) = claimed.refusal(&labels).or(taken)?;
            Some(RefusedVolume { volume: volume.to_owned(), step, why })
        };
        claims.iter().filter_map(refuse).collect()
    }

    /// Reads the pod's claims until the answer is another than this one.
    fn wait(self: &Rc<Self>, uid: &PodUid, pod: &Pod, unusable: &[UnusableClaim]) -> Waiter {
        let (uid, pod, before) = (uid.clone(), pod.clone(), unusable.to_vec());
        let shared = Rc::downgrade(self);
        Waiter(pintle_daemon::tasks::spawn("claims", async move {
            wait_for_change(shared, uid, pod, before).await;
        }))
    }
}

async fn wait_for_change(
    shared: Weak<ObjectsCore>,
    uid: PodUid,
    pod: Pod,
    before: Vec<UnusableClaim>,
) {
    let mut pace = RetryPace::new(RETRY.0, RETRY.1);
    loop {
        pace.wait().await;
        let Some(shared) = shared.upgrade() else { return };
        let known = shared.volumes.borrow().claims(&uid);
        let (_, unusable) = resolve(&shared, &uid, &pod, &known).await;
        if unusable != before {
            let _ = shared.inputs.send(PodsInput::Content { uid, files: false }).await;
            return;
        }
    }
}

/// Reason why a claim has no volume.
struct Unresolved {
    error: ClaimError,
    /// The API server did not answer: the earlier resolution stays valid.
    is_unanswered: bool,
}

async fn resolve(
    shared: &ObjectsCore,
    uid: &PodUid,
    pod: &Pod,
    known: &Claims,
) -> (Claims, Vec<UnusableClaim>) {
    let wanted = claim::of(pod);
    let share = TenantShare::of(uid.as_str());
    let reads = wanted.iter().map(|wanted| resolve_one(shared, &share, pod, wanted));
    let (mut claims, mut unusable) = (Claims::default(), Vec::new());
    for (wanted, found) in wanted.iter().zip(join_all(reads).await) {
        let volume = &wanted.volume;
        match (found, known.get(volume)) {
            (Ok(claimed), _) => claims.insert(volume, claimed),
            (Err(Unresolved { is_unanswered: true, .. }), Some(claimed)) => {
                claims.insert(volume, ClaimedVolume::clone(claimed));
            }
            (Err(Unresolved { error, .. }), _) => {
                unusable.push(UnusableClaim { volume: volume.clone(), why: error.to_string() });
            }
        }
    }
    (claims, unusable)
}

async fn resolve_one(
    shared: &ObjectsCore,
    share: &TenantShare,
    pod: &Pod,
    wanted: &ClaimRef,
) -> Result<ClaimedVolume, Unresolved> {
    let (namespace, name) = (pod::namespace(pod), &wanted.claim);
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let (claim, is_unanswered) = read::<PersistentVolumeClaim>(shared, share, &path).await;
    let fail = |is_unanswered| move |error| Unresolved { error, is_unanswered };
    let bound = BoundClaim::of(pod, wanted, claim).map_err(fail(is_unanswered))?;
    let path = format!("/api/v1/persistentvolumes/{}", bound.volume);
    let (volume, is_unanswered) = read::<PersistentVolume>(shared, share, &path).await;
    bound.resolve(pod, wanted, volume).map_err(fail(is_unanswered))
}

/// The object or the API server's sentence, and whether the API server did not answer.
async fn read<T: DeserializeOwned>(
    shared: &ObjectsCore,
    share: &TenantShare,
    path: &str,
) -> (Result<T, FetchError>, bool) {
    let mut pace = RetryPace::new(REFUSED_RETRY.0, REFUSED_RETRY.1);
    let mut refusals = 0;
    loop {
        let reading = wire::read::<T>(&shared.client, share, path);
        let answer = tokio::time::timeout(READ_MAX, reading).await;
        let late = format!("no answer within {} s", READ_MAX.as_secs());
        match answer.unwrap_or(Err(WireError::Failed(late))) {
            Ok(object) => return (Ok(object), false),
            Err(WireError::Forbidden(_)) if refusals < REFUSALS_MAX => {
                refusals += 1;
                pace.wait().await;
            }
            Err(error) => {
                let is_unanswered = matches!(error, WireError::Failed(_));
                return (Err(FetchError(error.to_string())), is_unanswered);
            }
        }
    }
}
