//! Upstream's volume plugins and ours, compared on random nodes, claims and volumes.
//!
//! Upstream's run in a program of their own (`tests/upstream/vectors/volumes.go`), fed a world a
//! line. PreFilter rejections, the result for each node, and the volumes chosen there must be
//! equal. `PINTLE_VECTOR_CASES` sets the number of pods, `PINTLE_SEED` the first seed.

use std::collections::BTreeMap;
use std::ops::Range;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::explain;
use pintle_sched_core::select::PreFilterRefusal;
use pintle_scheduler_core::cache::ClusterCache;
use pintle_scheduler_core::config;
use pintle_scheduler_core::diagnosis::{Asking, PodEvaluator};
use pintle_scheduler_core::lean::LeanPod;
use pintle_scheduler_core::plugins::volumes::Choice;
use pintle_scheduler_core::prune::Prune as _;
use pintle_scheduler_core::watch_event::WatchedObject;
use serde_json::{Value, json};

use crate::compare::as_recorded;
use crate::device_vectors::number_of_cases;
use crate::vectors;
use crate::volume_worlds::{PODS_OF_WORLD, world};

/// Pods in CI.
const PODS: u64 = 8_000;
/// Differences that are worth printing.
const SHOWN: usize = 5;

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).expect("an object")
}

/// A pod as a watch reads it.
fn lean(value: &Value) -> Pod {
    let LeanPod(pod) = read(value);
    pod
}

/// A world as watches tell of it.
fn cache(world: &Value) -> ClusterCache {
    let text = world["config"].as_str().expect("a configuration");
    let profile = config::profile(text, None).expect("a configuration that upstream took");
    let mut cache = ClusterCache::new(profile);
    let mut tell = |kind: &str, thing: fn(&Value) -> WatchedObject| {
        for value in world[kind].as_array().into_iter().flatten() {
            for step in cache.set(thing(value)) {
                cache.make(&step);
            }
        }
    };
    tell("nodes", |v| {
        WatchedObject::Node(Box::new(read::<k8s_openapi::api::core::v1::Node>(v).prune()))
    });
    tell("pods", |value| WatchedObject::Pod(Box::new(lean(value))));
    tell("claims", |value| WatchedObject::PersistentVolumeClaim(read(value)));
    tell("volumes", |value| WatchedObject::PersistentVolume(read(value)));
    tell("classes", |value| WatchedObject::StorageClass(read(value)));
    tell("csinodes", |value| WatchedObject::CSINode(read(value)));
    tell("drivers", |value| WatchedObject::CSIDriver(read(value)));
    tell("capacities", |value| WatchedObject::CSIStorageCapacity(read(value)));
    tell("attachments", |value| WatchedObject::VolumeAttachment(read(value)));
    cache
}

fn chosen(choice: &Choice) -> Value {
    let pair = |(volume, claim): &(String, _)| json!([volume, claim_name(claim)]);
    let bindings: Vec<Value> = choice.bindings.iter().map(pair).collect();
    let provisions: Vec<&str> = choice.provisions.iter().map(claim_name).collect();
    json!({"bindings": bindings, "provisions": provisions})
}

fn claim_name(key: &pintle_api_types::key::ObjectKey) -> &str {
    key.as_str()
}

/// Our result for a pod: PreFilter, each node's filter, and the volumes chosen where it fits.
fn ours(cache: &mut ClusterCache, pod: &Pod) -> Value {
    let asking = Asking::new(pod, cache).expect("a pod that can be read");
    let mut evaluator = PodEvaluator::default();
    let (outcome, detail) = evaluator.decide_in_detail(cache, &asking);
    if let Some(refusal) = &outcome.refusal {
        let PreFilterRefusal::PreFilter(plugin, reason) = refusal else { panic!("{refusal:?}") };
        let hard = "UnschedulableAndUnresolvable";
        return json!({"prefilter":
            {"status": hard, "plugin": plugin.name(), "reasons": [reason], "nodes": null},
            "filter": null, "chosen": null, "scored": false});
    }
    let program = &asking.program;
    let statuses = explain::statuses(&cache.cluster, program, &detail, &mut evaluator.scratch);
    let statuses: BTreeMap<u32, Value> =
        statuses.iter().map(|(row, status)| (*row, as_recorded(status))).collect();
    let claims = cache.claims(pod).expect("it was not refused");
    let (mut filter, mut volumes) = (json!({}), json!({}));
    for row in cache.cluster.all_rows().iter() {
        let name = cache.cluster.node_name(row);
        let status = statuses.get(&row).cloned();
        let choice = claims.as_ref().and_then(|claims| claims.choice(row));
        if let Some(choice) = choice.filter(|c| status.is_none() && *c != Choice::default()) {
            volumes[name] = chosen(&choice);
        }
        filter[name] = status.unwrap_or_else(|| json!({"status": "Success"}));
    }
    let before = json!({"status": "Success", "plugin": "", "reasons": null, "nodes": null});
    json!({"prefilter": before, "filter": filter, "chosen": volumes, "scored": false})
}

/// Upstream also keeps the volumes of nodes that a later plugin rejects, keeps empty choices, and
/// provisions a claim as often as the pod names it; ours does once (docs/COMPAT.md).
fn theirs(case: &Value) -> Value {
    let mut said = case.clone();
    let said = said.as_object_mut().expect("a case");
    said.remove("pod");
    let fits = |node: &str| case["filter"][node]["status"] == "Success";
    if let Some(nodes) = said["chosen"].as_object_mut() {
        let none = chosen(&Choice::default());
        nodes.retain(|node, volumes| fits(node) && *volumes != none);
        for volumes in nodes.values_mut() {
            let mut known = std::collections::HashSet::new();
            let all = volumes["provisions"].as_array_mut().expect("a list");
            all.retain(|claim| known.insert(claim.to_string()));
        }
    }
    json!(said)
}

/// A pod, our result for it, and upstream's.
struct VolumeVector<'a> {
    world: &'a Value,
    pod: &'a Value,
    ours: Value,
    theirs: Value,
}

/// Asks both about the worlds of these seeds, and passes on each pod's answers.
fn ask(seeds: Range<u64>, mut tell: impl FnMut(VolumeVector)) {
    vectors::ask("volume-vectors", seeds, world, |line| {
        let world: Value = serde_json::from_str(line).expect("an answer");
        let mut cache = cache(&world);
        for case in world["cases"].as_array().into_iter().flatten() {
            let (pod, ours) = (&case["pod"], ours(&mut cache, &lean(&case["pod"])));
            tell(VolumeVector { world: &world, pod, ours, theirs: theirs(case) });
        }
    });
}

/// All messages of the plugins, and their choices.
const WORDS: [&str; 18] = [
    "node(s) had no available disk",
    "access mode already in-use by another pod",
    "node(s) exceed max volume count",
    "looking up PVC",
    "node(s) didn't find available persistent volumes to bind",
    "node(s) didn't match PersistentVolume's node affinity",
    "node(s) did not have enough free storage",
    "bound to non-existent pv(s)",
    "bound to non-existent persistentvolume",
    "is being deleted",
    "pod has unbound immediate PersistentVolumeClaims",
    "waiting for ephemeral volume controller",
    "was not created for pod",
    "node(s) had no available volume zone",
    "[\"persistentvolume \\\"v",
    "storageclass.storage.k8s.io",
    "\"bindings\":[[",
    "\"provisions\":[\"",
];

#[test]
fn every_pod_gets_the_same_volumes_and_reasons_as_from_upstream() {
    let (pods, first) = number_of_cases(PODS);
    let (mut seen, mut found, mut fit) = ([0; WORDS.len()], Vec::new(), 0);
    let seeds = first..first + pods.div_ceil(PODS_OF_WORLD);
    ask(seeds, |VolumeVector { world, pod, ours, theirs }| {
        let text = theirs.to_string();
        let said = WORDS.iter().map(|words| usize::from(text.contains(words)));
        seen.iter_mut().zip(said).for_each(|(count, said)| *count += said);
        fit += usize::from(text.contains(r#"{"status":"Success"}"#));
        if ours != theirs {
            let (seed, name) = (&world["seed"], &pod["metadata"]["name"]);
            let volumes = &pod["spec"]["volumes"];
            found.push(format!("seed {seed} {name} {volumes}\nours   {ours}\ntheirs {theirs}"));
        }
    });
    let differ = found.len();
    for (words, count) in WORDS.iter().zip(seen) {
        println!("{count:7} pods: {words}");
    }
    println!("{pods} pods, {fit} fit somewhere, {differ} differ");
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{differ} differ\n{}", found.join("\n"));
    assert!(pods < PODS || seen.iter().all(|count| *count > 0), "something was never said");
}
