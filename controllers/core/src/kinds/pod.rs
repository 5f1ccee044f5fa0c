//! Pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::symbol::Symbol;
use serde::Deserialize;
use serde_json::Deserializer;
use serde_json::value::RawValue;

use super::charge::{ActuatedContainer, Charged, ChargedContainer, PodCharge};
use crate::common::node_match::target_node;
use crate::kept::Facts;
use crate::meta::{Meta, or_default, time};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "PodText")]
pub struct Pod {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: PodSpec,
    /// The observed state.
    pub status: PodStatus,
    /// The charge to quotas.
    pub charge: PodCharge,
}

/// The spec of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSpec {
    /// The node it is bound to; empty while it is not.
    pub node_name: Symbol,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: Symbol,
    /// Names of the init containers that keep running beside the others.
    pub sidecars: Box<[Symbol]>,
    /// Its volumes that are claims.
    pub claim_volumes: Box<[ClaimVolume]>,
    /// The node that its required affinity names: where a daemon pod that is not bound yet belongs.
    pub target_node: Option<Symbol>,
}

/// A pod as it is read: each part once, for its facts and for its charge.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodText {
    metadata: Meta,
    spec: SpecText,
    status: StatusText,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecText {
    node_name: Symbol,
    restart_policy: Symbol,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<ChargedContainer>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<ChargedContainer>,
    #[serde(deserialize_with = "claim_volumes")]
    volumes: Box<[ClaimVolume]>,
    affinity: Option<Box<RawValue>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    active_deadline_seconds: Option<i64>,
    priority_class_name: Symbol,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusText {
    phase: Symbol,
    reason: Symbol,
    #[serde(deserialize_with = "or_default")]
    conditions: Box<[PodCondition]>,
    #[serde(deserialize_with = "time")]
    start_time: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    init_container_statuses: Vec<ContainerText>,
    #[serde(deserialize_with = "or_default")]
    container_statuses: Vec<ContainerText>,
    qos_class: Symbol,
    extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerText {
    name: Symbol,
    restart_count: i32,
    state: ContainerState,
    resources: Option<ResourceRequirements>,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExtendedClaim {
    resource_claim_name: Symbol,
}

impl TryFrom<PodText> for Pod {
    type Error = serde_json::Error;

    fn try_from(text: PodText) -> Result<Self, Self::Error> {
        let PodText { metadata, spec, status } = text;
        let mut statuses = Vec::new();
        let main = split(status.container_statuses, &mut statuses);
        let init = split(status.init_container_statuses, &mut statuses);
        let is_sidecar =
            |container: &&ChargedContainer| container.restart_policy.as_deref() == Some("Always");
        let sidecars = spec.init_containers.iter().filter(is_sidecar);
        let sidecars = sidecars.map(|container| Symbol::of(&container.name)).collect();
        let affinity = spec.affinity.as_deref().map(RawValue::get);
        let target = affinity.map(|text| target_node(&mut Deserializer::from_str(text)));
        let mut conditions = status.conditions.iter();
        let resize = conditions.find(|condition| &*condition.kind == "PodResizePending");
        let charge = PodCharge::new(Charged {
            containers: spec.containers,
            init_containers: spec.init_containers,
            resources: spec.resources,
            overhead: spec.overhead,
            has_deadline: spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0),
            priority_class: spec.priority_class_name,
            affinity,
            qos_class: status.qos_class,
            is_resize_infeasible: resize.is_some_and(|resize| &*resize.reason == "Infeasible"),
            statuses,
            extended_claim: status
                .extended_resource_claim_status
                .map(|claim| claim.resource_claim_name),
        })?;
        let spec = PodSpec {
            node_name: spec.node_name,
            restart_policy: spec.restart_policy,
            sidecars,
            claim_volumes: spec.volumes,
            target_node: target.transpose()?.flatten(),
        };
        let status = PodStatus {
            phase: status.phase,
            reason: status.reason,
            conditions: status.conditions,
            start_time: status.start_time,
            init_container_statuses: init,
            container_statuses: main,
        };
        Ok(Self { metadata, spec, status, charge })
    }
}

/// Divides what was read of containers into facts and what is charged.
fn split(read: Vec<ContainerText>, charged: &mut Vec<ActuatedContainer>) -> Box<[ContainerStatus]> {
    let each = read.into_iter().map(|read| {
        let ContainerText { name, restart_count, state, resources, allocated_resources } = read;
        charged.push(ActuatedContainer { name: name.clone(), resources, allocated_resources });
        ContainerStatus { name, restart_count, state }
    });
    each.collect()
}

/// A volume that is a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The volume's name.
    pub name: Symbol,
    /// The claim's name.
    pub claim: Symbol,
}

fn claim_volumes<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Box<[ClaimVolume]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VolumeWire {
        name: Symbol,
        persistent_volume_claim: Option<VolumeSource>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VolumeSource {
        claim_name: Symbol,
    }
    let volumes = Option::<Vec<VolumeWire>>::deserialize(from)?.unwrap_or_default();
    let claims = volumes.into_iter().filter_map(|volume| {
        let claim = volume.persistent_volume_claim?.claim_name;
        Some(ClaimVolume { name: volume.name, claim })
    });
    Ok(claims.collect())
}

/// The status of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Symbol,
    /// Why it failed, in a word.
    pub reason: Symbol,
    /// Its conditions.
    pub conditions: Box<[PodCondition]>,
    /// When the kubelet acknowledged it.
    pub start_time: Option<Timestamp>,
    /// Its init containers.
    pub init_container_statuses: Box<[ContainerStatus]>,
    /// Its containers.
    pub container_statuses: Box<[ContainerStatus]>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodCondition {
    /// Such as `Ready`.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// `True`, `False` or `Unknown`.
    pub status: Symbol,
    /// The reason in a word.
    pub reason: Symbol,
    /// When the status last changed.
    #[serde(deserialize_with = "time")]
    pub last_transition_time: Option<Timestamp>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// Its name.
    pub name: Symbol,
    /// How often it was restarted.
    pub restart_count: i32,
    /// Its state.
    pub state: ContainerState,
}

/// The state of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerState {
    /// It has ended.
    pub terminated: Option<Terminated>,
}

/// The end of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Terminated {
    /// Its exit code.
    pub exit_code: i32,
    /// When it ended.
    #[serde(deserialize_with = "time")]
    pub finished_at: Option<Timestamp>,
}

impl Facts for Pod {
    const KIND: Kind = PODS;
    const IS_WHOLE: bool = false;

    fn metadata(&self) -> &Meta {
        &self.metadata
    }

    fn index(&self) -> Option<&str> {
        Some(&*self.spec.node_name).filter(|node| !node.is_empty())
    }
}

impl Pod {
    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// Its condition `Ready` is true.
    // k8s: pkg/api/v1/pod/util.go IsPodReady
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| &*ready.status == "True")
    }

    /// It has been ready for as many seconds.
    // k8s: pkg/api/v1/pod/util.go IsPodAvailable
    pub fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        let Some(ready) = self.condition("Ready").filter(|ready| &*ready.status == "True") else {
            return false;
        };
        if min_ready_seconds == 0 {
            return true;
        }
        let since = ready.last_transition_time.map(Timestamp::as_second);
        since.is_some_and(|since| since + min_ready_seconds <= now.as_second())
    }

    /// It has ended, successfully or not.
    pub fn is_terminal(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// It is being deleted and its containers may still run.
    // k8s: pkg/controller/controller_utils.go IsPodTerminating
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.metadata.is_deleting()
    }

    /// It neither ended nor is being deleted.
    // k8s: pkg/controller/controller_utils.go IsPodActive
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.metadata.is_deleting()
    }
}
