//! Decisions over whole clusters: distinct pods, identical pods, deltas, memory, two threads.
//!
//! Criterion measures each; afterwards one table of ratios, every part of a ratio measured in this
//! run: against the slow reference scheduler of the tests, against scalar twins of the kernels, and
//! against a pure scan of the same columns.
#![allow(missing_docs)]

#[path = "sched/cases.rs"]
mod cases;
#[path = "sched/cluster.rs"]
mod cluster;
#[allow(dead_code, unreachable_pub)]
#[path = "../../tests/scheduler/tests/sched/reference.rs"]
mod reference;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use nix::time::{ClockId, clock_gettime};
use pintle_sched_core::program::Program;
use pintle_sched_core::repeat::Repeat;
use pintle_sched_core::shared::SharedCluster;
use pintle_sched_core::simd::{self, ScoreRequest, twin};
use pintle_sched_core::snapshot::Cluster;
use pintle_sched_core::snapshot::objects::PodSpec;
use pintle_sched_core::{Scratch, decide};

const NODES: usize = 5_000;
const PODS: usize = 20_000;
/// Distinct pods that are decided in turn.
const DISTINCT: usize = 512;

fn programs(cluster: &mut Cluster, affinity: bool) -> Vec<Arc<Program>> {
    let pods = (0..DISTINCT).map(|at| cluster::pod(1_000_000 + at, affinity));
    pods.map(|p| cluster.compile(&p).expect("pod")).collect()
}

fn distinct(c: &mut Criterion) {
    let mut group = c.benchmark_group("distinct pods, 5,000 nodes");
    group.measurement_time(Duration::from_secs(3));
    for (name, affinity) in [("without affinity", false), ("with preferred affinity", true)] {
        let mut cluster = cluster::cluster(NODES, PODS);
        let programs = programs(&mut cluster, affinity);
        let mut scratch = Scratch::default();
        let mut at = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                at = (at + 1) % programs.len();
                decide(cluster.view(), &programs[at], &mut scratch)
            });
        });
    }
    group.finish();
    let mut large = cluster::cluster(100_000, 1_000);
    let programs = programs(&mut large, false);
    let mut scratch = Scratch::default();
    let mut at = 0;
    c.bench_function("distinct pods, 100,000 nodes", |b| {
        b.iter(|| {
            at = (at + 1) % programs.len();
            decide(large.view(), &programs[at], &mut scratch)
        });
    });
}

fn compile(c: &mut Criterion) {
    let mut cluster = cluster::cluster(NODES, PODS);
    let pods: Vec<_> = (0..DISTINCT).map(|at| cluster::pod(1_000_000 + at, true)).collect();
    let mut at = 0;
    c.bench_function("compile a pod", |b| {
        b.iter(|| {
            at = (at + 1) % pods.len();
            cluster.compile(&pods[at]).expect("pod")
        });
    });
}

fn identical_and_deltas(c: &mut Criterion) {
    let mut cluster = cluster::cluster(NODES, PODS);
    let pod = cluster::pod(5, false);
    let program = cluster.compile(&pod).expect("pod");
    let spec = cluster.read_pod(&pod).expect("pod");
    let mut scratch = Scratch::default();
    let mut repeat = Repeat::new(cluster.view(), &program, &mut scratch).expect("no affinity");
    // The same pod is placed, removed and decided again: a placement and its undoing a decision.
    c.bench_function("identical pods: decide, place, take back", |b| {
        b.iter(|| {
            let row = repeat.decide(cluster.view()).first.expect("room");
            let node = cluster.node_name(row).to_owned();
            let id = cluster.place_spec(&spec, &node, true);
            assert!(repeat.changed(cluster.view(), row));
            cluster.remove(id);
            assert!(repeat.changed(cluster.view(), row));
        });
    });
    c.bench_function("identical pods: decide and rescore", |b| {
        b.iter(|| {
            let row = repeat.decide(cluster.view()).first.expect("room");
            assert!(repeat.changed(cluster.view(), row));
        });
    });
    let mut at = 0;
    c.bench_function("delta: place a pod and remove it", |b| {
        b.iter(|| {
            at = (at + 17) % NODES;
            let node = cluster.node_name(at as u32).to_owned();
            let id = cluster.place_spec(&spec, &node, true);
            cluster.remove(id);
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(500));
    targets = distinct, compile, identical_and_deltas
}

/// CPU time of this thread, in nanoseconds: other programs on the machine do not count.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a thread has a clock");
    now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64
}

/// Best of several timings of `runs` calls, per call, in nanoseconds of CPU: cold caches only add.
fn time(runs: usize, mut call: impl FnMut(usize)) -> f64 {
    let sample = |_| {
        let start = cpu_ns();
        (0..runs).for_each(&mut call);
        (cpu_ns() - start) / runs as f64
    };
    (0..15).map(sample).fold(f64::INFINITY, f64::min)
}

fn ratios() {
    println!("\nRATIOS, all parts measured in this run");
    against_the_slow_reference();
    let mut cluster = cluster::cluster(NODES, PODS);
    let plain = programs(&mut cluster, false);
    let affinity = programs(&mut cluster, true);
    let mut scratch = Scratch::default();
    let of = |cluster: &Cluster, scratch: &mut Scratch, programs: &[Arc<Program>]| {
        time(DISTINCT, |at| {
            black_box(decide(cluster.view(), &programs[at], scratch));
        })
    };
    let (fast, slow) = (of(&cluster, &mut scratch, &plain), of(&cluster, &mut scratch, &affinity));
    println!(
        "5,000 nodes: {:.1} us a pod ({:.0} pods/s), with preferred affinity {:.1} us ({:.0} pods/s)",
        fast / 1e3,
        1e9 / fast,
        slow / 1e3,
        1e9 / slow
    );
    bounds(&cluster, fast);
    let mut crowd = cluster::cluster(NODES, PODS * 5);
    let more = programs(&mut crowd, false);
    let crowded = of(&crowd, &mut scratch, &more);
    println!("with five times the bound pods: {:.1} us, {:.2}x", crowded / 1e3, crowded / fast);
    let mut large = cluster::cluster(100_000, 1_000);
    let many = programs(&mut large, false);
    let large = time(32, |at| {
        black_box(decide(large.view(), &many[at], &mut scratch));
    });
    println!("100,000 nodes: {:.0} us a pod", large / 1e3);
    cases::kinds();
    cases::million();
    identical();
    kernels(&cluster);
    memory();
    threads();
}

/// Lower bounds of a decision, by two measures: reading the number columns once, and the three
/// loops that also do the arithmetic which the scores are defined by.
fn bounds(cluster: &Cluster, decision: f64) {
    let scan = time(200, |_| {
        black_box(scan(cluster));
    });
    println!(
        "pure scan of the number columns: {:.2} us; a decision is {:.1}x that",
        scan / 1e3,
        decision / scan
    );
    let fit = simd::FitRequest { cpu: 250, mem: 5e8, eph: 0.0 };
    let request = ScoreRequest { cpu: 250, mem: 5e8, cpu_plain: 250, mem_plain: 5e8 };
    let mut out = [0u8; 512];
    let loops = time(200, |_| {
        for chunk in cluster.view().chunks() {
            let mut words = [u64::MAX; 8];
            simd::fit(chunk, fit, &mut words);
            simd::least_allocated(chunk, request, black_box(&words), &mut out);
            simd::balanced(chunk, request, black_box(&words), black_box(&mut out));
        }
    });
    println!(
        "the filter and the two scores over numbers alone: {:.2} us; a decision is {:.1}x that",
        loops / 1e3,
        decision / loops
    );
}

/// Reads every number column once: 40 bytes a node.
fn scan(cluster: &Cluster) -> u64 {
    cluster.view().chunks().map(simd::scan).fold(0, u64::wrapping_add)
}

fn against_the_slow_reference() {
    let (nodes, pods, services) = cluster::objects(300, 600);
    let world = reference::ClusterObjects { nodes, pods, namespaces: Vec::new(), services };
    let mut cluster = cluster::cluster(300, 600);
    let pods: Vec<_> = (0..16).map(|at| cluster::pod(1_000_000 + at, true)).collect();
    let programs: Vec<_> = pods.iter().map(|p| cluster.compile(p).expect("pod")).collect();
    let mut scratch = Scratch::default();
    let fast = time(16, |at| {
        black_box(decide(cluster.view(), &programs[at], &mut scratch));
    });
    let start = cpu_ns();
    for pod in pods.iter().take(2) {
        black_box(world.decide(pod));
    }
    let slow = (cpu_ns() - start) / 2.0;
    println!(
        "300 nodes, 600 pods: {:.2} us, slow reference {:.0} us: {:.0}x",
        fast / 1e3,
        slow / 1e3,
        slow / fast
    );
}

fn identical() {
    let mut cluster = cluster::cluster(NODES, PODS);
    let pod = cluster::pod(5, false);
    let program = cluster.compile(&pod).expect("pod");
    let spec = cluster.read_pod(&pod).expect("pod");
    let mut repeat =
        Repeat::new(cluster.view(), &program, &mut Scratch::default()).expect("no affinity");
    let both = time(2_000, |_| {
        let row = repeat.decide(cluster.view()).first.expect("room");
        assert!(repeat.changed(cluster.view(), row));
    });
    let delta = time(2_000, |at| {
        let node = cluster.node_name((at * 17 % NODES) as u32).to_owned();
        let id = cluster.place_spec(&spec, &node, true);
        cluster.remove(id);
    });
    println!(
        "identical pods: {:.2} us a decision with rescoring, {:.0}/s; a delta {:.2} us",
        both / 1e3,
        1e9 / both,
        delta / 2e3
    );
}

fn kernels(cluster: &Cluster) {
    let request = ScoreRequest { cpu: 250, mem: 5e8, cpu_plain: 250, mem_plain: 5e8 };
    let words = [u64::MAX; 8];
    let mut out = [0u8; 512];
    let chunks: Vec<_> = cluster.view().chunks().collect();
    for (name, fast, slow) in [
        (
            "utilisation",
            simd::least_allocated as fn(&_, _, &[u64], &mut [u8]),
            twin::least_allocated as fn(&_, _, &[u64], &mut [u8]),
        ),
        ("balance", simd::balanced, twin::balanced),
    ] {
        let mut run = |kernel: fn(&_, _, &[u64], &mut [u8])| {
            time(200, |at| kernel(chunks[at % 9], request, &words, black_box(&mut out)))
        };
        let (fast, slow) = (run(fast), run(slow));
        println!(
            "kernel {name}: {:.2} ns a node, scalar twin {:.2}: {:.1}x",
            fast / 512.0,
            slow / 512.0,
            slow / fast
        );
    }
}

fn memory() {
    let (few, many) = (cluster::cluster(NODES, 0), cluster::cluster(NODES, PODS * 5));
    let node = few.heap_bytes().0 as f64 / NODES as f64;
    let pod = many.heap_bytes().1 as f64 / (PODS * 5) as f64;
    println!("memory beyond strings: {node:.0} bytes a node, {pod:.0} bytes a pod");
}

/// Decides and reserves pods with one decider and with two.
///
/// The CPU time of the busiest decider shows a machine with a core for each; the wall time shows
/// this one, with its other load.
fn threads() {
    let one = reserved(1);
    let two = reserved(2);
    for (name, r) in [("one decider", &one), ("two deciders", &two)] {
        println!(
            "{RESERVED} reserved, {name}: busiest {:.1} ms of CPU, wall {:.1} ms; a pod {:.1} us to \
             decide, {:.1} us to reserve; {} conflicts",
            r.busiest_ns / 1e6,
            r.wall_ns / 1e6,
            r.decide_ns / 1e3,
            r.reserve_ns / 1e3,
            r.conflicts,
        );
    }
    println!(
        "two deciders: {:.2}x by CPU time, {:.2}x by the wall",
        one.busiest_ns / two.busiest_ns,
        one.wall_ns / two.wall_ns
    );
}

/// Pods that are reserved.
const RESERVED: usize = 4_000;

/// CPU and wall time of deciders, and their conflicts.
#[derive(Default)]
struct Reserved {
    busiest_ns: f64,
    wall_ns: f64,
    decide_ns: f64,
    reserve_ns: f64,
    conflicts: usize,
}

/// One decider's share of the work.
fn decider(
    shared: &SharedCluster,
    work: &[(Arc<Program>, Arc<PodSpec>)],
    mine: usize,
    deciders: usize,
) -> Reserved {
    let (mut scratch, mut spent, start) = (Scratch::default(), Reserved::default(), cpu_ns());
    for (program, pod) in work.iter().skip(mine).step_by(deciders) {
        loop {
            let begun = cpu_ns();
            let view = shared.view();
            decide(&view, program, &mut scratch);
            let decided = cpu_ns();
            let mut rows = scratch.ties_from(mine, deciders).take(4);
            let placed = rows.any(|row| shared.reserve(&view, program, pod, row).is_ok());
            drop(view);
            spent.decide_ns += decided - begun;
            spent.reserve_ns += cpu_ns() - decided;
            if placed {
                break;
            }
            spent.conflicts += 1;
        }
    }
    spent.busiest_ns = cpu_ns() - start;
    spent
}

fn reserved(deciders: usize) -> Reserved {
    let mut cluster = cluster::cluster(NODES, PODS);
    let pods: Vec<_> = (0..RESERVED).map(|at| cluster::pod(2_000_000 + at, false)).collect();
    let mut read = |p| {
        let program = cluster.compile(p).expect("pod");
        (program, Arc::new(cluster.read_pod(p).expect("pod")))
    };
    let work: Vec<_> = pods.iter().map(&mut read).collect();
    let shared = SharedCluster::new(cluster);
    let start = Instant::now();
    let found: Vec<Reserved> = std::thread::scope(|scope| {
        let (shared, work) = (&shared, &work);
        let spawn = |at| scope.spawn(move || decider(shared, work, at, deciders));
        let deciders: Vec<_> = (0..deciders).map(spawn).collect();
        deciders.into_iter().map(|d| d.join().expect("decider")).collect()
    });
    let wall_ns = start.elapsed().as_nanos() as f64;
    let a_pod = |of: fn(&Reserved) -> f64| found.iter().map(of).sum::<f64>() / RESERVED as f64;
    Reserved {
        busiest_ns: found.iter().map(|r| r.busiest_ns).fold(0.0, f64::max),
        wall_ns,
        decide_ns: a_pod(|r| r.decide_ns),
        reserve_ns: a_pod(|r| r.reserve_ns),
        conflicts: found.iter().map(|r| r.conflicts).sum(),
    }
}

fn main() {
    benches();
    ratios();
}
