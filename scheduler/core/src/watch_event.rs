//! Watch events: the kinds that decisions read, an object of one of them, what happened to it.
//!
//! Input: objects of the API, as `watch` decodes them. Output: [`WatchEvent`], which the cache and
//! the cycle take one by one. Owner: plain data. Bounds: one object each.

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api_types::key::ObjectKey;

/// A kind that decisions read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are the documentation
pub enum WatchedKind {
    Pod,
    Node,
    Namespace,
    Service,
    ReplicaSet,
    StatefulSet,
    ReplicationController,
    PodDisruptionBudget,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
    VolumeAttachment,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    PodGroup,
    DeviceTaintRule,
}

/// All kinds except PodGroup and DeviceTaintRule, which are watched only behind their gates.
pub const KINDS: [WatchedKind; 18] = [
    WatchedKind::Pod,
    WatchedKind::Node,
    WatchedKind::Namespace,
    WatchedKind::Service,
    WatchedKind::ReplicaSet,
    WatchedKind::StatefulSet,
    WatchedKind::ReplicationController,
    WatchedKind::PodDisruptionBudget,
    WatchedKind::PersistentVolume,
    WatchedKind::PersistentVolumeClaim,
    WatchedKind::StorageClass,
    WatchedKind::CSINode,
    WatchedKind::CSIDriver,
    WatchedKind::CSIStorageCapacity,
    WatchedKind::VolumeAttachment,
    WatchedKind::ResourceClaim,
    WatchedKind::ResourceSlice,
    WatchedKind::DeviceClass,
];

/// An object of one of them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names are the documentation
pub enum WatchedObject {
    Pod(Box<Pod>),
    Node(Box<Node>),
    Namespace(Box<Namespace>),
    Service(Box<Service>),
    ReplicaSet(Box<ReplicaSet>),
    StatefulSet(Box<StatefulSet>),
    ReplicationController(Box<ReplicationController>),
    PodDisruptionBudget(Box<PodDisruptionBudget>),
    PersistentVolume(Box<PersistentVolume>),
    PersistentVolumeClaim(Box<PersistentVolumeClaim>),
    StorageClass(Box<StorageClass>),
    CSINode(Box<CSINode>),
    CSIDriver(Box<CSIDriver>),
    CSIStorageCapacity(Box<CSIStorageCapacity>),
    VolumeAttachment(Box<VolumeAttachment>),
    ResourceClaim(Box<ResourceClaim>),
    ResourceSlice(Box<ResourceSlice>),
    DeviceClass(Box<DeviceClass>),
    PodGroup(Box<PodGroup>),
    DeviceTaintRule(Box<DeviceTaintRule>),
}

impl WatchedObject {
    /// Returns the object's metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Pod(o) => &o.metadata,
            Self::Node(o) => &o.metadata,
            Self::Namespace(o) => &o.metadata,
            Self::Service(o) => &o.metadata,
            Self::ReplicaSet(o) => &o.metadata,
            Self::StatefulSet(o) => &o.metadata,
            Self::ReplicationController(o) => &o.metadata,
            Self::PodDisruptionBudget(o) => &o.metadata,
            Self::PersistentVolume(o) => &o.metadata,
            Self::PersistentVolumeClaim(o) => &o.metadata,
            Self::StorageClass(o) => &o.metadata,
            Self::CSINode(o) => &o.metadata,
            Self::CSIDriver(o) => &o.metadata,
            Self::CSIStorageCapacity(o) => &o.metadata,
            Self::VolumeAttachment(o) => &o.metadata,
            Self::ResourceClaim(o) => &o.metadata,
            Self::ResourceSlice(o) => &o.metadata,
            Self::DeviceClass(o) => &o.metadata,
            Self::PodGroup(o) => &o.metadata,
            Self::DeviceTaintRule(o) => &o.metadata,
        }
    }

    /// Returns the object's kind.
    pub fn kind(&self) -> WatchedKind {
        match self {
            Self::Pod(_) => WatchedKind::Pod,
            Self::Node(_) => WatchedKind::Node,
            Self::Namespace(_) => WatchedKind::Namespace,
            Self::Service(_) => WatchedKind::Service,
            Self::ReplicaSet(_) => WatchedKind::ReplicaSet,
            Self::StatefulSet(_) => WatchedKind::StatefulSet,
            Self::ReplicationController(_) => WatchedKind::ReplicationController,
            Self::PodDisruptionBudget(_) => WatchedKind::PodDisruptionBudget,
            Self::PersistentVolume(_) => WatchedKind::PersistentVolume,
            Self::PersistentVolumeClaim(_) => WatchedKind::PersistentVolumeClaim,
            Self::StorageClass(_) => WatchedKind::StorageClass,
            Self::CSINode(_) => WatchedKind::CSINode,
            Self::CSIDriver(_) => WatchedKind::CSIDriver,
            Self::CSIStorageCapacity(_) => WatchedKind::CSIStorageCapacity,
            Self::VolumeAttachment(_) => WatchedKind::VolumeAttachment,
            Self::ResourceClaim(_) => WatchedKind::ResourceClaim,
            Self::ResourceSlice(_) => WatchedKind::ResourceSlice,
            Self::DeviceClass(_) => WatchedKind::DeviceClass,
            Self::PodGroup(_) => WatchedKind::PodGroup,
            Self::DeviceTaintRule(_) => WatchedKind::DeviceTaintRule,
        }
    }

    /// Returns the object's key.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        let text = |text: &'_ Option<String>| text.clone().unwrap_or_default();
        ObjectKey::new(&text(&metadata.namespace), &text(&metadata.name))
    }

    /// Returns the resource version; later versions are greater, across all kinds.
    pub fn version(&self) -> u64 {
        let text = self.metadata().resource_version.as_deref();
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// A watch event.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// A list of a kind begins; an earlier incomplete list is void.
    Begun(WatchedKind),
    /// An object of the list.
    Listed(WatchedObject),
    /// An object of the list that cannot be decoded; `None` if not even its name can.
    Unreadable(WatchedKind, Option<ObjectKey>),
    /// The list is complete; no other object of the kind exists.
    Complete(WatchedKind),
    /// It was added or modified.
    Set(WatchedObject),
    /// It was deleted, or no longer matches the watch, in this state.
    Gone(WatchedObject),
    /// It was deleted, in a state that cannot be decoded.
    Lost(WatchedKind, ObjectKey),
}
