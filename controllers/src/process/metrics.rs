//! Metrics of the process under upstream's names; the frame registers those of queues and loops.
//!
//! Input: requests, leadership, starts and ends of controllers. Output: families of Prometheus.
//! Owner: shared; each is a few atomics.
// k8s: staging/src/k8s.io/component-base/metrics/prometheus/controllers/metrics.go

use std::sync::{Mutex, MutexGuard, PoisonError};

use pintle_config::gates::GateState;
use pintle_daemon::metrics::{
    ApiRequests, Leading, MetricNames, ProcessMetrics, exposition, register_component,
};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::options::COMPONENT;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RunningGauge {
    manager: &'static str,
    name: &'static str,
}

/// Handles of the families.
#[derive(Debug)]
pub struct ManagerMetrics {
    registry: Mutex<Registry>,
    process: ProcessMetrics,
    /// Requests to the API server.
    pub requests: ApiRequests,
    leading: Leading,
    running: Family<RunningGauge, Gauge>,
}

impl ManagerMetrics {
    pub(super) fn new(gates: &[GateState]) -> Self {
        let mut registry = Registry::default();
        let mut at = MetricNames(&mut registry);
        register_component(&mut at, gates);
        let process = ProcessMetrics::register(&mut at);
        let requests = ApiRequests::register(&mut at);
        let leading = Leading::register(&mut at);
        let running = at.add(
            "running_managed_controllers",
            "[BETA] Indicates where instances of a controller are currently running",
        );
        Self { registry: Mutex::new(registry), process, requests, leading, running }
    }

    /// Registers more families; `put` gets the names' registrar.
    pub fn register<T>(&self, put: impl FnOnce(&mut MetricNames<'_>) -> T) -> T {
        put(&mut MetricNames(&mut self.registry()))
    }

    /// This process leads on that lease, or waits for it.
    pub fn set_leading(&self, lease: &str, leads: bool) {
        self.leading.set(lease, leads);
    }

    /// The controller runs, or has ended.
    pub fn set_running(&self, controller: &'static str, runs: bool) {
        let label = RunningGauge { manager: COMPONENT, name: controller };
        self.running.get_or_create(&label).set(runs.into());
    }

    /// The exposition.
    pub fn text(&self) -> String {
        self.process.read();
        exposition(&self.registry(), &[])
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
