//! Volumes: how long counting their use takes, and the calls to drivers.
// k8s: pkg/kubelet/server/metrics/metrics.go, pkg/volume/util/metrics.go

use std::time::Duration;

use pintle_agent_core::storage::disk;
use pintle_agent_core::volume::kind::LOCAL;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::families::SECONDS;

/// The method that found the use of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedFrom<'a> {
    /// Its files were added up.
    Walk,
    /// The kernel counts its project.
    Quota,
    /// Its file system has figures.
    FileSystem,
    /// Its device has a size.
    Device,
    /// The driver of that name was asked.
    Driver(&'a str),
}

/// A driver, and whether the volume is of a plugin that was once part of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfDriver<'a> {
    /// Its name.
    pub driver: &'a str,
    /// As metrics have it: `migrated`.
    pub is_migrated: bool,
}

impl<'a> OfDriver<'a> {
    /// A volume that was always the driver's, or of which nothing else is known.
    pub fn own(driver: &'a str) -> Self {
        Self { driver, is_migrated: false }
    }

    fn migrated(self) -> &'static str {
        if self.is_migrated { "true" } else { "false" }
    }
}

/// Limits of the histograms of operations.
const OPERATION_SECONDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriverCall {
    driver_name: String,
    method_name: String,
    grpc_status_code: &'static str,
    migrated: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VolumeOperation {
    volume_plugin: String,
    operation_name: &'static str,
    status: &'static str,
    migrated: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountedBy {
    metric_source: String,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct VolumeMetrics {
    counted: Family<CountedBy, Histogram, fn() -> Histogram>,
    calls: Family<DriverCall, Histogram, fn() -> Histogram>,
    operations: Family<VolumeOperation, Histogram, fn() -> Histogram>,
}

impl VolumeMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        let counted: Family<CountedBy, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        let calls: Family<DriverCall, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS));
        let operations: Family<VolumeOperation, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS));
        Self {
            calls: at.put(
                "csi_operations_seconds",
                "[ALPHA] Container Storage Interface operation duration with gRPC error code status \
                 total",
                calls,
            ),
            operations: at.put(
                "storage_operation_duration_seconds",
                "[ALPHA] Storage operation duration",
                operations,
            ),
            counted: at.put(
                "kubelet_volume_metric_collection_duration_seconds",
                "[ALPHA] Duration in seconds to calculate volume stats",
                counted,
            ),
        }
    }

    /// A call to a driver ended with this code of gRPC.
    // k8s: pkg/volume/util/metrics.go RecordCSIOperationLatencyMetrics
    pub(super) fn called(
        &self,
        of: OfDriver<'_>,
        method: &'static str,
        code: &'static str,
        took: Duration,
    ) {
        let by = DriverCall {
            driver_name: of.driver.to_owned(),
            method_name: format!("/csi.v1.Node/{method}"),
            grpc_status_code: code,
            migrated: of.migrated(),
        };
        self.calls.get_or_create(&by).observe(took.as_secs_f64());
    }

    /// An operation on a driver's volume ended, with all steps before and after its call.
    // k8s: pkg/volume/util/metrics.go OperationCompleteHook
    pub(super) fn operated(
        &self,
        of: OfDriver<'_>,
        name: &'static str,
        good: bool,
        took: Duration,
    ) {
        let by = VolumeOperation {
            volume_plugin: plugin_label(of.driver),
            operation_name: name,
            status: if good { "success" } else { "fail-unknown" },
            migrated: of.migrated(),
        };
        self.operations.get_or_create(&by).observe(took.as_secs_f64());
    }

    /// A volume's use was counted.
    pub(super) fn counted(&self, from: CountedFrom<'_>, took: Duration) {
        let source = match from {
            CountedFrom::Walk => "du",
            CountedFrom::Quota => "fsquota",
            CountedFrom::FileSystem => "statfs",
            CountedFrom::Device => "block",
            CountedFrom::Driver(name) => name,
        };
        let by = CountedBy { metric_source: source.to_owned() };
        self.counted.get_or_create(&by).observe(took.as_secs_f64());
    }
}

/// A volume's plugin, and of a volume of a CSI driver the driver as well.
// k8s: pkg/volume/util/metrics.go GetFullQualifiedPluginNameForVolume
fn plugin_label(driver: &str) -> String {
    match disk::is_plugin(driver) || driver == LOCAL.name {
        true => driver.to_owned(),
        false => format!("kubernetes.io/csi:{driver}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_plugins_have_their_names_and_those_of_drivers_the_driver() {
        for plugin in ["kubernetes.io/iscsi", "kubernetes.io/fc", "kubernetes.io/local-volume"] {
            assert_eq!(plugin_label(plugin), plugin);
        }
        assert_eq!(plugin_label("x.example"), "kubernetes.io/csi:x.example");
    }
}
