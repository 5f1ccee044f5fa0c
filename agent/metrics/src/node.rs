//! The node in numbers: its cgroups, sandboxes, hooks, enabled features.
//!
//! Input: reports of the executor. Output: handles.
// k8s: pkg/kubelet/metrics/metrics.go,
//      staging/src/k8s.io/component-base/metrics/prometheus/feature/metrics.go

use std::time::Duration;

use pintle_agent_config::FeatureGates;
use pintle_agent_config::gate_table::{FeatureStage, GATES};
use pintle_agent_core::cgroup::memory_qos::ClassRequests;
use pintle_agent_core::shutdown::ShutdownRecord;
use pintle_api_types::ids::UnixNanos;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::families::{Operation, SECONDS};
use super::memory_qos::MemoryQosMetrics;

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Upper bounds of a resize in milliseconds.
// k8s: pkg/kubelet/metrics/metrics.go podResizeDurationBuckets
const RESIZE_MILLIS: [f64; 14] =
    [10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandlerInfo {
    runtime_handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Success {
    success: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeFeature {
    name: String,
    stage: String,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    cgroup_version: Gauge,
    cgroup_seconds: Durations<Operation>,
    sandbox_seconds: Durations<HandlerInfo>,
    sandbox_errors: Family<HandlerInfo, Counter>,
    user_pods: Counter,
    user_pod_errors: Counter,
    resize_millis: Durations<Success>,
    pub(super) http_fallbacks: Counter,
    pub(super) sleeps_cut: Counter,
    orphans_cleaned: Gauge,
    orphans_kept: Gauge,
    features: Family<NodeFeature, Gauge>,
    shutdown_started: Gauge,
    shutdown_ended: Gauge,
    pub(super) memory_qos: MemoryQosMetrics,
}

impl NodeMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            cgroup_version: at
                .add("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts."),
            cgroup_seconds: at.put(
                "kubelet_cgroup_manager_duration_seconds",
                "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
                Family::new_with_constructor(|| Histogram::new(SECONDS)),
            ),
            sandbox_seconds: at.put(
                "kubelet_run_podsandbox_duration_seconds",
                "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by \
                 RuntimeClass.Handler.",
                Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.5, 14))),
            ),
            sandbox_errors: at.add(
                "kubelet_run_podsandbox_errors",
                "[ALPHA] Cumulative number of the run_podsandbox operation errors by \
                 RuntimeClass.Handler.",
            ),
            user_pods: at.add(
                "kubelet_started_user_namespaced_pods",
                "[ALPHA] Cumulative number of pods with user namespaces started. This metric will \
                 only be collected on Linux.",
            ),
            user_pod_errors: at.add(
                "kubelet_started_user_namespaced_pods_errors",
                "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This \
                 metric will only be collected on Linux.",
            ),
            resize_millis: at.put(
                "kubelet_pod_resize_duration_milliseconds",
                "[ALPHA] Duration in milliseconds to actuate a pod resize",
                Family::new_with_constructor(|| Histogram::new(RESIZE_MILLIS)),
            ),
            http_fallbacks: at.add(
                "kubelet_lifecycle_handler_http_fallbacks",
                "[ALPHA] The number of times lifecycle handlers successfully fell back to http from \
                 https.",
            ),
            sleeps_cut: at.add(
                "kubelet_sleep_action_terminated_early",
                "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
            ),
            orphans_cleaned: at.add(
                "kubelet_orphan_pod_cleaned_volumes",
                "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last \
                 periodic sweep.",
            ),
            orphans_kept: at.add(
                "kubelet_orphan_pod_cleaned_volumes_errors",
                "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last \
                 periodic sweep.",
            ),
            features: at.add(
                "kubernetes_feature_enabled",
                "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
            ),
            shutdown_started: at.add(
                "kubelet_graceful_shutdown_start_time_seconds",
                "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
            ),
            shutdown_ended: at.add(
                "kubelet_graceful_shutdown_end_time_seconds",
                "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
            ),
            memory_qos: MemoryQosMetrics::register(at),
        }
    }

    /// Sets the host's cgroup version.
    pub(super) fn cgroups(&self, version: u8) {
        self.cgroup_version.set(version.into());
    }

    /// A pod's cgroup was made, changed or removed: `create`, `update`, `destroy`.
    pub(super) fn cgroup(&self, operation: &str, took: Duration) {
        let label = Operation { operation_type: operation.to_owned() };
        self.cgroup_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// A sandbox was asked for.
    pub(super) fn sandbox(&self, handler: &str, took: Duration, good: bool) {
        let label = HandlerInfo { runtime_handler: handler.to_owned() };
        self.sandbox_seconds.get_or_create(&label).observe(took.as_secs_f64());
        if !good {
            self.sandbox_errors.get_or_create(&label).inc();
        }
    }

    /// A pod with user ids of its own was begun; `good` is the result.
    pub(super) fn user_namespaced_pod(&self, good: bool) {
        self.user_pods.inc();
        self.user_pod_errors.inc_by(u64::from(!good));
    }

    /// A pod's resize was carried out.
    pub(super) fn resized(&self, took: Duration, good: bool) {
        let label = Success { success: good.to_string() };
        self.resize_millis.get_or_create(&label).observe(took.as_secs_f64() * 1e3);
    }

    /// Directories of pods that are gone were looked for.
    pub(super) fn orphans(&self, cleaned: usize, kept: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.orphans_cleaned.set(number(cleaned + kept));
        self.orphans_kept.set(number(kept));
    }

    /// Records the stages of the node's last shutdown.
    // k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go processShutdownEvent
    pub(super) fn shutdown(&self, record: &ShutdownRecord) {
        let seconds = |at: UnixNanos| at.to_seconds().as_second();
        self.shutdown_started.set(seconds(record.started_at));
        self.shutdown_ended.set(record.ended_at.map_or(0, seconds));
    }

    /// Sets the enabled features.
    pub(super) fn features(&self, gates: &FeatureGates) {
        for gate in GATES {
            let stage = match gate.stage {
                FeatureStage::Ga => "",
                FeatureStage::Alpha => "ALPHA",
                FeatureStage::Beta => "BETA",
                FeatureStage::Deprecated => "DEPRECATED",
            };
            let label = NodeFeature { name: gate.name.to_owned(), stage: stage.to_owned() };
            self.features.get_or_create(&label).set(gates.enabled(gate.name).into());
        }
        if gates.enabled("MemoryQoS") {
            self.memory_qos.set_protected(ClassRequests::default());
        }
    }
}
