//! The families of metrics: their names, labels, buckets and help texts. Registration only.
//!
//! Names stand here without `_total`, which the exposition adds to counters. Names, types and labels
//! of families that the kubelet has are the kubelet's; a test holds them against a recording.
// k8s: pkg/kubelet/metrics/metrics.go

use std::sync::atomic::AtomicU64;

use pintle_agent_config::KUBERNETES_VERSION;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Upper bounds of `pod_start_duration_seconds` in seconds.
// k8s: pkg/kubelet/metrics/metrics.go podStartupDurationBuckets
pub(super) const POD_START_SECONDS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Upper bounds of most durations in seconds: Prometheus' own default.
pub(super) const SECONDS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counters without the suffix `_total`, in the kubelet.
pub(super) const PLAIN_COUNTERS: [&str; 5] = [
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_server_expiration_renew_errors",
    "kubelet_pleg_discard_events",
    "kubelet_evented_pleg_connection_success_count",
    "kubelet_evented_pleg_connection_error_count",
];

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($field:ident),* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(super) struct $name { $(pub(super) $field: String),* }
    };
}

labels!(Operation { operation_type });
labels!(State { container_state });
labels!(Static { r#static });
labels!(StartOf { container_type });
labels!(StartError { container_type, code });
labels!(ModeLabel { mode });
labels!(Limit { limit });
labels!(Task { task });
labels!(NodeName { node });
labels!(Reason { reason });
labels!(ReasonDetail { reason_detail });
labels!(Resize { operation, requirement, resource });
labels!(RetryTrigger { retry_trigger });
labels!(Signal { preemption_signal });
labels!(EvictionSignal { eviction_signal });
labels!(Build {
    major,
    minor,
    git_version,
    git_commit,
    git_tree_state,
    build_date,
    go_version,
    compiler,
    platform
});

/// Runtime calls.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) total: Family<Operation, Counter>,
    pub(super) errors: Family<Operation, Counter>,
    pub(super) seconds: Family<Operation, Histogram, fn() -> Histogram>,
}

/// Starts of pods and containers.
#[derive(Debug)]
pub(super) struct Starts {
    pub(super) pods: Counter,
    pub(super) pod_errors: Counter,
    pub(super) containers: Family<StartOf, Counter>,
    pub(super) container_errors: Family<StartError, Counter>,
}

/// Lists of everything that runs.
#[derive(Debug)]
pub(super) struct Relists {
    pub(super) seconds: Histogram,
    pub(super) interval_seconds: Histogram,
    pub(super) last: Gauge<f64, AtomicU64>,
    pub(super) pod_seconds: Histogram,
    pub(super) discarded: Counter,
    pub(super) streams: Counter,
    pub(super) stream_errors: Counter,
    pub(super) stream_seconds: Histogram,
    pub(super) orphans: Counter,
    pub(super) restarted: Family<Static, Counter>,
}

/// Decisions of admission.
#[derive(Debug)]
pub(super) struct Decisions {
    pub(super) refused: Family<Reason, Counter>,
    pub(super) preempted: Family<Signal, Counter>,
    pub(super) evicted: Family<EvictionSignal, Counter>,
    pub(super) eviction_age: Family<EvictionSignal, Histogram, fn() -> Histogram>,
    pub(super) infeasible: Family<ReasonDetail, Counter>,
    pub(super) accepted: Family<RetryTrigger, Counter>,
    pub(super) asked: Family<Resize, Counter>,
}

impl Decisions {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let eviction_age: Family<EvictionSignal, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        Self {
            refused: at.add(
                "kubelet_admission_rejections",
                "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
            ),
            preempted: at.add(
                "kubelet_preemptions",
                "[ALPHA] Cumulative number of pod preemptions by preemption resource",
            ),
            evicted: at.add(
                "kubelet_evictions",
                "[ALPHA] Cumulative number of pod evictions by eviction signal",
            ),
            eviction_age: at.put(
                "kubelet_eviction_stats_age_seconds",
                "[ALPHA] Time between when stats are collected, and when pod is evicted based on \
                 those stats by eviction signal",
                eviction_age,
            ),
            infeasible: at.add(
                "kubelet_pod_infeasible_resizes",
                "[ALPHA] Number of infeasible resizes for pods.",
            ),
            accepted: at.add(
                "kubelet_pod_deferred_accepted_resizes",
                "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
            ),
            asked: at.add(
                "kubelet_container_requested_resizes",
                "[ALPHA] Number of requested resizes, counted at the container level. Different \
                 resources on the same container are counted separately. The 'requirement' label \
                 refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', \
                 'remove', 'increase' or 'decrease'.",
            ),
        }
    }
}

/// Reasons with a series of their own, so that the number of series is bounded.
// k8s: pkg/kubelet/kubelet.go admissionRejectionReasons, recordAdmissionRejection
const REASONS: [&str; 14] = [
    "AppArmor",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "SupplementalGroupsPolicyNotSupported",
    "UnexpectedAdmissionError",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "PodLevelResourcesNotSupported",
    "PodFeatureUnsupported",
    "Evicted",
    "SysctlForbidden",
    "NodeShutdown",
];

/// The label under which a refusal is counted.
pub(super) fn reason_label(reason: &str) -> Reason {
    let known = REASONS.into_iter().find(|known| *known == reason);
    let other = if reason.starts_with("OutOf") { "OutOfExtendedResources" } else { "Other" };
    Reason { reason: known.unwrap_or(other).to_owned() }
}

/// Metrics that the kubelet does not have.
#[derive(Debug)]
pub(super) struct OwnMetrics {
    pub(super) event_source: Family<ModeLabel, Gauge>,
    pub(super) events_dropped: Counter,
    pub(super) limit_hits: Family<Limit, Counter>,
    pub(super) calls_in_flight: Gauge,
    pub(super) panics: Family<Task, Counter>,
}

impl Operations {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let seconds: Family<Operation, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.5, 14)));
        Self {
            total: at.add(
                "kubelet_runtime_operations",
                "[ALPHA] Cumulative number of runtime operations by operation type.",
            ),
            errors: at.add(
                "kubelet_runtime_operations_errors",
                "[ALPHA] Cumulative number of runtime operation errors by operation type.",
            ),
            seconds: at.put(
                "kubelet_runtime_operations_duration_seconds",
                "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
                seconds,
            ),
        }
    }
}

impl Starts {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            pods: at.add("kubelet_started_pods", "[ALPHA] Cumulative number of pods started"),
            pod_errors: at.add(
                "kubelet_started_pods_errors",
                "[ALPHA] Cumulative number of errors when starting pods",
            ),
            containers: at.add(
                "kubelet_started_containers",
                "[ALPHA] Cumulative number of containers started",
            ),
            container_errors: at.add(
                "kubelet_started_containers_errors",
                "[ALPHA] Cumulative number of errors when starting containers",
            ),
        }
    }
}

impl Relists {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let relists = Self::named(at);
        for is_static in ["", "true"] {
            drop(relists.restarted.get_or_create(&Static { r#static: is_static.to_owned() }));
        }
        relists
    }

    fn named(at: &mut MetricNames<'_>) -> Self {
        Self {
            seconds: at.put(
                "kubelet_pleg_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting pods in PLEG.",
                Histogram::new(SECONDS),
            ),
            interval_seconds: at.put(
                "kubelet_pleg_relist_interval_seconds",
                "[ALPHA] Interval in seconds between relisting in PLEG.",
                Histogram::new(SECONDS),
            ),
            last: at.add(
                "kubelet_pleg_last_seen_seconds",
                "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
            ),
            pod_seconds: at.put(
                "kubelet_pleg_pod_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
                Histogram::new(SECONDS),
            ),
            discarded: at
                .add("kubelet_pleg_discard_events", "[ALPHA] The number of discard events in PLEG."),
            streams: at.add(
                "kubelet_evented_pleg_connection_success_count",
                "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
            ),
            stream_errors: at.add(
                "kubelet_evented_pleg_connection_error_count",
                "[ALPHA] The number of errors encountered during the establishment of streaming \
                 connection with the CRI runtime.",
            ),
            stream_seconds: at.put(
                "kubelet_evented_pleg_connection_latency_seconds",
                "[ALPHA] The latency of streaming connection with the CRI runtime, measured in \
                 seconds.",
                Histogram::new(SECONDS),
            ),
            orphans: at.add(
                "kubelet_orphaned_runtime_pods",
                "[ALPHA] Number of pods that have been detected in the container runtime without \
                 being already known to the pod worker. This typically indicates the kubelet was \
                 restarted while a pod was force deleted in the API or in the local configuration, \
                 which is unusual.",
            ),
            restarted: at.add(
                "kubelet_restarted_pods",
                "[ALPHA] Number of pods that have been restarted because they were deleted and \
                 recreated with the same UID while the kubelet was watching them (common for static \
                 pods, extremely uncommon for API pods)",
            ),
        }
    }
}

impl OwnMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            event_source: at
                .add("pintle_event_source", "Where hints about containers come from; always 1."),
            events_dropped: at
                .add("pintle_event_drops", "Kernel events lost because a bound was met."),
            limit_hits: at.add("pintle_limit_hits", "How often a bounded resource was full."),
            calls_in_flight: at.add("pintle_runtime_calls_in_flight", "Runtime calls under way."),
            panics: at.add(
                "pintle_task_panics",
                "Panics by task; each cost one piece of work and is a bug to report.",
            ),
        }
    }
}

pub(super) const BUILD_HELP: &str = "[BETA] A metric with a constant '1' value labeled by major, \
    minor, git version, git commit, git tree state, build date, Go version, and compiler from which \
    Kubernetes was built, and platform on which it is running.";

pub(super) fn build_labels() -> Build {
    let version = KUBERNETES_VERSION.trim_start_matches('v');
    let mut parts = version.split('.').map(str::to_owned);
    let own = concat!("pintle-", env!("CARGO_PKG_VERSION"));
    Build {
        major: parts.next().unwrap_or_default(),
        minor: parts.next().unwrap_or_default(),
        git_version: format!("v{version}"),
        git_commit: own.to_owned(),
        git_tree_state: String::new(),
        build_date: String::new(),
        go_version: String::new(),
        compiler: "rustc".to_owned(),
        platform: format!("linux/{}", std::env::consts::ARCH),
    }
}
