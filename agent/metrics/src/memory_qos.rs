//! Metrics of the memory that the node protects from reclaim.
//!
//! Input: whether the gate `MemoryQoS` is on, and the requests of all pods. Output: two gauges,
//! which the exposition has only where the gate is on.
// k8s: pkg/kubelet/metrics/metrics.go MemoryQoSNodeMemoryMinBytes, Register

use std::sync::{Arc, OnceLock};

use pintle_agent_core::cgroup::memory_qos::ClassRequests;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A gauge that is not shown before its first value.
#[derive(Clone, Debug, Default)]
struct GatedGauge(Arc<OnceLock<Gauge>>);

impl GatedGauge {
    fn set(&self, value: i64) {
        self.0.get_or_init(Gauge::default).set(value);
    }
}

impl TypedMetric for GatedGauge {
    const TYPE: MetricType = MetricType::Gauge;
}

impl EncodeMetric for GatedGauge {
    fn encode(&self, encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        self.0.get().map_or(Ok(()), |gauge| gauge.encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }

    fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

/// Protected bytes by QoS class.
#[derive(Debug)]
pub(super) struct MemoryQosMetrics {
    min_bytes: GatedGauge,
    low_bytes: GatedGauge,
}

impl MemoryQosMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            min_bytes: at.add(
                "kubelet_memory_qos_node_memory_min_bytes",
                "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is \
                 hard-reserved and never reclaimed by the kernel.",
            ),
            low_bytes: at.add(
                "kubelet_memory_qos_node_memory_low_bytes",
                "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is \
                 soft-reserved and may be reclaimed under extreme pressure.",
            ),
        }
    }

    /// Sets the protected bytes.
    pub(super) fn set_protected(&self, requests: ClassRequests) {
        self.min_bytes.set(requests.guaranteed_bytes);
        self.low_bytes.set(requests.burstable_bytes);
    }
}
