//! Generated configurations of the scheduler: every argument of the plugins that filter and score,
//! and filters in any order.
//!
//! Input: dice. Output: a KubeSchedulerConfiguration that upstream accepts, often the default one.

use serde_json::{Map, Value, json};

use crate::generate::ChoiceDice;

/// Plugins that score, with any weight.
const SCORING: [&str; 7] = [
    "TaintToleration",
    "NodeAffinity",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];
/// Plugins that may be left out.
const OPTIONAL: [&str; 9] = [
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "ImageLocality",
];
/// Plugins that filter.
const FILTERING: [&str; 14] = [
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "NodeDeclaredFeatures",
];
/// Default plugins that do not filter.
const OTHER: [&str; 6] = [
    "SchedulingGates",
    "PrioritySort",
    "DefaultPreemption",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
];
const RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "example.com/gpu"];

/// A configuration with one profile.
pub fn config(dice: &mut ChoiceDice) -> Value {
    let mut profile = Map::from_iter([("schedulerName".to_owned(), json!("default-scheduler"))]);
    if dice.chance(75) {
        profile.insert("plugins".to_owned(), plugins(dice));
        profile.insert("pluginConfig".to_owned(), arguments(dice));
    }
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    })
}

fn plugins(dice: &mut ChoiceDice) -> Value {
    let mut points = Map::new();
    let mut without = "";
    if dice.chance(30) {
        let name = OPTIONAL[dice.below(OPTIONAL.len())];
        without = name;
        points.insert("multiPoint".to_owned(), json!({"disabled": [{"name": name}]}));
    }
    let name = SCORING[dice.below(SCORING.len())];
    // Upstream fails on a plugin that scores but is disabled at PreScore.
    if dice.chance(50) && name != without {
        let weight = 1 + dice.below(9);
        let enabled = json!([{"name": name, "weight": weight}]);
        points
            .insert("score".to_owned(), json!({"disabled": [{"name": name}], "enabled": enabled}));
    }
    if dice.chance(15) {
        points.insert("filter".to_owned(), json!({"disabled": [{"name": "TaintToleration"}]}));
    }
    if dice.chance(40) {
        reorder(dice, &mut points, without);
    }
    Value::Object(points)
}

/// Puts filters in another order than the default, by each way that the configuration has.
fn reorder(dice: &mut ChoiceDice, points: &mut Map<String, Value>, without: &str) {
    let there = |name: &&&str| **name != without;
    let filtering: Vec<&str> = FILTERING.iter().filter(there).copied().collect();
    let named = |names: Vec<&str>| -> Value {
        names.into_iter().map(|name| json!({"name": name})).collect()
    };
    match dice.below(4) {
        // These first, or last where they are off everywhere else.
        0 => {
            let some = dice.below(filtering.len()) + 1;
            let names = shuffled(dice, &filtering).into_iter().take(some).collect();
            let point = points.entry("filter").or_insert_with(|| json!({}));
            point["enabled"] = named(names);
        }
        1 => {
            let names = named(shuffled(dice, &filtering));
            let point = json!({"disabled": [{"name": "*"}], "enabled": names});
            points.insert("filter".to_owned(), point);
        }
        2 => {
            let all: Vec<&str> =
                filtering.iter().chain(OTHER.iter().filter(there)).copied().collect();
            let names = named(shuffled(dice, &all));
            let point = json!({"disabled": [{"name": "*"}], "enabled": names});
            points.insert("multiPoint".to_owned(), point);
        }
        _ => {
            let last = filtering[dice.below(filtering.len())];
            let off: Vec<&str> =
                [last, without].into_iter().filter(|name| !name.is_empty()).collect();
            let point = json!({"disabled": named(off), "enabled": [{"name": last}]});
            points.insert("multiPoint".to_owned(), point);
        }
    }
}

pub(crate) fn shuffled<'a>(dice: &mut ChoiceDice, names: &[&'a str]) -> Vec<&'a str> {
    let mut left = names.to_vec();
    let mut found = Vec::new();
    while !left.is_empty() {
        found.push(left.swap_remove(dice.below(left.len())));
    }
    found
}

fn arguments(dice: &mut ChoiceDice) -> Value {
    let mut found = Vec::new();
    if dice.chance(60) {
        found.push(json!({"name": "NodeResourcesFit", "args": fit(dice)}));
    }
    if dice.chance(30) {
        let resources = json!({"resources": resources(dice, false)});
        found.push(json!({"name": "NodeResourcesBalancedAllocation", "args": resources}));
    }
    if dice.chance(40) {
        let args = json!({
            "hardPodAffinityWeight": dice.below(101),
            "ignorePreferredTermsOfExistingPods": dice.chance(50),
        });
        found.push(json!({"name": "InterPodAffinity", "args": args}));
    }
    if dice.chance(40) {
        found.push(json!({"name": "PodTopologySpread", "args": spread(dice)}));
    }
    if dice.chance(30) {
        found.push(json!({"name": "NodeAffinity", "args": {"addedAffinity": affinity(dice)}}));
    }
    Value::Array(found)
}

/// Some resources, cpu among them, each once.
fn resources(dice: &mut ChoiceDice, weighted: bool) -> Value {
    let more = RESOURCES.iter().skip(1).filter(|_| dice.chance(50)).copied();
    let names: Vec<&str> = std::iter::once(RESOURCES[0]).chain(more).collect();
    let weight = |dice: &mut ChoiceDice| if weighted { 1 + dice.below(10) } else { 1 };
    names.iter().map(|name| json!({"name": name, "weight": weight(dice)})).collect()
}

fn fit(dice: &mut ChoiceDice) -> Value {
    let mut args = Map::new();
    if dice.chance(20) {
        args.insert("ignoredResources".to_owned(), json!(["example.com/gpu"]));
    }
    if dice.chance(20) {
        args.insert("ignoredResourceGroups".to_owned(), json!(["example.com"]));
    }
    let kind = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"][dice.below(3)];
    let mut strategy = json!({"type": kind, "resources": resources(dice, true)});
    if kind == "RequestedToCapacityRatio" {
        strategy["requestedToCapacityRatio"] = json!({"shape": shape(dice)});
    }
    args.insert("scoringStrategy".to_owned(), strategy);
    Value::Object(args)
}

/// Points of rising utilisation.
fn shape(dice: &mut ChoiceDice) -> Value {
    let mut points = Vec::new();
    let mut at = 0;
    while at <= 100 {
        points.push(json!({"utilization": at, "score": dice.below(11)}));
        at += 1 + dice.below(60);
    }
    Value::Array(points)
}

fn spread(dice: &mut ChoiceDice) -> Value {
    if dice.chance(25) {
        return json!({"defaultingType": "System"});
    }
    let keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"];
    let constraints: Vec<Value> = keys
        .iter()
        .filter_map(|key| {
            let hard = dice.chance(40);
            dice.chance(50).then(|| {
                json!({
                    "maxSkew": 1 + dice.below(3), "topologyKey": key,
                    "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" },
                })
            })
        })
        .collect();
    json!({"defaultingType": "List", "defaultConstraints": constraints})
}

fn affinity(dice: &mut ChoiceDice) -> Value {
    let expression = |dice: &mut ChoiceDice| {
        let (key, value) = [("rack", "r1"), ("disk", "ssd"), ("disk", "7")][dice.below(3)];
        match ["In", "NotIn", "Exists", "DoesNotExist"][dice.below(4)] {
            plain @ ("In" | "NotIn") => json!({"key": key, "operator": plain, "values": [value]}),
            other => json!({"key": key, "operator": other}),
        }
    };
    let term = |dice: &mut ChoiceDice| json!({"matchExpressions": [expression(dice)]});
    let mut found = Map::new();
    if dice.chance(50) {
        let required = json!({"nodeSelectorTerms": [term(dice)]});
        found.insert("requiredDuringSchedulingIgnoredDuringExecution".to_owned(), required);
    }
    if found.is_empty() || dice.chance(50) {
        let preferred = json!([{"weight": 1 + dice.below(100), "preference": term(dice)}]);
        found.insert("preferredDuringSchedulingIgnoredDuringExecution".to_owned(), preferred);
    }
    Value::Object(found)
}
