//! The metrics of every daemon: registration, exposition, and the families that all Kubernetes
//! components have.
//!
//! Names, labels and help texts are upstream's.

mod api_requests;
mod component;
mod process;
mod text;

use prometheus_client::registry::{Metric, Registry};

pub use api_requests::ApiRequests;
pub use component::{Leading, register_component};
pub use process::{ProcessMetrics, booted_at};

/// Registers under the names that the exposition shows, without `_total`.
pub struct MetricNames<'a>(pub &'a mut Registry);

impl MetricNames<'_> {
    /// A new metric.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.put(name, help, M::default())
    }

    /// A metric that is there; the registry gets a clone, which shares its values.
    pub fn put<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        // The library adds a full stop, which the exposition takes away again.
        self.0.register(name, help, metric.clone());
        metric
    }
}

impl std::fmt::Debug for MetricNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

/// The exposition for scrapers of a Kubernetes component: Prometheus' text format. Counters named
/// in `plain` keep their names, all others get `_total`.
pub fn exposition(registry: &Registry, plain: &[&str]) -> String {
    let mut open_metrics = String::new();
    // Into a string, which takes everything.
    let _ = prometheus_client::encoding::text::encode(&mut open_metrics, registry);
    text::from_open_metrics(&open_metrics, plain)
}
