//! Our scheduler compared with kube-scheduler on a real API server: cost of a bound pod, pods bound
//! a second, waits of pods, memory.
//!
//! Nodes exist in the API alone. For each side and workload the cluster is new, all pods exist
//! before the scheduler starts, and its request rate is not limited. Times are those of the API
//! server's audit log, from the first binding to the last; memory is that of the process until the
//! last binding. CPU too, less that of a start with these nodes and no pending pods, which is a row
//! of its own. Then pods come at a steady rate, half of kube-scheduler's bindings a second, and
//! each one's wait is from its creation to its binding. A client that binds each pod and emits its
//! Event without a decision shows the API server's own share. kube-scheduler is built alone and has
//! its default configuration, so it samples nodes; ours filters all of them. At last leaders are
//! killed, and the time from the standby's lease to its first binding is measured.
//! `PINTLE_BENCH_NODES`, `PINTLE_BENCH_PODS`, `PINTLE_BENCH_WORKLOAD` (a part of a name).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use pintle_api::{Access, ClientOptions};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, release};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::upstream::Program;

#[path = "sched/binder.rs"]
mod binder;
#[path = "sched/hand_over.rs"]
mod hand_over;

/// Requests at the same time.
const AT_ONCE: usize = 32;
/// How often the API server is polled for pending pods.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For all pods of a workload.
const BOUND_MAX: Duration = Duration::from_secs(300);
/// Pods of the steady phase.
const STEADY_PODS: usize = 2000;
/// Pods that preempt others, on nodes that are all full.
const PREEMPTIONS: usize = 150;
/// A scheduler that uses no more CPU seconds than this in that time has nothing to do.
const IDLE_FOR: Duration = Duration::from_secs(2);
const IDLE_SECONDS: f64 = 0.05;

/// Requests of the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Basic,
    Spread,
    AntiAffinity,
    Affinity,
    /// Two of three fit nowhere.
    Misfits,
    /// Each has to preempt another pod.
    Preemption,
}

const WORKLOADS: [(Workload, &str); 6] = [
    (Workload::Basic, "basic"),
    (Workload::Spread, "spread over zones"),
    (Workload::AntiAffinity, "required anti-affinity"),
    (Workload::Affinity, "required affinity"),
    (Workload::Misfits, "one of three fits"),
    (Workload::Preemption, "preemption"),
];

/// The workload in which leaders are killed.
const HAND_OVER: &str = "hand-over";

/// A scheduler.
#[derive(Clone, Debug)]
struct SchedulerSide {
    name: &'static str,
    program: PathBuf,
}

/// Results of one workload.
#[derive(Clone, Copy, Debug, Default)]
struct WorkloadResults {
    start_ms: f64,
    cpu_ms_a_pod: f64,
    pods_a_second: f64,
    resident_mib: f64,
    steady: Option<Steady>,
}

/// How long pods waited that came at a steady rate.
#[derive(Clone, Copy, Debug)]
struct Steady {
    /// Pods a second.
    rate: usize,
    p50_ms: f64,
    p99_ms: f64,
}

fn main() -> Result<()> {
    let (nodes, pods) = (number("PINTLE_BENCH_NODES", 1000)?, number("PINTLE_BENCH_PODS", 2000)?);
    let ours =
        SchedulerSide { name: "ours", program: release("pintle-scheduler", "PINTLE_SCHEDULER")? };
    let theirs = SchedulerSide { name: "kube-scheduler", program: Program::Scheduler.ensure()? };
    let mut rows = Vec::new();
    let only = std::env::var("PINTLE_BENCH_WORKLOAD").unwrap_or_default();
    for (workload, name) in WORKLOADS.into_iter().filter(|(_, name)| name.contains(&only)) {
        let theirs = measure(&theirs, workload, nodes, pods, None)?;
        println!("{name}: kube-scheduler: {theirs:.2?}");
        let rate = theirs.steady.map(|steady| steady.rate);
        let ours = measure(&ours, workload, nodes, pods, rate)?;
        println!("{name}: ours: {ours:.2?}");
        rows.extend(rows_of(name, workload, ours, theirs));
        if let (Some(ours), Some(theirs)) = (ours.steady, theirs.steady) {
            let least = undecided(nodes, theirs.rate)?;
            println!("{name}: without a decision: {least:.2?}");
            rows.extend(rows_of_waits(name, ours, theirs, least));
        }
    }
    if HAND_OVER.contains(&only) {
        rows.extend(hand_over::rows(&ours, &theirs, nodes)?);
    }
    println!("{nodes} nodes, {pods} pods");
    bench_report::show("sched_cluster", "kube-scheduler", &rows)?;
    Ok(())
}

fn number(name: &str, usual: usize) -> Result<usize> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is a number, not {text:?}")),
        Err(_) => Ok(usual),
    }
}

fn rows_of(
    name: &str,
    workload: Workload,
    ours: WorkloadResults,
    theirs: WorkloadResults,
) -> Vec<Row> {
    let row = |measure: &str, unit, goal, ours: f64, bound: f64| Row {
        measure: format!("{name}: {measure}"),
        unit,
        goal,
        ours,
        bound: Some(bound),
    };
    let a_pod = |found: WorkloadResults| 1e3 / found.pods_a_second;
    let time = if workload == Workload::Basic { 1.0 } else { 0.1 };
    vec![
        row("CPU a pod", "ms", Goal::Ratio(0.05), ours.cpu_ms_a_pod, theirs.cpu_ms_a_pod),
        row("CPU of the start", "ms", Goal::None, ours.start_ms, theirs.start_ms),
        row("time a pod", "ms", Goal::Ratio(time), a_pod(ours), a_pod(theirs)),
        row("memory", "MiB", Goal::Ratio(0.25), ours.resident_mib, theirs.resident_mib),
    ]
}

fn rows_of_waits(name: &str, ours: Steady, theirs: Steady, least: Steady) -> [Row; 4] {
    let row = |measure: &str, goal, of: fn(Steady) -> f64, bound| Row {
        measure: format!("{name}: wait at {} pods/s, {measure}", theirs.rate),
        unit: "ms",
        goal,
        ours: of(ours),
        bound: Some(of(bound)),
    };
    let p50 = |steady: Steady| steady.p50_ms;
    let p99 = |steady: Steady| steady.p99_ms;
    [
        row("p50", Goal::None, p50, theirs),
        row("p99", Goal::Ratio(0.1), p99, theirs),
        row("p50, and without a decision", Goal::None, p50, least),
        row("p99, and without a decision", Goal::None, p99, least),
    ]
}

/// A cluster of its own, removed with it.
struct SchedulerCluster(Cluster);

impl Drop for SchedulerCluster {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("the cluster was not removed: {error:#}");
        }
    }
}

/// The scheduler's process; it ends with this.
struct SchedulerProcess(Child);

impl Drop for SchedulerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl SchedulerProcess {
    fn start(cluster: &Cluster, side: &SchedulerSide) -> Result<Self> {
        Self::start_with(cluster, side, &[])
    }

    fn start_with(cluster: &Cluster, side: &SchedulerSide, flags: &[&str]) -> Result<Self> {
        let mut cmd = cluster.control_command(&side.program)?;
        let config = cluster.layout().scheduler_config();
        cmd.arg(format!("--config={}", config.display())).args(flags);
        let log = cluster.layout().dir().join(format!("{}.log", side.name));
        cmd.stderr(fs::File::create(log)?);
        Ok(Self(cmd.spawn()?))
    }

    /// Waits until it has nothing left to do, such as events to write.
    fn wait_until_idle(&self) -> Result<()> {
        let begun = Instant::now();
        let mut before = self.used()?.0;
        loop {
            std::thread::sleep(IDLE_FOR);
            let now = self.used()?.0;
            if now - before <= IDLE_SECONDS {
                return Ok(());
            }
            ensure!(begun.elapsed() < BOUND_MAX, "the scheduler is always busy");
            before = now;
        }
    }

    /// Processor time in seconds, most memory in MiB. The command may have become the program.
    fn used(&self) -> Result<(f64, f64)> {
        let pid = self.0.id();
        let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?;
        let spent = Duration::from(clock_gettime(clock)?).as_secs_f64();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
        Ok((spent, kib.unwrap_or(0.0) / 1024.0))
    }
}

/// A new cluster without a scheduler.
fn new_cluster(election: &Value) -> Result<SchedulerCluster> {
    let own = SchedulerCluster(Cluster::of_this_run("sched")?);
    own.0.down()?;
    own.0.up_for_scheduler(&json!({
        "leaderElection": election,
        "clientConnection": {"qps": 5000, "burst": 5000},
    }))?;
    Ok(own)
}

/// Configuration without other schedulers.
fn alone() -> Value {
    json!({"leaderElect": false})
}

/// Measures one side; `rate` is that of the later pods, by default half of its own throughput.
fn measure(
    side: &SchedulerSide,
    workload: Workload,
    nodes: usize,
    pods: usize,
    rate: Option<usize>,
) -> Result<WorkloadResults> {
    let own = new_cluster(&alone())?;
    let cluster = &own.0;
    let pods = if workload == Workload::Preemption { PREEMPTIONS } else { pods };
    with_client(cluster, async |client| {
        set_up(&client, nodes).await?;
        if workload == Workload::Preemption {
            fill(&client, nodes).await?;
        }
        Ok(())
    })?;
    let start = start_alone(cluster, side)?;
    with_client(cluster, async |client| create_pods(&client, workload, "p", pods, None).await)?;
    let running = SchedulerProcess::start(cluster, side)?;
    with_client(cluster, async |client| all_bound(&client).await)?;
    let (cpu, resident_mib) = running.used()?;
    let log = Audit::read(&cluster.layout().audit_log())?;
    let bound: Vec<f64> = log.bound.values().copied().collect();
    let pods = (0..pods).filter(|at| fits(workload, *at)).count();
    ensure!(bound.len() >= pods, "{} of {pods} bindings are in the audit log", bound.len());
    let spread = Spread::of(bound.iter().copied());
    // The first victim is patched or deleted before anything is bound.
    let begun = log.first_told.filter(|_| workload == Workload::Preemption);
    let took = spread.max() - begun.unwrap_or(spread.min());
    let mut found = WorkloadResults {
        start_ms: start * 1e3,
        cpu_ms_a_pod: (cpu - start) * 1e3 / pods as f64,
        pods_a_second: pods as f64 / took,
        resident_mib,
        ..WorkloadResults::default()
    };
    if workload == Workload::Basic {
        running.wait_until_idle()?;
        found.steady = Some(steady(cluster, rate.unwrap_or(found.pods_a_second as usize / 2))?);
    }
    Ok(found)
}

/// CPU seconds of a start where no pod waits.
fn start_alone(cluster: &Cluster, side: &SchedulerSide) -> Result<f64> {
    let running = SchedulerProcess::start(cluster, side)?;
    running.wait_until_idle()?;
    Ok(running.used()?.0)
}

/// Pods come at a steady rate, and a side binds them.
fn steady(cluster: &Cluster, rate: usize) -> Result<Steady> {
    with_client(cluster, async |client| {
        create_pods(&client, Workload::Basic, "s", STEADY_PODS, Some(rate)).await?;
        all_bound(&client).await
    })?;
    let log = Audit::read(&cluster.layout().audit_log())?;
    let waits = log.created.iter().filter(|(name, _)| name.starts_with('s'));
    let waits = waits.filter_map(|(name, at)| Some((log.bound.get(name)? - at) * 1e3));
    let waits = Spread::of(waits);
    Ok(Steady { rate, p50_ms: waits.p50(), p99_ms: waits.at(0.99) })
}

/// The same with a client that binds pods to the nodes in turn, on a cluster without the pods that
/// the schedulers have bound before.
fn undecided(nodes: usize, rate: usize) -> Result<Steady> {
    let own = new_cluster(&alone())?;
    let cluster = &own.0;
    with_client(cluster, async |client| set_up(&client, nodes).await)?;
    std::thread::scope(|scope| {
        let node = |at: usize| format!("n{:05}", at % nodes);
        let binds = scope.spawn(move || {
            with_client(cluster, async |client| {
                binder::bind(&client, "bench", node, STEADY_PODS).await
            })
        });
        let steady = steady(cluster, rate);
        binds.join().map_err(|_| anyhow::anyhow!("the binder panicked"))??;
        steady
    })
}

/// When pods were created and bound, in seconds, by name.
struct Audit {
    created: HashMap<String, f64>,
    bound: HashMap<String, f64>,
    /// Time of the first patch or deletion of a pod.
    first_told: Option<f64>,
}

impl Audit {
    fn read(path: &Path) -> Result<Self> {
        let mut found = Self { created: HashMap::new(), bound: HashMap::new(), first_told: None };
        for line in fs::read_to_string(path)?.lines() {
            let entry: Value = serde_json::from_str(line).context("a line of the audit log")?;
            let of = &entry["objectRef"];
            let at: Timestamp = entry["stageTimestamp"].as_str().unwrap_or_default().parse()?;
            let at = at.as_microsecond() as f64 / 1e6;
            if of["resource"] == "pods" && (entry["verb"] == "patch" || entry["verb"] == "delete") {
                found.first_told.get_or_insert(at);
            }
            let is_done = entry["verb"] == "create" && entry["responseStatus"]["code"] == 201;
            if of["resource"] != "pods" || !is_done {
                continue;
            }
            let name = of["name"].as_str().unwrap_or_default().to_owned();
            let all = match of["subresource"].as_str() {
                Some("binding") => &mut found.bound,
                _ => &mut found.created,
            };
            all.insert(name, at);
        }
        Ok(found)
    }
}

fn with_client<T: Send>(
    cluster: &Cluster,
    work: impl AsyncFnOnce(kube::Client) -> Result<T> + Send,
) -> Result<T> {
    let path = cluster.layout().kubeconfig("admin");
    cluster.in_control_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let access = Access::read(&path)?;
            let user_agent = "bench".to_owned();
            work(access.client(ClientOptions { user_agent, ..Default::default() })).await
        })
    })?
}

async fn create<T>(api: &Api<T>, object: Value) -> Result<()>
where
    T: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object = serde_json::from_value(object).context("an object of its kind")?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

async fn set_up(client: &kube::Client, nodes: usize) -> Result<()> {
    create::<Namespace>(&Api::all(client.clone()), json!({"metadata": {"name": "bench"}})).await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "bench");
    create(&accounts, json!({"metadata": {"name": "default"}})).await?;
    let all: Api<Node> = Api::all(client.clone());
    let made = stream::iter(0..nodes).map(|at| {
        let all = all.clone();
        async move {
            let name = format!("n{at:05}");
            let amounts = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
            let node = json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
                    "topology.kubernetes.io/zone": format!("z{}", at % 10)}},
                "status": {"capacity": amounts, "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}]},
            });
            create(&all, node).await?;
            // The API server gives new nodes a taint.
            let free = Patch::Merge(json!({"spec": {"taints": []}}));
            all.patch(&name, &PatchParams::default(), &free).await?;
            Ok(())
        }
    });
    made.buffer_unordered(AT_ONCE).try_collect().await
}

/// A pod of low priority on each node, which fills it.
async fn fill(client: &kube::Client, nodes: usize) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    create(&classes, json!({"metadata": {"name": "high"}, "value": 1000})).await?;
    let all: Api<Pod> = Api::namespaced(client.clone(), "bench");
    let made = stream::iter(0..nodes).map(|at| {
        let all = all.clone();
        async move {
            let mut low = pod(Workload::Preemption, &format!("low{at:05}"), at);
            low["spec"]["nodeName"] = format!("n{at:05}").into();
            if let Some(spec) = low["spec"].as_object_mut() {
                spec.remove("priorityClassName");
            }
            create(&all, low).await
        }
    });
    made.buffer_unordered(AT_ONCE).try_collect().await
}

/// Returns whether a node fits this pod.
fn fits(workload: Workload, at: usize) -> bool {
    workload != Workload::Misfits || at.is_multiple_of(3)
}

fn pod(workload: Workload, name: &str, at: usize) -> Value {
    let group = format!("g{}", at % 20);
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "registry.test/app:1",
            "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}],
    });
    let selector = json!({"matchLabels": {"group": group}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    match workload {
        Workload::Misfits if !fits(workload, at) => {
            spec["nodeSelector"] = json!({"nowhere": "at-all"});
        }
        Workload::Basic | Workload::Misfits => {}
        Workload::Preemption => {
            spec["containers"][0]["resources"]["requests"]["cpu"] = "3".into();
            spec["priorityClassName"] = "high".into();
            // No kubelet runs it, so it must go at once.
            spec["terminationGracePeriodSeconds"] = 0.into();
        }
        Workload::Spread => {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
        }
        Workload::AntiAffinity => {
            let term = json!([{"topologyKey": "kubernetes.io/hostname",
                "labelSelector": selector}]);
            spec["affinity"] = json!({"podAntiAffinity": {required: term}});
        }
        Workload::Affinity => {
            let term = json!([{"topologyKey": "topology.kubernetes.io/zone",
                "labelSelector": selector}]);
            spec["affinity"] = json!({"podAffinity": {required: term}});
        }
    }
    let fits = fits(workload, at).to_string();
    let labels = json!({"group": group, "fits": fits});
    json!({"metadata": {"name": name, "namespace": "bench", "labels": labels},
        "spec": spec})
}

/// Creates pods as fast as possible, or at a rate a second.
async fn create_pods(
    client: &kube::Client,
    workload: Workload,
    prefix: &str,
    count: usize,
    rate: Option<usize>,
) -> Result<()> {
    let all: Api<Pod> = Api::namespaced(client.clone(), "bench");
    let begun = Instant::now();
    let made = stream::iter(0..count).map(|at| {
        let all = all.clone();
        let name = format!("{prefix}{at:05}");
        async move {
            if let Some(rate) = rate {
                let due = begun + Duration::from_secs_f64(at as f64 / rate as f64);
                tokio::time::sleep_until(due.into()).await;
            }
            create(&all, pod(workload, &name, at)).await
        }
    });
    made.buffer_unordered(AT_ONCE).try_collect().await
}

async fn all_bound(client: &kube::Client) -> Result<()> {
    let all: Api<Pod> = Api::namespaced(client.clone(), "bench");
    let one = ListParams::default().fields("spec.nodeName=").labels("fits=true").limit(1);
    let begun = Instant::now();
    while !all.list(&one).await?.items.is_empty() {
        ensure!(begun.elapsed() < BOUND_MAX, "pods are left without a node");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
