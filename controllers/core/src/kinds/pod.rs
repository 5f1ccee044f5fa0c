//! Pods.

use jiff::Timestamp;
use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::symbol::Symbol;
use serde::{Deserialize, Deserializer};

use super::charge::PodCharge;
use crate::kept::Facts;
use crate::meta::{Meta, or_default, time};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: PodSpec,
    /// What is.
    pub status: PodStatus,
    /// What quotas charge for it.
    #[serde(skip)]
    pub charge: PodCharge,
}

/// The spec of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to; empty while it is not.
    pub node_name: Symbol,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: Symbol,
    /// Names of the init containers that keep running beside the others.
    #[serde(rename = "initContainers", deserialize_with = "sidecars")]
    pub sidecars: Box<[Symbol]>,
    /// Its volumes that are claims.
    #[serde(rename = "volumes", deserialize_with = "claim_volumes")]
    pub claim_volumes: Box<[ClaimVolume]>,
    /// The node that its required affinity names: where a daemon pod that is not bound yet belongs.
    #[serde(rename = "affinity", deserialize_with = "crate::common::node_match::target_node")]
    pub target_node: Option<Symbol>,
}

fn sidecars<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Symbol]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct InitContainer {
        name: Symbol,
        restart_policy: Option<Symbol>,
    }
    let all = Option::<Vec<InitContainer>>::deserialize(from)?.unwrap_or_default();
    let is_sidecar = |container: &InitContainer| {
        container.restart_policy.as_deref().is_some_and(|policy| policy == "Always")
    };
    Ok(all.into_iter().filter(is_sidecar).map(|container| container.name).collect())
}

/// A volume that is a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The volume's name.
    pub name: Symbol,
    /// The claim's name.
    pub claim: Symbol,
}

fn claim_volumes<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[ClaimVolume]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        name: Symbol,
        persistent_volume_claim: Option<Source>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Source {
        claim_name: Symbol,
    }
    let volumes = Option::<Vec<Volume>>::deserialize(from)?.unwrap_or_default();
    let claims = volumes.into_iter().filter_map(|volume| {
        let claim = volume.persistent_volume_claim?.claim_name;
        Some(ClaimVolume { name: volume.name, claim })
    });
    Ok(claims.collect())
}

/// The status of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: Symbol,
    /// Why it failed, in a word.
    pub reason: Symbol,
    /// Its conditions.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Box<[PodCondition]>,
    /// When the kubelet acknowledged it.
    #[serde(deserialize_with = "time")]
    pub start_time: Option<Timestamp>,
    /// Its init containers.
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Box<[ContainerStatus]>,
    /// Its containers.
    #[serde(deserialize_with = "or_default")]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
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

    fn complete(&mut self, text: &str) -> Result<(), serde_json::Error> {
        self.charge = PodCharge::decode(text)?;
        Ok(())
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
