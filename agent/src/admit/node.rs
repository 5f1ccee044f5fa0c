//! What the node offers to pods, as admission needs it.
//!
//! Input: configuration and facts of the host at the start (`Node::local`), later the node's own
//! object of the API server, through `Input::Admission`. Plain data; no effects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as NodeObject, Taint};

use crate::config::Config;
use crate::pod::quantity::Amount;
use crate::pod::resources::Amounts;
use crate::runtime::sysctl::AllowList;
use crate::types::NodeFacts;

/// The node as pods are held against it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Name, lower-cased.
    pub name: String,
    /// Labels of the node object.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node object.
    pub taints: Vec<Taint>,
    /// What pods may request together.
    pub allocatable: Allocatable,
    /// Kernel parameters that pods may set.
    pub sysctls: AllowList,
    /// AppArmor is enabled in the kernel.
    pub apparmor: bool,
    /// What agent and runtime can do.
    pub features: Features,
    /// Conditions under which pods are turned away (`MemoryPressure`, …), in the kubelet's order.
    pub pressures: Vec<String>,
    /// The node is being shut down.
    pub shutting_down: bool,
}

/// Capabilities that a pod may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The runtime follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Gate `PodLevelResources`.
    pub pod_level_resources: bool,
    /// Gate `NodeDeclaredFeatures`: pods are held against the two below.
    pub declared: bool,
    /// Gate `RestartAllContainersOnContainerExits`.
    pub restart_all_containers: bool,
    /// Gate `UserNamespacesHostNetworkSupport`.
    pub user_namespaces_host_network: bool,
}

/// Allocatable amounts in the units in which they are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

impl Node {
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
            features: Features { pod_level_resources: true, ..Features::default() },
            ..Self::default()
        }
    }

    /// The node as the agent itself knows it, before or without an API server.
    // k8s: pkg/kubelet/kubelet_getters.go getNodeAnyWay, initialNode
    pub fn local(config: &Config, facts: &NodeFacts, sysctls: AllowList) -> Self {
        let gate = |name| config.gates.enabled(name);
        let mut labels = config.flags.node_labels.clone();
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        for (label, value) in [
            ("kubernetes.io/hostname", facts.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch),
        ] {
            labels.insert(label.to_owned(), value.to_owned());
        }
        Self {
            name: facts.name.clone(),
            labels,
            taints: Vec::new(),
            allocatable: allocatable(config, facts),
            sysctls,
            apparmor: super::apparmor::is_enabled(),
            features: Features {
                supplemental_groups_policy: facts.supplemental_groups_policy,
                pod_level_resources: gate("PodLevelResources"),
                declared: gate("NodeDeclaredFeatures"),
                restart_all_containers: gate("RestartAllContainersOnContainerExits"),
                user_namespaces_host_network: gate("UserNamespacesHostNetworkSupport"),
            },
            pressures: Vec::new(),
            shutting_down: false,
        }
    }

    /// This node with labels, taints and amounts of the node's object.
    pub fn with_object(&self, object: &NodeObject) -> Self {
        let spec = object.spec.as_ref();
        let allocatable = object.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Self {
            labels: object.metadata.labels.clone().unwrap_or_default(),
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            allocatable: match allocatable {
                Some(list) => Allocatable::of(&crate::pod::resources::amounts(Some(list))),
                None => self.allocatable.clone(),
            },
            ..self.clone()
        }
    }
}

/// Capacity without what is kept from pods.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go getNodeAllocatableAbsoluteImpl
fn allocatable(config: &Config, facts: &NodeFacts) -> Allocatable {
    let kubelet = &config.kubelet;
    let reserved = |name: &str| {
        let of = |map: &crate::config::types::TextMap| {
            map.get(name).and_then(|text| Amount::parse(text)).unwrap_or(Amount::ZERO)
        };
        of(&kubelet.system_reserved) + of(&kubelet.kube_reserved)
    };
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let storage = signed(facts.storage_allocatable_bytes);
    let kept = kubelet.eviction_hard.get("nodefs.available");
    let kept = kept.map_or(0, |text| threshold_bytes(text, storage));
    let cores = i64::try_from(crate::node::facts::cpus()).unwrap_or(i64::MAX);
    let pods = i64::from(kubelet.max_pods);
    let per_core = i64::from(kubelet.pods_per_core).saturating_mul(cores);
    Allocatable {
        cpu_millis: cores.saturating_mul(1000).saturating_sub(reserved("cpu").millis()).max(0),
        memory_bytes: signed(facts.memory_allocatable_bytes),
        storage_bytes: (storage - reserved("ephemeral-storage").units() - kept).max(0),
        pods: if per_core > 0 { pods.min(per_core) } else { pods },
        scalar: crate::node::facts::hugepages()
            .into_iter()
            .map(|(size, bytes)| {
                let name = format!("hugepages-{}", Amount::from_bytes(signed(size)).canonical());
                (name, signed(bytes))
            })
            .collect(),
    }
}

/// An eviction threshold: a quantity, or a share of the capacity.
fn threshold_bytes(text: &str, capacity: i64) -> i64 {
    match text.strip_suffix('%') {
        Some(percent) => {
            let percent = percent.trim().parse::<f64>().unwrap_or(0.0);
            (capacity as f64 * percent / 100.0) as i64
        }
        None => Amount::parse(text).map_or(0, Amount::units),
    }
}
