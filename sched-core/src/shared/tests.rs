//! Epochs updated in place equal the writer's view, and epochs with readers never change.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{from_value, json};

use super::SharedCluster;
use crate::columns::domain_counts::DomainCounts;
use crate::snapshot::View;
use crate::{Cluster, Profile, Scratch, decide};

fn by_domain(counts: &DomainCounts) -> BTreeMap<u32, u32> {
    counts.iter().collect()
}

/// Returns everything that pods change in a view, in a canonical order.
fn contents(view: &View) -> String {
    let rows: Vec<_> =
        (0..view.rows as u32).map(|row| (view.numbers(row), view.version(row))).collect();
    let sorted = |c: &crate::columns::counters::Counter| {
        let domains = c.domains.iter().map(|(key, counts)| (*key, by_domain(counts)));
        (c.nodes.iter().collect::<BTreeMap<_, _>>(), domains.collect::<Vec<_>>())
    };
    let counters: Vec<_> = view.counts.counters.iter().map(sorted).collect();
    let terms: Vec<_> = view
        .counts
        .terms
        .iter()
        .map(|t| {
            let nodes = t.nodes.iter().flat_map(|n| n.iter()).collect::<BTreeMap<_, _>>();
            (t.total, by_domain(&t.domains), nodes)
        })
        .collect();
    let used = |name| (0..view.rows as u32).map(|row| view.scalar(name, row)).collect::<Vec<_>>();
    let scalars: BTreeMap<_, _> =
        view.sparse.scalars.iter().map(|(name, _)| (*name, used(*name))).collect();
    let ports: BTreeMap<_, _> =
        view.sparse.ports.iter().map(|(key, users)| (*key, format!("{users:?}"))).collect();
    let rest = (view.epoch, view.whole, view.nodes, view.counts.terms_version, view.valid.words());
    let images = view.sparse.images.iter().count();
    format!("{rows:?} {counters:?} {terms:?} {scalars:?} {ports:?} {rest:?} {images}")
}

fn dice(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as usize
}

fn node(at: usize, roll: usize) -> Node {
    from_value(json!({"metadata": {"name": format!("n{at}"), "labels": {
        "zone": format!("z{}", roll % 3), "kubernetes.io/hostname": format!("n{at}")}},
        "spec": {"unschedulable": roll.is_multiple_of(7)},
        "status": {"images": [{"names": [format!("i{}", roll % 4)], "sizeBytes": 1}], "allocatable": {
            "cpu": if roll.is_multiple_of(11) { "9999999" } else { "64" }, "memory": "64Gi", "pods": "50",
            "example.com/gpu": "8"}}}))
    .expect("a node")
}

fn pod(at: usize, roll: usize) -> Pod {
    let app = format!("a{}", roll % 3);
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}],
        "topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": app}}}]});
    match roll % 5 {
        0 => {
            spec["containers"][0]["ports"] =
                json!([{"containerPort": 1, "hostPort": 80 + roll % 2}])
        }
        1 => spec["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1"),
        2 => {
            spec["affinity"]["podAntiAffinity"] = json!({
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": {
                    "topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}}]});
        }
        _ => {}
    }
    from_value(
        json!({"metadata": {"name": format!("p{at}"), "uid": format!("p{at}"), "namespace": "d",
        "labels": {"app": app}}, "spec": spec}),
    )
    .expect("a pod")
}

fn step(shared: &SharedCluster, at: usize, roll: usize, pods: &mut Vec<Pod>) {
    match roll % 16 {
        0 => _ = shared.with_cluster(|c| c.set_node(&node(roll / 16 % 12, roll / 256))),
        1 if at.is_multiple_of(8) => {
            _ = shared.with_cluster(|c| c.remove_node(&format!("n{}", roll / 16 % 12)))
        }
        2 => shared.with_cluster(Cluster::sweep),
        3 | 4 if !pods.is_empty() => {
            let gone = pods.swap_remove(roll / 16 % pods.len());
            shared.with_cluster(|c| c.remove_pod(&gone)).expect("it was placed");
        }
        _ => {
            let pod = pod(at, roll / 16);
            let (program, spec) = shared.with_cluster(|c| c.prepare(&pod)).expect("a pod");
            let view = shared.view();
            if let Some(row) = decide(&view, &program, &mut Scratch::default()).first {
                shared.reserve(&view, &program, &Arc::new(spec), row).expect("no other writer");
                pods.push(pod);
            }
        }
    }
}

#[test]
fn each_epoch_matches_the_writer_state_and_is_immutable_for_its_readers() {
    for seed in 1..=4u64 {
        let mut state = seed * 0x9e37_79b9;
        let shared = SharedCluster::new(Cluster::new(Profile::default()));
        (0..6).for_each(|at| _ = shared.with_cluster(|c| c.set_node(&node(at, at))));
        let (mut pods, mut read, mut in_place) = (Vec::new(), Vec::new(), 0);
        for at in 0..250 {
            let before = Arc::as_ptr(&shared.view());
            let roll = dice(&mut state);
            step(&shared, at, roll, &mut pods);
            let view = shared.view();
            in_place += usize::from(Arc::as_ptr(&view) != before);
            let held = shared.with_cluster(|c| contents(c.view()));
            assert_eq!(contents(&view), held, "seed {seed} step {at}");
            // Some readers keep their view for a while.
            if roll.is_multiple_of(3) {
                read.push((Arc::clone(&view), held));
            }
            if read.len() > roll / 7 % 12 {
                let (view, held) = read.remove(roll % read.len());
                assert_eq!(contents(&view), held, "seed {seed} step {at}: a reader saw a change");
            }
        }
        assert!(in_place > 100, "seed {seed}: {in_place} publications");
    }
}

#[test]
fn publications_reuse_chunk_copies_after_pod_changes() {
    let shared = SharedCluster::new(Cluster::new(Profile::default()));
    (0..6).for_each(|at| _ = shared.with_cluster(|c| c.set_node(&node(at, 1))));
    let mut chunks = std::collections::BTreeSet::new();
    for at in 0..64 {
        let pod = pod(at, 3);
        let (program, spec) = shared.with_cluster(|c| c.prepare(&pod)).expect("a pod");
        let view = shared.view();
        let row = decide(&view, &program, &mut Scratch::default()).first.expect("room");
        shared.reserve(&view, &program, &Arc::new(spec), row).expect("no other writer");
        if at >= 8 {
            chunks.insert(std::ptr::from_ref(view.chunk(0)) as usize);
        }
    }
    assert!(chunks.len() <= 3, "{} copies of one chunk", chunks.len());
    let view = shared.view();
    let known = pod(63, 3);
    shared.with_cluster(|c| c.prepare(&known)).expect("a pod");
    assert!(Arc::ptr_eq(&view, &shared.view()), "nothing changed, nothing is published");
}
