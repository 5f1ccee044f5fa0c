//! What pods add to the cgroups of their classes. Pure.
//!
//! Input: a pod's sums. Output: its share, and sums of shares for `formulas::qos_limits`. CPU counts
//! for Burstable pods alone: Guaranteed ones are directly below the cgroup of all pods. Memory
//! counts where requests are protected.

use pintle_api_types::pod::qos::QosClass;

use super::formulas::{LimitPolicy, PodAmounts};
use super::memory_qos::ClassRequests;

/// One pod's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassShare {
    qos: QosClass,
    cpu_millis: i64,
    memory_bytes: i64,
}

impl ClassShare {
    /// The share of a pod with these sums; `None` if nothing of it counts.
    pub fn of(pod: &PodAmounts, policy: &LimitPolicy) -> Option<Self> {
        let is_protected = policy.memory_qos.is_some_and(|node| node.is_tiered);
        let counts = match pod.qos {
            QosClass::Burstable => true,
            QosClass::Guaranteed => is_protected,
            QosClass::BestEffort => false,
        };
        let memory_bytes = if is_protected { pod.memory_request_bytes } else { 0 };
        counts.then_some(Self { qos: pod.qos, cpu_millis: pod.cpu_request_millis, memory_bytes })
    }

    /// Millicores that Burstable pods request together.
    pub fn burstable_millis<'a>(all: impl Iterator<Item = &'a Self>) -> i64 {
        let of_class = all.filter(|share| share.qos == QosClass::Burstable);
        of_class.fold(0, |sum, share| sum.saturating_add(share.cpu_millis))
    }

    /// Memory that pods request together, by class.
    pub fn memory<'a>(all: impl Iterator<Item = &'a Self>) -> ClassRequests {
        let mut sums = ClassRequests::default();
        for share in all {
            let sum = match share.qos {
                QosClass::Guaranteed => &mut sums.guaranteed_bytes,
                QosClass::Burstable | QosClass::BestEffort => &mut sums.burstable_bytes,
            };
            *sum = sum.saturating_add(share.memory_bytes);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::memory_qos::MemoryQos;
    use super::*;

    fn pod(qos: QosClass) -> PodAmounts {
        PodAmounts {
            qos,
            cpu_request_millis: 100,
            cpu_limit_millis: 100,
            memory_request_bytes: 10,
            memory_limit_bytes: 10,
            cpu_limited: true,
            memory_limited: true,
            hugepages: BTreeMap::new(),
        }
    }

    fn sums(is_tiered: Option<bool>) -> (i64, ClassRequests) {
        let memory_qos = is_tiered.map(|is_tiered| MemoryQos {
            throttling_factor: 0.9,
            is_tiered,
            allocatable_bytes: 1 << 30,
            page_bytes: 4096,
        });
        let policy = LimitPolicy {
            enforce_cpu_quota: true,
            cpu_period_us: 100_000,
            pids_max: -1,
            hugepage_sizes: Vec::new(),
            memory_qos,
        };
        let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
        let two_of_each = classes.iter().chain(&classes).map(|qos| pod(*qos));
        let shares: Vec<_> = two_of_each.filter_map(|pod| ClassShare::of(&pod, &policy)).collect();
        (ClassShare::burstable_millis(shares.iter()), ClassShare::memory(shares.iter()))
    }

    #[test]
    fn memory_requests_are_summed_only_with_tiered_reservation() {
        let both = ClassRequests { guaranteed_bytes: 20, burstable_bytes: 20 };
        assert_eq!(sums(None), (200, ClassRequests::default()));
        assert_eq!(sums(Some(false)), (200, ClassRequests::default()));
        assert_eq!(sums(Some(true)), (200, both));
    }
}
