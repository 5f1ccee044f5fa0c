//! Our controller manager compared with kube-controller-manager on a real API server: memory, idle
//! cost, time until a new leader acts, and cost of rollouts and deletions.
//!
//! Each side has a cluster of its own with the same objects, runs alone, and has the same loops and
//! flags; kube-controller-manager is built alone. CPU time and memory are those of its process,
//! writes those of the audit log, times those of a client that polls every 20 ms. A kubelet is
//! simulated. It prints the results of each part at once, so that a run that is ended early shows
//! them. Sizes: `PINTLE_BENCH_PODS`, `_DEPLOYMENTS`, `_SERVICES`, `_SECONDS` (idle), `_ROLLOUT`
//! (Deployments) and `_REPLICAS`, `_BURST`, `_OBJECTS` (of the namespace), `_CONFIG_MAPS` and
//! `_CONFIG_MAP_KIB`; `PINTLE_CONTROLLERS` names another program, `PINTLE_BENCH_SIDE` measures
//! `ours` or `theirs` alone.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hyper::Method;
use pintle_api::{Access, ClientOptions};
use pintle_system_benches::table::{Goal, Row};
use pintle_system_benches::{bench_report, count, release};
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::upstream::Program;

#[path = "controllers/manager.rs"]
mod manager;
#[path = "controllers/objects.rs"]
mod objects;
#[path = "controllers/writes.rs"]
mod writes;

use manager::{ManagerProcess, ManagerSide, Memory};
use objects::{Amounts, call, call_all, wait_for};
use writes::{LogMark, Writes};

/// Duration, CPU and memory of a step.
#[derive(Clone, Debug, Default)]
struct Took {
    cpu: f64,
    wall: f64,
    writes: Writes,
}

/// Results of one side.
#[derive(Clone, Debug, Default)]
struct SideResults {
    settled: Memory,
    idle_cpu: f64,
    start: Took,
    rollout: Took,
    burst: Took,
    burst_mib: f64,
    namespace: Took,
    small_maps: Memory,
    large_maps: Memory,
}

fn main() -> Result<()> {
    if let Ok(one) = std::env::var("PINTLE_BENCH_SIDE") {
        return measure(&side(&one)?).map(drop);
    }
    let theirs = measure(&side("theirs")?)?;
    let ours = measure(&side("ours")?)?;
    bench_report::show("controllers_cluster", "kube-controller-manager", &rows(&ours, &theirs))?;
    Ok(())
}

fn side(name: &str) -> Result<ManagerSide> {
    match name {
        "ours" => Ok(ManagerSide {
            name: "ours",
            program: release("pintle-controllers", "PINTLE_CONTROLLERS")?,
        }),
        "theirs" => {
            Ok(ManagerSide { name: "theirs", program: Program::ControllerManager.ensure()? })
        }
        other => bail!("there is no side {other:?}: it is ours or theirs"),
    }
}

fn rows(ours: &SideResults, theirs: &SideResults) -> Vec<Row> {
    let row = |measure: &str, unit, goal, of: &dyn Fn(&SideResults) -> f64| Row {
        measure: measure.to_owned(),
        unit,
        goal,
        ours: of(ours),
        bound: Some(of(theirs)),
    };
    let all = |found: &SideResults| found.rollout.writes.values().sum::<usize>() as f64;
    let mut rows = vec![
        row("memory at rest", "MiB", Goal::Ratio(0.125), &|f| f.settled.resident),
        row("memory at rest, anonymous", "MiB", Goal::None, &|f| f.settled.anonymous),
        row("idle: CPU", "s", Goal::Ratio(0.1), &|f| f.idle_cpu),
        row("start: until it acts", "s", Goal::Ratio(0.333), &|f| f.start.wall),
        row("start: CPU", "s", Goal::None, &|f| f.start.cpu),
        row("rollout: CPU", "s", Goal::Ratio(0.2), &|f| f.rollout.cpu),
        row("rollout: time", "s", Goal::None, &|f| f.rollout.wall),
        row("rollout: writes", "", Goal::Ratio(1.0), &all),
    ];
    for verb in ["create", "update", "patch", "delete"] {
        let of = |f: &SideResults| f.rollout.writes.get(verb).copied().unwrap_or(0) as f64;
        rows.push(row(&format!("rollout: writes, {verb}"), "", Goal::None, &of));
    }
    rows.extend([
        row("burst: CPU", "s", Goal::None, &|f| f.burst.cpu),
        row("burst: time", "s", Goal::None, &|f| f.burst.wall),
        row("burst: memory above that at rest", "MiB", Goal::None, &|f| f.burst_mib),
        row("namespace: time", "s", Goal::Ratio(0.7), &|f| f.namespace.wall),
        row("namespace: CPU", "s", Goal::None, &|f| f.namespace.cpu),
        row("large ConfigMaps: memory", "MiB", Goal::None, &|f| f.large_maps.resident),
        Row {
            measure: "large ConfigMaps: memory, and ours with small ones".to_owned(),
            unit: "MiB",
            goal: Goal::Ratio(1.1),
            ours: ours.large_maps.resident,
            bound: Some(ours.small_maps.resident),
        },
    ]);
    rows
}

/// A cluster of its own, removed with it.
struct ControllersCluster(Cluster);

impl Drop for ControllersCluster {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            eprintln!("the cluster was not removed: {error:#}");
        }
    }
}

impl ControllersCluster {
    fn new() -> Result<Self> {
        let own = Self(Cluster::of_this_run("controllers")?);
        own.0.down()?;
        own.0.up_without_nodes("controllers")?;
        Ok(own)
    }

    fn run<T: Send>(&self, work: impl AsyncFnOnce(&kube::Client) -> Result<T> + Send) -> Result<T> {
        let path = self.0.layout().kubeconfig("admin");
        self.0.in_control_network(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let options = ClientOptions { user_agent: "bench".into(), ..Default::default() };
                work(&Access::read(&path)?.client(options)).await
            })
        })?
    }

    /// Until the manager is at rest again, what `work` costs it.
    fn cost(
        &self,
        manager: &ManagerProcess,
        work: impl AsyncFnOnce(&kube::Client) -> Result<()> + Send,
    ) -> Result<Took> {
        let mark = LogMark::at_end(&self.0.layout().audit_log())?;
        let (before, begun) = (manager.rest()?, Instant::now());
        self.run(work)?;
        let wall = begun.elapsed().as_secs_f64();
        let cpu = manager.rest()? - before;
        Ok(Took { cpu, wall, writes: mark.writes()? })
    }
}

fn measure(side: &ManagerSide) -> Result<SideResults> {
    let own = ControllersCluster::new()?;
    let mut found = SideResults::default();
    let amounts = Amounts {
        pods: count("PINTLE_BENCH_PODS", 10_000),
        deployments: count("PINTLE_BENCH_DEPLOYMENTS", 500),
        services: count("PINTLE_BENCH_SERVICES", 1000),
    };
    own.run(async |client| objects::fill(client, amounts).await)?;
    // The first sync of these objects is not part of a start.
    ManagerProcess::start(&own.0, side)?.rest()?;
    let manager = start(&own, side, &mut found.start)?;
    found.settled = manager.memory()?;
    let idle = Duration::from_secs(count("PINTLE_BENCH_SECONDS", 60) as u64);
    let before = manager.cpu()?;
    std::thread::sleep(idle);
    found.idle_cpu = manager.cpu()? - before;
    println!("{}: {found:.3?}", side.name);
    found.rollout = rollout(&own, &manager)?;
    println!("{}: rollout: {:.3?}", side.name, found.rollout);
    (found.burst, found.burst_mib) = burst(&own, &manager)?;
    println!("{}: burst: {:.3?}, {:.1} MiB", side.name, found.burst, found.burst_mib);
    found.namespace = namespace(&own, &manager)?;
    println!("{}: namespace: {:.3?}", side.name, found.namespace);
    drop(manager);
    found.small_maps = config_maps(&own, side, 1)?;
    found.large_maps = config_maps(&own, side, count("PINTLE_BENCH_CONFIG_MAP_KIB", 512))?;
    println!("{}: maps: {:.1?} {:.1?}", side.name, found.small_maps, found.large_maps);
    Ok(found)
}

/// Starts a manager after a namespace and a Deployment were created that no manager has seen.
fn start(own: &ControllersCluster, side: &ManagerSide, took: &mut Took) -> Result<ManagerProcess> {
    let path = "/apis/apps/v1/namespaces/start/deployments";
    own.run(async |client| {
        let body = json!({"metadata": {"name": "start"}});
        call(client, Method::POST, "/api/v1/namespaces", body).await?;
        call(client, Method::POST, path, objects::deployment("d", 0)).await
    })?;
    let manager = ManagerProcess::start(&own.0, side)?;
    own.run(async |client| {
        let space = "/api/v1/namespaces/start";
        for name in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
            wait_for(client, &format!("{space}/{name}"), |found| !found.is_null()).await?;
        }
        wait_for(client, &format!("{path}/d"), objects::is_rolled_out).await
    })?;
    took.wall = manager.begun.elapsed().as_secs_f64();
    took.cpu = manager.rest()?;
    Ok(manager)
}

/// Deployments with pods get a new template, all at once.
fn rollout(own: &ControllersCluster, manager: &ManagerProcess) -> Result<Took> {
    let (sets, replicas) = (count("PINTLE_BENCH_ROLLOUT", 100), count("PINTLE_BENCH_REPLICAS", 20));
    let path = "/apis/apps/v1/namespaces/rollout/deployments";
    type Each<'a> = &'a dyn Fn(usize) -> (String, Value);
    let played = async |client: &kube::Client, method: Method, each: Each<'_>| {
        let work = async {
            call_all(client, method, sets, each).await?;
            objects::all_rolled_out(client, "rollout").await
        };
        tokio::select! {
            worked = work => worked,
            ended = objects::play_kubelet(client, "rollout") => ended,
        }
    };
    own.run(async |client| {
        objects::namespace(client, "rollout").await?;
        let create = |at| (path.to_owned(), objects::deployment(&format!("d{at}"), replicas));
        played(client, Method::POST, &create).await
    })?;
    own.cost(manager, async |client| {
        let change = |at| (format!("{path}/d{at}"), objects::new_template());
        played(client, Method::PATCH, &change).await
    })
}

/// Changes all Deployments of one namespace at once; returns the cost and the additional memory.
fn burst(own: &ControllersCluster, manager: &ManagerProcess) -> Result<(Took, f64)> {
    let sets = count("PINTLE_BENCH_BURST", 1000);
    let path = "/apis/apps/v1/namespaces/burst/deployments";
    own.run(async |client| {
        objects::namespace(client, "burst").await?;
        let create = |at| (path.to_owned(), objects::deployment(&format!("d{at}"), 0));
        call_all(client, Method::POST, sets, create).await?;
        objects::all_rolled_out(client, "burst").await
    })?;
    manager.rest()?;
    manager.forget_peak()?;
    let before = manager.peak()?;
    let took = own.cost(manager, async |client| {
        let change = |at| (format!("{path}/d{at}"), objects::new_template());
        call_all(client, Method::PATCH, sets, change).await?;
        objects::all_rolled_out(client, "burst").await
    })?;
    Ok((took, manager.peak()? - before))
}

/// A namespace with many objects is deleted.
fn namespace(own: &ControllersCluster, manager: &ManagerProcess) -> Result<Took> {
    let path = "/api/v1/namespaces/full";
    own.run(async |client| {
        objects::namespace(client, "full").await?;
        fill_maps(client, "full", count("PINTLE_BENCH_OBJECTS", 5000), 1).await
    })?;
    own.cost(manager, async |client| {
        call(client, Method::DELETE, path, Value::Null).await?;
        wait_for(client, path, Value::is_null).await.map(drop)
    })
}

/// Memory at rest of a manager that starts beside ConfigMaps of this size.
fn config_maps(own: &ControllersCluster, side: &ManagerSide, kib: usize) -> Result<Memory> {
    let space = format!("maps{kib}");
    own.run(async |client| {
        objects::namespace(client, &space).await?;
        fill_maps(client, &space, count("PINTLE_BENCH_CONFIG_MAPS", 1000), kib).await
    })?;
    let manager = ManagerProcess::start(&own.0, side)?;
    manager.rest()?;
    manager.memory()
}

async fn fill_maps(client: &kube::Client, space: &str, maps: usize, kib: usize) -> Result<()> {
    let text = "k".repeat(kib << 10);
    call_all(client, Method::POST, maps, |at| {
        let body = json!({"metadata": {"name": format!("m{at}")}, "data": {"text": text}});
        (format!("/api/v1/namespaces/{space}/configmaps"), body)
    })
    .await
}
