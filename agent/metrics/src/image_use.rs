//! Images that were pulled, and those that containers mount as volumes.
// k8s: pkg/kubelet/metrics/metrics.go

use std::time::Duration;

use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Upper bounds of a pull in seconds.
// k8s: pkg/kubelet/metrics/metrics.go imagePullDurationBuckets
const PULL_SECONDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];
/// Sizes of images in MiB from which on they have this name.
// k8s: pkg/kubelet/metrics/metrics.go imageSizeBuckets, GetImageSizeBucket
const SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10, "10MB-100MB"),
    (100, "100MB-500MB"),
    (500, "500MB-1GB"),
    (1 << 10, "1GB-5GB"),
    (5 << 10, "5GB-10GB"),
    (10 << 10, "10GB-20GB"),
    (20 << 10, "20GB-30GB"),
    (30 << 10, "30GB-40GB"),
    (40 << 10, "40GB-60GB"),
    (60 << 10, "60GB-100GB"),
    (100 << 10, "GT100GB"),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ImageSize {
    image_size_in_bytes: String,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct ImageUse {
    image_volumes: Counter,
    image_volumes_mounted: Counter,
    image_volume_errors: Counter,
    pull_seconds: Durations<ImageSize>,
}

impl ImageUse {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            image_volumes: at
                .add("kubelet_image_volume_requested", "[BETA] Number of requested image volumes."),
            image_volumes_mounted: at.add(
                "kubelet_image_volume_mounted_succeed",
                "[BETA] Number of successful image volume mounts.",
            ),
            image_volume_errors: at.add(
                "kubelet_image_volume_mounted_errors",
                "[BETA] Number of failed image volume mounts.",
            ),
            pull_seconds: at.put(
                "kubelet_image_pull_duration_seconds",
                "[ALPHA] Duration in seconds to pull an image.",
                Family::new_with_constructor(|| Histogram::new(PULL_SECONDS)),
            ),
        }
    }

    /// A container that mounts images was started, or was not.
    pub(super) fn volumes(&self, requested: usize, mounted: usize, good: bool) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.image_volumes.inc_by(number(requested));
        let counter = if good { &self.image_volumes_mounted } else { &self.image_volume_errors };
        counter.inc_by(number(mounted));
    }

    /// An image of this size was pulled.
    pub(super) fn pulled(&self, took: Duration, bytes: u64) {
        let label = ImageSize { image_size_in_bytes: size_name(bytes).to_owned() };
        self.pull_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }
}

fn size_name(bytes: u64) -> &'static str {
    let name = SIZES.iter().rev().find(|(mib, _)| bytes > mib << 20);
    name.map_or("N/A", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_kubelets_names() {
        for (bytes, name) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 << 20, "0-10MB"),
            ((10 << 20) + 1, "10MB-100MB"),
            (2 << 30, "1GB-5GB"),
            (200 << 30, "GT100GB"),
        ] {
            assert_eq!(size_name(bytes), name, "{bytes}");
        }
    }
}
