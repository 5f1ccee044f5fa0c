//! A list of all pods and nodes decoded three ways: into generic values, into the API's whole
//! types, and into a scheduler's types, as informers do; and the memory that stays in use.
//!
//! Criterion measures a tenth of the list; afterwards one table of ratios of the whole, all parts
//! of a ratio measured in this run. Memory is measured in a process of its own for each way, by its
//! additional pages: allocator and all.
#![allow(missing_docs)]

#[path = "watch/objects.rs"]
mod objects;

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use k8s_openapi::api::core::v1::{Node, Pod};
use objects::{SchedNode, SchedPod};
use pintle_api_types::object::Object;
use serde::de::DeserializeOwned;
use serde_json::Value;

const COUNT: usize = 5_000;
/// Texts that criterion reads of them.
const SAMPLE: usize = 500;
/// Variable with the way whose memory a process of its own measures.
const KEEP: &str = "WATCH_DECODE_KEEP";
const WAYS: [&str; 3] = ["values", "whole types", "scheduler's types"];

/// Objects on the wire.
fn texts(kind: &str, count: usize) -> Vec<String> {
    let object = if kind == "pods" { objects::pod } else { objects::node };
    (0..count).map(|at| object(at).to_string()).collect()
}

fn read<T: DeserializeOwned>(texts: &[String]) -> Vec<T> {
    let each = texts.iter().map(|text| serde_json::from_str(text).expect("an object"));
    each.collect()
}

/// Decodes and drops all of them, one after the other, like events of a watch.
fn pass<T: DeserializeOwned>(texts: &[String]) {
    for text in texts {
        drop(black_box(serde_json::from_str::<T>(black_box(text)).expect("an object")));
    }
}

fn pass_way(kind: &str, way: &str, texts: &[String]) {
    match (way, kind) {
        ("values", _) => pass::<Value>(texts),
        ("whole types", "pods") => pass::<Pod>(texts),
        ("whole types", _) => pass::<Node>(texts),
        (_, "pods") => pass::<SchedPod>(texts),
        (_, _) => pass::<SchedNode>(texts),
    }
}

fn decode(c: &mut Criterion) {
    for kind in ["pods", "nodes"] {
        let texts = texts(kind, SAMPLE);
        let mut group = c.benchmark_group(format!("{SAMPLE} {kind}"));
        group.measurement_time(Duration::from_secs(3)).sample_size(10);
        group.throughput(Throughput::Bytes(texts.iter().map(|text| text.len() as u64).sum()));
        for way in WAYS {
            group.bench_function(way, |b| b.iter(|| pass_way(kind, way, &texts)));
        }
        group.finish();
    }
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let table = std::fs::read_to_string("/proc/self/statm").expect("the kernel's table");
    let pages = table.split(' ').nth(1).expect("resident pages");
    pages.parse::<usize>().expect("a number") * 4096
}

/// Bytes that all objects keep in use, measured in a process that does nothing else.
fn kept(kind: &str, way: &str) -> usize {
    let program = std::env::current_exe().expect("this program");
    let said = Command::new(program).env(KEEP, format!("{kind}/{way}")).output().expect("started");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).trim().parse().expect("a number")
}

fn keep(what: &str) {
    fn grown<T: DeserializeOwned>(texts: &[String]) -> usize {
        // Warms up the memory that reading needs for a moment.
        pass::<T>(&texts[..10]);
        let before = resident();
        let kept = read::<T>(texts);
        let grown = resident() - before;
        black_box(kept);
        grown
    }
    let (kind, way) = what.split_once('/').expect("kind and way");
    let texts = texts(kind, COUNT);
    let grown = match (way, kind) {
        ("values", _) => grown::<Value>(&texts),
        ("whole types", "pods") => grown::<Pod>(&texts),
        ("whole types", _) => grown::<Node>(&texts),
        (_, "pods") => grown::<SchedPod>(&texts),
        (_, _) => grown::<SchedNode>(&texts),
    };
    println!("{grown}");
}

/// The fastest of several passes over all objects.
fn fastest(kind: &str, way: &str, texts: &[String]) -> Duration {
    let passes = (0..5).map(|_| {
        let begun = Instant::now();
        pass_way(kind, way, texts);
        begun.elapsed()
    });
    passes.min().expect("passes")
}

fn table() {
    println!(
        "{COUNT} each: time to read and bytes kept, and how many times those of the scheduler's types"
    );
    for kind in ["pods", "nodes"] {
        let texts = texts(kind, COUNT);
        let bytes: usize = texts.iter().map(String::len).sum();
        println!("{kind}: {} bytes each on the wire", bytes / COUNT);
        let rows = WAYS.map(|way| (way, fastest(kind, way, &texts), kept(kind, way) / COUNT));
        let (_, time, size) = rows[2];
        for (way, took, kept) in rows {
            println!(
                "  {way:18} {:6.1} us ({:4.0} MB/s) {:5.2}x   {kept:6} bytes {:6.1}x",
                took.as_secs_f64() * 1e6 / COUNT as f64,
                bytes as f64 / took.as_secs_f64() / 1e6,
                took.as_secs_f64() / time.as_secs_f64(),
                kept as f64 / size.max(1) as f64,
            );
        }
    }
}

/// The scheduler's types have what the whole ones have.
fn check() {
    for at in [0, 4_321] {
        let (pod, node) = (objects::pod(at).to_string(), objects::node(at).to_string());
        let whole: Pod = serde_json::from_str(&pod).expect("a pod");
        let pruned: SchedPod = serde_json::from_str(&pod).expect("a pod");
        assert_eq!((whole.name(), whole.uid()), (pruned.name(), pruned.uid()));
        let spec = whole.spec.expect("a spec");
        assert_eq!(spec.node_name.as_deref(), Some(pruned.spec.node_name.as_str()));
        assert_eq!(spec.containers.len(), pruned.spec.containers.len());
        let whole: Node = serde_json::from_str(&node).expect("a node");
        let pruned: SchedNode = serde_json::from_str(&node).expect("a node");
        assert_eq!(whole.resource_version(), pruned.resource_version());
        let images = whole.status.and_then(|status| status.images).map_or(0, |images| images.len());
        assert_eq!(images, pruned.status.images.len());
    }
}

criterion_group!(benches, decode);

fn main() {
    if let Ok(what) = std::env::var(KEEP) {
        return keep(&what);
    }
    check();
    benches();
    table();
    Criterion::default().configure_from_args().final_summary();
}
