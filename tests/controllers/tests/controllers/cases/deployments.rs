//! Deployment: rollouts that are scaled, stuck, collide, or go back.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{
    CaseNamespace, annotation, condition, controller, count, image, is_terminating, label, name,
    run, template,
};

const CAUSE: &str = "kubernetes.io/change-cause";
const REVISION: &str = "deployment.kubernetes.io/revision";
const COMPLETE: [&str; 2] = ["True", "NewReplicaSetAvailable"];

#[test]
fn rollouts_are_upstreams() {
    run(cases![
        a_stuck_rollout_is_scaled_in_proportion,
        the_deadline_counts_from_the_new_rollout,
        recreate_replaces_a_pod_deleted_by_hand_at_once,
        a_foreign_set_of_the_same_name_counts_as_a_collision,
        a_hand_made_set_of_an_equal_template_is_taken_over,
        a_roll_back_keeps_numbers_and_causes,
        a_stuck_rollout_says_so_and_recovers,
        a_third_template_scales_the_second_down_first,
        old_sets_beyond_the_history_limit_are_deleted,
    ]);
}

async fn progress(t: &CaseNamespace) -> Result<Value> {
    Ok(condition(&t.get("Deployment", "d").await?, "Progressing", &["status", "reason"]))
}

async fn available(t: &CaseNamespace) -> Result<Value> {
    t.counted("Deployment", "d", "availableReplicas").await
}

fn surge(surge: u32, unavailable: u32) -> Value {
    let parameters = json!({"maxSurge": surge, "maxUnavailable": unavailable});
    json!({"type": "RollingUpdate", "rollingUpdate": parameters})
}

/// k#28105
async fn a_stuck_rollout_is_scaled_in_proportion(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 40, json!({"strategy": surge(3, 2)})).await?;
    t.kubelet(None, |pod| image(pod) == "good");
    t.eq("all are available", json!(40), async || available(t).await).await?;
    t.set_image("Deployment", "d", "bad").await?;
    let sizes = async || t.sizes("d").await;
    t.eq("it is stuck", json!({"good": 38, "bad": 5}), sizes).await?;
    t.patch("Deployment", "d", json!({"spec": {"paused": true}})).await?;
    t.eq("paused", json!(["Unknown", "DeploymentPaused"]), async || progress(t).await).await?;
    t.patch("Deployment", "d", json!({"spec": {"replicas": 30}})).await?;
    t.eq("in proportion", json!({"good": 29, "bad": 4}), sizes).await?;
    t.stays("in proportion", json!({"good": 29, "bad": 4}), sizes).await?;
    t.eq("annotations of the sets", json!([["30", "33"], ["30", "33"]]), async || {
        let of = |set: &Value| {
            let read = |key: &str| annotation(set, &format!("deployment.kubernetes.io/{key}"));
            json!([read("desired-replicas"), read("max-replicas")])
        };
        Ok(t.sets("d").await?.iter().map(of).collect())
    })
    .await?;
    t.patch("Deployment", "d", json!({"spec": {"paused": false}})).await?;
    t.eq("resumed", json!({"good": 28, "bad": 5}), sizes).await?;
    t.settles(&["Deployment", "ReplicaSet"]).await
}

/// k#49637
async fn the_deadline_counts_from_the_new_rollout(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 2, json!({"progressDeadlineSeconds": 3})).await?;
    t.kubelet(None, |_| true);
    t.eq("complete", json!(COMPLETE), async || progress(t).await).await?;
    // Longer idle than the deadline, both times that it is watched.
    t.stays("idle", json!(COMPLETE), async || progress(t).await).await?;
    t.stays("idle", json!(COMPLETE), async || progress(t).await).await?;
    t.set_image("Deployment", "d", "next").await?;
    t.until("the second rollout", "complete, and never late", async || {
        let seen = progress(t).await?;
        anyhow::ensure!(seen[1] != "ProgressDeadlineExceeded", "it was late");
        let sizes = t.sizes("d").await?;
        Ok((seen == json!(COMPLETE) && sizes == json!({"next": 2}), seen))
    })
    .await?;
    let late = async || t.messages("ProgressDeadlineExceeded", "").await;
    t.eq("no event of a deadline", json!([]), late).await
}

/// k#58814: only rollouts wait.
async fn recreate_replaces_a_pod_deleted_by_hand_at_once(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    let pod = template("d", "good", json!({"terminationGracePeriodSeconds": 120}));
    t.deployment("d", 1, json!({"strategy": {"type": "Recreate"}, "template": pod})).await?;
    t.kubelet(Some(&node), |_| true);
    t.eq("available", json!(1), async || available(t).await).await?;
    let old = t.pod_names().await?.remove(0);
    t.delete("Pod", &old, Default::default()).await?;
    t.eq("another pod beside it", json!([1, true]), async || {
        Ok(json!([t.pods().await?.len(), is_terminating(&t.get("Pod", &old).await?)]))
    })
    .await?;
    let terminating = async || {
        let set = t.sets("d").await?;
        let of_set = count(set.first().context("a set")?, "terminatingReplicas");
        Ok(json!([of_set, t.counted("Deployment", "d", "terminatingReplicas").await?]))
    };
    t.eq("both count it", json!([1, 1]), terminating).await?;
    t.settles(&["Deployment", "ReplicaSet"]).await?;
    t.remove_pod(&old).await?;
    t.eq("none terminates", json!([0, 0]), terminating).await
}

/// k#29735; the names follow from the template's hash.
async fn a_foreign_set_of_the_same_name_counts_as_a_collision(t: &CaseNamespace) -> Result<()> {
    let names = async || Ok(t.sets("d").await?.iter().map(name).collect());
    let first = "d-75c8b4c757";
    t.deployment("d", 1, json!({})).await?;
    t.eq("a set", json!([first]), names).await?;
    t.delete_with("Deployment", "d", "Background").await?;
    t.gone("ReplicaSet", first).await?;
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "other"}},
        "template": template("other", "good", json!({}))});
    t.create("ReplicaSet", first, json!({"spec": spec})).await?;
    t.deployment("d", 1, json!({})).await?;
    let collisions = async || t.counted("Deployment", "d", "collisionCount").await;
    t.eq("a collision", json!(1), collisions).await?;
    t.eq("the next hash", json!(["d-57f8c86668"]), names).await?;
    let set = t.get("ReplicaSet", "d-57f8c86668").await?;
    let key = "pod-template-hash";
    let hashes = json!([
        label(&set, key),
        set["spec"]["selector"]["matchLabels"][key],
        label(&set["spec"]["template"], key)
    ]);
    t.eq(
        "the hash",
        json!(["57f8c86668", "57f8c86668", "57f8c86668"]),
        async || Ok(hashes.clone()),
    )
    .await?;
    let owner = async || Ok(controller(&t.get("ReplicaSet", first).await?));
    t.eq("the foreign set has no owner", Value::Null, owner).await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await
}

/// k#61433
async fn a_hand_made_set_of_an_equal_template_is_taken_over(t: &CaseNamespace) -> Result<()> {
    let selector = json!({"matchLabels": {"app": "d"}});
    let spec = json!({"replicas": 2, "selector": selector,
        "template": template("d", "good", json!({}))});
    let metadata = json!({"labels": {"app": "d"}});
    t.create("ReplicaSet", "mine", json!({"metadata": metadata, "spec": spec})).await?;
    t.eq("two pods", json!(2), async || Ok(t.pods().await?.len().into())).await?;
    let before = t.pod_names().await?;
    t.deployment("d", 3, json!({})).await?;
    let names = async || Ok(t.sets("d").await?.iter().map(name).collect());
    t.eq("it is the Deployment's", json!(["mine"]), names).await?;
    t.eq("it is scaled", json!([3, 3]), async || {
        let set = t.get("ReplicaSet", "mine").await?;
        let updated = t.counted("Deployment", "d", "updatedReplicas").await?;
        Ok(json!([set["spec"]["replicas"], updated]))
    })
    .await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await?;
    let set = t.get("ReplicaSet", "mine").await?;
    let pods = t.pod_names().await?;
    let is_kept = before.iter().all(|pod| pods.contains(pod));
    let count = t.list("ReplicaSet").await?.len();
    let seen = json!([set["spec"]["selector"], annotation(&set, REVISION), is_kept, count]);
    t.eq("as it was", json!([selector, "1", true, 1]), async || Ok(seen.clone())).await
}

/// k#51315, k#49701, k#23087
async fn a_roll_back_keeps_numbers_and_causes(t: &CaseNamespace) -> Result<()> {
    let change = |cause: &str, image: &str| {
        let pod = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        json!({"metadata": {"annotations": {CAUSE: cause}}, "spec": {"template": pod}})
    };
    t.deployment("d", 1, json!({})).await?;
    t.kubelet(None, |_| true);
    t.patch("Deployment", "d", change("first", "good")).await?;
    let causes = async || Ok(t.sets("d").await?.iter().map(|set| annotation(set, CAUSE)).collect());
    t.eq("the set has the cause", json!(["first"]), causes).await?;
    t.eq("complete", json!(COMPLETE), async || progress(t).await).await?;
    let one = name(t.sets("d").await?.first().context("a set")?);
    let ninth = json!({"metadata": {"annotations": {REVISION: "9"}}});
    t.patch("ReplicaSet", &one, ninth).await?;
    let number = async || Ok(annotation(&t.get("Deployment", "d").await?, REVISION));
    t.eq("the Deployment follows", json!("9"), number).await?;
    t.patch("Deployment", "d", change("second", "v2")).await?;
    t.eq("the second", json!({"v2": 1}), async || t.sizes("d").await).await?;
    t.eq("both causes", json!(["first", "second"]), causes).await?;
    t.patch("Deployment", "d", change("third", "good")).await?;
    t.eq("the first again", json!({"good": 1}), async || t.sizes("d").await).await?;
    let want = json!([["10", null, "second"], ["11", "9", "third"]]);
    t.eq("numbers, history, causes", want, async || {
        let history = "deployment.kubernetes.io/revision-history";
        let of = |set: &Value| {
            json!([annotation(set, REVISION), annotation(set, history), annotation(set, CAUSE)])
        };
        Ok(t.sets("d").await?.iter().map(of).collect())
    })
    .await?;
    t.eq("the old set is used", json!(one), async || {
        Ok(t.sets("d").await?.last().map(name).into())
    })
    .await?;
    t.eq("the Deployment's number", json!("11"), number).await?;
    t.settles(&["Deployment", "ReplicaSet"]).await
}

async fn a_stuck_rollout_says_so_and_recovers(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 2, json!({"progressDeadlineSeconds": 2})).await?;
    t.kubelet(None, |pod| image(pod) != "bad");
    t.eq("complete", json!(COMPLETE), async || progress(t).await).await?;
    t.set_image("Deployment", "d", "bad").await?;
    let late = json!(["False", "ProgressDeadlineExceeded"]);
    t.eq("it is late", late, async || progress(t).await).await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await?;
    t.eq("the old pods are there", json!({"good": 2, "bad": 1}), async || t.sizes("d").await)
        .await?;
    t.set_image("Deployment", "d", "better").await?;
    t.eq("complete", json!({"better": 2}), async || t.sizes("d").await).await?;
    t.eq("complete", json!(COMPLETE), async || progress(t).await).await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await
}

/// k#21810, k#19299: an unready set is scaled down, and no old one is scaled up.
async fn a_third_template_scales_the_second_down_first(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 6, json!({"strategy": surge(2, 1)})).await?;
    t.kubelet(None, |pod| image(pod) == "good");
    t.eq("available", json!(6), async || available(t).await).await?;
    t.set_image("Deployment", "d", "bad").await?;
    let sizes = async || t.sizes("d").await;
    t.eq("it is stuck", json!({"good": 5, "bad": 3}), sizes).await?;
    t.set_image("Deployment", "d", "third").await?;
    t.eq("the second makes room", json!({"good": 5, "third": 3}), sizes).await?;
    t.stays("the second makes room", json!({"good": 5, "third": 3}), sizes).await?;
    t.kubelet(None, |pod| image(pod) == "third");
    t.until("complete", "six of the third, and the first never grows", async || {
        let seen = t.sizes("d").await?;
        anyhow::ensure!(seen["good"].as_i64().unwrap_or(0) <= 5, "the first grew: {seen}");
        Ok((seen == json!({"third": 6}), seen))
    })
    .await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await
}

async fn old_sets_beyond_the_history_limit_are_deleted(t: &CaseNamespace) -> Result<()> {
    t.deployment("d", 1, json!({"revisionHistoryLimit": 1})).await?;
    t.kubelet(None, |_| true);
    for image in ["v2", "v3", "v4"] {
        t.eq("complete", json!(COMPLETE), async || progress(t).await).await?;
        t.set_image("Deployment", "d", image).await?;
        t.eq("the new set", json!({image: 1}), async || t.sizes("d").await).await?;
    }
    let images = async || {
        let sets = t.sets("d").await?;
        Ok(sets.iter().map(|set| Value::from(image(&set["spec"]["template"]))).collect())
    };
    t.eq("the newest and one old set", json!(["v3", "v4"]), images).await?;
    t.settles(&["Deployment", "ReplicaSet", "Pod"]).await
}
