//! DaemonSet: nodes that change, pods that fail, updates.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, count, image, name, run};

#[test]
fn daemons_of_nodes_are_upstreams() {
    run(cases![
        a_pod_comes_when_the_taint_is_taken_off,
        a_failed_daemon_pod_is_replaced,
        a_surging_update_deletes_the_old_pod_when_the_new_one_is_ready,
        a_node_that_no_longer_matches_loses_its_pod,
        a_roll_back_gives_the_old_revision_the_highest_number,
    ]);
}

async fn counts(t: &CaseNamespace) -> Result<Value> {
    let set = t.get("DaemonSet", "d").await?;
    let fields =
        ["desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled", "numberReady"];
    Ok(fields.iter().map(|field| count(&set, field)).collect())
}

async fn images(t: &CaseNamespace) -> Result<Value> {
    let mut images: Vec<String> = t.pods().await?.iter().map(image).collect();
    images.sort();
    Ok(images.into())
}

/// k#42398
async fn a_pod_comes_when_the_taint_is_taken_off(t: &CaseNamespace) -> Result<()> {
    let taint = json!([{"key": "job", "value": "other", "effect": "NoSchedule"}]);
    let node = t.node("n", taint).await?;
    t.daemon_set("d", json!({})).await?;
    t.eq("no pod is wanted", json!([1, [0, 0, 0, 0]]), async || {
        let seen = t.counted("DaemonSet", "d", "observedGeneration").await?;
        Ok(json!([seen, counts(t).await?]))
    })
    .await?;
    t.stays("no pod", json!([]), async || images(t).await).await?;
    t.patch("Node", &node, json!({"spec": {"taints": null}})).await?;
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    t.eq("a pod for that node", json!([[field]]), async || {
        let of = |pod: &Value| {
            let affinity = &pod["spec"]["affinity"]["nodeAffinity"];
            let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
            required["nodeSelectorTerms"][0]["matchFields"].clone()
        };
        Ok(t.pods().await?.iter().map(of).collect())
    })
    .await?;
    t.kubelet(Some(&node), |_| true);
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.settles(&["DaemonSet", "Pod"]).await
}

/// k#40330
async fn a_failed_daemon_pod_is_replaced(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    t.daemon_set("d", json!({})).await?;
    t.kubelet(Some(&node), |_| true);
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    let pod = t.pod_names().await?.remove(0);
    t.finish(&pod, 1).await?;
    t.eq("another pod", json!(true), async || {
        let names = t.pod_names().await?;
        Ok((names.len() == 1 && !names.contains(&pod)).into())
    })
    .await?;
    let message = format!(
        "Found failed daemon pod {}/{pod} on node {node}, will try to kill it",
        t.namespace
    );
    t.eq("an event", json!([message]), async || t.messages("FailedDaemonPod", "d").await).await?;
    t.eq("it runs again", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.settles(&["DaemonSet", "Pod"]).await
}

/// k#96441
async fn a_surging_update_deletes_the_old_pod_when_the_new_one_is_ready(
    t: &CaseNamespace,
) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": surge});
    t.daemon_set("d", json!({"updateStrategy": strategy})).await?;
    t.kubelet(Some(&node), |pod| image(pod) == "good");
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.set_image("DaemonSet", "d", "next").await?;
    t.eq("both", json!(["good", "next"]), async || images(t).await).await?;
    t.stays("both", json!(["good", "next"]), async || images(t).await).await?;
    t.kubelet(Some(&node), |pod| image(pod) == "next");
    t.eq("only the new one", json!(["next"]), async || images(t).await).await?;
    t.eq("the status", json!([1, 1]), async || {
        let set = t.get("DaemonSet", "d").await?;
        Ok(json!([count(&set, "updatedNumberScheduled"), count(&set, "numberAvailable")]))
    })
    .await?;
    t.settles(&["DaemonSet", "Pod"]).await
}

async fn a_node_that_no_longer_matches_loses_its_pod(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    t.daemon_set("d", json!({})).await?;
    t.kubelet(Some(&node), |_| true);
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.patch("Node", &node, json!({"metadata": {"labels": {"case": "other"}}})).await?;
    t.eq("no pod", json!([]), async || images(t).await).await?;
    t.eq("none is wanted", json!([0, 0, 0, 0]), async || counts(t).await).await?;
    t.patch("Node", &node, json!({"metadata": {"labels": {"case": t.namespace}}})).await?;
    t.eq("it runs again", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.settles(&["DaemonSet", "Pod", "ControllerRevision"]).await
}

async fn a_roll_back_gives_the_old_revision_the_highest_number(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    t.daemon_set("d", json!({})).await?;
    t.kubelet(Some(&node), |_| true);
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    let revisions = async || {
        let mut all = t.list("ControllerRevision").await?;
        all.sort_by_key(|one| one["revision"].as_i64());
        Ok::<_, anyhow::Error>(all)
    };
    let first = name(revisions().await?.first().context("a revision")?);
    t.set_image("DaemonSet", "d", "next").await?;
    t.eq("the new pod", json!(["next"]), async || images(t).await).await?;
    t.eq("it runs", json!([1, 1, 0, 1]), async || counts(t).await).await?;
    t.set_image("DaemonSet", "d", "good").await?;
    t.eq("the old pod", json!(["good"]), async || images(t).await).await?;
    t.eq("two revisions, the old one last", json!([2, 2, first, 3]), async || {
        let all = revisions().await?;
        let last = all.last().context("a revision")?;
        Ok(json!([all.len(), all[0]["revision"], name(last), last["revision"]]))
    })
    .await?;
    t.settles(&["DaemonSet", "Pod", "ControllerRevision"]).await
}
