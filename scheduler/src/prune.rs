//! Objects without what no decision reads.
//!
//! Input: objects of the API. Output: the same with fields taken out. Owner: pure functions. A pod of
//! the API has kilobytes of environment, volume mounts, status and field managers; a few hundred
//! bytes of it decide where it may run.

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Container, Namespace, Node, NodeStatus, PersistentVolume, PersistentVolumeClaim, Pod,
    PodStatus, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// A kind that can be stripped.
pub trait Prune {
    /// Takes out what no decision reads.
    #[must_use]
    fn prune(self) -> Self;
}

/// Annotations that say to whom a pod belongs.
const KEPT_ANNOTATIONS: [&str; 1] = ["kubernetes.io/config.mirror"];

fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.finalizers = None;
    metadata.self_link = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| KEPT_ANNOTATIONS.contains(&name.as_str()));
    }
    metadata.annotations.take_if(|annotations| annotations.is_empty());
}

fn container(container: &mut Container) {
    let c = std::mem::take(container);
    *container = Container {
        name: c.name,
        image: c.image,
        ports: c.ports,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        ..Container::default()
    };
}

impl Prune for Pod {
    fn prune(mut self) -> Self {
        metadata(&mut self.metadata);
        if let Some(spec) = &mut self.spec {
            spec.containers.iter_mut().for_each(container);
            spec.init_containers.iter_mut().flatten().for_each(container);
            spec.ephemeral_containers = None;
            spec.dns_config = None;
            spec.host_aliases = None;
            spec.image_pull_secrets = None;
            spec.readiness_gates = None;
            if let Some(volumes) = &mut spec.volumes {
                // Those that tie a pod to nodes, also by their disks, and images, which count as a container's.
                volumes.retain(|v| {
                    let is_claim = v.persistent_volume_claim.is_some() || v.ephemeral.is_some();
                    let is_disk = v.gce_persistent_disk.is_some()
                        || v.aws_elastic_block_store.is_some()
                        || v.iscsi.is_some()
                        || v.rbd.is_some();
                    is_claim || is_disk || v.image.is_some()
                });
            }
            spec.volumes.take_if(|volumes| volumes.is_empty());
        }
        self.status = self.status.map(|s| PodStatus {
            phase: s.phase,
            start_time: s.start_time,
            nominated_node_name: s.nominated_node_name,
            resources: s.resources,
            allocated_resources: s.allocated_resources,
            resize: s.resize,
            container_statuses: s.container_statuses.map(resized),
            init_container_statuses: s.init_container_statuses.map(resized),
            conditions: s.conditions.map(|mut all| {
                all.retain(|c| {
                    matches!(c.type_.as_str(), "PodScheduled" | "PodResizePending")
                        || c.type_ == "DisruptionTarget"
                });
                all
            }),
            ..PodStatus::default()
        });
        self
    }
}

type Statuses = Vec<k8s_openapi::api::core::v1::ContainerStatus>;

/// What a container was given counts as its request while it is being resized.
fn resized(statuses: Statuses) -> Statuses {
    let keep = |s: k8s_openapi::api::core::v1::ContainerStatus| {
        k8s_openapi::api::core::v1::ContainerStatus {
            name: s.name,
            resources: s.resources,
            allocated_resources: s.allocated_resources,
            ..Default::default()
        }
    };
    statuses.into_iter().map(keep).collect()
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

/// Those of which all is read but who wrote what.
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
    VolumeAttachment
);
