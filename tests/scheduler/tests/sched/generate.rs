//! Generated clusters and pods: small alphabets, so that constraints meet often.
//!
//! Input: a seed. Output: API objects. Every field that a filter or score reads occurs, absent keys
//! and empty label values included.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::*;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, Time,
};

use crate::reference::ClusterObjects;

/// A deterministic source of choices (splitmix64).
pub(crate) struct ChoiceDice(u64);

impl ChoiceDice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick(&mut self, list: &[&str]) -> String {
        list[self.below(list.len())].to_owned()
    }

    fn sometimes(&mut self, percent: usize, list: &[&str]) -> Option<String> {
        self.chance(percent).then(|| self.pick(list))
    }
}

/// Namespaces, the last of which does not exist.
pub(crate) const NAMESPACES: [&str; 4] = ["a", "b", "c", "unlisted"];
/// Values of the label that most selectors ask for.
pub(crate) const APPS: [&str; 4] = ["web", "db", "cache", "batch"];
const KEYS: [&str; 4] = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack", "disk"];
const CPUS: [&str; 6] = ["0", "100m", "250m", "1", "1500m", "4"];
const MEMS: [&str; 6] = ["0", "64Mi", "100Mi", "1Gi", "3Gi", "777777777"];
const IMAGES: [&str; 6] = ["pause:3", "reg:5000/app", "big:v1", "huge:v2", "app:latest", "none"];

/// A cluster of up to `nodes_max` nodes.
pub(crate) fn world(dice: &mut ChoiceDice, nodes_max: usize) -> ClusterObjects {
    let mut world = ClusterObjects::default();
    for name in &NAMESPACES[..3] {
        let mut labels = BTreeMap::new();
        if dice.chance(60) {
            labels.insert("team".to_owned(), dice.pick(&["x", "y"]));
        }
        world
            .namespaces
            .push(Namespace { metadata: meta(name, None, Some(labels)), ..Namespace::default() });
    }
    for at in 0..dice.below(4) {
        let selector = dice.chance(85).then(|| BTreeMap::from([("app".into(), dice.pick(&APPS))]));
        let space = dice.pick(&NAMESPACES);
        world.services.push(Service {
            metadata: meta(&format!("s{at}"), Some(&space), None),
            spec: Some(ServiceSpec { selector, ..ServiceSpec::default() }),
            ..Service::default()
        });
    }
    let nodes = 1 + dice.below(nodes_max);
    world.nodes = (0..nodes).map(|at| node(dice, at)).collect();
    for at in 0..dice.below(nodes * 3 + 1) {
        let mut bound = pod(dice, &format!("bound-{at}"));
        // Now and then on a node that is gone.
        let gone = usize::from(dice.chance(5));
        let name = format!("n{}", dice.below(nodes + gone));
        bound.spec.as_mut().expect("spec").node_name = Some(name);
        if dice.chance(8) {
            let time = "2026-01-01T00:00:00Z".parse().expect("time");
            bound.metadata.deletion_timestamp = Some(Time(time));
        }
        world.pods.push(bound);
    }
    world
}

fn meta(name: &str, space: Option<&str>, labels: Option<BTreeMap<String, String>>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: space.map(str::to_owned),
        labels,
        ..ObjectMeta::default()
    }
}

/// A node; number `at` of its cluster.
pub(crate) fn node(dice: &mut ChoiceDice, at: usize) -> Node {
    let mut labels = BTreeMap::new();
    if dice.chance(95) {
        labels.insert(KEYS[0].to_owned(), format!("n{at}"));
    }
    for (key, values) in
        [(KEYS[1], ["z1", "z2", "z3"]), (KEYS[2], ["r1", "r2", ""]), (KEYS[3], ["7", "20", "ssd"])]
    {
        if dice.chance(85) {
            labels.insert(key.to_owned(), dice.pick(&values));
        }
    }
    let mut allocatable = BTreeMap::new();
    let mut put = |name: &str, value: String| allocatable.insert(name.to_owned(), Quantity(value));
    put("cpu", dice.pick(&["2", "4", "7500m", "16"]));
    put("memory", dice.pick(&["4Gi", "8Gi", "12345678901", "32000000Ki"]));
    put("pods", dice.pick(&["3", "8", "110"]));
    if dice.chance(50) {
        put("ephemeral-storage", "20Gi".to_owned());
    }
    if dice.chance(30) {
        put("example.com/gpu", dice.pick(&["0", "1", "4"]));
    }
    if dice.chance(3) {
        put("cpu", "0".to_owned());
    }
    let mut taints = Vec::new();
    for (key, effect) in [
        ("gpu", "NoSchedule"),
        ("old", "NoExecute"),
        ("spot", "PreferNoSchedule"),
        ("slow", "PreferNoSchedule"),
    ] {
        if dice.chance(15) {
            let value = dice.sometimes(50, &["yes", "no"]);
            taints.push(Taint { key: key.into(), value, effect: effect.into(), time_added: None });
        }
    }
    let mut images = Vec::new();
    let sized = [
        ("pause:3", 700_000),
        ("reg:5000/app:latest", 180 << 20),
        ("big:v1", 900 << 20),
        ("huge:v2", 4 << 30),
        ("app:latest", 60 << 20),
    ];
    for (name, size) in sized {
        if dice.chance(40) {
            let names = Some(vec![name.to_owned()]);
            images.push(ContainerImage { names, size_bytes: Some(size) });
        }
    }
    Node {
        metadata: meta(&format!("n{at}"), None, Some(labels)),
        spec: Some(NodeSpec {
            taints: Some(taints),
            unschedulable: dice.chance(6).then_some(true),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            allocatable: Some(allocatable),
            images: Some(images),
            ..NodeStatus::default()
        }),
    }
}

/// A pod without a node.
pub(crate) fn pod(dice: &mut ChoiceDice, name: &str) -> Pod {
    let mut labels = BTreeMap::from([("app".to_owned(), dice.pick(&APPS))]);
    if dice.chance(50) {
        labels.insert("tier".to_owned(), dice.pick(&["front", "back"]));
    }
    let containers = (0..1 + dice.below(2)).map(|_| container(dice)).collect();
    let init = dice.chance(15).then(|| vec![container(dice)]);
    let spec = PodSpec {
        containers,
        init_containers: init,
        priority: Some([0, 0, 10, 1000][dice.below(4)]),
        tolerations: dice
            .chance(50)
            .then(|| (0..1 + dice.below(2)).map(|_| toleration(dice)).collect()),
        node_selector: dice.chance(12).then(|| {
            BTreeMap::from([(KEYS[1 + dice.below(3)].to_owned(), dice.pick(&["z1", "r1", "ssd"]))])
        }),
        affinity: dice.chance(55).then(|| affinity(dice)),
        topology_spread_constraints: dice
            .chance(35)
            .then(|| (0..1 + dice.below(2)).map(|_| spread(dice)).collect()),
        ..PodSpec::default()
    };
    let mut metadata = meta(name, Some(&dice.pick(&NAMESPACES)), Some(labels));
    metadata.uid = Some(format!("uid-{name}"));
    Pod { metadata, spec: Some(spec), status: None }
}

fn container(dice: &mut ChoiceDice) -> Container {
    let mut requests = BTreeMap::new();
    for (name, percent, values) in [
        ("cpu", 70, &CPUS[..]),
        ("memory", 70, &MEMS[..]),
        ("ephemeral-storage", 10, &["1Gi", "30Gi"][..]),
        ("example.com/gpu", 8, &["1", "2"][..]),
    ] {
        if dice.chance(percent) {
            requests.insert(name.to_owned(), Quantity(dice.pick(values)));
        }
    }
    let port = dice.chance(10).then(|| ContainerPort {
        container_port: 80,
        host_port: Some([80, 8080][dice.below(2)]),
        host_ip: dice.sometimes(40, &["10.0.0.1", "10.0.0.2", "0.0.0.0"]),
        protocol: dice.sometimes(60, &["TCP", "UDP"]),
        ..ContainerPort::default()
    });
    Container {
        name: "c".into(),
        image: Some(dice.pick(&IMAGES)),
        ports: port.map(|p| vec![p]),
        resources: Some(ResourceRequirements { requests: Some(requests), ..Default::default() }),
        ..Container::default()
    }
}

fn toleration(dice: &mut ChoiceDice) -> Toleration {
    Toleration {
        key: dice
            .sometimes(80, &["gpu", "old", "spot", "slow", "node.kubernetes.io/unschedulable"]),
        operator: dice.sometimes(80, &["Exists", "Equal", "Exists", "Lt"]),
        value: dice.sometimes(40, &["yes", "no"]),
        effect: dice.sometimes(50, &["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        toleration_seconds: None,
    }
}

fn selector(dice: &mut ChoiceDice) -> Option<LabelSelector> {
    if dice.chance(4) {
        return None;
    }
    let mut found = LabelSelector::default();
    if dice.chance(75) {
        found.match_labels = Some(BTreeMap::from([("app".to_owned(), dice.pick(&APPS))]));
    }
    if dice.chance(30) {
        let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
        let values = operator.ends_with("In").then(|| vec![dice.pick(&["front", "back"])]);
        found.match_expressions =
            Some(vec![LabelSelectorRequirement { key: "tier".into(), operator, values }]);
    }
    Some(found)
}

fn pod_term(dice: &mut ChoiceDice) -> PodAffinityTerm {
    let namespace_selector = dice.chance(20).then(|| {
        let expression = |operator: String| LabelSelectorRequirement {
            key: "team".into(),
            values: operator.ends_with("In").then(|| vec!["x".to_owned()]),
            operator,
        };
        let all = dice.chance(25);
        let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
        LabelSelector {
            match_expressions: (!all).then(|| vec![expression(operator)]),
            match_labels: None,
        }
    });
    PodAffinityTerm {
        label_selector: selector(dice),
        namespace_selector,
        namespaces: dice.chance(25).then(|| vec![dice.pick(&NAMESPACES)]),
        topology_key: dice.pick(&KEYS[..3]),
        ..PodAffinityTerm::default()
    }
}

fn weighted(dice: &mut ChoiceDice) -> WeightedPodAffinityTerm {
    WeightedPodAffinityTerm {
        weight: 1 + dice.below(100) as i32,
        pod_affinity_term: pod_term(dice),
    }
}

fn node_term(dice: &mut ChoiceDice) -> NodeSelectorTerm {
    let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    let values = match operator.as_str() {
        "In" | "NotIn" => Some(vec![dice.pick(&["z1", "z2", "r1", "ssd"]), "20".to_owned()]),
        "Gt" | "Lt" => Some(vec![dice.pick(&["7", "10", "20"])]),
        _ => None,
    };
    let key = dice.pick(&KEYS[1..]);
    NodeSelectorTerm {
        match_expressions: dice
            .chance(95)
            .then(|| vec![NodeSelectorRequirement { key, operator, values }]),
        match_fields: None,
    }
}

fn affinity(dice: &mut ChoiceDice) -> Affinity {
    let mut found = Affinity::default();
    if dice.chance(35) {
        found.node_affinity = Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: dice.chance(50).then(|| {
                NodeSelector {
                    node_selector_terms: (0..1 + dice.below(2)).map(|_| node_term(dice)).collect(),
                }
            }),
            preferred_during_scheduling_ignored_during_execution: dice.chance(60).then(|| {
                let weight = 1 + dice.below(100) as i32;
                vec![PreferredSchedulingTerm { weight, preference: node_term(dice) }]
            }),
        });
    }
    if dice.chance(45) {
        found.pod_affinity = Some(PodAffinity {
            required_during_scheduling_ignored_during_execution: dice
                .chance(40)
                .then(|| (0..1 + dice.below(2)).map(|_| pod_term(dice)).collect()),
            preferred_during_scheduling_ignored_during_execution: dice
                .chance(60)
                .then(|| vec![weighted(dice)]),
        });
    }
    if dice.chance(45) {
        found.pod_anti_affinity = Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: dice
                .chance(35)
                .then(|| vec![pod_term(dice)]),
            preferred_during_scheduling_ignored_during_execution: dice
                .chance(60)
                .then(|| vec![weighted(dice)]),
        });
    }
    found
}

fn spread(dice: &mut ChoiceDice) -> TopologySpreadConstraint {
    let hard = dice.chance(50);
    TopologySpreadConstraint {
        label_selector: selector(dice),
        max_skew: 1 + dice.below(3) as i32,
        min_domains: (hard && dice.chance(30)).then(|| 1 + dice.below(4) as i32),
        node_affinity_policy: dice.sometimes(30, &["Ignore", "Honor"]),
        node_taints_policy: dice.sometimes(30, &["Ignore", "Honor"]),
        topology_key: dice.pick(&KEYS[..3]),
        when_unsatisfiable: if hard { "DoNotSchedule" } else { "ScheduleAnyway" }.to_owned(),
        match_label_keys: None,
    }
}
