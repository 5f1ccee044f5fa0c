//! Metrics of scheduling attempts.
//!
//! Input: results and durations of attempts. Output: six families of Prometheus under upstream's
//! names. Owner: the other metrics. Bounds: a label for each result and profile, and for each
//! number of attempts up to 15.
// k8s: pkg/scheduler/metrics/metrics.go scheduleAttempts, SchedulingLatency, podSchedulingSLIDuration

use std::sync::Arc;
use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::metrics::{Doubling, Histograms};

const SLI_HELP: &str = "[BETA] E2e latency for a pod being scheduled, from the time the pod enters \
    the scheduling queue and might involve multiple scheduling attempts.";
const FLUSH_HELP: &str = "[ALPHA] Number of pods that were successfully scheduled after being flushed \
    from unschedulablePods due to timeout. This metric helps detect potential queueing hint \
    misconfigurations or event handling issues.";

/// Result of an attempt.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct AttemptLabel {
    pub(super) result: &'static str,
    pub(super) profile: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Attempts {
    attempts: String,
}

/// Metrics of scheduling attempts.
pub(super) struct AttemptMetrics {
    total: Family<AttemptLabel, Counter>,
    latency: Histograms<AttemptLabel>,
    algorithm: Histogram,
    sli: Histograms<Attempts>,
    needed: Histogram,
    after_flush: Counter,
}

impl AttemptMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let doubling = |first, count| Histogram::new(exponential_buckets(first, 2.0, count));
        Self {
            total: at.add(
                "scheduler_schedule_attempts",
                "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could \
                 not be scheduled, while 'error' means an internal scheduler problem.",
            ),
            latency: at.put(
                "scheduler_scheduling_attempt_duration_seconds",
                "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                Family::new_with_constructor(Doubling(0.001, 15)),
            ),
            algorithm: at.put(
                "scheduler_scheduling_algorithm_duration_seconds",
                "[ALPHA] Scheduling algorithm latency in seconds",
                doubling(0.001, 15),
            ),
            sli: at.put(
                "scheduler_pod_scheduling_sli_duration_seconds",
                SLI_HELP,
                Family::new_with_constructor(Doubling(0.01, 20)),
            ),
            needed: at.put(
                "scheduler_pod_scheduling_attempts",
                "[STABLE] Number of attempts to successfully schedule a pod.",
                doubling(1.0, 5),
            ),
            after_flush: at.add("scheduler_pod_scheduled_after_flush", FLUSH_HELP),
        }
    }

    /// An attempt ended.
    pub(super) fn ended(&self, label: &AttemptLabel, took: Duration) {
        self.total.get_or_create(label).inc();
        self.latency.get_or_create(label).observe(took.as_secs_f64());
    }

    /// A pod was bound, `all` after its first attempt.
    pub(super) fn bound(&self, all: Duration, attempts: u32, was_flushed: bool) {
        self.needed.observe(f64::from(attempts));
        let attempts = if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() };
        self.sli.get_or_create(&Attempts { attempts }).observe(all.as_secs_f64());
        if was_flushed {
            self.after_flush.inc();
        }
    }

    /// A search for a node ended.
    pub(super) fn decided(&self, took: Duration) {
        self.algorithm.observe(took.as_secs_f64());
    }
}
