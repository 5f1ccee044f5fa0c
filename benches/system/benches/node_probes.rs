//! Cost of an exec probe for the agent: fifty pods with one each second.
//!
//! CPU is user and system time of the agent's process per attempt, by the agent's own count of
//! attempts. The lower bound is one client on one thread that makes the same calls at the same rate
//! and does nothing else: it reads no events, keeps no schedule, counts nothing. Goal: <= 0.3 ms,
//! and no more than twice the bare client.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::join_all;
use pintle_cri::v1;
use pintle_system_benches::load::{self, Cpu};
use pintle_system_benches::table::{Goal, Row};
use pintle_system_benches::{bench_report, count, names, seen};
use pintle_testbed::manifest::{With as _, container, pod};
use pintle_testbed::{RawCri, TestNode};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval_at};

const COMMAND: [&str; 3] = ["/box", "exit", "0"];
/// Time until work after a start is over.
const SETTLE: Duration = Duration::from_secs(15);
const START: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(180));
const GOAL_MS: f64 = 0.3;
const GOAL_RATIO: f64 = 2.0;

fn main() -> Result<()> {
    let mut node = TestNode::usual();
    let pods = count("PINTLE_BENCH_PODS", 50);
    names("probed", pods).iter().for_each(|name| put_probed(&node, name));
    let mut running = Vec::new();
    seen::watch(&node, START.0, START.1, |seen, _| {
        running = seen.iter().filter_map(|pod| pod.running.clone()).collect();
        running.len() == pods
    })
    .context("all pods run")?;
    thread::sleep(SETTLE);
    let (ours, rate) = agent(&node)?;
    node.stop_agent();
    let bare = bare_client(&node, &running)?;
    let row = |measure: &str, goal, ours: f64, bare: f64| Row {
        measure: format!("{pods} exec probes a second: {measure}"),
        unit: "ms",
        goal,
        ours: ours * 1000.0,
        bound: Some(bare * 1000.0),
    };
    println!("{rate:.1} attempts a second");
    bench_report::show(
        "node_probes",
        "bare client",
        &[
            row("CPU of one", Goal::Limit(GOAL_MS), ours.seconds(), bare.seconds()),
            row("the same as a ratio", Goal::Ratio(GOAL_RATIO), ours.seconds(), bare.seconds()),
            row("of that, user time", Goal::None, ours.user, bare.user),
            row("of that, system time", Goal::None, ours.system, bare.system),
        ],
    )?;
    Ok(())
}

/// How long CPU time is counted.
fn window() -> Duration {
    Duration::from_secs(count("PINTLE_BENCH_SECONDS", 60) as u64)
}

fn put_probed(node: &TestNode, name: &str) {
    // Generous for slow machines: a failed probe would restart the measured container.
    let probe = json!({
        "exec": {"command": COMMAND},
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1000,
    });
    let probed = container("main", &["/box", "pause"]).with("livenessProbe", probe);
    node.put(&format!("{name}.json"), &pod(name, &[probed]));
}

/// CPU of one attempt, and attempts a second.
fn agent(node: &TestNode) -> Result<(Cpu, f64)> {
    let pid = node.agent_pid();
    let (attempts, threads) = (attempts(node)?, load::threads(pid));
    let (begin, cpu) = (Instant::now(), Cpu::of(pid)?);
    thread::sleep(window());
    let spent = Cpu::of(pid)? - cpu;
    let took = begin.elapsed().as_secs_f64();
    let made = self::attempts(node)? - attempts;
    for (id, now) in load::threads(pid) {
        let before = threads.get(&id).cloned().unwrap_or_default();
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / made;
        let (ms, sleeps) = (each(now.spent, before.spent) / 1e6, each(now.sleeps, before.sleeps));
        println!("thread {}: {ms:.3} ms and {sleeps:.2} wake-ups for each", now.name);
    }
    Ok((spent / made, made / took))
}

/// Attempts so far, by the agent's own count.
fn attempts(node: &TestNode) -> Result<f64> {
    let page = node.get(xtask::node::agent::READ_ONLY_PORT, "/metrics/probes")?.body;
    let lines = page.lines().filter(|line| line.starts_with("prober_probe_total{"));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// The same calls at the same rate without the agent.
fn bare_client(node: &TestNode, containers: &[String]) -> Result<Cpu> {
    let cri = RawCri::connect(node)?;
    let (cpu, begin) = (Cpu::own()?, tokio::time::Instant::now());
    let end = begin + window();
    let apart = Duration::from_secs(1) / u32::try_from(containers.len())?;
    let made = cri.block(join_all(containers.iter().zip(1_u32..).map(async |(id, nth)| {
        let mut ticks = interval_at(begin + apart * nth, Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut made = 0;
        while tokio::time::Instant::now() < end {
            ticks.tick().await;
            let cmd = COMMAND.map(str::to_owned).to_vec();
            let container_id = id.clone();
            let answer = cri
                .client
                .exec_sync(v1::ExecSyncRequest { container_id, cmd, timeout: 10 })
                .await?;
            anyhow::ensure!(answer.exit_code == 0, "{answer:?}");
            made += 1;
        }
        Ok(made)
    })));
    let made: i32 = made.into_iter().sum::<Result<i32>>()?;
    Ok((Cpu::own()? - cpu) / f64::from(made))
}
