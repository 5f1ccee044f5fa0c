//! Drops fields that no decision reads.
//!
//! Input: objects of the API. Output: the same with fields removed. Owner: pure functions. Such
//! fields of pods, which are many, are not even parsed: see [`lean`](crate::lean).

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeStatus, PersistentVolume, PersistentVolumeClaim, ReplicationController,
    Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::plugins::dynamicresources::extended::EXTENDED;

/// A kind with fields to drop.
pub trait Prune {
    /// Drops fields that no decision reads.
    #[must_use]
    fn prune(self) -> Self;
}

fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.finalizers = None;
    metadata.self_link = None;
    metadata.annotations = None;
}

impl Prune for Node {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.status = self.status.map(|s| NodeStatus {
            allocatable: s.allocatable,
            images: s.images,
            declared_features: s.declared_features,
            ..NodeStatus::default()
        });
        self
    }
}

impl Prune for PodGroup {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self
    }
}

impl Prune for Namespace {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.spec = None;
        self.status = None;
        self
    }
}

impl Prune for Service {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.status = None;
        let selector = self.spec.take().and_then(|spec| spec.selector);
        self.spec =
            Some(k8s_openapi::api::core::v1::ServiceSpec { selector, ..Default::default() });
        self
    }
}

impl Prune for ReplicaSet {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.status = None;
        if let Some(spec) = &mut self.spec {
            spec.template = None;
        }
        self
    }
}

impl Prune for StatefulSet {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.status = None;
        if let Some(spec) = &mut self.spec {
            spec.template = Default::default();
            spec.volume_claim_templates = None;
        }
        self
    }
}

impl Prune for ReplicationController {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        self.status = None;
        if let Some(spec) = &mut self.spec {
            spec.template = None;
        }
        self
    }
}

impl Prune for PodDisruptionBudget {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        if let Some(status) = &mut self.status {
            status.conditions = None;
        }
        self
    }
}

/// Kinds that lose only their managed fields.
macro_rules! whole {
    ($($kind:ident),+) => {
        $(impl Prune for $kind {
            fn prune(mut self) -> Self {
                self.metadata.managed_fields = None;
                self
            }
        })+
    };
}

whole!(
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
    VolumeAttachment,
    ResourceSlice,
    DeviceClass
);

impl Prune for ResourceClaim {
    fn prune(mut self) -> Self {
        self.metadata.managed_fields = None;
        if let Some(all) = &mut self.metadata.annotations {
            all.retain(|name, _| name == EXTENDED);
        }
        self
    }
}
