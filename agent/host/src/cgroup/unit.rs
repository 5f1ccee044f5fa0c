//! A cgroup as a slice of systemd: its name, its parent, and limits as properties. Pure.
//!
//! Input: paths below the hierarchy's mount point, such as
//! `kubepods.slice/kubepods-burstable.slice`, and `CgroupLimits`. Output: what systemd's D-Bus
//! interface takes. Names, values and roundings are those of the kubelet, because systemd may write
//! the kernel's files again at any time, so its values must equal the written ones.
//! Huge pages and files that systemd does not know have no property and are only written.
// k8s: vendor/github.com/opencontainers/cgroups/systemd

use zbus::zvariant::Value;

use super::formulas::{PERIOD_DEFAULT_US, cpu_weight};
use super::limits::CgroupLimits;

/// One property: systemd's name and a value of the type that it has there.
pub type Property = (&'static str, Value<'static>);

/// Slice of the top of the tree.
const ROOT: &str = "-.slice";
/// systemd keeps quotas as whole percents of a CPU: microseconds of a second.
const QUOTA_STEP_US: i128 = 10_000;
const SECOND_US: i128 = 1_000_000;
/// Releases from which on systemd has these properties.
const HAS_QUOTA_PERIOD: u32 = 242;
const HAS_ALLOWED_CPUS: u32 = 244;

/// The unit of a cgroup: the last component of its path.
pub fn unit_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The slice above a cgroup.
pub fn parent_of(path: &str) -> &str {
    match path.trim_start_matches('/').rsplit_once('/') {
        Some((above, _)) => unit_of(above),
        None => ROOT,
    }
}

/// Properties with which a slice is created; its limits are set afterwards, as on every change.
// k8s: vendor/github.com/opencontainers/cgroups/systemd/v2.go Apply
pub fn creation(path: &str, is_v2: bool) -> Vec<Property> {
    let io = if is_v2 { "IOAccounting" } else { "BlockIOAccounting" };
    vec![
        ("Description", Value::from(format!("libcontainer container {}", unit_of(path)))),
        ("Wants", Value::from(vec![parent_of(path).to_owned()])),
        ("MemoryAccounting", Value::from(true)),
        ("CPUAccounting", Value::from(true)),
        (io, Value::from(true)),
        ("TasksAccounting", Value::from(true)),
        ("DefaultDependencies", Value::from(false)),
    ]
}

/// Limits as properties; `version` is systemd's release.
// k8s: vendor/github.com/opencontainers/cgroups/systemd/v2.go genV2ResourcesProperties
// k8s: vendor/github.com/opencontainers/cgroups/systemd/v1.go genV1ResourcesProperties
pub fn properties(limits: &CgroupLimits, is_v2: bool, version: u32) -> Vec<Property> {
    let mut all = Vec::new();
    if let Some(bytes) = limits.memory_limit {
        let name = if is_v2 { "MemoryMax" } else { "MemoryLimit" };
        all.push((name, Value::from(infinite(bytes))));
        if is_v2 && bytes == -1 {
            all.push(("MemorySwapMax", Value::from(u64::MAX)));
        }
    }
    match limits.cpu_shares {
        Some(shares) if is_v2 => all.push(("CPUWeight", Value::from(cpu_weight(shares)))),
        Some(shares) => all.push(("CPUShares", Value::from(shares))),
        None => {}
    }
    quota(&mut all, limits, version);
    if let Some(max) = limits.pids_max {
        all.push(("TasksMax", Value::from(if max > 0 { infinite(max) } else { u64::MAX })));
    }
    if let Some(cpus) = limits.cpus.as_deref().filter(|_| version >= HAS_ALLOWED_CPUS)
        && let Some(bits) = cpu_bits(cpus)
    {
        all.push(("AllowedCPUs", Value::from(bits)));
    }
    for (file, text) in limits.unified.iter().filter(|_| is_v2) {
        let name = match file.as_str() {
            "memory.min" => "MemoryMin",
            "memory.low" => "MemoryLow",
            "memory.high" => "MemoryHigh",
            "memory.max" => "MemoryMax",
            "memory.swap.max" => "MemorySwapMax",
            _ => continue,
        };
        all.push((name, Value::from(text.trim().parse().unwrap_or(u64::MAX))));
    }
    all
}

/// Below zero means "no limit", which is the largest number there.
fn infinite(value: i64) -> u64 {
    if value < 0 { u64::MAX } else { value.unsigned_abs() }
}

// k8s: vendor/github.com/opencontainers/cgroups/systemd/common.go addCPUQuota
fn quota(all: &mut Vec<Property>, limits: &CgroupLimits, version: u32) {
    let period = limits.cpu_period_us.unwrap_or(0);
    let quota = limits.cpu_quota_us.unwrap_or(0);
    if period != 0 && version >= HAS_QUOTA_PERIOD {
        all.push(("CPUQuotaPeriodUSec", Value::from(period)));
    }
    if quota != 0 || period != 0 {
        let value = match quota {
            1.. => u64::try_from(per_second(quota, period)).unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        all.push(("CPUQuotaPerSecUSec", Value::from(value)));
    }
}

/// Microseconds of CPU in each second, rounded up to a whole percent.
fn per_second(quota_us: i64, period_us: u64) -> i128 {
    let period = if period_us == 0 { PERIOD_DEFAULT_US.into() } else { i128::from(period_us) };
    let exact = i128::from(quota_us) * SECOND_US / period;
    (exact + QUOTA_STEP_US - 1) / QUOTA_STEP_US * QUOTA_STEP_US
}

/// The quota as systemd rounds it; the same value is written to the kernel's file.
pub fn rounded_quota(quota_us: i64, period_us: u64) -> i64 {
    if quota_us <= 0 {
        return quota_us;
    }
    let period = if period_us == 0 { PERIOD_DEFAULT_US.into() } else { i128::from(period_us) };
    let exact = i128::from(quota_us) * SECOND_US / period;
    match exact % QUOTA_STEP_US {
        0 => quota_us,
        _ => {
            i64::try_from(per_second(quota_us, period_us) * period / SECOND_US).unwrap_or(i64::MAX)
        }
    }
}

/// `0,2-3` as bits, CPU 0 in the lowest bit of the first byte; `None` for none or nonsense.
// k8s: vendor/github.com/opencontainers/cgroups/systemd/cpuset.go RangeToBits
fn cpu_bits(list: &str) -> Option<Vec<u8>> {
    /// More CPUs than any kernel is built for.
    const CPUS_MAX: usize = 16_384;
    let mut bits = Vec::new();
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        bits.resize(bits.len().max(last / 8 + 1), 0);
        for cpu in first..=last {
            bits[cpu / 8] |= 1 << (cpu % 8);
        }
    }
    (!bits.is_empty()).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice";

    fn find<'a>(all: &'a [Property], name: &str) -> Option<&'a Value<'static>> {
        all.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    #[test]
    fn slice_unit_is_named_after_its_path_and_wants_its_parent_slice() {
        assert_eq!(unit_of(POD), "kubepods-burstable-podu_1.slice");
        assert_eq!(parent_of(POD), "kubepods-burstable.slice");
        assert_eq!(parent_of("/kubepods.slice"), "-.slice");
        assert_eq!(parent_of("kubepods.slice"), "-.slice");
        let all = creation(POD, true);
        let above = Value::from(vec!["kubepods-burstable.slice".to_owned()]);
        assert_eq!(find(&all, "Wants"), Some(&above));
        assert_eq!(find(&all, "DefaultDependencies"), Some(&Value::from(false)));
        assert!(find(&all, "IOAccounting").is_some() && find(&all, "BlockIOAccounting").is_none());
        assert!(find(&creation(POD, false), "BlockIOAccounting").is_some());
    }

    #[test]
    fn limits_become_properties_of_either_version() {
        let limits = CgroupLimits {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(25_500),
            cpu_period_us: Some(100_000),
            memory_limit: Some(64 << 20),
            pids_max: Some(100),
            cpus: Some("0-1,9".to_owned()),
            unified: vec![
                ("memory.min".to_owned(), "4096".to_owned()),
                ("memory.high".to_owned(), "max".to_owned()),
                ("io.weight".to_owned(), "7".to_owned()),
            ],
            ..CgroupLimits::default()
        };
        let v2 = [
            ("MemoryMax", Value::from(64u64 << 20)),
            ("CPUWeight", Value::from(39u64)),
            ("CPUQuotaPeriodUSec", Value::from(100_000u64)),
            ("CPUQuotaPerSecUSec", Value::from(260_000u64)),
            ("TasksMax", Value::from(100u64)),
            ("AllowedCPUs", Value::from(vec![3u8, 2])),
            ("MemoryMin", Value::from(4096u64)),
            ("MemoryHigh", Value::from(u64::MAX)),
        ];
        assert_eq!(properties(&limits, true, 252), v2);
        let v1 = [
            ("MemoryLimit", Value::from(64u64 << 20)),
            ("CPUShares", Value::from(1024u64)),
            ("CPUQuotaPerSecUSec", Value::from(260_000u64)),
            ("TasksMax", Value::from(100u64)),
        ];
        assert_eq!(properties(&limits, false, 239), v1, "an old systemd lacks two of them");
        assert_eq!(properties(&CgroupLimits::default(), true, 252), []);
    }

    #[test]
    fn no_limit_is_the_largest_number() {
        let limits = CgroupLimits {
            cpu_quota_us: Some(-1),
            cpu_period_us: Some(100_000),
            memory_limit: Some(-1),
            pids_max: Some(-1),
            ..CgroupLimits::default()
        };
        let all = properties(&limits, true, 252);
        for name in ["MemoryMax", "MemorySwapMax", "CPUQuotaPerSecUSec", "TasksMax"] {
            assert_eq!(find(&all, name), Some(&Value::from(u64::MAX)), "{name}");
        }
    }

    #[test]
    fn quotas_are_rounded_up_to_whole_percents() {
        // (quota, period, what the kernel's file gets)
        let table = [
            (25_000, 100_000, 25_000),
            (25_500, 100_000, 26_000),
            (1000, 100_000, 1000),
            (1050, 100_000, 2000),
            (1000, 5000, 1000),
            (1001, 5000, 1050),
            (25_500, 0, 26_000),
            (-1, 100_000, -1),
            (0, 100_000, 0),
            (i64::MAX, 1, i64::MAX),
        ];
        for (quota, period, rounded) in table {
            assert_eq!(rounded_quota(quota, period), rounded, "{quota} of {period}");
            assert_eq!(rounded_quota(rounded, period), rounded, "rounded once is rounded");
        }
    }

    #[test]
    fn cpu_list_becomes_a_bit_mask_and_an_invalid_list_is_none() {
        for (list, bits) in [
            ("0", Some(vec![1])),
            ("0-3", Some(vec![15])),
            ("8, 1,", Some(vec![2, 1])),
            ("", None),
            ("3-1", None),
            ("0-99999999", None),
            ("x", None),
        ] {
            assert_eq!(cpu_bits(list), bits, "{list:?}");
        }
    }
}
