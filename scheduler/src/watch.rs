//! Watches of the kinds that decisions read.
//!
//! Input: watches. Output: [`WatchEvent`], one object after the other, over one bounded channel.
//! Owner: one task a kind. Bounds: `WATCH_EVENTS_MAX` events wait; while the channel is full a watch or
//! list is held back, and only the rest of one piece of a list is kept here. Fields that no
//! decision reads are dropped before objects are sent on; those of pods are not even parsed.
//! Nothing is ever written.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use pintle_api::informer::{FollowSpec, InformerObserver, ObjectSink, follow};
use pintle_api_types::object::{Object, UnreadableObject};
use pintle_daemon::tasks;
use pintle_scheduler_core::lean::LeanPod;
use pintle_scheduler_core::plugins::dynamicresources::rules::LeanRule;
use pintle_scheduler_core::prune;
use pintle_scheduler_core::watch_event::{WatchEvent, WatchedKind, WatchedObject};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Events waiting for the deciding thread.
pub const WATCH_EVENTS_MAX: usize = 512;
/// Finished pods use no resources.
// k8s: pkg/scheduler/scheduler.go NewInformerFactory
const LIVE_PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// A watched kind.
trait FollowedKind: Object {
    const KIND: WatchedKind;
    const NAME: &'static str;
    const PATH: &'static str;
    const FIELDS: &'static str = "";
    /// Drops the fields that no decision reads, unless the object is wanted whole.
    fn thing(self, whole: bool) -> WatchedObject;
}

macro_rules! followed {
    ($kind:ident, $name:literal, $path:literal $(, $fields:expr)?) => {
        impl FollowedKind for $kind {
            const KIND: WatchedKind = WatchedKind::$kind;
            const NAME: &'static str = $name;
            const PATH: &'static str = $path;
            $(const FIELDS: &'static str = $fields;)?
            fn thing(self, whole: bool) -> WatchedObject {
                let object = if whole { self } else { prune::Prune::prune(self) };
                WatchedObject::$kind(Box::new(object))
            }
        }
    };
}

impl FollowedKind for LeanPod {
    const KIND: WatchedKind = WatchedKind::Pod;
    const NAME: &'static str = "pods";
    const PATH: &'static str = "/api/v1/pods";
    const FIELDS: &'static str = LIVE_PODS;
    fn thing(self, _: bool) -> WatchedObject {
        WatchedObject::Pod(Box::new(self.0))
    }
}

impl FollowedKind for Pod {
    const KIND: WatchedKind = WatchedKind::Pod;
    const NAME: &'static str = LeanPod::NAME;
    const PATH: &'static str = LeanPod::PATH;
    const FIELDS: &'static str = LeanPod::FIELDS;
    fn thing(self, _: bool) -> WatchedObject {
        WatchedObject::Pod(Box::new(self))
    }
}

impl FollowedKind for LeanRule {
    const KIND: WatchedKind = WatchedKind::DeviceTaintRule;
    const NAME: &'static str = "devicetaintrules";
    // k8s: pkg/scheduler/scheduler.go New
    const PATH: &'static str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
    fn thing(self, _: bool) -> WatchedObject {
        WatchedObject::DeviceTaintRule(Box::new(self.into()))
    }
}

followed!(Node, "nodes", "/api/v1/nodes");
followed!(Namespace, "namespaces", "/api/v1/namespaces");
followed!(Service, "services", "/api/v1/services");
followed!(ReplicaSet, "replicasets", "/apis/apps/v1/replicasets");
followed!(StatefulSet, "statefulsets", "/apis/apps/v1/statefulsets");
followed!(ReplicationController, "replicationcontrollers", "/api/v1/replicationcontrollers");
followed!(PodDisruptionBudget, "poddisruptionbudgets", "/apis/policy/v1/poddisruptionbudgets");
followed!(PersistentVolume, "persistentvolumes", "/api/v1/persistentvolumes");
followed!(PersistentVolumeClaim, "persistentvolumeclaims", "/api/v1/persistentvolumeclaims");
followed!(StorageClass, "storageclasses", "/apis/storage.k8s.io/v1/storageclasses");
followed!(CSINode, "csinodes", "/apis/storage.k8s.io/v1/csinodes");
followed!(CSIDriver, "csidrivers", "/apis/storage.k8s.io/v1/csidrivers");
followed!(
    CSIStorageCapacity,
    "csistoragecapacities",
    "/apis/storage.k8s.io/v1/csistoragecapacities"
);
followed!(VolumeAttachment, "volumeattachments", "/apis/storage.k8s.io/v1/volumeattachments");
followed!(ResourceClaim, "resourceclaims", "/apis/resource.k8s.io/v1/resourceclaims");
followed!(ResourceSlice, "resourceslices", "/apis/resource.k8s.io/v1/resourceslices");
followed!(DeviceClass, "deviceclasses", "/apis/resource.k8s.io/v1/deviceclasses");
followed!(PodGroup, "podgroups", "/apis/scheduling.k8s.io/v1alpha2/podgroups");

/// Name of a kind's watch, and the future that runs it.
pub type Following = (&'static str, futures_util::future::LocalBoxFuture<'static, ()>);

/// Builds the observer of the lists and watches of a kind.
pub type Observed<'a> = Option<&'a dyn Fn(WatchedKind) -> Arc<dyn InformerObserver>>;

/// Watches all kinds with the client of `client`; each future runs until it is dropped. `whole`
/// keeps pods and nodes whole.
pub fn follow_all(
    client: impl Fn() -> kube::Client,
    events: &mpsc::Sender<WatchEvent>,
    whole: bool,
) -> Vec<Following> {
    follow_observed(client, events, whole, None)
}

/// Like [`follow_all`], with an observer for each kind.
pub fn follow_observed(
    client: impl Fn() -> kube::Client,
    events: &mpsc::Sender<WatchEvent>,
    whole: bool,
    by: Observed<'_>,
) -> Vec<Following> {
    vec![
        one::<Namespace>(client(), events, false, by),
        one::<Node>(client(), events, whole, by),
        one::<Service>(client(), events, false, by),
        one::<ReplicaSet>(client(), events, false, by),
        one::<StatefulSet>(client(), events, false, by),
        one::<ReplicationController>(client(), events, false, by),
        one::<PodDisruptionBudget>(client(), events, false, by),
        one::<PersistentVolume>(client(), events, false, by),
        one::<PersistentVolumeClaim>(client(), events, false, by),
        one::<StorageClass>(client(), events, false, by),
        one::<CSINode>(client(), events, false, by),
        one::<CSIDriver>(client(), events, false, by),
        one::<CSIStorageCapacity>(client(), events, false, by),
        one::<VolumeAttachment>(client(), events, false, by),
        one::<ResourceClaim>(client(), events, false, by),
        one::<ResourceSlice>(client(), events, false, by),
        one::<DeviceClass>(client(), events, false, by),
        match whole {
            true => one::<Pod>(client(), events, true, by),
            false => one::<LeanPod>(client(), events, false, by),
        },
    ]
}

/// Watches PodGroups, which only some clusters have.
pub fn follow_groups(client: kube::Client, events: &mpsc::Sender<WatchEvent>) -> Following {
    one::<PodGroup>(client, events, false, None)
}

/// Watches DeviceTaintRules, which only some clusters have.
pub fn follow_rules(client: kube::Client, events: &mpsc::Sender<WatchEvent>) -> Following {
    one::<LeanRule>(client, events, false, None)
}

fn one<T: FollowedKind>(
    client: kube::Client,
    events: &mpsc::Sender<WatchEvent>,
    whole: bool,
    by: Observed<'_>,
) -> Following {
    let mut spec = FollowSpec::new(T::NAME, T::PATH);
    if let Some(by) = by {
        spec.observer = by(T::KIND);
    }
    spec.source.field_selector = T::FIELDS.to_owned();
    let sink = WatchEventSink { events: events.clone(), kept: Vec::new(), whole };
    (T::NAME, Box::pin(follow::<T, _>(client, spec, sink)))
}

/// Sends a watch's events to the channel.
struct WatchEventSink {
    events: mpsc::Sender<WatchEvent>,
    /// Rest of a list that did not fit into the channel.
    kept: Vec<WatchEvent>,
    whole: bool,
}

impl WatchEventSink {
    fn offer(&mut self, watch_event: WatchEvent) {
        if !self.kept.is_empty() {
            return self.kept.push(watch_event);
        }
        if let Err(TrySendError::Full(watch_event)) = self.events.try_send(watch_event) {
            self.kept.push(watch_event);
        }
    }

    /// Returns the object without unused fields; `None` if that panics.
    fn stripped<T: FollowedKind>(&self, object: T) -> Option<WatchedObject> {
        let stripped = tasks::catch(|| object.thing(self.whole));
        let stripped = stripped.inspect_err(|panic| {
            tasks::counted("watch");
            tracing::error!("{panic}; an object of {} is left out", T::NAME);
        });
        stripped.ok()
    }

    async fn send(&mut self, watch_event: WatchEvent) {
        self.send_kept().await;
        // The receiver is closed only when the process is about to end.
        let _ = self.events.send(watch_event).await;
    }

    async fn send_kept(&mut self) {
        for kept in std::mem::take(&mut self.kept) {
            let _ = self.events.send(kept).await;
        }
    }
}

impl<T: FollowedKind> ObjectSink<T> for WatchEventSink {
    fn begin(&mut self) {
        self.kept.clear();
        self.offer(WatchEvent::Begun(T::KIND));
    }

    fn listed(&mut self, object: T) {
        let listed = self.stripped(object).map(WatchEvent::Listed);
        self.offer(listed.unwrap_or(WatchEvent::Unreadable(T::KIND, None)));
    }

    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>) {
        self.offer(WatchEvent::Unreadable(T::KIND, lost.map(|lost| lost.key)));
    }

    async fn wait_for_room(&mut self) {
        self.send_kept().await;
    }

    async fn complete(&mut self) {
        self.send(WatchEvent::Complete(T::KIND)).await;
    }

    async fn applied(&mut self, object: T) {
        if let Some(thing) = self.stripped(object) {
            self.send(WatchEvent::Set(thing)).await;
        }
    }

    async fn deleted(&mut self, object: T) {
        if let Some(thing) = self.stripped(object) {
            self.send(WatchEvent::Gone(thing)).await;
        }
    }

    async fn deleted_unreadable(&mut self, lost: UnreadableObject) {
        self.send(WatchEvent::Lost(T::KIND, lost.key)).await;
    }
}
