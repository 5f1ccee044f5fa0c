//! Our scheduler beside kube-scheduler on an API server that lives in memory: what they can do when
//! nothing behind them is slow.
//!
//! The server is a thread of this program (`memory_api`), over TLS and HTTP/2, and shares the two cores
//! with the scheduler. Workloads: *capacity*, pods that wait when the scheduler starts; *full*, the
//! same beside 150,000 pods that have nodes; *storm*, 10,000 pods that fit nowhere while nodes change.
//! Times are the server's, from the first binding to the last; processor time and memory are the
//! scheduler's. `PINTLE_BENCH_WORKLOAD` (a part of a name); kube-scheduler is left out of *full*, for
//! which it would need gigabytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pintle_benches::bench_report;
use pintle_benches::memory_api::{MemoryApi, Size, wait_until_bound};
use pintle_benches::table::{Goal, Row};
use serde_json::json;
use xtask::shell;
use xtask::upstream::Program;

/// Pods that wait at the beginning of *capacity* and *full*.
const WAITING: usize = 10_000;
/// Pods that have nodes in *full*.
const BOUND: usize = 150_000;
/// Pods without a place in *storm*, and changes of nodes.
const HOPELESS: usize = 10_000;
const CHANGES: usize = 500;
/// For all bindings of a workload, and for all to be told.
const MOST: Duration = Duration::from_secs(300);
/// Processor time is counted in these.
const TICKS_A_SECOND: f64 = 100.0;
/// Whoever takes no more than so many seconds of the processor in this time has nothing to do.
const IDLE_FOR: Duration = Duration::from_secs(2);
const IDLE_SECONDS: f64 = 0.05;

/// A scheduler.
struct Side {
    name: &'static str,
    program: PathBuf,
}

/// What came of one workload.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// A pod, or a change of a node.
    cpu_ms: f64,
    a_second: f64,
    resident_mib: f64,
}

fn main() -> Result<()> {
    let ours = Side { name: "ours", program: release()? };
    let theirs = Side { name: "kube-scheduler", program: Program::Scheduler.ensure()? };
    let only = std::env::var("PINTLE_BENCH_WORKLOAD").unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    let mut rows = Vec::new();
    let ratio = |measure: &str, unit, goal, ours: f64, bound: f64| Row {
        measure: measure.to_owned(),
        unit,
        goal,
        ours,
        bound: Some(bound),
    };
    let few = Size { nodes: 1000, bound: 0, waiting: WAITING, fits: true };
    let mut plain = None;
    if wanted("capacity") {
        let (a, b) = (bind_all(&ours, few)?, bind_all(&theirs, few)?);
        plain = Some(a);
        println!("capacity: ours {a:.3?}, kube-scheduler {b:.3?}");
        let time = |found: Found| 1e3 / found.a_second;
        rows.push(ratio("capacity: time a pod", "ms", Goal::Ratio(0.05), time(a), time(b)));
        rows.push(ratio("capacity: CPU a pod", "ms", Goal::Ratio(0.05), a.cpu_ms, b.cpu_ms));
        let (a, b) = (a.resident_mib, b.resident_mib);
        rows.push(ratio("capacity: memory", "MiB", Goal::Ratio(0.25), a, b));
    }
    if wanted("full") {
        let beside = |bound| Size { nodes: 1000, bound, ..few };
        let plain = match plain {
            Some(found) => found,
            None => bind_all(&ours, beside(0))?,
        };
        let full = bind_all(&ours, beside(BOUND))?;
        println!("full: ours {full:.3?}");
        let time = |found: Found| 1e3 / found.a_second;
        let measure = "full: time a pod beside 150,000, and beside none";
        rows.push(ratio(measure, "ms", Goal::Ratio(1.05), time(full), time(plain)));
    }
    if wanted("storm") {
        let (a, b) = (storm(&ours)?, storm(&theirs)?);
        println!("storm: ours {a:.3?}, kube-scheduler {b:.3?}");
        let measure = "storm: CPU a change of a node";
        rows.push(ratio(measure, "ms", Goal::Ratio(0.05), a.cpu_ms, b.cpu_ms));
        let (a, b) = (a.resident_mib, b.resident_mib);
        rows.push(ratio("storm: memory", "MiB", Goal::Ratio(0.25), a, b));
    }
    bench_report::show("sched_memory", "kube-scheduler", &rows)?;
    Ok(())
}

/// Our program as it is shipped.
fn release() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PINTLE_SCHEDULER") {
        return Ok(path.into());
    }
    let mut cmd = Command::new(env!("CARGO"));
    cmd.args(["build", "--quiet", "--offline", "--release", "-p", "pintle-scheduler"]);
    cmd.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    shell::capture(&mut cmd)?;
    let bench = std::env::current_exe()?;
    let profile = bench.ancestors().nth(2).context("a folder of the build")?;
    Ok(profile.join("pintle-scheduler"))
}

/// The scheduler's process; it ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(side: &Side, api: &MemoryApi, dir: &Path) -> Result<Self> {
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

    /// Processor time in seconds, most memory in MiB.
    fn used(&self) -> Result<(f64, f64)> {
        let of = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", self.0.id()));
        let stat = of("stat")?;
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        let status = of("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
        Ok(((ticks(11) + ticks(12)) / TICKS_A_SECOND, kib.unwrap_or(0.0) / 1024.0))
    }

    /// Waits until it has nothing left to do.
    fn wait_until_idle(&self) -> Result<()> {
        let begun = Instant::now();
        let mut before = self.used()?.0;
        loop {
            std::thread::sleep(IDLE_FOR);
            let now = self.used()?.0;
            if now - before <= IDLE_SECONDS {
                return Ok(());
            }
            ensure!(begun.elapsed() < MOST, "the scheduler is always busy");
            before = now;
        }
    }
}

/// All that wait are bound.
fn bind_all(side: &Side, size: Size) -> Result<Found> {
    let dir = tempfile::tempdir()?;
    let api = MemoryApi::start(size)?;
    let running = Running::start(side, &api, dir.path())?;
    wait_until_bound(&api, size.waiting, MOST)?;
    let (cpu, resident_mib) = running.used()?;
    let bound = api.bound();
    let (first, last) = bound.first().zip(bound.last()).context("some are bound")?;
    let a_second = bound.len() as f64 / last.duration_since(*first).as_secs_f64();
    Ok(Found { cpu_ms: cpu * 1e3 / bound.len() as f64, a_second, resident_mib })
}

/// Nodes change while many pods fit nowhere.
fn storm(side: &Side) -> Result<Found> {
    let dir = tempfile::tempdir()?;
    let size = Size { nodes: 1000, bound: 0, waiting: HOPELESS, fits: false };
    let api = MemoryApi::start(size)?;
    let running = Running::start(side, &api, dir.path())?;
    let begun = Instant::now();
    while api.told().0 < HOPELESS {
        ensure!(begun.elapsed() < MOST, "{} of {HOPELESS} are told why", api.told().0);
        std::thread::sleep(Duration::from_millis(50));
    }
    running.wait_until_idle()?;
    let (before, _) = running.used()?;
    (0..CHANGES).for_each(|at| api.change_node(at % size.nodes));
    running.wait_until_idle()?;
    let (after, resident_mib) = running.used()?;
    let cpu_ms = (after - before) * 1e3 / CHANGES as f64;
    Ok(Found { cpu_ms, a_second: 0.0, resident_mib })
}
