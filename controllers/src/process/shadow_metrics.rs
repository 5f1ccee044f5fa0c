//! Metrics of a comparison in shadow.
//!
//! Input: the report, from time to time. Output: one family, by controller, reason and result.
//! Owner: the deciding thread writes, the port's thread reads.

use std::sync::atomic::Ordering;

use pintle_controllers_loops::shadow::ShadowReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::metrics::ManagerMetrics;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Comparison {
    controller: &'static str,
    reason: String,
    result: &'static str,
}

/// Handles of the families.
#[derive(Debug)]
pub struct ShadowMetrics {
    comparisons: Family<Comparison, Counter>,
}

impl ShadowMetrics {
    /// Registers the family.
    pub fn register(metrics: &ManagerMetrics) -> Self {
        metrics.register(|at| Self {
            comparisons: at.add(
                "pintle_shadow_comparisons",
                "Writes compared with those of the acting manager, by result",
            ),
        })
    }

    /// Shows these counts.
    pub fn update(&self, report: &ShadowReport) {
        for (controller, reasons) in &report.counts {
            for (reason, counts) in reasons {
                for (result, count) in [
                    ("same", counts.same),
                    ("overtaken", counts.overtaken),
                    ("ours_only", counts.ours_only),
                    ("theirs_only", counts.theirs_only),
                    ("refused", counts.refused),
                    ("withdrawn", counts.withdrawn),
                ] {
                    let of = Comparison { controller, reason: reason.clone(), result };
                    let counter = self.comparisons.get_or_create(&of);
                    counter.inner().store(count, Ordering::Relaxed);
                }
            }
        }
    }
}
