//! StatefulSet: revisions, order, claims.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{
    CaseNamespace, controller, count, image, is_terminating, label, owner_reference, run, template,
    uid,
};

#[test]
fn stateful_pods_are_upstreams() {
    run(cases![
        a_pod_below_the_partition_comes_back_old,
        a_parallel_update_waits_for_the_pod_that_it_replaced,
        a_claim_of_another_controller_is_left_alone,
        finished_pods_are_replaced_once,
        a_set_scaled_to_none_completes_its_update,
        a_bad_revision_stays_until_its_pod_is_deleted,
        on_delete_does_not_move_the_current_revision,
        ordered_pods_come_and_go_one_by_one,
    ]);
}

async fn wait_ready(t: &CaseNamespace, count: usize) -> Result<()> {
    let what = format!("{count} pods are Ready");
    t.eq(&what, json!(count), async || t.counted("StatefulSet", "s", "readyReplicas").await).await
}

async fn status(t: &CaseNamespace, field: &str) -> Result<Value> {
    Ok(t.get("StatefulSet", "s").await?["status"][field].clone())
}

/// Images of the first pods; empty where there is none.
async fn images(t: &CaseNamespace, count: usize) -> Result<Value> {
    let mut images = Vec::new();
    for ordinal in 0..count {
        images.push(image(&t.get("Pod", &format!("s-{ordinal}")).await?));
    }
    Ok(images.into())
}

async fn revision(t: &CaseNamespace, pod: &str) -> Result<Value> {
    Ok(label(&t.get("Pod", pod).await?, "controller-revision-hash"))
}

fn partition(partition: u32) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}})
}

/// k#119685
async fn a_pod_below_the_partition_comes_back_old(t: &CaseNamespace) -> Result<()> {
    t.stateful_set("s", 2, json!({"updateStrategy": partition(1)})).await?;
    t.kubelet(None, |_| true);
    wait_ready(t, 2).await?;
    let old = status(t, "currentRevision").await?;
    t.set_image("StatefulSet", "s", "next").await?;
    t.eq("s-1 is new", json!(["good", "next"]), async || images(t, 2).await).await?;
    wait_ready(t, 2).await?;
    let before = uid(&t.get("Pod", "s-0").await?);
    t.delete("Pod", "s-0", Default::default()).await?;
    t.eq("s-0 is another pod of the old revision", json!([true, "good", old]), async || {
        let pod = t.get("Pod", "s-0").await?;
        Ok(json!([uid(&pod) != before, image(&pod), revision(t, "s-0").await?]))
    })
    .await?;
    t.eq("the status", json!([old, true, 1, 1]), async || {
        let set = t.get("StatefulSet", "s").await?;
        let is_other = set["status"]["updateRevision"] != old;
        Ok(json!([
            set["status"]["currentRevision"],
            is_other,
            count(&set, "currentReplicas"),
            count(&set, "updatedReplicas")
        ]))
    })
    .await?;
    wait_ready(t, 2).await?;
    t.settles(&["StatefulSet", "ControllerRevision", "Pod"]).await
}

/// k#96218
async fn a_parallel_update_waits_for_the_pod_that_it_replaced(t: &CaseNamespace) -> Result<()> {
    t.stateful_set("s", 3, json!({"podManagementPolicy": "Parallel"})).await?;
    t.eq("all at once", json!(["s-0", "s-1", "s-2"]), async || Ok(t.pod_names().await?.into()))
        .await?;
    for pod in ["s-1", "s-2"] {
        t.set_running(pod).await?;
    }
    wait_ready(t, 2).await?;
    t.set_image("StatefulSet", "s", "next").await?;
    for (want, replaced) in [
        (["good", "good", "next"], "s-2"),
        (["good", "next", "next"], "s-1"),
        (["next", "next", "next"], "s-0"),
    ] {
        t.eq("the highest of the old ones", json!(want), async || images(t, 3).await).await?;
        t.stays("the next one waits", json!(want), async || images(t, 3).await).await?;
        t.set_running(replaced).await?;
    }
    wait_ready(t, 3).await?;
    t.eq("complete", json!(true), async || {
        Ok((status(t, "currentRevision").await? == status(t, "updateRevision").await?).into())
    })
    .await
}

fn claim() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
        "resources": {"requests": {"storage": "1Gi"}}})
}

/// k#122400
async fn a_claim_of_another_controller_is_left_alone(t: &CaseNamespace) -> Result<()> {
    let kind = "PersistentVolumeClaim";
    let mut owner = owner_reference(&t.config_map("boss", &[], false).await?, false);
    owner["controller"] = true.into();
    let metadata = json!({"labels": {"app": "s"}, "ownerReferences": [owner]});
    t.create(kind, "data-s-0", json!({"metadata": metadata, "spec": claim()})).await?;
    let templates = json!([{"metadata": {"name": "data"}, "spec": claim()}]);
    let policy = json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
    let spec = json!({"volumeClaimTemplates": templates,
        "persistentVolumeClaimRetentionPolicy": policy});
    t.stateful_set("s", 2, spec).await?;
    t.kubelet(None, |_| true);
    wait_ready(t, 2).await?;
    t.eq("its own claim", json!(["StatefulSet", "s", true]), async || {
        let owner = controller(&t.get(kind, "data-s-1").await?);
        Ok(json!([owner["kind"], owner["name"], owner["blockOwnerDeletion"]]))
    })
    .await?;
    let foreign = async || {
        let claim = t.get(kind, "data-s-0").await?;
        Ok(json!([controller(&claim)["name"], is_terminating(&claim)]))
    };
    t.eq("the other one", json!(["boss", false]), foreign).await?;
    t.settles(&["StatefulSet", kind, "Pod"]).await?;
    t.delete_with("StatefulSet", "s", "Background").await?;
    t.eq("its own claim terminates", json!(true), async || {
        Ok(is_terminating(&t.get(kind, "data-s-1").await?).into())
    })
    .await?;
    t.eq("no pod", json!(0), async || Ok(t.pods().await?.len().into())).await?;
    // No controller of claims runs here.
    t.remove_finalizers(kind, "data-s-1").await?;
    t.gone(kind, "data-s-1").await?;
    t.stays("the other one", json!(["boss", false]), foreign).await?;
    t.remove_finalizers(kind, "data-s-0").await.map(drop)
}

/// k#122709
async fn finished_pods_are_replaced_once(t: &CaseNamespace) -> Result<()> {
    t.stateful_set("s", 2, json!({})).await?;
    t.kubelet(None, |_| true);
    wait_ready(t, 2).await?;
    for (pod, code) in [("s-0", 1), ("s-1", 0)] {
        let before = uid(&t.get("Pod", pod).await?);
        t.finish(pod, code).await?;
        t.eq("another pod", json!(true), async || {
            let now = uid(&t.get("Pod", pod).await?);
            Ok((!now.is_empty() && now != before).into())
        })
        .await?;
        wait_ready(t, 2).await?;
    }
    let deletions = json!([
        "Delete Pod s-0 in StatefulSet s successful",
        "Delete Pod s-1 in StatefulSet s successful"
    ]);
    t.eq("events", deletions, async || t.messages("SuccessfulDelete", "s").await).await?;
    t.eq("no events of older releases", json!(0), async || {
        let events = t.list("Event").await?;
        let is_old = |event: &&Value| {
            event["reason"].as_str().is_some_and(|reason| reason.starts_with("Recreating"))
        };
        Ok(events.iter().filter(is_old).count().into())
    })
    .await?;
    t.settles(&["StatefulSet", "Pod"]).await
}

/// k#121534: documented otherwise, but so it is in 1.36.
async fn a_set_scaled_to_none_completes_its_update(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"podManagementPolicy": "Parallel", "updateStrategy": partition(2)});
    t.stateful_set("s", 3, spec).await?;
    t.kubelet(None, |_| true);
    wait_ready(t, 3).await?;
    t.set_image("StatefulSet", "s", "next").await?;
    t.eq("mixed", json!(["good", "good", "next"]), async || images(t, 3).await).await?;
    wait_ready(t, 3).await?;
    t.patch("StatefulSet", "s", json!({"spec": {"replicas": 0}})).await?;
    t.eq("none", json!([0, 0]), async || {
        Ok(json!([t.list("Pod").await?.len(), t.counted("StatefulSet", "s", "replicas").await?]))
    })
    .await?;
    t.patch("StatefulSet", "s", json!({"spec": {"replicas": 2}})).await?;
    wait_ready(t, 2).await?;
    t.eq("new pods", json!(["next", "next"]), async || images(t, 2).await).await?;
    let current = status(t, "currentRevision").await?;
    for pod in ["s-0", "s-1"] {
        t.eq("the current revision", current.clone(), async || revision(t, pod).await).await?;
    }
    t.settles(&["StatefulSet", "Pod"]).await
}

/// k#67250, k#60164: a roll-back waits for the pod that never gets Ready; documented so.
async fn a_bad_revision_stays_until_its_pod_is_deleted(t: &CaseNamespace) -> Result<()> {
    t.stateful_set("s", 2, json!({})).await?;
    t.kubelet(None, |pod| image(pod) == "good");
    wait_ready(t, 2).await?;
    t.set_image("StatefulSet", "s", "bad").await?;
    let seen = async || images(t, 2).await;
    t.eq("one bad pod", json!(["good", "bad"]), seen).await?;
    t.set_image("StatefulSet", "s", "good").await?;
    t.stays("it stays", json!(["good", "bad"]), seen).await?;
    t.delete("Pod", "s-1", Default::default()).await?;
    t.eq("the good one is back", json!(["good", "good"]), seen).await?;
    wait_ready(t, 2).await?;
    t.settles(&["StatefulSet", "Pod", "ControllerRevision"]).await
}

async fn on_delete_does_not_move_the_current_revision(t: &CaseNamespace) -> Result<()> {
    t.stateful_set("s", 2, json!({"updateStrategy": {"type": "OnDelete"}})).await?;
    t.kubelet(None, |_| true);
    wait_ready(t, 2).await?;
    let old = status(t, "currentRevision").await?;
    t.set_image("StatefulSet", "s", "next").await?;
    t.stays("no pod is replaced", json!(["good", "good"]), async || images(t, 2).await).await?;
    for (pod, want) in [("s-0", ["next", "good"]), ("s-1", ["next", "next"])] {
        t.delete("Pod", pod, Default::default()).await?;
        t.eq("the deleted one is new", json!(want), async || images(t, 2).await).await?;
        wait_ready(t, 2).await?;
    }
    t.settles(&["StatefulSet", "Pod"]).await?;
    t.eq("the old one is current", old, async || status(t, "currentRevision").await).await
}

async fn ordered_pods_come_and_go_one_by_one(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    let slow = template("s", "good", json!({"terminationGracePeriodSeconds": 60}));
    t.stateful_set("s", 3, json!({"template": slow, "ordinals": {"start": 5}})).await?;
    let names = async || Ok(t.pod_names().await?.into());
    for (number, pod) in ["s-5", "s-6", "s-7"].iter().enumerate() {
        let so_far: Vec<String> = (0..=number).map(|n| format!("s-{}", n + 5)).collect();
        t.eq("the next pod", json!(so_far), names).await?;
        t.stays("it waits until the pod is Ready", json!(so_far), names).await?;
        t.bind(pod, &node).await?;
        t.set_running(pod).await?;
    }
    wait_ready(t, 3).await?;
    t.patch("StatefulSet", "s", json!({"spec": {"replicas": 1}})).await?;
    t.eq("the last one terminates", json!(["s-5", "s-6"]), names).await?;
    t.stays("the one before waits", json!(["s-5", "s-6"]), names).await?;
    t.remove_pod("s-7").await?;
    t.eq("then it terminates", json!(["s-5"]), names).await?;
    t.remove_pod("s-6").await?;
    t.gone("Pod", "s-6").await?;
    t.settles(&["StatefulSet", "Pod"]).await
}
