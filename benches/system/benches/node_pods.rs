//! Cost of continuous requests for `/pods`: beside fifty unchanged pods, and while fifty start at
//! once.
//!
//! CPU is user and system time of the agent's process. The cost of an answer is the CPU of a time
//! with `ASKS_A_SECOND` requests, less that of the same time without, divided by the number of
//! answers; a busy machine does not change it much. Goal: <= 1 ms an answer.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pintle_system_benches::load::Cpu;
use pintle_system_benches::table::{Goal, Row, Spread};
use pintle_system_benches::{bench_report, count, names, put_pod, rounds, seen};
use pintle_testbed::{LONG, Options, TestNode};
use serde_json::json;
use xtask::node::agent::READ_ONLY_PORT;

const PODS: usize = 50;
const ASKS_A_SECOND: u32 = 20;
const ANSWER_GOAL_MS: f64 = 1.0;
/// Of each half of a round; `PINTLE_BENCH_SECONDS` sets another time.
const SECONDS: usize = 20;
/// Time until work after a start (late events, first relist) is over.
const SETTLE: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    // The users' default: tests read the folder of manifests each second.
    let config = json!({"fileCheckFrequency": "20s"});
    let node = TestNode::start(Options { config, ..Options::default() });
    let period = Duration::from_secs(1) / ASKS_A_SECOND;
    let before = Cpu::of(node.agent_pid())?;
    names("pods", PODS).iter().for_each(|name| put_pod(&node, name));
    seen::watch(&node, period, LONG * 3, |pods, _| {
        pods.iter().filter(|pod| pod.running.is_some()).count() == PODS
    })
    .context("all pods run")?;
    let start = (Cpu::of(node.agent_pid())? - before).seconds() * 1000.0 / PODS as f64;
    thread::sleep(SETTLE);
    let mut answers = Vec::new();
    for round in 0..rounds(3) {
        let answer = answer(&node, period)?;
        println!("round {round}: {answer:.2} ms of CPU an answer");
        answers.push(answer);
    }
    let row = |measure: String, goal, ours| Row { measure, unit: "ms", goal, ours, bound: None };
    bench_report::show(
        "node_pods",
        "lower bound",
        &[
            row(
                format!("CPU of an answer of /pods beside {PODS} pods"),
                Goal::Limit(ANSWER_GOAL_MS),
                Spread::of(answers).p50(),
            ),
            row(
                format!("CPU of a start of one of {PODS} pods, /pods asked {ASKS_A_SECOND}/s"),
                Goal::None,
                start,
            ),
        ],
    )?;
    Ok(())
}

/// Milliseconds of CPU of one answer.
fn answer(node: &TestNode, period: Duration) -> Result<f64> {
    let seconds = count("PINTLE_BENCH_SECONDS", SECONDS) as u64;
    let unasked = spent(node, || {
        thread::sleep(Duration::from_secs(seconds));
        Ok(())
    })?;
    let mut answers = 0_u32;
    let asked = spent(node, || {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            let next = Instant::now() + period;
            let answer = node.get(READ_ONLY_PORT, "/pods")?;
            anyhow::ensure!(answer.status == 200, "/pods answered {}", answer.status);
            answers += 1;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    })?;
    Ok((asked - unasked).max(0.0) * 1000.0 / f64::from(answers.max(1)))
}

/// Seconds of CPU that the agent takes for as long as something else is done.
fn spent(node: &TestNode, meanwhile: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = Cpu::of(node.agent_pid())?;
    meanwhile()?;
    Ok((Cpu::of(node.agent_pid())? - before).seconds())
}
