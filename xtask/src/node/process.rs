//! Finding and ending the processes of one node.
//!
//! Everything started for a node carries its name in the environment, and children inherit it:
//! containerd, the shims, a registry, the agent. Containers have an environment of their own; they
//! are found by the pid that their bundle records. No process is ever chosen by its program's name.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Folder of containers of pods below containerd's state folder; each has a folder with `init.pid`.
pub const TASKS: &str = "io.containerd.runtime.v2.task/k8s.io";
/// The environment variable that marks a node's processes.
pub const MARK: &str = "PINTLE_NODE";

/// A containerd shim: the parent of the processes of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shim {
    /// Its process.
    pub pid: i32,
    /// Id of the sandbox it serves.
    pub sandbox_id: String,
}

/// All running processes, by pid.
pub fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Processes that carry the mark of the node `name`.
pub fn marked(name: &str) -> Vec<i32> {
    with_variable(MARK, name)
}

/// Processes that were started with this variable in their environment.
pub fn with_variable(variable: &str, value: &str) -> Vec<i32> {
    let mark = format!("{variable}={value}");
    let carries = |pid: &i32| {
        let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        env.split(|b| *b == 0).any(|v| v == mark.as_bytes())
    };
    all().into_iter().filter(carries).collect()
}

/// The node's shims, found by their command lines.
pub fn shims(name: &str) -> Vec<Shim> {
    let shim = |pid: i32| {
        let args = arguments(pid);
        let program = Path::new(args.first()?).file_name()?.to_str()?;
        let at = args.iter().position(|a| a == "-id")?;
        // A short-lived `containerd-shim-runc-v2 delete` may run beside the real one.
        let is_shim = program.starts_with("containerd-shim") && !args.iter().any(|a| a == "delete");
        is_shim.then(|| Shim { pid, sandbox_id: args.get(at + 1).cloned().unwrap_or_default() })
    };
    marked(name).into_iter().filter_map(shim).collect()
}

/// Start time of a living process, in clock ticks; none for a process that does not exist or is a
/// zombie without other threads: as long as one thread runs, ports and files are open.
pub fn began(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so the fields are counted from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let began = fields.nth(18)?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    (threads > 1 || !matches!(state, "Z" | "X")).then(|| began.to_owned())
}

/// Returns whether the process exists and has not ended.
pub fn is_running(pid: i32) -> bool {
    began(pid).is_some()
}

/// A process's command line; empty when it is gone or a zombie.
pub fn arguments(pid: i32) -> Vec<String> {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let args = raw.split(|b| *b == 0).filter(|a| !a.is_empty());
    args.map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// Pids of the containers' first processes, by container id, from the bundles in the state folder.
pub fn containers(state: &Path) -> Vec<(String, i32)> {
    let bundles = state.join(TASKS);
    let entries = fs::read_dir(bundles).into_iter().flatten().flatten();
    let init = |dir: PathBuf| {
        let pid = fs::read_to_string(dir.join("init.pid")).ok()?.trim().parse().ok()?;
        Some((dir.file_name()?.to_string_lossy().into_owned(), pid))
    };
    entries.filter_map(|e| init(e.path())).collect()
}

/// Sends a signal; a process that is already gone is fine.
pub fn signal(pid: i32, signal: Signal) {
    assert!(pid > 1, "a node's process is never init");
    let _ = kill(Pid::from_raw(pid), signal);
}
