//! Metrics of waits for binding conditions of devices, under upstream's names.
//!
//! Input: the result of each wait, and the drivers of its devices. Output: two families of
//! Prometheus. Owner: the other metrics. Bounds: four label values a profile and driver.
// k8s: pkg/scheduler/metrics/metrics.go DRABindingConditionsAllocationsTotal,
// DRABindingConditionsPreBindDuration

use std::sync::Arc;
use std::time::Duration;

use pintle_cel::panics;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::metrics::{Doubling, Histograms};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Waited {
    profile: Arc<str>,
    driver: String,
    status: &'static str,
}

/// Metrics of devices with binding conditions.
pub(super) struct OfConditions {
    allocations: Family<Waited, Counter>,
    seconds: Histograms<Waited>,
}

impl OfConditions {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        at.put(
            "pintle_scheduler_cel_panics",
            "Number of evaluations of CEL expressions that ended in a panic",
            panics(),
        );
        Self {
            allocations: at.add(
                "scheduler_dra_bindingconditions_allocations",
                "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver \
                 per scheduling attempt",
            ),
            seconds: at.put(
                "scheduler_dra_bindingconditions_wait_duration_seconds",
                "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during \
                 PreBind.",
                Family::new_with_constructor(Doubling(0.1, 14)),
            ),
        }
    }

    /// A pod has waited: the time counts for each of its devices, including those without
    /// conditions.
    // k8s: dynamicresources.go PreBind
    pub(super) fn ended(
        &self,
        profile: &Arc<str>,
        status: &'static str,
        took: Duration,
        devices: Vec<(String, bool)>,
    ) {
        for (driver, has_conditions) in devices {
            let waited = Waited { profile: Arc::clone(profile), driver, status };
            self.seconds.get_or_create(&waited).observe(took.as_secs_f64());
            if has_conditions {
                self.allocations.get_or_create(&waited).inc();
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
    fn devices_with_binding_conditions_are_counted_by_driver() {
        let mut registry = Registry::default();
        let families = OfConditions::register(&mut MetricNames(&mut registry));
        let of = |driver: &str, has_conditions| (driver.to_owned(), has_conditions);
        let devices = vec![of("a", true), of("b", false), of("a", true)];
        families.ended(&"p".into(), "timeout", Duration::from_secs(5), devices);
        let text = exposition(&registry, &[]);
        let labels = |driver: &str| format!("profile=\"p\",driver=\"{driver}\",status=\"timeout\"");
        let (a, b) = (labels("a"), labels("b"));
        let (total, wait) = ("allocations_total", "wait_duration_seconds");
        for line in [
            format!("{total}{{{a}}} 2"),
            format!("{wait}_count{{{a}}} 2"),
            format!("{wait}_count{{{b}}} 1"),
            format!("{wait}_sum{{{b}}} 5"),
            format!("{wait}_bucket{{le=\"3.2\",{b}}} 0"),
            format!("{wait}_bucket{{le=\"819.2\",{b}}} 1"),
        ] {
            let line = format!("scheduler_dra_bindingconditions_{line}");
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains(&format!("{total}{{{b}}}")), "it has no conditions");
        assert_eq!(text.matches("_bucket{").count(), 2 * 15, "14 bounds, and none");
    }
}
