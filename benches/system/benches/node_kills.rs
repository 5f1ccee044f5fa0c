//! Thirty of a hundred containers are killed at once: delay from the runtime's own report of an end
//! to `/pods`.
//!
//! The runtime's report is the stamp in its own container event, taken from a second stream beside
//! the agent's. `/pods` is polled in a tight loop; the stamp of an answer is taken when it has
//! arrived. The pods restart meanwhile, as they would on any node. Every round kills other
//! containers, so that none waits in a crash loop back-off. Goals: p50 <= 50 ms, max <= 150 ms.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use pintle_cri::{Client, Deadlines, v1};
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{Stamp, bench_report, ms, names, now, put_pod, rounds, seen};
use pintle_testbed::{LONG, TestNode};
use tokio::runtime::Builder;
use xtask::node::process;

const PODS: usize = 100;
const KILLED: usize = 30;
/// As many rounds as find enough pods that were not killed yet.
const ROUNDS_MAX: usize = PODS / KILLED;
const P50_GOAL_MS: f64 = 50.0;
const MAX_GOAL_MS: f64 = 150.0;
const ASK_EVERY: Duration = Duration::from_millis(2);
const START_EVERY: Duration = Duration::from_millis(200);
/// A hundred pods on two busy cores.
const START_LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(3);

fn main() -> Result<()> {
    let node = TestNode::usual();
    let names = names("kill", PODS);
    names.iter().for_each(|name| put_pod(&node, name));
    let mut running = HashMap::new();
    seen::watch(&node, START_EVERY, START_LIMIT, |pods, _| {
        running = pods.iter().filter_map(|p| Some((p.name.clone(), p.running.clone()?))).collect();
        running.len() == PODS
    })
    .context("all pods run")?;
    let ends = follow_ends(&node);
    let (mut after_runtime, mut after_kill, mut all_back) = (vec![], vec![], vec![]);
    let (mut worst, mut runtime_after_kill) = (Vec::new(), Vec::new());
    for chosen in names.chunks_exact(KILLED).take(rounds(ROUNDS_MAX)) {
        thread::sleep(PAUSE);
        let ids: Vec<String> = chosen.iter().map(|name| running[name].clone()).collect();
        let round = kill_at_once(&node, &ids)?;
        let reported = reports(&ends, &ids)?;
        let delay = |id: &String| ms(reported[id], round.shown[id]);
        let delays = Spread::of(ids.iter().map(delay));
        println!(
            "{KILLED} kills: p50 {:.1}, max {:.1} ms after the runtime's report",
            delays.p50(),
            delays.max()
        );
        worst.push(delays.max());
        after_runtime.extend(ids.iter().map(delay));
        after_kill.extend(ids.iter().map(|id| ms(round.begin, round.shown[id])));
        runtime_after_kill.extend(ids.iter().map(|id| ms(round.begin, reported[id])));
        all_back.push(ms(round.begin, round.all_back));
    }
    let runtime = Spread::of(runtime_after_kill);
    let (delay, seen_after, worst) =
        (Spread::of(after_runtime), Spread::of(after_kill), Spread::of(worst));
    let row = |measure: &str, goal, ours, bound| Row {
        measure: format!("{KILLED} of {PODS} killed: {measure}"),
        unit: "ms",
        goal,
        ours,
        bound,
    };
    bench_report::show(
        "node_kills",
        "lower bound",
        &[
            row(
                "/pods after the runtime's report, p50",
                Goal::Limit(P50_GOAL_MS),
                delay.p50(),
                None,
            ),
            row("same, max (median of rounds)", Goal::Limit(MAX_GOAL_MS), worst.p50(), None),
            row("same, max of all rounds", Goal::Limit(MAX_GOAL_MS), delay.max(), None),
            row("/pods after the kill, p50", Goal::None, seen_after.p50(), Some(runtime.p50())),
            row("/pods after the kill, max", Goal::None, seen_after.max(), Some(runtime.max())),
            row("all run again", Goal::None, Spread::of(all_back).p50(), None),
        ],
    )?;
    Ok(())
}

/// Observations of a round in `/pods`.
struct Round {
    begin: Stamp,
    shown: HashMap<String, Stamp>,
    all_back: Stamp,
}

fn kill_at_once(node: &TestNode, ids: &[String]) -> Result<Round> {
    let pids: Option<Vec<i32>> = ids.iter().map(|id| node.container_pid(id)).collect();
    let pids = pids.context("every container has a first process")?;
    let mut shown: HashMap<String, Stamp> = HashMap::new();
    let mut all_back = None;
    let begin = now();
    pids.iter().for_each(|pid| process::signal(*pid, Signal::SIGKILL));
    seen::watch(node, ASK_EVERY, LONG, |pods, at| {
        for id in pods.iter().flat_map(|pod| &pod.ended).filter(|id| ids.contains(id)) {
            shown.entry(id.clone()).or_insert(at);
        }
        let again = pods.iter().filter(|p| p.running.as_ref().is_some_and(|r| !ids.contains(r)));
        if again.count() == PODS {
            all_back = Some(at);
        }
        shown.len() == ids.len() && all_back.is_some()
    })
    .context("all ends show and all pods run again")?;
    Ok(Round { begin, shown, all_back: all_back.unwrap_or(begin) })
}

/// Reads the runtime's events on a thread of its own: (container, its end's stamp).
fn follow_ends(node: &TestNode) -> Receiver<(String, Stamp)> {
    let endpoint = format!("unix://{}", node.runtime_node().socket().display());
    let (ends, received) = mpsc::channel();
    thread::spawn(move || -> Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = Client::connect(&endpoint, Deadlines::default())?;
            let mut events = client.get_container_events(v1::GetEventsRequest {})?;
            while let Some(event) = events.next().await {
                let event = event?;
                let is_end =
                    event.container_event_type() == v1::ContainerEventType::ContainerStoppedEvent;
                if is_end && ends.send((event.container_id, event.created_at)).is_err() {
                    break;
                }
            }
            Ok(())
        })
    });
    received
}

/// Waits for the runtime's report of each of these ends.
fn reports(ends: &Receiver<(String, Stamp)>, ids: &[String]) -> Result<HashMap<String, Stamp>> {
    let mut reported = HashMap::new();
    while reported.len() < ids.len() {
        let (id, at) = ends.recv_timeout(LONG).context("the runtime reports every end")?;
        if ids.contains(&id) {
            reported.entry(id).or_insert(at);
        }
    }
    Ok(reported)
}
