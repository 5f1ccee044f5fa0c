//! Ranges and combinations that a configuration must keep.
//!
//! Input: a typed configuration with its defaults, and the feature gates. Output: one error for
//! each violation, all of them. The rules are those of the kubelet, each cited by the function it
//! comes from; resources, eviction and cgroups are in `validate_resources.rs`.
//!
//! // k8s: pkg/kubelet/apis/config/validation/validation.go ValidateKubeletConfiguration

use std::ops::RangeInclusive;
use std::path::{Component, Path};

use super::modes::{ImageVerificationPolicy, LogFormat};
use super::types::KubeletConfiguration;
use super::{ConfigError, FeatureGates, validate_resources};
use crate::image_policy::VerificationPolicy;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::pod::validate::names;
use pintle_config::violations::Violations;

const PORT_MAX: i32 = 65_535;
const PERCENT: RangeInclusive<i64> = 0..=100;
const OOM_SCORE_ADJ: RangeInclusive<i64> = -1000..=1000;
const IPTABLES_BIT: RangeInclusive<i64> = 0..=31;
const SAMPLING_PER_MILLION: RangeInclusive<i64> = 0..=1_000_000;
const CFS_PERIOD: [GoDuration; 2] = [GoDuration::from_millis(1), GoDuration::from_secs(1)];
const CRASH_LOOP_PERIOD: [GoDuration; 2] = [GoDuration::from_secs(1), GoDuration::from_secs(300)];
const LOG_MONITOR_INTERVAL_MIN: GoDuration = GoDuration::from_secs(3);
const SHUTDOWN_GRACE_MIN: GoDuration = GoDuration::from_secs(1);
const USER_NAMESPACE_STEP: i64 = 65_536;

/// All violations of the rules.
pub(crate) fn check(config: &KubeletConfiguration, gates: &FeatureGates) -> Vec<ConfigError> {
    let mut found = Violations::default();
    servers(config, gates, &mut found);
    rates(config, &mut found);
    images(config, gates, &mut found);
    features(config, gates, &mut found);
    shutdown(config, gates, &mut found);
    logs(config, &mut found);
    taints(config, &mut found);
    endpoints(config, &mut found);
    validate_resources::check(config, gates, &mut found);
    found.0
}

fn servers(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    found.in_range("port", config.port.into(), &(1..=PORT_MAX.into()));
    found.in_range("readOnlyPort", config.read_only_port.into(), &(0..=PORT_MAX.into()));
    found.in_range("healthzPort", config.healthz_port.into(), &(0..=PORT_MAX.into()));
    for (field, text) in
        [("address", &config.address), ("healthzBindAddress", &config.healthz_bind_address)]
    {
        found.ip(field, text);
    }
    found.require(
        !config.server_tls_bootstrap || gates.enabled("RotateKubeletServerCertificate"),
        "serverTLSBootstrap",
        true,
        "it needs the feature gate RotateKubeletServerCertificate",
        "switch that gate on or this field off",
    );
    found.require(
        !config.enable_system_log_query || config.enable_system_log_handler,
        "enableSystemLogQuery",
        true,
        "it needs enableSystemLogHandler",
        "set enableSystemLogHandler to true",
    );
    let version = config.tls_min_version.as_str();
    found.require(
        matches!(version, "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" | "VersionTLS13"),
        "tlsMinVersion",
        version,
        "no such TLS version exists",
        "use VersionTLS12 or VersionTLS13",
    );
    let pair = (config.tls_cert_file.is_empty(), config.tls_private_key_file.is_empty());
    found.require(
        pair.0 == pair.1,
        if pair.0 { "tlsPrivateKeyFile" } else { "tlsCertFile" },
        if pair.0 { &config.tls_private_key_file } else { &config.tls_cert_file },
        "a certificate and its key belong together",
        "set both or neither",
    );
}

fn rates(config: &KubeletConfiguration, found: &mut Violations) {
    for (field, value) in [
        ("eventBurst", config.event_burst),
        ("eventRecordQPS", config.event_record_qps),
        ("kubeAPIBurst", config.kube_api_burst),
        ("kubeAPIQPS", config.kube_api_qps),
        ("registryBurst", config.registry_burst),
        ("registryPullQPS", config.registry_pull_qps),
        ("maxPods", config.max_pods),
        ("podsPerCore", config.pods_per_core),
    ] {
        found.at_least(field, value.into(), 0);
    }
    found.at_least("maxOpenFiles", config.max_open_files, 0);
    found.at_least("nodeLeaseDurationSeconds", config.node_lease_duration_seconds.into(), 1);
    found.at_least("nodeStatusMaxImages", config.node_status_max_images.into(), -1);
    found.in_range("oomScoreAdj", config.oom_score_adj.into(), &OOM_SCORE_ADJ);
    found.in_range("iptablesDropBit", config.iptables_drop_bit.into(), &IPTABLES_BIT);
    found.in_range("iptablesMasqueradeBit", config.iptables_masquerade_bit.into(), &IPTABLES_BIT);
    for (field, period) in [
        ("syncFrequency", config.sync_frequency),
        ("fileCheckFrequency", config.file_check_frequency),
        ("httpCheckFrequency", config.http_check_frequency),
        ("runtimeRequestTimeout", config.runtime_request_timeout),
    ] {
        let positive = !period.is_zero() && !period.is_negative();
        found.require(positive, field, period, "it must be longer than zero", "use 20s or so");
    }
}

fn images(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    let (low, high) =
        (config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent);
    found.in_range("imageGCHighThresholdPercent", high.into(), &PERCENT);
    found.in_range("imageGCLowThresholdPercent", low.into(), &PERCENT);
    let problem = format!("it must be less than imageGCHighThresholdPercent, which is {high}");
    let remedy = "lower it or raise imageGCHighThresholdPercent";
    found.require(low < high, "imageGCLowThresholdPercent", low, problem, remedy);
    let (min, max) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
    for (field, age) in [("imageMinimumGCAge", min), ("imageMaximumGCAge", max)] {
        let problem = "it must not be negative";
        found.require(!age.is_negative(), field, age, problem, "use a positive duration");
    }
    let ordered = max.is_zero() || max.is_negative() || max > min;
    let problem = format!("it must be longer than imageMinimumGCAge, which is {min}");
    found.require(
        ordered,
        "imageMaximumGCAge",
        max,
        problem,
        "raise it, or use 0s to switch it off",
    );
    if let Some(parallel) = config.max_parallel_image_pulls {
        found.at_least("maxParallelImagePulls", parallel.into(), 1);
        found.require(
            parallel <= 1 || !config.serialize_image_pulls,
            "maxParallelImagePulls",
            parallel,
            "pulls are serialised",
            "set serializeImagePulls to false",
        );
    }
    image_verification(config, gates, found);
}

fn image_verification(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    let policy = config.image_pull_credentials_verification_policy;
    let list = &config.preloaded_images_verification_allowlist;
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        let wanted = ImageVerificationPolicy::NeverVerifyAllowlistedImages;
        found.require(
            list.is_empty() || policy == wanted,
            "preloadedImagesVerificationAllowlist",
            list.join(","),
            format!("it only applies with imagePullCredentialsVerificationPolicy {wanted}"),
            "set that policy or remove the list",
        );
        if let Err(problem) = VerificationPolicy::new(policy, list) {
            let remedy = "name images without tags, or end a pattern in /*";
            found.require(
                false,
                "preloadedImagesVerificationAllowlist",
                list.join(","),
                problem.to_string(),
                remedy,
            );
        }
        return;
    }
    let remedy = "switch the gate on or remove the field";
    let problem = "it needs the feature gate KubeletEnsureSecretPulledImages";
    let unset = policy == ImageVerificationPolicy::Unset;
    let field = "imagePullCredentialsVerificationPolicy";
    found.require(unset, field, policy, problem, remedy);
    let field = "preloadedImagesVerificationAllowlist";
    found.require(list.is_empty(), field, list.join(","), problem, remedy);
}

fn features(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    let remedy = "remove it";
    found.require(!config.run_once, "runOnce", true, "this mode no longer exists", remedy);
    let period = config.crash_loop_back_off.max_container_restart_period;
    let field = "crashLoopBackOff.maxContainerRestartPeriod";
    match (period, gates.enabled("KubeletCrashLoopBackOffMax")) {
        (Some(period), true) => found.between(field, period, CRASH_LOOP_PERIOD),
        (Some(period), false) => {
            let problem = "it needs the feature gate KubeletCrashLoopBackOffMax";
            found.require(false, field, period, problem, "switch the gate on or remove the field");
        }
        (None, _) => {}
    }
    if let Some(rate) = config.tracing.as_ref().and_then(|t| t.sampling_rate_per_million) {
        found.in_range("tracing.samplingRatePerMillion", rate.into(), &SAMPLING_PER_MILLION);
    }
    if let Some(ids) = config.user_namespaces.as_ref().and_then(|u| u.ids_per_pod) {
        let fits = ids > 0 && ids % USER_NAMESPACE_STEP == 0 && ids < 1 << 32;
        let problem = "it must be a positive multiple of 65536 below 2^32";
        found.require(fits, "userNamespaces.idsPerPod", ids, problem, "use 65536");
    }
    hidden_metrics(&config.show_hidden_metrics_for_version, found);
}

// k8s: staging/src/k8s.io/component-base/metrics/options.go ValidateShowHiddenMetricsVersion
fn hidden_metrics(version: &str, found: &mut Violations) {
    let field = "showHiddenMetricsForVersion";
    let problem = "only the minor version before this one has hidden metrics";
    let known = matches!(version, "" | "1.35");
    found.require(known, field, format!("{version:?}"), problem, "use 1.35 or remove it");
}

fn shutdown(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    let (all, critical) =
        (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    let total = "shutdownGracePeriod";
    let part = "shutdownGracePeriodCriticalPods";
    let problem = format!("it must not be longer than {total}, which is {all}");
    found.require(critical <= all, part, critical, problem, format!("lower it or raise {total}"));
    for (field, period) in [(total, all), (part, critical)] {
        let whole = period.is_zero() || period >= SHUTDOWN_GRACE_MIN;
        let problem = "it must be 0s or at least 1s";
        found.require(whole, field, period, problem, "use 1s or more, or 0s to switch it off");
        let allowed = period <= GoDuration::default() || gates.enabled("GracefulNodeShutdown");
        let problem = "it needs the feature gate GracefulNodeShutdown";
        found.require(allowed, field, period, problem, "switch the gate on or remove the field");
    }
    let by_priority = &config.shutdown_grace_period_by_pod_priority;
    if by_priority.is_empty() {
        return;
    }
    let field = "shutdownGracePeriodByPodPriority";
    let shown = format!("a list of {}", by_priority.len());
    let gate = "GracefulNodeShutdownBasedOnPodPriority";
    let problem = format!("it needs the feature gate {gate}");
    let remedy = "switch the gate on or remove the field";
    found.require(gates.enabled(gate), field, &shown, problem, remedy);
    let alone = all.is_zero() && critical.is_zero();
    let problem = format!("it cannot be combined with {total} or {part}");
    found.require(alone, field, &shown, problem, "keep one of them");
}

fn logs(config: &KubeletConfiguration, found: &mut Violations) {
    found.at_least("containerLogMaxWorkers", config.container_log_max_workers.into(), 1);
    found.at_least("containerLogMaxFiles", config.container_log_max_files.into(), 2);
    let interval = config.container_log_monitor_interval;
    found.require(
        interval >= LOG_MONITOR_INTERVAL_MIN,
        "containerLogMonitorInterval",
        interval,
        format!("it must be at least {LOG_MONITOR_INTERVAL_MIN}"),
        format!("use {LOG_MONITOR_INTERVAL_MIN} or more"),
    );
    let dir = config.pod_logs_dir.as_str();
    let clean = !dir.split('/').any(|part| part == "." || part == "..")
        && !dir.contains("//")
        && (dir == "/" || !dir.ends_with('/'));
    let absolute = Path::new(dir).components().next() == Some(Component::RootDir);
    for (holds, problem) in [
        (absolute, "it must be an absolute path"),
        (clean, "it must not contain ., .., // or end in /"),
        (dir.is_ascii(), "it must be ASCII, as it appears in metrics"),
    ] {
        found.require(holds, "podLogsDir", format!("{dir:?}"), problem, "use /var/log/pods");
    }
    let vmodule = &config.logging.vmodule;
    found.require(
        vmodule.is_empty() || config.logging.format == LogFormat::Text,
        "logging.vmodule",
        format!("a list of {}", vmodule.len()),
        "levels per module only exist for text logs",
        "set logging.format to text or remove it",
    );
}

// k8s: pkg/util/taints/taints.go CheckTaintValidation
fn taints(config: &KubeletConfiguration, found: &mut Violations) {
    for taint in &config.register_with_taints {
        let shown = format!("{}={}:{}", taint.key, taint.value, taint.effect);
        let key = names::qualified(&taint.key).is_empty();
        let value = names::label_value(&taint.value).is_empty();
        let remedy = "write KEY=VALUE:EFFECT with a label key and a label value";
        let problem = "it is not a taint";
        found.require(key && value, "registerWithTaints", &shown, problem, remedy);
        let problem = "timeAdded is set by the API server alone";
        let free = taint.time_added.is_none();
        found.require(free, "registerWithTaints", &shown, problem, "remove timeAdded");
    }
}

fn endpoints(config: &KubeletConfiguration, found: &mut Violations) {
    let images = &config.image_service_endpoint;
    for (field, endpoint, required) in [
        ("containerRuntimeEndpoint", &config.container_runtime_endpoint, true),
        ("imageServiceEndpoint", images, false),
    ] {
        if endpoint.is_empty() && !required {
            continue;
        }
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        let remedy = "use unix:///run/containerd/containerd.sock or the socket of your runtime";
        let problem = "it is not the address of a unix socket";
        found.require(path.starts_with('/'), field, format!("{endpoint:?}"), problem, remedy);
    }
}

pub(super) const CFS_PERIOD_RANGE: [GoDuration; 2] = CFS_PERIOD;

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
