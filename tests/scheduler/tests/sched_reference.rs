//! The columns against the slow, obvious scheduler, on generated clusters; and deltas against a
//! rebuilt cluster.
//!
//! `PINTLE_SCHED_CASES` sets the number of cluster x pod cases (30,000 by default).

#[path = "sched/generate.rs"]
mod generate;
#[path = "sched/reference.rs"]
mod reference;

use generate::ChoiceDice;
use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::config::Plugin;
use pintle_sched_core::explain;
use pintle_sched_core::filter::status::Code;
use pintle_sched_core::repeat::Repeat;
use pintle_sched_core::select::{self, Scratch};
use pintle_sched_core::{Cluster, Profile};
use reference::ClusterObjects;

/// Cases in CI; 100,000 take two and a half minutes.
const CASES: u64 = 30_000;
/// Pods a cluster.
const PODS: u64 = 20;

fn build(world: &ClusterObjects) -> Cluster {
    let mut cluster = Cluster::new(Profile::default());
    world.namespaces.iter().for_each(|n| cluster.set_namespace(n));
    world.services.iter().for_each(|s| cluster.set_service(s));
    for node in &world.nodes {
        cluster.set_node(node).expect("generated node");
    }
    for pod in &world.pods {
        cluster.set_pod(pod).expect("generated pod");
    }
    cluster
}

/// The columns' result for a pod: per node name, statuses and scores as text.
fn answer(cluster: &mut Cluster, pod: &Pod, scratch: &mut Scratch) -> Vec<(String, String)> {
    let program = cluster.compile(pod).expect("generated pod");
    // The path without details has other loops: it must give the same totals and ties.
    let short = select::decide(cluster.view(), &program, scratch);
    let (feasible, ties) = (scratch.feasible.clone(), scratch.ties.clone());
    let totals = scratch.totals(cluster.view(), &program);
    let totals: Vec<i32> = feasible.iter().map(|row| totals[row as usize]).collect();
    let (long, detail) = select::decide_in_detail(cluster.view(), &program, &[], scratch);
    assert_eq!(short, long, "with and without details: {pod:#?}");
    if long.refusal.is_none() && long.feasible > 0 {
        assert_eq!((&feasible, &ties), (&scratch.feasible, &scratch.ties));
        assert!(feasible.iter().zip(&totals).all(|(row, t)| scratch.total[row as usize] == *t));
    }
    let mut lines: Vec<(String, String)> = Vec::new();
    for row in scratch.feasible.iter() {
        let mut text = format!("total {}", scratch.total[row as usize]);
        for plugin in Plugin::ALL {
            if let Some(s) = &detail.scores[plugin as usize] {
                let (raw, normal) = (s.raw[row as usize], s.normalised[row as usize]);
                text.push_str(&format!(" {} {raw} {normal}", plugin.name()));
            }
        }
        lines.push((cluster.node_name(row).to_owned(), text));
    }
    for (row, status) in explain::statuses(cluster, &program, &detail, scratch) {
        let plugin = status.plugin.map_or("-", Plugin::name);
        let hard = status.code == Code::UnschedulableAndUnresolvable;
        let text = format!("{plugin} {hard} {:?}", status.reasons);
        lines.push((cluster.node_name(row).to_owned(), text));
    }
    lines.sort_unstable();
    lines
}

/// The same from the reference.
fn expected(world: &ClusterObjects, pod: &Pod) -> Vec<(String, String)> {
    let found = world.decide(pod);
    let mut lines = Vec::new();
    let mut at = 0;
    for (node, rejection) in world.nodes.iter().zip(&found.rejections) {
        let name = node.metadata.name.clone().expect("named");
        if let Some((plugin, hard, reasons)) = rejection {
            lines.push((name, format!("{plugin} {hard} {reasons:?}")));
            continue;
        }
        let mut text = format!("total {}", found.totals[at]);
        for plugin in Plugin::ALL {
            if plugin == Plugin::DynamicResources {
                text.push_str(" DynamicResources 0 0");
            }
            if let Some(Some(scores)) = found.scores.get(plugin.name()) {
                let (raw, normal) = scores[at];
                text.push_str(&format!(" {} {raw} {normal}", plugin.name()));
            }
        }
        at += 1;
        lines.push((name, text));
    }
    lines.sort_unstable();
    lines
}

#[test]
fn columns_equal_the_slow_reference_on_generated_clusters() {
    let cases = std::env::var("PINTLE_SCHED_CASES").ok().and_then(|c| c.parse().ok());
    let cases: u64 = cases.unwrap_or(CASES);
    let mut scratch = Scratch::default();
    let (mut feasible, mut rejected) = (0u64, 0u64);
    for seed in 0..cases.div_ceil(PODS) {
        let mut dice = ChoiceDice::new(seed);
        // Most are small, where constraints meet; some cross a word of the masks.
        let nodes_max = if seed % 50 == 0 { 140 } else { 8 };
        let world = generate::world(&mut dice, nodes_max);
        let mut cluster = build(&world);
        for at in 0..PODS {
            let pod = generate::pod(&mut dice, &format!("new-{at}"));
            let (ours, theirs) = (answer(&mut cluster, &pod, &mut scratch), expected(&world, &pod));
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "seed {seed} pod {at}: {pod:#?}");
            }
            assert_eq!(ours.len(), theirs.len(), "seed {seed} pod {at}");
            feasible += scratch.feasible.count() as u64;
            rejected += (ours.len() - scratch.feasible.count()) as u64;
        }
    }
    println!("{cases} cases equal: {feasible} nodes scored, {rejected} rejected");
    assert!(feasible > cases / 2 && rejected > cases / 2, "the generator lost its balance");
}

#[test]
fn any_order_of_deltas_equals_a_rebuilt_cluster() {
    let mut scratch = Scratch::default();
    for seed in 0..400 {
        let mut dice = ChoiceDice::new(1_000_000 + seed);
        let mut world = generate::world(&mut dice, 8);
        let mut cluster = build(&world);
        for step in 0..60 {
            change(&mut dice, &mut world, &mut cluster, step);
            if step % 10 != 9 {
                continue;
            }
            let mut anew = build(&world);
            for at in 0..3 {
                let pod = generate::pod(&mut dice, &format!("asked-{at}"));
                let ours = answer(&mut cluster, &pod, &mut scratch);
                let theirs = answer(&mut anew, &pod, &mut Scratch::default());
                assert_eq!(ours, theirs, "seed {seed} step {step}");
            }
        }
    }
}

#[test]
fn identical_pods_are_rescored_as_the_full_path_scores_them() {
    let (mut scratch, mut repeated, mut declined) = (Scratch::default(), 0, 0);
    for seed in 0..1500 {
        let mut dice = ChoiceDice::new(2_000_000 + seed);
        let world = generate::world(&mut dice, if seed % 20 == 0 { 140 } else { 12 });
        let mut cluster = build(&world);
        let mut pod = generate::pod(&mut dice, "same");
        if dice.chance(70) {
            // Most pods that come in numbers have no affinity between pods.
            let spec = pod.spec.as_mut().expect("spec");
            spec.affinity =
                spec.affinity.take().filter(|a| a.node_affinity.is_some()).map(|mut a| {
                    (a.pod_affinity, a.pod_anti_affinity) = (None, None);
                    a
                });
        }
        let program = cluster.compile(&pod).expect("pod");
        let Some(mut repeat) = Repeat::new(cluster.view(), &program, &mut scratch) else {
            declined += 1;
            continue;
        };
        for copy in 0..12 {
            let full = select::decide(cluster.view(), &program, &mut scratch);
            assert_eq!(repeat.decide(cluster.view()), full, "seed {seed} copy {copy}: {pod:#?}");
            let Some(row) = full.first else { break };
            pod.metadata.uid = Some(format!("copy-{copy}"));
            let node = cluster.node_name(row).to_owned();
            cluster.assume(&pod, &node).expect("new pod");
            assert!(repeat.changed(cluster.view(), row), "no terms, no new nodes");
            repeated += 1;
            if dice.chance(30) {
                // Another pod lands somewhere in between.
                let mut other = generate::pod(&mut dice, &format!("other-{copy}"));
                other.spec.as_mut().expect("spec").affinity = None;
                let at = dice.below(world.nodes.len());
                let node = world.nodes[at].metadata.name.clone().expect("name");
                cluster.assume(&other, &node).expect("new pod");
                let row = cluster.row(&node).expect("there");
                assert!(repeat.changed(cluster.view(), row));
            }
        }
    }
    println!("{repeated} decisions repeated, {declined} pods declined");
    assert!(repeated > 3000, "{repeated}");
}

/// Changes one thing in the objects and, by a delta, in the cluster.
fn change(dice: &mut ChoiceDice, world: &mut ClusterObjects, cluster: &mut Cluster, step: usize) {
    match dice.below(7) {
        0 => {
            let node = generate::node(dice, dice_node(step));
            let name = node.metadata.name.clone();
            cluster.set_node(&node).expect("node");
            // The order of nodes matters to nothing but the size of an image, which is constant.
            world.nodes.retain(|n| n.metadata.name != name);
            world.nodes.push(node);
        }
        1 if world.nodes.len() > 1 => {
            let node = world.nodes.remove(dice.below(world.nodes.len()));
            cluster.remove_node(node.metadata.name.as_deref().expect("name")).expect("there");
        }
        2 | 3 => {
            let mut pod = generate::pod(dice, &format!("delta-{step}"));
            let node = &world.nodes[dice.below(world.nodes.len())];
            let name = node.metadata.name.clone().expect("name");
            cluster.assume(&pod, &name).expect("new pod");
            if dice.chance(30) {
                cluster.forget(&pod).expect("assumed");
                return;
            }
            pod.spec.as_mut().expect("spec").node_name = Some(name);
            if dice.chance(50) {
                cluster.set_pod(&pod).expect("confirmed");
            }
            world.pods.push(pod);
        }
        4 if !world.pods.is_empty() => {
            let pod = world.pods.swap_remove(dice.below(world.pods.len()));
            cluster.remove_pod(&pod).expect("there");
        }
        5 if !world.pods.is_empty() => {
            // An update changes labels and the deletion mark, and may move the pod.
            let at = dice.below(world.pods.len());
            let fresh = generate::pod(dice, "update");
            let pod = &mut world.pods[at];
            pod.metadata.labels = fresh.metadata.labels;
            let node = &world.nodes[dice.below(world.nodes.len())];
            pod.spec.as_mut().expect("spec").node_name = node.metadata.name.clone();
            cluster.set_pod(pod).expect("update");
        }
        _ => {
            let pod = generate::pod(dice, "compiled");
            // Counters begun in between must be kept current as well.
            cluster.compile(&pod).expect("pod");
        }
    }
}

/// Number of the node that a step adds or replaces.
fn dice_node(step: usize) -> usize {
    step % 11
}
