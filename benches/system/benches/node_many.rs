//! Cost of existing pods for a start, and of the agent beside many of them.
//!
//! The agent's own CPU, user and system, for the start of ten pods one after the other: beside
//! fifty pods and beside five hundred (`PINTLE_BENCH_PODS`), each less its use in the same time
//! while nothing happens. Then a minute with all of them idle. No request reaches the agent
//! meanwhile; the runtime's list shows the running pods. The pods have the node's network, so that
//! no plug-in is the bottleneck. Goals: the same within 10 %; <= 0.5 % of a core and <= 64 MiB
//! beside five hundred.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pintle_cri::v1;
use pintle_system_benches::load::{self, Cpu};
use pintle_system_benches::table::{Goal, Row};
use pintle_system_benches::{bench_report, count, names};
use pintle_testbed::manifest::{With as _, container, pod};
use pintle_testbed::node::Options;
use pintle_testbed::{RawCri, TestNode};
use serde_json::json;

const FEW: usize = 50;
const MANY: usize = 500;
const STARTS: usize = 10;
const RATIO_GOAL: f64 = 1.1;
const CPU_GOAL_PERCENT: f64 = 0.5;
const RSS_GOAL_MIB: f64 = 64.0;
const ASK_EVERY: Duration = Duration::from_millis(100);
/// For each pod; two busy cores.
const START_LIMIT: Duration = Duration::from_secs(5);
/// Time until work after a start (late events, owed reads) is over.
const SETTLE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let many = count("PINTLE_BENCH_PODS", MANY);
    let few = FEW.min(many / 2);
    let config = json!({"maxPods": many + 3 * STARTS, "fileCheckFrequency": "20s"});
    let node = TestNode::start(Options { config, ..Options::default() });
    let cri = RawCri::connect(&node)?;
    let names = names("many", many + 2 * STARTS);
    let beside_few = starts_beside(&node, &cri, &names[..few + STARTS])?;
    let beside_many = starts_beside(&node, &cri, &names[..many + STARTS])?;
    let (idle, rss, anon) = (beside_many.idle, beside_many.rss, beside_many.anon);
    let row = |measure: String, unit, goal, ours, bound| Row { measure, unit, goal, ours, bound };
    let start = |part: &str, goal, of: fn(Cpu) -> f64| {
        let (ours, bound) = (of(beside_many.start) * 1e3, of(beside_few.start) * 1e3);
        row(format!("a start beside {many} pods: {part}"), "ms", goal, ours, Some(bound))
    };
    let beside = |measure: &str, unit, goal, ours, bound| {
        row(format!("{many} pods idle: {measure}"), unit, goal, ours, Some(bound))
    };
    let (cpu, memory) = (Goal::Limit(CPU_GOAL_PERCENT), Goal::Limit(RSS_GOAL_MIB));
    bench_report::show(
        "node_many",
        &format!("beside {few}"),
        &[
            start("agent's CPU", Goal::Ratio(RATIO_GOAL), Cpu::seconds),
            start("of that, user time", Goal::None, |cpu| cpu.user),
            beside("share of a core", "%", cpu, idle * 100.0, beside_few.idle * 100.0),
            beside("resident memory", "MiB", memory, rss, beside_few.rss),
            beside("not the program's file", "MiB", Goal::None, anon, beside_few.anon),
        ],
    )?;
    Ok(())
}

/// CPU and memory of the agent beside so many pods.
struct Beside {
    start: Cpu,
    /// Share of a core while nothing happens.
    idle: f64,
    rss: f64,
    anon: f64,
}

/// Starts all but the last pods, waits, and then starts those one after the other.
fn starts_beside(node: &TestNode, cri: &RawCri, names: &[String]) -> Result<Beside> {
    let (there, new) = names.split_at(names.len() - STARTS);
    put_all(node, cri, there)?;
    thread::sleep(SETTLE);
    let pid = node.agent_pid();
    let (begin, cpu) = (Instant::now(), Cpu::of(pid)?);
    let threads = load::threads(pid);
    thread::sleep(IDLE);
    let idle = (Cpu::of(pid)? - cpu) / begin.elapsed().as_secs_f64();
    println!("{} pods there: idle {:.3} %", there.len(), idle.seconds() * 100.0);
    show_threads(&threads, pid, begin.elapsed());
    let (rss, anon) = (load::memory_mib(pid, "VmRSS:")?, load::memory_mib(pid, "RssAnon:")?);
    let (begin, cpu, threads) = (Instant::now(), Cpu::of(pid)?, load::threads(pid));
    for nth in 0..new.len() {
        put_all(node, cri, &names[..there.len() + nth + 1])?;
    }
    thread::sleep(SETTLE);
    let took = begin.elapsed();
    let start = (Cpu::of(pid)? - cpu - idle * took.as_secs_f64()) / STARTS as f64;
    println!("{} pods there: a start {:.2} ms", there.len(), start.seconds() * 1e3);
    show_threads(&threads, pid, took);
    Ok(Beside { start, idle: idle.seconds(), rss, anon })
}

fn show_threads(before: &load::Threads, pid: i32, took: Duration) {
    for (id, now) in load::threads(pid) {
        let before = before.get(&id).map_or(0, |before| before.spent);
        let percent = (now.spent - before) as f64 / took.as_nanos() as f64 * 100.0;
        println!("  thread {}: {percent:.3} %", now.name);
    }
}

/// Writes those of these manifests that are not there, which are the last ones, and waits until all
/// run.
fn put_all(node: &TestNode, cri: &RawCri, names: &[String]) -> Result<()> {
    let there = running(cri)?;
    for name in &names[there.min(names.len())..] {
        let waits = container("main", &["/box", "pause"]);
        let manifest = pod(name, &[waits]).with_spec("hostNetwork", json!(true));
        node.put(&format!("{name}.json"), &manifest);
    }
    let missing = u32::try_from(names.len().saturating_sub(there))?;
    let limit = Instant::now() + START_LIMIT * (missing + 4);
    while running(cri)? < names.len() {
        ensure!(Instant::now() < limit, "{} of {} pods run", running(cri)?, names.len());
        thread::sleep(ASK_EVERY);
    }
    Ok(())
}

fn running(cri: &RawCri) -> Result<usize> {
    let state = v1::ContainerState::ContainerRunning.into();
    let state = Some(v1::ContainerStateValue { state });
    let filter = Some(v1::ContainerFilter { state, ..Default::default() });
    let listed = cri.block(cri.client.list_containers(v1::ListContainersRequest { filter }))?;
    Ok(listed.containers.len())
}
