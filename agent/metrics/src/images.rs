//! Requests for images, and records of pulls.
//!
//! Bounds: label values are of fixed sets.
// k8s: pkg/kubelet/images/metrics.go, pkg/kubelet/images/pullmanager/metrics.go

use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PullLabels {
    pull_policy: String,
    present_locally: String,
    pull_required: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ImageCheck {
    result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ImageCollection {
    reason: String,
}

/// Handles of the families.
#[derive(Debug)]
pub struct ImageMetrics {
    requests: Family<PullLabels, Counter>,
    checks: Family<ImageCheck, Counter>,
    intents: Gauge,
    records: Gauge,
    collected: Family<ImageCollection, Counter>,
}

impl ImageMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            requests: at.add(
                "kubelet_image_manager_ensure_image_requests",
                "[ALPHA] Number of ensure-image requests processed by the kubelet.",
            ),
            checks: at.add(
                "kubelet_imagemanager_image_mustpull_checks",
                "[ALPHA] Counter for how many times kubelet checked whether credentials need to be \
                 re-verified to access an image",
            ),
            intents: at.add(
                "kubelet_imagemanager_ondisk_pullintents",
                "[ALPHA] Number of ImagePullIntents stored on disk.",
            ),
            records: at.add(
                "kubelet_imagemanager_ondisk_pulledrecords",
                "[ALPHA] Number of ImagePulledRecords stored on disk.",
            ),
            collected: at.add(
                "kubelet_image_garbage_collected",
                "[ALPHA] Total number of images garbage collected by the kubelet, whether through \
                 disk usage or image age.",
            ),
        }
    }

    /// A container requested its image; `None` for an unknown fact.
    pub fn requested(&self, policy: &str, present: Option<bool>, pull: Option<bool>) {
        let word = |known: Option<bool>| known.map_or("unknown".to_owned(), |is| is.to_string());
        let labels = PullLabels {
            pull_policy: policy.to_ascii_lowercase(),
            present_locally: word(present),
            pull_required: word(pull),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// An unused image was removed, because of its `age` or for `space`.
    pub fn collected(&self, reason: &str) {
        self.collected.get_or_create(&ImageCollection { reason: reason.to_owned() }).inc();
    }

    /// A pod's access to an image that is already there was decided.
    pub fn verified(&self, result: &str) {
        self.checks.get_or_create(&ImageCheck { result: result.to_owned() }).inc();
    }

    /// Sets the numbers of files on disk.
    pub fn on_disk(&self, intents: usize, records: usize) {
        self.intents.set(i64::try_from(intents).unwrap_or(i64::MAX));
        self.records.set(i64::try_from(records).unwrap_or(i64::MAX));
    }
}
