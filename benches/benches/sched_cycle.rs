//! Cost of a placed pod from end to end: compile, decide, reserve, publish, confirm.
//!
//! Input: clusters of `sched/cluster.rs`, kinds of pods. Output: one table, microseconds of CPU a
//! pod. Each pod is new: no result is cached. A stage is timed over `BATCH` pods, so that reading
//! the clock does not count. Slopes are the cost of five times the bound pods and ten times the
//! selectors.
#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "sched/cluster.rs"]
mod cluster;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use nix::time::{ClockId, clock_gettime};
use pintle_sched_core::shared::SharedCluster;
use pintle_sched_core::{Cluster, Scratch, decide};
use serde_json::json;

const NODES: usize = 5_000;
const PODS: usize = 20_000;
/// Pods of a stage that are timed together.
const BATCH: usize = 128;
/// Batches of a kind; the quickest counts.
const BATCHES: usize = 12;

/// CPU time of this thread in nanoseconds; the kernel's files count in ticks.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux");
    time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64
}

/// Pods of one kind, by number.
type Kind = fn(usize) -> Pod;

fn plain(at: usize) -> Pod {
    cluster::pod(at, false)
}

/// As many pods of each workload as a replica set would have.
fn repeated(at: usize) -> Pod {
    let mut pod = cluster::pod(at % 16, false);
    pod.metadata.name = Some(format!("pod-{at}"));
    pod.metadata.uid = Some(format!("uid-{at}"));
    pod
}

fn preferred(at: usize) -> Pod {
    cluster::pod(at, true)
}

fn gpu(at: usize) -> Pod {
    cluster::change(cluster::pod(at, false), |p| {
        p["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    })
}

fn host_port(at: usize) -> Pod {
    cluster::change(cluster::pod(at, false), |p| {
        p["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 80, "hostPort": 7000 + at % 400}]);
    })
}

fn ordinal(at: usize) -> Pod {
    cluster::change(cluster::pod(at, false), |p| {
        let name = p["metadata"]["name"].clone();
        p["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = name;
    })
}

/// A cluster with eight GPUs on half of its nodes, with disks of both kinds.
fn world(pods: usize) -> Cluster {
    let (nodes, bound, services) = cluster::objects(NODES, pods);
    let mut cluster = Cluster::new(pintle_sched_core::Profile::default());
    services.iter().for_each(|s| cluster.set_service(s));
    for (at, mut node) in nodes.into_iter().enumerate() {
        if at % 4 < 2 {
            let list = node.status.as_mut().and_then(|s| s.allocatable.as_mut());
            let eight = serde_json::from_value(json!("8")).expect("quantity");
            list.expect("allocatable").insert("example.com/gpu".into(), eight);
        }
        cluster.set_node(&node).expect("node");
    }
    for pod in &bound {
        let _ = cluster.set_pod(pod).expect("pod");
    }
    cluster
}

/// Nanoseconds a pod: compile and read, decide, reserve and publish, confirm.
fn stages(cluster: Cluster, kind: Kind) -> [f64; 4] {
    let shared = SharedCluster::new(cluster);
    let mut best = [f64::INFINITY; 4];
    let mut scratch = Scratch::default();
    for batch in 0..BATCHES {
        let pods: Vec<Pod> = (0..BATCH).map(|at| kind(3_000_000 + batch * BATCH + at)).collect();
        let start = cpu_ns();
        let work: Vec<_> = pods
            .iter()
            .map(|pod| {
                let (program, spec) = shared.with_cluster(|c| c.prepare(pod)).expect("pod");
                (program, Arc::new(spec))
            })
            .collect();
        let compiled = cpu_ns();
        for (program, _) in &work {
            std::hint::black_box(decide(&shared.view(), program, &mut scratch));
        }
        let decided = cpu_ns();
        let mut rows = Vec::with_capacity(BATCH);
        for (program, spec) in &work {
            let view = shared.view();
            let row = decide(&view, program, &mut scratch).first.expect("room");
            shared.reserve(&view, program, spec, row).expect("no other decision");
            rows.push(row);
        }
        let reserved = cpu_ns();
        let names: Vec<String> =
            shared.with_cluster(|c| rows.iter().map(|row| c.node_name(*row).to_owned()).collect());
        let bound = |(mut pod, name): (Pod, String)| {
            pod.spec.as_mut().expect("spec").node_name = Some(name);
            pod
        };
        let bound: Vec<Pod> = pods.into_iter().zip(names).map(bound).collect();
        let begun = cpu_ns();
        for pod in &bound {
            shared.with_cluster(|c| c.set_pod(pod).map(|_| ()).expect("the same pod"));
        }
        let confirmed = cpu_ns();
        let found = [
            compiled - start,
            decided - compiled,
            (reserved - decided) - (decided - compiled),
            confirmed - begun,
        ];
        for (best, found) in best.iter_mut().zip(found) {
            *best = best.min(found / BATCH as f64);
        }
    }
    best
}

fn main() {
    println!("us a pod                         compile   decide  reserve  confirm      all");
    let kinds: [(&str, usize, Kind); 8] = [
        ("plain, pods of 16 workloads", PODS, repeated),
        ("plain", PODS, plain),
        ("plain, five times the pods", PODS * 5, plain),
        ("preferred affinity", PODS, preferred),
        ("required anti-affinity", PODS, cluster::lonely),
        ("extended resource", PODS, gpu),
        ("host port", PODS, host_port),
        ("stateful set", PODS, ordinal),
    ];
    for (name, pods, kind) in kinds {
        let [compile, decide, reserve, confirm] = stages(world(pods), kind).map(|ns| ns / 1e3);
        let all = compile + decide + reserve + confirm;
        println!("{name:30} {compile:9.2} {decide:8.2} {reserve:8.2} {confirm:8.2} {all:8.2}");
    }
}
