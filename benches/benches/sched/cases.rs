//! Decisions that the plain case does not cover: other kinds of pods, slopes, a million nodes.
//!
//! Input: clusters of `cluster.rs`. Output: lines of the table, microseconds of CPU a pod. The
//! million nodes are decided only if `PINTLE_MILLION_PODS` sets the number of pods, each of which
//! is compiled and placed. A million pods take four minutes.

use std::hint::black_box;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_sched_core::config::Strategy;
use pintle_sched_core::program::Program;
use pintle_sched_core::repeat::Repeat;
use pintle_sched_core::{Cluster, Profile, Scratch, decide};
use serde_json::json;

use super::{DISTINCT, NODES, PODS, cluster, cpu_ns, time};

/// Pods of one kind, by number.
type Kind = fn(usize) -> Pod;

fn asking(at: usize, resource: &str, amount: &str) -> Pod {
    cluster::change(cluster::pod(at, false), |p| {
        p["spec"]["containers"][0]["resources"]["requests"][resource] = json!(amount);
    })
}

/// Every pod requests an amount that no other pod requests.
fn unlike_any(at: usize) -> Pod {
    asking(at, "cpu", &format!("{}m", 100 + at % DISTINCT))
}

fn compiled(cluster: &mut Cluster, kind: impl Fn(usize) -> Pod) -> Vec<Arc<Program>> {
    let pods = (0..DISTINCT).map(|at| kind(1_000_000 + at));
    pods.map(|pod| cluster.compile(&pod).expect("pod")).collect()
}

/// Nanoseconds a decision.
fn decided(cluster: &Cluster, programs: &[Arc<Program>]) -> f64 {
    let mut scratch = Scratch::default();
    time(DISTINCT, |at| {
        black_box(decide(cluster.view(), &programs[at % programs.len()], &mut scratch));
    })
}

/// Nanoseconds of a decision, a placement and its removal, which invalidate cached results.
fn placed(cluster: &mut Cluster, kind: impl Fn(usize) -> Pod) -> f64 {
    let pods = (0..DISTINCT).map(|at| kind(1_000_000 + at));
    let mut read =
        |pod| (cluster.compile(&pod).expect("pod"), cluster.read_pod(&pod).expect("pod"));
    let pods: Vec<_> = pods.map(&mut read).collect();
    let mut scratch = Scratch::default();
    time(DISTINCT, |at| {
        let (program, spec) = &pods[at];
        if let Some(row) = decide(cluster.view(), program, &mut scratch).first {
            let node = cluster.node_name(row).to_owned();
            let id = cluster.place_spec(spec, &node, true);
            cluster.remove(id);
        }
    })
}

/// A node of the plain case; every second one has GPUs.
fn with_gpu(at: usize, mut node: Node) -> Node {
    if at.is_multiple_of(2) {
        let list = node.status.as_mut().and_then(|s| s.allocatable.as_mut());
        let eight = serde_json::from_value(json!("8")).expect("quantity");
        list.expect("allocatable").insert("example.com/gpu".into(), eight);
    }
    node
}

/// Other kinds of pods, and the cost of more selectors.
pub(crate) fn kinds() {
    let mut world = cluster::cluster(NODES, PODS);
    for at in 0..NODES {
        world.set_node(&with_gpu(at, cluster::node(at))).expect("node");
    }
    let kinds: [(&str, Kind); 5] = [
        ("plain", |at| cluster::pod(at, false)),
        ("no shape repeats", unlike_any),
        ("required anti-affinity", cluster::lonely),
        ("extended resource", |at| asking(at, "example.com/gpu", "1")),
        ("fits nowhere", |at| asking(at, "cpu", "4000")),
    ];
    for (name, kind) in kinds {
        let programs = compiled(&mut world, kind);
        let (alone, placed) = (decided(&world, &programs), placed(&mut world, kind));
        println!(
            "5,000 nodes, {name}: {:.2} us a decision, {:.2} us with a placement and its undoing",
            alone / 1e3,
            placed / 1e3
        );
    }
    let most = Profile { strategy: Strategy::MostAllocated, ..Profile::default() };
    world.use_profile(&Arc::new(most));
    let programs = compiled(&mut world, |at| cluster::pod(at, false));
    println!("5,000 nodes, MostAllocated: {:.2} us", decided(&world, &programs) / 1e3);
    selectors();
}

fn selectors() {
    let mut world = cluster::cluster(NODES, PODS);
    let plain = |at| cluster::pod(at, false);
    let few = placed(&mut world, plain);
    for at in 0..cluster::APPS * 9 {
        let pod = cluster::change(cluster::pod(at, false), |p| {
            let apps = json!([format!("app-{}", at % cluster::APPS), format!("other-{at}")]);
            p["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchExpressions": [
                    {"key": "app", "operator": "In", "values": apps}]}}]);
        });
        world.compile(&pod).expect("pod");
    }
    let many = placed(&mut world, plain);
    println!("ten times the selectors: {:.2} us with placement, {:.2}x", many / 1e3, many / few);
}

/// A million nodes, and `PINTLE_MILLION_PODS` pods.
pub(crate) fn million() {
    let asked = std::env::var("PINTLE_MILLION_PODS").ok().and_then(|n| n.parse::<usize>().ok());
    let Some(pods) = asked else {
        return println!("1,000,000 nodes: not asked for (PINTLE_MILLION_PODS)");
    };
    const MILLION: usize = 1_000_000;
    let mut world = Cluster::new(Profile::default());
    // So that pods are spread.
    cluster::objects(0, 0).2.iter().for_each(|service| world.set_service(service));
    for at in 0..MILLION {
        world.set_node(&cluster::node(at)).expect("node");
    }
    let mut scratch = Scratch::default();
    let (mut deciding, mut all) = (0.0, 0.0);
    for at in 0..pods {
        let pod = cluster::pod(at, false);
        let begun = cpu_ns();
        let program = world.compile(&pod).expect("pod");
        let compiled = cpu_ns();
        let row = decide(world.view(), &program, &mut scratch).first.expect("room");
        deciding += cpu_ns() - compiled;
        let node = world.node_name(row).to_owned();
        world.assume(&pod, &node).expect("a new pod");
        all += cpu_ns() - begun;
    }
    println!(
        "1,000,000 nodes, {pods} distinct pods: {:.0} us a decision, {:.1} s in all",
        deciding / pods as f64 / 1e3,
        all / 1e9
    );
    let mut pod = cluster::pod(5, false);
    let program = world.compile(&pod).expect("pod");
    let mut repeat = Repeat::new(world.view(), &program, &mut scratch).expect("no affinity");
    let mut all = 0.0;
    for at in 0..pods {
        pod.metadata.name = Some(format!("same-{at}"));
        pod.metadata.uid = pod.metadata.name.clone();
        let begun = cpu_ns();
        let row = repeat.decide(world.view()).first.expect("room");
        let node = world.node_name(row).to_owned();
        world.assume(&pod, &node).expect("a new pod");
        assert!(repeat.changed(world.view(), row), "placements of this pod alone");
        all += cpu_ns() - begun;
    }
    println!("1,000,000 nodes, {pods} identical pods: {:.2} s in all", all / 1e9);
}
