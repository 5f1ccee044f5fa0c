//! Metrics of single plugins, under upstream's names.
//!
//! Input: run times of out-of-tree plugins, and of the default binding. Output: families of
//! Prometheus. Owner: shared. Bounds: labels are plugins, points, statuses and profiles. Upstream's
//! own plugins are one pass over columns here, so they have no run times of their own.
// k8s: pkg/scheduler/metrics/metrics.go

use std::sync::Arc;
use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use pintle_scheduler_core::framework::Meter;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;

use super::serve::State;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PluginRunMetric {
    plugin: String,
    extension_point: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Evaluated {
    plugin: String,
    extension_point: &'static str,
    profile: Arc<str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MetricStage {
    operation: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Short;

impl MetricConstructor<Histogram> for Short {
    fn new_metric(&self) -> Histogram {
        // Each bound is computed from the previous one, so that the last digits equal upstream's.
        Histogram::new(std::iter::successors(Some(0.00001), |bound| Some(bound * 1.5)).take(20))
    }
}

/// Metrics of single plugins.
pub(super) struct OfPlugins {
    ran: Family<PluginRunMetric, Histogram, Short>,
    evaluated: Family<Evaluated, Counter>,
    failed: Family<MetricStage, Counter>,
}

impl OfPlugins {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            ran: at.put(
                "scheduler_plugin_execution_duration_seconds",
                "[ALPHA] Duration for running a plugin at a specific extension point.",
                Family::new_with_constructor(Short),
            ),
            evaluated: at.add(
                "scheduler_plugin_evaluation",
                "[BETA] Number of attempts to schedule pods by each plugin and the extension point \
                 (available only in PreFilter, Filter, PreScore, and Score).",
            ),
            failed: at.add(
                "scheduler_volume_scheduling_stage_error",
                "[ALPHA] Volume scheduling stage error count",
            ),
        }
    }

    pub(super) fn ran(
        &self,
        plugin: &str,
        extension_point: &'static str,
        status: &'static str,
        took: Duration,
    ) {
        let ran = PluginRunMetric { plugin: plugin.to_owned(), extension_point, status };
        self.ran.get_or_create(&ran).observe(took.as_secs_f64());
    }

    pub(super) fn evaluated(
        &self,
        plugin: &str,
        point: &'static str,
        profile: &Arc<str>,
        times: u64,
    ) {
        let (plugin, profile) = (plugin.to_owned(), Arc::clone(profile));
        let evaluated = Evaluated { plugin, extension_point: point, profile };
        self.evaluated.get_or_create(&evaluated).inc_by(times);
    }

    /// Binding the volumes of a pod failed.
    pub(super) fn volumes_failed(&self) {
        self.failed.get_or_create(&MetricStage { operation: "bind" }).inc();
    }
}

/// Recorder for the plugins of the profile of this number.
pub(crate) struct OfProfile(pub(crate) Arc<State>, pub(crate) usize);

impl Meter for OfProfile {
    fn ran(&self, plugin: &str, point: &'static str, status: &'static str, took: Duration) {
        self.0.metrics.plugin(plugin, point, status, took);
    }

    fn evaluated(&self, plugin: &str, point: &'static str, times: usize) {
        let times = u64::try_from(times).unwrap_or(u64::MAX);
        self.0.metrics.evaluated(plugin, point, self.1, times);
    }
}
