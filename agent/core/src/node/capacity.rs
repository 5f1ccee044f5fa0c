//! Capacity and allocatable of the node.
//!
//! Input: settings, the machine, and the Node object. Output: both lists, written as the API server
//! writes quantities. Pure. Resources of other owners stay unchanged, because users advertise them
//! by hand.
// k8s: pkg/kubelet/nodestatus/setters.go MachineInfo

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::machine::MachineFacts;
use super::settings::CapacitySettings;
use pintle_api_types::quantity::Amount;

/// Resources and amounts.
pub type Resources = BTreeMap<String, Quantity>;

const HUGE: &str = "hugepages-";

/// The capacity of the machine.
pub fn capacity(settings: &CapacitySettings, machine: &MachineFacts) -> BTreeMap<String, Amount> {
    let pods = match settings.pods_per_core {
        per @ 1.. => settings.pods_max.min(machine.cpus.saturating_mul(per)),
        _ => settings.pods_max,
    };
    let mut all: BTreeMap<String, Amount> = [
        ("cpu".to_owned(), Amount::from_millis(machine.cpus.saturating_mul(1000))),
        ("memory".to_owned(), Amount::from_bytes(machine.memory_bytes)),
        ("pods".to_owned(), Amount::from_millis(pods.saturating_mul(1000))),
    ]
    .into();
    if let Some(bytes) = machine.storage_bytes.filter(|_| settings.storage_isolation) {
        all.insert("ephemeral-storage".to_owned(), Amount::from_bytes(bytes));
    }
    for (size, count) in &machine.hugepages {
        let name = format!("{HUGE}{}", Amount::from_bytes(*size).canonical());
        all.insert(name, Amount::from_bytes(size.saturating_mul(*count)));
    }
    // Until its plugin registers such a resource has no devices.
    // k8s: pkg/kubelet/cm/devicemanager/manager.go GetCapacity
    for resource in machine.plugin_resources.iter().filter(|name| is_extended(name)) {
        all.insert(resource.clone(), Amount::ZERO);
    }
    all
}

/// The amounts that pods may request: the capacity without reservations, eviction thresholds and
/// huge pages.
pub fn allocatable(
    settings: &CapacitySettings,
    capacity: &BTreeMap<String, Amount>,
) -> BTreeMap<String, Amount> {
    let mut left: BTreeMap<String, Amount> = capacity
        .iter()
        .map(|(resource, amount)| {
            (resource.clone(), positive(amount.minus(kept(settings, resource, *amount))))
        })
        .collect();
    let huge = capacity.iter().filter(|(resource, _)| resource.starts_with(HUGE));
    let huge = huge.fold(Amount::ZERO, |sum, (_, amount)| sum + *amount);
    if let Some(memory) = left.get_mut("memory") {
        *memory = positive(memory.minus(huge));
    }
    left
}

/// Allocatable amounts in plain numbers, for the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    /// CPU in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Ephemeral storage.
    pub storage_bytes: u64,
}

impl Allocatable {
    /// Of a machine.
    pub fn of(settings: &CapacitySettings, machine: &MachineFacts) -> Self {
        let left = allocatable(settings, &capacity(settings, machine));
        let units = |name: &str| left.get(name).map_or(0, |amount| amount.units());
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        Self {
            cpu_millis: unsigned(left.get("cpu").map_or(0, |amount| amount.millis())),
            memory_bytes: unsigned(units("memory")),
            storage_bytes: unsigned(units("ephemeral-storage")),
        }
    }
}

/// The amounts that all pods together may use: as allocatable, but including eviction thresholds.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go getNodeAllocatableInternalAbsolute
pub fn enforced(settings: &CapacitySettings, machine: &MachineFacts) -> Allocatable {
    let settings = CapacitySettings { eviction: BTreeMap::new(), ..settings.clone() };
    let machine = MachineFacts { hugepages: Vec::new(), ..machine.clone() };
    Allocatable::of(&settings, &machine)
}

/// The amount of one resource that is reserved from pods.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go GetNodeAllocatableReservation
fn kept(settings: &CapacitySettings, resource: &str, capacity: Amount) -> Amount {
    let reserved = settings.reserved.get(resource).copied().unwrap_or(Amount::ZERO);
    let eviction = settings.eviction.get(resource);
    let eviction = eviction.map_or(Amount::ZERO, |level| level.of(capacity.units()));
    reserved + eviction
}

/// The reason why the machine cannot hold its reservations, if it cannot: pods would be left with a
/// negative amount, which limits of cgroups would turn into no limit at all.
// k8s: pkg/kubelet/cm/node_container_manager_linux.go validateNodeAllocatable
pub fn over_reserved(settings: &CapacitySettings, machine: &MachineFacts) -> Option<String> {
    let all = capacity(settings, machine).into_iter();
    let over = all.filter_map(|(resource, has)| {
        let kept = kept(settings, &resource, has);
        has.minus(kept).is_negative().then(|| {
            let (kept, has) = (kept.canonical(), has.canonical());
            format!(
                "Resource {resource:?} has a reservation of {kept} but capacity of {has}. Expected \
                 capacity >= reservation."
            )
        })
    });
    let over: Vec<_> = over.collect();
    (!over.is_empty()).then(|| {
        let over = over.join(" ");
        format!(
            "invalid Node Allocatable configuration. {over} Lower systemReserved, kubeReserved or \
             evictionHard"
        )
    })
}

fn positive(amount: Amount) -> Amount {
    if amount.is_negative() { Amount::ZERO } else { amount }
}

/// Puts our amounts over those of the Node object.
pub fn merged(present: Option<Resources>, ours: &BTreeMap<String, Amount>) -> Resources {
    let mut all = present.unwrap_or_default();
    for (resource, amount) in ours {
        all.insert(resource.clone(), Quantity(amount.canonical()));
    }
    all
}

/// True for a resource that is neither Kubernetes' own nor a quota's.
// k8s: pkg/apis/core/v1/helper/helpers.go IsExtendedResourceName
pub fn is_extended(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::threshold::ThresholdLevel;

    fn machine() -> MachineFacts {
        MachineFacts {
            cpus: 2,
            memory_bytes: 24_684_084 * 1024,
            storage_bytes: Some(264_212_084 * 1024),
            hugepages: vec![(2 << 20, 0), (1 << 30, 0)],
            ..MachineFacts::default()
        }
    }

    fn settings() -> CapacitySettings {
        CapacitySettings {
            pods_max: 110,
            storage_isolation: true,
            eviction: [
                ("memory", ThresholdLevel::Amount(Amount::from_bytes(100 << 20))),
                ("ephemeral-storage", ThresholdLevel::Part(0.1)),
            ]
            .into(),
            ..CapacitySettings::default()
        }
    }

    fn shown(resources: &BTreeMap<String, Amount>) -> Vec<String> {
        resources.iter().map(|(name, amount)| format!("{name}={}", amount.canonical())).collect()
    }

    #[test]
    fn thresholds_are_taken_off_in_the_kubelets_precision() {
        let capacity = capacity(&settings(), &machine());
        let want = [
            "cpu=2",
            "ephemeral-storage=264212084Ki",
            "hugepages-1Gi=0",
            "hugepages-2Mi=0",
            "memory=24684084Ki",
            "pods=110",
        ];
        assert_eq!(shown(&capacity), want);
        let left = allocatable(&settings(), &capacity);
        assert_eq!(left["ephemeral-storage"].canonical(), "243497856212");
        assert_eq!(left["memory"].canonical(), "24581684Ki");
    }

    #[test]
    fn allocatable_is_never_negative_after_reservations_and_huge_pages() {
        let mut settings = settings();
        settings.reserved.insert("cpu".to_owned(), Amount::from_millis(100));
        settings.pods_per_core = 10;
        let mut machine = machine();
        machine.hugepages = vec![(1 << 30, 100)];
        let capacity = capacity(&settings, &machine);
        let left = allocatable(&settings, &capacity);
        assert_eq!(left["cpu"].canonical(), "1900m");
        assert_eq!(left["pods"].canonical(), "20");
        assert_eq!(left["hugepages-1Gi"].canonical(), "100Gi");
        assert_eq!(left["memory"].canonical(), "0");
    }

    #[test]
    fn reservation_above_the_nodes_capacity_is_rejected() {
        let mut settings = settings();
        settings.reserved.insert("memory".to_owned(), Amount::from_bytes(23 << 30));
        assert_eq!(over_reserved(&settings, &machine()), None);
        // Together with the amount that eviction keeps free it is too much.
        settings.reserved.insert("memory".to_owned(), Amount::from_bytes(24_684_083 * 1024));
        settings.reserved.insert("cpu".to_owned(), Amount::from_millis(2001));
        settings.reserved.insert("pid".to_owned(), Amount::from_millis(1_000_000));
        let want = "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of \
            2001m but capacity of 2. Expected capacity >= reservation. Resource \"memory\" has a \
            reservation of 24786483Ki but capacity of 24684084Ki. Expected capacity >= reservation. \
            Lower systemReserved, kubeReserved or evictionHard";
        assert_eq!(over_reserved(&settings, &machine()).as_deref(), Some(want));
    }

    #[test]
    fn eviction_thresholds_are_for_pods_to_use() {
        let mut settings = settings();
        settings.reserved.insert("memory".to_owned(), Amount::from_bytes(1 << 30));
        let promised = Allocatable::of(&settings, &machine());
        let enforced = enforced(&settings, &machine());
        assert_eq!(enforced.memory_bytes - promised.memory_bytes, 100 << 20);
        assert_eq!(enforced.memory_bytes, 24_684_084 * 1024 - (1 << 30));
        assert_eq!(enforced.cpu_millis, 2000);
    }

    #[test]
    fn extended_resources_of_the_node_are_preserved() {
        let present: Resources = [
            ("example.com/gpu".to_owned(), Quantity("3".to_owned())),
            ("cpu".to_owned(), Quantity("1".to_owned())),
        ]
        .into();
        let merged = merged(Some(present), &capacity(&settings(), &machine()));
        assert_eq!(merged["example.com/gpu"].0, "3");
        assert_eq!(merged["cpu"].0, "2");
        assert!(is_extended("example.com/gpu") && !is_extended("cpu"));
        assert!(!is_extended("node.kubernetes.io/x") && !is_extended("requests.a.b/c"));
    }

    #[test]
    fn resources_of_plugins_that_cannot_register_count_as_none() {
        let plugin_resources = vec!["example.com/gpu".to_owned()];
        let machine = MachineFacts { plugin_resources, ..machine() };
        let all = capacity(&CapacitySettings::default(), &machine);
        assert!(all["example.com/gpu"].is_zero());
        let left = allocatable(&CapacitySettings::default(), &all);
        assert!(left["example.com/gpu"].is_zero());
        let of_kubelet = [("example.com/gpu".to_owned(), Quantity("3".to_owned()))].into();
        assert_eq!(merged(Some(of_kubelet), &left)["example.com/gpu"].0, "0");
    }
}
