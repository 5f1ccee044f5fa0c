//! The node's reservations: limits of `kubepods` and of the host's own cgroups. Pure.
//!
//! Input: the configuration and the machine. Output: `CgroupLimits`, with the name of each cgroup of
//! the host that is to get some. Those exist already: nothing here makes them.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go

use super::formulas;
use super::limits::CgroupLimits;
use super::memory_qos;
use super::names::{CgroupDriver, CgroupSetup, CgroupVersion};
use crate::node::capacity;
use crate::node::machine::MachineFacts;
use crate::node::settings::CapacitySettings;
use pintle_agent_config::types::TextMap;
use pintle_agent_config::{Config, KubeletConfiguration};
use pintle_api_types::quantity::Amount;

/// Limits of `kubepods`: the machine's capacity, without the reservation when that is enforced.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go enforceNodeAllocatableCgroups
pub fn of_pods(config: &Config, machine: &MachineFacts, setup: &CgroupSetup) -> CgroupLimits {
    let kubelet = &config.kubelet;
    let mut settings = CapacitySettings::of(config);
    if !(kubelet.cgroups_per_qos && enforces(kubelet, "pods")) {
        settings.reserved.clear();
    }
    let left = capacity::enforced(&settings, machine);
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let kept = settings.reserved.get("pid").map_or(0, |amount| amount.units());
    let pids = machine.tasks_max.map(|max| max.saturating_sub(kept).max(0));
    // All of them: an agent before this one may have seen fewer.
    let hugetlb = machine.hugepages.iter().filter_map(|(size, count)| {
        let (size, count) = (u64::try_from(*size).ok()?, u64::try_from(*count).ok()?);
        Some((size, size.saturating_mul(count)))
    });
    // systemd disables a controller that the unit does not request.
    let by_systemd = setup.driver == CgroupDriver::Systemd && setup.version == CgroupVersion::V2;
    CgroupLimits {
        cpus: Some(machine.cpu_list.clone()).filter(|cpus| by_systemd && !cpus.is_empty()),
        hugetlb: hugetlb.collect(),
        ..formulas::node_limits(signed(left.cpu_millis), signed(left.memory_bytes), pids)
    }
}

/// A cgroup of the host and the limits that it is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// The field that names it.
    pub field: &'static str,
    /// The value of `enforceNodeAllocatable` that enables it.
    pub word: &'static str,
    /// The kubelet's words for it in events.
    pub what: &'static str,
    /// Its name as configured.
    pub cgroup: String,
    /// Its limits.
    pub limits: CgroupLimits,
}

/// The host's cgroups that are to be limited, in the order in which the kubelet does it.
pub fn of_host(config: &Config, machine: &MachineFacts) -> Vec<ReservedCgroup> {
    let kubelet = &config.kubelet;
    let system = (&kubelet.system_reserved, &kubelet.system_reserved_cgroup);
    let kube = (&kubelet.kube_reserved, &kubelet.kube_reserved_cgroup);
    let kinds = [
        ("system-reserved", "System Reserved", "systemReservedCgroup", system, false),
        ("kube-reserved", "Kube Reserved", "kubeReservedCgroup", kube, false),
        (
            "system-reserved-compressible",
            "System Reserved Compressible",
            "systemReservedCgroup",
            system,
            true,
        ),
        (
            "kube-reserved-compressible",
            "Kube Reserved Compressible",
            "kubeReservedCgroup",
            kube,
            true,
        ),
    ];
    let asked = kinds.into_iter().filter(|(word, ..)| enforces(kubelet, word));
    asked
        .map(|(word, what, field, (amounts, cgroup), only_cpu)| ReservedCgroup {
            field,
            word,
            what,
            cgroup: cgroup.clone(),
            limits: protected(config, limits(amounts, only_cpu, machine)),
        })
        .collect()
}

// k8s: pkg/kubelet/cm/node_container_manager_linux.go getCgroupConfigInternal
fn limits(amounts: &TextMap, only_cpu: bool, machine: &MachineFacts) -> CgroupLimits {
    let amount = |name: &str| amounts.get(name).and_then(|text| Amount::parse(text));
    let units = |name: &str| amount(name).filter(|_| !only_cpu).map(|amount| amount.units());
    // Huge page sizes without a reservation get the limit 0, as in the kubelet.
    // k8s: pkg/kubelet/cm/cgroup_manager_linux.go maybeSetHugetlb
    let sizes = machine.hugepages.iter().filter_map(|(size, _)| u64::try_from(*size).ok());
    CgroupLimits {
        cpu_shares: amount("cpu").map(|cpu| formulas::cpu_shares(cpu.millis())),
        memory_limit: units("memory"),
        pids_max: units("pid"),
        hugetlb: sizes.map(|size| (size, 0)).collect(),
        ..CgroupLimits::default()
    }
}

/// The limits with reserved memory protected, behind the gate `MemoryQoS`.
fn protected(config: &Config, mut limits: CgroupLimits) -> CgroupLimits {
    if let Some(bytes) = limits.memory_limit.filter(|_| config.gates.enabled("MemoryQoS")) {
        limits.unified = memory_qos::of_reserved(bytes);
    }
    limits
}

fn enforces(kubelet: &KubeletConfiguration, word: &str) -> bool {
    kubelet.enforce_node_allocatable.iter().any(|item| item == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_config as config;

    const GIB: i64 = 1 << 30;

    fn machine() -> MachineFacts {
        MachineFacts {
            cpus: 4,
            cpu_list: "0-3".to_owned(),
            memory_bytes: 8 * GIB,
            tasks_max: Some(32_768),
            hugepages: vec![(2 << 20, 512), (1 << 30, 0)],
            ..MachineFacts::default()
        }
    }

    fn of(fields: &str) -> Config {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("kubelet.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        std::fs::write(&path, format!("{head}{fields}")).expect("written");
        let args = ["pintle-agent", "--config", path.to_str().expect("UTF-8")];
        match config::parse(args.into_iter().map(Into::into)) {
            Ok(config::Command::Run(config)) => *config,
            other => panic!("{fields} gives {other:?}"),
        }
    }

    const RESERVES: &str = "systemReserved: {cpu: 500m, memory: 1Gi, pid: '1000'}\n\
        kubeReserved: {cpu: 250m, memory: 512Mi}\n\
        systemReservedCgroup: /system.slice\nkubeReservedCgroup: /runtime.slice\n\
        evictionHard: {memory.available: 100Mi}\n";

    #[test]
    fn kubepods_limits_exclude_reservations_only_when_enforced() {
        let cgroupfs = CgroupSetup::default();
        let systemd = CgroupSetup { driver: CgroupDriver::Systemd, ..CgroupSetup::default() };
        // (fields, setup, shares, memory, tasks, CPUs)
        let table = [
            ("", &cgroupfs, 4096, 8 * GIB, 32_768, None),
            ("enforceNodeAllocatable: []\n", &systemd, 4096, 8 * GIB, 32_768, Some("0-3")),
            (RESERVES, &cgroupfs, 3328, 8 * GIB - GIB * 3 / 2, 31_768, None),
        ];
        for (fields, setup, shares, memory, tasks, cpus) in table {
            let limits = of_pods(&of(fields), &machine(), setup);
            let want = CgroupLimits {
                cpu_shares: Some(shares),
                memory_limit: Some(memory),
                pids_max: Some(tasks),
                cpus: cpus.map(str::to_owned),
                hugetlb: vec![(2 << 20, 1 << 30), (1 << 30, 0)],
                ..CgroupLimits::default()
            };
            assert_eq!(limits, want, "{fields}");
        }
        let unenforced = format!("{RESERVES}enforceNodeAllocatable: [none]\n");
        let limits = of_pods(&of(&unenforced), &machine(), &cgroupfs);
        assert_eq!((limits.cpu_shares, limits.memory_limit), (Some(4096), Some(8 * GIB)));
    }

    #[test]
    fn reserved_cgroups_get_their_reservation_or_only_its_cpu_if_compressible() {
        let all = "enforceNodeAllocatable: [pods, kube-reserved, system-reserved]\n";
        let found = of_host(&of(&format!("{RESERVES}{all}")), &machine());
        let names: Vec<_> = found.iter().map(|r| (r.word, r.cgroup.as_str())).collect();
        assert_eq!(
            names,
            [("system-reserved", "/system.slice"), ("kube-reserved", "/runtime.slice")]
        );
        let system = CgroupLimits {
            cpu_shares: Some(512),
            memory_limit: Some(GIB),
            pids_max: Some(1000),
            hugetlb: vec![(2 << 20, 0), (1 << 30, 0)],
            ..CgroupLimits::default()
        };
        assert_eq!(found[0].limits, system);
        assert_eq!((found[1].limits.cpu_shares, found[1].limits.pids_max), (Some(256), None));
        let cpu = "enforceNodeAllocatable: [pods, system-reserved-compressible]\n";
        let found = of_host(&of(&format!("{RESERVES}{cpu}")), &machine());
        assert_eq!(found.len(), 1);
        let only_cpu = CgroupLimits { memory_limit: None, pids_max: None, ..system };
        assert_eq!((&found[0].limits, found[0].what), (&only_cpu, "System Reserved Compressible"));
        assert_eq!(of_host(&of(RESERVES), &machine()), []);
    }
}
