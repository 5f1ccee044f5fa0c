//! Bursts of static pods beside the kubelet: time until they run, and CPU of the process meanwhile.
//!
//! Both run alone on a node without an API server, in turn, with the same configuration, and are
//! asked for `/pods` twenty times a second, which is also how a start is seen. Each measurement has
//! a new containerd. The round before the counted ones fills the caches of the host.
//! `PINTLE_BENCH_ROUNDS` (5) and `PINTLE_BENCH_PODS` (50) set the size; `PINTLE_KUBELET` names
//! another program than the kubelet built alone.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pintle_system_benches::load::Cpu;
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, count, ms, names, now, put_pod, rounds, seen};
use pintle_testbed::node::agent_binary;
use pintle_testbed::{LONG, Options, TestNode};
use serde_json::json;
use xtask::upstream::Program;

const ASK_EVERY: Duration = Duration::from_millis(50);
const MEDIAN_GOAL: f64 = 0.7;
const LAST_GOAL: f64 = 1.0;

/// One burst.
struct Burst {
    first: f64,
    median: f64,
    last: f64,
    /// Milliseconds of CPU for each pod.
    cpu: f64,
}

/// The bursts of one side.
#[derive(Default)]
struct Bursts(Vec<Burst>);

impl Bursts {
    fn p50(&self, of: impl Fn(&Burst) -> f64) -> f64 {
        Spread::of(self.0.iter().map(of)).p50()
    }
}

fn main() -> Result<()> {
    let kubelet = match std::env::var_os("PINTLE_KUBELET") {
        Some(path) => path.into(),
        None => Program::Kubelet.ensure()?,
    };
    let pods = count("PINTLE_BENCH_PODS", 50);
    let (mut ours, mut theirs) = (Bursts::default(), Bursts::default());
    for round in 0..=rounds(5) {
        let mut sides = [("ours", agent_binary(), &mut ours), ("kubelet", &kubelet, &mut theirs)];
        if round % 2 == 1 {
            sides.reverse();
        }
        for (name, program, bursts) in sides {
            let burst = burst(program, pods).with_context(|| format!("burst of {name}"))?;
            let Burst { first, median, last, cpu } = burst;
            println!(
                "round {round}, {name}: first {first:.0}, median {median:.0}, last {last:.0} ms, \
                 {cpu:.1} ms of CPU a pod"
            );
            if round > 0 {
                bursts.0.push(burst);
            }
        }
    }
    let row = |measure: &str, goal, of: fn(&Burst) -> f64| Row {
        measure: format!("{pods} static pods at once: {measure}"),
        unit: "ms",
        goal,
        ours: ours.p50(of),
        bound: Some(theirs.p50(of)),
    };
    let rows = [
        row("first running", Goal::None, |burst| burst.first),
        row("median running", Goal::Ratio(MEDIAN_GOAL), |burst| burst.median),
        row("last running", Goal::Ratio(LAST_GOAL), |burst| burst.last),
        row("CPU of a start, /pods asked 20/s", Goal::None, |burst| burst.cpu),
    ];
    bench_report::show("node_static", "kubelet", &rows)?;
    Ok(())
}

/// Starts `pods` on a new node of `program`.
fn burst(program: &Path, pods: usize) -> Result<Burst> {
    // The users' default: tests read the folder of manifests each second.
    let config = json!({"fileCheckFrequency": "20s"});
    let program = Some(program.to_owned());
    let node = TestNode::start(Options { config, program, ..Options::default() });
    // The first answer comes from an agent that has found its runtime.
    seen::watch(&node, ASK_EVERY, LONG, |_, _| true).context("/pods is answered")?;
    let cpu = Cpu::of(node.agent_pid())?;
    let begin = now();
    names("pod", pods).iter().for_each(|name| put_pod(&node, name));
    let mut running = HashMap::new();
    seen::watch(&node, ASK_EVERY, LONG * 5, |found, at| {
        for pod in found.iter().filter(|pod| pod.running.is_some()) {
            running.entry(pod.name.clone()).or_insert(at);
        }
        running.len() == pods
    })
    .context("all pods run")?;
    let cpu = (Cpu::of(node.agent_pid())? - cpu).seconds() * 1000.0 / pods as f64;
    let delays = Spread::of(running.into_values().map(|at| ms(begin, at)));
    Ok(Burst { first: delays.min(), median: delays.p50(), last: delays.max(), cpu })
}
