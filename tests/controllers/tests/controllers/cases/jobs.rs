//! Job: counts, indexes, finalizers, suspension.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, annotation, condition, is_terminating, label, name, run};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

#[test]
fn counts_of_jobs_are_upstreams() {
    run(cases![
        a_resumed_job_starts_anew,
        indexes_are_shown_and_completed,
        counts_do_not_go_down_when_pods_are_deleted,
        pods_lose_the_finalizer_when_their_job_is_gone,
        a_finished_job_is_deleted_after_its_ttl,
        a_job_that_is_scaled_down_deletes_pods_and_completes,
        a_deleted_pod_counts_as_failed_and_is_replaced,
    ]);
}

/// Fields of the Job's status.
pub(super) async fn status(t: &CaseNamespace, fields: &[&str]) -> Result<Value> {
    let job = t.get("Job", "j").await?;
    let or_zero = |value: &Value| if value.is_null() { json!(0) } else { value.clone() };
    Ok(fields.iter().map(|field| or_zero(&job["status"][field])).collect())
}

/// Status, reason and message of a condition.
pub(super) async fn job_condition(t: &CaseNamespace, kind: &str) -> Result<Value> {
    Ok(condition(&t.get("Job", "j").await?, kind, &["status", "reason", "message"]))
}

/// k#134521
async fn a_resumed_job_starts_anew(t: &CaseNamespace) -> Result<()> {
    let active = async || status(t, &["active"]).await;
    let started =
        async || -> Result<Value> { Ok(t.get("Job", "j").await?["status"]["startTime"].clone()) };
    t.job("j", json!({})).await?;
    t.eq("active", json!([1]), active).await?;
    let first: Value = started().await?;
    t.patch("Job", "j", json!({"spec": {"suspend": true}})).await?;
    let suspended = json!(["True", "JobSuspended", "Job suspended"]);
    t.eq("suspended", suspended, async || job_condition(t, "Suspended").await).await?;
    t.eq("no pod, no start", json!([0, 0, null]), async || {
        Ok(json!([
            t.job_pods("j").await?.len(),
            t.counted("Job", "j", "active").await?,
            started().await?
        ]))
    })
    .await?;
    // Times have whole seconds.
    t.settles(&["Job", "Pod"]).await?;
    t.patch("Job", "j", json!({"spec": {"suspend": false}})).await?;
    let resumed = json!(["False", "JobResumed", "Job resumed"]);
    t.eq("resumed", resumed, async || job_condition(t, "Suspended").await).await?;
    t.eq("active", json!([1]), active).await?;
    t.eq("a later start", json!(true), async || {
        Ok((started().await?.as_str() > first.as_str()).into())
    })
    .await?;
    t.eq("events", json!([["Job suspended"], ["Job resumed"]]), async || {
        Ok(json!([t.messages("Suspended", "j").await?, t.messages("Resumed", "j").await?]))
    })
    .await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#109712
async fn indexes_are_shown_and_completed(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"completionMode": "Indexed", "parallelism": 7, "completions": 7});
    t.job("j", spec).await?;
    t.eq("all indexes", json!(7), async || Ok(t.indexed_pods("j").await?.len().into())).await?;
    let pods = t.indexed_pods("j").await?;
    for pod in &pods {
        t.set_running(pod).await?;
    }
    let pod = t.get("Pod", &pods[4]).await?;
    let key = "batch.kubernetes.io/job-completion-index";
    let variables = pod["spec"]["containers"][0]["env"].as_array();
    let variable =
        variables.into_iter().flatten().find(|one| one["name"] == "JOB_COMPLETION_INDEX");
    let from = variable.context("the variable")?["valueFrom"]["fieldRef"]["fieldPath"].clone();
    let seen = json!([
        annotation(&pod, key),
        label(&pod, key),
        pod["spec"]["hostname"],
        from,
        pods[4].starts_with("j-4-")
    ]);
    let field = format!("metadata.labels['{key}']");
    t.eq("index 4", json!(["4", "4", "j-4", field, true]), async || Ok(seen.clone())).await?;
    for index in [0, 2, 3, 4, 6] {
        t.finish(&pods[index], 0).await?;
    }
    let done = async || status(t, &["completedIndexes", "succeeded", "active"]).await;
    t.eq("five are done", json!(["0,2-4,6", 5, 2]), done).await?;
    t.settles(&["Job", "Pod"]).await?;
    for index in [1, 5] {
        t.finish(&pods[index], 0).await?;
    }
    let message = "Reached expected number of succeeded pods";
    let complete = json!(["True", "CompletionsReached", message]);
    t.eq("complete", complete.clone(), async || job_condition(t, "Complete").await).await?;
    t.eq("all are done", json!(["0-6", 7, 0]), done).await?;
    t.eq("criteria", complete, async || job_condition(t, "SuccessCriteriaMet").await).await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#91235, k#78721, k#28486
async fn counts_do_not_go_down_when_pods_are_deleted(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"parallelism": 1, "completions": 3, "backoffLimit": 0})).await?;
    for done in 0..3 {
        let running = async || {
            let mut pods = t.job_pods("j").await?;
            pods.retain(|pod| pod["status"]["phase"] == "Pending" && !is_terminating(pod));
            Ok((pods.len() == 1, pods.first().map(name).into()))
        };
        let pod = t.until("a pod", "one that is pending", running).await?;
        let pod = pod.as_str().unwrap_or_default().to_owned();
        t.finish(&pod, 0).await?;
        let counts = async || status(t, &["succeeded", "failed"]).await;
        t.eq("it counts", json!([done + 1, 0]), counts).await?;
        t.remove_pod(&pod).await?;
        t.gone("Pod", &pod).await?;
    }
    t.eq("complete", json!("True"), async || Ok(job_condition(t, "Complete").await?[0].clone()))
        .await?;
    t.settles(&["Job", "Pod"]).await?;
    let counts = async || status(t, &["succeeded", "failed", "active"]).await;
    t.eq("all count", json!([3, 0, 0]), counts).await
}

/// k#108645, k#109429, k#127917
async fn pods_lose_the_finalizer_when_their_job_is_gone(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"parallelism": 2})).await?;
    let finalizers = async || {
        let pods = t.list("Pod").await?;
        Ok(pods.iter().map(|pod| pod["metadata"]["finalizers"].clone()).collect())
    };
    t.eq("two pods", json!([[FINALIZER], [FINALIZER]]), finalizers).await?;
    t.delete_with("Job", "j", "Orphan").await?;
    t.gone("Job", "j").await?;
    t.eq("none has the finalizer", json!([null, null]), finalizers).await?;
    t.settles(&["Pod"]).await?;
    for pod in t.pod_names().await? {
        t.remove_pod(&pod).await?;
        t.gone("Pod", &pod).await?;
    }
    Ok(())
}

async fn a_finished_job_is_deleted_after_its_ttl(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"ttlSecondsAfterFinished": 3})).await?;
    t.eq("active", json!([1]), async || status(t, &["active"]).await).await?;
    t.stays("it runs", json!([1]), async || status(t, &["active"]).await).await?;
    let pod = name(t.job_pods("j").await?.first().context("a pod")?);
    t.finish(&pod, 0).await?;
    t.gone("Job", "j").await?;
    t.gone("Pod", &pod).await
}

async fn a_job_that_is_scaled_down_deletes_pods_and_completes(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"parallelism": 4, "completions": 4})).await?;
    let active = async || status(t, &["active"]).await;
    t.eq("four run", json!([4]), active).await?;
    t.patch("Job", "j", json!({"spec": {"parallelism": 1}})).await?;
    t.eq("one runs", json!([1]), active).await?;
    t.eq("one pod", json!(1), async || Ok(t.job_pods("j").await?.len().into())).await?;
    t.settles(&["Job", "Pod"]).await?;
    t.eq("none failed", json!([0, 0]), async || status(t, &["failed", "succeeded"]).await).await?;
    t.patch("Job", "j", json!({"spec": {"parallelism": 4}})).await?;
    t.eq("four run", json!([4]), active).await?;
    for pod in t.job_pods("j").await?.iter().map(name) {
        t.finish(&pod, 0).await?;
    }
    t.eq("complete", json!("True"), async || Ok(job_condition(t, "Complete").await?[0].clone()))
        .await?;
    t.eq("four count", json!([4, 0]), async || status(t, &["succeeded", "failed"]).await).await?;
    t.settles(&["Job", "Pod"]).await
}

async fn a_deleted_pod_counts_as_failed_and_is_replaced(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"backoffLimit": 5})).await?;
    t.eq("active", json!([1]), async || status(t, &["active"]).await).await?;
    let pod = name(t.job_pods("j").await?.first().context("a pod")?);
    t.set_running(&pod).await?;
    t.eq("ready", json!([1]), async || status(t, &["ready"]).await).await?;
    t.remove_pod(&pod).await?;
    t.gone("Pod", &pod).await?;
    t.eq("another one", json!([1, 1]), async || status(t, &["active", "failed"]).await).await?;
    t.settles(&["Job", "Pod"]).await?;
    t.eq("it counts once", json!([1, 1]), async || status(t, &["active", "failed"]).await).await
}
