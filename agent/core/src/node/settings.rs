//! The configuration of the Node object.
//!
//! Input: the configuration. Output: [`NodeSettings`], with [`CapacitySettings`], made once. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::eviction::signal::Signal;
use crate::eviction::threshold::{self, ThresholdLevel};
use pintle_agent_config::types::TextMap;
use pintle_agent_config::{Config, KUBERNETES_VERSION};
use pintle_api_types::quantity::Amount;

/// Taint for schedulers until the external cloud provider has seen the node.
// k8s: staging/src/k8s.io/cloud-provider/api/well_known_taints.go
const CLOUD_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Features that a node declares to the scheduler, by their gates' names, sorted.
// k8s: staging/src/k8s.io/component-helpers/nodedeclaredfeatures/features/registry.go
const DECLARED: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// The configured part of a Node object and of its reports.
#[derive(Clone, Debug, Default)]
pub struct NodeSettings {
    /// Name of the Node object, and of the host in labels and addresses.
    pub name: String,
    /// Addresses given by hand.
    pub node_ips: Vec<IpAddr>,
    /// An external cloud provider initialises the node and owns its addresses.
    pub external_cloud: bool,
    /// Labels given by hand.
    pub labels: BTreeMap<String, String>,
    /// Taints to register with.
    pub taints: Vec<Taint>,
    /// The cloud's name of the machine.
    pub provider_id: Option<String>,
    /// The attach-detach controller does that work, not the node.
    pub controller_attach_detach: bool,
    /// Configures capacity and allocatable.
    pub capacity: CapacitySettings,
    /// Most images in the status; `None` is any number.
    pub images_max: Option<usize>,
    /// Port of the HTTPS server.
    pub port: i32,
    /// The value of `kubeletVersion`.
    pub version: String,
    /// Features for `declaredFeatures`.
    pub declared_features: Vec<String>,
    /// The handler's and the runtime's abilities are reported.
    pub report_handlers: bool,
    /// How often the status is computed.
    pub update_every: Duration,
    /// How often it is sent though nothing changed.
    pub report_every: Duration,
    /// Create the Node object when there is none.
    pub register: bool,
    /// Create it again, cordoned, after a deletion.
    pub recreate: bool,
}

impl NodeSettings {
    /// From the configuration.
    pub fn of(config: &Config) -> Self {
        let kubelet = &config.kubelet;
        let declares = config.gates.enabled("NodeDeclaredFeatures");
        let declared = DECLARED.iter().filter(|name| declares && config.gates.enabled(name));
        Self {
            name: config.node_name.clone(),
            node_ips: config.flags.node_ips.clone(),
            external_cloud: config.flags.cloud_provider_external,
            labels: config.flags.node_labels.clone(),
            taints: taints(config),
            provider_id: Some(kubelet.provider_id.clone()).filter(|id| !id.is_empty()),
            controller_attach_detach: kubelet.enable_controller_attach_detach,
            capacity: CapacitySettings::of(config),
            images_max: usize::try_from(kubelet.node_status_max_images).ok(),
            port: kubelet.port,
            version: KUBERNETES_VERSION.to_owned(),
            declared_features: declared.map(|name| (*name).to_owned()).collect(),
            report_handlers: true,
            update_every: kubelet.node_status_update_frequency.to_std(),
            report_every: kubelet.node_status_report_frequency.to_std(),
            register: kubelet.register_node,
            recreate: kubelet.register_node && config.flags.recreate_node,
        }
    }

    /// The address given by hand, unless it only names a family.
    pub fn node_ip(&self) -> Option<IpAddr> {
        self.node_ips.first().copied().filter(|ip| !ip.is_unspecified())
    }

    /// The second address given by hand.
    pub fn second_ip(&self) -> Option<IpAddr> {
        self.node_ips.get(1).copied().filter(|ip| !ip.is_unspecified())
    }

    /// The address family to find.
    pub fn prefers_v6(&self) -> bool {
        self.node_ips.first().is_some_and(IpAddr::is_ipv6)
    }
}

/// The configuration of capacity and allocatable.
#[derive(Clone, Debug, Default)]
pub struct CapacitySettings {
    /// Most pods on the node.
    pub pods_max: i64,
    /// Most pods for each CPU; 0 is no limit.
    pub pods_per_core: i64,
    /// Ephemeral storage is a resource.
    pub storage_isolation: bool,
    /// The amounts reserved from pods, by resource.
    pub reserved: BTreeMap<String, Amount>,
    /// Free memory and disk that eviction reserves from pods.
    pub eviction: BTreeMap<&'static str, ThresholdLevel>,
}

impl CapacitySettings {
    /// From the configuration.
    pub fn of(config: &Config) -> Self {
        let kubelet = &config.kubelet;
        let eviction = match config.flags.allocatable_ignores_eviction {
            true => BTreeMap::new(),
            false => eviction(&kubelet.eviction_hard),
        };
        Self {
            pods_max: kubelet.max_pods.into(),
            pods_per_core: kubelet.pods_per_core.into(),
            storage_isolation: kubelet.local_storage_capacity_isolation,
            reserved: reserved(kubelet),
            eviction,
        }
    }
}

// k8s: pkg/kubelet/kubelet_node_status.go initialNode
fn taints(config: &Config) -> Vec<Taint> {
    let given = config.kubelet.register_with_taints.iter().map(|taint| Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: serde_json::to_value(taint.effect)
            .ok()
            .and_then(|effect| effect.as_str().map(str::to_owned))
            .unwrap_or_default(),
        time_added: None,
    });
    let cloud = config.flags.cloud_provider_external.then(|| Taint {
        key: CLOUD_TAINT.to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    });
    given.chain(cloud).collect()
}

/// System and kube reservations together; reserved CPUs stand for both CPU amounts.
// k8s: cmd/kubelet/app/server.go run
fn reserved(kubelet: &pintle_agent_config::KubeletConfiguration) -> BTreeMap<String, Amount> {
    let mut sums: BTreeMap<String, Amount> = BTreeMap::new();
    for (resource, text) in kubelet.system_reserved.iter().chain(&kubelet.kube_reserved) {
        if let Some(amount) = Amount::parse(text) {
            let sum = sums.entry(resource.clone()).or_insert(Amount::ZERO);
            *sum = *sum + amount;
        }
    }
    let cpus = cpu_count(&kubelet.reserved_system_cpus);
    if cpus > 0 {
        sums.insert("cpu".to_owned(), Amount::from_millis(cpus * 1000));
    }
    sums
}

/// CPUs in a list such as `0-1,5`.
pub fn cpu_count(list: &str) -> i64 {
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    let sizes = parts.map(|part| match part.split_once('-') {
        None => i64::from(part.trim().parse::<u32>().is_ok()),
        Some((first, last)) => match (first.trim().parse::<i64>(), last.trim().parse::<i64>()) {
            (Ok(first), Ok(last)) => (last - first + 1).max(0),
            _ => 0,
        },
    });
    sizes.sum()
}

/// The two signals that reduce allocatable.
// k8s: pkg/kubelet/cm/helpers.go hardEvictionReservation
fn eviction(texts: &TextMap) -> BTreeMap<&'static str, ThresholdLevel> {
    let of = |(signal, level)| match signal {
        Signal::MemoryAvailable => Some(("memory", level)),
        Signal::NodeFsAvailable => Some(("ephemeral-storage", level)),
        _ => None,
    };
    threshold::hard(texts).into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        for (list, count) in [("", 0), ("0", 1), ("0-1,5", 3), (" 2-3 ", 2), ("x", 0), ("3-1", 0)] {
            assert_eq!(cpu_count(list), count, "{list:?}");
        }
    }

    #[test]
    fn only_thresholds_of_memory_and_node_disk_reserve() {
        let hard: TextMap = [
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.available", "15%"),
        ]
        .map(|(signal, text)| (signal.to_owned(), text.to_owned()))
        .into();
        let found = eviction(&hard);
        assert_eq!(found.len(), 2);
        assert_eq!(found["ephemeral-storage"], ThresholdLevel::Part(0.1));
        let off: TextMap = [("nodefs.available".to_owned(), "100%".to_owned())].into();
        assert!(eviction(&off).is_empty());
    }
}
