//! A pod takes all memory: does the agent or the kubelet evict it before the OOM killer acts?
//!
//! A real cluster with our agent on one node and the kubelet on the other, configured alike. The
//! pods of a node have 1600 MiB, and the eviction threshold is 800 MiB. A pod takes 200 MiB each
//! second and ignores SIGTERM, so it needs four seconds from the threshold to the limit, two of
//! which are the grace period of both agents (`minimumGracePeriodInSeconds`). It runs on one node
//! and then on the other, 20 times each (`PINTLE_BENCH_ROUNDS`). A round is won if the pod was
//! evicted and the kernel killed none of its processes. Goal: 20 of 20.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, rounds};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::manifest::{With, container, pod};
use pintle_testbed::{LONG, until};
use serde_json::json;
use xtask::cluster::node::agent_process;

/// Memory of all pods of a node together, and the eviction threshold.
const POD_MEMORY_MIB: u64 = 1600;
const LEFT_MIB: u64 = 800;
/// MiB that the pod allocates in a second.
const MIB_PER_SECOND: &str = "200";
/// Use before a round begins; more would be left over from the last one.
const CALM_MIB: u64 = 100;
const ROUNDS: usize = 20;

/// How a round ended.
struct Round {
    is_won: bool,
    /// MiB left, from the eviction message; none without an eviction.
    left: Option<f64>,
    /// From the order to create the pod until it had ended.
    seconds: f64,
}

fn main() -> Result<()> {
    let test = TestCluster::beside_the_kubelet();
    test.empty_nodes();
    let nodes: Vec<String> = test.cluster().nodes().to_vec();
    nodes.iter().try_for_each(|node| configure(&test, node))?;
    let mut all = [Vec::new(), Vec::new()];
    for number in 0..rounds(ROUNDS) {
        for (rounds, node) in all.iter_mut().zip(&nodes) {
            let round = round(&test, node, number)?;
            let left = round.left.map_or("-".to_owned(), |left| format!("{left:.0} MiB"));
            let (is_won, seconds) = (round.is_won, round.seconds);
            println!("{number} {node}: won {is_won}, left {left}, {seconds:.1} s");
            rounds.push(round);
        }
    }
    bench_report::show("node_hog", "kubelet", &rows(&all))?;
    Ok(())
}

/// Starts the node's agent with little memory for pods, and with pressure that is soon forgotten.
fn configure(test: &TestCluster, node: &str) -> Result<()> {
    let capacity = node_object(test, node)?.status.and_then(|status| status.capacity);
    let memory = capacity.unwrap_or_default().get("memory").cloned().context("memory")?;
    let memory: u64 = memory.0.trim_end_matches("Ki").parse()?;
    let fields = json!({
        "enforceNodeAllocatable": ["pods"],
        "systemReserved": {"memory": format!("{}Ki", memory - POD_MEMORY_MIB * 1024)},
        "evictionHard": {"memory.available": format!("{LEFT_MIB}Mi")},
        "evictionPressureTransitionPeriod": "5s",
    });
    let (cluster, agent) = (test.cluster(), agent_process(node));
    cluster.configure_agent(node, &fields)?;
    cluster.kill(&agent)?;
    cluster.start(&agent)?;
    let mib = POD_MEMORY_MIB - LEFT_MIB;
    let wanted = [format!("{mib}Mi"), format!("{}Ki", mib * 1024)];
    until(LONG, "the node has little memory", || {
        let status = node_object(test, node)?.status.unwrap_or_default();
        let given = status.allocatable.unwrap_or_default().get("memory").cloned();
        ensure!(given.as_ref().is_some_and(|given| wanted.contains(&given.0)), "{given:?}");
        Ok(())
    });
    Ok(())
}

fn node_object(test: &TestCluster, node: &str) -> Result<Node> {
    Ok(serde_json::from_str(&test.kubectl(&["get", "node", node, "-o", "json"])?)?)
}

/// Lets a pod take all memory of a node, and returns whether eviction came before an OOM kill.
fn round(test: &TestCluster, node: &str, number: usize) -> Result<Round> {
    until(LONG, "the node is well", || {
        let status = node_object(test, node)?.status.unwrap_or_default();
        let short = |c: &&_| is_short(c);
        let found = status.conditions.iter().flatten().find(short).cloned();
        ensure!(found.is_none(), "{found:?}");
        let used = used_mib(test, node)?;
        ensure!(used < CALM_MIB, "{used} MiB are used");
        Ok(())
    });
    let name = format!("hog-{node}-{number}");
    let hog = pod(&name, &[container("c", &["/box", "grow", MIB_PER_SECOND])])
        .with_spec("nodeName", json!(node))
        .with_spec("restartPolicy", json!("Never"))
        .with_spec("automountServiceAccountToken", json!(false));
    let begin = Instant::now();
    test.create(&hog)?;
    let (what, limit) = (format!("pod/{name}"), "--timeout=120s");
    test.kubectl(&["wait", "--for=jsonpath={.status.phase}=Failed", &what, limit])?;
    let seconds = begin.elapsed().as_secs_f64();
    let ended = test.pod(&name)?.context("the pod is there")?;
    test.kubectl(&["delete", "pod", &name, "--grace-period=1"])?;
    Ok(Round { is_won: is_evicted(&ended) && !is_killed(&ended), left: left_mib(&ended), seconds })
}

fn is_short(condition: &&k8s_openapi::api::core::v1::NodeCondition) -> bool {
    condition.type_ == "MemoryPressure" && condition.status != "False"
}

/// Working set of all pods of a node, from its agent.
fn used_mib(test: &TestCluster, node: &str) -> Result<u64> {
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    let told: serde_json::Value = serde_json::from_str(&test.kubectl(&["get", "--raw", &path])?)?;
    let pods = told["node"]["systemContainers"].as_array().context("a list")?;
    let pods = pods.iter().find(|of| of["name"] == "pods").context("that of the pods")?;
    Ok(pods["memory"]["workingSetBytes"].as_u64().context("a number")? >> 20)
}

fn is_evicted(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted")
}

/// The kernel killed something of it.
fn is_killed(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    containers.into_iter().flatten().any(|container| {
        let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"))
    })
}

/// MiB left, from the eviction's message.
fn left_mib(pod: &Pod) -> Option<f64> {
    let message = pod.status.as_ref()?.message.as_deref()?;
    let left = message.split_once("available: ")?.1.split_once("Ki.")?.0;
    Some(left.parse::<f64>().ok()? / 1024.0)
}

fn rows(all: &[Vec<Round>; 2]) -> Vec<Row> {
    let [ours, theirs] = all;
    let lost = |of: &[Round]| of.iter().filter(|round| !round.is_won).count() as f64;
    let row = |measure: &str, unit, goal, of: &dyn Fn(&[Round]) -> f64| Row {
        measure: format!("{measure}, of {}", ours.len()),
        unit,
        goal,
        ours: of(ours),
        bound: Some(of(theirs)),
    };
    let left = |of: &[Round]| Spread::of(of.iter().filter_map(|round| round.left));
    let mut rows = vec![row("pods that the kernel killed first", "", Goal::Limit(0.0), &lost)];
    if all.iter().all(|rounds| rounds.iter().any(|round| round.left.is_some())) {
        rows.push(row("left when it was told to go, p50", "MiB", Goal::None, &|of| left(of).p50()));
        rows.push(row("left when it was told to go, min", "MiB", Goal::None, &|of| left(of).min()));
    }
    let took = |of: &[Round]| Spread::of(of.iter().map(|round| round.seconds)).p50();
    rows.push(row("created to ended, p50", "s", Goal::None, &took));
    rows
}
