//! Metrics that syncs and handlers of controllers count, under upstream's names.
//!
//! Input: totals of samples of the frame, from time to time. Output: counters of Prometheus. Owner:
//! the deciding thread writes, the port's thread reads. Bounds: the metrics of a table; samples of
//! other names are not shown.
// k8s: pkg/controller/job/metrics/metrics.go

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use pintle_controllers_core::common::sample::SampleTotals;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::metrics::ManagerMetrics;

/// A counter of a controller.
struct SampleCounter {
    /// Its name as controllers call it.
    sample: &'static str,
    /// Its name without `_total`.
    name: &'static str,
    help: &'static str,
}

const fn counter(sample: &'static str, name: &'static str, help: &'static str) -> SampleCounter {
    SampleCounter { sample, name, help }
}

#[rustfmt::skip] // a table to look things up in
const COUNTERS: [SampleCounter; 8] = [
    counter("job_syncs_total", "job_controller_job_syncs", "[STABLE] The number of job syncs"),
    counter("jobs_finished_total", "job_controller_jobs_finished",
        "[STABLE] The number of finished jobs"),
    counter("jobs_by_external_controller_total", "job_controller_jobs_by_external_controller",
        "[ALPHA] The number of Jobs managed by an external controller"),
    counter("job_pods_finished_total", "job_controller_job_pods_finished",
        "[STABLE] The number of finished Pods that are fully tracked"),
    counter("pod_failures_handled_by_failure_policy_total",
        "job_controller_pod_failures_handled_by_failure_policy",
        "[BETA] The number of failed Pods handled by failure policy, by the action of the rule: \
         FailJob, Ignore or Count."),
    counter("terminated_pods_tracking_finalizer_total",
        "job_controller_terminated_pods_tracking_finalizer",
        "[BETA] The number of terminated pods (phase=Failed|Succeeded) that have the finalizer \
         batch.kubernetes.io/job-tracking. The event label can be \"add\" or \"delete\"."),
    counter("job_finished_indexes_total", "job_controller_job_finished_indexes",
        "[ALPHA] The number of finished indexes, by status (succeeded, failed) and backoffLimit \
         (perIndex, global)"),
    counter("job_pods_creation_total", "job_controller_job_pods_creation",
        "[ALPHA] The number of Pods created by the Job controller, by reason (new, \
         recreate_terminating_or_failed, recreate_failed) and status (succeeded, failed)."),
];

type Labels = Vec<(&'static str, String)>;

/// Handles of the counters.
#[derive(Debug)]
pub struct SampleMetrics(BTreeMap<&'static str, Family<Labels, Counter>>);

impl SampleMetrics {
    /// Registers the counters.
    pub fn register(metrics: &ManagerMetrics) -> Self {
        metrics.register(|at| {
            let all = COUNTERS.iter().map(|one| (one.sample, at.add(one.name, one.help)));
            Self(all.collect())
        })
    }

    /// Shows these totals.
    pub fn update(&self, totals: &SampleTotals) {
        for ((name, labels), total) in totals.iter() {
            let Some(family) = self.0.get(name) else { continue };
            // The samples of counters are whole numbers.
            let sum = total.sum as u64;
            family.get_or_create(labels).inner().store(sum, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_controllers_core::common::sample::MetricValue;

    use super::*;

    #[test]
    fn samples_are_shown_under_the_names_of_upstream() {
        let metrics = ManagerMetrics::new(&[]);
        let shown = SampleMetrics::register(&metrics);
        let mut totals = SampleTotals::default();
        for count in [2.0, 1.0] {
            let labels = [("completion_mode", "Indexed"), ("result", "failed")];
            totals.add(MetricValue::new("job_pods_finished_total", &labels, count));
            totals.add(MetricValue::new("job_creation_skew_duration_seconds", &[], count));
            shown.update(&totals);
        }
        let text = metrics.text();
        let line = "job_controller_job_pods_finished_total{completion_mode=\"Indexed\",\
                    result=\"failed\"} 3\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("skew"), "{text}");
    }
}
