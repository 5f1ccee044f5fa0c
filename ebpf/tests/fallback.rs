//! The modes below eBPF, on the running kernel: pidfds and cgroup.events, then nothing.

mod common;

use std::future::Future;
use std::task::{Context, Waker};

use common::{Cgroup, Gated, Impossible, id_of, impossible, memory_hierarchy, next_of};
use pintle_ebpf::{
    EventKind, EventSource, Exit, Hierarchy, Mode, Options, Programs, Slot, TrackError, Watched,
};

const POD: Slot = Slot(7);
const EXITED: EventKind = EventKind::Exit(Exit { status: None, oom: false });

fn open_pidfd(hierarchy: Hierarchy) -> Result<EventSource, Impossible> {
    if let Some(why) = impossible(hierarchy) {
        return Err(Impossible(why));
    }
    let source =
        EventSource::open(&Options { programs: Programs::NONE, ..Options::new(hierarchy) });
    assert_eq!(source.mode(), Mode::Pidfd, "{:?}", source.reasons());
    assert_eq!(source.reasons(), ["ebpf: switched off"]);
    Ok(source)
}

#[tokio::test]
async fn exit_of_a_watched_process_is_observed_without_its_code_in_pidfd_mode() {
    let mut source = or_skip!(open_pidfd(memory_hierarchy()));
    let pod = Cgroup::new(memory_hierarchy());
    source.track(POD, pod.path()).expect("track");
    let mut processes: Vec<_> = (0..3).map(|_| Gated::new(pod.path(), "exit 3")).collect();
    for process in &processes {
        assert_eq!(source.watch_init(POD, process.pid()).expect("watch"), Watched::Yes);
    }
    for process in processes.iter_mut().rev() {
        process.go();
        let event = loop {
            let event = next_of(&mut source, POD).await;
            if event.pid != 0 {
                break event;
            }
        };
        assert_eq!((event.kind, event.pid), (EXITED, process.pid()));
    }
}

#[tokio::test]
async fn exited_process_or_untracked_pod_cannot_be_watched() {
    let mut source = or_skip!(open_pidfd(memory_hierarchy()));
    let pod = Cgroup::new(memory_hierarchy());
    let mut process = Gated::new(pod.path(), "exit 3");
    let pid = process.pid();
    let unknown = source.watch_init(POD, pid);
    assert!(matches!(unknown, Err(TrackError::NotTracked(POD))), "{unknown:?}");
    source.track(POD, pod.path()).expect("track");
    process.go();
    process.wait();
    assert_eq!(source.watch_init(POD, pid).expect("watch"), Watched::Gone);
}

#[tokio::test]
async fn an_untracked_pods_processes_fall_silent() {
    let mut source = or_skip!(open_pidfd(memory_hierarchy()));
    let (old, fence) = (Cgroup::new(memory_hierarchy()), Cgroup::new(memory_hierarchy()));
    source.track(POD, old.path()).expect("track");
    source.track(Slot(8), fence.path()).expect("track");
    let mut first = Gated::new(old.path(), "exit 3");
    let mut second = Gated::new(fence.path(), "exit 3");
    source.watch_init(POD, first.pid()).expect("watch");
    source.watch_init(Slot(8), second.pid()).expect("watch");
    source.untrack(POD).expect("untrack");
    first.go();
    first.wait();
    second.go();
    loop {
        let event = source.next().await;
        assert_eq!(event.slot, Some(Slot(8)));
        if event.kind == EXITED {
            break;
        }
    }
}

#[tokio::test]
async fn a_pod_on_the_unified_hierarchy_is_seen_to_fill_and_to_empty() {
    let mut source = or_skip!(open_pidfd(Hierarchy::V2));
    let pod = Cgroup::new(Hierarchy::V2);
    source.track(POD, pod.path()).expect("track");
    let container = pod.child("container");
    let mut process = Gated::new(&container, "exit 3");
    let event = next_of(&mut source, POD).await;
    let (kind, id) = (EventKind::Populated(true), id_of(pod.path()));
    assert_eq!((event.kind, event.cgroup_id), (kind, id));
    process.go();
    let event = next_of(&mut source, POD).await;
    assert_eq!((event.kind, event.cgroup_id), (EventKind::Populated(false), id));
}

#[tokio::test]
async fn relist_mode_has_no_events_and_reports_why_other_modes_were_rejected() {
    let hierarchy = Hierarchy::V2;
    or_skip!(impossible(hierarchy).map_or(Ok(()), Err));
    let options = Options { programs: Programs::NONE, pidfd: false, ..Options::new(hierarchy) };
    let mut source = EventSource::open(&options);
    assert_eq!(source.mode(), Mode::Relist);
    assert_eq!(source.reasons(), ["ebpf: switched off", "pidfd: switched off"]);
    source.track(POD, "/nowhere".as_ref()).expect("there is nothing to refuse");
    assert_eq!(source.watch_init(POD, 1).expect("nor here"), Watched::Never);
    let next = std::pin::pin!(source.next());
    assert!(next.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}
