//! Random clusters for the volume plugins: small alphabets, so that claims and volumes match.
//!
//! Input: a seed. Output: nodes, pods on them, volume objects, and pods without a node, in the form
//! that `tests/upstream/vectors/volumes.go` reads. Left out are inputs for which upstream's answer
//! is random: volumes of equal capacity, and two volumes bound to one claim.

use serde_json::{Map, Value, json};

use crate::generate::ChoiceDice;
use crate::in_tree_worlds as in_tree;
use crate::profiles::shuffled;

/// Pods of a world.
pub(crate) const PODS_OF_WORLD: u64 = 10;

/// In the order in which they run.
const PLUGINS: [&str; 4] =
    ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"];
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const HOST: &str = "kubernetes.io/hostname";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const ZONES: [&str; 3] = ["e-w-1", "e-w-2", "e-s-1"];
const REGIONS: [&str; 2] = ["r1", "r2"];
/// Zone labels of volumes: several zones, a repeated one, an invalid label value, and an empty
/// zone.
const ZONES_OF_VOLUME: [&str; 7] =
    ["e-w-1", "e-w-2", "e-s-1", "e-w-1__e-w-2", "e-w-2__e-w-2__e-s-1", "e-w-1___e-w-2", "__e-w-1"];
/// The last but one is empty, and the last is no class.
const CLASSES: [&str; 10] =
    ["now", "wait", "local", "local", "local", "zoned", "room", "moved", "", "none"];
const DRIVERS: [&str; 3] = ["csi.a", "csi.b", "csi.c"];
const MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
const SIZES: [&str; 9] =
    ["1Gi", "2Gi", "3Gi", "5Gi", "8Gi", "1500m", "1100m", "2147483649", "10e9"];
/// Claims of both namespaces.
const CLAIMS: usize = 12;
const VOLUMES_MAX: usize = 12;
/// Capacities are a rest of this, so that no two volumes have the same.
const CAPACITIES: usize = 17;

/// How many nodes and volumes there are.
#[derive(Clone, Copy)]
struct WorldSize {
    nodes: usize,
    volumes: usize,
}

/// A cluster and pods.
pub(crate) fn world(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let dice = &mut dice;
    let size = WorldSize { nodes: 2 + dice.below(7), volumes: 2 + dice.below(VOLUMES_MAX - 1) };
    let nodes = size.nodes;
    let pods: Vec<Value> = (0..dice.below(2 * nodes + 1))
        .map(|at| {
            let mut pod = pod(dice, &format!("b{at}"));
            // Now and then on a node that is gone.
            let gone = usize::from(dice.chance(10));
            pod["spec"]["nodeName"] = json!(format!("n{}", dice.below(nodes + gone)));
            pod
        })
        .collect();
    let cases: Vec<Value> =
        (0..PODS_OF_WORLD).map(|at| json!({"pod": pod(dice, &format!("p{at}"))})).collect();
    let mut claims: Vec<Value> = (0..CLAIMS).map(|at| claim(dice, at, size)).collect();
    let waiting = cases.iter().map(|case| (&case["pod"], true));
    let config = config(dice);
    for (pod, waits) in pods.iter().map(|pod| (pod, false)).chain(waiting) {
        // Upstream's NodeVolumeLimits fails with an error on a claim of that name with another
        // owner, unless VolumeBinding has refused the pod before.
        let any = waits && config.contains("VolumeBinding");
        claims.extend(claim_for(dice, pod, size, any));
    }
    // A volume that its driver cannot have ends a decision of VolumeBinding with an error upstream.
    let binds = config.contains("VolumeBinding");
    json!({"seed": seed, "config": config,
        "nodes": (0..nodes).map(|at| node(dice, at)).collect::<Vec<_>>(),
        "pods": pods, "cases": cases, "volumes": volumes(dice, size, binds, &claims),
        "claims": claims, "classes": classes(dice),
        "csinodes": (0..nodes).filter_map(|at| csi_node(dice, at)).collect::<Vec<_>>(),
        "drivers": drivers(dice), "capacities": capacities(dice, nodes),
        "attachments": attachments(dice, nodes)})
}

/// All of the plugins, or some, often in another order.
fn config(dice: &mut ChoiceDice) -> String {
    let all = dice.chance(70);
    let chosen = PLUGINS.iter().filter(|_| all || dice.chance(50)).copied();
    let mut chosen: Vec<&str> = chosen.collect();
    if dice.chance(50) {
        chosen = shuffled(dice, &chosen);
    }
    let enabled: Vec<Value> = ["PrioritySort", "DefaultBinder"]
        .iter()
        .chain(&chosen)
        .map(|name| json!({"name": name}))
        .collect();
    let plugins = json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}});
    json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}]})
    .to_string()
}

fn node(dice: &mut ChoiceDice, at: usize) -> Value {
    let name = format!("n{at}");
    let mut labels = Map::new();
    if dice.chance(95) {
        labels.insert(HOST.to_owned(), json!(name));
    }
    for (key, percent, values) in [
        (ZONE, 70, &ZONES[..]),
        (REGION, 50, &REGIONS[..]),
        (OLD_ZONE, 25, &ZONES[..]),
        (OLD_REGION, 20, &REGIONS[..]),
        ("disk", 70, &["7", "20", "ssd"][..]),
    ] {
        if dice.chance(percent) {
            labels.insert(key.to_owned(), json!(dice.pick(values)));
        }
    }
    let mut node = json!({"metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "100", "memory": "100Gi", "pods": "110"}}});
    in_tree::label(dice, &mut node, &ZONES);
    node
}

/// A requirement of nodes; the operators of labels alone, or all.
fn requirement(dice: &mut ChoiceDice, nodes: usize, operators: &[&str]) -> Value {
    let (key, values): (&str, Vec<String>) = match dice.below(4) {
        0 | 1 => (HOST, (0..1 + nodes / 2).map(|_| format!("n{}", dice.below(nodes))).collect()),
        2 => {
            let key = if dice.chance(70) { ZONE } else { OLD_ZONE };
            (key, (0..1 + dice.below(2)).map(|_| dice.pick(&ZONES)).collect())
        }
        _ if dice.chance(15) => (OLD_REGION, vec![dice.pick(&REGIONS)]),
        _ => ("disk", vec![dice.pick(&["7", "20", "ssd"])]),
    };
    let operator = dice.pick(operators);
    match operator.as_str() {
        "In" | "NotIn" => json!({"key": key, "operator": operator, "values": values}),
        "Gt" | "Lt" => {
            let values = [dice.pick(&["7", "10", "20"])];
            json!({"key": "disk", "operator": operator, "values": values})
        }
        _ => json!({"key": key, "operator": operator}),
    }
}

/// Nodes that have a volume: any of several terms.
fn reach(dice: &mut ChoiceDice, nodes: usize) -> Value {
    let operators = ["In", "In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
    let terms: Vec<Value> = (0..1 + dice.below(2))
        .map(|_| {
            let all = (0..1 + dice.below(2)).map(|_| requirement(dice, nodes, &operators));
            let mut term = json!({"matchExpressions": all.collect::<Vec<_>>()});
            if dice.chance(6) {
                let names = [format!("n{}", dice.below(nodes))];
                let operator = dice.pick(&["In", "NotIn"]);
                term["matchFields"] =
                    json!([{"key": "metadata.name", "operator": operator, "values": names}]);
            }
            term
        })
        .collect();
    json!({"required": {"nodeSelectorTerms": terms}})
}

fn classes(dice: &mut ChoiceDice) -> Vec<Value> {
    let mut found = Vec::new();
    for (name, mode, provisioner) in [
        ("now", "Immediate", "csi.a"),
        ("wait", "WaitForFirstConsumer", "csi.a"),
        ("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
        ("zoned", "WaitForFirstConsumer", "csi.b"),
        ("room", "WaitForFirstConsumer", "csi.c"),
        ("moved", "WaitForFirstConsumer", in_tree::provisioner(dice)),
    ] {
        if dice.chance(5) {
            continue;
        }
        let mut class = json!({"metadata": {"name": name}, "provisioner": provisioner});
        if name != "now" || dice.chance(50) {
            class["volumeBindingMode"] = json!(mode);
        }
        if name == "zoned" || dice.chance(10) {
            let terms: Vec<Value> = (0..1 + dice.below(2))
                .map(|_| {
                    let zones = (0..1 + dice.below(2)).map(|_| dice.pick(&ZONES));
                    let zone = json!({"key": ZONE, "values": zones.collect::<Vec<_>>()});
                    let disk = json!({"key": "disk", "values": ["ssd", "7"]});
                    let all = [zone, disk];
                    let some = if dice.chance(25) { &all[..] } else { &all[..1] };
                    // No node matches an empty term.
                    let some = if dice.chance(6) { &all[..0] } else { some };
                    json!({"matchLabelExpressions": some})
                })
                .collect();
            class["allowedTopologies"] = json!(terms);
        }
        found.push(class);
    }
    found
}

fn drivers(dice: &mut ChoiceDice) -> Vec<Value> {
    let mut found = Vec::new();
    for name in DRIVERS {
        if dice.chance(85) {
            let counts = dice.chance(if name == "csi.c" { 85 } else { 15 });
            let spec = json!({"storageCapacity": counts});
            found.push(json!({"metadata": {"name": name}, "spec": spec}));
        }
    }
    found
}

fn capacities(dice: &mut ChoiceDice, nodes: usize) -> Vec<Value> {
    let operators = ["In", "In", "NotIn", "Exists", "DoesNotExist"];
    (0..dice.below(6))
        .map(|at| {
            let class = dice.pick(&["room", "room", "room", "wait", "zoned"]);
            let mut capacity = json!({"metadata": {"name": format!("r{at}"), "namespace": "s"},
                "storageClassName": class});
            if dice.chance(90) {
                capacity["capacity"] = json!(dice.pick(&SIZES));
            }
            if dice.chance(25) {
                capacity["maximumVolumeSize"] = json!(dice.pick(&SIZES));
            }
            match dice.below(8) {
                0 => {}
                1 => capacity["nodeTopology"] = json!({}),
                2..4 => {
                    let zone = dice.pick(&ZONES);
                    capacity["nodeTopology"] = json!({"matchLabels": {ZONE: zone}});
                }
                _ => {
                    let all = [requirement(dice, nodes, &operators)];
                    capacity["nodeTopology"] = json!({"matchExpressions": all});
                }
            }
            capacity
        })
        .collect()
}

/// CSI drivers of a node and their limits; seldom none.
fn csi_node(dice: &mut ChoiceDice, at: usize) -> Option<Value> {
    if dice.chance(15) {
        return None;
    }
    let name = format!("n{at}");
    let mut drivers = Vec::new();
    for driver in DRIVERS {
        if dice.chance(25) {
            continue;
        }
        let mut found = json!({"name": driver, "nodeID": name, "topologyKeys": null});
        match dice.below(8) {
            0 => {}
            1 => found["allocatable"] = json!({}),
            2 => found["allocatable"] = json!({"count": 0}),
            _ => found["allocatable"] = json!({"count": 1 + dice.below(4)}),
        }
        drivers.push(found);
    }
    let mut node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
    in_tree::move_plugins(dice, &mut node);
    Some(node)
}

fn attachments(dice: &mut ChoiceDice, nodes: usize) -> Vec<Value> {
    (0..dice.below(6))
        .map(|at| {
            let node = format!("n{}", dice.below(nodes + 1));
            let source = match dice.below(10) {
                0 => json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"]}}),
                _ => json!({"persistentVolumeName": format!("v{}", dice.below(VOLUMES_MAX))}),
            };
            json!({"metadata": {"name": format!("a{at}")}, "spec": {
                "attacher": dice.pick(&DRIVERS), "nodeName": node, "source": source},
                "status": {"attached": dice.chance(80)}})
        })
        .collect()
}

fn modes(dice: &mut ChoiceDice) -> Vec<String> {
    let mut modes = vec![dice.pick(&MODES[..2])];
    if dice.chance(25) {
        modes.push(dice.pick(&MODES[1..]));
    }
    modes
}

/// Sets the class of a claim or a volume, in the spec or in the old annotation.
fn set_class(dice: &mut ChoiceDice, object: &mut Value, class: &str) {
    if dice.chance(5) {
        object["metadata"]["annotations"][OLD_CLASS] = json!(class);
        object["spec"]["storageClassName"] = json!(dice.pick(&CLASSES));
    } else if !class.is_empty() || dice.chance(50) {
        object["spec"]["storageClassName"] = json!(class);
    }
}

/// Fields that the specs of volumes and of claims share.
fn set_common(dice: &mut ChoiceDice, object: &mut Value) {
    if dice.chance(30) {
        let mode = if dice.chance(70) { "Filesystem" } else { "Block" };
        object["spec"]["volumeMode"] = json!(mode);
    }
    if dice.chance(6) {
        let class = dice.pick(&["gold", "silver"]);
        object["spec"]["volumeAttributesClassName"] = json!(class);
    }
    if dice.chance(4) {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
}

fn volumes(dice: &mut ChoiceDice, size: WorldSize, binds: bool, claims: &[Value]) -> Vec<Value> {
    let first = dice.below(CAPACITIES);
    let mut free: Vec<&Value> = claims.iter().collect();
    (0..size.volumes)
        .map(|at| {
            let room = 1 + (first + at * 5) % CAPACITIES;
            let mut volume = json!({
                "metadata": {"name": format!("v{at}"), "resourceVersion": "1"},
                "spec": {"capacity": {"storage": format!("{room}Gi")}},
            });
            let class = dice.pick(&CLASSES[1..CLASSES.len() - 1]);
            set_class(dice, &mut volume, &class);
            set_common(dice, &mut volume);
            set_source(dice, &mut volume, binds);
            if dice.chance(70) {
                volume["spec"]["nodeAffinity"] = reach(dice, size.nodes);
            }
            if dice.chance(40) {
                set_claim(dice, &mut volume, &mut free);
            }
            volume
        })
        .collect()
}

/// Sets the access modes, phase, source and node affinity of a volume.
fn set_source(dice: &mut ChoiceDice, volume: &mut Value, binds: bool) {
    let mut all = modes(dice);
    all.extend(dice.chance(70).then(|| MODES[0].to_owned()));
    all.extend(dice.chance(60).then(|| MODES[3].to_owned()));
    volume["spec"]["accessModes"] = json!(all);
    volume["status"] = match dice.below(12) {
        0 => json!({"phase": dice.pick(&["Released", "Failed", "Pending"])}),
        1 => json!({"phase": "Bound"}),
        2 => json!({}),
        _ => json!({"phase": "Available"}),
    };
    if dice.chance(30) {
        let (field, source) = in_tree::source(dice, false, binds);
        volume["spec"][field] = source;
    } else if dice.chance(20) {
        volume["spec"]["csi"] = in_tree::csi(dice);
    } else if dice.chance(65) {
        // Few handles: two volumes may be one disk.
        let handle = format!("h{}", dice.below(VOLUMES_MAX));
        volume["spec"]["csi"] = json!({"driver": dice.pick(&DRIVERS), "volumeHandle": handle});
    } else {
        volume["spec"]["local"] = json!({"path": "/v"});
    }
    for (key, percent, values) in [
        (ZONE, 20, &ZONES_OF_VOLUME[..]),
        (OLD_ZONE, 10, &ZONES_OF_VOLUME[..]),
        (REGION, 10, &REGIONS[..]),
        (OLD_REGION, 6, &REGIONS[..]),
        ("tier", 50, &["fast", "slow"][..]),
    ] {
        if dice.chance(percent) {
            volume["metadata"]["labels"][key] = json!(dice.pick(values));
        }
    }
    if binds {
        in_tree::put_right(dice, volume);
    }
}

/// Pre-binds a volume to a claim without another volume, or to a stale one.
fn set_claim(dice: &mut ChoiceDice, volume: &mut Value, free: &mut Vec<&Value>) {
    let claim = free.swap_remove(dice.below(free.len()));
    let metadata = &claim["metadata"];
    let mut to = json!({"namespace": metadata["namespace"], "name": metadata["name"]});
    match dice.below(6) {
        0 => to["uid"] = json!("of another"),
        1 => to["namespace"] = json!("c"),
        2 | 3 => {}
        _ => to["uid"] = metadata["uid"].clone(),
    }
    volume["spec"]["claimRef"] = to;
}

/// Volumes that a claim wants, by label.
fn selector(dice: &mut ChoiceDice) -> Value {
    if dice.chance(35) {
        return json!({"matchLabels": {"tier": dice.pick(&["fast", "slow"])}});
    }
    let operator = dice.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
    let mut wanted = json!({"key": "tier", "operator": operator});
    if operator.ends_with("In") {
        wanted["values"] = json!([dice.pick(&["fast", "slow"])]);
    }
    json!({"matchExpressions": [wanted]})
}

fn claim(dice: &mut ChoiceDice, at: usize, size: WorldSize) -> Value {
    let space = if at.is_multiple_of(4) { "b" } else { "a" };
    claim_named(dice, space, &format!("c{at}"), size)
}

fn claim_named(dice: &mut ChoiceDice, space: &str, name: &str, size: WorldSize) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": space, "uid": format!("uid-{space}-{name}"),
            "resourceVersion": "1"},
        "spec": {"accessModes": modes(dice), "resources": {}},
        "status": {},
    });
    let known = if dice.chance(95) { CLASSES.len() - 2 } else { CLASSES.len() };
    // One that needs a volume before a pod refuses all.
    let first = usize::from(dice.chance(92));
    let class = dice.pick(&CLASSES[first..known]);
    set_class(dice, &mut claim, &class);
    set_common(dice, &mut claim);
    if dice.chance(95) {
        claim["spec"]["resources"] = json!({"requests": {"storage": dice.pick(&SIZES)}});
    }
    if dice.chance(8) {
        claim["spec"]["selector"] = selector(dice);
    }
    let is_named = dice.chance(if first == 0 { 90 } else { 40 });
    if is_named {
        let gone = usize::from(dice.chance(40));
        claim["spec"]["volumeName"] = json!(format!("v{}", dice.below(size.volumes + gone)));
    }
    if dice.chance(if is_named { 96 } else { 3 }) {
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        claim["status"]["phase"] = json!("Bound");
    }
    if dice.chance(2) {
        claim["status"]["phase"] = json!("Lost");
    }
    if dice.chance(10) {
        let node = format!("n{}", dice.below(size.nodes + 1));
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = json!(node);
    }
    claim
}

/// The claim of a pod's ephemeral volume `e`, unless it is missing; `any`: another pod may own it.
fn claim_for(dice: &mut ChoiceDice, pod: &Value, size: WorldSize, any: bool) -> Option<Value> {
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.find(|volume| volume["name"] == "e" && !dice.chance(10))?;
    let (space, pod) = (pod["metadata"]["namespace"].as_str()?, pod["metadata"]["name"].as_str()?);
    let mut claim = claim_named(dice, space, &format!("{pod}-e"), size);
    let is_its = !any || dice.chance(90);
    let owner = if is_its { pod } else { "other" };
    claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
        "name": owner, "uid": format!("uid-{owner}"), "controller": true}]);
    Some(claim)
}

fn pod(dice: &mut ChoiceDice, name: &str) -> Value {
    let space = if dice.chance(80) { "a" } else { "b" };
    let volumes: Vec<Value> = (0..1 + dice.below(4)).map(|at| volume(dice, space, at)).collect();
    json!({"metadata": {"name": name, "namespace": space, "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}})
}

/// A volume of a pod.
fn volume(dice: &mut ChoiceDice, space: &str, at: usize) -> Value {
    let name = format!("x{at}");
    if dice.chance(20) {
        let (field, source) = in_tree::source(dice, true, true);
        return json!({"name": name, field: source});
    }
    let reads = dice.chance(50);
    match dice.below(20) {
        0 if at == 0 => json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        1 if at == 0 => json!({"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        0 | 2 => json!({"name": name, "csi": {"driver": dice.pick(&DRIVERS)}}),
        1 | 3 => json!({"name": name, "emptyDir": {}}),
        4 => json!({"name": name, "gcePersistentDisk":
            {"pdName": dice.pick(&["d1", "d2"]), "readOnly": reads}}),
        5 => json!({"name": name, "awsElasticBlockStore":
            {"volumeID": dice.pick(&["d1", "d2"]), "readOnly": reads}}),
        6 => json!({"name": name, "iscsi": {"targetPortal": "t", "lun": dice.below(2),
            "iqn": dice.pick(&["d1", "d2"]), "readOnly": reads}}),
        7 => {
            let monitors: Vec<String> =
                (0..1 + dice.below(2)).map(|_| dice.pick(&["m1", "m2", "m3"])).collect();
            let mut rbd = json!({"monitors": monitors, "image": dice.pick(&["d1", "d2"]),
                "readOnly": reads});
            if dice.chance(30) {
                rbd["pool"] = json!(dice.pick(&["rbd", "p"]));
            }
            json!({"name": name, "rbd": rbd})
        }
        _ => {
            // Claims of the pod's namespace, and seldom a missing one.
            let all: Vec<usize> =
                (0..CLAIMS).filter(|n| n.is_multiple_of(4) == (space == "b")).collect();
            let number = match dice.chance(3) {
                true => CLAIMS,
                false => all[dice.below(all.len())],
            };
            json!({"name": name, "persistentVolumeClaim": {"claimName": format!("c{number}")}})
        }
    }
}
