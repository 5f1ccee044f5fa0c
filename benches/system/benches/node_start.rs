//! Time that the agent adds to the start of a pod: from the manifest in its folder to the running
//! container, compared with raw CRI calls with equal requests.
//!
//! One pod: rounds of both sides in turn. Fifty at once: both sides with the same number of calls
//! at once. The end is the runtime's own stamp of the container's start on both sides; the time at
//! which `/pods` shows the pod as running is reported beside it. Goal: p50 of the ratio <= 1.10.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use pintle_cri::v1;
use pintle_system_benches::raw::{self, RawRequests, RawStarted, TurnUnit};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{Stamp, bench_report, ms, names, now, parallel, put_pod, rounds, seen};
use pintle_testbed::manifest::{container_id, is_running};
use pintle_testbed::{LONG, RawCri, TestNode, until};

const RATIO_GOAL: f64 = 1.10;
const BURST_PODS: usize = 50;
/// Rare enough to cost nothing during a start.
const ASK_EVERY: Duration = Duration::from_millis(10);
const ASK_BURST_EVERY: Duration = Duration::from_millis(50);
/// Pause between rounds, so that one does not pay for the other's cleanup.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    let node = TestNode::usual();
    let cri = RawCri::connect(&node)?;
    put_pod(&node, "template");
    let pod = node.pod_until("template", "runs", |pod| is_running(pod, "main"));
    let template = RawRequests::of(&cri, &node, &container_id(&pod, "main"))?;
    let mut rows = one_at_a_time(&node, &cri, &template)?;
    rows.extend(at_once(&node, &cri, &template)?);
    bench_report::show("node_start", "lower bound", &rows)?;
    Ok(())
}

/// Delays of started pods in milliseconds.
struct Delays {
    started: Vec<f64>,
    visible: Vec<f64>,
}

fn one_at_a_time(node: &TestNode, cri: &RawCri, template: &RawRequests) -> Result<Vec<Row>> {
    let (mut ours, mut visible, mut bound) = (Vec::new(), Vec::new(), Vec::new());
    for name in names("one", rounds(15)) {
        std::thread::sleep(PAUSE);
        let begin = now();
        let raw = raw::start_all(cri, template, &[format!("raw-{name}")], TurnUnit::Call, 1)?;
        bound.push(ms(begin, raw::started_at(cri, &raw[0].container_id)?));
        std::thread::sleep(PAUSE);
        let delays = agent_starts(node, cri, std::slice::from_ref(&name), ASK_EVERY)?;
        ours.extend(delays.started);
        visible.extend(delays.visible);
        println!(
            "one: raw {:.1} ms, agent {:.1} ms",
            bound.last().unwrap_or(&0.0),
            ours.last().unwrap_or(&0.0)
        );
        raw::remove_all(cri, &raw, 1)?;
        remove(node, cri, &[name])?;
    }
    let (ours, visible, bound) = (Spread::of(ours), Spread::of(visible), Spread::of(bound));
    let row = |measure: &str, goal, ours| Row {
        measure: measure.to_owned(),
        unit: "ms",
        goal,
        ours,
        bound: Some(bound.p50()),
    };
    Ok(vec![
        row("one pod: manifest to container started, p50", Goal::Ratio(RATIO_GOAL), ours.p50()),
        row("one pod: manifest to Running on /pods, p50", Goal::None, visible.p50()),
        Row { bound: Some(bound.min()), ..row("one pod: fastest start", Goal::None, ours.min()) },
    ])
}

/// Measurements of one side in all rounds of a burst.
#[derive(Default)]
struct Bursts {
    first: Vec<f64>,
    median: Vec<f64>,
    last: Vec<f64>,
}

impl Bursts {
    fn add(&mut self, who: &str, delays: Vec<f64>) {
        let delays = Spread::of(delays);
        let (first, median, last) = (delays.min(), delays.p50(), delays.max());
        println!(
            "{BURST_PODS} at once, {who}: first {first:.0}, median {median:.0}, last {last:.0} ms"
        );
        self.first.push(first);
        self.median.push(median);
        self.last.push(last);
    }

    fn p50(&self) -> [f64; 3] {
        [&self.first, &self.median, &self.last].map(|all| Spread::of(all.iter().copied()).p50())
    }
}

fn at_once(node: &TestNode, cri: &RawCri, template: &RawRequests) -> Result<Vec<Row>> {
    let (mut ours, mut visible) = (Bursts::default(), Bursts::default());
    let (mut calls, mut pods) = (Bursts::default(), Bursts::default());
    for round in 0..rounds(3) {
        calls.add("raw, a turn a call", burst_raw(cri, template, round, TurnUnit::Call)?);
        let names = names(&format!("burst-{round}"), BURST_PODS);
        let delays = agent_starts(node, cri, &names, ASK_BURST_EVERY)?;
        ours.add("agent", delays.started);
        visible.add("agent on /pods", delays.visible);
        remove(node, cri, &names)?;
        pods.add("raw, a turn a pod", burst_raw(cri, template, round, TurnUnit::Pod)?);
    }
    let mut rows = Vec::new();
    let against = [("", calls.p50(), true), (" (bound: a turn a pod)", pods.p50(), false)];
    for (text, bound, is_goal) in against {
        for (index, which) in ["first", "median", "last"].into_iter().enumerate() {
            let has_goal = is_goal && which == "median";
            rows.push(Row {
                measure: format!("{BURST_PODS} at once: {which} started{text}"),
                unit: "ms",
                goal: if has_goal { Goal::Ratio(RATIO_GOAL) } else { Goal::None },
                ours: ours.p50()[index],
                bound: Some(bound[index]),
            });
        }
    }
    let [_, median, last] = visible.p50();
    for (which, ours) in [("median", median), ("last", last)] {
        let measure = format!("{BURST_PODS} at once: {which} Running on /pods");
        rows.push(Row { measure, unit: "ms", goal: Goal::None, ours, bound: None });
    }
    Ok(rows)
}

fn burst_raw(
    cri: &RawCri,
    template: &RawRequests,
    round: usize,
    turn: TurnUnit,
) -> Result<Vec<f64>> {
    let names = names(&format!("raw-{round}"), BURST_PODS);
    std::thread::sleep(PAUSE);
    let begin = now();
    let raw = raw::start_all(cri, template, &names, turn, parallel())?;
    let ids = raw.iter().map(|pod| pod.container_id.as_str());
    let delays = delays_of(cri, begin, ids)?;
    raw::remove_all(cri, &raw, parallel())?;
    wait_for_sandboxes(cri, &raw);
    Ok(delays)
}

fn delays_of<'a>(
    cri: &RawCri,
    begin: Stamp,
    ids: impl Iterator<Item = &'a str>,
) -> Result<Vec<f64>> {
    ids.map(|id| Ok(ms(begin, raw::started_at(cri, id)?))).collect()
}

/// Writes the manifests and waits until every pod shows as running.
fn agent_starts(
    node: &TestNode,
    cri: &RawCri,
    names: &[String],
    ask_every: Duration,
) -> Result<Delays> {
    std::thread::sleep(PAUSE);
    let begin = now();
    names.iter().for_each(|name| put_pod(node, name));
    let mut shown: HashMap<String, (Stamp, String)> = HashMap::new();
    seen::watch(node, ask_every, LONG, |pods, at| {
        for pod in pods.iter().filter(|pod| names.contains(&pod.name)) {
            if let Some(id) = &pod.running {
                shown.entry(pod.name.clone()).or_insert_with(|| (at, id.clone()));
            }
        }
        shown.len() == names.len()
    })
    .context("the pods run")?;
    let started = delays_of(cri, begin, shown.values().map(|(_, id)| id.as_str()))?;
    let visible = shown.values().map(|(at, _)| ms(begin, *at)).collect();
    Ok(Delays { started, visible })
}

/// Removes the manifests and waits until the runtime has nothing of the pods.
fn remove(node: &TestNode, cri: &RawCri, names: &[String]) -> Result<()> {
    names.iter().for_each(|name| node.remove(&format!("{name}.json")));
    seen::watch(node, ASK_BURST_EVERY, LONG, |pods, _| {
        !pods.iter().any(|pod| names.contains(&pod.name))
    })
    .context("the pods are gone")?;
    until(LONG, "the agent's sandboxes are gone", || {
        let left = sandboxes(cri)?.len();
        anyhow::ensure!(left <= 1, "{left} sandboxes");
        Ok(())
    });
    Ok(())
}

fn wait_for_sandboxes(cri: &RawCri, pods: &[RawStarted]) {
    until(LONG, "the raw sandboxes are gone", || {
        let left = sandboxes(cri)?;
        anyhow::ensure!(!pods.iter().any(|pod| left.contains(&pod.sandbox_id)));
        Ok(())
    });
}

fn sandboxes(cri: &RawCri) -> Result<Vec<String>> {
    let request = v1::ListPodSandboxRequest { filter: None };
    let all = cri.block(cri.client.list_pod_sandbox(request))?;
    Ok(all.items.into_iter().map(|sandbox| sandbox.id).collect())
}
