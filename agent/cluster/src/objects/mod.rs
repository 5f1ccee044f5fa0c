//! Objects that pods refer to by name: config maps, secrets, services, tokens, runtime classes,
//! claims.
//!
//! ```text
//!   pod ─> references ─> table ─ open, close, read ─> follow (one task per object) <── API server
//!                          │                             │
//!                          └── content, environment, pull_secrets <── passes of the pods' workers
//!                                                        └─ PodsInput::Content ─> worker
//! ```
//! Why a stage of its own: an object is shared by many pods, outlives each of them, and is used by
//! volumes, variables and pulls alike. So the passes of the workers ask here, and only this stage
//! knows when a pod must read an object again. The node may read an object only while a pod that is
//! bound to it refers to it, and only by name: hence one watch for each object and none for all.
//!
//! Input: pods as their workers prepare and end them. Output: objects, as new as a read that began
//! after the pod was seen first, and `PodsInput::Content` when an object changed that a pod's
//! volumes show, or appeared that a pod waits for. Owner: the main thread; nothing here is shared
//! beyond. Bounds: `table::ENTRIES_MAX` objects, `wire::BODY_BYTES_MAX` for each; one read and one
//! watch per object. Values of secrets never get into a log or a message.

mod accounts;
mod claims;
mod collection;
mod content;
mod driver_volumes;
mod environment;
mod follow;
mod object;
mod pod_certificates;
mod pod_key;
mod pull_secrets;
mod runtime_class;
mod services;
mod table;
#[cfg(test)]
mod tests;
mod tokens;
mod trust_bundles;
mod wire;

pub use pintle_agent_core::references;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use pintle_agent_config::modes::ChangeDetectionStrategy;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::ClaimViews;
use pintle_agent_core::worker::PodsInput;
use pintle_api_types::selector as label_selector;
use tokio::sync::{mpsc, watch};

use crate::node::own::OwnNode;

pub use accounts::{AccountError, Accounts, ServiceAccountFields};
pub use claims::{RefusedVolume, ResolvedClaims, UnusableClaim};
pub use content::PodContent;
pub use driver_volumes::DriverObjectError;
pub use environment::ContainerObjects;
pub use pull_secrets::{KeyringError, PullSecrets};
pub use references::{ObjectName, ReferenceKind};
pub use runtime_class::RuntimeClassError;
pub use tokens::TokenError;

use follow::Follower;
use pod_certificates::PodCertificates;
use services::ServiceWatch;
use table::{ObjectTable, Orders, WaitingReader};
use tokens::Tokens;
use trust_bundles::TrustBundles;

/// How long a value may be used in mode `Cache` without the node's annotation.
// k8s: pkg/kubelet/secret/secret_manager.go defaultTTL
const CACHE_TTL: Duration = Duration::from_secs(60);
/// Annotation of a node, in seconds.
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// How objects are kept up to date.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `configMapAndSecretChangeDetectionStrategy`.
    pub strategy: ChangeDetectionStrategy,
    /// `syncFrequency`: without watches, volumes are written again this often.
    pub resync: Duration,
    /// Volumes may show trust bundles (`ClusterTrustBundleProjection`).
    pub trust_bundles: bool,
    /// Volumes may show certificates of pods (`PodCertificateRequest`).
    pub pod_certificates: bool,
    /// Takes events of pods.
    pub recorder: Recorder,
    /// Receives resolved claims, for statistics.
    pub claims: ClaimViews,
    /// The own node: its annotation is the TTL of copies in mode `Cache`.
    pub node: Option<watch::Receiver<OwnNode>>,
}

impl Settings {
    /// TTL of a copy in mode `Cache`.
    // k8s: pkg/kubelet/util/manager/cache_based_manager.go GetObjectTTLFromNodeFunc
    fn ttl(&self) -> Duration {
        let node = self.node.as_ref().and_then(|node| node.borrow().object().cloned());
        let annotations = node.as_ref().and_then(|node| node.metadata.annotations.as_ref());
        let seconds = annotations.and_then(|all| all.get(TTL_ANNOTATION)?.parse().ok());
        seconds.map_or(CACHE_TTL, Duration::from_secs)
    }
}

/// The objects of this node's pods. Clones share them.
#[derive(Clone, Default)]
pub struct Objects(Option<Rc<ObjectsCore>>);

/// Everything behind `Objects`.
struct ObjectsCore {
    client: Client,
    settings: Settings,
    inputs: mpsc::Sender<PodsInput>,
    table: RefCell<ObjectTable>,
    followers: RefCell<HashMap<ObjectName, Follower>>,
    services: ServiceWatch,
    tokens: Tokens,
    trust_bundles: Option<TrustBundles>,
    certificates: Option<PodCertificates>,
    classes: runtime_class::Classes,
    drivers: driver_volumes::DriverSpecs,
    volumes: RefCell<claims::ClaimTable>,
}

impl Objects {
    /// Objects without an API server: a pod can refer to none.
    pub fn none() -> Self {
        Self(None)
    }

    /// Objects of the API server behind `client`; sends changes to `inputs`. To be called within a
    /// `LocalSet`.
    pub fn new(client: Client, settings: Settings, inputs: mpsc::Sender<PodsInput>) -> Self {
        let certificates = |node: &watch::Receiver<OwnNode>| {
            let recorder = settings.recorder.clone();
            PodCertificates::new(client.clone(), inputs.clone(), recorder, node.clone())
        };
        let wanted = settings.node.as_ref().filter(|_| settings.pod_certificates);
        let shared = Rc::new(ObjectsCore {
            certificates: wanted.map(certificates),
            tokens: Tokens::new(client.clone(), inputs.clone()),
            trust_bundles: settings
                .trust_bundles
                .then(|| TrustBundles::new(client.clone(), inputs.clone())),
            client,
            settings,
            inputs,
            table: RefCell::default(),
            followers: RefCell::default(),
            services: ServiceWatch::default(),
            classes: runtime_class::Classes::default(),
            drivers: driver_volumes::DriverSpecs::default(),
            volumes: RefCell::default(),
        });
        if shared.settings.strategy != ChangeDetectionStrategy::Watch {
            pintle_daemon::tasks::singleton("object resync", resync(Rc::downgrade(&shared)));
        }
        Self(Some(shared))
    }

    /// Records the references of a pod; to be called before its volumes and containers are
    /// prepared, and again whenever its definition may have changed.
    // k8s: pkg/kubelet/util/manager/cache_based_manager.go RegisterPod
    pub fn register(&self, uid: &PodUid, pod: &Pod) {
        let Some(shared) = &self.0 else { return };
        shared.services.open(&shared.client);
        let orders = shared.table.borrow_mut().register(uid, references::of(pod));
        shared.carry_out(orders);
    }

    /// Forgets a pod of which nothing runs any more.
    pub fn forget(&self, uid: &PodUid) {
        let Some(shared) = &self.0 else { return };
        let orders = shared.table.borrow_mut().forget(uid);
        shared.carry_out(orders);
        shared.forget_claims(uid);
        shared.tokens.forget(uid);
        if let Some(bundles) = &shared.trust_bundles {
            bundles.forget(uid);
        }
        if let Some(certificates) = &shared.certificates {
            certificates.forget(uid);
        }
        if shared.table.borrow().is_empty() {
            shared.services.close();
        }
    }

    /// Number of followed objects.
    pub fn followed(&self) -> usize {
        self.0.as_ref().map_or(0, |shared| shared.followers.borrow().len())
    }
}

impl ObjectsCore {
    fn carry_out(self: &Rc<Self>, orders: Orders) {
        let mut followers = self.followers.borrow_mut();
        for key in orders.close {
            followers.remove(&key);
        }
        for key in orders.open {
            let follower = Follower::start(self, &key);
            followers.insert(key, follower);
        }
        for key in orders.read {
            if let Some(follower) = followers.get(&key) {
                follower.wake();
            }
        }
    }

    /// Notifies workers; waits when their queue is full.
    async fn notify_workers(&self, told: Vec<WaitingReader>) {
        for WaitingReader { uid, files } in told {
            // Without a driver the queue has no receiver.
            let _ = self.inputs.send(PodsInput::Content { uid, files }).await;
        }
    }
}

/// Without watches there are no change events: all volumes are refreshed periodically.
async fn resync(shared: std::rc::Weak<ObjectsCore>) {
    loop {
        let Some(every) = shared.upgrade().map(|shared| shared.settings.resync) else { return };
        tokio::time::sleep(every).await;
        let Some(shared) = shared.upgrade() else { return };
        let told = shared.table.borrow().with_files();
        shared.notify_workers(told).await;
    }
}
