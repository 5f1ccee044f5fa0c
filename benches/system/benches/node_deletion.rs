//! Time that the agent adds to the end of many pods at once, from the removal of their manifests
//! on, compared with raw CRI calls that do the same as fast as the runtime allows.
//!
//! Two ends, both as the runtime lists them: when the last sandbox is no longer ready, which is
//! when a cluster would see the last pod go, and when the last is removed, which the agent delays
//! until no pod is being stopped or started. The bounds are StopPodSandbox, which kills without
//! grace, and RemovePodSandbox: all stops before the removals, or one pod after the other, with
//! several numbers of calls at a time; the fastest is the bound. Goal: <= 1.05 of it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pintle_cri::v1;
use pintle_system_benches::raw::{self, RawRequests, TurnUnit};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, count, ms, names, now, parallel, put_pod, rounds, seen};
use pintle_testbed::manifest::{container_id, is_running};
use pintle_testbed::{RawCri, TestNode};

const RATIO_GOAL: f64 = 1.05;
/// Raw calls at a time.
const PARALLEL: [usize; 2] = [8, 32];
const ASK_EVERY: Duration = Duration::from_millis(10);
const START: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(180));
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between sides, so that one does not pay for the other's cleanup.
const PAUSE: Duration = Duration::from_secs(3);
/// Of the pod that all raw ones are copies of.
const TEMPLATE: &str = "template";

fn main() -> Result<()> {
    let node = TestNode::usual();
    let cri = RawCri::connect(&node)?;
    put_pod(&node, TEMPLATE);
    let pod = node.pod_until(TEMPLATE, "runs", |pod| is_running(pod, "main"));
    let template = RawRequests::of(&cri, &node, &container_id(&pod, "main"))?;
    let pods = count("PINTLE_BENCH_PODS", 50);
    let (mut ours, mut bounds) = (Vec::new(), Vec::new());
    for round in 0..rounds(3) {
        let mut bound = Ends::NEVER;
        for (parallel, order) in PARALLEL.into_iter().flat_map(|n| ORDERS.map(|order| (n, order))) {
            let names = names(&format!("raw-{round}-{parallel}-{order:?}").to_lowercase(), pods);
            let ends = raw_ends(&cri, &template, &names, parallel, order)?;
            println!("raw, {parallel} at a time, {order:?}: {ends:.0?}");
            bound = bound.or_sooner(ends);
        }
        bounds.push(bound);
        let ends = agent_ends(&node, &cri, &names(&format!("gone-{round}"), pods))?;
        println!("agent: {ends:.0?}");
        ours.push(ends);
    }
    let row = |measure: &str, of: fn(&Ends) -> f64| Row {
        measure: format!("{pods} pods at once: {measure}"),
        unit: "ms",
        goal: Goal::Ratio(RATIO_GOAL),
        ours: Spread::of(ours.iter().map(of)).p50(),
        bound: Some(Spread::of(bounds.iter().map(of)).p50()),
    };
    let rows = [row("last stopped, p50", |e| e.stopped), row("last removed, p50", |e| e.removed)];
    bench_report::show("node_deletion", "lower bound", &rows)?;
    Ok(())
}

/// In which order raw calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    StopsFirst,
    PodByPod,
}

const ORDERS: [Order; 2] = [Order::StopsFirst, Order::PodByPod];

/// Milliseconds from the beginning until the last pod was stopped, and removed.
#[derive(Clone, Copy, Debug)]
struct Ends {
    stopped: f64,
    removed: f64,
}

impl Ends {
    const NEVER: Self = Self { stopped: f64::INFINITY, removed: f64::INFINITY };

    fn or_sooner(self, other: Self) -> Self {
        let (stopped, removed) = (self.stopped.min(other.stopped), self.removed.min(other.removed));
        Self { stopped, removed }
    }
}

fn raw_ends(
    cri: &RawCri,
    template: &RawRequests,
    names: &[String],
    at_a_time: usize,
    order: Order,
) -> Result<Ends> {
    let started = raw::start_all(cri, template, names, TurnUnit::Pod, parallel())?;
    thread::sleep(PAUSE);
    let (begin, mut stopped) = (now(), f64::INFINITY);
    if order == Order::StopsFirst {
        raw::stop_all(cri, &started, at_a_time)?;
        stopped = ms(begin, now());
    }
    raw::remove_all(cri, &started, at_a_time)?;
    Ok(Ends { stopped, removed: ms(begin, now()) })
}

fn agent_ends(node: &TestNode, cri: &RawCri, names: &[String]) -> Result<Ends> {
    names.iter().for_each(|name| put_pod(node, name));
    seen::watch(node, START.0, START.1, |pods, _| {
        pods.iter().filter(|pod| pod.running.is_some()).count() > names.len()
    })
    .context("all pods run")?;
    thread::sleep(PAUSE);
    let begin = now();
    names.iter().for_each(|name| node.remove(&format!("{name}.json")));
    let ready = Some(v1::PodSandboxState::SandboxReady);
    let [stopped, removed] = [ready, None].map(|state| -> Result<f64> {
        let limit = Instant::now() + LIMIT;
        // The template stays.
        while sandboxes(cri, state)? > 1 {
            anyhow::ensure!(Instant::now() < limit, "sandboxes are left");
            thread::sleep(ASK_EVERY);
        }
        Ok(ms(begin, now()))
    });
    Ok(Ends { stopped: stopped?, removed: removed? })
}

/// How many the runtime lists, of one state or of all.
fn sandboxes(cri: &RawCri, state: Option<v1::PodSandboxState>) -> Result<usize> {
    let state = state.map(|state| v1::PodSandboxStateValue { state: state.into() });
    let filter = Some(v1::PodSandboxFilter { state, ..Default::default() });
    let listed = cri.client.list_pod_sandbox(v1::ListPodSandboxRequest { filter });
    Ok(cri.block(listed)?.items.len())
}
