//! The kernel's answer when a pod's cgroup is read, computed from the written values.
//!
//! Input: the limits that the pod's cgroup was given. Output: the values of its files. Upstream
//! reads the files at each sync; the answer follows from the limits and the cgroup version, so the
//! status needs no read: a weight is coarser than shares, memory is counted in whole pages, and
//! cgroup v1 shows "no limit" of memory as a number. Pure.
// k8s: pkg/kubelet/cm/cgroup_v1_manager_linux.go, cgroup_v2_manager_linux.go GetCgroupConfig

use crate::cgroup::formulas::{LimitPolicy, PodAmounts, cpu_weight, pod_limits, weight_to_shares};
use crate::observed::ObservedResources;
use crate::types::PodCgroups;

/// "No limit" of memory as cgroup v1 shows it: the largest count of bytes in whole pages.
const UNLIMITED_V1_BYTES: i64 = i64::MAX / PAGE_BYTES * PAGE_BYTES;
const PAGE_BYTES: i64 = 4096;

impl PodCgroups {
    /// The values in the files of a pod's cgroup; 0 for no limit.
    pub fn read_back(&self, amounts: &PodAmounts) -> ObservedResources {
        let policy = LimitPolicy {
            enforce_cpu_quota: self.enforce_cpu_quota,
            cpu_period_us: self.cpu_period_us,
            pids_max: 0,
            hugepage_sizes: Vec::new(),
            memory_qos: None,
        };
        let limits = pod_limits(amounts, &policy);
        let shares = limits.cpu_shares.unwrap_or_default();
        let (shares, unlimited_bytes) = match self.is_v2 {
            false => (shares, UNLIMITED_V1_BYTES),
            true => (weight_to_shares(cpu_weight(shares)), 0),
        };
        let memory = limits.memory_limit.filter(|bytes| *bytes > 0);
        ObservedResources {
            cpu_shares: i64::try_from(shares).unwrap_or(i64::MAX),
            cpu_quota: limits.cpu_quota_us.filter(|quota| *quota > 0).unwrap_or(0),
            cpu_period: self.cpu_period_us,
            memory_limit_bytes: memory
                .map_or(unlimited_bytes, |bytes| bytes / PAGE_BYTES * PAGE_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::pod_amounts;
    use serde_json::{Value, json};

    fn read_back(is_v2: bool, resources: Value) -> ObservedResources {
        let containers = json!([{"name": "c", "resources": resources}]);
        let pod = serde_json::from_value(json!({"spec": {"containers": containers}}));
        let cgroups = PodCgroups { is_v2, enforce_cpu_quota: true, cpu_period_us: 100_000 };
        cgroups.read_back(&pod_amounts(&pod.expect("a pod")))
    }

    fn values(cpu_shares: i64, cpu_quota: i64, memory_limit_bytes: i64) -> ObservedResources {
        ObservedResources { cpu_shares, cpu_quota, cpu_period: 100_000, memory_limit_bytes }
    }

    #[test]
    fn version_1_shows_no_limit_of_memory_as_a_number() {
        let read = |resources| read_back(false, resources);
        assert_eq!(read(json!({})), values(2, 0, 9_223_372_036_854_771_712));
        let limits = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}});
        assert_eq!(read(limits), values(102, 30_000, 9_223_372_036_854_771_712));
        assert_eq!(read(json!({"limits": {"memory": "10000"}})).memory_limit_bytes, 8192);
    }

    #[test]
    fn cgroup_v2_shares_are_rounded_to_the_precision_of_the_cpu_weight() {
        let read = |resources| read_back(true, resources);
        assert_eq!(read(json!({})), values(2, 0, 0));
        // Weight 4 of 102 shares.
        assert_eq!(read(json!({"requests": {"cpu": "100m"}})), values(80, 0, 0));
    }
}
