//! Take-over from the real kube-controller-manager and back, again and again, while work goes on.
//!
//! Input: two managers, ours and upstream's, of the same controllers and the same lease; every
//! `PERIOD` the leader ends and the other one takes over. Output: the API server's final state.
//! Bounds: `PINTLE_TAKEOVER_MINUTES`, 2 by default, and longer until each has taken over.
//! Checked: a ReplicaSet for each template and no other; each Job counts its completions exactly,
//! by as many pods; a CronJob starts each minute once; unchanged objects are not written; every
//! object settles.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use pintle_testbed::wait::{LONG, until};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{
    CaseNamespace, NamespaceClient, condition, image, is_terminating, name, template, uid,
};
use crate::server::{ControlPlane, ManagerProcess, PORT};

/// How long each one leads.
const PERIOD: Duration = Duration::from_secs(20);
/// Take-overs after which each manager has taken over from the other one.
const TURNS_MIN: usize = 2;
/// Port of the standby.
const OTHER_PORT: u16 = 10261;
const ROLLOUTS: [&str; 2] = ["first", "second"];
/// Kinds with objects that are created once and never changed.
const QUIET: [&str; 5] =
    ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ControllerRevision"];
const COMPLETIONS: usize = 6;
/// Whether more work is to be begun.
type GoesOn<'a> = dyn Fn() -> bool + Sync + 'a;
/// Log lines of ours and upstream's when they end without their lease.
const LOST: [&str; 2] = ["the lease was lost", "leaderelection lost"];

#[test]
fn workloads_progress_while_our_and_upstreams_managers_alternate_as_leader() {
    let minutes = std::env::var("PINTLE_TAKEOVER_MINUTES").ok();
    let minutes: u64 = minutes.and_then(|text| text.parse().ok()).unwrap_or(2);
    let server = ControlPlane::start("takeover");
    let first = start(&server, TakeOverSide::Upstream, PORT);
    server.wait_healthy(PORT);
    let (ended, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let alternates = scope.spawn(|| alternate(&server, first, &ended, &turns));
        let _ends = Sets(&ended);
        let end = Instant::now() + Duration::from_secs(60 * minutes);
        // A busy machine needs longer to hand over; a thread that failed hands nothing over.
        let goes_on = || {
            let may_end = turns.load(Ordering::SeqCst) >= TURNS_MIN || alternates.is_finished();
            Instant::now() < end || !may_end
        };
        server.with_client(async |client| work(client, &goes_on).await);
        ended.store(true, Ordering::SeqCst);
        alternates.join().expect("no panic");
    });
    let turns = turns.into_inner();
    println!("{turns} take-overs");
    assert!(turns >= TURNS_MIN, "{turns}");
}

/// Sets the flag when it is dropped, also when the test fails.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOverSide {
    Ours,
    Upstream,
}

fn start(server: &ControlPlane, side: TakeOverSide, port: u16) -> ManagerProcess {
    let mut args = server.args();
    args.push(format!("--secure-port={port}"));
    // Upstream's lets its lease run out.
    args.extend(
        [
            "--leader-elect-lease-duration=8s",
            "--leader-elect-renew-deadline=6s",
            "--leader-elect-retry-period=1s",
        ]
        .map(str::to_owned),
    );
    match side {
        TakeOverSide::Ours => server.start_tested("ours", &args),
        TakeOverSide::Upstream => server.start_upstream("upstream", &args),
    }
}

/// Ends the leader, and the other manager takes over, until `ended`; counts the `turns`.
fn alternate(
    server: &ControlPlane,
    first: ManagerProcess,
    ended: &AtomicBool,
    turns: &AtomicUsize,
) {
    let (mut leader, mut side, mut port) = (first, TakeOverSide::Upstream, PORT);
    loop {
        let began = Instant::now();
        while began.elapsed() < PERIOD {
            if ended.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
            if leader.ended().is_some() {
                // On a busy machine a manager may lose its lease: one more hand-over.
                let end = leader.log_end();
                assert!(LOST.iter().any(|line| end.contains(line)), "{side:?} ended:\n{end}");
                println!("{side:?} lost its lease");
                break;
            }
        }
        side = if side == TakeOverSide::Ours { TakeOverSide::Upstream } else { TakeOverSide::Ours };
        port = if port == PORT { OTHER_PORT } else { PORT };
        let standby = start(server, side, port);
        server.wait_healthy(port);
        let before = server.holder();
        let status = std::mem::replace(&mut leader, standby).end(Signal::SIGTERM);
        println!("{side:?} takes over; the one before ended with {status}");
        // Each leads for the whole period, however long a busy machine takes to hand over.
        until(LONG, "the standby leads", || {
            let now = server.holder();
            ensure!(now != before && !matches!(now.as_str(), None | Some("")), "{now} leads");
            Ok(())
        });
        turns.fetch_add(1, Ordering::SeqCst);
    }
}

async fn work(client: kube::Client, goes_on: &GoesOn<'_>) -> Result<()> {
    let quiet = CaseNamespace::begin(client.clone(), "quiet".to_owned()).await?;
    let node = quiet.node("n", Value::Null).await?;
    quiet.kubelet(Some(&node), |_| true);
    quiet.deployment("d", 2, json!({})).await?;
    quiet.stateful_set("s", 2, json!({})).await?;
    quiet.daemon_set("ds", json!({})).await?;
    quiet.settles(&QUIET).await?;
    let before = (quiet.versions(&QUIET).await?, pods(&quiet).await?);
    let busy = CaseNamespace::begin(client, "busy".to_owned()).await?;
    let node = busy.node("n", Value::Null).await?;
    let kubelet = tokio::task::spawn_local(run_or_finish(busy.in_namespace("busy"), node));
    start_every_minute(&busy).await?;
    let (first, second, jobs, namespaces) = tokio::try_join!(
        rollouts(&busy, ROLLOUTS[0], goes_on),
        rollouts(&busy, ROLLOUTS[1], goes_on),
        jobs(&busy, goes_on),
        namespaces(&busy, goes_on),
    )?;
    println!("rollouts {first} and {second}, jobs {jobs}, namespaces {namespaces}");
    every_minute_ran_once(&busy).await?;
    busy.patch("CronJob", "minutely", json!({"spec": {"suspend": true}})).await?;
    busy.settles(&["Deployment", "ReplicaSet", "Job"]).await?;
    let after = (quiet.versions(&QUIET).await?, pods(&quiet).await?);
    ensure!(before == after, "what is quiet was written: {before:?} {after:?}");
    kubelet.abort();
    Ok(())
}

/// UIDs of pods.
async fn pods(t: &NamespaceClient) -> Result<Vec<String>> {
    Ok(t.list("Pod").await?.iter().map(uid).collect())
}

/// A kubelet that lets pods of Jobs succeed after they have run for a moment.
async fn run_or_finish(t: NamespaceClient, node: String) {
    loop {
        let _ = step(&t, &node).await;
        sleep(Duration::from_millis(300)).await;
    }
}

async fn step(t: &NamespaceClient, node: &str) -> Result<()> {
    for pod in t.pods().await? {
        let pod_name = name(&pod);
        let is_job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"].is_string();
        match pod["status"]["phase"].as_str() {
            Some("Pending") => {
                if pod["spec"]["nodeName"].is_null() {
                    t.bind(&pod_name, node).await?;
                }
                t.set_running(&pod_name).await?;
            }
            Some("Running") if is_job => t.finish(&pod_name, 0).await?,
            _ => {}
        }
    }
    Ok(())
}

/// Changes the template again as soon as the rollout before is complete; how often.
async fn rollouts(t: &CaseNamespace, deployment: &str, goes_on: &GoesOn<'_>) -> Result<usize> {
    let spec = json!({"revisionHistoryLimit": 1000});
    t.deployment(deployment, 4, spec).await?;
    let mut templates = 1;
    loop {
        let complete = async || {
            let object = t.get("Deployment", deployment).await?;
            let progress = condition(&object, "Progressing", &["status", "reason"]);
            let is_seen =
                object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let updated =
                json!([object["status"]["updatedReplicas"], object["status"]["replicas"]]);
            let is_complete = progress == json!(["True", "NewReplicaSetAvailable"]);
            let is_it = is_complete && is_seen && updated == json!([4, 4]);
            Ok((is_it, json!([progress, is_seen, updated])))
        };
        t.until("the rollout", "complete", complete).await?;
        let sets = t.sets(deployment).await?;
        let images: Vec<String> = sets.iter().map(|set| image(&set["spec"]["template"])).collect();
        ensure!(sets.len() == templates, "{deployment}: {templates} templates, sets of {images:?}");
        if !goes_on() {
            return Ok(templates);
        }
        // Not in step with take-overs.
        sleep(Duration::from_millis(700 + 370 * (templates as u64 % 5))).await;
        t.set_image("Deployment", deployment, &format!("v{templates}")).await?;
        templates += 1;
    }
}

/// Runs one Job after another; returns their number.
async fn jobs(t: &CaseNamespace, goes_on: &GoesOn<'_>) -> Result<usize> {
    let mut count = 0;
    while goes_on() {
        let job = format!("job-{count}");
        let spec = json!({"parallelism": 3, "completions": COMPLETIONS, "backoffLimit": 0});
        t.job(&job, spec).await?;
        let complete = async || {
            let object = t.get("Job", &job).await?;
            let is_complete = condition(&object, "Complete", &["status"]) == json!(["True"]);
            Ok((is_complete, object["status"].clone()))
        };
        let status = t.until("the job", "complete", complete).await?;
        let pods = t.job_pods(&job).await?;
        let counts = json!([status["succeeded"], pods.len()]);
        ensure!(counts == json!([COMPLETIONS, COMPLETIONS]), "{job}: {counts} {status}");
        ensure!(!pods.iter().any(is_terminating), "{job}: pods are being deleted");
        count += 1;
    }
    Ok(count)
}

/// Creates and deletes namespaces with content; how many.
async fn namespaces(t: &CaseNamespace, goes_on: &GoesOn<'_>) -> Result<usize> {
    let mut count = 0;
    while goes_on() {
        let other = t.in_namespace(&format!("busy-{count}"));
        other.create("Namespace", &other.namespace, json!({})).await?;
        let _ = other.create("ServiceAccount", "default", json!({})).await;
        other.deployment("d", 2, json!({})).await?;
        for number in 0..5 {
            other.config_map(&format!("map-{number}"), &[], false).await?;
        }
        t.eq("two pods", json!(2), async || Ok(other.pods().await?.len().into())).await?;
        t.delete("Namespace", &other.namespace, Default::default()).await?;
        t.gone("Namespace", &other.namespace).await?;
        count += 1;
    }
    Ok(count)
}

async fn start_every_minute(t: &CaseNamespace) -> Result<()> {
    let pod = template("c", "good", json!({"restartPolicy": "Never"}));
    let job = json!({"spec": {"template": {"spec": pod["spec"]}}});
    let spec = json!({"schedule": "* * * * *", "jobTemplate": job,
        "successfulJobsHistoryLimit": 1000});
    t.create("CronJob", "minutely", json!({"spec": spec})).await.map(drop)
}

/// The CronJob's jobs are of minutes in a row, one each.
async fn every_minute_ran_once(t: &CaseNamespace) -> Result<()> {
    let mut minutes: BTreeMap<i64, usize> = BTreeMap::new();
    for job in t.list("Job").await? {
        let minute = name(&job).strip_prefix("minutely-").and_then(|minute| minute.parse().ok());
        if let Some(minute) = minute {
            *minutes.entry(minute).or_default() += 1;
        }
    }
    println!("minutes {minutes:?}");
    let (first, last) = (minutes.keys().next(), minutes.keys().next_back());
    let (Some(first), Some(last)) = (first, last) else { anyhow::bail!("no minute ran") };
    ensure!(last - first + 1 == i64::try_from(minutes.len())?, "minutes are missing: {minutes:?}");
    ensure!(minutes.values().all(|count| *count == 1), "a minute ran twice: {minutes:?}");
    Ok(())
}
