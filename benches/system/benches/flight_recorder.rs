//! Cost of the flight recorder for the agent: pods start, run and end, with it and without it.
//!
//! Each round runs both sides one after the other, on a node of its own, so that the means of all
//! rounds compare when the machine's speed changes. CPU is user and system time of the agent's
//! process over the whole life of its pods, memory its resident memory at the end. Then three steps
//! are timed for each input in the record of one round: the copy that the deciding thread makes,
//! the encoding elsewhere, the decision itself. Their batches are then appended and synced, by
//! io_uring as in the recorder and by a thread of the pool with plain calls; the folder is below
//! `TMPDIR`, which should be on a disk. Goals: <= 3 % of the agent's CPU, <= 2 MiB.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pintle_agent_core::flight::{AgentStart, Flight, Frame, Redactor, read};
use pintle_agent_core::types::{Now, UnixNanos};
use pintle_agent_core::worker::{Pods, PodsInput};
use pintle_agent_host::flight::FlightFolder;
use pintle_daemon::blocking::{self, JobPlace};
use pintle_system_benches::load::{self, Cpu};
use pintle_system_benches::table::{Goal, Row};
use pintle_system_benches::{bench_report, count, names, put_pod, rounds, seen};
use pintle_testbed::{LONG, Options, TestNode, until};

const START: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(180));
/// How long the pods stay.
const STAY: Duration = Duration::from_secs(20);
const GOAL_CPU: f64 = 1.03;
const GOAL_MIB: f64 = 2.0;
/// Key of the redactor that is timed; any is as good.
const KEY: [u8; 32] = [7; 32];

/// Cost of one side.
#[derive(Clone, Copy, Default)]
struct Took {
    cpu: f64,
    mib: f64,
}

/// The inputs of a run and the start before them.
type Run = (AgentStart, Vec<(Now, PodsInput)>);

fn main() -> Result<()> {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    let mut run = None;
    for _ in 0..rounds(5) {
        let (took, root) = side("64Mi")?;
        run = Some(root);
        on.push(took);
        off.push(side("0")?.0);
    }
    let mean =
        |of: &[Took], what: fn(&Took) -> f64| of.iter().map(what).sum::<f64>() / of.len() as f64;
    let (cpu, bare) = (mean(&on, |took| took.cpu), mean(&off, |took| took.cpu));
    let (mib, less) = (mean(&on, |took| took.mib), mean(&off, |took| took.mib));
    let row = |measure: &str, unit, goal, ours, bound| {
        let measure = measure.to_owned();
        Row { measure, unit, goal, ours, bound }
    };
    let mut rows = vec![
        row("CPU of the agent", "ms", Goal::Ratio(GOAL_CPU), cpu * 1e3, Some(bare * 1e3)),
        row("resident memory", "MiB", Goal::None, mib, Some(less)),
        row("of that, more", "MiB", Goal::Limit(GOAL_MIB), mib - less, None),
    ];
    let (start, inputs) = run.flatten().context("a run was recorded")?;
    let [copy, encode, decide] = timed(&start, &inputs);
    println!("{} inputs", inputs.len());
    let bound = Some(decide);
    rows.push(row("an input: copied by the thread that decides", "us", Goal::None, copy, bound));
    rows.push(row("an input: encoded by another", "us", Goal::None, encode, bound));
    let (ring, plain) = durable(&start, &inputs)?;
    rows.push(row("a batch durable, by the ring", "us", Goal::None, ring, Some(plain)));
    bench_report::show("flight_recorder", "without it, the decision, or the pool", &rows)?;
    Ok(())
}

/// Runs one node, from the first pod to the end of the last one.
fn side(room: &str) -> Result<(Took, Option<Run>)> {
    let flags = vec![format!("--pintle-flight-recorder={room}")];
    let mut node = TestNode::start(Options { flags, ..Options::default() });
    if room == "0" {
        node.skip_record();
    }
    let pods = names("recorded", count("PINTLE_BENCH_PODS", 30));
    let (pid, cpu) = (node.agent_pid(), Cpu::of(node.agent_pid())?);
    pods.iter().for_each(|name| put_pod(&node, name));
    let all_run = |seen: &[seen::SeenPod]| seen.iter().filter(|pod| pod.running.is_some()).count();
    seen::watch(&node, START.0, START.1, |seen, _| all_run(seen) == pods.len())
        .context("all pods run")?;
    thread::sleep(STAY);
    pods.iter().for_each(|name| node.remove(&format!("{name}.json")));
    until(LONG, "all pods are gone", || {
        anyhow::ensure!(node.leftovers().is_empty(), "some are left");
        Ok(())
    });
    let took = Took { cpu: (Cpu::of(pid)? - cpu).seconds(), mib: load::memory_mib(pid, "VmRSS:")? };
    println!("room {room}: {:.1} ms of CPU, {:.1} MiB", took.cpu * 1e3, took.mib);
    node.stop_agent();
    let recorded = (room != "0").then(|| recorded(&node.root())).transpose()?;
    Ok((took, recorded))
}

/// The only run in the folder.
fn recorded(root: &Path) -> Result<Run> {
    let path = root.join("flight/0000000000.segment");
    let segment = read(&fs::read(path)?)?;
    let mut frames = segment.batches.into_iter().flat_map(|batch| batch.frames);
    let Some(Frame::Start(start)) = frames.next() else { anyhow::bail!("no start in the record") };
    let inputs = frames.filter_map(|frame| match frame {
        Frame::Input { now, input } => Some((now, *input)),
        _ => None,
    });
    Ok((*start, inputs.collect()))
}

/// Microseconds of each input: copied, encoded, decided.
fn timed(start: &AgentStart, inputs: &[(Now, PodsInput)]) -> [f64; 3] {
    const TIMES: u32 = 20;
    let mut took = [Duration::ZERO; 3];
    for _ in 0..TIMES {
        let mut pods = Pods::new(start.settings.clone());
        let mut flight = Flight::new(Redactor::new(&KEY), 0, start, UnixNanos(1));
        for (now, input) in inputs {
            let begun = Instant::now();
            let copy = std::hint::black_box(input.clone());
            let copied = Instant::now();
            let commands = pods.handle(*now, copy);
            let decided = Instant::now();
            let given = std::hint::black_box(commands.clone());
            let noted = Instant::now();
            flight.input(*now, input);
            flight.commands(&given);
            if flight.is_due() {
                std::hint::black_box(flight.take(UnixNanos(1)));
            }
            took[0] += copied - begun + (noted - decided);
            took[1] += noted.elapsed();
            took[2] += decided - copied;
        }
    }
    let each = |took: Duration| took.as_secs_f64() * 1e6 / f64::from(TIMES) / inputs.len() as f64;
    took.map(each)
}

/// Microseconds until a batch is on the disk, the median: by the ring, by a thread of the pool.
fn durable(start: &AgentStart, inputs: &[(Now, PodsInput)]) -> Result<(f64, f64)> {
    /// Inputs a batch, as few as a busy agent writes at a time.
    const PER_BATCH: usize = 8;
    let mut flight = Flight::new(Redactor::new(&KEY), 0, start, UnixNanos(1));
    let batches = inputs.chunks(PER_BATCH).filter_map(|inputs| {
        inputs.iter().for_each(|(now, input)| flight.input(*now, input));
        flight.take(UnixNanos(1))
    });
    let batches: Vec<_> = batches.collect();
    let root = tempfile::tempdir()?;
    let (mut folder, _) = FlightFolder::open(root.path(), 8)?;
    let log = Arc::new(File::create(root.path().join("plain"))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut ring, mut plain) = (Vec::new(), Vec::new());
    let mut at = 0;
    for batch in &batches {
        let begun = Instant::now();
        runtime.block_on(folder.append(batch))?;
        ring.push(begun.elapsed());
        let (log, bytes, offset) = (Arc::clone(&log), batch.bytes.clone(), at);
        at += bytes.len() as u64;
        let write = move || log.write_all_at(&bytes, offset).and_then(|()| log.sync_data());
        let begun = Instant::now();
        runtime.block_on(blocking::try_run(JobPlace::own("bench"), write))?;
        plain.push(begun.elapsed());
    }
    let median = |mut of: Vec<Duration>| {
        of.sort();
        of.get(of.len() / 2).map_or(0.0, |took| took.as_secs_f64() * 1e6)
    };
    Ok((median(ring), median(plain)))
}
