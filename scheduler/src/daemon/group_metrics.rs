//! Metrics of pod groups, if their gate is on.
//!
//! Input: results of groups. Output: three families of Prometheus under upstream's names. Owner:
//! the other metrics. Bounds: a label for each result and profile.
// k8s: pkg/scheduler/metrics/metrics.go podGroupScheduleAttempts, podGroupSchedulingLatency

use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::attempt_metrics::AttemptLabel;
use super::metrics::{Doubling, Histograms};

/// Metrics of pod groups.
pub(super) struct OfGroups {
    attempts: Family<AttemptLabel, Counter>,
    latency: Histograms<AttemptLabel>,
    algorithm: Histogram,
}

impl OfGroups {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            attempts: at.add(
                "scheduler_podgroup_schedule_attempts",
                "[ALPHA] Number of attempts to schedule pod group, by the result. 'unschedulable' \
                 means a pod group could not be scheduled, while 'error' means an internal scheduler \
                 problem.",
            ),
            latency: at.put(
                "scheduler_podgroup_scheduling_attempt_duration_seconds",
                "[ALPHA] Pod group scheduling attempt latency in seconds (scheduling algorithm + \
                 binding)",
                Family::new_with_constructor(Doubling(0.001, 15)),
            ),
            algorithm: at.put(
                "scheduler_podgroup_scheduling_algorithm_duration_seconds",
                "[ALPHA] Pod group scheduling algorithm latency in seconds",
                Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            ),
        }
    }

    /// A group was decided.
    pub(super) fn decided(&self, label: &AttemptLabel, took: Duration) {
        self.attempts.get_or_create(label).inc();
        self.latency.get_or_create(label).observe(took.as_secs_f64());
        self.algorithm.observe(took.as_secs_f64());
    }
}
