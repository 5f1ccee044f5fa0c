//! Delay from the end of a process to the agent's event: eBPF, pidfd, and a relist every second.
//!
//! The moment of the end is the kernel's own stamp in the eBPF event, for both sides: on the pidfd
//! side a second source delivers it, on a runtime that sleeps meanwhile. The relist is not run: an
//! end falls anywhere between two lists, so its delay is uniform over the period. Goal: eBPF p50 <=
//! 200 us. Needs root; without it the benchmark says so and measures nothing.

#[path = "../../../ebpf/tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::time::Duration;

use common::{Cgroup, Gated, memory_hierarchy, next_where, open_ebpf};
use criterion::{Criterion, criterion_group, criterion_main};
use pintle_ebpf::{EventKind, EventSource, KernelEvent, Monotonic, Options, Programs, Slot};
use tokio::runtime::{Builder, Runtime};

const POD: Slot = Slot(1);
const RELIST_PERIOD: Duration = Duration::from_secs(1);
const GOAL_P50: Duration = Duration::from_micros(200);

struct HintSide {
    runtime: Runtime,
    source: EventSource,
}

impl HintSide {
    fn open(options: &Options) -> Self {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let source = runtime.block_on(async { EventSource::open(options) });
        Self { runtime, source }
    }

    fn watch(&mut self, cgroup: &Cgroup, pid: u32) {
        self.source.track(POD, cgroup.path()).expect("track");
        self.source.watch_init(POD, pid).expect("watch");
    }

    /// The process' end, and when this side held it.
    fn end_of(&mut self, pid: u32) -> (KernelEvent, Monotonic) {
        let is_end = |event: &KernelEvent| is_end_of(event, pid);
        let event = self.runtime.block_on(next_where(&mut self.source, is_end));
        (event, Monotonic::now())
    }
}

fn is_end_of(event: &KernelEvent, pid: u32) -> bool {
    event.pid == pid && matches!(event.kind, EventKind::Exit(_))
}

/// Ends one process, and measures the delay of its eBPF event.
fn ebpf_delay(ebpf: &mut HintSide, cgroup: &Cgroup) -> Duration {
    let mut process = Gated::new(cgroup.path(), "exit 3");
    ebpf.watch(cgroup, process.pid());
    process.go();
    let (event, seen) = ebpf.end_of(process.pid());
    Duration::from_nanos(seen.0 - event.time.0)
}

/// Ends one process, and measures the delay of its pidfd from the stamp that eBPF gives afterwards.
fn pidfd_delay(pidfd: &mut HintSide, clock: &mut HintSide, cgroup: &Cgroup) -> Duration {
    let mut process = Gated::new(cgroup.path(), "exit 3");
    clock.watch(cgroup, process.pid());
    pidfd.watch(cgroup, process.pid());
    process.go();
    let (_, seen) = pidfd.end_of(process.pid());
    let (event, _) = clock.end_of(process.pid());
    Duration::from_nanos(seen.0 - event.time.0)
}

fn kernel_hint(criterion: &mut Criterion) {
    let options = Options::new(memory_hierarchy());
    let probe = Builder::new_current_thread().enable_io().build().expect("a runtime");
    if let Err(why) = probe.block_on(async { open_ebpf(&options).map(drop) }) {
        eprintln!("skipped: {}", &*why);
        return;
    }
    let cgroup = Cgroup::new(memory_hierarchy());
    let mut ebpf = HintSide::open(&options);
    let mut pidfd = HintSide::open(&Options { programs: Programs::NONE, ..options });
    let (of_ebpf, of_pidfd) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let mut group = criterion.benchmark_group("kernel_hint");
    group.sample_size(50).measurement_time(Duration::from_secs(5));
    group.bench_function("ebpf", |bencher| {
        bencher.iter_custom(|count| repeat(count, &of_ebpf, || ebpf_delay(&mut ebpf, &cgroup)));
    });
    group.bench_function("pidfd", |bencher| {
        bencher.iter_custom(|count| {
            repeat(count, &of_pidfd, || pidfd_delay(&mut pidfd, &mut ebpf, &cgroup))
        });
    });
    group.finish();
    let p50 = report("ebpf", &mut of_ebpf.into_inner());
    report("pidfd", &mut of_pidfd.into_inner());
    println!(
        "kernel_hint relist p50 {:?} p99 {:?} (expected)",
        RELIST_PERIOD / 2,
        RELIST_PERIOD.mul_f64(0.99)
    );
    let verdict = if p50 <= GOAL_P50 { "met" } else { "missed" };
    println!("kernel_hint goal: ebpf p50 <= {GOAL_P50:?}: {verdict}");
}

fn repeat(count: u64, all: &RefCell<Vec<Duration>>, mut one: impl FnMut() -> Duration) -> Duration {
    let delays: Vec<Duration> = (0..count).map(|_| one()).collect();
    all.borrow_mut().extend(&delays);
    delays.iter().sum()
}

fn report(name: &str, delays: &mut [Duration]) -> Duration {
    delays.sort_unstable();
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    println!("kernel_hint {name} p50 {:?} p99 {:?} of {} ends", at(0.5), at(0.99), delays.len());
    at(0.5)
}

criterion_group!(benches, kernel_hint);
criterion_main!(benches);
