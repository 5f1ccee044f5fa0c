//! Metrics of attempts that exceeded a limit or panicked.
//!
//! Input: such attempts, caught panics. Output: families of Prometheus of this scheduler alone.
//! Owner: the other metrics. Bounds: a label for each limit and for each name of a task.

use std::sync::atomic::AtomicI64;

use pintle_daemon::metrics::MetricNames;
use pintle_daemon::tasks;
use pintle_sched_core::attempt_budget::Limit;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByLimit {
    limit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByTask {
    task: &'static str,
}

/// Metrics of attempts that exceeded a limit or panicked.
pub struct NetMetrics {
    exhausted: Family<ByLimit, Counter>,
    panics: Family<ByTask, Counter>,
    rebuilds: Counter,
    over_share: Gauge<i64, AtomicI64>,
}

impl NetMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let metrics = Self {
            exhausted: at.add(
                "pintle_scheduling_attempts_exhausted",
                "Scheduling attempts that exceeded their limit of time, work or memory; the pod waits and \
                 is tried again.",
            ),
            panics: at.add(
                "pintle_task_panics",
                "Pieces of work that ended with a panic: a bug each, and each logged.",
            ),
            rebuilds: at.add(
                "pintle_scheduler_cache_rebuilds",
                "How often the cluster was read again because a panic left the cache incomplete.",
            ),
            over_share: at.add(
                "pintle_namespaces_over_share",
                "Namespaces whose pods go behind those of others because their attempts took long.",
            ),
        };
        for limit in [Limit::Time, Limit::Work, Limit::Memory] {
            drop(metrics.exhausted.get_or_create(&ByLimit { limit: name(limit) }));
        }
        metrics
    }

    /// An attempt exceeded a limit.
    pub fn exhausted(&self, limit: Limit) {
        self.exhausted.get_or_create(&ByLimit { limit: name(limit) }).inc();
    }

    /// The cache was rebuilt.
    pub fn rebuilt(&self) {
        self.rebuilds.inc();
    }

    /// Sets the number of namespaces that have used more than their share.
    pub fn over_share(&self, namespaces: usize) {
        self.over_share.set(i64::try_from(namespaces).unwrap_or(i64::MAX));
    }

    /// Counts panics since the last call.
    pub(super) fn read(&self) {
        for (task, count) in tasks::panics() {
            let counter = self.panics.get_or_create_owned(&ByTask { task });
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }
}

fn name(limit: Limit) -> &'static str {
    match limit {
        Limit::Time => "time",
        Limit::Work => "work",
        Limit::Memory => "memory",
    }
}
