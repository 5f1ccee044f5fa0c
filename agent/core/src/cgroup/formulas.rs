//! From requests and limits to kernel values: CPU shares, weight and quota, memory, swap, huge
//! pages, pids and `oom_score_adj`.
//!
//! Input: plain amounts (millicores, bytes), summed over a pod elsewhere. Output: numbers as the
//! kernel's files or CRI want them. Pure; no Kubernetes object, no file. The same formulas serve
//! pod cgroups and container requests, so that both always agree. Every result is clamped to the
//! kernel's range: an absurd amount in a manifest gives the nearest legal value, never an error.

use std::collections::BTreeMap;

use super::limits::{CgroupLimits, QosLimits};
use super::memory_qos::{ClassRequests, MemoryQos};
use pintle_api_types::pod::qos::QosClass;

/// Least CPU shares that the kernel takes; also the value for "no request".
pub const SHARES_MIN: u64 = 2;
/// Most CPU shares that the kernel takes.
pub const SHARES_MAX: u64 = 262_144;
/// Shares of one whole core.
pub const SHARES_PER_CORE: i64 = 1024;
/// Millicores of one core.
pub const MILLIS_PER_CORE: i64 = 1000;
/// Least CFS quota in microseconds.
pub const QUOTA_MIN_US: i64 = 1000;
/// Default CFS period in microseconds.
pub const PERIOD_DEFAULT_US: i64 = 100_000;
/// "No limit" of a CFS quota.
pub const QUOTA_UNLIMITED_US: i64 = -1;
/// Limit of QoS cgroups for every huge page size: as good as unlimited.
pub const HUGEPAGES_UNBOUNDED_BYTES: u64 = 1 << 62;
/// `oom_score_adj` of Guaranteed and node-critical pods.
pub const OOM_GUARANTEED: i64 = -997;
/// `oom_score_adj` of BestEffort pods.
pub const OOM_BEST_EFFORT: i64 = 1000;
/// Lowest `oom_score_adj` of a Burstable container.
pub const OOM_BURSTABLE_MIN: i64 = 3;
/// Highest `oom_score_adj` of a Burstable container.
pub const OOM_BURSTABLE_MAX: i64 = 999;

/// CPU shares of a request.
// k8s: pkg/kubelet/cm/helpers_linux.go MilliCPUToShares
pub fn cpu_shares(millis: i64) -> u64 {
    let shares = millis.max(0).saturating_mul(SHARES_PER_CORE) / MILLIS_PER_CORE;
    shares.unsigned_abs().clamp(SHARES_MIN, SHARES_MAX)
}

/// cgroup v2's `cpu.weight`, 1 to 10000, for v1 shares.
// k8s: pkg/kubelet/cm/cgroup_manager_linux.go getCPUWeight
pub fn cpu_weight(shares: u64) -> u64 {
    1 + (shares.clamp(SHARES_MIN, SHARES_MAX) - SHARES_MIN) * 9999 / (SHARES_MAX - SHARES_MIN)
}

/// The shares that a weight represents.
// k8s: pkg/kubelet/cm/cgroup_v2_manager_linux.go cpuWeightToCPUShares
pub fn weight_to_shares(weight: u64) -> u64 {
    SHARES_MIN + (weight.clamp(1, 10_000) - 1) * (SHARES_MAX - SHARES_MIN) / 9999
}

/// CFS quota in microseconds for a limit; 0 when there is no limit.
// k8s: pkg/kubelet/cm/helpers_linux.go MilliCPUToQuota
pub fn cpu_quota_us(millis: i64, period_us: i64) -> i64 {
    if millis == 0 {
        return 0;
    }
    (millis.saturating_mul(period_us) / MILLIS_PER_CORE).max(QUOTA_MIN_US)
}

/// The limit that a quota represents; 0 for none.
// k8s: pkg/kubelet/cm/helpers_linux.go QuotaToMilliCPU
pub fn quota_to_millis(quota_us: i64, period_us: i64) -> i64 {
    if quota_us <= 0 || period_us <= 0 {
        return 0;
    }
    quota_us.saturating_mul(MILLIS_PER_CORE) / period_us
}

/// Swap that a Burstable container may use: its share of memory, taken of the swap. `None` when
/// the node's memory is unknown or smaller than the request; then it gets no swap.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go calcSwapForBurstablePods
pub fn limited_swap_bytes(request: i64, memory: i64, swap: i64) -> Option<i64> {
    if memory <= 0 || request > memory {
        return None;
    }
    // Truncated double arithmetic, because the value shows in the API and must not differ by one.
    Some((request as f64 / memory as f64 * swap as f64) as i64)
}

/// Name of a huge page size as the kernel's cgroup files spell it: `64KB`, `2MB`, `1GB`.
// k8s: pkg/apis/core/v1/helper/helpers.go HugePageUnitSizeFromByteSize
pub fn hugepage_size_name(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1024 && size.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", UNITS[unit])
}

/// The facts from which `oom_score_adj` is computed.
#[derive(Clone, Copy, Debug)]
pub struct OomInput {
    /// The pod's class.
    pub qos: QosClass,
    /// Priority of `system-node-critical`.
    pub node_critical: bool,
    /// The container's own memory request plus its share of the pod-level one.
    pub memory_request_bytes: i64,
    /// For a sidecar: the smallest such sum among the main containers.
    pub smallest_main_request_bytes: Option<i64>,
    /// The node's memory.
    pub memory_capacity_bytes: u64,
}

/// `oom_score_adj` of a container.
// k8s: pkg/kubelet/qos/policy.go GetContainerOOMScoreAdjust
pub fn oom_score_adj(input: &OomInput) -> i64 {
    if input.node_critical || input.qos == QosClass::Guaranteed {
        return OOM_GUARANTEED;
    }
    if input.qos == QosClass::BestEffort {
        return OOM_BEST_EFFORT;
    }
    let capacity = i128::from(input.memory_capacity_bytes.max(1));
    let score = |request: i64| 1000 - 1000 * i128::from(request) / capacity;
    let own = score(input.memory_request_bytes);
    // A sidecar must not die before the containers that need it.
    let adjusted = input.smallest_main_request_bytes.map_or(own, |main| own.min(score(main)));
    let adjusted = i64::try_from(adjusted).unwrap_or(OOM_BURSTABLE_MIN);
    adjusted.clamp(OOM_BURSTABLE_MIN, OOM_BURSTABLE_MAX)
}

/// A pod's sums, overhead included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAmounts {
    /// The class.
    pub qos: QosClass,
    /// CPU requested.
    pub cpu_request_millis: i64,
    /// CPU limit; 0 without.
    pub cpu_limit_millis: i64,
    /// Memory requested.
    pub memory_request_bytes: i64,
    /// Memory limit; 0 without.
    pub memory_limit_bytes: i64,
    /// True when every container, or the pod itself, limits CPU.
    pub cpu_limited: bool,
    /// True when every container, or the pod itself, limits memory.
    pub memory_limited: bool,
    /// Huge pages requested: page size in bytes to bytes.
    pub hugepages: BTreeMap<u64, i64>,
}

/// The node's side of a pod's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitPolicy {
    /// `cpuCFSQuota`, and no exclusive cores.
    pub enforce_cpu_quota: bool,
    /// CFS period in microseconds.
    pub cpu_period_us: i64,
    /// `podPidsLimit`; not above 0 for none.
    pub pids_max: i64,
    /// Huge page sizes of the node in bytes.
    pub hugepage_sizes: Vec<u64>,
    /// The gate `MemoryQoS`, on cgroup v2.
    pub memory_qos: Option<MemoryQos>,
}

/// Limits of a pod's cgroup.
// k8s: pkg/kubelet/cm/helpers_linux.go ResourceConfigForPod
pub fn pod_limits(pod: &PodAmounts, policy: &LimitPolicy) -> CgroupLimits {
    let quota = if policy.enforce_cpu_quota {
        cpu_quota_us(pod.cpu_limit_millis, policy.cpu_period_us)
    } else {
        QUOTA_UNLIMITED_US
    };
    let guaranteed = pod.qos == QosClass::Guaranteed;
    let burstable = pod.qos == QosClass::Burstable;
    let with_cpu = guaranteed || burstable && pod.cpu_limited;
    let with_memory = guaranteed || burstable && pod.memory_limited;
    let shares = if guaranteed || burstable { pod.cpu_request_millis } else { 0 };
    let asked = |size: &u64| pod.hugepages.get(size).copied().unwrap_or(0).max(0).unsigned_abs();
    let hugetlb = policy.hugepage_sizes.iter().map(|size| (*size, asked(size))).collect();
    CgroupLimits {
        cpu_shares: Some(cpu_shares(shares)),
        cpu_quota_us: with_cpu.then_some(quota),
        cpu_period_us: with_cpu.then_some(policy.cpu_period_us.unsigned_abs()),
        memory_limit: with_memory.then_some(pod.memory_limit_bytes),
        pids_max: (policy.pids_max > 0).then_some(policy.pids_max),
        hugetlb,
        unified: policy
            .memory_qos
            .map_or_else(Vec::new, |node| node.of_pod(pod.qos, pod.memory_request_bytes)),
        ..CgroupLimits::default()
    }
}

/// Limits of the tree above the pods: `kubepods` as given by `node_limits`, `burstable` the sum of
/// its pods' requests, `besteffort` the least; huge pages are left to the pods.
// k8s: pkg/kubelet/cm/qos_container_manager_linux.go setCPUCgroupConfig
pub fn qos_limits(
    mut node: CgroupLimits,
    burstable_request_millis: i64,
    memory: ClassRequests,
    policy: &LimitPolicy,
) -> QosLimits {
    let class = |cpu_shares: u64| CgroupLimits {
        cpu_shares: Some(cpu_shares),
        hugetlb: policy.hugepage_sizes.iter().map(|s| (*s, HUGEPAGES_UNBOUNDED_BYTES)).collect(),
        ..CgroupLimits::default()
    };
    let mut burstable = class(cpu_shares(burstable_request_millis));
    if let Some(qos) = policy.memory_qos {
        let (of_all, of_burstable) = qos.of_classes(memory);
        node.unified.extend(of_all);
        burstable.unified = of_burstable;
    }
    QosLimits { node, burstable, besteffort: class(SHARES_MIN) }
}

/// Limits of `kubepods` itself when node allocatable is enforced for pods; 0 for an unenforced one.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go getCgroupConfig
pub fn node_limits(cpu_millis: i64, memory_bytes: i64, pids_max: Option<i64>) -> CgroupLimits {
    CgroupLimits {
        cpu_shares: (cpu_millis > 0).then(|| cpu_shares(cpu_millis)),
        memory_limit: (memory_bytes > 0).then_some(memory_bytes),
        pids_max,
        ..CgroupLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_quota_and_weight_follow_the_table() {
        // (millicores, shares, quota at 100 ms, weight)
        let table = [
            (0, 2, 0, 1),
            (1, 2, 1000, 1),
            (2, 2, 1000, 1),
            (10, 10, 1000, 1),
            (50, 51, 5000, 2),
            (100, 102, 10_000, 4),
            (250, 256, 25_000, 10),
            (300, 307, 30_000, 12),
            (1000, 1024, 100_000, 39),
            (2000, 2048, 200_000, 79),
            (256_000, 262_144, 25_600_000, 10_000),
            (1_000_000, 262_144, 100_000_000, 10_000),
        ];
        for (millis, shares, quota, weight) in table {
            assert_eq!(cpu_shares(millis), shares, "shares of {millis}");
            assert_eq!(cpu_quota_us(millis, PERIOD_DEFAULT_US), quota, "quota of {millis}");
            assert_eq!(cpu_weight(shares), weight, "weight of {shares}");
        }
        assert_eq!(cpu_quota_us(500, 5000), 2500);
        assert_eq!(cpu_quota_us(100, 5000), QUOTA_MIN_US);
    }

    #[test]
    fn cpu_quota_converts_to_millicores_as_in_the_kubelet() {
        for (quota, millis) in [(-1, 0), (0, 0), (1000, 10), (25_000, 250), (200_000, 2000)] {
            assert_eq!(quota_to_millis(quota, PERIOD_DEFAULT_US), millis, "{quota}");
        }
        assert_eq!(quota_to_millis(1000, 0), 0);
    }

    #[test]
    fn huge_page_sizes_are_named_as_the_kernel_names_them() {
        for (bytes, name) in [
            (65_536, "64KB"),
            (2 << 20, "2MB"),
            (32 << 20, "32MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ] {
            assert_eq!(hugepage_size_name(bytes), name);
        }
    }

    fn oom(qos: QosClass, request: i64, capacity: u64) -> OomInput {
        OomInput {
            qos,
            node_critical: false,
            memory_request_bytes: request,
            smallest_main_request_bytes: None,
            memory_capacity_bytes: capacity,
        }
    }

    #[test]
    fn oom_score_follows_the_table() {
        const GIB: i64 = 1 << 30;
        let capacity = 8u64 << 30;
        let table = [
            (QosClass::Guaranteed, GIB, -997),
            (QosClass::BestEffort, 0, 1000),
            (QosClass::Burstable, 0, 999),
            (QosClass::Burstable, 20 << 20, 998),
            (QosClass::Burstable, GIB, 875),
            (QosClass::Burstable, 8 * GIB, 3),
            (QosClass::Burstable, 80 * GIB, 3),
        ];
        for (qos, request, score) in table {
            assert_eq!(oom_score_adj(&oom(qos, request, capacity)), score, "{qos:?} {request}");
        }
        let critical = OomInput { node_critical: true, ..oom(QosClass::BestEffort, 0, capacity) };
        assert_eq!(oom_score_adj(&critical), -997);
    }

    #[test]
    fn a_sidecar_is_never_killed_before_the_main_containers() {
        let mut input = oom(QosClass::Burstable, 0, 8 << 30);
        input.smallest_main_request_bytes = Some(4 << 30);
        assert_eq!(oom_score_adj(&input), 500);
        input.memory_request_bytes = 6 << 30;
        assert_eq!(oom_score_adj(&input), 250);
    }

    #[test]
    fn swap_is_the_containers_share_of_memory() {
        assert_eq!(limited_swap_bytes(1 << 30, 4 << 30, 2 << 30), Some(512 << 20));
        assert_eq!(limited_swap_bytes(5 << 30, 4 << 30, 2 << 30), None);
        assert_eq!(limited_swap_bytes(1, 0, 1), None);
    }

    fn policy() -> LimitPolicy {
        LimitPolicy {
            enforce_cpu_quota: true,
            cpu_period_us: PERIOD_DEFAULT_US,
            pids_max: -1,
            hugepage_sizes: vec![2 << 20, 1 << 30],
            memory_qos: None,
        }
    }

    fn pod(qos: QosClass) -> PodAmounts {
        PodAmounts {
            qos,
            cpu_request_millis: 100,
            cpu_limit_millis: 300,
            memory_request_bytes: 32 << 20,
            memory_limit_bytes: 64 << 20,
            cpu_limited: true,
            memory_limited: true,
            hugepages: BTreeMap::new(),
        }
    }

    #[test]
    fn a_burstable_pod_is_capped_only_where_every_container_is() {
        let capped = pod_limits(&pod(QosClass::Burstable), &policy());
        assert_eq!((capped.cpu_shares, capped.cpu_quota_us), (Some(102), Some(30_000)));
        assert_eq!(capped.memory_limit, Some(64 << 20));
        let half =
            PodAmounts { cpu_limited: false, memory_limited: false, ..pod(QosClass::Burstable) };
        let half = pod_limits(&half, &policy());
        assert_eq!((half.cpu_quota_us, half.cpu_period_us, half.memory_limit), (None, None, None));
    }

    #[test]
    fn a_best_effort_pod_gets_the_least_shares_and_no_huge_pages() {
        let limits = pod_limits(&pod(QosClass::BestEffort), &policy());
        assert_eq!(limits.cpu_shares, Some(2));
        assert_eq!((limits.cpu_quota_us, limits.memory_limit, limits.pids_max), (None, None, None));
        assert_eq!(limits.hugetlb, [(2 << 20, 0), (1 << 30, 0)]);
    }

    #[test]
    fn quota_pids_and_huge_pages_follow_the_nodes_policy() {
        let mut amounts = pod(QosClass::Guaranteed);
        amounts.hugepages.insert(2 << 20, 8 << 20);
        let policy = LimitPolicy { enforce_cpu_quota: false, pids_max: 512, ..policy() };
        let limits = pod_limits(&amounts, &policy);
        assert_eq!(limits.cpu_quota_us, Some(QUOTA_UNLIMITED_US));
        assert_eq!(limits.pids_max, Some(512));
        assert_eq!(limits.hugetlb, [(2 << 20, 8 << 20), (1 << 30, 0)]);
    }

    #[test]
    fn qos_class_cpu_shares_follow_pod_requests() {
        let node = node_limits(1900, 1 << 30, None);
        assert_eq!((node.cpu_shares, node.memory_limit), (Some(1945), Some(1 << 30)));
        let requests = ClassRequests::default();
        let tree = qos_limits(node.clone(), 1500, requests, &policy());
        assert_eq!(tree.node, node);
        assert_eq!(tree.burstable.cpu_shares, Some(1536));
        assert_eq!(tree.besteffort.cpu_shares, Some(2));
        assert_eq!(tree.besteffort.hugetlb, [(2 << 20, 1 << 62), (1 << 30, 1 << 62)]);
        assert_eq!(qos_limits(node, 0, requests, &policy()).burstable.cpu_shares, Some(2));
        assert_eq!(node_limits(0, 0, None), CgroupLimits::default());
    }

    proptest! {
        #[test]
        fn formulas_clamp_any_input(
            millis in any::<i64>(), period in any::<i64>(), shares in any::<u64>(),
            request in any::<i64>(), capacity in any::<u64>(), main in any::<Option<i64>>(),
        ) {
            prop_assert!((SHARES_MIN..=SHARES_MAX).contains(&cpu_shares(millis)));
            prop_assert!((1..=10_000).contains(&cpu_weight(shares)));
            let quota = cpu_quota_us(millis, period);
            prop_assert!(quota == 0 || quota >= QUOTA_MIN_US);
            prop_assert!(quota_to_millis(millis, period) >= 0);
            let input = OomInput {
                smallest_main_request_bytes: main, ..oom(QosClass::Burstable, request, capacity)
            };
            prop_assert!((OOM_BURSTABLE_MIN..=OOM_BURSTABLE_MAX).contains(&oom_score_adj(&input)));
            let _ = limited_swap_bytes(request, millis, period);
        }

        #[test]
        fn larger_cpu_request_never_lowers_shares_or_weight(a in 0i64..500_000, b in 0i64..500_000) {
            let (less, more) = (a.min(b), a.max(b));
            prop_assert!(cpu_shares(less) <= cpu_shares(more));
            prop_assert!(cpu_weight(cpu_shares(less)) <= cpu_weight(cpu_shares(more)));
        }
    }
}
