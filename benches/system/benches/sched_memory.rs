//! Our scheduler compared with kube-scheduler on an API server in memory: their limits when nothing
//! behind them is slow.
//!
//! The server is a thread of this program (`memory_api`), over TLS and HTTP/2, and shares the two
//! cores with the scheduler. Workloads: *capacity*, pods that wait when the scheduler starts;
//! *full*, the same beside 150,000 pods that have nodes; *storm*, 10,000 unschedulable pods while
//! nodes change; *steady*, pods that come at a steady rate; *churn* (only by its whole name, for
//! `PINTLE_BENCH_MINUTES`), nodes and pods that are created and deleted under new names. Times are
//! the server's, from the first binding to the last; CPU time and memory are the scheduler's.
//! `PINTLE_BENCH_WORKLOAD` (a part of a name); `PINTLE_BENCH_ALONE` leaves out kube-scheduler,
//! which is always left out of *full*, because it would need gigabytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pintle_system_benches::load::{Cpu, memory_mib};
use pintle_system_benches::memory_api::{InitialObjects, MemoryApi, wait_until_bound};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, count, release};
use serde_json::json;
use xtask::upstream::Program;

/// Pods that wait at the beginning of *capacity* and *full*.
const WAITING: usize = 10_000;
/// Pods that have nodes in *full*.
const BOUND: usize = 150_000;
/// Pods without a place in *storm*, and changes of nodes.
const HOPELESS: usize = 10_000;
const CHANGES: usize = 500;
/// Limit for all bindings of a workload, and for all of its events.
const MOST: Duration = Duration::from_secs(300);
/// Pods a second in *steady*, and their number.
const STEADY_RATE: usize = 100;
const STEADY_PODS: usize = 2000;
/// In *churn*: pods created and deleted in a second, pods at a time, life of a node in seconds,
/// pods of one batch, period of memory readings.
const CHURN_RATE: usize = 100;
const CHURN_PODS: usize = 3000;
const CHURN_NODES: usize = 200;
const CHURN_BATCH: usize = 50;
const CHURN_LOOK: Duration = Duration::from_secs(5);
/// A scheduler that uses no more CPU seconds than this in that time has nothing to do.
const IDLE_FOR: Duration = Duration::from_secs(2);
const IDLE_SECONDS: f64 = 0.05;

/// A scheduler.
struct MemorySide {
    name: &'static str,
    program: PathBuf,
}

/// Results of one workload.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryResults {
    /// A pod, or a change of a node.
    cpu_ms: f64,
    /// Of these, in the kernel; printed.
    #[expect(dead_code)]
    system_ms: f64,
    a_second: f64,
    resident_mib: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
}

impl MemoryResults {
    fn of(cpu: Cpu, count: usize) -> Self {
        let each = cpu * 1e3 / count as f64;
        Self { cpu_ms: each.seconds(), system_ms: each.system, ..Self::default() }
    }
}

fn main() -> Result<()> {
    let ours =
        MemorySide { name: "ours", program: release("pintle-scheduler", "PINTLE_SCHEDULER")? };
    let alone = std::env::var_os("PINTLE_BENCH_ALONE").is_some();
    let theirs = match alone {
        true => None,
        false => Some(MemorySide { name: "kube-scheduler", program: Program::Scheduler.ensure()? }),
    };
    let only = std::env::var("PINTLE_BENCH_WORKLOAD").unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    let theirs = theirs.as_ref();
    let mut rows = Vec::new();
    let few = InitialObjects { nodes: 1000, bound: 0, waiting: WAITING, fits: true, batch: None };
    let mut plain = None;
    if wanted("capacity") {
        let a = bind_all(&ours, few)?;
        plain = Some(a);
        rows.extend(capacity(a, theirs.map(|side| bind_all(side, few)).transpose()?));
    }
    if wanted("full") {
        let plain = plain.map_or_else(|| bind_all(&ours, few), Ok)?;
        let full = bind_all(&ours, InitialObjects { bound: BOUND, ..few })?;
        println!("full: ours {full:.3?}");
        let time = |found: MemoryResults| 1e3 / found.a_second;
        let measure = "full: time a pod beside 150,000, and beside none";
        rows.push(row(measure, "ms", Goal::Ratio(1.05), time(full), Some(time(plain))));
    }
    if wanted("storm") {
        let (a, b) = (storm(&ours)?, theirs.map(storm).transpose()?);
        println!("storm: ours {a:.3?}, kube-scheduler {b:.3?}");
        let of = |of: fn(MemoryResults) -> f64| (of(a), b.map(of));
        let (a, b) = of(|found| found.cpu_ms);
        rows.push(row("storm: CPU a change of a node", "ms", Goal::Ratio(0.05), a, b));
        let (a, b) = of(|found| found.resident_mib);
        rows.push(row("storm: memory", "MiB", Goal::Ratio(0.25), a, b));
    }
    if wanted("steady") {
        let (a, b) = (steady(&ours)?, theirs.map(steady).transpose()?);
        println!("steady: ours {a:.3?}, kube-scheduler {b:.3?}");
        let of = |of: fn(MemoryResults) -> f64| (of(a), b.map(of));
        let (a, b) = of(|found| found.cpu_ms);
        rows.push(row("steady: CPU a pod", "ms", Goal::Ratio(0.05), a, b));
        let (a, b) = of(|found| found.wait_p50_ms);
        rows.push(row("steady: wait, p50", "ms", Goal::None, a, b));
        let (a, b) = of(|found| found.wait_p99_ms);
        rows.push(row("steady: wait, p99", "ms", Goal::Ratio(0.1), a, b));
    }
    if only == "churn" {
        let minutes = count("PINTLE_BENCH_MINUTES", 10);
        let (begin, end) = churn(&ours, Duration::from_secs(minutes as u64 * 60))?;
        let measure = "churn: memory of the last quarter, and of the second";
        rows.push(row(measure, "MiB", Goal::Ratio(1.05), end, Some(begin)));
    }
    bench_report::show("sched_memory", "kube-scheduler", &rows)?;
    Ok(())
}

fn row(measure: &str, unit: &'static str, goal: Goal, ours: f64, bound: Option<f64>) -> Row {
    Row { measure: measure.to_owned(), unit, goal, ours, bound }
}

fn capacity(a: MemoryResults, b: Option<MemoryResults>) -> [Row; 3] {
    println!("capacity: ours {a:.3?}, kube-scheduler {b:.3?}");
    let of = |of: fn(MemoryResults) -> f64| (of(a), b.map(of));
    let (time, cpu) = (of(|found| 1e3 / found.a_second), of(|found| found.cpu_ms));
    let memory = of(|found| found.resident_mib);
    [
        row("capacity: time a pod", "ms", Goal::Ratio(0.05), time.0, time.1),
        row("capacity: CPU a pod", "ms", Goal::Ratio(0.05), cpu.0, cpu.1),
        row("capacity: memory", "MiB", Goal::Ratio(0.25), memory.0, memory.1),
    ]
}

/// The scheduler's process; it ends with this.
struct MeasuredProcess(Child);

impl Drop for MeasuredProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl MeasuredProcess {
    fn start(side: &MemorySide, api: &MemoryApi, dir: &Path) -> Result<Self> {
        let (ca, kubeconfig) = (dir.join("ca.crt"), dir.join("kubeconfig"));
        fs::write(&ca, api.certificate())?;
        fs::write(&kubeconfig, api.kubeconfig(&ca).to_string())?;
        let config = dir.join("config.yaml");
        let text = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": kubeconfig.display().to_string(),
                "contentType": "application/json", "acceptContentTypes": "application/json",
                "qps": 100_000, "burst": 100_000},
        });
        fs::write(&config, text.to_string())?;
        let mut cmd = Command::new(&side.program);
        cmd.arg(format!("--config={}", config.display())).arg("--secure-port=0");
        cmd.stderr(fs::File::create(dir.join(format!("{}.log", side.name)))?);
        Ok(Self(cmd.spawn()?))
    }

    /// Processor time so far, most memory in MiB.
    fn used(&self) -> Result<(Cpu, f64)> {
        let pid = i32::try_from(self.0.id())?;
        Ok((Cpu::of(pid)?, memory_mib(pid, "VmHWM:")?))
    }

    /// Waits until it has nothing left to do.
    fn wait_until_idle(&self) -> Result<()> {
        let begun = Instant::now();
        let mut before = self.used()?.0.seconds();
        loop {
            std::thread::sleep(IDLE_FOR);
            let now = self.used()?.0.seconds();
            if now - before <= IDLE_SECONDS {
                return Ok(());
            }
            ensure!(begun.elapsed() < MOST, "the scheduler is always busy");
            before = now;
        }
    }
}

/// All that wait are bound.
fn bind_all(side: &MemorySide, size: InitialObjects) -> Result<MemoryResults> {
    let dir = tempfile::tempdir()?;
    let api = MemoryApi::start(size)?;
    let running = MeasuredProcess::start(side, &api, dir.path())?;
    wait_until_bound(&api, size.waiting, MOST)?;
    let (cpu, resident_mib) = running.used()?;
    let bound = api.bound();
    let (first, last) = bound.first().zip(bound.last()).context("some are bound")?;
    let a_second = bound.len() as f64 / last.duration_since(*first).as_secs_f64();
    Ok(MemoryResults { a_second, resident_mib, ..MemoryResults::of(cpu, bound.len()) })
}

/// Nodes change while many pods fit nowhere.
fn storm(side: &MemorySide) -> Result<MemoryResults> {
    let dir = tempfile::tempdir()?;
    let size =
        InitialObjects { nodes: 1000, bound: 0, waiting: HOPELESS, fits: false, batch: None };
    let api = MemoryApi::start(size)?;
    let running = MeasuredProcess::start(side, &api, dir.path())?;
    let begun = Instant::now();
    while api.told().0 < HOPELESS {
        ensure!(begun.elapsed() < MOST, "{} of {HOPELESS} have a condition", api.told().0);
        std::thread::sleep(Duration::from_millis(50));
    }
    running.wait_until_idle()?;
    let (before, _) = running.used()?;
    (0..CHANGES).for_each(|at| api.change_node(at % size.nodes));
    running.wait_until_idle()?;
    let (after, resident_mib) = running.used()?;
    Ok(MemoryResults { resident_mib, ..MemoryResults::of(after - before, CHANGES) })
}

/// Pods come at a steady rate; each one's wait is from its creation to its binding.
fn steady(side: &MemorySide) -> Result<MemoryResults> {
    let dir = tempfile::tempdir()?;
    let api = MemoryApi::start(InitialObjects {
        nodes: 1000,
        bound: 0,
        waiting: 0,
        fits: true,
        batch: None,
    })?;
    let running = MeasuredProcess::start(side, &api, dir.path())?;
    running.wait_until_idle()?;
    let (before, _) = running.used()?;
    let begun = Instant::now();
    for at in 0..STEADY_PODS {
        let due = begun + Duration::from_secs_f64(at as f64 / STEADY_RATE as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        api.add_pod();
    }
    wait_until_bound(&api, STEADY_PODS, MOST)?;
    let (after, resident_mib) = running.used()?;
    let waits = Spread::of(api.waits());
    let (wait_p50_ms, wait_p99_ms) = (waits.p50(), waits.at(0.99));
    let cost = MemoryResults::of(after - before, STEADY_PODS);
    Ok(MemoryResults { resident_mib, wait_p50_ms, wait_p99_ms, ..cost })
}

/// Creates and deletes nodes and pods under new names, pods in batches with selectors of their own.
/// Returns the resident memory in the second quarter of the time, and in the last, in MiB.
fn churn(side: &MemorySide, lasts: Duration) -> Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let batch = Some(CHURN_BATCH);
    let size =
        InitialObjects { nodes: CHURN_NODES, bound: 0, waiting: CHURN_PODS, fits: true, batch };
    let api = MemoryApi::start(size)?;
    let running = MeasuredProcess::start(side, &api, dir.path())?;
    wait_until_bound(&api, CHURN_PODS, MOST)?;
    let pid = i32::try_from(running.0.id())?;
    let begun = Instant::now();
    let (mut seen, mut looked) = (Vec::new(), Duration::ZERO);
    for at in 0.. {
        let due = Duration::from_secs_f64(at as f64 / CHURN_RATE as f64);
        if due >= lasts {
            break;
        }
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        api.add_pod();
        api.remove_pod(at);
        if at % CHURN_RATE == 0 {
            api.replace_node(at / CHURN_RATE);
        }
        if begun.elapsed() >= looked + CHURN_LOOK {
            looked = begun.elapsed();
            let resident = memory_mib(pid, "VmRSS:")?;
            println!("churn: {} s, {resident:.1} MiB", looked.as_secs());
            seen.push(resident);
        }
    }
    let (cpu, most) = running.used()?;
    let pods = api.bound().len();
    println!("churn: {pods} bindings, {:.1} s of the processor, {most:.1} MiB", cpu.seconds());
    ensure!(seen.len() >= 8, "it did not last long enough to see anything");
    let quarter = seen.len() / 4;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    Ok((mean(&seen[quarter..2 * quarter]), mean(&seen[3 * quarter..])))
}
