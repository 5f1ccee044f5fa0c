//! The example's scheduler, which has plugins of its own, on a real API server.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use nix::sys::signal::Signal;
use pintle_testbed::wait::LONG;
use serde_json::{Value, json};

use crate::shadow::{create, name, patch};
use crate::stand::SchedulerStand;

/// How long a member of a gang waits for the others, in seconds.
const GANG_WAITS: u64 = 20;

/// Nodes n0 to n2; the last two have licences.
async fn set_up(client: &kube::Client) -> Result<()> {
    let account = json!({"metadata": {"name": "default"}});
    create::<ServiceAccount>(&Api::namespaced(client.clone(), "default"), account).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    for (name, licences) in [("n0", None), ("n1", Some("1")), ("n2", Some("9"))] {
        let room = json!({"cpu": "100", "memory": "100Gi", "pods": "110"});
        let key = "licence.example.pintle.dev/compiler";
        let licences = licences.map_or(json!({}), |count| json!({key: count}));
        let node = json!({"metadata": {"name": name, "annotations": licences},
            "status": {"allocatable": room, "capacity": room}});
        create::<Node>(&nodes, node).await?;
        patch(&nodes, name, json!({"spec": {"taints": []}})).await?;
    }
    Ok(())
}

fn pod(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

fn member(gang: &str, at: usize, size: &str) -> Value {
    let labels = json!({"example.pintle.dev/gang": gang});
    pod(&format!("{gang}-{at}"), labels, json!({"example.pintle.dev/gang-size": size}))
}

/// Waits until all pods are as wanted; how they are.
async fn all_are(
    pods: &Api<Pod>,
    count: usize,
    wanted: impl Fn(&Pod) -> bool,
) -> Result<BTreeMap<String, Pod>> {
    let wait = async {
        let mut events = pods.watch(&WatchParams::default(), "0").await?.boxed();
        let mut found = BTreeMap::new();
        while found.len() < count {
            let event = events.try_next().await?.context("the watch ended")?;
            if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
                && wanted(&pod)
            {
                found.insert(name(&pod).to_owned(), pod);
            }
        }
        Ok(found)
    };
    tokio::time::timeout(LONG, wait).await?
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node that is kept for a pod.
fn kept(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref()
}

/// Why a pod has no node.
fn why(pod: &Pod) -> Option<&str> {
    let all = pod.status.as_ref()?.conditions.as_ref()?;
    all.iter().find(|condition| condition.type_ == "PodScheduled")?.message.as_deref()
}

/// A gang of three: two wait, each with a reserved node, until the third is created.
async fn a_whole_gang(pods: &Api<Pod>) -> Result<()> {
    create::<Pod>(pods, member("whole", 0, "3")).await?;
    create::<Pod>(pods, member("whole", 1, "3")).await?;
    let waiting = all_are(pods, 2, |pod| kept(pod).is_some()).await?;
    let bound: Vec<&String> =
        waiting.iter().filter(|(_, pod)| node_of(pod).is_some()).map(|(name, _)| name).collect();
    ensure!(bound.is_empty(), "bound without the others: {bound:?}");
    create::<Pod>(pods, member("whole", 2, "3")).await?;
    let is_whole = |pod: &Pod| name(pod).starts_with("whole");
    all_are(pods, 3, |pod| is_whole(pod) && node_of(pod).is_some()).await?;
    Ok(())
}

/// A gang of two; the second pod is never created.
async fn half_a_gang(pods: &Api<Pod>) -> Result<()> {
    create::<Pod>(pods, member("half", 0, "2")).await?;
    let says = format!(
        "0/1 nodes are available: 1 rejected due to timeout after waiting {GANG_WAITS}s at plugin \
         Gang."
    );
    all_are(pods, 1, |pod| name(pod) == "half-0" && why(pod) == Some(&says)).await?;
    Ok(())
}

/// A pod that needs a licence gets the node with the most, and its annotation names the node.
async fn a_licence(pods: &Api<Pod>) -> Result<()> {
    let needs = json!({"example.pintle.dev/needs-licence": "compiler"});
    create::<Pod>(pods, pod("licensed", needs, json!({}))).await?;
    let needs = json!({"example.pintle.dev/needs-licence": "debugger"});
    let mut without = pod("without", needs, json!({}));
    // No kubelet would end it once it is deleted.
    without["spec"]["terminationGracePeriodSeconds"] = json!(0);
    create::<Pod>(pods, without).await?;
    let found = all_are(pods, 1, |pod| name(pod) == "licensed" && node_of(pod).is_some()).await?;
    let licensed = &found["licensed"];
    let from = licensed
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get("example.pintle.dev/licence-from").cloned());
    ensure!(from.as_deref() == Some("n2"), "{from:?}");
    ensure!(node_of(licensed) == Some("n2"), "{:?}", node_of(licensed));
    let says = "0/3 nodes are available: 3 node(s) had no licence for debugger.";
    let told = |pod: &Pod| why(pod).is_some_and(|why| why.starts_with(says));
    all_are(pods, 1, |pod| name(pod) == "without" && told(pod)).await?;
    Ok(())
}

/// A waiting pod is retried when a node gains the licence, which no column represents.
async fn a_licence_that_comes_later(client: &kube::Client, pods: &Api<Pod>) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let now = json!({"metadata": {"annotations": {"licence.example.pintle.dev/debugger": "1"}}});
    patch(&nodes, "n0", now).await?;
    let found = all_are(pods, 1, |pod| name(pod) == "without" && node_of(pod).is_some()).await?;
    ensure!(node_of(&found["without"]) == Some("n0"), "{:?}", node_of(&found["without"]));
    Ok(())
}

/// A pod of higher priority preempts the holder of the last licence, and no other pod.
async fn preempt_the_licence_holder(client: &kube::Client, pods: &Api<Pod>) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    create(&classes, json!({"metadata": {"name": "high"}, "value": 1000})).await?;
    let needs = json!({"example.pintle.dev/needs-licence": "debugger"});
    create::<Pod>(pods, pod("waits", needs.clone(), json!({}))).await?;
    let says = "0/3 nodes are available: 1 node(s) had no licence for debugger left, 2 node(s) had \
        no licence for debugger.";
    let told = |pod: &Pod| why(pod).is_some_and(|why| why.starts_with(says));
    all_are(pods, 1, |pod| name(pod) == "waits" && told(pod)).await?;
    let mut important = pod("important", needs, json!({}));
    important["spec"]["priorityClassName"] = json!("high");
    create::<Pod>(pods, important).await?;
    let found = all_are(pods, 1, |pod| name(pod) == "important" && node_of(pod).is_some()).await?;
    ensure!(node_of(&found["important"]) == Some("n0"), "{:?}", node_of(&found["important"]));
    ensure!(
        pods.get_opt("without").await?.is_none(),
        "the holder of the licence was not preempted"
    );
    Ok(())
}

#[test]
fn out_of_tree_plugins_schedule_gangs_and_assign_licences() {
    let configuration = json!({
        "leaderElection": {"leaderElect": false},
        "profiles": [{
            "schedulerName": "default-scheduler",
            "plugins": {"multiPoint": {"enabled": [
                {"name": "Gang"}, {"name": "Licence", "weight": 100}]}},
            "pluginConfig": [{"name": "Gang", "args": {"waitSeconds": GANG_WAITS}}],
        }],
    });
    let stand = SchedulerStand::without_scheduler("plugins", &configuration);
    stand.with_client(async |client| set_up(&client).await);
    stand.give_rights(&json!([{"apiGroups": [""], "verbs": ["patch"], "resources": ["pods"]}]));
    let ours = stand.start_example(&["--secure-port=0"]);
    let left = stand.with_client(async |client| {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        a_whole_gang(&pods).await.context("a whole gang")?;
        a_licence(&pods).await.context("a licence")?;
        a_licence_that_comes_later(&client, &pods).await.context("a licence that comes later")?;
        preempt_the_licence_holder(&client, &pods).await.context("a licence in use")?;
        half_a_gang(&pods).await.context("half a gang")?;
        let all = pods.list(&ListParams::default()).await?;
        let left = all.items.iter().filter(|pod| node_of(pod).is_none());
        Ok(left.map(|pod| name(pod).to_owned()).collect::<Vec<_>>())
    });
    assert_eq!(left, ["half-0", "waits"], "all others are bound");
    assert!(ours.end(Signal::SIGTERM), "{}", stand.ours_log_end());
}
