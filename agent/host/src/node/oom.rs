//! `SystemOOM`: the node as a whole had no memory left, and the kernel killed a process for it; and
//! victims of a container's limit (`container_oom`).
//!
//! Input: the kernel's log, a record at a time, from its oldest one on: records that it still holds
//! at the start of the agent are reported again, as by a kubelet. Output: an event about the node
//! for each kill that was not caused by a cgroup's limit; of other kills only new ones, not those
//! of the past. `OomLines` is pure, `run` has the effects; owner: its task. Bounds:
//! `RECORD_BYTES_MAX`, and `RECORDS_MAX` records before other tasks run.
//!
//! The log, because no other source names the scope that ran out of memory: the kernel's tracepoint
//! has the victim alone, counters of cgroups have no names. It costs nothing while no records
//! arrive. An agent without permission to read it has no such event; nothing else depends on it.
// k8s: pkg/kubelet/oom/oom_watcher_linux.go Start
// k8s: github.com/google/cadvisor/utils/oomparser/oomparser.go StreamOoms

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use tokio::io::unix::AsyncFd;

use super::conditions::NodeEvent;
use super::conditions::NodeEvents;
use super::container_oom::{ContainerKill, Lines};

const KERNEL_LOG: &str = "/dev/kmsg";
/// The kernel makes none that is longer.
const RECORD_BYTES_MAX: usize = 8192;
/// Records read at a time: at the start there may be thousands.
const RECORDS_MAX: usize = 256;

/// Reports every kill in the kernel's log, those of the past first. Ends where the log cannot be
/// read.
pub async fn run(emit: NodeEvents, mut of_container: impl FnMut(ContainerKill)) {
    let report = |victim| match victim {
        OomVictimLine::Node(kill) => emit(kill.event()),
        OomVictimLine::Container(kill) => of_container(kill),
    };
    let error = match open() {
        Ok(log) => follow(&log, report).await,
        Err(error) => error,
    };
    tracing::warn!(
        %error,
        "{KERNEL_LOG} cannot be read: no events for out of memory on the whole node"
    );
}

fn open() -> io::Result<AsyncFd<File>> {
    let flags = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(flags).open(KERNEL_LOG)?;
    watch(file)
}

fn watch(file: File) -> io::Result<AsyncFd<File>> {
    // `register` is unsafe because a type may hand out a descriptor it does not own. A file owns
    // its own, and the crate has no unsafe code.
    #[allow(deprecated)]
    AsyncFd::new(file)
}

/// Each read gives one record. Returns why there are no more.
async fn follow(log: &AsyncFd<File>, mut report: impl FnMut(OomVictimLine)) -> io::Error {
    let (mut oom_lines, mut lines, mut is_past) = (OomLines::default(), Lines::default(), true);
    let mut record = vec![0; RECORD_BYTES_MAX];
    loop {
        let mut ready = match log.readable().await {
            Ok(ready) => ready,
            Err(error) => return error,
        };
        for _ in 0..RECORDS_MAX {
            match log.get_ref().read(&mut record) {
                Ok(0) => return ErrorKind::UnexpectedEof.into(),
                Ok(bytes) => {
                    let record = &record[..bytes];
                    oom_lines
                        .take(record)
                        .into_iter()
                        .for_each(|kill| report(OomVictimLine::Node(kill)));
                    let kill = line(record).and_then(|line| lines.take(&line));
                    kill.filter(|_| !is_past)
                        .into_iter()
                        .for_each(|k| report(OomVictimLine::Container(k)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    is_past = false;
                    break;
                }
                // The next record was overwritten before it was read; reading continues behind it.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
        tokio::task::yield_now().await;
    }
}

/// The kill that a line of the log completes.
#[derive(Debug)]
enum OomVictimLine {
    Node(Kill),
    Container(ContainerKill),
}

/// A process was killed because the node had no memory left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kill {
    pub(super) pid: i64,
    pub(super) process: String,
}

impl Kill {
    fn event(&self) -> NodeEvent {
        let mut message = "System OOM encountered".to_owned();
        if !self.process.is_empty() && self.pid != 0 {
            message.push_str(&format!(", victim process: {}, pid: {}", self.process, self.pid));
        }
        NodeEvent { warning: true, reason: "SystemOOM", message }
    }
}

/// The kernel's lines about a kill, from its first line to the one that names the victim.
#[derive(Debug, Default)]
struct OomLines {
    /// The kill that it is speaking of.
    open: Option<OomReport>,
}

#[derive(Debug, Default)]
struct OomReport {
    /// A cgroup's limit was met, and it is not the root's.
    of_cgroup: bool,
    victim: Kill,
}

impl OomLines {
    /// Takes a record, `PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE` and lines with more; returns a kill
    /// once its report is complete, unless it is a cgroup's own.
    fn take(&mut self, record: &[u8]) -> Option<Kill> {
        let line = &*line(record)?;
        let Some(report) = &mut self.open else {
            if line.contains("invoked oom-killer:") {
                self.open = Some(OomReport::default());
            }
            return None;
        };
        if !report.is_complete_with(line) {
            return None;
        }
        let report = self.open.take()?;
        (!report.of_cgroup).then_some(report.victim)
    }
}

/// The message of a record.
fn line(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (_, message) = record.split_once(';')?;
    message.lines().next().map(str::to_owned)
}

impl OomReport {
    /// Reads a line; true once the victim is known. Without a cgroup's limit that takes the very
    /// last line.
    fn is_complete_with(&mut self, line: &str) -> bool {
        if let Some(verdict) = CgroupKillLine::of(line) {
            self.of_cgroup = verdict.limit != "/";
            if let Ok(pid) = verdict.pid.parse() {
                self.victim = Kill { pid, process: verdict.process.to_owned() };
                return true;
            }
        } else if let Some(limit) = limit_before_5_0(line) {
            self.of_cgroup = limit.split('/').any(|part| !part.is_empty() && part != ".");
        }
        let killed = killed(line);
        let known = killed.is_some();
        self.victim = killed.unwrap_or_else(|| std::mem::take(&mut self.victim));
        known
    }
}

/// The line that kernels since 5.0 write when a cgroup met its limit. It has another form when the
/// node did: `global_oom` in place of the limit's owner.
pub(super) struct CgroupKillLine<'a> {
    pub(super) limit: &'a str,
    /// The victim's own.
    pub(super) cgroup: &'a str,
    process: &'a str,
    pid: &'a str,
}

impl<'a> CgroupKillLine<'a> {
    /// From the end, as the process' name is its owner's choice.
    pub(super) fn of(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once("oom-kill:constraint=")?;
        let (rest, _uid) = rest.rsplit_once(",uid=")?;
        let (rest, pid) = rest.rsplit_once(",pid=")?;
        let (rest, process) = rest.rsplit_once(",task=")?;
        let (rest, cgroup) = rest.rsplit_once(",task_memcg=")?;
        let (_, limit) = rest.rsplit_once(",oom_memcg=")?;
        Some(Self { limit, cgroup, process, pid })
    }
}

fn limit_before_5_0(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("Task in ")?;
    rest.rsplit_once(" killed as a result of limit of ").map(|(_, limit)| limit)
}

/// `Killed process 7 (name) …`
pub(super) fn killed(line: &str) -> Option<Kill> {
    let (_, rest) = line.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (process, _) = rest.rsplit_once(')').filter(|(process, _)| !process.is_empty())?;
    Some(Kill { pid: pid.parse().ok()?, process: process.to_owned() })
}

#[cfg(test)]
#[path = "oom_tests.rs"]
mod tests;
