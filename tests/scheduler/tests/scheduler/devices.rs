//! Pods with claims of devices beside kube-scheduler: each has nodes of its own with the same
//! devices, and the claims get the same of them, in the same words.

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::{Api, WatchEvent, WatchParams};
use nix::sys::signal::Signal;
use pintle_testbed::wait::LONG;
use serde_json::{Value, json};

use crate::metrics;
use crate::shadow::{create, is_bound, patch};
use crate::stand::SchedulerStand;

/// Port of ours beside kube-scheduler.
const OURS: u16 = 10261;
/// The two schedulers; each name is also a namespace and the prefix of its nodes.
const SIDES: [&str; 2] = ["theirs", "ours"];

/// A node's devices, claims, and the pods that use these, one after the other.
struct DeviceCase {
    name: &'static str,
    /// Fields of the slice beside its pool, and sets of counters in a slice of their own.
    slice: Value,
    counters: Value,
    /// The devices are not the node's: they are attached to it, which its labels say.
    is_attached: bool,
    /// `spec.devices` of each claim.
    claims: Vec<Value>,
    /// Numbers of the claims that each pod uses.
    pods: Vec<Vec<usize>>,
    /// Containers of each pod, where they ask for extended resources instead.
    asking: Vec<Value>,
}

impl DeviceCase {
    fn new(name: &'static str, devices: Value, claims: Vec<Value>) -> Self {
        let pods = (0..claims.len()).map(|at| vec![at]).collect();
        let slice = json!({"devices": devices});
        let (counters, is_attached) = (Value::Null, false);
        let asking = Vec::new();
        Self { name, slice, counters, is_attached, claims, pods, asking }
    }
}

/// A claim with one request.
fn one(request: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "any"});
    let fields = exactly.as_object_mut().expect("an object");
    fields.extend(request.as_object().expect("an object").clone());
    json!({"requests": [{"name": "r", "exactly": exactly}]})
}

fn cel(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

/// Devices with attributes and capacity.
fn gpus() -> Value {
    let gpu = |name: &str, model: &str, version: &str, memory: &str, numa: i64| {
        json!({"name": name,
            "attributes": {"model": {"string": model}, "driverVersion": {"version": version},
                "numa": {"int": numa}, "x.example/shared": {"bool": numa == 0}},
            "capacity": {"memory": {"value": memory}}})
    };
    json!([
        gpu("g0", "a100", "1.2.3", "40Gi", 0),
        gpu("g1", "a100", "1.10.0", "80Gi", 1),
        gpu("g2", "h100", "2.0.0-rc.1", "80Gi", 1),
        gpu("g3", "h100", "2.0.0", "80Gi", 0),
    ])
}

fn selectors() -> Vec<DeviceCase> {
    let all = [
        "device.attributes['d.example'].model == 'h100'",
        "device.attributes['d.example'].driverVersion.isGreaterThan(semver('1.9.0'))",
        "device.capacity['d.example'].memory.compareTo(quantity('40Gi')) > 0",
        "device.attributes['x.example'].shared && device.driver == 'd.example'",
        "'nothing' in device.attributes['d.example']",
        "device.attributes['d.example'].nothing == 'x'",
        "device.attributes['d.example'].model.startsWith('a') ? true : false",
    ];
    let claims = all.into_iter().map(|text| one(json!({"selectors": cel(text)})));
    vec![
        DeviceCase::new("selectors", gpus(), claims.collect()),
        DeviceCase::new(
            "counts",
            gpus(),
            vec![one(json!({"count": 2})), one(json!({"count": 3})), one(json!({"count": 2}))],
        ),
        DeviceCase::new("all", gpus(), vec![one(json!({"allocationMode": "All"})), one(json!({}))]),
        DeviceCase::new(
            "broken",
            gpus(),
            [
                "device.attributes['d.example'].nothing == 'x'",
                "device.capacity['d.example'].memory.isGreaterThan(quantity('1Ti'))",
            ]
            .map(|text| one(json!({"selectors": cel(text)})))
            .into(),
        ),
        DeviceCase::new("no-class", gpus(), vec![one(json!({"deviceClassName": "nobody"}))]),
        DeviceCase::new(
            "with-config",
            gpus(),
            vec![{
                let mut claim = one(json!({"deviceClassName": "configured"}));
                let own = json!({"driver": "d.example", "parameters": {"own": true}});
                claim["config"] = json!([{"requests": ["r"], "opaque": own}]);
                claim
            }],
        ),
    ]
}

fn together() -> Vec<DeviceCase> {
    let pair = |constraint: Value| {
        let request =
            |name: &str| json!({"name": name, "exactly": {"deviceClassName": "any", "count": 1}});
        json!({"requests": [request("x"), request("y")], "constraints": [constraint]})
    };
    let first = |names: [&str; 2]| {
        let sub = |name: &str, model: &str, count: i64| {
            let text = format!("device.attributes['d.example'].model == '{model}'");
            json!({"name": name, "deviceClassName": "any", "count": count,
                "selectors": cel(&text)})
        };
        json!({"requests": [{"name": "r",
            "firstAvailable": [sub("best", names[0], 3), sub("good", names[1], 1)]}]})
    };
    let mut shared = DeviceCase::new("shared", gpus(), vec![one(json!({"count": 4}))]);
    shared.pods = vec![vec![0], vec![0]];
    let mut several = DeviceCase::new(
        "several",
        gpus(),
        vec![
            one(json!({})),
            one(json!({"selectors": cel("device.attributes['d.example'].numa == 0")})),
        ],
    );
    several.pods = vec![vec![0, 1]];
    let mut attached =
        DeviceCase::new("attached", gpus(), vec![one(json!({"count": 2})), one(json!({}))]);
    attached.is_attached = true;
    vec![
        attached,
        DeviceCase::new(
            "match",
            gpus(),
            vec![
                pair(json!({"matchAttribute": "d.example/numa"})),
                pair(json!({"matchAttribute": "d.example/numa"})),
            ],
        ),
        DeviceCase::new(
            "alternatives",
            gpus(),
            vec![first(["a100", "h100"]), first(["h100", "a100"])],
        ),
        shared,
        several,
    ]
}

fn parts() -> Vec<DeviceCase> {
    let part = |name: &str, memory: &str| {
        json!({"name": name, "consumesCounters": [
            {"counterSet": "card", "counters": {"memory": {"value": memory}}}]})
    };
    let mut partitions = DeviceCase::new(
        "partitions",
        json!([part("half-0", "20Gi"), part("half-1", "20Gi"), part("whole", "40Gi")]),
        vec![one(json!({})), one(json!({})), one(json!({}))],
    );
    partitions.counters = json!([{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]);
    let nic = json!([{"name": "nic", "allowMultipleAllocations": true, "capacity": {"bandwidth": {
        "value": "10Gi", "requestPolicy": {"default": "1Gi",
            "validRange": {"min": "1Gi", "step": "1Gi"}}}}}]);
    let wants = |amount: &str| one(json!({"capacity": {"requests": {"bandwidth": amount}}}));
    let taint = |effect: &str| json!({"key": "broken", "value": "yes", "effect": effect});
    let tainted = json!([{"name": "bad", "taints": [taint("NoSchedule")]},
        {"name": "worse", "taints": [taint("NoExecute")]}]);
    let tolerates = json!({"tolerations": [{"key": "broken", "operator": "Exists",
        "effect": "NoExecute"}]});
    vec![
        partitions,
        DeviceCase::new(
            "capacity",
            nic,
            vec![wants("6500Mi"), one(json!({})), wants("4Gi"), wants("2Gi")],
        ),
        DeviceCase::new("taints", tainted, vec![one(tolerates), one(json!({}))]),
        DeviceCase::new(
            "watched",
            gpus(),
            vec![
                one(json!({"count": 4})),
                one(json!({"allocationMode": "All", "adminAccess": true})),
            ],
        ),
    ]
}

/// Pods that request devices of classes by the name of an extended resource.
fn extended() -> Vec<DeviceCase> {
    let container = |name: &str, amount: i64, more: Value| {
        let amounts = json!({"cpu": "1", "d.example/gpu": amount.to_string()});
        let mut one = json!({"name": name, "image": "i",
            "resources": {"requests": amounts, "limits": amounts}});
        let fields = one.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        one
    };
    let plain = |name: &str, amount: i64| container(name, amount, json!({}));
    let own_name = "deviceclass.resource.kubernetes.io/any";
    let by_class = json!({"name": "c", "image": "i", "resources":
        {"requests": {own_name: "1"}, "limits": {own_name: "1"}}});
    let mut case = DeviceCase::new("extended", gpus(), Vec::new());
    case.asking = vec![
        json!({"containers": [plain("a", 1)]}),
        json!({"containers": [plain("a", 1), plain("b", 1)],
            "initContainers": [plain("i", 2),
                container("s", 1, json!({"restartPolicy": "Always"}))]}),
        json!({"containers": [plain("a", 1)]}),
    ];
    let mut of_class = DeviceCase::new("of-class", gpus(), Vec::new());
    of_class.asking =
        vec![json!({"containers": [by_class]}), json!({"containers": [plain("a", 9)]})];
    vec![case, of_class]
}

fn cases() -> Vec<DeviceCase> {
    selectors().into_iter().chain(together()).chain(parts()).chain(extended()).collect()
}

/// Classes, namespaces, and a node for each case on either side.
async fn set_up(client: &kube::Client) -> Result<()> {
    let classes = Api::<DeviceClass>::all(client.clone());
    let selectors = cel("device.driver == 'd.example'");
    create(&classes, json!({"metadata": {"name": "any"}, "spec": {"selectors": selectors}}))
        .await?;
    let config = json!([{"opaque": {"driver": "d.example", "parameters": {"class": 1}}}]);
    let configured = json!({"metadata": {"name": "configured"},
        "spec": {"selectors": selectors, "config": config}});
    create(&classes, configured).await?;
    let offers = json!({"metadata": {"name": "offered"},
        "spec": {"selectors": selectors, "extendedResourceName": "d.example/gpu"}});
    create(&classes, offers).await?;
    for side in SIDES {
        // Admin access to devices in use needs this label.
        let labels = json!({"resource.kubernetes.io/admin-access": "true"});
        let namespace = json!({"metadata": {"name": side, "labels": labels}});
        create(&Api::<Namespace>::all(client.clone()), namespace).await?;
        let account = json!({"metadata": {"name": "default"}});
        create(&Api::<ServiceAccount>::namespaced(client.clone(), side), account).await?;
        for case in cases() {
            add_node(client, side, &case).await?;
        }
    }
    Ok(())
}

async fn add_node(client: &kube::Client, side: &str, case: &DeviceCase) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = format!("{side}-{}", case.name);
    let room = json!({"cpu": "100", "memory": "100Gi", "pods": "110"});
    let labels = json!({"kubernetes.io/hostname": name});
    let node = json!({"metadata": {"name": name, "labels": labels},
        "status": {"allocatable": room, "capacity": room}});
    create(&nodes, node).await?;
    patch(&nodes, &name, json!({"spec": {"taints": []}})).await?;
    let slices = Api::<ResourceSlice>::all(client.clone());
    let count = if case.counters.is_null() { 1 } else { 2 };
    let mut spec = json!({"driver": "d.example",
        "pool": {"name": name, "generation": 1, "resourceSliceCount": count}});
    let this = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [name]});
    match case.is_attached {
        true => {
            let terms = json!([{"matchExpressions": [this]}]);
            spec["nodeSelector"] = json!({"nodeSelectorTerms": terms});
        }
        false => spec["nodeName"] = json!(name),
    }
    let mut own = spec.clone();
    let fields = own.as_object_mut().expect("an object");
    fields.extend(case.slice.as_object().expect("an object").clone());
    create(&slices, json!({"metadata": {"name": format!("{name}-devices")}, "spec": own})).await?;
    if !case.counters.is_null() {
        let mut counters = spec;
        counters["sharedCounters"] = case.counters.clone();
        let metadata = json!({"name": format!("{name}-counters")});
        create(&slices, json!({"metadata": metadata, "spec": counters})).await?;
    }
    Ok(())
}

/// Outcome of a pod: its node, or why it has none.
async fn settled(pods: &Api<Pod>, name: &str) -> Result<Value> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = pods.watch(&params, "0").await?.boxed();
    loop {
        let event = events.try_next().await?.context("the watch ended")?;
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
        if is_bound(&pod) {
            return Ok(json!({"node": pod.spec.and_then(|spec| spec.node_name)}));
        }
        let all = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        if let Some(said) = all.into_iter().find(|condition| condition.type_ == "PodScheduled") {
            return Ok(json!({"reason": said.reason, "message": said.message}));
        }
    }
}

/// Runs a case on one side; returns the outcome of its pods and claims.
async fn run(client: &kube::Client, side: &str, case: &DeviceCase) -> Result<Value> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), side);
    let claim_name = |at: usize| format!("{}-{at}", case.name);
    for (at, devices) in case.claims.iter().enumerate() {
        let claim = json!({"metadata": {"name": claim_name(at)}, "spec": {"devices": devices}});
        create(&claims, claim).await.context(case.name)?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), side);
    let mut seen = Vec::new();
    for (at, used) in case.pods.iter().enumerate() {
        let name = format!("{}-{at}", case.name);
        let used = used.iter().enumerate();
        let used: Vec<Value> = used
            .map(|(n, at)| json!({"name": format!("c{n}"), "resourceClaimName": claim_name(*at)}))
            .collect();
        let containers = json!([{"name": "c", "image": "i"}]);
        let of_pod = json!({"containers": containers, "resourceClaims": used});
        create(&pods, pod(side, case, &name, &of_pod)).await?;
        seen.push(became_of(&pods, side, &name).await?);
    }
    for (at, asking) in case.asking.iter().enumerate() {
        let name = format!("{}-{at}", case.name);
        create(&pods, pod(side, case, &name, asking)).await?;
        seen.push(became_of(&pods, side, &name).await?);
        let made = pods.get(&name).await?.status.and_then(|all| all.extended_resource_claim_status);
        let mut made = json!(made);
        let name = made["resourceClaimName"].as_str().map(str::to_owned);
        made["resourceClaimName"] = json!(name.is_some());
        seen.push(made);
        if let Some(name) = name {
            seen.push(seen_of(&claims.get(&name).await?));
        }
    }
    for at in 0..case.claims.len() {
        seen.push(seen_of(&claims.get(&claim_name(at)).await?));
    }
    let text = serde_json::to_string(&seen)?.replace(&format!("{side}-"), "");
    Ok(serde_json::from_str(&text.replace(side, "side"))?)
}

/// A pod for the node of a case.
fn pod(side: &str, case: &DeviceCase, name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["schedulerName"] = json!(if side == "ours" { "ours" } else { "default-scheduler" });
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": format!("{side}-{}", case.name)});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn became_of(pods: &Api<Pod>, side: &str, name: &str) -> Result<Value> {
    let what = || format!("{side}: pod {name} is neither bound nor refused");
    tokio::time::timeout(LONG, settled(pods, name)).await.with_context(what)?
}

/// A claim without what differs from run to run.
fn seen_of(claim: &ResourceClaim) -> Value {
    let metadata = &claim.metadata;
    let mut seen = json!({"finalizers": metadata.finalizers, "annotations": metadata.annotations,
        "owners": metadata.owner_references, "spec": claim.spec, "status": claim.status});
    forget(&mut seen);
    seen
}

/// Removes times and random values.
fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for made_up in ["allocationTimestamp", "shareID", "uid"] {
                fields.entry(made_up).and_modify(|value| *value = json!("x"));
            }
            fields.values_mut().for_each(forget);
        }
        Value::Array(all) => all.iter_mut().for_each(forget),
        _ => {}
    }
}

#[test]
fn claims_are_allocated_the_same_devices_as_by_kube_scheduler() {
    let stand =
        SchedulerStand::start("devices", &json!({"leaderElection": {"leaderElect": false}}));
    stand.with_client(async |client| set_up(&client).await);
    let config = stand.file(
        "ours.json",
        &json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration", "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": stand.credentials()},
            "profiles": [{"schedulerName": "ours"}]}),
    );
    let mut args = stand.serving();
    // It reads the CA of its clients from the cluster, as kube-scheduler does.
    args.retain(|arg| !arg.starts_with("--client-ca-file"));
    args.push(format!("--config={}", config.display()));
    args.push(format!("--secure-port={OURS}"));
    let ours = stand.start_ours(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut differ = Vec::new();
    for case in cases() {
        let [theirs, ours] = stand.with_client(async |client| {
            let both = SIDES.map(|side| run(&client, side, &case));
            let [theirs, ours] = both;
            let (theirs, ours) = tokio::join!(theirs, ours);
            Ok([theirs?, ours?])
        });
        println!("{}: {theirs:#}", case.name);
        if theirs != ours {
            differ.push(format!("{}: theirs {theirs:#}\nours {ours:#}", case.name));
        }
    }
    assert!(differ.is_empty(), "{}\n{}", differ.join("\n"), stand.ours_log_end());
    stand.with_client(async |client| metrics::declaring(&client, SIDES[0]).await);
    metrics::resources_alike(&stand, OURS);
    metrics::metrics_alike(&stand, OURS);
    metrics::proxies_are_believed_alike(&stand, OURS);
    assert!(ours.end(Signal::SIGTERM), "{}", stand.ours_log_end());
}
