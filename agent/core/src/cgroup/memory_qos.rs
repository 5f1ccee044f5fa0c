//! MemoryQoS: what cgroup v2 throttles and protects beside the memory limit.
//!
//! Input: the node's settings, requests and limits in bytes. Output: names of cgroup files and what
//! is written to them. Pure. A container is throttled at `memory.high`, somewhere between its
//! request and its limit, before the kernel kills it at the limit. With the policy
//! `TieredReservation` requests are protected from reclaim as well: hard for Guaranteed pods
//! (`memory.min`), soft for Burstable ones (`memory.low`). A protection counts only as far as all
//! cgroups above have it too, so the cgroups of the classes get the sums of their pods.

use pintle_api_types::pod::qos::QosClass;

/// Memory that the kernel reclaims from nobody but its owner.
const MIN: &str = "memory.min";
/// Memory that the kernel reclaims last.
const LOW: &str = "memory.low";
/// Memory above which a container is throttled.
const HIGH: &str = "memory.high";

/// Files of a cgroup with what is written to them.
pub type Files = Vec<(String, String)>;

/// The node's settings, when the feature gate is on and the cgroups are of version 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`, above 0 and at most 1.
    pub throttling_factor: f64,
    /// `memoryReservationPolicy: TieredReservation`.
    pub is_tiered: bool,
    /// The node's memory without what is reserved; stands for a missing limit.
    pub allocatable_bytes: i64,
    /// The kernel's page.
    pub page_bytes: i64,
}

/// Memory requests of all pods, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRequests {
    /// Of Guaranteed pods.
    pub guaranteed_bytes: i64,
    /// Of Burstable pods.
    pub burstable_bytes: i64,
}

impl MemoryQos {
    /// Files of a container, from its own request and limit; 0 is none.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go generateLinuxContainerResources
    pub fn of_container(&self, qos: QosClass, request_bytes: i64, limit_bytes: i64) -> Files {
        let mut files = match self.is_tiered && request_bytes != 0 {
            true => vec![file(protection(qos), request_bytes)],
            false => vec![file(MIN, 0), file(LOW, 0)],
        };
        files.extend(self.high(request_bytes, limit_bytes).map(|bytes| file(HIGH, bytes)));
        files
    }

    /// Files of a pod, from the sum of its requests with overhead.
    // k8s: pkg/kubelet/cm/helpers_linux.go ResourceConfigForPod
    pub fn of_pod(&self, qos: QosClass, request_bytes: i64) -> Files {
        let is_protected = self.is_tiered && request_bytes > 0;
        is_protected.then(|| file(protection(qos), request_bytes)).into_iter().collect()
    }

    /// Files of the cgroup of all pods, and of that of the class Burstable.
    // k8s: pkg/kubelet/cm/qos_container_manager_linux.go setMemoryQoS
    pub fn of_classes(&self, requests: ClassRequests) -> (Files, Files) {
        let requests = if self.is_tiered { requests } else { ClassRequests::default() };
        let all = requests.guaranteed_bytes.saturating_add(requests.burstable_bytes);
        (vec![file(MIN, all)], vec![file(LOW, requests.burstable_bytes)])
    }

    /// Where a container is throttled: nowhere if it has requested its limit, or requests nothing
    /// and has no limit.
    fn high(&self, request: i64, limit: i64) -> Option<i64> {
        if request == limit {
            return None;
        }
        let end = if limit == 0 { self.allocatable_bytes } else { limit };
        if end <= 0 {
            return None;
        }
        // Double arithmetic as in the kubelet, because the value must not differ by a page.
        let bytes =
            (request as f64 + (end as f64 - request as f64) * self.throttling_factor).floor();
        // A product beyond the numbers is negative in the kubelet, and so no threshold.
        let high = ((bytes / self.page_bytes as f64) as i64).checked_mul(self.page_bytes)?;
        (high > request).then_some(high)
    }
}

/// Files of a cgroup of the host whose memory is reserved.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go enforceExistingCgroup
pub fn of_reserved(bytes: i64) -> Files {
    vec![file(MIN, bytes)]
}

fn protection(qos: QosClass) -> &'static str {
    if qos == QosClass::Guaranteed { MIN } else { LOW }
}

fn file(name: &str, bytes: i64) -> (String, String) {
    (name.to_owned(), bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    fn node() -> MemoryQos {
        MemoryQos {
            throttling_factor: 0.9,
            is_tiered: false,
            allocatable_bytes: 1000 * MIB,
            page_bytes: 4096,
        }
    }

    #[test]
    fn high_follows_the_table() {
        // (request, limit, factor, high)
        let table = [
            (0, 0, 0.9, None),
            (64 * MIB, 64 * MIB, 0.9, None),
            // Of upstream's tests: 128 Mi of 256 Mi at 0.8, rounded down to a page.
            (128 * MIB, 256 * MIB, 0.8, Some(241_590_272)),
            (0, 100 * MIB, 0.9, Some(94_371_840)),
            (10 * MIB, 100 * MIB, 0.9, Some(95_420_416)),
            // Without a limit the node's memory counts.
            (100 * MIB, 0, 0.9, Some(910 * MIB)),
            (0, 4096, 0.9, None),
            // Less than a page above the request is no throttling.
            (4096, 8191, 0.9, None),
            (4096, 8192, 1.0, Some(8192)),
            // More requested than there is.
            (2000 * MIB, 0, 0.9, None),
            (1, i64::MAX, 1.0, None),
        ];
        for (request, limit, factor, high) in table {
            let node = MemoryQos { throttling_factor: factor, ..node() };
            assert_eq!(node.high(request, limit), high, "{request} of {limit} at {factor}");
        }
        let unknown = MemoryQos { allocatable_bytes: 0, ..node() };
        assert_eq!(unknown.high(MIB, 0), None);
    }

    #[test]
    fn container_memory_request_is_protected_only_with_tiered_reservation() {
        let files = |node: MemoryQos, qos, request| {
            let files = node.of_container(qos, request, 0).into_iter();
            files.filter(|(name, _)| name != HIGH).collect::<Vec<_>>()
        };
        let none = [file(MIN, 0), file(LOW, 0)];
        assert_eq!(files(node(), QosClass::Guaranteed, MIB), none);
        let tiered = MemoryQos { is_tiered: true, ..node() };
        assert_eq!(files(tiered, QosClass::Guaranteed, MIB), [file(MIN, MIB)]);
        assert_eq!(files(tiered, QosClass::Burstable, MIB), [file(LOW, MIB)]);
        assert_eq!(files(tiered, QosClass::Burstable, 0), none);
        assert_eq!(files(tiered, QosClass::BestEffort, 0), none);
    }

    #[test]
    fn pod_and_classes_are_protected_only_with_tiers() {
        let requests = ClassRequests { guaranteed_bytes: 3, burstable_bytes: 4 };
        assert!(node().of_pod(QosClass::Guaranteed, MIB).is_empty());
        assert_eq!(node().of_classes(requests), (vec![file(MIN, 0)], vec![file(LOW, 0)]));
        let tiered = MemoryQos { is_tiered: true, ..node() };
        assert_eq!(tiered.of_pod(QosClass::Guaranteed, MIB), [file(MIN, MIB)]);
        assert_eq!(tiered.of_pod(QosClass::Burstable, MIB), [file(LOW, MIB)]);
        assert!(tiered.of_pod(QosClass::BestEffort, 0).is_empty());
        assert_eq!(tiered.of_classes(requests), (vec![file(MIN, 7)], vec![file(LOW, 4)]));
    }
}
