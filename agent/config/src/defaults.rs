//! The defaults of a node's configuration.
//!
//! Output: [`KubeletConfiguration::default`], equal to what a real kubelet shows when its file sets
//! nothing (a test compares it with a recording), and [`complete`], which fills in those defaults
//! that depend on other fields. A value that Go calls zero (empty text, 0, `0s`, null) counts as
//! "not set" for fields that are not pointers in the API, exactly as the kubelet's own defaulting
//! does.
//!
//! // k8s: pkg/kubelet/apis/config/v1beta1/defaults.go SetDefaults_KubeletConfiguration

use serde_json::{Map, Value, json};

use super::modes::AuthorizationMode;
use super::types::{
    API_VERSION, Authentication, Authorization, CrashLoopBackOff, KIND, KubeletConfiguration,
    Logging, LoggingOptions, MemorySwap, TextMap, WebhookAuthentication, WebhookAuthorization,
};
use super::{FeatureGates, modes};
use pintle_api_types::duration::GoDuration;
use pintle_api_types::quantity::Quantity;

/// Read-only port when no configuration file is used.
const LEGACY_READ_ONLY_PORT: i32 = 10255;
/// Upper bound of the restart delay of crashing containers.
pub const CRASH_LOOP_PERIOD_MAX: GoDuration = GoDuration::from_secs(300);

/// Hard eviction thresholds when the file of `--config` sets none.
// k8s: pkg/kubelet/eviction/defaults_linux.go DefaultEvictionHard
pub fn eviction_hard() -> TextMap {
    [
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
    ]
    .map(|(signal, threshold)| (signal.to_owned(), threshold.to_owned()))
    .into()
}

impl Default for KubeletConfiguration {
    // One line a field: splitting this would hide that it is the whole list.
    fn default() -> Self {
        Self {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            enable_server: true,
            static_pod_path: String::new(),
            pod_logs_dir: "/var/log/pods".to_owned(),
            sync_frequency: GoDuration::from_secs(60),
            file_check_frequency: GoDuration::from_secs(20),
            http_check_frequency: GoDuration::from_secs(20),
            static_pod_url: String::new(),
            static_pod_url_header: Default::default(),
            address: "0.0.0.0".to_owned(),
            port: 10250,
            read_only_port: 0,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            tls_min_version: String::new(),
            rotate_certificates: false,
            server_tls_bootstrap: false,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            registry_pull_qps: 5,
            registry_burst: 10,
            image_pull_credentials_verification_policy: modes::ImageVerificationPolicy::default(),
            preloaded_images_verification_allowlist: Vec::new(),
            event_record_qps: 50,
            event_burst: 100,
            enable_debugging_handlers: true,
            enable_contention_profiling: false,
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".to_owned(),
            oom_score_adj: -999,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            streaming_connection_idle_timeout: GoDuration::from_secs(4 * 3600),
            node_status_update_frequency: GoDuration::from_secs(10),
            node_status_report_frequency: GoDuration::from_secs(300),
            node_lease_duration_seconds: 40,
            image_minimum_gc_age: GoDuration::from_secs(120),
            image_maximum_gc_age: GoDuration::default(),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            volume_stats_agg_period: GoDuration::from_secs(60),
            kubelet_cgroups: String::new(),
            system_cgroups: String::new(),
            cgroup_root: String::new(),
            cgroups_per_qos: true,
            cgroup_driver: modes::CgroupDriver::default(),
            cpu_manager_policy: modes::CpuManagerPolicy::default(),
            single_process_oom_kill: None,
            cpu_manager_policy_options: TextMap::new(),
            cpu_manager_reconcile_period: GoDuration::from_secs(10),
            memory_manager_policy: modes::MemoryManagerPolicy::default(),
            topology_manager_policy: modes::TopologyManagerPolicy::default(),
            topology_manager_scope: modes::TopologyManagerScope::default(),
            topology_manager_policy_options: TextMap::new(),
            qos_reserved: TextMap::new(),
            runtime_request_timeout: GoDuration::from_secs(120),
            hairpin_mode: modes::HairpinMode::default(),
            max_pods: 110,
            pod_cidr: String::new(),
            pod_pids_limit: -1,
            resolv_conf: "/etc/resolv.conf".to_owned(),
            run_once: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration::from_millis(100),
            node_status_max_images: 50,
            max_open_files: 1_000_000,
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            kube_api_qps: 50,
            kube_api_burst: 100,
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            eviction_hard: eviction_hard(),
            eviction_soft: TextMap::new(),
            eviction_soft_grace_period: TextMap::new(),
            eviction_pressure_transition_period: GoDuration::from_secs(300),
            eviction_max_pod_grace_period: 0,
            eviction_minimum_reclaim: TextMap::new(),
            merge_default_eviction_settings: false,
            pods_per_core: 0,
            enable_controller_attach_detach: true,
            protect_kernel_defaults: false,
            make_iptables_util_chains: true,
            iptables_masquerade_bit: 14,
            iptables_drop_bit: 15,
            feature_gates: Default::default(),
            fail_swap_on: true,
            memory_swap: MemorySwap::default(),
            container_log_max_size: "10Mi".parse().unwrap_or_default(),
            container_log_max_files: 5,
            container_log_max_workers: 1,
            container_log_monitor_interval: GoDuration::from_secs(10),
            config_map_and_secret_change_detection_strategy: Default::default(),
            system_reserved: TextMap::new(),
            kube_reserved: TextMap::new(),
            reserved_system_cpus: String::new(),
            show_hidden_metrics_for_version: String::new(),
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
            allowed_unsafe_sysctls: Vec::new(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned(),
            provider_id: String::new(),
            kernel_memcg_notification: false,
            logging: Logging::default(),
            enable_system_log_handler: true,
            enable_system_log_query: false,
            shutdown_grace_period: GoDuration::default(),
            shutdown_grace_period_critical_pods: GoDuration::default(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            reserved_memory: Vec::new(),
            enable_profiling_handler: true,
            enable_debug_flags_handler: true,
            seccomp_default: false,
            memory_throttling_factor: 0.9,
            memory_reservation_policy: modes::MemoryReservationPolicy::default(),
            register_with_taints: Vec::new(),
            register_node: true,
            tracing: None,
            local_storage_capacity_isolation: true,
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
            image_service_endpoint: String::new(),
            fail_cgroup_v1: true,
            user_namespaces: None,
        }
    }
}

impl Default for WebhookAuthentication {
    fn default() -> Self {
        Self { enabled: true, cache_ttl: GoDuration::from_secs(120) }
    }
}

impl Default for WebhookAuthorization {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: GoDuration::from_secs(300),
            cache_unauthorized_ttl: GoDuration::from_secs(30),
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: modes::LogFormat::default(),
            flush_frequency: GoDuration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LoggingOptions::default(),
        }
    }
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self { max_container_restart_period: Some(CRASH_LOOP_PERIOD_MAX) }
    }
}

/// Defaults of the old command line, as the tree to start from when there is no file.
// k8s: cmd/kubelet/app/options/options.go applyLegacyDefaults
pub fn legacy_tree() -> Map<String, Value> {
    let tree = json!({
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": AuthorizationMode::AlwaysAllow },
        "readOnlyPort": LEGACY_READ_ONLY_PORT,
    });
    tree.as_object().cloned().unwrap_or_default()
}

/// Adds the defaults that depend on other fields. A second call changes nothing.
pub fn complete(tree: &mut Map<String, Value>) {
    let update = tree.get("nodeStatusUpdateFrequency").cloned();
    if let (Some(update), false) = (update, tree.contains_key("nodeStatusReportFrequency")) {
        tree.insert("nodeStatusReportFrequency".to_owned(), update);
    }
    let parallel = tree.get("maxParallelImagePulls").and_then(Value::as_i64).unwrap_or(0);
    if !tree.contains_key("serializeImagePulls") && parallel >= 2 {
        tree.insert("serializeImagePulls".to_owned(), Value::Bool(false));
    }
}

/// Inserts the defaults of those fields that [`complete`] would derive from other fields, before
/// drop-ins are merged: a drop-in changes only the fields that it names. An empty
/// `enforceNodeAllocatable` becomes unset, which is the default again, as in the kubelet.
// k8s: cmd/kubelet/app/server.go mergeKubeletConfigurations
pub fn settle(tree: &mut Map<String, Value>) {
    let defaults = KubeletConfiguration::default();
    let mut put = |field: &str, value: Value| {
        tree.entry(field).or_insert(value);
    };
    put("nodeStatusUpdateFrequency", json!(defaults.node_status_update_frequency));
    put("nodeStatusReportFrequency", json!(defaults.node_status_report_frequency));
    put("serializeImagePulls", json!(defaults.serialize_image_pulls));
    if tree.get("enforceNodeAllocatable") == Some(&json!([])) {
        tree.remove("enforceNodeAllocatable");
    }
}

/// Clears defaults that belong to disabled features. To be called after all sources are merged.
pub fn complete_for_gates(tree: &mut Map<String, Value>, gates: &FeatureGates) {
    let back_off = tree.get("crashLoopBackOff");
    let has_period = back_off.is_some_and(|b| b.get("maxContainerRestartPeriod").is_some());
    if !gates.enabled("KubeletCrashLoopBackOffMax") && !has_period {
        let none = json!({ "maxContainerRestartPeriod": null });
        tree.insert("crashLoopBackOff".to_owned(), none);
    }
    let policy = "imagePullCredentialsVerificationPolicy";
    if !gates.enabled("KubeletEnsureSecretPulledImages") && !tree.contains_key(policy) {
        tree.insert(policy.to_owned(), Value::String(String::new()));
    }
}

/// Adds hard eviction thresholds to the file of `--config`: all of them where it sets none, and the
/// missing ones with `mergeDefaultEvictionSettings`. Drop-ins and flags are merged later and may
/// replace them. Without that file there are no default thresholds.
// k8s: cmd/kubelet/app/server.go loadConfigFile
pub fn complete_file(tree: &mut Map<String, Value>) {
    let merges = tree.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
    let is_set = tree.contains_key("evictionHard");
    let hard = tree.entry("evictionHard").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(hard) = hard else { return };
    if merges || !is_set {
        for (signal, threshold) in eviction_hard() {
            hard.entry(signal).or_insert(Value::String(threshold));
        }
    }
}

/// The node-wide limit of a container's log file; `None` when rotation is switched off.
pub fn log_bytes_max(size: &Quantity) -> Option<u64> {
    u64::try_from(size.amount().units()).ok()
}
