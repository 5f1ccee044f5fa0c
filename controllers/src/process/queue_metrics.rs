//! Metrics of work queues and syncs, under upstream's names.
//!
//! Input: counts of the frame, from time to time. Output: families of Prometheus. Owner: the
//! deciding thread writes, the port's thread reads.
// k8s: staging/src/k8s.io/component-base/metrics/prometheus/workqueue/metrics.go

use std::sync::atomic::{AtomicU64, Ordering};

use pintle_controllers_core::frame::NamedStats;
use pintle_controllers_core::names::ControllerNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::metrics::ManagerMetrics;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfController {
    controller: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// Handles of the families.
#[derive(Debug)]
pub struct QueueMetrics {
    depth: Family<QueueLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    unfinished: Family<QueueLabels, Seconds>,
    longest: Family<QueueLabels, Seconds>,
    failed: Family<OfController, Counter>,
    panicked: Family<OfController, Counter>,
    stale: Family<OfController, Counter>,
}

impl QueueMetrics {
    /// Registers the families.
    pub fn register(metrics: &ManagerMetrics) -> Self {
        metrics.register(|at| Self {
            depth: at.add("workqueue_depth", "[BETA] Current depth of workqueue"),
            adds: at.add("workqueue_adds", "[BETA] Total number of adds handled by workqueue"),
            retries: at
                .add("workqueue_retries", "[BETA] Total number of retries handled by workqueue"),
            unfinished: at.add(
                "workqueue_unfinished_work_seconds",
                "[BETA] How many seconds of work has done that is in progress and hasn't been \
                 observed by work_duration. Large values indicate stuck threads. One can deduce the \
                 number of stuck threads by observing the rate at which this increases.",
            ),
            longest: at.add(
                "workqueue_longest_running_processor_seconds",
                "[BETA] How many seconds has the longest running processor for workqueue been \
                 running.",
            ),
            failed: at.add("pintle_controller_sync_failures", "Syncs that failed."),
            panicked: at.add("pintle_controller_sync_panics", "Syncs that panicked: a bug each."),
            stale: at.add(
                "pintle_controller_stale_syncs",
                "Syncs put off until the watch showed the controller's own writes.",
            ),
        })
    }

    /// Shows these counts.
    pub fn update(&self, all: &[NamedStats]) {
        for NamedStats { name, stats } in all {
            let of = OfController { controller: name };
            set(&self.failed.get_or_create(&of), stats.failed);
            set(&self.panicked.get_or_create(&of), stats.panicked);
            set(&self.stale.get_or_create(&of), stats.stale);
            let queues = ControllerNames::find(name).map_or(&[][..], |names| names.queues);
            let Some(queue) = queues.first().map(|name| QueueLabels { name }) else { continue };
            let depth = i64::try_from(stats.queue.depth).unwrap_or(i64::MAX);
            self.depth.get_or_create(&queue).set(depth);
            set(&self.adds.get_or_create(&queue), stats.queue.adds);
            set(&self.retries.get_or_create(&queue), stats.queue.retries);
            self.unfinished.get_or_create(&queue).set(stats.queue.unfinished.as_secs_f64());
            self.longest.get_or_create(&queue).set(stats.queue.longest.as_secs_f64());
        }
    }
}

/// The frame counts; the family only shows it.
fn set(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}
