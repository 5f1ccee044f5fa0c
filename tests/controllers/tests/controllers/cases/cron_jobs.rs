//! CronJob: missed times, changed schedules, concurrency.
//!
//! Schedules are daily, in a zone that is half an hour off, so that no run of a test meets a start.

use anyhow::{Context as _, Result};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Zoned};
use serde_json::{Value, json};

use crate::cases;
use crate::kit::{CaseNamespace, controller, name, run, template};

const ZONE: &str = "Asia/Kolkata";
/// Its offset from UTC, all year: the host may have no time zone database.
const AHEAD_SECONDS: i32 = 19_800;

#[test]
fn jobs_of_schedules_are_upstreams() {
    run(cases![
        of_several_missed_days_the_newest_runs_once,
        a_changed_schedule_makes_up_for_nothing,
        forbid_starts_no_second_job_while_one_runs,
        replace_deletes_the_running_job,
        after_more_than_100_missed_times_the_newest_runs,
        finished_jobs_beyond_the_limit_are_deleted,
        a_missed_start_behind_its_deadline_does_not_run,
    ]);
}

/// A daily schedule that was last due so many hours ago, and that time.
fn daily(hours_ago: i64) -> Result<(String, Zoned)> {
    let offset = Offset::from_seconds(AHEAD_SECONDS).context("less than a day")?;
    let now = Zoned::now().with_time_zone(TimeZone::fixed(offset));
    let at = now.checked_sub(SignedDuration::from_hours(hours_ago))?;
    let at = at.with().second(0).subsec_nanosecond(0).build()?;
    Ok((format!("{} {} * * *", at.minute(), at.hour()), at))
}

fn job_name(at: &Zoned) -> String {
    format!("c-{}", at.timestamp().as_second() / 60)
}

async fn create(t: &CaseNamespace, schedule: &str, spec: Value) -> Result<()> {
    let pod = template("c", "good", json!({"restartPolicy": "Never"}));
    let metadata = json!({"labels": {"from": "c"}, "annotations": {"note": "x"}});
    let job = json!({"metadata": metadata, "spec": {"template": {"spec": pod["spec"]}}});
    let mut all = json!({"schedule": schedule, "timeZone": ZONE, "jobTemplate": job});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    t.create("CronJob", "c", json!({"spec": all})).await.map(drop)
}

/// Its last start was three days ago.
async fn miss_days(t: &CaseNamespace) -> Result<()> {
    let last = Zoned::now().checked_sub(SignedDuration::from_hours(72))?;
    let last = last.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    t.patch_status("CronJob", "c", json!({"lastScheduleTime": last})).await.map(drop)
}

async fn jobs(t: &CaseNamespace) -> Result<Value> {
    let mut names: Vec<String> = t.list("Job").await?.iter().map(name).collect();
    names.sort();
    Ok(names.into())
}

async fn active(t: &CaseNamespace) -> Result<Value> {
    let object = t.get("CronJob", "c").await?;
    let active = object["status"]["active"].as_array();
    Ok(active.into_iter().flatten().map(|job| job["name"].clone()).collect())
}

/// k#86647
async fn of_several_missed_days_the_newest_runs_once(t: &CaseNamespace) -> Result<()> {
    let (schedule, at) = daily(6)?;
    create(t, &schedule, json!({})).await?;
    t.stays("no job", json!([]), async || jobs(t).await).await?;
    miss_days(t).await?;
    let job = job_name(&at);
    t.eq("one job", json!([job]), async || jobs(t).await).await?;
    let made = t.get("Job", &job).await?;
    let stamp = at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    let owner = controller(&made);
    let seen = json!([
        made["metadata"]["annotations"],
        made["metadata"]["labels"]["from"],
        owner["kind"],
        owner["name"],
        owner["blockOwnerDeletion"]
    ]);
    let notes = json!({"note": "x", "batch.kubernetes.io/cronjob-scheduled-timestamp": stamp});
    t.eq("the job", json!([notes, "c", "CronJob", "c", true]), async || Ok(seen.clone())).await?;
    let time = at.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    t.eq("the status", json!([time, [job]]), async || {
        let status = &t.get("CronJob", "c").await?["status"];
        Ok(json!([status["lastScheduleTime"], active(t).await?]))
    })
    .await?;
    let message = format!("Created job {job}");
    t.eq("an event", json!([message]), async || t.messages("SuccessfulCreate", "c").await).await?;
    t.settles(&["CronJob", "Job"]).await
}

/// k#123220
async fn a_changed_schedule_makes_up_for_nothing(t: &CaseNamespace) -> Result<()> {
    let (schedule, at) = daily(6)?;
    create(t, &schedule, json!({})).await?;
    miss_days(t).await?;
    t.eq("one job", json!([job_name(&at)]), async || jobs(t).await).await?;
    t.eq("it is active", json!([job_name(&at)]), async || active(t).await).await?;
    t.settles(&["CronJob", "Job", "Pod"]).await?;
    t.patch("CronJob", "c", json!({"spec": {"schedule": daily(3)?.0}})).await?;
    t.stays("no second job", json!([job_name(&at)]), async || jobs(t).await).await
}

/// Starts a CronJob with a running job and a missed later start; returns the names of both.
async fn one_runs(t: &CaseNamespace, policy: &str) -> Result<(String, String)> {
    let ((first, at), (second, later)) = (daily(6)?, daily(3)?);
    create(t, &first, json!({"concurrencyPolicy": policy, "successfulJobsHistoryLimit": 1}))
        .await?;
    miss_days(t).await?;
    let job = job_name(&at);
    t.eq("the first job", json!([job]), async || jobs(t).await).await?;
    t.eq("it runs", json!(1), async || t.counted("Job", &job, "active").await).await?;
    t.eq("it is active", json!([job]), async || active(t).await).await?;
    t.settles(&["CronJob", "Job"]).await?;
    t.patch("CronJob", "c", json!({"spec": {"schedule": second}})).await?;
    // A changed schedule starts no missed job; another change does.
    t.patch("CronJob", "c", json!({"metadata": {"annotations": {"wake": "up"}}})).await?;
    Ok((job, job_name(&later)))
}

async fn end_job(t: &CaseNamespace, job: &str) -> Result<()> {
    let pods = t.job_pods(job).await?;
    t.finish(&name(pods.first().context("the job has a pod")?), 0).await
}

/// hiddeco/cronjobber#54
async fn forbid_starts_no_second_job_while_one_runs(t: &CaseNamespace) -> Result<()> {
    let (old, new) = one_runs(t, "Forbid").await?;
    let why =
        "Not starting job because prior execution is running and concurrency policy is Forbid";
    t.eq("an event", json!([why]), async || t.messages("JobAlreadyActive", "c").await).await?;
    t.stays("one job", json!([old]), async || jobs(t).await).await?;
    end_job(t, &old).await?;
    t.eq("both", json!([old, new]), async || jobs(t).await).await?;
    t.eq("the new one is active", json!([new]), async || active(t).await).await?;
    let saw = format!("Saw completed job: {old}, condition: Complete");
    t.eq("an event", json!([saw]), async || t.messages("SawCompletedJob", "c").await).await?;
    t.eq("the last success", json!(true), async || {
        let status = &t.get("CronJob", "c").await?["status"];
        Ok(status["lastSuccessfulTime"].is_string().into())
    })
    .await?;
    t.settles(&["CronJob", "Job"]).await
}

async fn replace_deletes_the_running_job(t: &CaseNamespace) -> Result<()> {
    let (old, new) = one_runs(t, "Replace").await?;
    t.eq("the new job alone", json!([new]), async || jobs(t).await).await?;
    t.eq("it is active", json!([new]), async || active(t).await).await?;
    let message = format!("Deleted job {old}");
    t.eq("an event", json!([message]), async || t.messages("SuccessfulDelete", "c").await).await?;
    t.settles(&["CronJob", "Job"]).await
}

/// k#42649, k#36311, k#45825: minutes of three days are more than 100 starts.
async fn after_more_than_100_missed_times_the_newest_runs(t: &CaseNamespace) -> Result<()> {
    create(t, "0 0 1 1 *", json!({"concurrencyPolicy": "Forbid"})).await?;
    miss_days(t).await?;
    t.settles(&["CronJob"]).await?;
    t.patch("CronJob", "c", json!({"spec": {"schedule": "* * * * *"}})).await?;
    t.patch("CronJob", "c", json!({"metadata": {"annotations": {"wake": "up"}}})).await?;
    let why = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check \
               clock skew";
    t.eq("a warning", json!([why]), async || t.messages("TooManyMissedTimes", "c").await).await?;
    t.eq("one job", json!(1), async || Ok(t.list("Job").await?.len().into())).await?;
    t.stays("one job", json!(1), async || Ok(t.list("Job").await?.len().into())).await
}

async fn finished_jobs_beyond_the_limit_are_deleted(t: &CaseNamespace) -> Result<()> {
    let (old, new) = one_runs(t, "Forbid").await?;
    end_job(t, &old).await?;
    t.eq("both", json!([old, new]), async || jobs(t).await).await?;
    t.eq("the new one runs", json!(1), async || t.counted("Job", &new, "active").await).await?;
    end_job(t, &new).await?;
    t.eq("the newest alone", json!([new]), async || jobs(t).await).await?;
    t.eq("none is active", json!([]), async || active(t).await).await?;
    t.settles(&["CronJob", "Job"]).await
}

async fn a_missed_start_behind_its_deadline_does_not_run(t: &CaseNamespace) -> Result<()> {
    let (schedule, at) = daily(6)?;
    create(t, &schedule, json!({"startingDeadlineSeconds": 3600})).await?;
    miss_days(t).await?;
    t.settles(&["CronJob"]).await?;
    t.eq("no job", json!([]), async || jobs(t).await).await?;
    let spec = json!({"startingDeadlineSeconds": 7 * 3600});
    t.patch("CronJob", "c", json!({"spec": spec})).await?;
    t.eq("the job of a longer deadline", json!([job_name(&at)]), async || jobs(t).await).await
}
