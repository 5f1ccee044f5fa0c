//! Job: how failures and successes end it.

use anyhow::Result;
use serde_json::{Value, json};

use super::jobs::{job_condition, status};
use crate::cases;
use crate::kit::{CaseNamespace, DeleteHow, is_terminating, name, run, template};

#[test]
fn ends_of_jobs_are_upstreams() {
    run(cases![
        a_failure_at_the_limit_ends_the_other_pods,
        fail_job_waits_for_the_last_pod,
        too_many_failed_indexes_end_the_job,
        a_success_policy_waits_for_the_last_pod,
        restarts_of_containers_count_for_the_limit,
    ]);
}

/// Waits for this number of active pods, binds and runs them; returns their names.
async fn run_pods(t: &CaseNamespace, count: usize) -> Result<Vec<String>> {
    let node = t.node("n", Value::Null).await?;
    t.eq("active", json!([count]), async || status(t, &["active"]).await).await?;
    let pods: Vec<String> = match t.indexed_pods("j").await? {
        indexed if indexed.len() == count => indexed,
        _ => t.job_pods("j").await?.iter().map(name).collect(),
    };
    for pod in &pods {
        t.bind(pod, &node).await?;
        t.set_running(pod).await?;
    }
    t.eq("ready", json!([count]), async || status(t, &["ready"]).await).await?;
    Ok(pods)
}

fn slow_to_end() -> Value {
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 120});
    json!({"spec": template("j", "good", spec)["spec"]})
}

/// k#70251
async fn a_failure_at_the_limit_ends_the_other_pods(t: &CaseNamespace) -> Result<()> {
    t.job("j", json!({"parallelism": 3, "completions": 3, "backoffLimit": 0})).await?;
    let pods = run_pods(t, 3).await?;
    t.finish(&pods[0], 1).await?;
    let message = "Job has reached the specified backoff limit";
    let failed = json!(["True", "BackoffLimitExceeded", message]);
    t.eq("the target", failed.clone(), async || job_condition(t, "FailureTarget").await).await?;
    t.eq("failed", failed, async || job_condition(t, "Failed").await).await?;
    let counts = async || status(t, &["failed", "active", "ready", "succeeded"]).await;
    t.eq("all three count", json!([3, 0, 0, 0]), counts).await?;
    let finalizers = async || Ok(t.get("Pod", &pods[0]).await?["metadata"]["finalizers"].clone());
    t.eq("the failed pod is free", Value::Null, finalizers).await?;
    t.eq("three creations", json!(3), async || {
        let messages = t.messages("SuccessfulCreate", "j").await?;
        Ok(messages.as_array().map_or(0, Vec::len).into())
    })
    .await?;
    t.eq("an event", json!([message]), async || t.messages("BackoffLimitExceeded", "j").await)
        .await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#125089
async fn fail_job_waits_for_the_last_pod(t: &CaseNamespace) -> Result<()> {
    let codes = json!({"containerName": "c", "operator": "In", "values": [42]});
    let policy = json!({"rules": [{"action": "FailJob", "onExitCodes": codes}]});
    let spec = json!({"parallelism": 2, "completions": 2, "template": slow_to_end(),
        "podFailurePolicy": policy});
    t.job("j", spec).await?;
    let pods = run_pods(t, 2).await?;
    t.finish(&pods[0], 42).await?;
    let message = format!(
        "Container c for pod {}/{} failed with exit code 42 matching FailJob rule at index 0",
        t.namespace, pods[0]
    );
    let failed = json!(["True", "PodFailurePolicy", message]);
    t.eq("the target", failed.clone(), async || job_condition(t, "FailureTarget").await).await?;
    t.eq("the other one terminates", json!([true, [1, 0]]), async || {
        let is_terminating = is_terminating(&t.get("Pod", &pods[1]).await?);
        Ok(json!([is_terminating, status(t, &["terminating", "active"]).await?]))
    })
    .await?;
    t.stays("not failed yet", Value::Null, async || job_condition(t, "Failed").await).await?;
    t.finish(&pods[1], 137).await?;
    t.eq("failed", failed, async || job_condition(t, "Failed").await).await?;
    let counts = async || status(t, &["failed", "terminating", "active"]).await;
    t.eq("both count", json!([2, 0, 0]), counts).await?;
    t.delete("Pod", &pods[1], DeleteHow::NOW).await?;
    t.gone("Pod", &pods[1]).await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#118009
async fn too_many_failed_indexes_end_the_job(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"parallelism": 4, "completions": 4, "completionMode": "Indexed",
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1});
    t.job("j", spec).await?;
    let pods = run_pods(t, 4).await?;
    t.finish(&pods[1], 1).await?;
    t.eq("one failed", json!(["1"]), async || status(t, &["failedIndexes"]).await).await?;
    t.stays("it goes on", Value::Null, async || job_condition(t, "FailureTarget").await).await?;
    t.finish(&pods[3], 1).await?;
    let message = "Job has exceeded the specified maximal number of failed indexes";
    let failed = json!(["True", "MaxFailedIndexesExceeded", message]);
    t.eq("failed", failed, async || job_condition(t, "Failed").await).await?;
    let counts = async || status(t, &["failedIndexes", "active", "failed"]).await;
    t.eq("all count", json!(["1,3", 0, 4]), counts).await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#123412
async fn a_success_policy_waits_for_the_last_pod(t: &CaseNamespace) -> Result<()> {
    let spec = json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed",
        "template": slow_to_end(), "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    t.job("j", spec).await?;
    let pods = run_pods(t, 3).await?;
    t.finish(&pods[0], 0).await?;
    let met = json!(["True", "SuccessPolicy", "Matched rules at index 0"]);
    t.eq("criteria", met.clone(), async || job_condition(t, "SuccessCriteriaMet").await).await?;
    let counts = async || status(t, &["terminating", "active"]).await;
    t.eq("the others terminate", json!([2, 0]), counts).await?;
    t.stays("not complete yet", Value::Null, async || job_condition(t, "Complete").await).await?;
    t.finish(&pods[1], 0).await?;
    t.finish(&pods[2], 1).await?;
    t.eq("complete", met, async || job_condition(t, "Complete").await).await?;
    t.eq("not failed", Value::Null, async || job_condition(t, "Failed").await).await?;
    t.eq("a time", json!(true), async || {
        Ok(t.get("Job", "j").await?["status"]["completionTime"].is_string().into())
    })
    .await?;
    t.remove_pod(&pods[1]).await?;
    t.remove_pod(&pods[2]).await?;
    t.settles(&["Job", "Pod"]).await
}

/// k#54870
async fn restarts_of_containers_count_for_the_limit(t: &CaseNamespace) -> Result<()> {
    let pod = json!({"spec": template("j", "good", json!({"restartPolicy": "OnFailure"}))["spec"]});
    t.job("j", json!({"backoffLimit": 2, "template": pod})).await?;
    t.eq("active", json!([1]), async || status(t, &["active"]).await).await?;
    let pod = t.pod_names().await?.remove(0);
    let restarted = |restarts| crate::kit::PodRun { restarts, ..Default::default() };
    t.set_state(&pod, &restarted(1)).await?;
    t.eq("ready", json!([1]), async || status(t, &["ready"]).await).await?;
    t.stays("it goes on", Value::Null, async || job_condition(t, "FailureTarget").await).await?;
    t.set_state(&pod, &restarted(2)).await?;
    t.eq("failed", json!("BackoffLimitExceeded"), async || {
        Ok(job_condition(t, "Failed").await?[1].clone())
    })
    .await?;
    t.gone("Pod", &pod).await?;
    t.eq("it counts", json!([1, 0]), async || status(t, &["failed", "active"]).await).await?;
    t.settles(&["Job", "Pod"]).await
}
