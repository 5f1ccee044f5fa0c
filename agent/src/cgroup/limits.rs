//! The final numbers that a cgroup gets: plain data between the formulas and the executor.
//!
//! Everything is optional: `None` leaves what the kernel has. Units are the kernel's: shares in
//! cgroup v1 terms also on v2 (the executor converts), quota and period in microseconds, memory in
//! bytes. Nothing here reads a pod.

/// Limits of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU shares, 2..=262144.
    pub cpu_shares: Option<u64>,
    /// CFS quota in microseconds; -1 for none.
    pub cpu_quota_us: Option<i64>,
    /// CFS period in microseconds.
    pub cpu_period_us: Option<u64>,
    /// Memory limit in bytes; -1 for none.
    pub memory_limit: Option<i64>,
    /// Process limit; 0 and less for none.
    pub pids_max: Option<i64>,
    /// Huge page limits: page size in bytes and limit in bytes. Sizes that the node does not have
    /// are passed over.
    pub hugetlb: Vec<(u64, u64)>,
    /// Further files of cgroup v2, such as `memory.high`; not used on v1.
    pub unified: Vec<(String, String)>,
}

/// Limits of the tree above the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosLimits {
    /// `kubepods`: everything that pods may use together.
    pub node: CgroupLimits,
    /// `kubepods/burstable`.
    pub burstable: CgroupLimits,
    /// `kubepods/besteffort`.
    pub besteffort: CgroupLimits,
}

/// Weight on cgroup v2 of shares on v1.
// k8s: pkg/kubelet/cm/cgroup_manager_linux.go getCPUWeight
pub(super) fn weight_of_shares(shares: u64) -> u64 {
    const SHARES_MIN: u64 = 2;
    const SHARES_MAX: u64 = 262_144;
    let shares = shares.clamp(SHARES_MIN, SHARES_MAX);
    1 + (shares - SHARES_MIN) * 9_999 / (SHARES_MAX - SHARES_MIN)
}

/// A huge page size as the kernel writes it in file names: `2MB`, `1GB`, `64KB`.
pub(super) fn hugepage_name(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const UNITS: [(u64, &str); 3] = [(KIB * KIB * KIB, "GB"), (KIB * KIB, "MB"), (KIB, "KB")];
    let unit = UNITS.into_iter().find(|(size, _)| bytes >= *size && bytes % size == 0);
    unit.map_or_else(|| format!("{bytes}B"), |(size, name)| format!("{}{name}", bytes / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_map_to_weights_as_the_kubelet_maps_them() {
        let table = [(0, 1), (2, 1), (102, 4), (1024, 39), (262_144, 10_000), (u64::MAX, 10_000)];
        for (shares, weight) in table {
            assert_eq!(weight_of_shares(shares), weight, "{shares}");
        }
    }

    #[test]
    fn huge_page_sizes_are_named_as_in_the_kernels_files() {
        let table = [(2 << 20, "2MB"), (1 << 30, "1GB"), (64 << 10, "64KB"), (32 << 20, "32MB")];
        for (bytes, name) in table {
            assert_eq!(hugepage_name(bytes), name);
        }
    }
}
