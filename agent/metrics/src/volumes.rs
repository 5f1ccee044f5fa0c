//! Volumes: how long counting their use takes.
// k8s: pkg/kubelet/server/metrics/metrics.go

use std::time::Duration;

use pintle_daemon::metrics::Names;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::families::SECONDS;

/// How the use of a volume was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedFrom {
    /// Its files were added up.
    Walk,
    /// The kernel counts its project.
    Quota,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountedBy {
    metric_source: String,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct Volumes {
    counted: Family<CountedBy, Histogram, fn() -> Histogram>,
}

impl Volumes {
    pub(super) fn register(at: &mut Names<'_>) -> Self {
        let counted: Family<CountedBy, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        Self {
            counted: at.put(
                "kubelet_volume_metric_collection_duration_seconds",
                "[ALPHA] Duration in seconds to calculate volume stats",
                counted,
            ),
        }
    }

    /// A volume's use was counted.
    pub(super) fn counted(&self, from: CountedFrom, took: Duration) {
        let source = match from {
            CountedFrom::Walk => "du",
            CountedFrom::Quota => "fsquota",
        };
        let by = CountedBy { metric_source: source.to_owned() };
        self.counted.get_or_create(&by).observe(took.as_secs_f64());
    }
}
