//! The processes behind a runtime call: the pod's shim and the container's first process.
//!
//! Effects: reads `/proc`, only when a call has been in flight for `LOOK_AFTER`. The shim is found
//! by its command line (`containerd-shim-… -id SANDBOX`); its working directory is the sandbox's
//! bundle, and beside it lies each container's, whose `init.pid` names the first process. The
//! runtime is not asked, because it is the runtime that hangs. Unreadable facts are left out.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pintle_agent_core::explain;
use pintle_agent_core::explain::{CallProcess, PULL_TURN, RuntimeCall};
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::view::Snapshot;
use pintle_agent_runtime::shims;
use pintle_agent_runtime::shims::Shim;
use pintle_cri::{InFlight, Method};

use super::open::OpenStream;
use super::select;

/// Age of a call from which its processes are looked for.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// Bundles and commands that are read for one call.
const BUNDLES_MAX: usize = 4096;
const COMMANDS_MAX: usize = 4;

/// A request to the runtime that is still in flight.
pub(super) struct InFlightCall {
    method: &'static str,
    subject: String,
    started: Instant,
}

impl InFlightCall {
    /// A call.
    pub(super) fn of_call(call: &InFlight) -> Self {
        let (subject, started) = (call.subject.clone(), call.started);
        Self { method: call.method.name(), subject, started }
    }

    /// A pull that waits for its turn: the runtime was not asked yet.
    pub(super) fn of_turn(subject: String, started: Instant) -> Self {
        Self { method: PULL_TURN, subject, started }
    }

    /// A stream of the HTTPS port: its subject is the newest container of that name, or the pod's
    /// sandbox.
    pub(super) fn of_stream(stream: &OpenStream, snapshot: &Snapshot) -> Option<Self> {
        let view = select::by_name(snapshot, &stream.pod.0, &stream.pod.1)?;
        let subject = match stream.container.as_str() {
            "" => view.observed.newest_sandbox()?.id.as_str().to_owned(),
            name => view.observed.latest(name)?.id.as_str().to_owned(),
        };
        Some(Self { method: stream.what, subject, started: stream.since })
    }
}

/// The runtime calls in flight, with the processes behind those that take long.
pub(super) fn calls(asked: &[InFlightCall], snapshot: &Snapshot, now: Instant) -> Vec<RuntimeCall> {
    let mut shims = None;
    let known = || snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
    let describe = |call: &InFlightCall| {
        let age = now.saturating_duration_since(call.started);
        let about = (age >= LOOK_AFTER && !call.subject.is_empty())
            .then(|| known().find_map(|pod| about(pod, &call.subject)))
            .flatten();
        let processes = about.map(|(sandbox, container)| {
            let shims = shims.get_or_insert_with(|| shims::below(Path::new("/proc")));
            let proc = Path::new("/proc");
            let mut found = processes(proc, shims, sandbox, container);
            if call.method == Method::ExecSync.name() {
                found.extend(commands(proc, shims, sandbox));
            }
            found
        });
        RuntimeCall {
            method: call.method,
            subject: call.subject.clone(),
            age,
            processes: processes.unwrap_or_default(),
        }
    };
    asked.iter().map(describe).collect()
}

/// Sandbox and container that a call's subject names.
fn about<'a>(pod: &'a ObservedPod, subject: &str) -> Option<(&'a str, Option<&'a str>)> {
    if let Some(sandbox) = pod.sandboxes.iter().find(|s| s.id.as_str() == subject) {
        return Some((sandbox.id.as_str(), None));
    }
    let container = pod.containers.iter().find(|c| c.id.as_str() == subject)?;
    Some((container.sandbox_id.as_str(), Some(container.id.as_str())))
}

fn processes(
    proc: &Path,
    shims: &[Shim],
    sandbox: &str,
    container: Option<&str>,
) -> Vec<CallProcess> {
    let Some(shim) = shims.iter().find(|shim| shim.id == sandbox) else { return Vec::new() };
    let bundle = proc.join(shim.pid.to_string()).join("cwd");
    let first = container.and_then(|id| first_process(&bundle, id));
    let shim = process(proc, "its shim", shim.pid);
    let first = first.and_then(|pid| process(proc, "its first process", pid));
    shim.into_iter().chain(first).collect()
}

/// Commands in the sandbox's containers: the shim's children that are no container's first process
/// and not the sandbox's.
fn commands(proc: &Path, shims: &[Shim], sandbox: &str) -> Vec<CallProcess> {
    let Some(shim) = shims.iter().find(|shim| shim.id == sandbox) else { return Vec::new() };
    let shim = shim.pid;
    let bundles = proc.join(shim.to_string()).join("cwd/..");
    let firsts: Vec<u32> = fs::read_dir(&bundles)
        .into_iter()
        .flat_map(|entries| entries.take(BUNDLES_MAX).flatten())
        .filter_map(|entry| fs::read_to_string(entry.path().join("init.pid")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .collect();
    // A child belongs to the thread that made it.
    let tasks = fs::read_dir(proc.join(format!("{shim}/task"))).into_iter();
    let files = tasks.flatten().flatten().map(|task| task.path().join("children"));
    let lists: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    let pids = pids.filter_map(|pid| pid.parse::<u32>().ok()).filter(|pid| !firsts.contains(pid));
    pids.take(COMMANDS_MAX).filter_map(|pid| process(proc, explain::COMMAND, pid)).collect()
}

/// Bundles lie beside each other; the way there leads through the shim's own mount namespace.
fn first_process(bundle: &Path, container: &str) -> Option<u32> {
    let file = bundle.join("..").join(container).join("init.pid");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn process(proc: &Path, role: &'static str, pid: u32) -> Option<CallProcess> {
    let dir = proc.join(pid.to_string());
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    let wait_channel = fs::read_to_string(dir.join("wchan")).ok();
    Some(CallProcess {
        role,
        pid,
        state: state(&stat)?,
        wait_channel: wait_channel.filter(|name| !name.is_empty() && name != "0"),
    })
}

/// The state letter, which follows a name that may hold anything.
fn state(stat: &str) -> Option<char> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_stopped_shim_and_the_containers_first_process_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let (proc, bundles) = (dir.path().join("proc"), dir.path().join("k8s.io"));
        for (pid, name, letter) in [("11", "containerd-shim", 'T'), ("12", "a) b", 'S')] {
            fs::create_dir_all(proc.join(pid)).expect("a process");
            let stat = format!("{pid} ({name}) {letter} 1 1 1");
            fs::write(proc.join(pid).join("stat"), stat).expect("written");
            fs::write(proc.join(pid).join("wchan"), "do_signal_stop").expect("written");
        }
        fs::write(proc.join("12/wchan"), "0").expect("written");
        fs::write(proc.join("11/cmdline"), "/x/containerd-shim-runc-v2\0-id\0s1\0")
            .expect("written");
        fs::write(proc.join("12/cmdline"), "sleep\0inf\0").expect("written");
        fs::create_dir_all(bundles.join("c1")).expect("a bundle");
        fs::create_dir_all(bundles.join("s1")).expect("a bundle");
        fs::write(bundles.join("c1/init.pid"), "12").expect("written");
        symlink(bundles.join("s1"), proc.join("11/cwd")).expect("linked");

        let shims = shims::below(&proc);
        assert_eq!(shims.iter().map(|s| (s.id.as_str(), s.pid)).collect::<Vec<_>>(), [("s1", 11)]);
        let found = processes(&proc, &shims, "s1", Some("c1"));
        let found: Vec<_> =
            found.iter().map(|p| (p.pid, p.state, p.wait_channel.as_deref())).collect();
        assert_eq!(found, [(11, 'T', Some("do_signal_stop")), (12, 'S', None)]);
        assert!(processes(&proc, &shims, "other", None).is_empty());
        // A command is a child of the shim that is no container's first process.
        fs::create_dir_all(proc.join("11/task/11")).expect("a thread");
        fs::write(proc.join("11/task/11/children"), "12 13 ").expect("written");
        fs::create_dir_all(proc.join("13")).expect("a process");
        fs::write(proc.join("13/stat"), "13 (sleep) S 11 1 1").expect("written");
        let found = commands(&proc, &shims, "s1");
        let found: Vec<_> = found.iter().map(|p| (p.role, p.pid, p.state)).collect();
        assert_eq!(found, [(explain::COMMAND, 13, 'S')]);
    }
}
