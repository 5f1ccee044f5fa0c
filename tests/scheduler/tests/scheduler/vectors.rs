//! The real scheduling framework and ours, compared on generated clusters.
//!
//! Upstream's plugins run in a program of their own (`tests/upstream/vectors`), fed a cluster a
//! line, each with a configuration of its own. The result of every plugin for every node must be
//! equal, to the bit. `PINTLE_VECTOR_CASES` sets the number of pods, `PINTLE_SEED` the first seed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use k8s_openapi::api::core::v1::Pod;
use pintle_scheduler_core::config;
use pintle_scheduler_core::lean::LeanPod;
use pintle_scheduler_core::prune::Prune;
use serde_json::{Value, json};
use xtask::upstream::Program;

use crate::compare::{compare, only_differing, pod};
use crate::generate::{self, ChoiceDice};
use crate::recorded::ClusterRecording;
use crate::{enrich, profiles};

/// Cases in CI.
const CASES: u64 = 10_000;
/// Pods for each cluster.
const PODS: u64 = 20;
/// Differences that are worth printing.
const DIFFERENCES_SHOWN: usize = 10;

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A cluster, pods and a configuration, as the program reads them.
fn question(seed: u64) -> Value {
    let mut dice = ChoiceDice::new(seed);
    let nodes_max = [3, 12, 40][dice.below(3)];
    let mut world = generate::world(&mut dice, nodes_max);
    let config = profiles::config(&mut dice);
    let owners = enrich::owners(&mut dice);
    enrich::world(&mut dice, &mut world, &owners);
    let cases: Vec<_> = (0..PODS)
        .map(|at| {
            let mut pod = generate::pod(&mut dice, &format!("new-{at}"));
            enrich::pod(&mut dice, &mut pod, &owners);
            enrich::named_nodes(&mut dice, &mut pod, world.nodes.len());
            json!({"scenario": at.to_string(), "pod": pod})
        })
        .collect();
    let mut pods = world.pods;
    for pod in &mut pods {
        // The real cache needs a uid of each pod.
        let name = pod.metadata.name.clone();
        pod.metadata.uid = name;
    }
    json!({
        "seed": seed, "config": config.to_string(), "nodes": world.nodes, "pods": pods,
        "namespaces": world.namespaces, "services": world.services,
        "replicasets": owners.replica_sets, "statefulsets": owners.stateful_sets,
        "replicationcontrollers": owners.controllers, "cases": cases,
    })
}

/// A pod as a watch reads it.
fn lean(pod: Pod) -> Pod {
    let read: LeanPod = serde_json::from_value(json!(pod)).expect("a pod");
    read.0
}

/// The same as a watch hands it on: without what no decision reads.
pub(crate) fn pruned(mut whole: ClusterRecording) -> ClusterRecording {
    whole.nodes = whole.nodes.into_iter().map(Prune::prune).collect();
    whole.pods = whole.pods.into_iter().map(lean).collect();
    whole.namespaces = whole.namespaces.into_iter().map(Prune::prune).collect();
    whole.services = whole.services.into_iter().map(Prune::prune).collect();
    whole.replicasets = whole.replicasets.into_iter().map(Prune::prune).collect();
    whole.statefulsets = whole.statefulsets.into_iter().map(Prune::prune).collect();
    let controllers = whole.replicationcontrollers.into_iter();
    whole.replicationcontrollers = controllers.map(Prune::prune).collect();
    for case in &mut whole.cases {
        case["pod"] = json!(lean(pod(case)));
    }
    whole
}

/// Differences in an answer, a line each.
fn differences(line: &str) -> Vec<String> {
    let text: Value = serde_json::from_str(line).expect("an answer");
    let config = text["config"].as_str().expect("a configuration").to_owned();
    let answer: ClusterRecording = serde_json::from_value(text).expect("a cluster");
    let answer = pruned(answer);
    let profile = config::profile(&config, None).expect("a configuration that upstream took");
    let mut cluster = answer.cluster(profile.clone());
    let mut found = Vec::new();
    for case in &answer.cases {
        let name = format!("seed {} pod {}", answer.seed, case["scenario"]);
        compare(&mut cluster, &profile, case, &mut |what, ours, theirs| {
            if ours != theirs {
                let (ours, theirs) = only_differing(ours, theirs);
                found.push(format!("{name} {what}: ours {ours}, theirs {theirs}"));
            }
        });
    }
    if !found.is_empty() {
        found.push(format!("seed {} has the configuration {config}", answer.seed));
    }
    found
}

/// Asks one of upstream's programs about the worlds of these seeds, and passes on each answer.
pub(crate) fn ask(
    program: &str,
    seeds: Range<u64>,
    world: fn(u64) -> Value,
    answered: impl FnMut(&str),
) {
    let folder = Program::Components.ensure().expect("upstream's programs");
    ask_program(&folder.join(program), seeds, world, answered);
}

/// The same with the path of the program.
pub(crate) fn ask_program(
    program: &Path,
    seeds: Range<u64>,
    world: fn(u64) -> Value,
    mut answered: impl FnMut(&str),
) {
    let mut command = Command::new(program);
    let mut running =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut questions = running.stdin.take().expect("a pipe");
    let asked = seeds.clone();
    let writer = thread::spawn(move || {
        for seed in asked {
            writeln!(questions, "{}", world(seed)).expect("it reads");
        }
    });
    let mut worlds = 0;
    for line in BufReader::new(running.stdout.take().expect("a pipe")).lines() {
        worlds += 1;
        answered(&line.expect("a line"));
    }
    let ended = running.wait().expect("it ends");
    assert!(ended.success(), "{}: {ended}", program.display());
    writer.join().expect("all questions are asked");
    assert_eq!(worlds, seeds.end - seeds.start);
}

#[test]
fn every_plugin_result_equals_upstreams() {
    let cases = number("PINTLE_VECTOR_CASES", CASES);
    let first = number("PINTLE_SEED", 1);
    let seeds = first..first + cases.div_ceil(PODS);
    let (clusters, mut found) = (seeds.end - seeds.start, Vec::new());
    ask("scheduler-vectors", seeds, question, |line| found.extend(differences(line)));
    println!("{clusters} clusters, {cases} cases, {} differences", found.len());
    found.truncate(DIFFERENCES_SHOWN);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
