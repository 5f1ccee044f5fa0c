//! The final numbers that a cgroup gets: plain data between the formulas and the executor.
//!
//! Everything is optional: `None` leaves the kernel's value. Units are the kernel's: shares in
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
    /// are ignored.
    pub hugetlb: Vec<(u64, u64)>,
    /// CPUs as the kernel lists them, such as `0-3`; used on v2 only.
    pub cpus: Option<String>,
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
