//! Several deciders on one cluster never over-commit a node, nor violate other pods' constraints.

#[allow(dead_code)]
#[path = "sched/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "sched/reference.rs"]
mod reference;

use std::sync::Arc;

use generate::ChoiceDice;
use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::remedy::{self, NodeRemedy};
use pintle_sched_core::select::{self, Scratch};
use pintle_sched_core::shared::SharedCluster;
use pintle_sched_core::{Cluster, Profile, decide};
use serde_json::json;

fn tight_cluster(nodes: usize) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    for at in 0..nodes {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{at}"),
            "labels": {"kubernetes.io/hostname": format!("n{at}")}},
            "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "5"}}});
        cluster.set_node(&serde_json::from_value(node).expect("node")).expect("node");
    }
    cluster
}

fn pod(name: &str, alone: bool) -> Pod {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name,
        "namespace": "d", "labels": {"app": if alone { "alone" } else { "any" }}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "700m"}}}]}});
    if alone {
        pod["spec"]["affinity"]["podAntiAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"app": "alone"}}}]});
    }
    serde_json::from_value(pod).expect("pod")
}

#[test]
fn deciders_at_once_never_over_commit() {
    const NODES: usize = 40;
    let mut cluster = tight_cluster(NODES);
    let work: Vec<_> = (0..160)
        .map(|at| {
            let pod = pod(&format!("p{at}"), at % 4 == 0);
            (cluster.compile(&pod).expect("pod"), Arc::new(cluster.read_pod(&pod).expect("pod")))
        })
        .collect();
    let shared = SharedCluster::new(cluster);
    let placed: usize = std::thread::scope(|scope| {
        let deciders: Vec<_> = (0..4)
            .map(|mine| {
                let (shared, work) = (&shared, &work);
                scope.spawn(move || {
                    let (mut scratch, mut placed) = (Scratch::default(), 0);
                    for (program, pod) in work.iter().skip(mine).step_by(4) {
                        loop {
                            let view = shared.view();
                            let Some(row) = decide(&view, program, &mut scratch).first else {
                                break;
                            };
                            // All threads try the same node: conflicts are the rule.
                            if shared.reserve(&view, program, pod, row).is_ok() {
                                placed += 1;
                                break;
                            }
                        }
                    }
                    placed
                })
            })
            .collect();
        deciders.into_iter().map(|d| d.join().expect("decider")).sum()
    });
    shared.with_cluster(|cluster| {
        assert_eq!(cluster.pods().len(), placed);
        for row in cluster.view().valid_rows().iter() {
            let n = cluster.view().numbers(row);
            assert!(n.cpu_used <= n.cpu && n.pods_used <= n.pods, "row {row} {n:?}");
            let alone = cluster.pods().on_node(row).filter(|id| {
                let name = cluster.pod_name(*id);
                name["d/p".len()..].parse::<usize>().expect("number") % 4 == 0
            });
            assert!(alone.count() <= 1, "two that refuse each other on row {row}");
        }
    });
    assert!(placed >= 2 * NODES, "{placed} of 160 placed on {NODES} nodes with room for two each");
}

/// Applies a remedy, if it changes the pod or the node's numbers.
fn apply(change: &NodeRemedy, pod: &mut Pod) -> bool {
    let spec = pod.spec.as_mut().expect("spec");
    match change {
        NodeRemedy::Tolerate { taint } => {
            let key = taint.split(['=', ':']).next().expect("key").to_owned();
            let toleration = json!({"key": key, "operator": "Exists"});
            let list = spec.tolerations.get_or_insert_default();
            list.push(serde_json::from_value(toleration).expect("toleration"));
            true
        }
        NodeRemedy::Uncordon => {
            let toleration =
                json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"});
            let list = spec.tolerations.get_or_insert_default();
            list.push(serde_json::from_value(toleration).expect("toleration"));
            true
        }
        NodeRemedy::Spread { skew, max_skew, .. } if *skew > 0 => {
            for c in spec.topology_spread_constraints.iter_mut().flatten() {
                if i64::from(c.max_skew) == *max_skew {
                    c.max_skew = *skew as i32;
                }
            }
            true
        }
        _ => false,
    }
}

#[test]
fn applying_the_remedy_makes_the_pod_fit_on_the_named_node() {
    let (mut applied, mut scratch) = (0, Scratch::default());
    for seed in 0..2500 {
        let mut dice = ChoiceDice::new(3_000_000 + seed);
        let world = generate::world(&mut dice, 4);
        let mut cluster = Cluster::new(Profile::default());
        world.namespaces.iter().for_each(|n| cluster.set_namespace(n));
        for node in &world.nodes {
            cluster.set_node(node).expect("node");
        }
        for pod in &world.pods {
            cluster.set_pod(pod).expect("pod");
        }
        let mut pod = generate::pod(&mut dice, "asked");
        let program = cluster.compile(&pod).expect("pod");
        let (outcome, detail) =
            select::decide_in_detail(cluster.view(), &program, &[], &mut scratch);
        if outcome.feasible > 0 {
            continue;
        }
        let found = remedy::smallest(&cluster, &program, &detail, &mut scratch).expect("nodes");
        assert!(!found.to_string().is_empty());
        if !found.changes.iter().all(|c| apply(c, &mut pod)) {
            continue;
        }
        applied += 1;
        let program = cluster.compile(&pod).expect("pod");
        decide(cluster.view(), &program, &mut scratch);
        let row = cluster.row(found.node.as_deref().expect("a node")).expect("row");
        assert!(scratch.feasible.get(row), "seed {seed}: {found}");
    }
    assert!(applied > 100, "{applied} remedies were of a kind that can be applied");
}
