//! How soon a standby binds once it has the lease: its leader is killed, pods come, the lease runs
//! out.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use pintle_system_benches::table::{Goal, Row, Spread};
use serde_json::json;
use xtask::cluster::Cluster;

use super::{Audit, LOOK_EVERY, SchedulerProcess, SchedulerSide, Workload};
use super::{all_bound, create_pods, new_cluster, set_up, with_client};

/// Leaders that are killed.
const ROUNDS: usize = 5;
/// Pods that come after each.
const PODS: usize = 10;
/// Limit until a scheduler holds the lease.
const TAKEN_MAX: Duration = Duration::from_secs(60);
/// Port of the first of the schedulers; each has a port of its own.
const FIRST_PORT: usize = 10259;

/// Milliseconds from the moment at which a standby logs that it took the lease to its first
/// binding, the longest of some times; both schedulers.
pub(crate) fn rows(ours: &SchedulerSide, theirs: &SchedulerSide, nodes: usize) -> Result<[Row; 1]> {
    let (theirs, ours) = (longest(theirs, nodes)?, longest(ours, nodes)?);
    let measure = format!("hand-over: from the lease to the first binding, longest of {ROUNDS}");
    Ok([Row { measure, unit: "ms", goal: Goal::Limit(1e3), ours, bound: Some(theirs) }])
}

fn longest(side: &SchedulerSide, nodes: usize) -> Result<f64> {
    let own = new_cluster(&json!({"leaderElect": true}))?;
    let cluster = &own.0;
    with_client(cluster, async |client| set_up(&client, nodes).await)?;
    let start = |at: usize| {
        let port = format!("--secure-port={}", FIRST_PORT + at);
        SchedulerProcess::start_with(cluster, side, &[&port])
    };
    let mut leader = start(0)?;
    let mut held = taken(cluster, None)?;
    let mut took = Vec::new();
    for round in 1..=ROUNDS {
        let standby = start(round)?;
        standby.wait_until_idle()?;
        drop(std::mem::replace(&mut leader, standby));
        let prefix = format!("h{round}-");
        with_client(cluster, async |client| {
            create_pods(&client, Workload::Basic, &prefix, PODS, None).await
        })?;
        held = taken(cluster, Some(&held))?;
        with_client(cluster, async |client| all_bound(&client).await)?;
        let log = Audit::read(&cluster.layout().audit_log())?;
        let bound = log.bound.iter().filter(|(name, _)| name.starts_with(&prefix));
        let bound: Vec<f64> = bound.map(|(_, at)| *at).collect();
        ensure!(bound.len() == PODS, "{} of {PODS} bindings are in the audit log", bound.len());
        took.push((Spread::of(bound).min() - held.at) * 1e3);
    }
    println!("hand-over: {}: {took:.1?} ms", side.name);
    Ok(Spread::of(took).max())
}

/// Holder of the lease, and the time since it took it, in seconds.
struct LeaseHolder {
    by: String,
    at: f64,
}

/// Waits until a scheduler, another one than before, holds the lease.
fn taken(cluster: &Cluster, before: Option<&LeaseHolder>) -> Result<LeaseHolder> {
    with_client(cluster, async |client| {
        let leases: Api<Lease> = Api::namespaced(client, "kube-system");
        let begun = Instant::now();
        loop {
            let lease = leases.get_opt("kube-scheduler").await?;
            let spec = lease.and_then(|lease| lease.spec);
            if let Some(LeaseSpec { holder_identity: Some(by), acquire_time: Some(at), .. }) = spec
                && before.is_none_or(|before| before.by != by)
                && !by.is_empty()
            {
                let at: Timestamp = at.0;
                return Ok(LeaseHolder { by, at: at.as_microsecond() as f64 / 1e6 });
            }
            ensure!(begun.elapsed() < TAKEN_MAX, "no process takes the lease");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
    .context("the scheduler's lease")
}
