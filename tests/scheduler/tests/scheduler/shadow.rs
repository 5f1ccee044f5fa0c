//! The shadow beside the real kube-scheduler: the shadow must explain every decision of
//! kube-scheduler.
//!
//! Pods of all kinds are created in waves; in between some are deleted, gates are removed, nodes
//! are cordoned and uncordoned. kube-scheduler filters every node, so that it does not sample.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stand::SchedulerStand;
use crate::world::{self, Chance, NAMESPACES};

/// Requests at the same time.
const AT_ONCE: usize = 16;
/// How often the API server's state is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// So many reads without a change mean the end.
const QUIET_LOOKS: usize = 16;
/// Reads at most.
const LOOKS_MAX: usize = 1200;

#[test]
fn no_decision_of_kube_scheduler_is_unexplained() {
    compare(50, 400, 1);
}

/// The whole of it: by name only, see docs/TESTING.md.
#[test]
#[ignore = "takes minutes; CI runs the small one"]
fn no_decision_of_kube_scheduler_is_unexplained_in_a_large_cluster() {
    compare(200, 2000, 7);
}

fn compare(nodes: usize, pods: usize, seed: u64) {
    let seed = std::env::var("PINTLE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(seed);
    println!("PINTLE_SEED={seed}");
    let fast = json!({
        "percentageOfNodesToScore": 100,
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"qps": 5000, "burst": 5000},
    });
    let mut stand = SchedulerStand::start("shadow", &fast);
    stand.with_client(async |client| set_up(&client, nodes, seed).await);
    stand.start_shadow();
    let before_kib = stand.resident_kib();
    let outcome = stand.with_client(async |client| waves(&client, nodes, pods, seed).await);
    let after_kib = stand.resident_kib();
    commands(&stand, &outcome);
    let report = stand.end_shadow();
    let shown = serde_json::to_string_pretty(&report).expect("JSON");
    println!("{outcome:?}; shadow {before_kib} KiB, then {after_kib} KiB");
    let number = |kind: &str, what: &str| report[kind][what].as_u64().expect("a number");
    println!("bindings {}, refusals {}", report["bindings"], report["refusals"]);
    for kind in ["bindings", "refusals"] {
        assert_eq!(number(kind, "other"), 0, "{shown}\n{}", stand.log_end());
        assert_eq!(number(kind, "sampled"), 0, "{shown}");
    }
    let compared = number("bindings", "exact") + number("bindings", "nearby");
    let expected = outcome.bound as u64;
    assert!(compared >= expected, "{compared} of {expected} bindings were compared: {shown}");
    assert!(number("bindings", "exact") * 2 > compared, "most are exact: {shown}");
    assert!(number("refusals", "exact") > 0, "some pods fit nowhere: {shown}");
    assert_eq!(report["leftOut"], json!({}), "{shown}");
}

/// The commands answer about the same cluster.
fn commands(stand: &SchedulerStand, outcome: &ShadowOutcome) {
    let refused = outcome.a_refused.as_deref().expect("some pod fits nowhere");
    let answer = stand.ask(&["explain", refused, "-o", "json"]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["pod"], refused);
    if answer["feasible"] == 0 {
        let message = answer["message"].as_str().expect("a message");
        assert!(message.starts_with("0/"), "{message}");
        assert!(!answer["nearest"].as_array().expect("a list").is_empty(), "{answer}");
    }
    let text = stand.ask(&["explain", refused]);
    assert!(text.contains("Rejected:"), "{text}");
    println!("{text}");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "more"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "10m"}}}]}});
    let pod = stand.file("more.json", &pod);
    let args = ["what-if", "--pod", &pod.to_string_lossy(), "--replicas", "3", "-o", "json"];
    let answer: Value = serde_json::from_str(&stand.ask(&args)).expect("JSON");
    assert_eq!(answer["placed"].as_array().map(Vec::len), Some(3), "{answer}");
}

/// The API server's final state.
#[derive(Debug, PartialEq, Eq, Clone, Default)]
pub(crate) struct ShadowOutcome {
    pub(crate) bound: usize,
    pub(crate) refused: usize,
    gated: usize,
    undecided: usize,
    leaving: usize,
    /// One that fits nowhere.
    pub(crate) a_refused: Option<String>,
}

pub(crate) async fn set_up(client: &kube::Client, nodes: usize, seed: u64) -> Result<()> {
    for (name, value) in [("high", 1000), ("high-never", 1000)] {
        let class = json!({"metadata": {"name": name}, "value": value,
            "preemptionPolicy": if name == "high" { "PreemptLowerPriority" } else { "Never" }});
        create::<PriorityClass>(&Api::all(client.clone()), class).await?;
    }
    for (name, team) in NAMESPACES {
        if name != "default" {
            let namespace = json!({"metadata": {"name": name, "labels": {"team": team}}});
            create::<Namespace>(&Api::all(client.clone()), namespace).await?;
        }
        let account = json!({"metadata": {"name": "default"}});
        create::<ServiceAccount>(&Api::namespaced(client.clone(), name), account).await?;
        let service = json!({"metadata": {"name": "app0"}, "spec": {"selector": {"app": "app0"},
            "ports": [{"port": 80}]}});
        create::<Service>(&Api::namespaced(client.clone(), name), service).await?;
    }
    let mut chance = Chance::new(seed);
    let all: Api<Node> = Api::all(client.clone());
    let made: Vec<_> = (0..nodes).map(|at| world::node(at, &mut chance)).collect();
    let made = stream::iter(made).map(|(node, taints)| {
        let all = all.clone();
        async move {
            let name = node["metadata"]["name"].as_str().expect("a name").to_owned();
            let unschedulable = node["spec"]["unschedulable"].clone();
            create::<Node>(&all, node).await?;
            let spec = json!({"spec": {"taints": taints, "unschedulable": unschedulable}});
            patch(&all, &name, spec).await
        }
    });
    made.buffer_unordered(AT_ONCE).try_collect().await
}

pub(crate) async fn waves(
    client: &kube::Client,
    nodes: usize,
    pods: usize,
    seed: u64,
) -> Result<ShadowOutcome> {
    let mut chance = Chance::new(seed ^ 0xA5A5);
    let made: Vec<Value> = (0..pods).map(|at| world::pod(at, &mut chance)).collect();
    let mut outcome = ShadowOutcome::default();
    for wave in made.chunks(pods.div_ceil(4)) {
        let posts = stream::iter(wave.to_vec()).map(|pod| {
            let namespace = pod["metadata"]["namespace"].as_str().expect("it has one").to_owned();
            let all: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            async move { create(&all, pod).await }
        });
        posts.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        outcome = quiet(client).await?;
        disturb(client, nodes, &mut chance).await?;
    }
    let last = quiet(client).await?;
    Ok(ShadowOutcome { bound: last.bound.max(outcome.bound), ..last })
}

/// Deletes pods, opens gates, closes a node and opens another.
async fn disturb(client: &kube::Client, nodes: usize, chance: &mut Chance) -> Result<()> {
    let all = pods(client).await?;
    for pod in all.iter().filter(|pod| is_bound(pod)) {
        if chance.below(12) == 0 {
            of(client, pod).delete(name(pod), &DeleteParams::default()).await?;
        }
    }
    let gated = all.iter().filter(|pod| is_gated(pod));
    for pod in gated {
        if chance.below(2) == 0 {
            let open = json!({"spec": {"schedulingGates": null}});
            patch(&of(client, pod), name(pod), open).await?;
        }
    }
    for unschedulable in [true, false] {
        let node = format!("n{:03}", chance.below(nodes));
        let spec = json!({"spec": {"unschedulable": unschedulable}});
        patch(&Api::<Node>::all(client.clone()), &node, spec).await?;
    }
    Ok(())
}

/// Waits until kube-scheduler has nothing left to do; meanwhile removes deleted pods from their
/// nodes, as a kubelet would.
pub(crate) async fn quiet(client: &kube::Client) -> Result<ShadowOutcome> {
    let (mut last, mut same) = (BTreeMap::new(), 0);
    let mut last_outcome = None;
    for _ in 0..LOOKS_MAX {
        let all = pods(client).await?;
        let leaving: Vec<&Pod> =
            all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).collect();
        for pod in &leaving {
            let now = DeleteParams::default().grace_period(0);
            // Another client may have deleted it already.
            let _ = of(client, pod).delete(name(pod), &now).await;
        }
        let state: BTreeMap<_, _> = all
            .iter()
            .map(|pod| (pod.metadata.uid.clone(), pod.metadata.resource_version.clone()))
            .collect();
        same = if state == last { same + 1 } else { 0 };
        last = state;
        let undecided = all.iter().filter(|p| !is_bound(p) && !is_refused(p) && !is_gated(p));
        let outcome = ShadowOutcome {
            bound: all.iter().filter(|pod| is_bound(pod)).count(),
            refused: all.iter().filter(|pod| is_refused(pod)).count(),
            gated: all.iter().filter(|pod| is_gated(pod)).count(),
            undecided: undecided.count(),
            leaving: leaving.len(),
            a_refused: all.iter().find(|pod| is_refused(pod)).map(|pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
                format!("{namespace}/{}", name(pod))
            }),
        };
        if same >= QUIET_LOOKS && outcome.undecided == 0 && outcome.leaving == 0 {
            return Ok(outcome);
        }
        last_outcome = Some(outcome);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    anyhow::bail!("the scheduler does not come to an end: {last_outcome:?}")
}

pub(crate) async fn pods(client: &kube::Client) -> Result<Vec<Pod>> {
    Ok(Api::<Pod>::all(client.clone()).list(&ListParams::default()).await?.items)
}

pub(crate) fn of(client: &kube::Client, pod: &Pod) -> Api<Pod> {
    Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"))
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

pub(crate) fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.node_name.is_some())
}

pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

pub(crate) fn is_refused(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    !is_bound(pod)
        && conditions
            .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable"))
}

pub(crate) async fn create<T>(api: &Api<T>, object: Value) -> Result<()>
where
    T: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let shown = object["metadata"]["name"].to_string();
    let object = serde_json::from_value(object).context("an object of its kind")?;
    api.create(&PostParams::default(), &object).await.with_context(|| shown)?;
    Ok(())
}

pub(crate) async fn patch<T>(api: &Api<T>, name: &str, change: Value) -> Result<()>
where
    T: Clone + DeserializeOwned + std::fmt::Debug,
{
    ensure!(!name.is_empty(), "a name is needed");
    let patch = Patch::Merge(&change);
    api.patch(name, &PatchParams::default(), &patch).await.with_context(|| name.to_owned())?;
    Ok(())
}
