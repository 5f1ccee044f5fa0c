//! Metrics of results reused from earlier decisions, under upstream's names.
//!
//! Input: counts by profile. Output: two families of Prometheus. Owner: the other metrics. Bounds:
//! two results and two reasons a profile. Upstream hands on the next node of a list to a pod of the
//! same signature; here a pod with the same requests reuses the fit results and the scores of
//! utilisation and balance, and all else is decided again (docs/COMPAT.md).
// k8s: pkg/scheduler/metrics/metrics.go BatchAttemptStats, BatchCacheFlushed

use std::sync::Arc;

use pintle_daemon::metrics::MetricNames;
use pintle_scheduler_core::cycle::Batches;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Tried {
    profile: Arc<str>,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Flushed {
    profile: Arc<str>,
    reason: &'static str,
}

/// Metrics of batches.
pub(super) struct OfBatches {
    tried: Family<Tried, Counter>,
    flushed: Family<Flushed, Counter>,
}

impl OfBatches {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            tried: at.add(
                "scheduler_batch_attempts",
                "[ALPHA] Counts of results when we attempt to use batching.",
            ),
            flushed: at
                .add("scheduler_batch_cache_flushed", "[ALPHA] Counts of cache flushes by reason."),
        }
    }

    /// Adds the counts of a profile; a count of zero has no line, as upstream.
    pub(super) fn count(&self, batches: &Batches, profile: &Arc<str>) {
        let Batches { used, none, expired, incompatible } = *batches;
        for (result, count) in [("hint_used", used), ("no_hint", none)] {
            if count > 0 {
                let tried = Tried { profile: Arc::clone(profile), result };
                self.tried.get_or_create(&tried).inc_by(count);
            }
        }
        for (reason, count) in [("expired", expired), ("pod_incompatible", incompatible)] {
            if count > 0 {
                let flushed = Flushed { profile: Arc::clone(profile), reason };
                self.flushed.get_or_create(&flushed).inc_by(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_daemon::metrics::exposition;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn only_observed_results_are_exposed_under_upstream_names() {
        let mut registry = Registry::default();
        let families = OfBatches::register(&mut MetricNames(&mut registry));
        let profile = "default-scheduler".into();
        families.count(&Batches::default(), &profile);
        assert_eq!(exposition(&registry, &[]), "", "nothing came");
        families.count(&Batches { used: 2, none: 1, ..Batches::default() }, &profile);
        families.count(&Batches { used: 1, expired: 4, ..Batches::default() }, &profile);
        let text = exposition(&registry, &[]);
        for line in [
            "# HELP scheduler_batch_attempts_total [ALPHA] Counts of results when we attempt to use \
             batching.",
            "# TYPE scheduler_batch_attempts_total counter",
            "scheduler_batch_attempts_total{profile=\"default-scheduler\",result=\"hint_used\"} 3",
            "scheduler_batch_attempts_total{profile=\"default-scheduler\",result=\"no_hint\"} 1",
            "# HELP scheduler_batch_cache_flushed_total [ALPHA] Counts of cache flushes by reason.",
            "scheduler_batch_cache_flushed_total{profile=\"default-scheduler\",reason=\"expired\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("pod_incompatible"), "it never came");
    }
}
