//! Upstream's preemption and ours, asked about the same generated clusters.
//!
//! Nodes are full of pods of many priorities, some of them behind budgets, and the pods that come
//! fit nowhere. The victims of each node, their order, the number of violated budgets, the reason
//! why preemption does not help elsewhere, and the choice must be equal. `PINTLE_VECTOR_CASES` sets
//! the number of pods, `PINTLE_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ContainerPort, Pod, PodStatus};
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta, Time,
};
use k8s_openapi::jiff::Timestamp;
use pintle_scheduler_core::config;
use serde_json::{Value, json};

use crate::compare::{compare, compare_preemption, only_differing};
use crate::generate::{self, APPS, ChoiceDice, NAMESPACES};
use crate::recorded::ClusterRecording;
use crate::vectors::{ask, number, pruned};
use crate::{enrich, profiles};

/// Cases in CI, not all of which have to preempt.
const CASES: u64 = 3_000;
/// Pods for each cluster.
const PODS: u64 = 20;
/// Upstream's sort keeps the order of equals only in lists that are no longer.
const PODS_A_NODE_MAX: usize = 11;
/// Differences that are worth printing.
const DIFFERENCES_SHOWN: usize = 10;
/// When the first pod started, in seconds.
const STARTED: i64 = 1_767_225_600;
const PRIORITIES: [i32; 6] = [-10, 0, 0, 10, 100, 1000];

/// A cluster without much room, and pods that want some.
fn question(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let nodes_max = [2, 5, 12][dice.below(3)];
    let mut world = generate::world(&mut dice, nodes_max);
    let config =
        if dice.chance(70) { String::new() } else { profiles::config(&mut dice).to_string() };
    let owners = enrich::owners(&mut dice);
    enrich::world(&mut dice, &mut world, &owners);
    let mut pods = Vec::new();
    for node in 0..world.nodes.len() {
        let mut taken = BTreeSet::new();
        for at in 0..dice.below(PODS_A_NODE_MAX + 1) {
            let mut pod = bound(&mut dice, node, at);
            keep_free_ports(&mut pod, &mut taken);
            pods.push(pod);
        }
    }
    let budgets: Vec<_> = (0..dice.below(4)).map(|at| budget(&mut dice, at, &pods)).collect();
    let cases: Vec<_> = (0..PODS)
        .map(|at| {
            let mut pod = generate::pod(&mut dice, &format!("new-{at}"));
            enrich::pod(&mut dice, &mut pod, &owners);
            let wanted = ["2", "3900m", "7"][dice.below(3)];
            wants(&mut dice, &mut pod, wanted);
            let spec = pod.spec.as_mut().expect("generated pods have one");
            spec.priority = Some([5, 50, 500, 2000][dice.below(4)]);
            spec.preemption_policy = dice.chance(4).then(|| "Never".to_owned());
            json!({"scenario": at.to_string(), "pod": pod})
        })
        .collect();
    json!({
        "seed": seed, "config": config, "nodes": world.nodes, "pods": pods, "preempt": true,
        "namespaces": world.namespaces, "services": world.services,
        "poddisruptionbudgets": budgets, "replicasets": owners.replica_sets,
        "statefulsets": owners.stateful_sets, "replicationcontrollers": owners.controllers,
        "cases": cases,
    })
}

/// The pod's first container requests these CPUs, most of the time.
fn wants(dice: &mut ChoiceDice, pod: &mut Pod, cpu: &str) {
    let spec = pod.spec.as_mut().expect("generated pods have one");
    let resources = spec.containers[0].resources.get_or_insert_default();
    if dice.chance(80) {
        resources.requests.get_or_insert_default().insert("cpu".into(), Quantity(cpu.into()));
    }
}

/// A pod on a node.
fn bound(dice: &mut ChoiceDice, node: usize, at: usize) -> Pod {
    let mut pod = generate::pod(dice, &format!("p-{node}-{at}"));
    let cpu = ["250m", "500m", "1", "1500m"][dice.below(4)];
    wants(dice, &mut pod, cpu);
    pod.metadata.uid = pod.metadata.name.clone();
    if dice.chance(6) {
        pod.metadata.deletion_timestamp = Some(time(STARTED));
    }
    let spec = pod.spec.as_mut().expect("generated pods have one");
    spec.node_name = Some(format!("n{node}"));
    spec.priority = Some(PRIORITIES[dice.below(PRIORITIES.len())]);
    // Some started in the same second, and the last pods may not have started.
    let since = if dice.chance(50) { dice.below(3) } else { dice.below(100_000) };
    let has_started = at > 0 || dice.chance(90);
    let start_time = has_started.then(|| time(STARTED + since as i64));
    pod.status = Some(PodStatus { start_time, ..PodStatus::default() });
    pod
}

/// Drops host ports that another pod of the node has: when one of the two is removed, upstream
/// counts the port as free, and ours does not.
fn keep_free_ports(pod: &mut Pod, taken: &mut BTreeSet<String>) {
    let spec = pod.spec.as_mut().expect("generated pods have one");
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        let key = |p: &ContainerPort| {
            let ip = p.host_ip.as_deref().unwrap_or("0.0.0.0");
            format!("{ip} {} {:?}", p.protocol.as_deref().unwrap_or("TCP"), p.host_port)
        };
        let ports = container.ports.iter().flatten();
        if ports.map(|p| taken.insert(key(p))).any(|is_free| !is_free) {
            container.ports = None;
        }
    }
}

fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).expect("a time of these years"))
}

/// A budget that guards some pods, none, or all of a namespace.
fn budget(dice: &mut ChoiceDice, at: usize, pods: &[Pod]) -> PodDisruptionBudget {
    let selector = match dice.below(10) {
        0 => None,
        1 => Some(LabelSelector::default()),
        2 => Some(LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "tier".to_owned(),
                operator: dice.pick(&["Exists", "DoesNotExist"]),
                values: None,
            }]),
            match_labels: None,
        }),
        _ => Some(LabelSelector {
            match_labels: Some(BTreeMap::from([("app".to_owned(), dice.pick(&APPS))])),
            match_expressions: None,
        }),
    };
    let disrupted = dice.chance(30) && !pods.is_empty();
    let disrupted_pods = disrupted.then(|| {
        let name = pods[dice.below(pods.len())].metadata.name.clone().unwrap_or_default();
        BTreeMap::from([(name, time(STARTED))])
    });
    PodDisruptionBudget {
        metadata: ObjectMeta {
            name: Some(format!("budget-{at}")),
            namespace: Some(dice.pick(&NAMESPACES)),
            ..ObjectMeta::default()
        },
        spec: Some(PodDisruptionBudgetSpec { selector, ..PodDisruptionBudgetSpec::default() }),
        status: Some(PodDisruptionBudgetStatus {
            disruptions_allowed: Some(dice.below(3) as i32),
            disrupted_pods,
            ..PodDisruptionBudgetStatus::default()
        }),
    }
}

/// Differences in an answer, a line each, and the number of its pods that could preempt.
fn differences(line: &str) -> (Vec<String>, usize) {
    let text: Value = serde_json::from_str(line).expect("an answer");
    let config = text["config"].as_str().unwrap_or_default().to_owned();
    let answer: ClusterRecording = serde_json::from_value(text).expect("a cluster");
    let answer = pruned(answer);
    let profile = match config.as_str() {
        "" => pintle_sched_core::Profile::default(),
        text => config::profile(text, None).expect("a configuration that upstream took"),
    };
    let mut cluster = answer.cluster(profile.clone());
    let budgets = cluster.budgets(&answer.poddisruptionbudgets);
    let (mut found, mut preempting) = (Vec::new(), 0);
    for case in &answer.cases {
        let name = format!("seed {} pod {}", answer.seed, case["scenario"]);
        let mut report = |what: &str, ours: Value, theirs: Value| {
            if ours != theirs {
                let (ours, theirs) = only_differing(ours, theirs);
                found.push(format!("{name} {what}: ours {ours}, theirs {theirs}"));
            }
        };
        compare(&mut cluster, &profile, case, &mut report);
        if case.get("eligible").is_some() {
            compare_preemption(&mut cluster, &budgets, case, &mut report);
            preempting += usize::from(case["tied"].as_array().is_some_and(|t| !t.is_empty()));
        }
    }
    if !found.is_empty() {
        found.push(format!("seed {} has the configuration {config}", answer.seed));
    }
    (found, preempting)
}

#[test]
fn every_preemption_selects_the_victims_that_upstream_selects() {
    let cases = number("PINTLE_VECTOR_CASES", CASES);
    let first = number("PINTLE_SEED", 1);
    let seeds = first..first + cases.div_ceil(PODS);
    let (clusters, mut preempting, mut found) = (seeds.end - seeds.start, 0, Vec::new());
    ask("scheduler-vectors", seeds, question, |line| {
        let (differing, able) = differences(line);
        preempting += able;
        found.extend(differing);
    });
    println!(
        "{clusters} clusters, {cases} cases, {preempting} preempt, {} differences",
        found.len()
    );
    assert!(preempting as u64 * 10 > cases, "too few that preempt");
    found.truncate(DIFFERENCES_SHOWN);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
