//! Nodes and pods of every kind that a scheduler treats differently, by a seed.
//!
//! Input: a seed, numbers. Output: objects as JSON. The same seed gives the same objects.

use serde_json::{Value, json};

/// Namespaces, with their labels' value of `team`.
pub const NAMESPACES: [(&str, &str); 3] = [("default", "none"), ("shop", "a"), ("bank", "b")];

/// Random numbers: xorshift, as good as needed.
pub struct Chance(u64);

impl Chance {
    /// From a seed that is not zero.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % end as u64).expect("below a usize")
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A node, and the taints it is to have: the API server gives new ones a taint of its own.
pub fn node(at: usize, chance: &mut Chance) -> (Value, Value) {
    let name = format!("n{at:03}");
    let cpu = chance.of(&["2", "4", "4", "8"]);
    let mem = chance.of(&["4Gi", "8Gi", "8200Mi", "16Gi"]);
    let mut labels = json!({
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": format!("z{}", at % 3),
        "disk": chance.of(&["ssd", "hdd"]),
        "generation": format!("{}", at % 7),
    });
    if at % 19 == 18 {
        // A node outside of every zone.
        labels.as_object_mut().expect("an object").remove("topology.kubernetes.io/zone");
    }
    let taints = match chance.below(12) {
        0 => json!([{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}]),
        1 => json!([{"key": "old", "effect": "PreferNoSchedule"}]),
        2 => json!([{"key": "old", "effect": "PreferNoSchedule"},
            {"key": "slow", "value": "yes", "effect": "PreferNoSchedule"}]),
        _ => json!([]),
    };
    let mut resources = json!({"cpu": cpu, "memory": mem, "pods": chance.of(&["14", "30", "110"]),
        "ephemeral-storage": "50Gi"});
    if chance.one_in(6) {
        resources["example.com/gpu"] = json!("4");
    }
    let mut images = Vec::new();
    for image in 0..3 {
        if chance.one_in(3) {
            let names = [format!("registry.test/app{image}:1")];
            images.push(json!({"names": names, "sizeBytes": 300_000_000 * (image + 1)}));
        }
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": chance.one_in(25)},
        "status": {
            "capacity": resources, "allocatable": resources, "images": images,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    (node, taints)
}

/// A pod of some kind.
pub fn pod(at: usize, chance: &mut Chance) -> Value {
    let (namespace, _) = chance.of(&NAMESPACES);
    let app = format!("app{}", chance.below(8));
    let mut requests = json!({});
    if !chance.one_in(8) {
        requests["cpu"] = json!(chance.of(&["50m", "100m", "250m", "333m", "1"]));
    }
    if !chance.one_in(8) {
        requests["memory"] = json!(chance.of(&["64Mi", "100M", "256Mi", "700Mi", "1Gi"]));
    }
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": if chance.one_in(2) { 0 } else { 30 },
        "containers": [{
            "name": "c", "image": format!("registry.test/app{}:1", chance.below(4)),
            "resources": {"requests": requests},
        }],
    });
    let selector = json!({"matchLabels": {"app": app}});
    match chance.below(16) {
        0 => spec["nodeSelector"] = json!({"disk": chance.of(&["ssd", "hdd"])}),
        1 => spec["affinity"] = json!({"nodeAffinity": node_affinity(chance)}),
        2 => {
            spec["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]);
            spec["nodeSelector"] = json!({"disk": "ssd"});
        }
        3 => {
            spec["topologySpreadConstraints"] = json!([
                {"maxSkew": 1 + chance.below(3), "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector},
                {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector},
            ])
        }
        4 => {
            spec["topologySpreadConstraints"] = json!([
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector},
            ])
        }
        5 => {
            spec["affinity"] = json!({"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}],
            }})
        }
        6 => {
            spec["affinity"] = json!({"podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector}],
            }})
        }
        7 => {
            spec["affinity"] = json!({"podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1 + chance.below(100),
                    "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": format!("app{}", chance.below(8))}},
                        "namespaceSelector": {"matchLabels": {"team": "a"}}}}],
            }, "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1 + chance.below(100),
                    "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone",
                        "labelSelector": selector}}],
            }})
        }
        8 => {
            let port = 8000 + chance.below(4);
            spec["containers"][0]["ports"] = json!([{"containerPort": port, "hostPort": port}]);
        }
        9 => spec["schedulingGates"] = json!([{"name": "test/wait"}]),
        10 => {
            spec["priorityClassName"] = json!("high");
            spec["containers"][0]["resources"]["requests"] = json!({"cpu": "2", "memory": "1Gi"});
            if chance.one_in(3) {
                spec["preemptionPolicy"] = json!("Never");
                spec["priorityClassName"] = json!("high-never");
            }
        }
        11 => match chance.below(4) {
            3 => {
                spec["affinity"] = json!({"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In",
                            "values": [format!("n{:03}", chance.below(60))]}]}]},
                }})
            }
            0 => spec["nodeSelector"] = json!({"disk": "tape"}),
            1 => spec["containers"][0]["resources"]["requests"] = json!({"cpu": "100"}),
            _ => {
                let gpus = json!({"cpu": "10m", "example.com/gpu": "3"});
                let resources = &mut spec["containers"][0]["resources"];
                *resources = json!({"requests": gpus, "limits": {"example.com/gpu": "3"}});
            }
        },
        _ => {}
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{at:05}"), "namespace": namespace, "labels": {"app": app}},
        "spec": spec,
    })
}

fn node_affinity(chance: &mut Chance) -> Value {
    let zone = format!("z{}", chance.below(3));
    json!({
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                {"key": "generation", "operator": "Gt", "values": [format!("{}", chance.below(5))]},
            ]},
            {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "DoesNotExist"}]},
        ]},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1 + chance.below(100), "preference": {"matchExpressions": [
                {"key": "disk", "operator": "In", "values": ["ssd"]}]}},
        ],
    })
}
