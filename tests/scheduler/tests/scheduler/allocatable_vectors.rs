//! Upstream's DRA plugin and ours, compared on devices that use allocatable resources of their
//! node.
//!
//! Upstream's runs in a program of its own (`tests/upstream/vectors/allocatable.go`), with the gate
//! DRANodeAllocatableResources, fed a node with its pods, drivers and claims a line. The plugin's
//! result for each pod, the status written to the pod, and the pod's requests on the node must be
//! equal. `PINTLE_VECTOR_CASES` sets the number of pods, `PINTLE_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::filter::status::Status;
use pintle_scheduler_core::allocatable_oracle::{OneNodeCluster, PluginVerdict};
use pintle_scheduler_core::watch_event::WatchedObject;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::device_vectors::number_of_cases;
use crate::generate::ChoiceDice;
use crate::vectors;

/// Pods in CI.
const PODS: u64 = 4_000;
/// Pods without a node of a world.
const PODS_OF_WORLD: u64 = 12;
/// Differences that are worth printing.
const SHOWN: usize = 5;
/// Claims that have devices already.
const OLD: usize = 3;

/// Node-allocatable mapping of a device: a fixed quantity, or a multiple of the consumed capacity.
fn mapping(dice: &mut ChoiceDice, resource: &str, is_shared: bool) -> Value {
    let mut mapping = json!({});
    // A capacity that cannot be consumed is an error, which ends the decision.
    let by_capacity = dice.chance(if is_shared { 60 } else { 2 });
    if by_capacity {
        mapping["capacityKey"] = json!(dice.pick(&["cores", "memory", "memory", "none"]));
    } else if dice.chance(5) {
        mapping["capacityKey"] = json!("");
    }
    let multipliers = match (resource, by_capacity) {
        (_, true) => ["1", "2", "500m", "1.5", "333m"],
        ("cpu", _) => ["1", "500m", "1500m", "2", "3"],
        ("hugepages-2Mi", _) => ["2Mi", "4Mi", "6Mi", "16Mi", "64Mi"],
        (_, _) => ["1Gi", "512Mi", "3G", "1e9", "4Gi"],
    };
    if dice.chance(92) {
        mapping["allocationMultiplier"] = json!(dice.pick(&multipliers));
    }
    mapping
}

fn device(dice: &mut ChoiceDice, name: &str) -> Value {
    let mut device = json!({"name": name});
    let is_shared = dice.chance(40);
    if is_shared {
        device["allowMultipleAllocations"] = json!(true);
        device["capacity"] = json!({"cores": {"value": "64"}, "memory": {"value": "64Gi"}});
        if dice.chance(50) {
            let policy = json!({"default": "1", "validRange": {"min": "1", "step": "1"}});
            device["capacity"]["cores"]["requestPolicy"] = policy;
            let policy = json!({"default": "1Gi", "validRange": {"min": "1Mi"}});
            device["capacity"]["memory"]["requestPolicy"] = policy;
        }
    }
    let mut takes = json!({});
    for resource in ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi"] {
        if dice.chance(35) {
            takes[resource] = mapping(dice, resource, is_shared);
        }
    }
    if takes != json!({}) {
        device["nodeAllocatableResourceMappings"] = takes;
    }
    device
}

fn pool(dice: &mut ChoiceDice, at: usize) -> Value {
    let name = format!("pool-{at}");
    let devices: Vec<Value> =
        (0..4 + dice.below(5)).map(|n| device(dice, &format!("dev-{n}"))).collect();
    json!({"metadata": {"name": name}, "spec": {"driver": "d.example", "nodeName": "n",
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}})
}

fn amounts(dice: &mut ChoiceDice, percent: usize) -> Value {
    let mut all = json!({});
    for (resource, known) in [
        ("cpu", ["100m", "500m", "1", "1500m", "3"]),
        ("memory", ["64Mi", "1Gi", "1G", "2500Mi", "4Gi"]),
        ("ephemeral-storage", ["1Gi", "2Gi", "1G", "500Mi", "5Gi"]),
    ] {
        if dice.chance(percent) {
            all[resource] = json!(dice.pick(&known));
        }
    }
    all
}

fn claim(dice: &mut ChoiceDice, name: &str) -> Value {
    let request = |dice: &mut ChoiceDice, name: &str| {
        let mut exactly = json!({"deviceClassName": "any", "allocationMode": "ExactCount",
            "count": 1 + usize::from(dice.chance(20))});
        if dice.chance(40) {
            let mut capacity = json!({});
            if dice.chance(70) {
                capacity["cores"] = json!(dice.pick(&["1", "2", "3", "500m"]));
            }
            if dice.chance(70) {
                capacity["memory"] = json!(dice.pick(&["1Gi", "2Gi", "1500Mi", "3G"]));
            }
            exactly["capacity"] = json!({ "requests": capacity });
        }
        json!({"name": name, "exactly": exactly})
    };
    let requests: Vec<Value> =
        (0..1 + usize::from(dice.chance(25))).map(|at| request(dice, &format!("r{at}"))).collect();
    json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
        "resourceVersion": "1"}, "spec": {"devices": {"requests": requests}}})
}

/// A claim with an allocated device of the first pool, on this node or on another one.
fn old_claim(dice: &mut ChoiceDice, at: usize) -> Value {
    let mut claim = claim(dice, &format!("old-{at}"));
    let node = if dice.chance(85) { "n" } else { "other" };
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let result = json!({"request": "r0", "driver": "d.example", "pool": "pool-0",
        "device": format!("dev-{at}")});
    claim["status"] = json!({
        "allocation": {"devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}},
        "reservedFor": [{"resource": "pods", "name": "on-0", "uid": "on-0"}],
    });
    claim
}

/// A pod on the node; its status has the node resources that devices of some claims use.
fn placed(dice: &mut ChoiceDice, at: usize) -> Value {
    let name = format!("on-{at}");
    let container =
        json!({"name": "main", "image": "i", "resources": {"requests": amounts(dice, 50)}});
    let statuses: Vec<Value> = (0..OLD)
        .filter(|_| dice.chance(25))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|claim| {
            json!({"resourceClaimName": format!("old-{claim}"), "containers": ["main"],
                "resources": amounts(dice, 50)})
        })
        .collect();
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"nodeName": "n", "containers": [container]},
        "status": {"nodeAllocatableResourceClaimStatuses": statuses}})
}

fn container(dice: &mut ChoiceDice, name: &str, claims: usize) -> Value {
    let uses: BTreeSet<usize> = (0..claims).filter(|_| dice.chance(80)).collect();
    let mut named: Vec<Value> = uses.iter().map(|at| json!({"name": format!("c{at}")})).collect();
    if let Some(first) = named.first_mut().filter(|_| dice.chance(15)) {
        let name = first["name"].clone();
        first["request"] = json!("r0");
        named.push(json!({"name": name, "request": "r1"}));
    }
    json!({"name": name, "image": "i",
        "resources": {"requests": amounts(dice, 60), "claims": named}})
}

/// A pod without a node, and the claims that are its alone.
fn asking(dice: &mut ChoiceDice, at: usize) -> (Value, Vec<Value>) {
    let (name, count) = (format!("pod-{at}"), 1 + dice.below(3));
    let (mut named, mut own) = (Vec::new(), Vec::new());
    for number in 0..count {
        let claim_name = match dice.below(10) {
            0 | 1 => format!("old-{}", dice.below(OLD)),
            // The same one by two names.
            2 if !own.is_empty() => format!("{name}-0"),
            _ => {
                let claim_name = format!("{name}-{}", own.len());
                own.push(claim(dice, &claim_name));
                claim_name
            }
        };
        named.push(json!({"name": format!("c{number}"), "resourceClaimName": claim_name}));
    }
    let mut spec = json!({"resourceClaims": named,
        "containers": [container(dice, "main", count), container(dice, "rest", count)]});
    if dice.chance(30) {
        let mut init = container(dice, "init", count);
        if dice.chance(50) {
            init["restartPolicy"] = json!("Always");
        }
        spec["initContainers"] = json!([init]);
    }
    if dice.chance(25) {
        let of_pod = json!({"cpu": dice.pick(&["2", "4", "8", "16"]),
            "memory": dice.pick(&["2Gi", "8Gi", "16Gi"])});
        spec["resources"] = json!({ "requests": of_pod });
    }
    if dice.chance(20) {
        spec["overhead"] = json!({"cpu": "250m", "memory": "100Mi"});
    }
    let mut pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
    if dice.chance(15) {
        // Status left by an earlier attempt.
        pod["status"] = json!({"nodeAllocatableResourceClaimStatuses":
            [{"resourceClaimName": "old", "containers": ["main"], "resources": {"cpu": "1"}}]});
    }
    (pod, own)
}

fn world(seed: u64) -> Value {
    let dice = &mut ChoiceDice::new(seed);
    let mut allocatable = json!({"cpu": dice.pick(&["8", "16", "32"]), "pods": "110",
        "memory": dice.pick(&["16Gi", "32Gi", "64Gi"]),
        "ephemeral-storage": dice.pick(&["20Gi", "100Gi"])});
    if dice.chance(80) {
        allocatable["hugepages-2Mi"] = json!(dice.pick(&["16Mi", "128Mi"]));
    }
    let slices: Vec<Value> = (0..1 + dice.below(2)).map(|at| pool(dice, at)).collect();
    let mut claims: Vec<Value> = (0..OLD).map(|at| old_claim(dice, at)).collect();
    let pods: Vec<Value> = (0..dice.below(5)).map(|at| placed(dice, at)).collect();
    let mut cases = Vec::new();
    for at in 0..PODS_OF_WORLD {
        let (pod, own) = asking(dice, usize::try_from(at).expect("few"));
        claims.extend(own);
        cases.push(json!({ "pod": pod }));
    }
    json!({"seed": seed, "slices": slices, "claims": claims, "pods": pods, "cases": cases,
        "node": {"metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
            "status": {"allocatable": allocatable, "capacity": allocatable}},
        "classes": [{"metadata": {"name": "any"}, "spec": {}}]})
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).expect("an object")
}

fn all<T: DeserializeOwned>(value: &Value) -> Vec<T> {
    value.as_array().into_iter().flatten().map(read).collect()
}

/// The objects of a world as watch objects.
fn things(world: &Value) -> Vec<WatchedObject> {
    let boxed = |thing: &Value| WatchedObject::Pod(Box::new(read(thing)));
    let pods = world["pods"].as_array().into_iter().flatten().map(boxed);
    let classes =
        all(&world["classes"]).into_iter().map(|c| WatchedObject::DeviceClass(Box::new(c)));
    let slices =
        all(&world["slices"]).into_iter().map(|s| WatchedObject::ResourceSlice(Box::new(s)));
    let claims =
        all(&world["claims"]).into_iter().map(|c| WatchedObject::ResourceClaim(Box::new(c)));
    let node = std::iter::once(WatchedObject::Node(Box::new(read(&world["node"]))));
    node.chain(classes).chain(slices).chain(claims).chain(pods).collect()
}

/// Of several that are wrong upstream takes any.
fn any_of_them(reason: &str) -> String {
    for (start, end) in
        [("pod level request for ", "is insufficient"), ("claim ", "ConsumedCapacity is nil")]
    {
        if reason.contains(start) && reason.contains(end) {
            return format!("{start}{end}");
        }
    }
    reason.to_owned()
}

/// Result for a pod, in the format of upstream's program.
fn ours(shared: &mut OneNodeCluster, pod: &Pod) -> Value {
    let found = match shared.ask(pod) {
        Ok(found) => found,
        Err(error) => {
            let reason = error.to_string();
            return json!({"code": "UnschedulableAndUnresolvable", "reasons": [reason]});
        }
    };
    let PluginVerdict { status, error, statuses, requests } = found;
    let code = |status: &Status| format!("{:?}", status.code);
    let (code, reasons) = match (error, &status) {
        (Some(error), _) => {
            let short = error.strip_prefix("running \"DynamicResources\" filter plugin: ");
            ("Error".to_owned(), vec![short.unwrap_or(&error).to_owned()])
        }
        (None, Some(status)) => (code(status), status.reasons.clone()),
        (None, None) => ("Success".to_owned(), Vec::new()),
    };
    let plain = &requests.plain;
    json!({"code": code, "reasons": reasons, "statuses": statuses, "counts": {
        "cpu": plain.cpu_milli, "memory": plain.mem_bytes, "ephemeral": plain.eph_bytes,
        "scalars": plain.scalars.iter().cloned().collect::<BTreeMap<_, _>>(),
        "nonzeroCpu": requests.nonzero_cpu_milli, "nonzeroMemory": requests.nonzero_mem_bytes}})
}

/// The compared part of an answer.
fn short(mut answer: Value) -> Value {
    let reasons = answer["reasons"].as_array().into_iter().flatten();
    let reasons: Vec<String> = reasons.filter_map(Value::as_str).map(any_of_them).collect();
    answer["reasons"] = json!(reasons);
    for (field, nothing) in [("/statuses", json!([])), ("/counts/scalars", json!({}))] {
        if let Some(value) = answer.pointer_mut(field).filter(|value| value.is_null()) {
            *value = nothing;
        }
    }
    if let Some(all) = answer.as_object_mut() {
        all.remove("pod");
    }
    answer
}

#[test]
fn pods_with_node_allocatable_devices_get_the_same_results_as_from_upstream() {
    let (cases, first) = number_of_cases(PODS);
    let seeds = first..first + cases.div_ceil(PODS_OF_WORLD);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let (mut shares, mut found) = (0, Vec::new());
    vectors::ask("allocatable-vectors", seeds, world, |line| {
        let world: Value = serde_json::from_str(line).expect("an answer");
        let mut shared = OneNodeCluster::new(things(&world));
        for case in world["cases"].as_array().into_iter().flatten() {
            let theirs = short(case.clone());
            let ours = short(ours(&mut shared, &read(&case["pod"])));
            let reason = theirs["reasons"][0].as_str().unwrap_or("none");
            // The owner of a claim does not matter here.
            let is_name = |word: &&str| !word.starts_with("pod-") && !word.starts_with("old-");
            let reason = reason.split(' ').filter(is_name).collect::<Vec<_>>().join(" ");
            *kinds.entry(format!("{} {reason}", theirs["code"])).or_default() += 1;
            shares += usize::from(theirs["statuses"] != json!([]));
            if ours != theirs {
                let (seed, pod) = (&world["seed"], &case["pod"]["metadata"]["name"]);
                found.push(format!("seed {seed} {pod}\nours   {ours}\ntheirs {theirs}"));
            }
        }
    });
    let differ = found.len();
    println!("{cases} pods, {shares} share their node with devices, {differ} differ; {kinds:#?}");
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{differ} differ\n{}", found.join("\n"));
    for kind in ["\"Unschedulable\" Insufficient cpu", "\"Error\" claim ConsumedCapacity is nil"] {
        assert!(kinds.contains_key(kind), "{kind} was never seen");
    }
    assert!(shares > 0, "no pod shares its node");
}
