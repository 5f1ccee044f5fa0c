//! Projection of pods: fields that no decision reads are skipped while JSON is parsed.
//!
//! Input: a pod of the API as JSON. Output: the pod without those fields. Owner: pure functions. A
//! pod of the API has kilobytes of environment, mounts, status and field managers; a few hundred
//! bytes of it decide where it may run. The comparison with upstream's plugins, which get whole
//! pods (`tests/scheduler/tests/scheduler/vectors.rs`), proves that no decision misses a field.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, Affinity, AzureDiskVolumeSource, CinderVolumeSource,
    Container, ContainerPort, ContainerRestartRule, ContainerStatus, EphemeralVolumeSource,
    GCEPersistentDiskVolumeSource, ISCSIVolumeSource, ImageVolumeSource,
    NodeAllocatableResourceClaimStatus, PersistentVolumeClaimVolumeSource, Pod, PodCondition,
    PodResourceClaim, PodResourceClaimStatus, PodSchedulingGate, PodSchedulingGroup, PodSpec,
    PodStatus, PortworxVolumeSource, RBDVolumeSource, ResourceRequirements, Toleration,
    TopologySpreadConstraint, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use pintle_api_types::object::Object;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Annotations that are kept: the one of mirror pods.
const KEPT_ANNOTATIONS: [&str; 1] = ["kubernetes.io/config.mirror"];
/// Conditions that are compared with new ones, or that say how far a resize is.
const KEPT_CONDITIONS: [&str; 3] = ["PodScheduled", "PodResizePending", "DisruptionTarget"];

type Amounts = Option<BTreeMap<String, Quantity>>;

/// A pod without unused fields.
#[derive(Clone, Debug, PartialEq)]
pub struct LeanPod(pub Pod);

impl Object for LeanPod {
    fn namespace(&self) -> &str {
        self.0.metadata.namespace.as_deref().unwrap_or_default()
    }
    fn name(&self) -> &str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }
    fn uid(&self) -> &str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }
    fn resource_version(&self) -> &str {
        self.0.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for LeanPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = PodWire::deserialize(deserializer)?;
        Ok(Self(Pod {
            metadata: read.metadata.into(),
            spec: read.spec.map(Into::into),
            status: read.status.map(Into::into),
        }))
    }
}

#[derive(Deserialize)]
struct PodWire {
    #[serde(default)]
    metadata: ProjectedMeta,
    spec: Option<LeanSpec>,
    status: Option<LeanStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProjectedMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<Annotations>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<ProjectedMeta> for ObjectMeta {
    fn from(read: ProjectedMeta) -> Self {
        Self {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            generation: read.generation,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels,
            annotations: read.annotations.map(|all| all.0).filter(|all| !all.is_empty()),
            owner_references: read.owner_references,
            ..Self::default()
        }
    }
}

/// Kept annotations; the others are not even copied.
#[derive(Default)]
struct Annotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeptAnnotations;
        impl<'de> Visitor<'de> for KeptAnnotations {
            type Value = Annotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut kept = Annotations::default();
                while let Some(name) = map.next_key::<String>()? {
                    if KEPT_ANNOTATIONS.contains(&name.as_str()) {
                        kept.0.insert(name, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(kept)
            }
        }
        deserializer.deserialize_map(KeptAnnotations)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanSpec {
    #[serde(default)]
    containers: Vec<OneContainer>,
    init_containers: Option<Vec<OneContainer>>,
    volumes: Option<Vec<OneVolume>>,
    affinity: Option<Affinity>,
    host_network: Option<bool>,
    host_users: Option<bool>,
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    overhead: Amounts,
    preemption_policy: Option<String>,
    priority: Option<i32>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    resources: Option<ResourceRequirements>,
    scheduler_name: Option<String>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
    scheduling_group: Option<PodSchedulingGroup>,
    tolerations: Option<Vec<Toleration>>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
}

impl From<LeanSpec> for PodSpec {
    fn from(read: LeanSpec) -> Self {
        let volumes = read.volumes.into_iter().flatten().filter(OneVolume::ties);
        let volumes: Vec<Volume> = volumes.map(Into::into).collect();
        Self {
            containers: read.containers.into_iter().map(Into::into).collect(),
            init_containers: read
                .init_containers
                .map(|all| all.into_iter().map(Into::into).collect()),
            volumes: (!volumes.is_empty()).then_some(volumes),
            affinity: read.affinity,
            host_network: read.host_network,
            host_users: read.host_users,
            node_name: read.node_name,
            node_selector: read.node_selector,
            overhead: read.overhead,
            preemption_policy: read.preemption_policy,
            priority: read.priority,
            resource_claims: read.resource_claims,
            resources: read.resources,
            scheduler_name: read.scheduler_name,
            scheduling_gates: read.scheduling_gates,
            scheduling_group: read.scheduling_group,
            tolerations: read.tolerations,
            topology_spread_constraints: read.topology_spread_constraints,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneContainer {
    #[serde(default)]
    name: String,
    image: Option<String>,
    ports: Option<Vec<ContainerPort>>,
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
    restart_policy_rules: Option<Vec<ContainerRestartRule>>,
}

impl From<OneContainer> for Container {
    fn from(read: OneContainer) -> Self {
        Self {
            name: read.name,
            image: read.image,
            ports: read.ports,
            resources: read.resources,
            restart_policy: read.restart_policy,
            restart_policy_rules: read.restart_policy_rules,
            ..Self::default()
        }
    }
}

/// A volume that may tie a pod to nodes, or an image volume, which counts like a container's image.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneVolume {
    #[serde(default)]
    name: String,
    persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    ephemeral: Option<EphemeralVolumeSource>,
    gce_persistent_disk: Option<GCEPersistentDiskVolumeSource>,
    aws_elastic_block_store: Option<AWSElasticBlockStoreVolumeSource>,
    azure_disk: Option<AzureDiskVolumeSource>,
    cinder: Option<CinderVolumeSource>,
    portworx_volume: Option<PortworxVolumeSource>,
    iscsi: Option<ISCSIVolumeSource>,
    rbd: Option<RBDVolumeSource>,
    image: Option<ImageVolumeSource>,
}

impl OneVolume {
    fn ties(&self) -> bool {
        self.persistent_volume_claim.is_some()
            || self.ephemeral.is_some()
            || self.gce_persistent_disk.is_some()
            || self.aws_elastic_block_store.is_some()
            || self.azure_disk.is_some()
            || self.cinder.is_some()
            || self.portworx_volume.is_some()
            || self.iscsi.is_some()
            || self.rbd.is_some()
            || self.image.is_some()
    }
}

impl From<OneVolume> for Volume {
    fn from(read: OneVolume) -> Self {
        Self {
            name: read.name,
            persistent_volume_claim: read.persistent_volume_claim,
            ephemeral: read.ephemeral,
            gce_persistent_disk: read.gce_persistent_disk,
            aws_elastic_block_store: read.aws_elastic_block_store,
            azure_disk: read.azure_disk,
            cinder: read.cinder,
            portworx_volume: read.portworx_volume,
            iscsi: read.iscsi,
            rbd: read.rbd,
            image: read.image,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    resources: Option<ResourceRequirements>,
    allocated_resources: Amounts,
    resize: Option<String>,
    container_statuses: Option<Vec<OneStatus>>,
    init_container_statuses: Option<Vec<OneStatus>>,
    conditions: Option<Vec<LeanCondition>>,
    resource_claim_statuses: Option<Vec<PodResourceClaimStatus>>,
    node_allocatable_resource_claim_statuses: Option<Vec<NodeAllocatableResourceClaimStatus>>,
}

impl From<LeanStatus> for PodStatus {
    fn from(read: LeanStatus) -> Self {
        let statuses =
            |all: Option<Vec<OneStatus>>| all.map(|all| all.into_iter().map(Into::into).collect());
        Self {
            phase: read.phase,
            start_time: read.start_time,
            nominated_node_name: read.nominated_node_name,
            resources: read.resources,
            allocated_resources: read.allocated_resources,
            resize: read.resize,
            container_statuses: statuses(read.container_statuses),
            init_container_statuses: statuses(read.init_container_statuses),
            conditions: read.conditions.map(|all| all.into_iter().filter_map(kept).collect()),
            resource_claim_statuses: read.resource_claim_statuses,
            node_allocatable_resource_claim_statuses: read.node_allocatable_resource_claim_statuses,
            ..Self::default()
        }
    }
}

/// Resources allocated to a container; they count as its request while it is being resized.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OneStatus {
    #[serde(default)]
    name: String,
    resources: Option<ResourceRequirements>,
    allocated_resources: Amounts,
}

impl From<OneStatus> for ContainerStatus {
    fn from(read: OneStatus) -> Self {
        Self {
            name: read.name,
            resources: read.resources,
            allocated_resources: read.allocated_resources,
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanCondition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
    reason: Option<String>,
    message: Option<String>,
    observed_generation: Option<i64>,
    // As text, because most belong to conditions that are dropped.
    last_transition_time: Option<String>,
}

fn kept(read: LeanCondition) -> Option<PodCondition> {
    if !KEPT_CONDITIONS.contains(&read.kind.as_str()) {
        return None;
    }
    let time = read.last_transition_time.and_then(|text| Some(Time(text.parse().ok()?)));
    Some(PodCondition {
        type_: read.kind,
        status: read.status,
        reason: read.reason,
        message: read.message,
        observed_generation: read.observed_generation,
        last_transition_time: time,
        ..PodCondition::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the projection of a whole pod.
    fn lean(value: &Value) -> Value {
        let text = value.to_string();
        let read: LeanPod = serde_json::from_str(&text).expect("a pod");
        serde_json::to_value(read.0).expect("JSON")
    }

    #[test]
    fn projection_keeps_all_fields_that_affect_decisions() {
        let claim = json!({"name": "c", "persistentVolumeClaim": {"claimName": "c"}});
        let spec = json!({
            "containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 1, "hostPort": 2}],
                "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "r"}]},
                "restartPolicyRules": [{"action": "RestartAllContainers"}]}],
            "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "volumes": [claim, {"name": "d", "azureDisk": {"diskName": "d", "diskURI": "d"}},
                {"name": "o", "cinder": {"volumeID": "o"}},
                {"name": "p", "portworxVolume": {"volumeID": "p"}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}},
            "hostNetwork": true, "hostUsers": false, "nodeName": "n", "nodeSelector": {"a": "b"},
            "overhead": {"cpu": "1m"}, "preemptionPolicy": "Never", "priority": 7,
            "resourceClaims": [{"name": "r", "resourceClaimName": "x"}],
            "resources": {"requests": {"cpu": "3"}}, "schedulerName": "s",
            "schedulingGates": [{"name": "g"}], "schedulingGroup": {"podGroupName": "g"},
            "tolerations": [{"operator": "Exists"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule"}],
        });
        let status = json!({
            "phase": "Running", "startTime": "2024-01-01T00:00:00Z", "nominatedNodeName": "n",
            "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"},
            "resize": "Proposed",
            "resourceClaimStatuses": [{"name": "r", "resourceClaimName": "x"}],
            "nodeAllocatableResourceClaimStatuses":
                [{"resourceClaimName": "x", "containers": ["a"], "resources": {"cpu": "2"}}],
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "r", "message": "m",
                "observedGeneration": 2, "lastTransitionTime": "2024-01-01T00:00:00Z"}],
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "5",
                "generation": 3, "creationTimestamp": "2024-01-01T00:00:00Z",
                "deletionTimestamp": "2024-01-01T00:00:00Z", "labels": {"a": "b"},
                "annotations": {"kubernetes.io/config.mirror": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "o"}]},
            "spec": spec, "status": status,
        });
        assert_eq!(lean(&pod), pod);
    }

    #[test]
    fn projection_drops_unused_fields() {
        let pod = json!({
            "metadata": {"name": "p", "managedFields": [{"manager": "m"}], "finalizers": ["f"],
                "annotations": {"big": "text"}},
            "spec": {"containers": [{"name": "a", "env": [{"name": "E", "value": "v"}],
                "volumeMounts": [{"name": "t", "mountPath": "/t"}]}],
                "volumes": [{"name": "t", "projected": {"sources": []}}], "hostname": "h"},
            "status": {"phase": "Pending", "podIP": "10.0.0.1", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "no time at all"}],
                "containerStatuses": [{"name": "a", "image": "i", "imageID": "x", "ready": true,
                    "restartCount": 3, "state": {"running": {}}}]},
        });
        let left = lean(&pod);
        assert_eq!(left["metadata"], json!({"name": "p"}));
        assert_eq!(left["spec"], json!({"containers": [{"name": "a"}]}));
        let status = json!({"name": "a", "image": "", "imageID": "", "ready": false,
            "restartCount": 0});
        let status = json!({"phase": "Pending", "conditions": [], "containerStatuses": [status]});
        assert_eq!(left["status"], status);
    }

    #[test]
    fn projection_rejects_values_that_are_not_pods() {
        for text in ["[]", "3", r#"{"metadata": {"name": 3}}"#, r#"{"spec": {"containers": {}}}"#] {
            assert!(serde_json::from_str::<LeanPod>(text).is_err(), "{text}");
        }
        let nothing: LeanPod = serde_json::from_str("{}").expect("nothing is asked for");
        assert_eq!(nothing.0, Pod::default());
    }
}
