//! Open files and sockets of a cgroup's processes, and their limit of open files.
//!
//! Effects: scans `/proc`; only on request, because each open file costs a readlink. Input:
//! `cgroup.procs`, line by line. Bounds: `DESCRIPTORS_MAX` of a cgroup, of `PROCESSES_MAX` of its
//! processes.
// k8s: github.com/google/cadvisor container/libcontainer/handler.go processStatsFromProcs

use std::fs;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt as _;

/// Most open files of a cgroup that are counted.
const DESCRIPTORS_MAX: usize = 65_536;
/// Processes of a cgroup with counted open files; the number of processes is not limited.
const PROCESSES_MAX: usize = 2_048;

/// Open files and sockets of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Processes in the cgroup itself, not below it.
    pub processes: u64,
    /// Open files.
    pub descriptors: u64,
    /// Of those, sockets.
    pub sockets: u64,
    /// How many files the first process may open: its soft limit, -1 without one.
    pub files_soft_limit: Option<i64>,
}

/// Reads the processes of a `cgroup.procs`; one that exits meanwhile counts no open files.
pub(super) fn of(procs: impl BufRead) -> Holds {
    let (mut holds, mut first, mut visible) = (Holds::default(), None, Vec::new());
    for pid in procs.lines().map_while(Result::ok).filter_map(|line| line.trim().parse().ok()) {
        holds.processes += 1;
        // 0 stands for a process outside our pid namespace.
        if pid > 0_u32 {
            first = Some(first.map_or(pid, |first: u32| first.min(pid)));
            if visible.len() < PROCESSES_MAX {
                visible.push(pid);
            }
        }
    }
    let folders = visible.into_iter().map(|pid| fs::read_dir(format!("/proc/{pid}/fd")));
    let entries = folders.filter_map(Result::ok);
    for entry in entries.flatten().flatten().take(DESCRIPTORS_MAX) {
        holds.descriptors += 1;
        let target = fs::read_link(entry.path());
        let is_socket = target.is_ok_and(|t| t.as_os_str().as_bytes().starts_with(b"socket"));
        holds.sockets += u64::from(is_socket);
    }
    let limits = first.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/limits")).ok());
    holds.files_soft_limit = limits.and_then(|text| files_soft_limit(&text));
    holds
}

fn files_soft_limit(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max processes             96312                96312                processes\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(files_soft_limit(text), Some(1024));
        let text = "Max open files            unlimited            unlimited            files\n";
        assert_eq!(files_soft_limit(text), Some(-1));
        assert_eq!(files_soft_limit(""), None);
    }

    #[test]
    fn open_files_and_sockets_of_a_process_are_counted() {
        let mut child = std::process::Command::new("sleep");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let child = child.arg("1000").stdin(std::os::fd::OwnedFd::from(theirs));
        let mut child = child.spawn().expect("it starts");
        drop(ours);
        let holds = of(format!("{}\n", child.id()).as_bytes());
        child.kill().expect("it ends");
        child.wait().expect("it is reaped");
        assert_eq!(holds.processes, 1);
        assert!(holds.descriptors >= 3 && holds.sockets >= 1, "{holds:?}");
        assert!(holds.files_soft_limit.is_some_and(|limit| limit != 0), "{holds:?}");
    }

    #[test]
    fn exited_process_is_counted_without_descriptors() {
        assert_eq!(of(&b"4194999\n0\n"[..]), Holds { processes: 2, ..Holds::default() });
        assert_eq!(of(&b""[..]), Holds::default());
    }

    #[test]
    fn processes_above_the_inspection_limit_are_counted_without_descriptors() {
        let own = std::process::id();
        let many = "4194999\n".repeat(PROCESSES_MAX);
        let holds = of(format!("{many}{own}\n").as_bytes());
        assert_eq!(holds.processes, u64::try_from(PROCESSES_MAX + 1).expect("small"));
        assert_eq!(holds.descriptors, 0, "ours are beyond");
        assert!(of(format!("{own}\n{many}").as_bytes()).descriptors > 0);
    }
}
