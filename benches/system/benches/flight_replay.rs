//! Duration of the replay of a full record: `pintle-agent replay` reads and decides all of it.
//!
//! A record of 64 MiB consists of pods that are created, read and deleted, as an agent of a busy
//! node writes it, and is replayed by the function that the command calls. Goal: <= 10 s. The lower
//! bound is reading the segments' bytes.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pintle_agent_core::flight::segment::SEGMENT_BYTES;
use pintle_agent_core::flight::{AgentStart, Flight, Redactor};
use pintle_agent_core::types::{Mono, NodeFacts, Now, PodUid, UnixNanos};
use pintle_agent_core::worker::{Pods, PodsInput, Settings};
use pintle_agent_core::{admit, sync};
use pintle_system_benches::table::{Goal, Row};
use pintle_system_benches::{bench_report, count};
use serde_json::json;

const GOAL_SECONDS: f64 = 10.0;
/// Key of the redactor; any is as good.
const KEY: [u8; 32] = [7; 32];
/// Pods at a time.
const PODS: usize = 50;
/// Between two inputs.
const STEP_NANOS: i64 = 1_000_000;

fn main() -> Result<()> {
    let segments = count("PINTLE_BENCH_SEGMENTS", 8);
    let root = tempfile::tempdir()?;
    let (bytes, inputs) = record(&root.path().join("flight"), segments)?;
    let read = Instant::now();
    for entry in fs::read_dir(root.path().join("flight"))? {
        std::hint::black_box(fs::read(entry?.path())?);
    }
    let read = read.elapsed();
    let begun = Instant::now();
    pintle_testbed::record::check_replay(root.path());
    let took = begun.elapsed();
    println!("{inputs} inputs, {} MiB", bytes >> 20);
    let seconds = |of: Duration| of.as_secs_f64();
    let (measure, unit) = ("a full record replayed".to_owned(), "s");
    let (goal, bound) = (Goal::Limit(GOAL_SECONDS), Some(seconds(read)));
    let rows = [Row { measure, unit, goal, ours: seconds(took), bound }];
    bench_report::show("flight_replay", "its bytes read", &rows)?;
    Ok(())
}

fn settings() -> Settings {
    Settings {
        eviction: Default::default(),
        garbage: Default::default(),
        sync_period: Duration::from_secs(60),
        relist_period: Duration::from_secs(60),
        crash_loop: sync::backoff::Curve::default(),
        node: NodeFacts::default(),
        admission: Arc::new(admit::AdmissionNode::roomy("node")),
        has_node_object: false,
    }
}

/// A pod as people write them, with this many changes.
fn desired(number: usize, change: usize) -> PodsInput {
    let uid = PodUid::from(format!("u{number}").as_str());
    let variable = |n: usize| json!({"name": format!("SETTING_{n}"), "value": format!("{change}")});
    let container = json!({
        "name": "web", "image": "registry.example/team/web:1.2",
        "env": (0..20).map(variable).collect::<Vec<_>>(),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    });
    let pod = json!({
        "metadata": {"uid": uid.as_str(), "name": format!("web-{number}"), "namespace": "shop",
            "labels": {"app": "web", "change": change.to_string()}},
        "spec": {"containers": [container]},
    });
    let mut pod = serde_json::from_value(pod).expect("a pod");
    pintle_api_types::pod::defaults::apply(&mut pod);
    PodsInput::Desired { uid, pod: Arc::new(pod) }
}

/// Writes segments; returns their bytes, and the number of their inputs.
fn record(folder: &Path, segments: usize) -> Result<(u64, usize)> {
    fs::create_dir(folder)?;
    let start = AgentStart {
        version: "of the benchmark".to_owned(),
        settings: settings(),
        allocated: Default::default(),
        actuated: Default::default(),
    };
    let mut flight = Flight::new(Redactor::new(&KEY), 0, &start, UnixNanos(1));
    let mut pods = Pods::new(settings());
    let (mut bytes, mut inputs) = (0, 0_usize);
    while bytes < segments as u64 * SEGMENT_BYTES {
        let (turn, number) = (inputs / PODS, inputs % PODS);
        let input = match turn % 4 {
            3 => PodsInput::Removed { uid: PodUid::from(format!("u{number}").as_str()) },
            1 => PodsInput::Tick,
            _ => desired(number, turn),
        };
        inputs += 1;
        let nanos = i64::try_from(inputs)? * STEP_NANOS;
        let now = Now { wall: UnixNanos(nanos), mono: Mono(nanos) };
        flight.input(now, &input);
        flight.commands(&pods.handle(now, input));
        if flight.needs_state() {
            flight.state(pods.state());
        }
        if flight.is_due() {
            bytes += append(folder, &mut flight)?;
        }
    }
    bytes += append(folder, &mut flight)?;
    ensure!(bytes > 0, "something was written");
    Ok((bytes, inputs))
}

fn append(folder: &Path, flight: &mut Flight) -> Result<u64> {
    let Some(written) = flight.take(UnixNanos(1)) else { return Ok(0) };
    let path = folder.join(pintle_agent_host::flight::segment_name(written.segment));
    OpenOptions::new().create(true).append(true).open(path)?.write_all(&written.bytes)?;
    Ok(written.bytes.len() as u64)
}
