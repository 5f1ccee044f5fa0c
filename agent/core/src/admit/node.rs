//! The node's offer to pods, as admission needs it.
//!
//! Input: configuration and facts of the host at the start (`node::context::admission`), later the node's own
//! object of the API server, through `PodsInput::Admission`. Plain data; no effects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as NodeObject, Taint};
use serde::{Deserialize, Serialize};

use crate::request::sysctl::AllowList;
use pintle_api_types::pod::resources::Amounts;

/// The node against which pods are checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionNode {
    /// Name, lower-cased.
    pub name: String,
    /// Labels of the node object.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node object.
    pub taints: Vec<Taint>,
    /// The total that pods may request.
    pub allocatable: Allocatable,
    /// Resources of device plugins that registered with a kubelet of this node; none has devices.
    #[serde(default)]
    pub plugin_resources: Vec<String>,
    /// Kernel parameters that pods may set.
    pub sysctls: AllowList,
    /// AppArmor is enabled in the kernel.
    pub apparmor: bool,
    /// Features of agent and runtime.
    pub features: Features,
    /// Conditions under which pods are turned away (`MemoryPressure`, …), in the kubelet's order.
    pub pressures: Vec<String>,
    /// The node is being shut down.
    pub shutting_down: bool,
}

/// Capabilities that a pod may request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// The runtime follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Gate `PodLevelResources`.
    pub pod_level_resources: bool,
    /// Gate `InPlacePodLevelResourcesVerticalScaling`.
    pub pod_level_resize: bool,
    /// Containers may use swap by their memory request.
    pub limited_swap: bool,
    /// Gate `InPlacePodVerticalScalingInitContainers`.
    pub init_container_resize: bool,
    /// Gate `NodeDeclaredFeatures`: new pods are checked against the two below, changed ones
    /// against the two kinds of resize.
    pub declared: bool,
    /// Gate `RestartAllContainersOnContainerExits`.
    pub restart_all_containers: bool,
    /// Gate `UserNamespacesHostNetworkSupport`.
    pub user_namespaces_host_network: bool,
}

/// Allocatable amounts in the units in which they are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocatable {
    /// CPU in millicores.
    pub cpu_millis: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Ephemeral storage in bytes.
    pub storage_bytes: i64,
    /// Number of pods.
    pub pods: i64,
    /// Huge pages in bytes and extended resources in units, by name.
    pub scalar: BTreeMap<String, i64>,
}

impl Allocatable {
    /// From amounts by resource name, as a node's status has them.
    pub fn of(amounts: &Amounts) -> Self {
        let mut all = Self::default();
        for (name, amount) in amounts {
            match name.as_str() {
                "cpu" => all.cpu_millis = amount.millis(),
                "memory" => all.memory_bytes = amount.units(),
                "ephemeral-storage" => all.storage_bytes = amount.units(),
                "pods" => all.pods = amount.units(),
                _ => {
                    all.scalar.insert(name.clone(), amount.units());
                }
            }
        }
        all
    }
}

impl AdmissionNode {
    /// A node with room for everything, for tests and simulations.
    pub fn roomy(name: &str) -> Self {
        let most = i64::MAX / 4;
        Self {
            name: name.to_owned(),
            allocatable: Allocatable {
                cpu_millis: most,
                memory_bytes: most,
                storage_bytes: most,
                pods: most,
                scalar: BTreeMap::new(),
            },
            features: Features {
                pod_level_resources: true,
                pod_level_resize: true,
                ..Features::default()
            },
            ..Self::default()
        }
    }

    /// This node with labels, taints, amounts and features of the runtime of the node's object.
    // k8s: pkg/kubelet/lifecycle/predicate.go rejectPodAdmissionBasedOnSupplementalGroupsPolicy
    pub fn with_object(&self, object: &NodeObject) -> Self {
        let spec = object.spec.as_ref();
        let status = object.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let groups = status.map(|status| {
            let features = status.features.as_ref();
            features.and_then(|features| features.supplemental_groups_policy).unwrap_or(false)
        });
        Self {
            labels: object.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            allocatable: match allocatable {
                Some(list) => {
                    Allocatable::of(&pintle_api_types::pod::resources::amounts(Some(list)))
                }
                None => self.allocatable.clone(),
            },
            features: Features {
                supplemental_groups_policy: groups
                    .unwrap_or(self.features.supplemental_groups_policy),
                ..self.features
            },
            ..self.clone()
        }
    }
}
