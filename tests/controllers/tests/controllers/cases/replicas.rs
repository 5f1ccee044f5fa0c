//! ReplicaSet and ReplicationController: which pods go, which are adopted, which are refused.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, PodRun, before_now, condition, controller, name, run, template};

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

#[test]
fn replicas_are_upstreams() {
    run(cases![
        scaling_down_deletes_pods_by_rank,
        a_replication_controller_honours_the_deletion_cost,
        orphans_are_adopted_by_a_matching_controller,
        a_refused_pod_is_a_condition_until_the_quota_grows,
        a_pod_whose_labels_change_is_released_and_replaced,
        failed_pods_are_replaced_and_removed_with_the_set,
    ]);
}

/// Creates a controller and its pods, and returns their names, the oldest first.
async fn create(t: &CaseNamespace, kind: &str, replicas: usize) -> Result<Vec<String>> {
    let labels = json!({"app": "r"});
    let selector =
        if kind == "ReplicaSet" { json!({"matchLabels": labels}) } else { labels.clone() };
    let spec = json!({"replicas": replicas, "selector": selector,
        "template": template("r", "good", json!({}))});
    t.create(kind, "r", json!({"spec": spec})).await?;
    t.eq("all pods", json!(replicas), async || Ok(t.pods().await?.len().into())).await?;
    Ok(t.pods().await?.iter().map(name).collect())
}

async fn names(t: &CaseNamespace) -> Result<Value> {
    Ok(t.pod_names().await?.into())
}

fn sorted(mut names: Vec<String>) -> Value {
    names.sort();
    names.into()
}

/// k#111443: without a node, pending, not Ready, a lower cost, more pods on the node, more
/// restarts.
async fn scaling_down_deletes_pods_by_rank(t: &CaseNamespace) -> Result<()> {
    let (a, b) = (t.node("a", Value::Null).await?, t.node("b", Value::Null).await?);
    let mut pods = create(t, "ReplicaSet", 7).await?;
    for (pod, node) in [(1, &b), (2, &b), (3, &b), (4, &a), (5, &b), (6, &a)] {
        t.bind(&pods[pod], node).await?;
    }
    // All at one time: ages that differ count before restarts.
    let old = PodRun { since: before_now(300), ..Default::default() };
    t.set_state(&pods[2], &PodRun { is_ready: false, ..old }).await?;
    t.set_state(&pods[3], &old).await?;
    t.set_state(&pods[4], &PodRun { restarts: 3, ..old }).await?;
    t.set_state(&pods[5], &old).await?;
    t.set_state(&pods[6], &old).await?;
    let cost = json!({"metadata": {"annotations": {COST: "-5"}}});
    t.patch("Pod", &pods[3], cost).await?;
    let ready = async || t.counted("ReplicaSet", "r", "readyReplicas").await;
    t.eq("four are Ready", json!(4), ready).await?;
    t.settles(&["ReplicaSet", "Pod"]).await?;
    // The first of the list is always the next victim: node a has more pods when b has one.
    for left in (2..7).rev() {
        t.patch("ReplicaSet", "r", json!({"spec": {"replicas": left}})).await?;
        pods.remove(0);
        let what = format!("the next pod goes, {left} are left");
        t.eq(&what, sorted(pods.clone()), async || names(t).await).await?;
        let replicas = async || t.counted("ReplicaSet", "r", "replicas").await;
        t.eq("the set has seen it", json!(left), replicas).await?;
    }
    Ok(())
}

/// k#126138
async fn a_replication_controller_honours_the_deletion_cost(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    let pods = create(t, "ReplicationController", 3).await?;
    for (number, pod) in pods.iter().enumerate() {
        t.bind(pod, &node).await?;
        let since = before_now(if number == 0 { 1000 } else { 5 });
        t.set_state(pod, &PodRun { since, ..Default::default() }).await?;
    }
    t.patch("Pod", &pods[0], json!({"metadata": {"annotations": {COST: "-1"}}})).await?;
    let ready = async || t.counted("ReplicationController", "r", "readyReplicas").await;
    t.eq("all are Ready", json!(3), ready).await?;
    t.settles(&["ReplicationController", "Pod"]).await?;
    t.patch("ReplicationController", "r", json!({"spec": {"replicas": 2}})).await?;
    t.eq("the cheap one goes", sorted(pods[1..].to_vec()), async || names(t).await).await?;
    t.settles(&["ReplicationController", "Pod"]).await
}

/// k#32829
async fn orphans_are_adopted_by_a_matching_controller(t: &CaseNamespace) -> Result<()> {
    for name in ["a", "b"] {
        let spec = json!({"replicas": 2, "selector": {"app": "x"},
            "template": template("x", "good", json!({}))});
        t.create("ReplicationController", name, json!({"spec": spec})).await?;
    }
    let owners = async || {
        let pods = t.pods().await?;
        let owner = |pod: &Value| controller(pod)["name"].as_str().unwrap_or("none").to_owned();
        Ok(sorted(pods.iter().map(owner).collect()))
    };
    t.eq("two each", json!(["a", "a", "b", "b"]), owners).await?;
    t.settles(&["ReplicationController", "Pod"]).await?;
    t.delete_with("ReplicationController", "a", "Orphan").await?;
    t.gone("ReplicationController", "a").await?;
    t.eq("the other one has two", json!(["b", "b"]), owners).await?;
    t.settles(&["ReplicationController", "Pod"]).await
}

async fn a_refused_pod_is_a_condition_until_the_quota_grows(t: &CaseNamespace) -> Result<()> {
    t.create("ResourceQuota", "q", json!({"spec": {"hard": {"pods": "1"}}})).await?;
    t.eq("the quota is known", json!({"pods": "0"}), async || {
        Ok(t.get("ResourceQuota", "q").await?["status"]["used"].clone())
    })
    .await?;
    let spec = json!({"replicas": 3, "selector": {"matchLabels": {"app": "r"}},
        "template": template("r", "good", json!({}))});
    t.create("ReplicaSet", "r", json!({"spec": spec})).await?;
    let failure = async || {
        Ok(condition(&t.get("ReplicaSet", "r").await?, "ReplicaFailure", &["status", "reason"]))
    };
    t.eq("a condition", json!(["True", "FailedCreate"]), failure).await?;
    t.eq("one pod", json!(1), async || Ok(t.pods().await?.len().into())).await?;
    t.patch("ResourceQuota", "q", json!({"spec": {"hard": {"pods": "5"}}})).await?;
    t.eq("no condition", Value::Null, failure).await?;
    t.eq("three pods", json!(3), async || Ok(t.pods().await?.len().into())).await?;
    t.settles(&["ReplicaSet", "Pod", "ResourceQuota"]).await
}

async fn a_pod_whose_labels_change_is_released_and_replaced(t: &CaseNamespace) -> Result<()> {
    let pods = create(t, "ReplicaSet", 2).await?;
    t.patch("Pod", &pods[0], json!({"metadata": {"labels": {"app": "mine"}}})).await?;
    let owner = async || Ok(controller(&t.get("Pod", &pods[0]).await?));
    t.eq("it has no owner", Value::Null, owner).await?;
    t.eq("another one", json!(3), async || Ok(t.pods().await?.len().into())).await?;
    t.settles(&["ReplicaSet", "Pod"]).await?;
    t.patch("Pod", &pods[0], json!({"metadata": {"labels": {"app": "r"}}})).await?;
    t.eq("two again", json!(2), async || Ok(t.pods().await?.len().into())).await?;
    t.settles(&["ReplicaSet", "Pod"]).await?;
    t.eq("all are the set's", json!(["r", "r"]), async || {
        Ok(t.pods().await?.iter().map(|pod| controller(pod)["name"].clone()).collect())
    })
    .await
}

async fn failed_pods_are_replaced_and_removed_with_the_set(t: &CaseNamespace) -> Result<()> {
    let pods = create(t, "ReplicaSet", 2).await?;
    t.finish(&pods[0], 1).await?;
    t.eq("another pod", json!(3), async || Ok(t.pods().await?.len().into())).await?;
    t.settles(&["ReplicaSet", "Pod"]).await?;
    let counted = async || t.counted("ReplicaSet", "r", "replicas").await;
    t.eq("it does not count", json!(2), counted).await?;
    t.delete_with("ReplicaSet", "r", "Foreground").await?;
    t.gone("ReplicaSet", "r").await?;
    t.eq("no pod", json!(0), async || Ok(t.list("Pod").await?.len().into())).await
}
