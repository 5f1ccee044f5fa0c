//! Cost of the agent while nothing happens, and its start and stop times: fifty pods.
//!
//! CPU is user and system time of its process over a minute. A restart is timed from the start of
//! the process until `/pods` shows every pod running with its container; its lower bound is one
//! client that connects, lists, and reads every pod. Goals: <= 0.15 % of a core, <= 32 MiB
//! resident, restart <= 500 ms, end after SIGTERM <= 1 s, program <= 20 MB.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use pintle_cri::{Client, Deadlines, v1};
use pintle_system_benches::load::Cpu;
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, load, ms, names, now, put_pod, rounds, seen};
use pintle_testbed::{LONG, Options, TestNode};
use serde_json::json;
use tokio::runtime::Builder;

const PODS: usize = 50;
const IDLE: Duration = Duration::from_secs(60);
/// Time until work after a start (late events, first relist) is over.
const SETTLE: Duration = Duration::from_secs(15);
const CPU_GOAL_PERCENT: f64 = 0.15;
const RSS_GOAL_MIB: f64 = 32.0;
const RESTART_GOAL_MS: f64 = 500.0;
const END_GOAL_MS: f64 = 1000.0;
const BINARY_GOAL_MB: f64 = 20.0;
const ASK_EVERY: Duration = Duration::from_millis(5);
const START_EVERY: Duration = Duration::from_millis(200);
const START_LIMIT: Duration = Duration::from_secs(180);

fn main() -> Result<()> {
    // The users' default: tests read the folder of manifests each second.
    let config = json!({"fileCheckFrequency": "20s"});
    let mut node = TestNode::start(Options { config, ..Options::default() });
    names("idle", PODS).iter().for_each(|name| put_pod(&node, name));
    let before = full_picture(&node, START_EVERY, START_LIMIT)?;
    thread::sleep(SETTLE);
    let mut rows = idle(node.agent_pid())?;
    rows.extend(restarts(&mut node, &before)?);
    let program = fs::metadata(format!("/proc/{}/exe", node.agent_pid()))?.len();
    rows.push(Row {
        measure: "size of the program".into(),
        unit: "MB",
        goal: Goal::Limit(BINARY_GOAL_MB),
        ours: program as f64 / 1e6,
        bound: None,
    });
    bench_report::show("node_idle", "lower bound", &rows)?;
    Ok(())
}

/// Waits until every pod shows its running container, and returns their ids.
fn full_picture(node: &TestNode, every: Duration, limit: Duration) -> Result<Vec<String>> {
    let mut running = Vec::new();
    seen::watch(node, every, limit, |pods, _| {
        running = pods.iter().filter_map(|pod| pod.running.clone()).collect();
        running.sort();
        running.len() == PODS
    })
    .context("all pods run")?;
    Ok(running)
}

fn idle(pid: i32) -> Result<Vec<Row>> {
    let (begin, cpu) = (Instant::now(), Cpu::of(pid)?);
    let threads = load::threads(pid);
    thread::sleep(IDLE);
    let share = (Cpu::of(pid)? - cpu).seconds() / begin.elapsed().as_secs_f64() * 100.0;
    for (thread, now) in load::threads(pid) {
        let spent = now.spent - threads.get(&thread).map_or(0, |before| before.spent);
        let percent = spent as f64 / begin.elapsed().as_nanos() as f64 * 100.0;
        println!("thread {}: {percent:.3} %", now.name);
    }
    let row = |measure: &str, unit, goal, ours| Row {
        measure: format!("idle with {PODS} pods: {measure}"),
        unit,
        goal,
        ours,
        bound: None,
    };
    let mib = |field: &str| load::memory_mib(pid, field);
    Ok(vec![
        row("share of a core", "%", Goal::Limit(CPU_GOAL_PERCENT), share),
        row("resident memory", "MiB", Goal::Limit(RSS_GOAL_MIB), mib("VmRSS:")?),
        row("of that, not the program's file", "MiB", Goal::None, mib("RssAnon:")?),
    ])
}

fn restarts(node: &mut TestNode, before: &[String]) -> Result<Vec<Row>> {
    let (mut ends, mut pictures, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds(5) {
        let (status, took) = node.stop_agent();
        anyhow::ensure!(status.success(), "the agent ended with {status}");
        ends.push(took.as_secs_f64() * 1000.0);
        bounds.push(read_everything(node)?);
        let begin = now();
        node.spawn_agent()?;
        let after = full_picture(node, ASK_EVERY, LONG)?;
        pictures.push(ms(begin, now()));
        anyhow::ensure!(after == before, "a restart of the agent changed a container");
        println!(
            "end {:.0} ms, full picture {:.0} ms",
            ends[ends.len() - 1],
            pictures[pictures.len() - 1]
        );
        thread::sleep(Duration::from_secs(2));
    }
    let (ends, pictures) = (Spread::of(ends), Spread::of(pictures));
    let row = |measure: &str, goal, ours, bound| Row {
        measure: measure.to_owned(),
        unit: "ms",
        goal: Goal::Limit(goal),
        ours,
        bound,
    };
    let bound = Some(Spread::of(bounds).p50());
    Ok(vec![
        row("restart to the full picture, p50", RESTART_GOAL_MS, pictures.p50(), bound),
        row("restart to the full picture, max", RESTART_GOAL_MS, pictures.max(), bound),
        row("SIGTERM to the end of the process, max", END_GOAL_MS, ends.max(), None),
    ])
}

/// Milliseconds that a client needs to connect, list, and read every sandbox and container.
fn read_everything(node: &TestNode) -> Result<f64> {
    let endpoint = format!("unix://{}", node.runtime_node().socket().display());
    let begin = Instant::now();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(&endpoint, Deadlines::default())?;
        let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest { filter: None }).await?;
        let containers = client.list_containers(v1::ListContainersRequest { filter: None }).await?;
        let sandboxes = sandboxes.items.into_iter().map(|sandbox| {
            let pod_sandbox_id = sandbox.id;
            client
                .pod_sandbox_status(v1::PodSandboxStatusRequest { pod_sandbox_id, verbose: false })
        });
        try_join_all(sandboxes).await?;
        let containers = containers.containers.into_iter().map(|container| {
            let container_id = container.id;
            client.container_status(v1::ContainerStatusRequest { container_id, verbose: false })
        });
        try_join_all(containers).await?;
        anyhow::Ok(())
    })?;
    Ok(begin.elapsed().as_secs_f64() * 1000.0)
}
