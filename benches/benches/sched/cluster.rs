//! A cluster of realistic shares for the scheduler benchmarks.
//!
//! Input: numbers of nodes and pods. Output: a `Cluster`, and pods to place. Deterministic.
//! Shares: 2 % dedicated and 6 % spot nodes, ten of sixty images a node, three zones, two hundred
//! workloads with service and replica set; of the pods 10 % select a disk, 10 % tolerate the
//! dedicated nodes, 10 % prefer a pool; all are spread by the system defaults.

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use pintle_sched_core::{Cluster, Profile};
use serde_json::json;

/// Workloads.
pub(crate) const APPS: usize = 200;

fn hash(at: usize) -> usize {
    let mut z = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 20) as usize
}

pub(crate) fn node(at: usize) -> Node {
    let mut taints = Vec::new();
    if at.is_multiple_of(50) {
        taints.push(json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}));
    }
    if at.is_multiple_of(17) {
        taints.push(json!({"key": "spot", "effect": "PreferNoSchedule"}));
    }
    let images: Vec<_> = (0..10)
        .map(|k| (at * 7 + k) % 60)
        .map(|i| json!({"names": [format!("reg/app{i}:v1")], "sizeBytes": 50_000_000 + i * 9_000_000}))
        .collect();
    let (cpu, mem) = [("16", 64u64), ("32", 128), ("64", 256)][at % 3];
    let mem = format!("{}Ki", mem * 1024 * 1024 - 300_000);
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": format!("node-{at}"), "labels": {
            "kubernetes.io/hostname": format!("node-{at}"),
            "topology.kubernetes.io/zone": format!("zone-{}", at % 3),
            "topology.kubernetes.io/region": "r1",
            "kubernetes.io/arch": if at.is_multiple_of(5) { "arm64" } else { "amd64" },
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": format!("m{}.large", at % 8),
            "disktype": if at.is_multiple_of(2) { "hdd" } else { "ssd" },
            "pool": format!("p{}", at % 12)}},
        "spec": {"taints": taints},
        "status": {"images": images, "allocatable": {
            "cpu": cpu, "memory": mem, "pods": "110", "ephemeral-storage": "95551679124"}}}))
    .expect("node")
}

/// A pod; `affinity` gives a tenth of them preferred anti-affinity to their own workload.
pub(crate) fn pod(at: usize, affinity: bool) -> Pod {
    let roll = hash(at);
    let app = roll % APPS;
    let cpu = ["100m", "250m", "500m", "1"][roll / 7 % 4];
    let mem = ["128Mi", "512Mi", "1Gi", "2Gi"][roll / 31 % 4];
    let name = format!("app-{app}");
    let mut spec = json!({"priority": 0, "containers": [{"name": "c",
        "image": format!("reg/app{}:v1", app % 60),
        "resources": {"requests": {"cpu": cpu, "memory": mem}}}],
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 300}]});
    match app % 10 {
        0 => spec["nodeSelector"] = json!({"disktype": "ssd"}),
        1 => spec["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]),
        2 => {
            spec["affinity"]["nodeAffinity"] = json!({
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference":
                    {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["p1", "p2"]}]}}]});
        }
        3 if affinity => {
            spec["affinity"]["podAntiAffinity"] = json!({
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
                    "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": name}}}}]});
        }
        4 if affinity => {
            spec["affinity"]["podAffinity"] = json!({
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 30,
                    "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone",
                        "labelSelector": {"matchLabels": {"app": format!("app-{}", (app + 1) % APPS)}}}}]});
        }
        _ => {}
    }
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": format!("pod-{at}"), "namespace": format!("ns-{}", app % 40),
        "uid": format!("uid-{at}"), "labels": {"app": name}}, "spec": spec}))
    .expect("pod")
}

/// Nodes and workloads as objects: nodes, bound pods with their node, services.
pub(crate) fn objects(nodes: usize, pods: usize) -> (Vec<Node>, Vec<Pod>, Vec<Service>) {
    let services = (0..APPS).map(|app| {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("app-{app}"), "namespace": format!("ns-{}", app % 40)},
            "spec": {"selector": {"app": format!("app-{app}")}}}))
        .expect("service")
    });
    let bound = (0..pods).map(|at| {
        let mut bound = pod(at, true);
        let node = format!("node-{}", hash(at * 3 + 1) % nodes);
        bound.spec.as_mut().expect("spec").node_name = Some(node);
        bound
    });
    ((0..nodes).map(node).collect(), bound.collect(), services.collect())
}

/// The cluster of those objects.
pub(crate) fn cluster(nodes: usize, pods: usize) -> Cluster {
    let (nodes, pods, services) = objects(nodes, pods);
    let mut cluster = Cluster::new(Profile::default());
    services.iter().for_each(|s| cluster.set_service(s));
    for node in &nodes {
        cluster.set_node(node).expect("node");
    }
    for pod in &pods {
        cluster.set_pod(pod).expect("pod");
    }
    cluster
}

/// The pod with other fields.
pub(crate) fn change(pod: Pod, with: impl FnOnce(&mut serde_json::Value)) -> Pod {
    let mut value = serde_json::to_value(pod).expect("pod");
    with(&mut value);
    serde_json::from_value(value).expect("pod")
}

/// A pod with anti-affinity to pods like it.
pub(crate) fn lonely(at: usize) -> Pod {
    change(pod(at, false), |p| {
        let labels = p["metadata"]["labels"].clone();
        p["spec"]["affinity"]["podAntiAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]});
    })
}
