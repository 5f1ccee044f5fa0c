//! Upstream's allocator of devices and ours, compared on random nodes, drivers and claims.
//!
//! Upstream's runs in a program of its own (`tests/upstream/vectors/devices.go`), fed a world a
//! line. Devices, their order, configuration, node selectors, and the messages without devices must
//! be equal. `PINTLE_VECTOR_CASES` sets the number of pods, `PINTLE_SEED` the first seed.

use std::ops::Range;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use pintle_scheduler_core::plugins::dynamicresources::alone::{Alone, NoDevices, SHARE};
use serde_json::{Value, json};

use crate::generate::ChoiceDice;
use crate::vectors::{self, number};

/// Pods in CI.
const PODS: u64 = 8_000;
/// Pods of a world.
const PODS_OF_WORLD: u64 = 8;
/// Differences that are worth printing.
const SHOWN: usize = 5;

const DRIVERS: [&str; 2] = ["d.example", "e.example"];
const MODELS: [&str; 3] = ["a100", "h100", "l4"];
const AMOUNTS: [&str; 6] = ["1Gi", "2Gi", "3Gi", "1500Mi", "4Gi", "8Gi"];

/// Device selectors of claims and classes; the last ones fail for some or all devices.
const SELECTORS: [&str; 12] = [
    "device.driver == 'd.example'",
    "device.attributes['d.example'].?model.orValue('l4') == 'a100'",
    "device.attributes[device.driver].?numa.orValue(0) == 0",
    "!device.allowMultipleAllocations",
    "'memory' in device.capacity[device.driver]",
    "'x.example' in device.attributes && device.attributes['x.example'].rack != 'r1'",
    "cel.bind(c, device.capacity[device.driver], has(c.memory) \
        && c.memory.compareTo(quantity('2Gi')) >= 0)",
    "device.attributes[device.driver].all(name, name != 'broken')",
    "device.attributes[device.driver].?firmware.optMap(f, f.isGreaterThan(semver('1.2.0')))\
        .orValue(true)",
    "device.driver.startsWith('d.') || device.attributes['e.example'].numa > 0",
    "device.attributes['d.example'].model == 'h100'",
    "device.capacity['e.example'].memory.isLessThan(quantity('3Gi'))",
];

/// Selectors over attributes that may be lists; the last ones fail for some of them.
const OF_LISTS: [&str; 16] = [
    "device.attributes['d.example'].?model.orValue('l4').includes('a100')",
    "device.attributes[device.driver].?numa.orValue([0]).includes(0)",
    "!device.attributes[device.driver].?firmware.orValue('').includes(semver('1.2.0'))",
    "device.attributes['x.example'].?rack.orValue([]).includes('r2')",
    "type(device.attributes[device.driver].?numa.orValue(0)) != list",
    "device.attributes[device.driver].?healthy.orValue(true).includes(true)",
    "device.attributes['d.example'].?model.optMap(m, type(m) == list && m.size() > 1)\
        .orValue(false)",
    "device.attributes[device.driver].numa.exists(n, n == 1)",
    "'a100' in device.attributes['d.example'].model",
    "device.attributes[device.driver].?firmware.orValue([]).all(f, f.major() == 1)",
    "device.attributes['d.example'].model.startsWith('a')",
    "device.attributes['d.example'].numa + 1 > 0",
    "device.attributes['x.example'].rack.matches('r.')",
    "device.attributes['d.example'].numa[0] == 1",
    "device.attributes['d.example'].firmware.major() == 1",
    "device.attributes['x.example'].rack && true",
];

/// Some of a list's numbers, in order, each with this probability.
fn some(dice: &mut ChoiceDice, count: usize, percent: usize) -> Vec<usize> {
    (0..count).filter(|_| dice.chance(percent)).collect()
}

fn selectors(dice: &mut ChoiceDice, percent: usize) -> Value {
    // Those without an answer end everything, and so are seldom.
    let known = if dice.chance(15) { SELECTORS.len() } else { SELECTORS.len() - 3 };
    let count = if dice.chance(percent) { 1 + dice.below(2) } else { 0 };
    let cel = |at: usize| json!({"cel": {"expression": SELECTORS[at]}});
    (0..count).map(|_| cel(dice.below(known))).collect()
}

/// Nodes on which a slice, or a device, can be used.
fn reach(dice: &mut ChoiceDice) -> (&'static str, Value) {
    match dice.below(8) {
        0 => ("nodeName", json!("other")),
        1 => ("allNodes", json!(true)),
        2 | 3 => {
            let zone = json!({"key": "zone", "operator": "In", "values": [dice.pick(&["a", "b"])]});
            let disk = json!({"key": "disk", "operator": "Exists"});
            let all = if dice.chance(30) { json!([zone, disk]) } else { json!([zone]) };
            ("nodeSelector", json!({"nodeSelectorTerms": [{"matchExpressions": all}]}))
        }
        _ => ("nodeName", json!("n")),
    }
}

fn capacity(dice: &mut ChoiceDice, is_shared: bool) -> Value {
    let mut all = json!({"memory": {"value": dice.pick(&AMOUNTS)}});
    if is_shared {
        let mut bandwidth = json!({"value": dice.pick(&["4Gi", "8Gi"])});
        match dice.below(3) {
            0 => {
                let range = json!({"min": "1Gi", "max": "3Gi", "step": "512Mi"});
                bandwidth["requestPolicy"] = json!({"default": "1Gi", "validRange": range});
            }
            1 => {
                bandwidth["requestPolicy"] =
                    json!({"default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"]});
            }
            _ => {}
        }
        all["bandwidth"] = bandwidth;
    }
    all
}

fn taints(dice: &mut ChoiceDice) -> Value {
    let effect = dice.pick(&["NoSchedule", "NoExecute", "None"]);
    json!([{"key": dice.pick(&["broken", "old"]), "value": "yes", "effect": effect}])
}

fn device(dice: &mut ChoiceDice, name: &str, has_counters: bool, per_device: bool) -> Value {
    let mut attributes = json!({});
    if dice.chance(70) {
        attributes["model"] = json!({"string": dice.pick(&MODELS)});
    }
    if dice.chance(70) {
        attributes["numa"] = json!({"int": dice.below(2)});
    }
    if dice.chance(40) {
        attributes["firmware"] = json!({"version": dice.pick(&["1.2.0", "1.10.1", "2.0.0-rc.1"])});
    }
    if dice.chance(40) {
        attributes["x.example/rack"] = json!({"string": dice.pick(&["r1", "r2"])});
    }
    let is_shared = dice.chance(25);
    let mut device = json!({"name": name, "attributes": attributes});
    if dice.chance(75) {
        device["capacity"] = capacity(dice, is_shared);
    }
    if is_shared {
        device["allowMultipleAllocations"] = json!(true);
    }
    if dice.chance(15) {
        device["taints"] = taints(dice);
    }
    if has_counters && dice.chance(70) {
        let amount = dice.pick(&["10", "20", "40"]);
        device["consumesCounters"] =
            json!([{"counterSet": "card", "counters": {"units": {"value": amount}}}]);
    }
    if per_device {
        let (field, value) = reach(dice);
        device[field] = value;
    }
    if dice.chance(10) {
        device["bindsToNode"] = json!(true);
    }
    if dice.chance(10) {
        device["bindingConditions"] = json!(["ready"]);
        device["bindingFailureConditions"] = json!(["failed"]);
    }
    device
}

/// The devices of a slice; seldom two of one name.
fn devices(dice: &mut ChoiceDice, slice: usize, has: (bool, bool)) -> Value {
    let names: Vec<String> = (0..1 + dice.below(4))
        .map(|n| match dice.below(60) {
            0 => "twice".to_owned(),
            _ => format!("dev-{slice}-{n}"),
        })
        .collect();
    names.iter().map(|name| device(dice, name, has.0, has.1)).collect()
}

/// The slices of a pool, whole and sound most of the time.
fn pool(dice: &mut ChoiceDice, at: usize) -> Vec<Value> {
    let (driver, name) = (dice.pick(&DRIVERS), format!("pool-{at}"));
    let (has_counters, per_device) = (dice.chance(30), dice.chance(20));
    let (field, value) = match per_device {
        true => ("perDeviceNodeSelection", json!(true)),
        false => reach(dice),
    };
    let with_devices = 1 + usize::from(dice.chance(25));
    let count = with_devices + usize::from(has_counters) + usize::from(dice.chance(5));
    let spec = |generation: usize| {
        let pool = json!({"name": name, "generation": generation, "resourceSliceCount": count});
        let mut spec = json!({"driver": driver, "pool": pool});
        spec[field] = value.clone();
        spec
    };
    let mut specs: Vec<Value> = (0..with_devices)
        .map(|slice| {
            let mut spec = spec(2);
            spec["devices"] = devices(dice, slice, (has_counters, per_device));
            spec
        })
        .collect();
    if has_counters {
        let mut spec = spec(2);
        let amount = dice.pick(&["40", "60"]);
        spec["sharedCounters"] =
            json!([{"name": "card", "counters": {"units": {"value": amount}}}]);
        specs.push(spec);
    }
    if dice.chance(10) {
        // A slice of an older generation.
        let mut spec = spec(1);
        spec["devices"] = json!([device(dice, "old", false, per_device)]);
        specs.push(spec);
    }
    let named = |(number, spec): (usize, Value)| {
        let name = format!("{name}-{number}");
        json!({"metadata": {"name": name}, "spec": spec})
    };
    specs.into_iter().enumerate().map(named).collect()
}

/// Fields that a request and its alternatives share.
fn wish(dice: &mut ChoiceDice) -> Value {
    let class = dice.pick(&["any", "any", "typed", "configured"]);
    let mut wish = json!({"deviceClassName": class, "selectors": selectors(dice, 40)});
    match dice.below(10) {
        0 | 1 => wish["allocationMode"] = json!("All"),
        2 | 3 => {
            wish["allocationMode"] = json!("ExactCount");
            wish["count"] = json!(1 + dice.below(3));
        }
        _ => {
            wish["allocationMode"] = json!("ExactCount");
            wish["count"] = json!(1);
        }
    }
    if dice.chance(15) {
        let key = dice.pick(&["broken", "old"]);
        wish["tolerations"] = json!([{"key": key, "operator": "Exists"}]);
    }
    if dice.chance(20) {
        let what = dice.pick(&["memory", "bandwidth", "bandwidth"]);
        wish["capacity"] = json!({"requests": {what: dice.pick(&AMOUNTS)}});
    }
    wish
}

fn request(dice: &mut ChoiceDice, name: &str) -> Value {
    if dice.chance(25) {
        let subs: Vec<Value> = (0..1 + dice.below(3))
            .map(|at| {
                let mut sub = wish(dice);
                sub["name"] = json!(format!("sub-{at}"));
                sub
            })
            .collect();
        return json!({"name": name, "firstAvailable": subs});
    }
    let mut exactly = wish(dice);
    if dice.chance(8) {
        exactly["adminAccess"] = json!(true);
    }
    json!({"name": name, "exactly": exactly})
}

fn claim(dice: &mut ChoiceDice, name: &str) -> Value {
    let requests: Vec<Value> =
        (0..1 + dice.below(3)).map(|at| request(dice, &format!("r{at}"))).collect();
    let mut devices = json!({"requests": requests});
    if dice.chance(30) {
        let attribute = dice.pick(&["d.example/model", "d.example/numa", "x.example/rack"]);
        let kind = dice.pick(&["matchAttribute", "matchAttribute", "distinctAttribute"]);
        let mut constraint = json!({kind: attribute});
        if dice.chance(40) {
            constraint["requests"] = json!(["r0"]);
        }
        devices["constraints"] = json!([constraint]);
    }
    if dice.chance(15) {
        let opaque = json!({"driver": "d.example", "parameters": {"of": name}});
        let names = some(dice, requests.len(), 50);
        let names: Vec<String> = names.into_iter().map(|at| format!("r{at}")).collect();
        devices["config"] = json!([{"requests": names, "opaque": opaque}]);
    }
    json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"devices": devices}})
}

/// Devices allocated to other claims, and parts of shareable devices.
fn taken(dice: &mut ChoiceDice, slices: &[Value]) -> Vec<Value> {
    let mut results = Vec::new();
    for slice in slices {
        let spec = &slice["spec"];
        for device in spec["devices"].as_array().into_iter().flatten() {
            if !dice.chance(20) {
                continue;
            }
            let mut result = json!({"request": "r", "driver": spec["driver"],
                "pool": spec["pool"]["name"], "device": device["name"]});
            if device["allowMultipleAllocations"] == true {
                result["shareID"] = json!(format!("taken-{}", results.len()));
                let capacity = device["capacity"].as_object().into_iter().flatten();
                let used = capacity.map(|(name, _)| (name.clone(), json!("1Gi")));
                result["consumedCapacity"] = Value::Object(used.collect());
            }
            results.push(result);
        }
    }
    results.into_iter().map(|result| json!({"devices": {"results": [result]}})).collect()
}

fn world(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let dice = &mut dice;
    let mut labels = json!({"kubernetes.io/hostname": "n", "zone": dice.pick(&["a", "b"])});
    if dice.chance(50) {
        labels["disk"] = json!("ssd");
    }
    let slices: Vec<Value> = (0..1 + dice.below(3)).flat_map(|at| pool(dice, at)).collect();
    let config = json!([{"opaque": {"driver": "d.example", "parameters": {"of": "class"}}}]);
    let class = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let pods: Vec<Vec<Value>> = (0..PODS_OF_WORLD)
        .map(|_| (0..1 + dice.below(2)).map(|at| claim(dice, &format!("c{at}"))).collect())
        .collect();
    json!({"seed": seed,
        "node": {"metadata": {"name": "n", "labels": labels}},
        "classes": [class("any", json!({})), class("typed", json!({"selectors": selectors(dice, 90)})),
            class("configured", json!({"config": config, "selectors": selectors(dice, 20)}))],
        "taken": taken(dice, &slices), "slices": slices, "pods": pods, "answers": null})
}

/// The same world with some lists for attributes, and claims that select by them.
fn world_of_lists(seed: u64) -> Value {
    let mut world = world(seed);
    let dice = &mut ChoiceDice::new(seed.wrapping_add(1 << 40));
    world["lists"] = json!(true);
    let slices = world["slices"].as_array_mut().into_iter().flatten();
    let devices = slices.flat_map(|slice| slice["spec"]["devices"].as_array_mut());
    devices.flatten().for_each(|device| list_attributes(dice, &mut device["attributes"]));
    let pods = world["pods"].as_array_mut().into_iter().flatten();
    let claims = pods.flat_map(|pod| pod.as_array_mut()).flatten();
    for devices in claims.map(|claim| &mut claim["spec"]["devices"]) {
        for request in devices["requests"].as_array_mut().into_iter().flatten() {
            if dice.chance(35) && request.get("exactly").is_some() {
                let known = if dice.chance(15) { OF_LISTS.len() } else { OF_LISTS.len() - 9 };
                let text = OF_LISTS[dice.below(known)];
                request["exactly"]["selectors"] = json!([{"cel": {"expression": text}}]);
            }
        }
        if dice.chance(40) {
            let all = ["d.example/model", "e.example/numa", "x.example/rack", "d.example/firmware"];
            let kind = dice.pick(&["matchAttribute", "matchAttribute", "distinctAttribute"]);
            devices["constraints"] = json!([{kind: dice.pick(&all)}]);
        }
    }
    world
}

/// Some attributes have several values instead of one, in any order; a few have the same one twice.
fn list_attributes(dice: &mut ChoiceDice, attributes: &mut Value) {
    if dice.chance(30) {
        attributes["healthy"] = json!({"bool": dice.chance(50)});
    }
    for (name, attribute) in attributes.as_object_mut().into_iter().flatten() {
        if dice.chance(40) {
            continue;
        }
        let count = 1 + dice.below(3);
        *attribute = match name.as_str() {
            "model" => json!({"strings": values(count, || json!(dice.pick(&MODELS)))}),
            "numa" => json!({"ints": values(count, || json!(dice.below(4)))}),
            "firmware" => {
                let all = ["1.2.0", "1.10.1", "2.0.0-rc.1"];
                json!({"versions": values(count, || json!(dice.pick(&all)))})
            }
            "healthy" => json!({"bools": values(count, || json!(dice.chance(50)))}),
            _ => json!({"strings": values(count, || json!(dice.pick(&["r1", "r2", "r3"])))}),
        };
    }
}

fn values(count: usize, mut one: impl FnMut() -> Value) -> Vec<Value> {
    (0..count).map(|_| one()).collect()
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).expect("an object")
}

/// Replaces the random names of device shares by one name.
fn same_shares(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(share) = fields.get_mut("shareID") {
                *share = json!(SHARE);
            }
            fields.values_mut().for_each(same_shares);
        }
        Value::Array(all) => all.iter_mut().for_each(same_shares),
        _ => {}
    }
}

fn answer(found: Result<Vec<AllocationResult>, NoDevices>) -> Value {
    match found {
        Ok(allocations) => json!({ "allocations": allocations }),
        Err(NoDevices::Here(why)) if why.is_empty() => json!({}),
        Err(NoDevices::Here(why)) => json!({ "onNode": why }),
        Err(NoDevices::Anywhere(why)) => json!({ "error": why }),
    }
}

/// A pod's claims, and the allocations of ours and of upstream's.
pub(crate) struct DeviceVector<'a> {
    pub(crate) claims: &'a Value,
    pub(crate) ours: &'a Value,
    pub(crate) theirs: &'a Value,
}

/// Asks both about the worlds of these seeds, and passes on each pod's answers.
pub(crate) fn ask(seeds: Range<u64>, world: fn(u64) -> Value, mut tell: impl FnMut(DeviceVector)) {
    vectors::ask("device-vectors", seeds, world, |line| answers(line, &mut tell));
}

fn answers(line: &str, tell: &mut impl FnMut(DeviceVector)) {
    let mut world: Value = serde_json::from_str(line).expect("an answer");
    let (classes, slices): (Vec<DeviceClass>, Vec<ResourceSlice>) =
        (read(&world["classes"]), read(&world["slices"]));
    let (node, taken): (Node, Vec<AllocationResult>) =
        (read(&world["node"]), read(&world["taken"]));
    let lists = world["lists"] == true;
    let alone = Alone::new(&node, classes, &slices, &taken, lists).expect("a node");
    let pods: Vec<Vec<ResourceClaim>> = read(&world["pods"]);
    for (at, claims) in pods.into_iter().enumerate() {
        same_shares(&mut world["answers"][at]);
        let ours = answer(alone.devices(claims));
        let (claims, theirs) = (&world["pods"][at], &world["answers"][at]);
        tell(DeviceVector { claims, ours: &ours, theirs });
    }
}

/// Number of cases, and the first seed.
pub(crate) fn number_of_cases(default: u64) -> (u64, u64) {
    (number("PINTLE_VECTOR_CASES", default), number("PINTLE_SEED", 1))
}

#[test]
fn every_claim_is_allocated_the_same_devices_as_by_upstream() {
    same_devices(world);
}

#[test]
fn every_claim_is_allocated_the_same_devices_as_by_upstream_with_list_attributes() {
    same_devices(world_of_lists);
}

fn same_devices(world: fn(u64) -> Value) {
    let (pods, first) = number_of_cases(PODS);
    let (mut given, mut failed, mut none, mut found) = (0, 0, 0, Vec::new());
    ask(
        first..first + pods.div_ceil(PODS_OF_WORLD),
        world,
        |DeviceVector { claims, ours, theirs }| {
            let has = |kind: &str| theirs[kind] != Value::Null;
            let kind = match (has("allocations"), has("error")) {
                (true, _) => &mut given,
                (_, true) => &mut failed,
                _ => &mut none,
            };
            *kind += 1;
            if ours != theirs {
                found.push(format!("{claims}\nours   {ours}\ntheirs {theirs}"));
            }
        },
    );
    let differ = found.len();
    println!("{given} get devices, {none} none, {failed} fail, {differ} differ");
    assert!([given, none, failed].iter().all(|count| *count > 0), "an answer was never seen");
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{differ} differ\n{}", found.join("\n"));
}
