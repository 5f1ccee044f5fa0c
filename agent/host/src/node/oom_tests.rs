//! Reports of kernels of three ages about a kill, and the resulting events.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use super::*;

const FIRST: &str =
    "hog invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0";
const LAST: &str = "Killed process 4242 (hog) total-vm:10308kB, anon-rss:2048kB, UID:0 \
                    pgtables:56kB oom_score_adj:0";

fn record(message: &str) -> String {
    format!("4,1201,98765432,-;{message}\n SUBSYSTEM=memory\n DEVICE=+memory:x\n")
}

/// The line of the verdict, with the constraint and the owner of the limit.
fn verdict(constraint: &str, owner: &str) -> String {
    format!(
        "oom-kill:constraint={constraint},nodemask=(null),cpuset=c1,mems_allowed=0-1,{owner},\
         task_memcg=/kubepods/podu/c1,task=hog,pid=4242,uid=0"
    )
}

fn told(messages: &[String]) -> Vec<String> {
    let mut log = OomLines::default();
    let kills = messages.iter().filter_map(|message| log.take(record(message).as_bytes()));
    kills.map(|kill| kill.event().message).collect()
}

#[test]
fn node_oom_kill_is_reported_and_a_cgroup_oom_kill_is_not() {
    let node = "System OOM encountered, victim process: hog, pid: 4242";
    let line = |text: &str| text.to_owned();
    let last = |who: &str| format!("{who}: {LAST}");
    for (what, lines, want) in [
        ("the node", vec![verdict("CONSTRAINT_NONE", "global_oom"), last("Out of memory")], true),
        ("a cpuset", vec![verdict("CONSTRAINT_CPUSET", "global_oom"), last("Out of memory")], true),
        ("a cgroup", vec![verdict("CONSTRAINT_MEMCG", "oom_memcg=/kubepods/podu")], false),
        ("the root's limit", vec![verdict("CONSTRAINT_MEMCG", "oom_memcg=/")], true),
        ("the node before 5.0", vec![line("[ pid ] uid name"), line(LAST)], true),
        (
            "a cgroup before 5.0",
            vec![
                line("Task in /kubepods/podu/c1 killed as a result of limit of /kubepods/podu"),
                line(LAST),
            ],
            false,
        ),
        (
            "the root's limit before 5.0",
            vec![line("Task in /a killed as a result of limit of /"), line(LAST)],
            true,
        ),
        ("no process to kill", vec![line("System is deadlocked on memory")], false),
    ] {
        let lines = [vec![line(FIRST), line("Mem-Info:")], lines].concat();
        assert_eq!(told(&lines), Vec::from_iter(want.then_some(node)), "{what}");
    }
}

#[test]
fn each_node_oom_kill_is_reported_once_despite_interleaved_lines() {
    let of_cgroup = verdict("CONSTRAINT_MEMCG", "oom_memcg=/kubepods/podu");
    let log = [
        // The end of a kill without its beginning, which the log has lost.
        LAST,
        FIRST,
        &of_cgroup,
        // Its last line belongs to no kill any more.
        LAST,
        FIRST,
        "eth0: link up",
        "Killed process a (b)",
        "Killed process 7 (odd (name)) total-vm:1kB",
        "eth0: link down",
        FIRST,
        "Killed process 8 (next) total-vm:1kB",
    ];
    let want = ["odd (name), pid: 7", "next, pid: 8"]
        .map(|victim| format!("System OOM encountered, victim process: {victim}"));
    assert_eq!(told(&log.map(str::to_owned)), want);
}

#[test]
fn the_event_is_the_kubelets() {
    let named = Kill { pid: 7, process: "hog".to_owned() };
    for (kill, want) in [
        (named.clone(), "System OOM encountered, victim process: hog, pid: 7"),
        (Kill { pid: 0, ..named.clone() }, "System OOM encountered"),
        (Kill { process: String::new(), ..named }, "System OOM encountered"),
    ] {
        let event = kill.event();
        assert_eq!((event.warning, event.reason, &*event.message), (true, "SystemOOM", want));
    }
}

#[test]
fn invalid_kernel_log_records_are_skipped() {
    let mut log = OomLines::default();
    for bytes in [&b""[..], b";", b"no record", b"6,1,2,-;\n", b"6,1,2,-;\xff\xfe"] {
        assert_eq!(log.take(bytes), None, "{bytes:?}");
    }
    assert_eq!(log.take(record(FIRST).as_bytes()), None);
    assert_eq!(log.take(b""), None);
    assert!(log.take(record(LAST).as_bytes()).is_some());
}

/// Datagrams are read like the kernel's log: one at a time, whole.
#[tokio::test(flavor = "current_thread")]
async fn kernel_log_backlog_is_read_before_new_records() {
    let (kernel, ours) = UnixDatagram::pair().expect("a pair");
    ours.set_nonblocking(true).expect("not blocking");
    let log = watch(File::from(OwnedFd::from(ours))).expect("watched");
    let say = |message: &str| {
        kernel.send(record(message).as_bytes()).expect("said");
    };
    let verdict = verdict("CONSTRAINT_MEMCG", "oom_memcg=/kubepods/podu");
    let of_cgroup = [FIRST, &verdict, LAST];
    of_cgroup.into_iter().chain([FIRST, LAST]).for_each(say);
    let pids = RefCell::new(Vec::new());
    let (past, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let read = follow(&log, |told| {
        pids.borrow_mut().push(match told {
            OomVictimLine::Node(kill) => (kill.pid, false),
            OomVictimLine::Container(kill) => (kill.pid, true),
        });
        past.send(()).expect("the test receives it");
    });
    let speak = async {
        seen.recv().await.expect("the past");
        of_cgroup.into_iter().for_each(say);
        seen.recv().await.expect("the news of a container");
        [FIRST, "Killed process 8 (next) total-vm:1kB"].into_iter().for_each(say);
        seen.recv().await.expect("the news");
    };
    tokio::select! {
        error = read => panic!("{error}"),
        () = speak => {}
    }
    // Container kills of the past are not reported again.
    assert_eq!(*pids.borrow(), [(4242, false), (4242, true), (8, false)]);
}
