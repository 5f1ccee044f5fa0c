//! Delay that a frozen shim of one pod causes for the restart of another pod's container.
//!
//! The frozen pod's container is killed, too, so that the agent calls that shim and hangs on it.
//! Then a container of a healthy pod is killed: the delay is from its kill to the runtime's own
//! stamp of the next start. The same without a frozen shim is the comparison. Each container is
//! killed once, so that none waits in a crash loop back-off. Goal: <= 2 s.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use pintle_cri::v1;
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, ms, names, now, put_pod, raw, rounds, seen};
use pintle_testbed::{LONG, RawCri, TestNode};
use xtask::node::process;

const GOAL_MS: f64 = 2000.0;
const ASK_EVERY: Duration = Duration::from_millis(20);
const START: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(180));
/// Between kills, and between the freeze and the first of them.
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let node = TestNode::usual();
    let cri = RawCri::connect(&node)?;
    // With and without a frozen shim; the last one's shim is frozen.
    let names = names("shim", 2 * rounds(10) + 1);
    names.iter().for_each(|name| put_pod(&node, name));
    let mut running = BTreeMap::new();
    seen::watch(&node, START.0, START.1, |pods, _| {
        running = pods.iter().filter_map(|p| Some((p.name.clone(), p.running.clone()?))).collect();
        running.len() == names.len()
    })
    .context("all pods run")?;
    let (frozen, others) = names.split_last().context("there are pods")?;
    let (before, during) = others.split_at(others.len() / 2);
    let id = |name: &String| running[name].as_str();
    let restarts = |names: &[String]| -> Result<Spread> {
        let took: Result<Vec<f64>> =
            names.iter().map(|name| restart(&node, &cri, name, id(name))).collect();
        Ok(Spread::of(took?))
    };
    let free = restarts(before)?;
    let sandbox = sandbox_of(&cri, id(frozen))?;
    let pid = node.container_pid(id(frozen)).context("the container has a process")?;
    node.signal_shim(&sandbox, Signal::SIGSTOP);
    process::signal(pid, Signal::SIGKILL);
    let stuck = restarts(during);
    node.signal_shim(&sandbox, Signal::SIGCONT);
    let stuck = stuck?;
    let row = |measure: &str, ours, bound| Row {
        measure: format!("another pod's shim is frozen: kill to started again, {measure}"),
        unit: "ms",
        goal: Goal::Limit(GOAL_MS),
        ours,
        bound: Some(bound),
    };
    bench_report::show(
        "node_shim",
        "none is frozen",
        &[row("p50", stuck.p50(), free.p50()), row("max", stuck.max(), free.max())],
    )?;
    Ok(())
}

/// Milliseconds from the kill of a pod's container to the start of its successor.
fn restart(node: &TestNode, cri: &RawCri, name: &str, id: &str) -> Result<f64> {
    thread::sleep(PAUSE);
    let pid = node.container_pid(id).context("the container has a process")?;
    let (begin, mut next) = (now(), None);
    process::signal(pid, Signal::SIGKILL);
    seen::watch(node, ASK_EVERY, LONG, |pods, _| {
        let pod = pods.iter().find(|pod| pod.name == name);
        next = pod.and_then(|pod| pod.running.clone()).filter(|running| running != id);
        next.is_some()
    })
    .with_context(|| format!("{name} runs again"))?;
    let took = ms(begin, raw::started_at(cri, &next.context("it runs")?)?);
    println!("{name}: started again after {took:.0} ms");
    Ok(took)
}

fn sandbox_of(cri: &RawCri, container_id: &str) -> Result<String> {
    let id = container_id.to_owned();
    let filter = Some(v1::ContainerFilter { id, ..Default::default() });
    let found = cri.block(cri.client.list_containers(v1::ListContainersRequest { filter }))?;
    let container = found.containers.into_iter().next();
    container.map(|found| found.pod_sandbox_id).with_context(|| format!("no {container_id}"))
}
