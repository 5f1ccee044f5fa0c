//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`, every field, typed.
//!
//! Input: a merged configuration tree (see `file.rs` and `flags.rs`), or nothing, which gives the
//! defaults of `defaults.rs`. Output: a value with the JSON of `/configz`: the kubelet's names in
//! the kubelet's order, empty optional values left out where the kubelet leaves them out.
//!
//! A field is an `Option` only where "not set" differs from every value. Words from closed sets are
//! the enums of `modes.rs`. Ranges and combinations are checked in `validate.rs`; nothing else
//! builds a [`super::Config`].
//!
//! // k8s: staging/src/k8s.io/kubelet/config/v1beta1/types.go KubeletConfiguration

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::modes::{
    AuthorizationMode, CgroupDriver, ChangeDetectionStrategy, CpuManagerPolicy, HairpinMode,
    ImageVerificationPolicy, LogFormat, MemoryManagerPolicy, MemoryReservationPolicy, SwapBehavior,
    TaintEffect, TopologyManagerPolicy, TopologyManagerScope,
};
use pintle_api_types::duration::GoDuration;
use pintle_api_types::quantity::Quantity;

/// Kind of the configuration object.
pub const KIND: &str = "KubeletConfiguration";
/// Group and version of the configuration object.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Text to text, as quantities per resource or options per name.
pub type TextMap = BTreeMap<String, String>;

/// The node's configuration. Field meanings are those of the Kubernetes reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)] // the names are the API's; docs/COMPAT.md lists their support
pub struct KubeletConfiguration {
    pub kind: String,
    pub api_version: String,
    pub enable_server: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub static_pod_path: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub pod_logs_dir: String,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL", skip_serializing_if = "is_zero")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader", skip_serializing_if = "is_zero")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "is_zero")]
    pub address: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub port: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub read_only_port: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_cert_file: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_private_key_file: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_cipher_suites: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_curve_preferences: Vec<i32>,
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_min_version: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap", skip_serializing_if = "is_zero")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub registry_burst: i32,
    #[serde(skip_serializing_if = "ImageVerificationPolicy::is_unset")]
    pub image_pull_credentials_verification_policy: ImageVerificationPolicy,
    #[serde(skip_serializing_if = "is_zero")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub event_burst: i32,
    pub enable_debugging_handlers: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub enable_contention_profiling: bool,
    pub healthz_port: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub healthz_bind_address: String,
    pub oom_score_adj: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS", skip_serializing_if = "is_zero")]
    pub cluster_dns: Vec<String>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    #[serde(skip_serializing_if = "is_zero")]
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub volume_stats_agg_period: GoDuration,
    #[serde(skip_serializing_if = "is_zero")]
    pub kubelet_cgroups: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub system_cgroups: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub cgroup_driver: CgroupDriver,
    pub cpu_manager_policy: CpuManagerPolicy,
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "Option::is_none")]
    pub single_process_oom_kill: Option<bool>,
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_manager_policy_options: TextMap,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: MemoryManagerPolicy,
    pub topology_manager_policy: TopologyManagerPolicy,
    pub topology_manager_scope: TopologyManagerScope,
    #[serde(skip_serializing_if = "is_zero")]
    pub topology_manager_policy_options: TextMap,
    #[serde(skip_serializing_if = "is_zero")]
    pub qos_reserved: TextMap,
    pub runtime_request_timeout: GoDuration,
    pub hairpin_mode: HairpinMode,
    #[serde(skip_serializing_if = "is_zero")]
    pub max_pods: i32,
    #[serde(rename = "podCIDR", skip_serializing_if = "is_zero")]
    pub pod_cidr: String,
    pub pod_pids_limit: i64,
    pub resolv_conf: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    pub node_status_max_images: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub max_open_files: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst", skip_serializing_if = "is_zero")]
    pub kube_api_burst: i32,
    pub serialize_image_pulls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,
    /// The defaults are those of a file; without a file, or where drop-ins remove them, there are
    /// none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub eviction_hard: TextMap,
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_soft: TextMap,
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_soft_grace_period: TextMap,
    pub eviction_pressure_transition_period: GoDuration,
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_max_pod_grace_period: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_minimum_reclaim: TextMap,
    pub merge_default_eviction_settings: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub pods_per_core: i32,
    pub enable_controller_attach_detach: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub protect_kernel_defaults: bool,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: bool,
    pub iptables_masquerade_bit: i32,
    pub iptables_drop_bit: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub feature_gates: BTreeMap<String, bool>,
    pub fail_swap_on: bool,
    pub memory_swap: MemorySwap,
    pub container_log_max_size: Quantity,
    pub container_log_max_files: i32,
    pub container_log_max_workers: i32,
    pub container_log_monitor_interval: GoDuration,
    pub config_map_and_secret_change_detection_strategy: ChangeDetectionStrategy,
    #[serde(skip_serializing_if = "is_zero")]
    pub system_reserved: TextMap,
    #[serde(skip_serializing_if = "is_zero")]
    pub kube_reserved: TextMap,
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "is_zero")]
    pub reserved_system_cpus: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub show_hidden_metrics_for_version: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub system_reserved_cgroup: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub kube_reserved_cgroup: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub enforce_node_allocatable: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub allowed_unsafe_sysctls: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub volume_plugin_dir: String,
    #[serde(rename = "providerID", skip_serializing_if = "is_zero")]
    pub provider_id: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub kernel_memcg_notification: bool,
    pub logging: Logging,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    #[serde(skip_serializing_if = "is_zero")]
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    pub crash_loop_back_off: CrashLoopBackOff,
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved_memory: Vec<MemoryReservation>,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub seccomp_default: bool,
    pub memory_throttling_factor: f64,
    pub memory_reservation_policy: MemoryReservationPolicy,
    #[serde(skip_serializing_if = "is_zero")]
    pub register_with_taints: Vec<Taint>,
    pub register_node: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    pub local_storage_capacity_isolation: bool,
    pub container_runtime_endpoint: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_namespaces: Option<UserNamespaces>,
}

/// Authentication of requests to the HTTPS server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509Authentication,
    /// Bearer tokens.
    pub webhook: WebhookAuthentication,
    /// Requests with neither.
    pub anonymous: AnonymousAuthentication,
}

/// Client certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct X509Authentication {
    /// PEM bundle of the authorities that sign client certificates; empty refuses them all.
    #[serde(rename = "clientCAFile", skip_serializing_if = "is_zero")]
    pub client_ca_file: String,
}

/// Bearer tokens, checked with a TokenReview.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookAuthentication {
    /// True if tokens are accepted.
    pub enabled: bool,
    /// TTL of a cached answer.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// Requests without credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousAuthentication {
    /// True if they are accepted as `system:anonymous`.
    pub enabled: bool,
}

/// Authorization of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authorization {
    /// The authorizer.
    pub mode: AuthorizationMode,
    /// Caching of the API server's decisions.
    pub webhook: WebhookAuthorization,
}

/// Caching of the API server's decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookAuthorization {
    /// TTL of a cached "yes".
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// TTL of a cached "no".
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// Swap for workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySwap {
    /// Use of swap by workloads.
    #[serde(skip_serializing_if = "is_zero")]
    pub swap_behavior: SwapBehavior,
}

/// Form and amount of log output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    /// Text or JSON lines.
    pub format: LogFormat,
    /// Longest time a line may stay in a buffer.
    #[serde(deserialize_with = "duration_or_nanos")]
    pub flush_frequency: GoDuration,
    /// klog level: lines above it are not written.
    pub verbosity: u32,
    /// Levels for single modules.
    #[serde(skip_serializing_if = "is_zero")]
    pub vmodule: Vec<VmoduleItem>,
    /// Buffers per format.
    pub options: LoggingOptions,
}

/// klog level for the modules that match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmoduleItem {
    /// Module name, `*` and `?` allowed.
    pub file_pattern: String,
    /// Level for it.
    pub verbosity: u32,
}

/// Buffers per log format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoggingOptions {
    /// Options of `text`.
    pub text: LogStreamOptions,
    /// Options of `json`.
    pub json: LogStreamOptions,
}

/// The output of lines of one format.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LogStreamOptions {
    /// Errors to standard error, everything else to standard output.
    #[serde(skip_serializing_if = "is_zero")]
    pub split_stream: bool,
    /// Bytes buffered for standard output when split; 0 is unbuffered.
    pub info_buffer_size: Quantity,
}

/// Grace period at node shutdown from a pod priority upwards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShutdownGracePeriodByPodPriority {
    /// Lowest priority of the range.
    pub priority: i32,
    /// Seconds its pods have.
    pub shutdown_grace_period_seconds: i64,
}

/// Restart delay of crashing containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    /// Upper bound of the delay; `None` only with its feature gate off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_container_restart_period: Option<GoDuration>,
}

/// Memory of a NUMA node that containers may not be given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryReservation {
    /// Number of the NUMA node.
    pub numa_node: i32,
    /// Bytes per `memory` or `hugepages-<size>`.
    pub limits: BTreeMap<String, Quantity>,
}

/// A taint the node registers with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Label-like key.
    pub key: String,
    /// May be empty.
    #[serde(skip_serializing_if = "is_zero")]
    pub value: String,
    /// The effect on pods that do not tolerate it.
    pub effect: TaintEffect,
    /// Must not be set here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// OpenTelemetry export.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    /// Collector; unset means localhost:4317.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Share of requests that are sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_rate_per_million: Option<i32>,
}

/// User namespaces of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserNamespaces {
    /// Ids each pod gets, a multiple of 65536.
    #[serde(rename = "idsPerPod", skip_serializing_if = "Option::is_none")]
    pub ids_per_pod: Option<i64>,
}

impl ImageVerificationPolicy {
    fn is_unset(&self) -> bool {
        *self == Self::Unset
    }
}

/// This one field is also read as a number of nanoseconds.
// k8s: staging/src/k8s.io/component-base/logs/api/v1/types.go TimeOrMetaDuration
fn duration_or_nanos<'de, D: serde::Deserializer<'de>>(from: D) -> Result<GoDuration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a duration such as 5s, or nanoseconds")]
    enum TaintForm {
        Nanos(i64),
        Text(GoDuration),
    }
    TaintForm::deserialize(from).map(|form| match form {
        TaintForm::Nanos(nanos) => GoDuration::from_nanos(nanos),
        TaintForm::Text(duration) => duration,
    })
}

/// Go's `omitempty` for the types used above: true for the type's zero value.
fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
