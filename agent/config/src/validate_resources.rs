//! Rules about cgroups, reserved resources and eviction; the second half of `validate.rs`.
//!
//! Input and output as there. Quantities and percentages are checked here already, although the
//! kubelet only reads them when its container manager starts: a typing error should be reported
//! together with all others.

use super::FeatureGates;
use super::modes::{CpuManagerPolicy, MemoryManagerPolicy, MemoryReservationPolicy};
use super::types::{KubeletConfiguration, TextMap};
use super::validate::CFS_PERIOD_RANGE;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::quantity::Amount;
use pintle_config::violations::Violations;

/// Resources that can be reserved.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
/// Signals that eviction knows.
// k8s: pkg/kubelet/eviction/api/types.go
const SIGNALS: [&str; 9] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];
/// The fault of a text that is no threshold.
const NOT_A_LEVEL: &str = "it is neither a positive quantity nor a percentage";
/// The kernel's period of CPU limits.
const CFS_PERIOD_DEFAULT: GoDuration = GoDuration::from_millis(100);
/// CPUs a list may name; more than any kernel has.
const CPU_MAX: u32 = 1 << 16;

/// Adds all violations about resources.
pub(crate) fn check(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    cgroups(config, gates, found);
    enforcement(config, found);
    reserved(config, found);
    reserved_memory(config, found);
    memory_qos(config, gates, found);
    eviction(config, found);
}

fn cgroups(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    found.require(
        config.system_cgroups.is_empty() || !config.cgroup_root.is_empty(),
        "systemCgroups",
        &config.system_cgroups,
        "it needs cgroupRoot",
        "set cgroupRoot, for example to /",
    );
    let period = config.cpu_cfs_quota_period;
    found.between("cpuCFSQuotaPeriod", period, CFS_PERIOD_RANGE);
    let allowed = period == CFS_PERIOD_DEFAULT || gates.enabled("CustomCPUCFSQuotaPeriod");
    let problem = "it needs the feature gate CustomCPUCFSQuotaPeriod";
    let remedy = "switch the gate on or use 100ms";
    found.require(allowed, "cpuCFSQuotaPeriod", period, problem, remedy);
}

fn enforcement(config: &KubeletConfiguration, found: &mut Violations) {
    const FIELD: &str = "enforceNodeAllocatable";
    let list = &config.enforce_node_allocatable;
    let has = |word: &str| list.iter().any(|item| item == word);
    for group in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{group}-compressible");
        let both = has(group) && has(&compressible);
        let problem = format!("{group} and {compressible} exclude each other");
        found.require(!both, FIELD, list.join(","), problem, "keep one of them");
    }
    for (index, item) in list.iter().enumerate() {
        let repeated = list[..index].contains(item);
        found.require(!repeated, FIELD, item, "it is given twice", "remove one");
        let cgroup = match item.as_str() {
            "pods" => None,
            "none" => {
                let problem = "none cannot be combined with others";
                found.require(list.len() == 1, FIELD, list.join(","), problem, "remove it");
                continue;
            }
            "system-reserved" | "system-reserved-compressible" => {
                Some(("systemReservedCgroup", &config.system_reserved_cgroup))
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                Some(("kubeReservedCgroup", &config.kube_reserved_cgroup))
            }
            other => {
                let remedy = "use none, pods, system-reserved[-compressible] or \
                              kube-reserved[-compressible]";
                found.require(false, FIELD, other, "no such enforcement exists", remedy);
                continue;
            }
        };
        if let Some((field, cgroup)) = cgroup {
            let problem = format!("it needs {field}");
            found.require(!cgroup.is_empty(), FIELD, item, problem, format!("set {field}"));
        }
        let problem = "it needs cgroupsPerQOS";
        found.require(config.cgroups_per_qos, FIELD, item, problem, "set cgroupsPerQOS to true");
    }
}

fn reserved(config: &KubeletConfiguration, found: &mut Violations) {
    for (field, map) in
        [("systemReserved", &config.system_reserved), ("kubeReserved", &config.kube_reserved)]
    {
        for (resource, text) in map {
            let known = RESERVABLE.contains(&resource.as_str());
            let remedy = format!("use {}", RESERVABLE.join(", "));
            found.require(known, field, resource, "this resource cannot be reserved", remedy);
            let amount = text.parse::<Amount>();
            let good = amount.is_ok_and(|amount| !amount.is_negative());
            let problem = "it is not a positive quantity";
            let shown = format!("{resource}={text}");
            found.require(good, field, shown, problem, "write it like 500m, 2 or 100Mi");
        }
    }
    for (resource, share) in &config.qos_reserved {
        let good = resource == "memory" && percent(share).is_some();
        let shown = format!("{resource}={share}");
        let problem = "only a percentage of memory can be reserved";
        found.require(good, "qosReserved", shown, problem, "write memory=50%");
    }
    reserved_cpus(config, found);
}

fn reserved_cpus(config: &KubeletConfiguration, found: &mut Violations) {
    const FIELD: &str = "reservedSystemCPUs";
    let cpus = config.reserved_system_cpus.as_str();
    if cpus.is_empty() {
        return;
    }
    let problem = "it is not a list of CPUs";
    found.require(is_cpu_list(cpus), FIELD, format!("{cpus:?}"), problem, "write it like 0-1,4");
    for (field, cgroup) in [
        ("systemReservedCgroup", &config.system_reserved_cgroup),
        ("kubeReservedCgroup", &config.kube_reserved_cgroup),
    ] {
        let problem = format!("it cannot be combined with {field}");
        found.require(cgroup.is_empty(), FIELD, cpus, problem, format!("remove {field}"));
    }
}

// k8s: staging/src/k8s.io/utils/cpuset/cpuset.go Parse
fn is_cpu_list(text: &str) -> bool {
    let cpu = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|cpu| digits && *cpu < CPU_MAX)
    };
    text.split(',').all(|part| match part.split_once('-') {
        None => cpu(part).is_some(),
        Some((first, last)) => cpu(first).zip(cpu(last)).is_some_and(|(first, last)| first <= last),
    })
}

// k8s: pkg/kubelet/apis/config/validation/validation_reserved_memory.go
fn reserved_memory(config: &KubeletConfiguration, found: &mut Violations) {
    const FIELD: &str = "reservedMemory";
    let mut seen = Vec::new();
    for reservation in &config.reserved_memory {
        let node = reservation.numa_node;
        for (kind, quantity) in &reservation.limits {
            let shown = format!("{node}:{kind}={quantity}");
            let known = kind == "memory" || kind.starts_with("hugepages-");
            let problem = "only memory and hugepages-SIZE can be reserved";
            found.require(known, FIELD, &shown, problem, "remove it");
            let positive = quantity.amount() > Amount::ZERO;
            found.require(positive, FIELD, &shown, "it reserves nothing", "remove it");
            let repeated = seen.contains(&(node, kind));
            found.require(!repeated, FIELD, &shown, "it is given twice", "remove one");
            seen.push((node, kind));
        }
    }
    let is_static = config.memory_manager_policy == MemoryManagerPolicy::Static;
    let problem = "it needs reservedMemory";
    let field = "memoryManagerPolicy";
    let remedy = "set reservedMemory for each NUMA node";
    let complete = !is_static || !config.reserved_memory.is_empty();
    found.require(complete, field, config.memory_manager_policy, problem, remedy);
    let exclusive = config.cpu_manager_policy == CpuManagerPolicy::Static;
    let has_cpu = |map: &TextMap| {
        map.get("cpu").and_then(|cpu| cpu.parse::<Amount>().ok()).is_some_and(|a| a > Amount::ZERO)
    };
    let reserves = !config.reserved_system_cpus.is_empty()
        || has_cpu(&config.system_reserved)
        || has_cpu(&config.kube_reserved);
    // k8s: pkg/kubelet/cm/cpumanager/cpu_manager.go NewManager
    let problem = "it needs CPUs reserved for the system";
    let remedy = "set reservedSystemCPUs, or cpu in systemReserved or kubeReserved";
    let field = "cpuManagerPolicy";
    found.require(!exclusive || reserves, field, config.cpu_manager_policy, problem, remedy);
}

fn memory_qos(config: &KubeletConfiguration, gates: &FeatureGates, found: &mut Violations) {
    let factor = config.memory_throttling_factor;
    let problem = "it must be above 0 and at most 1";
    let good = factor > 0.0 && factor <= 1.0;
    found.require(good, "memoryThrottlingFactor", factor, problem, "use 0.9");
    let policy = config.memory_reservation_policy;
    let allowed = policy == MemoryReservationPolicy::None || gates.enabled("MemoryQoS");
    let problem = "it needs the feature gate MemoryQoS";
    let remedy = "switch the gate on or use None";
    found.require(allowed, "memoryReservationPolicy", policy, problem, remedy);
}

// k8s: pkg/kubelet/eviction/helpers.go ParseThresholdConfig
fn eviction(config: &KubeletConfiguration, found: &mut Violations) {
    const REMEDY: &str = "write it like 100Mi or 10%";
    for (field, map) in
        [("evictionHard", &config.eviction_hard), ("evictionSoft", &config.eviction_soft)]
    {
        for (signal, text) in map {
            signal_known(field, signal, found);
            let problem = wrong_threshold(signal, text).unwrap_or_default();
            let shown = format!("{signal}: {text}");
            found.require(problem.is_empty(), field, shown, problem, REMEDY);
        }
    }
    for (signal, text) in &config.eviction_minimum_reclaim {
        let field = "evictionMinimumReclaim";
        signal_known(field, signal, found);
        let problem = wrong_reclaim(signal, text).unwrap_or_default();
        let shown = format!("{signal}: {text}");
        found.require(problem.is_empty(), field, shown, problem, REMEDY);
    }
    for (signal, text) in &config.eviction_soft_grace_period {
        signal_known("evictionSoftGracePeriod", signal, found);
        let problem = match text.parse::<GoDuration>() {
            Ok(period) if period.is_negative() => {
                format!("invalid eviction grace period specified: {text}, must be a positive value")
            }
            Ok(_) => String::new(),
            Err(_) => "it is not a duration".to_owned(),
        };
        let shown = format!("{signal}: {text}");
        let remedy = "write it like 1m30s";
        found.require(problem.is_empty(), "evictionSoftGracePeriod", shown, problem, remedy);
    }
    for (signal, text) in &config.eviction_soft {
        let has = config.eviction_soft_grace_period.contains_key(signal);
        let problem =
            format!("grace period must be specified for the soft eviction threshold {signal}");
        let remedy = format!("set evictionSoftGracePeriod for {signal}");
        found.require(has, "evictionSoft", format!("{signal}: {text}"), problem, remedy);
    }
}

/// The kubelet's message about an invalid threshold. 0 % and 100 % turn one off.
// k8s: pkg/kubelet/eviction/helpers.go parseThresholdStatement
fn wrong_threshold(signal: &str, text: &str) -> Option<String> {
    let Some(share) = share(text) else {
        return match text.parse::<Amount>() {
            Ok(amount) if amount > Amount::ZERO => None,
            Ok(_) => Some(format!("eviction threshold {signal} must be positive: {text}")),
            Err(_) => Some(NOT_A_LEVEL.to_owned()),
        };
    };
    match share.parse::<f32>() {
        Ok(share) if share < 0.0 => {
            Some(format!("eviction percentage threshold {signal} must be >= 0%: {text}"))
        }
        Ok(share) if share <= 100.0 => None,
        Ok(_) => Some(format!("eviction percentage threshold {signal} must be <= 100%: {text}")),
        Err(_) => Some(NOT_A_LEVEL.to_owned()),
    }
}

/// The kubelet's message about an invalid minimum reclaim.
// k8s: pkg/kubelet/eviction/helpers.go parseMinimumReclaims
fn wrong_reclaim(signal: &str, text: &str) -> Option<String> {
    match share(text).map(str::parse::<f32>) {
        Some(Ok(share)) if share > 0.0 => None,
        Some(Ok(_)) => {
            Some(format!("eviction percentage minimum reclaim {signal} must be positive: {text}"))
        }
        Some(Err(_)) => Some(NOT_A_LEVEL.to_owned()),
        None => match text.parse::<Amount>() {
            Ok(amount) if amount.is_negative() => {
                Some(format!("negative eviction minimum reclaim specified for {signal}"))
            }
            Ok(_) => None,
            Err(_) => Some(NOT_A_LEVEL.to_owned()),
        },
    }
}

/// The text before the percent signs; `None` without one.
// k8s: pkg/kubelet/eviction/helpers.go parsePercentage
fn share(text: &str) -> Option<&str> {
    text.ends_with('%').then(|| text.trim_end_matches('%'))
}

fn signal_known(field: &str, signal: &str, found: &mut Violations) {
    let known = SIGNALS.contains(&signal);
    let problem = format!("unsupported eviction signal {signal}");
    found.require(known, field, signal, problem, format!("use one of {}", SIGNALS.join(", ")));
}

/// `10%` as 10; `None` unless it is from 0 to 100.
fn percent(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%')?.parse::<f64>().ok()?;
    (0.0..=100.0).contains(&number).then_some(number)
}
