//! Settings of controllers from flags, as plain data.
//!
//! Input: filled by the daemon from flags. Output: read by loops when they decide. `Default` is a
//! manager without flags; a test of the daemon compares it with the defaults of the flags. Pure.
// k8s: pkg/controller/apis/config/types.go

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::names::CONTROLLERS;

/// Settings of controllers from flags.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopSettings {
    /// Concurrent syncs by the controller's canonical name.
    pub workers: BTreeMap<&'static str, u32>,
    /// The resync period of every object: this time up to twice as long.
    pub min_resync_period: Duration,
    /// Terminated pods that may stay; none are deleted when it is zero or less.
    pub terminated_pod_gc_threshold: i32,
    /// Dependents of deleted owners are deleted.
    pub enable_garbage_collector: bool,
    /// The wait between two syncs of all namespaces.
    pub namespace_sync_period: Duration,
    /// The wait between two full counts of quotas.
    pub resource_quota_sync_period: Duration,
    /// The life of a token Secret that is not used.
    pub legacy_token_clean_up_period: Duration,
    /// The key that signs tokens of token Secrets.
    pub service_account_key: Option<PathBuf>,
    /// The authority of the API server.
    pub root_ca: Option<PathBuf>,
    /// Horizontal pod autoscaling.
    pub autoscaler: AutoscalerSettings,
    /// Endpoints and EndpointSlices.
    pub endpoints: EndpointSettings,
    /// The life cycle of nodes.
    pub nodes: NodeSettings,
    /// Ranges of pod addresses.
    pub node_ipam: NodeIpamSettings,
    /// Signers of certificates.
    pub signing: SigningSettings,
    /// Volumes.
    pub volumes: VolumeSettings,
}

impl LoopSettings {
    /// Concurrent syncs of the controller with this canonical name.
    pub fn workers(&self, controller: &str) -> u32 {
        self.workers.get(controller).copied().unwrap_or(1)
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const YEAR: Duration = secs(365 * 24 * 3600);

impl Default for LoopSettings {
    fn default() -> Self {
        Self {
            workers: CONTROLLERS.iter().map(|one| (one.name, one.workers)).collect(),
            min_resync_period: secs(12 * 3600),
            terminated_pod_gc_threshold: 12_500,
            enable_garbage_collector: true,
            namespace_sync_period: secs(300),
            resource_quota_sync_period: secs(300),
            legacy_token_clean_up_period: YEAR,
            service_account_key: None,
            root_ca: None,
            autoscaler: AutoscalerSettings::default(),
            endpoints: EndpointSettings::default(),
            nodes: NodeSettings::default(),
            node_ipam: NodeIpamSettings::default(),
            signing: SigningSettings::default(),
            volumes: VolumeSettings::default(),
        }
    }
}

/// Horizontal pod autoscaling.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoscalerSettings {
    /// The wait between two syncs of an autoscaler.
    pub sync_period: Duration,
    /// The window of recommendations below which it does not scale down.
    pub downscale_stabilization: Duration,
    /// The deviation of the ratio from 1 that it ignores.
    pub tolerance: f64,
    /// The time after a pod's start in which samples of CPU may be skipped.
    pub cpu_initialization_period: Duration,
    /// The time after a pod's start in which readiness counts as initial.
    pub initial_readiness_delay: Duration,
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            sync_period: secs(15),
            downscale_stabilization: secs(300),
            tolerance: 0.1,
            cpu_initialization_period: secs(300),
            initial_readiness_delay: secs(30),
        }
    }
}

/// Endpoints and EndpointSlices.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSettings {
    /// The time in which changes of pods are collected for Endpoints.
    pub endpoints_batch_period: Duration,
    /// The same for EndpointSlices.
    pub slices_batch_period: Duration,
    /// The same for mirrored Endpoints.
    pub mirroring_batch_period: Duration,
    /// Endpoints of one slice.
    pub max_per_slice: i32,
    /// Mirrored endpoints of one subset.
    pub mirroring_max_per_subset: i32,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            endpoints_batch_period: Duration::ZERO,
            slices_batch_period: Duration::ZERO,
            mirroring_batch_period: Duration::ZERO,
            max_per_slice: 100,
            mirroring_max_per_subset: 1000,
        }
    }
}

/// The life cycle of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The wait between two checks of nodes.
    pub monitor_period: Duration,
    /// The silence after which a node counts as unhealthy.
    pub monitor_grace_period: Duration,
    /// The same for a node that has just started.
    pub startup_grace_period: Duration,
    /// Nodes per second on which pods are evicted in a healthy zone.
    pub eviction_rate: f64,
    /// The same in an unhealthy zone.
    pub secondary_eviction_rate: f64,
    /// The share of failed nodes that makes a zone unhealthy.
    pub unhealthy_zone_threshold: f64,
    /// The number of nodes up to which nothing is evicted in an unhealthy zone.
    pub large_cluster_size_threshold: i32,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            monitor_period: secs(5),
            monitor_grace_period: secs(50),
            startup_grace_period: secs(60),
            eviction_rate: 0.1,
            secondary_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_size_threshold: 50,
        }
    }
}

/// Ranges of pod addresses. A mask size of zero means the default of the address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIpamSettings {
    /// Each node gets a range.
    pub allocate: bool,
    /// Ranges of pod addresses, separated by a comma.
    pub cluster_cidr: String,
    /// Ranges of service addresses, separated by a comma.
    pub service_cidr: String,
    /// The prefix length of a node's range.
    pub mask_size: i32,
    /// The same of IPv4 in a cluster of both families.
    pub mask_size_ipv4: i32,
    /// The same of IPv6.
    pub mask_size_ipv6: i32,
}

/// Certificate and key of a signer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignerFiles {
    /// The certificate of the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Signers of certificates; one without files signs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningSettings {
    /// The longest life of a certificate.
    pub duration: Duration,
    /// `kubernetes.io/kubelet-serving`.
    pub kubelet_serving: Option<SignerFiles>,
    /// `kubernetes.io/kube-apiserver-client-kubelet`.
    pub kubelet_client: Option<SignerFiles>,
    /// `kubernetes.io/kube-apiserver-client`.
    pub apiserver_client: Option<SignerFiles>,
    /// `kubernetes.io/legacy-unknown`.
    pub legacy_unknown: Option<SignerFiles>,
}

impl Default for SigningSettings {
    fn default() -> Self {
        Self {
            duration: YEAR,
            kubelet_serving: None,
            kubelet_client: None,
            apiserver_client: None,
            legacy_unknown: None,
        }
    }
}

/// Volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// The wait between two syncs of volumes and claims.
    pub binder_sync_period: Duration,
    /// Volumes are made for claims.
    pub dynamic_provisioning: bool,
    /// The wait between two comparisons of attached volumes with nodes.
    pub attach_sync_period: Duration,
    /// They are not compared.
    pub is_attach_sync_off: bool,
    /// Nothing is detached from a node that does not answer.
    pub is_force_detach_off: bool,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            binder_sync_period: secs(15),
            dynamic_provisioning: true,
            attach_sync_period: secs(60),
            is_attach_sync_off: false,
            is_force_detach_off: false,
        }
    }
}
