//! The eBPF source against the running kernel: real cgroups, real processes, real OOM kills.
//!
//! Each test makes its own cgroups and opens its own source, so they run side by side. Needs root
//! and a kernel with BTF; a test that cannot run says why in one line and is skipped.

mod common;

use std::fs;

use common::{Cgroup, Gated, id_of, memory_hierarchy, next_of, next_where, open_ebpf};
use pintle_ebpf::{
    CGROUPS_PER_POD_MAX, Clocks, Controller, EventKind, Exit, ExitStatus, Hierarchy,
    HierarchyError, KernelEvent, KernelProgram, Mode, Monotonic, Options, Programs, Slot,
    TrackError, Watched,
};

const POD: Slot = Slot(7);
const MEMORY_BYTES: u64 = 16 << 20;

fn everything() -> Options {
    Options::new(memory_hierarchy())
}

fn exit(status: ExitStatus) -> EventKind {
    EventKind::Exit(Exit { status: Some(status), oom: false })
}

#[tokio::test]
async fn every_program_loads_on_this_kernel_or_the_reason_names_it() {
    let source = or_skip!(open_ebpf(&everything()));
    let Mode::Ebpf { programs } = source.mode() else { panic!("{}", source.mode()) };
    let older = Programs::ALL.without(KernelProgram::Oom).with(KernelProgram::OomAtExit);
    match source.reasons() {
        [] => assert_eq!(programs, Programs::ALL),
        [why] if kernel_before(6, 8) && why.starts_with("oom: ") => assert_eq!(programs, older),
        reasons => panic!("{reasons:?}"),
    }
    assert_eq!(source.dropped(), 0);
}

fn kernel_before(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("linux");
    let numbers: Vec<u32> = release.split('.').flat_map(str::parse).collect();
    numbers < vec![major, minor]
}

#[tokio::test]
async fn exit_is_observed_with_its_code_its_process_and_its_cgroup() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let mut process = Gated::new(pod.path(), "exit 3");
    assert_eq!(source.watch_init(POD, process.pid()).expect("watch"), Watched::Yes);
    let before = Monotonic::now();
    process.go();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!(event.slot, Some(POD));
    assert_eq!(event.kind, exit(ExitStatus::Code(3)));
    assert_eq!(event.pid, process.pid());
    assert_eq!(event.cgroup_id, id_of(pod.path()));
    assert!(before <= event.time && event.time <= Monotonic::now());
    assert!(Clocks::read().wall_of(event.time) <= std::time::SystemTime::now());
}

#[tokio::test]
async fn killed_process_is_observed_with_its_signal() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let mut process = Gated::new(pod.path(), "exit 3");
    source.watch_init(POD, process.pid()).expect("watch");
    process.kill();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!(event.kind, exit(ExitStatus::Signal(9)));
}

#[tokio::test]
async fn pid_1_of_a_new_pid_namespace_is_found_without_being_named() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    let container = pod.child("container");
    source.track(POD, pod.path()).expect("track");
    let mut runtime = Gated::new(&container, "exec unshare -pf sh -c 'exit 3'");
    assert_eq!(next_of(&mut source, POD).await.kind, EventKind::Populated(true));
    runtime.go();
    let mut seen = Vec::new();
    loop {
        let event = next_of(&mut source, POD).await;
        let pid = event.pid;
        if !matches!(event.kind, EventKind::Populated(_)) {
            seen.push(event.kind.clone());
            assert!(pid != 0 && pid != runtime.pid(), "the pid is the host's number of the child");
            assert_eq!(event.cgroup_id, id_of(&container));
        }
        if matches!(event.kind, EventKind::Exit(_)) {
            break;
        }
    }
    assert_eq!(seen, [EventKind::Exec, exit(ExitStatus::Code(3))]);
}

#[tokio::test]
async fn a_namespace_made_inside_a_container_is_not_taken_for_a_container() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let script = "exec unshare -pf sh -c 'unshare -pf sh -c \"exit 5\"; exit 3'";
    Gated::new(pod.path(), script).go_and_wait();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!(event.kind, exit(ExitStatus::Code(3)));
}

/// A container in the host's pid namespace may make namespaces as it likes.
#[tokio::test]
async fn in_the_hosts_namespace_only_the_named_process_is_a_containers_first() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    let container = pod.child("container");
    source.track(POD, pod.path()).expect("track");
    let script = "for i in 1 2 3; do unshare -pf sh -c 'exit 5'; done; exit 3";
    let mut process = Gated::new(&container, script);
    assert_eq!(source.watch_init(POD, process.pid()).expect("watch"), Watched::Yes);
    process.go();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!((event.kind, event.pid), (exit(ExitStatus::Code(3)), process.pid()));
}

#[tokio::test]
async fn only_the_entry_point_is_reported_as_exec_and_only_the_init_as_exit() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let mut process = Gated::new(pod.path(), "exec sh -c 'true; /bin/true; exec sh -c \"exit 4\"'");
    source.watch_init(POD, process.pid()).expect("watch");
    process.go();
    let mut kinds = Vec::new();
    while !kinds.iter().any(|kind| matches!(kind, EventKind::Exit(_))) {
        let event = next_of(&mut source, POD).await;
        if !matches!(event.kind, EventKind::Populated(_)) {
            assert_eq!(event.pid, process.pid());
            kinds.push(event.kind);
        }
    }
    assert_eq!(kinds, [EventKind::Exec, exit(ExitStatus::Code(4))]);
}

/// The substitute is asked for in turn, because this kernel may have no need of it.
fn both_oom_forms() -> [Options; 2] {
    let programs = Programs::ALL.without(KernelProgram::Oom).with(KernelProgram::OomAtExit);
    [everything(), Options { programs, ..everything() }]
}

#[tokio::test]
async fn oom_killed_child_is_distinguished_from_the_surviving_init() {
    for options in both_oom_forms() {
        let mut source = or_skip!(open_ebpf(&options));
        let pod = Cgroup::new(memory_hierarchy());
        pod.limit_memory(memory_hierarchy(), MEMORY_BYTES);
        source.track(POD, pod.path()).expect("track");
        let mut process = Gated::new(pod.path(), "tail /dev/zero; exit 7");
        source.watch_init(POD, process.pid()).expect("watch");
        process.go();
        let victim = next_where(&mut source, |e| is_victim_of(e, Some(POD))).await;
        let EventKind::OomVictim { comm, is_init } = victim.kind else { panic!("{victim:?}") };
        assert_eq!((comm.to_string().as_str(), is_init), ("tail", false));
        assert_ne!(victim.pid, process.pid());
        assert_eq!(victim.cgroup_id, id_of(pod.path()));
        let end = next_where(&mut source, |e| e.slot == Some(POD) && e.pid != 0).await;
        assert_eq!((end.kind, end.pid), (exit(ExitStatus::Code(7)), process.pid()));
    }
}

#[tokio::test]
async fn oom_killed_init_is_marked_and_so_is_its_exit() {
    for options in both_oom_forms() {
        let mut source = or_skip!(open_ebpf(&options));
        let pod = Cgroup::new(memory_hierarchy());
        pod.limit_memory(memory_hierarchy(), MEMORY_BYTES);
        source.track(POD, pod.path()).expect("track");
        let mut process = Gated::new(pod.path(), "exec tail /dev/zero");
        source.watch_init(POD, process.pid()).expect("watch");
        process.go();
        let victim = next_where(&mut source, |e| is_victim_of(e, Some(POD))).await;
        assert!(matches!(victim.kind, EventKind::OomVictim { is_init: true, .. }), "{victim:?}");
        assert_eq!(victim.pid, process.pid());
        let end = next_where(&mut source, |e| e.slot == Some(POD) && e.pid != 0).await;
        let status = Some(ExitStatus::Signal(9));
        assert_eq!(end.kind, EventKind::Exit(Exit { status, oom: true }));
    }
}

fn is_victim_of(event: &KernelEvent, slot: Option<Slot>) -> bool {
    event.slot == slot && matches!(event.kind, EventKind::OomVictim { .. })
}

/// Not a test by itself: what the next one runs as its process. All threads end at the same moment.
#[test]
fn a_process_of_many_threads() {
    if std::env::var_os(MANY_THREADS).is_some() {
        (0..THREADS).for_each(|_| drop(std::thread::spawn(std::thread::park)));
        std::process::exit(6);
    }
}
const MANY_THREADS: &str = "PINTLE_EBPF_TEST_MANY_THREADS";
const THREADS: usize = 32;

#[tokio::test]
async fn exit_of_a_process_with_many_threads_is_a_single_event_with_its_code() {
    const RUNS: u64 = 40;
    let mut source = or_skip!(open_ebpf(&everything()));
    let program = std::env::current_exe().expect("a test binary");
    let script =
        format!("{MANY_THREADS}=1 exec {} --exact a_process_of_many_threads", program.display());
    let mut ends = Vec::new();
    for run in 0..RUNS {
        let pod = Cgroup::new(memory_hierarchy());
        source.track(Slot(run), pod.path()).expect("track");
        let mut process = Gated::new(pod.path(), &script);
        source.watch_init(Slot(run), process.pid()).expect("watch");
        process.go();
        loop {
            let event = next_of(&mut source, Slot(run)).await;
            match event.kind {
                EventKind::Exit(end) => ends.push((run, end.status)),
                EventKind::Populated(false) => break,
                _ => {}
            }
        }
    }
    let expected: Vec<_> = (0..RUNS).map(|run| (run, Some(ExitStatus::Code(6)))).collect();
    assert_eq!(ends, expected);
}

#[tokio::test]
async fn an_oom_victim_outside_of_all_pods_is_reported_without_a_pod() {
    for options in both_oom_forms() {
        let mut source = or_skip!(open_ebpf(&options));
        let other = Cgroup::new(memory_hierarchy());
        other.limit_memory(memory_hierarchy(), MEMORY_BYTES);
        Gated::new(other.path(), "exec tail /dev/zero").go_and_wait();
        let id = id_of(other.path());
        let victim = next_where(&mut source, |event| event.cgroup_id == id).await;
        assert!(is_victim_of(&victim, None), "{victim:?}");
    }
}

#[tokio::test]
async fn cgroups_made_after_tracking_are_followed_by_the_kernel_to_any_depth() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let child = pod.child("a");
    let grandchild = pod.child("a/b");
    let mut process = Gated::new(&grandchild, "exit 3");
    source.watch_init(POD, process.pid()).expect("watch");
    process.go();
    process.wait();
    let (child_id, grandchild_id) = (id_of(&child), id_of(&grandchild));
    for dir in [&grandchild, &child] {
        remove_when_empty(dir);
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&(EventKind::CgroupRemoved, child_id)) {
        let event = next_of(&mut source, POD).await;
        if event.cgroup_id == child_id || event.cgroup_id == grandchild_id {
            seen.push((event.kind, event.cgroup_id));
        }
    }
    let of_grandchild: Vec<_> =
        seen.iter().filter(|(_, id)| *id == grandchild_id).map(|(kind, _)| kind.clone()).collect();
    let expected = [
        EventKind::CgroupCreated,
        EventKind::Populated(true),
        exit(ExitStatus::Code(3)),
        EventKind::Populated(false),
        EventKind::CgroupRemoved,
    ];
    assert_eq!(of_grandchild, expected);
    assert_eq!(seen[0], (EventKind::CgroupCreated, child_id));
}

#[tokio::test]
async fn pod_that_creates_cgroups_without_limit_fills_only_its_own_share() {
    const TOO_MANY: u32 = 10;
    let mut source = or_skip!(open_ebpf(&everything()));
    let (greedy, other) = (Cgroup::new(memory_hierarchy()), Cgroup::new(memory_hierarchy()));
    source.track(POD, greedy.path()).expect("track");
    source.track(Slot(8), other.path()).expect("track");
    let made: Vec<_> = (0..CGROUPS_PER_POD_MAX + TOO_MANY)
        .map(|number| greedy.child(&format!("c{number}")))
        .collect();
    assert_eq!(source.dropped(), u64::from(TOO_MANY));
    // One that goes makes room for one, whether or not its process was named.
    let mut process = Gated::new(&made[0], "exit 3");
    source.watch_init(POD, process.pid()).expect("watch");
    process.go_and_wait();
    remove_when_empty(&made[0]);
    greedy.child("again");
    assert_eq!(source.dropped(), u64::from(TOO_MANY));
    greedy.child("too-many");
    assert_eq!(source.dropped(), u64::from(TOO_MANY) + 1);
    // Other pods' are followed.
    let child = other.child("a");
    let event = next_of(&mut source, Slot(8)).await;
    assert_eq!((event.kind, event.cgroup_id), (EventKind::CgroupCreated, id_of(&child)));
    // One that has too many when it is tracked is followed in part, and the caller gets an error.
    source.untrack(POD).expect("untrack");
    let full = source.track(POD, greedy.path());
    assert!(matches!(full, Err(TrackError::Full { limit: CGROUPS_PER_POD_MAX })), "{full:?}");
}

#[tokio::test]
async fn cgroups_that_exist_already_when_tracking_starts_are_followed_too() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    pod.child("a");
    let grandchild = pod.child("a/b");
    let mut process = Gated::new(&grandchild, "exit 3");
    source.track(POD, pod.path()).expect("track");
    source.watch_init(POD, process.pid()).expect("watch");
    process.go();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!((event.slot, event.cgroup_id), (Some(POD), id_of(&grandchild)));
}

#[tokio::test]
async fn watched_process_reveals_its_cgroup_without_the_mkdir_program() {
    let programs = Programs::ALL.without(KernelProgram::CgroupCreated);
    let mut source = or_skip!(open_ebpf(&Options { programs, ..everything() }));
    assert_eq!(source.mode(), Mode::Ebpf { programs });
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let container = pod.child("container");
    let mut process = Gated::new(&container, "exit 3");
    source.watch_init(POD, process.pid()).expect("watch");
    process.go();
    let event = next_where(&mut source, |e| matches!(e.kind, EventKind::Exit(_))).await;
    assert_eq!(event.cgroup_id, id_of(&container));
}

#[tokio::test]
async fn untracked_pod_and_its_child_cgroups_have_no_events() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let (old, fence) = (Cgroup::new(memory_hierarchy()), Cgroup::new(memory_hierarchy()));
    source.track(POD, old.path()).expect("track");
    source.track(Slot(8), fence.path()).expect("track");
    let child = old.child("a");
    next_where(&mut source, |e| e.kind == EventKind::CgroupCreated).await;
    source.untrack(POD).expect("untrack");
    fs::create_dir(child.join("b")).expect("make a cgroup");
    old.child("c");
    fence.child("d");
    let event = next_where(&mut source, |e| e.slot.is_some()).await;
    assert_eq!(event.slot, Some(Slot(8)));
}

#[tokio::test]
async fn a_slot_can_move_to_another_directory() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let (old, new) = (Cgroup::new(memory_hierarchy()), Cgroup::new(memory_hierarchy()));
    source.track(POD, old.path()).expect("track");
    source.track(POD, new.path()).expect("track again");
    old.child("a");
    let child = new.child("b");
    let event = next_of(&mut source, POD).await;
    assert_eq!((event.kind, event.cgroup_id), (EventKind::CgroupCreated, id_of(&child)));
}

#[tokio::test]
async fn process_that_exited_before_the_watch_cannot_be_watched() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let mut process = Gated::new(pod.path(), "exit 3");
    process.go();
    let pid = process.pid();
    next_where(&mut source, |e| e.kind == EventKind::Populated(false)).await;
    assert_eq!(source.watch_init(POD, pid).expect("watch"), Watched::Gone, "still a zombie");
    process.wait();
    assert_eq!(source.watch_init(POD, pid).expect("watch"), Watched::Gone);
    let unknown = source.watch_init(Slot(99), pid);
    assert!(matches!(unknown, Err(TrackError::NotTracked(Slot(99)))), "{unknown:?}");
}

#[tokio::test]
async fn a_full_ring_is_counted_and_works_again_once_read() {
    const RING_BYTES: u32 = 4096;
    const PAIRS: usize = 100; // two events of 64 bytes each: three times what the ring holds
    let mut source = or_skip!(open_ebpf(&Options { ring_bytes: RING_BYTES, ..everything() }));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    for _ in 0..PAIRS {
        fs::remove_dir(pod.child("a")).expect("remove the cgroup");
    }
    let dropped = source.dropped();
    let mut batch = Vec::new();
    source.next_batch(&mut batch).await;
    let kept = batch.iter().filter(|event| event.slot == Some(POD)).count();
    assert!(dropped > 0 && kept > 0, "{dropped} dropped, {kept} kept");
    assert_eq!(dropped as usize + kept, 2 * PAIRS);
    let child = pod.child("b");
    let event = next_of(&mut source, POD).await;
    assert_eq!((event.kind, event.cgroup_id), (EventKind::CgroupCreated, id_of(&child)));
    assert_eq!(source.dropped(), dropped);
}

#[tokio::test]
async fn the_unified_hierarchy_is_followed_as_well() {
    let mut source = or_skip!(open_ebpf(&Options::new(Hierarchy::V2)));
    let pod = Cgroup::new(Hierarchy::V2);
    source.track(POD, pod.path()).expect("track");
    let container = pod.child("container");
    let mut runtime = Gated::new(&container, "exec unshare -pf sh -c 'exit 3'");
    runtime.go();
    runtime.wait();
    let id = id_of(&container);
    let mut kinds = Vec::new();
    while kinds.last() != Some(&EventKind::Populated(false)) {
        let event = next_of(&mut source, POD).await;
        if event.cgroup_id == id {
            kinds.push(event.kind);
        }
    }
    let expected = [
        EventKind::CgroupCreated,
        EventKind::Populated(true),
        EventKind::Exec,
        exit(ExitStatus::Code(3)),
        EventKind::Populated(false),
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn a_directory_of_another_hierarchy_is_refused() {
    let mut source = or_skip!(open_ebpf(&everything()));
    let pids = Hierarchy::V1(Controller::Pids);
    let elsewhere = if common::own_cgroup(pids).is_some() {
        Cgroup::new(pids).path().parent().expect("has a parent").to_owned()
    } else {
        "/tmp".into()
    };
    let result = source.track(POD, &elsewhere);
    assert!(
        matches!(result, Err(TrackError::Hierarchy(HierarchyError::Elsewhere { .. }))),
        "{result:?}"
    );
}

/// The agent of a cluster inside containers (kind) is not in the host's pid namespace: the same
/// tests, started as the first process of a new one, prove that process ids are translated.
#[test]
fn every_test_passes_in_a_pid_namespace_of_its_own() {
    const INSIDE: &str = "PINTLE_EBPF_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    or_skip!(common::impossible(memory_hierarchy()).map_or(Ok(()), Err));
    let output = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe().expect("a test binary"))
        .env(INSIDE, "1")
        .output()
        .expect("start unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// The processes are dead, yet the kernel may take a moment to take the last one out.
fn remove_when_empty(dir: &std::path::Path) {
    while let Err(error) = fs::remove_dir(dir) {
        assert_eq!(error.raw_os_error(), Some(16), "busy is the only excuse: {error}");
        std::thread::yield_now();
    }
}
