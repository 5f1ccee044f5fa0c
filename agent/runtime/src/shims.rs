//! Shims of containerd: which processes they are, and those that nothing belongs to any more.
//!
//! When an agent dies in the middle of RunPodSandbox, containerd gives the sandbox up and may leave
//! its shim behind: no list shows it, and it never ends. Input: `/proc`, the known sandboxes, and
//! containerd's records by id. Output: shims to log, each once. Never ends one: a person may want
//! to look at it first. A shim counts as left over when it is connected to our runtime's socket, is
//! in CRI's namespace, belongs to no known sandbox, has no record in containerd, and all that held
//! in two looks, `driver::SWEEP_EVERY` apart: a record is made before its shim and removed before
//! it. Bounds: `PROCESSES_MAX` processes read, `CMDLINE_BYTES_MAX` of each command line.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use pintle_agent_core::view::Snapshot;
use pintle_cri::containerd::NAMESPACE;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::twice::Twice;

use crate::execute::Executor;

/// Processes of the node that are read.
const PROCESSES_MAX: usize = 65_536;
/// Bytes of a command line that are read; a shim's is a few hundred.
const CMDLINE_BYTES_MAX: u64 = 4096;
/// After the first looks there is one pair of them in this many sweeps.
const SWEEPS_PER_PAIR: u32 = 20;

/// A running shim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shim {
    /// The sandbox that it was started for.
    pub id: String,
    /// Its process.
    pub pid: u32,
    /// containerd's socket, from its command line.
    pub socket: String,
    /// containerd's namespace: other namespaces than CRI's belong to other clients, such as Docker.
    pub namespace: String,
}

impl Shim {
    /// True if the runtime behind this socket started it for CRI.
    fn is_of(&self, socket: &str) -> bool {
        self.socket == socket && self.namespace == NAMESPACE
    }
}

/// All shims below a `/proc`.
pub fn below(proc: &Path) -> Vec<Shim> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let pids = entries.take(PROCESSES_MAX).flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| of_cmdline(&cmdline(proc, pid)?, pid)).collect()
}

fn cmdline(proc: &Path, pid: u32) -> Option<Vec<u8>> {
    let file = File::open(proc.join(pid.to_string()).join("cmdline")).ok()?;
    let mut text = Vec::new();
    file.take(CMDLINE_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The shim with this command line; `None` for any other process.
fn of_cmdline(cmdline: &[u8], pid: u32) -> Option<Shim> {
    let args: Vec<_> = cmdline.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let (program, args) = args.split_first()?;
    if !program.rsplit('/').next()?.starts_with("containerd-shim") {
        return None;
    }
    // Calls of the runtime to the same program, which end by themselves; the shim has no command.
    if args.iter().any(|arg| arg == "start" || arg == "delete") {
        return None;
    }
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg.trim_start_matches('-') == name)?;
        args.get(at + 1).map(|value| value.clone().into_owned())
    };
    let of = |name| value(name).unwrap_or_default();
    Some(Shim { id: value("id")?, pid, socket: of("address"), namespace: of("namespace") })
}

/// Remembers the looks.
#[derive(Debug, Default)]
pub struct ShimWatch {
    sweeps: u32,
    suspects: Twice<Shim>,
    told: BTreeSet<Shim>,
}

impl ShimWatch {
    /// True if this sweep looks for shims.
    fn is_due(&mut self) -> bool {
        let now = self.sweeps;
        self.sweeps = (now + 1) % SWEEPS_PER_PAIR;
        now < 2
    }

    /// Takes the shims of a look; returns those that the look before found too and that were not
    /// logged.
    fn take(&mut self, found: BTreeSet<Shim>) -> Vec<Shim> {
        self.told.retain(|shim| found.contains(shim));
        let again = self.suspects.take(found);
        let news = again.difference(&self.told).cloned().collect();
        self.told.extend(again);
        news
    }
}

impl Executor {
    /// Logs shims without an owner.
    pub async fn look_for_shims(&self, snapshot: &Snapshot) {
        let Some((containerd, socket)) = &self.containerd else { return };
        if !self.foreign.shims.borrow_mut().is_due() {
            return;
        }
        let all = blocking::run(JobPlace::bulk("shims"), || below(Path::new("/proc"))).await;
        let observed = snapshot.pods.values().map(|view| &view.observed).chain(&snapshot.orphans);
        let known: BTreeSet<&str> =
            observed.flat_map(|pod| &pod.sandboxes).map(|sandbox| sandbox.id.as_str()).collect();
        let mut found = BTreeSet::new();
        for shim in all.unwrap_or_default() {
            let strange = shim.is_of(socket) && !known.contains(shim.id.as_str());
            if strange && matches!(containerd.has_container(&shim.id).await, Ok(false)) {
                found.insert(shim);
            }
        }
        for Shim { id, pid, .. } in self.foreign.shims.borrow_mut().take(found) {
            tracing::warn!(
                sandbox = id,
                pid,
                "a shim is left over of a sandbox that containerd has given up; nothing ends it but \
                 a kill of this process"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shim_is_identified_by_its_command_line() {
        let id = |line: &[u8]| of_cmdline(line, 7).map(|shim| shim.id);
        let line =
            b"/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0abc\0-address\0/s\0";
        let [namespace, socket, abc] = ["k8s.io", "/s", "abc"].map(str::to_owned);
        assert_eq!(of_cmdline(line, 7), Some(Shim { id: abc, pid: 7, socket, namespace }));
        assert_eq!(id(b"/bin/sh\0-id\0abc\0"), None);
        assert_eq!(id(b"containerd-shim-runc-v2\0-id\0").as_deref(), Some(""));
        assert_eq!(id(b"containerd-shim-runc-v2\0-id"), None);
        assert_eq!(id(b"containerd-shim-runc-v2\0"), None);
        assert_eq!(id(b"containerd-shim-runc-v2\0-id\0abc\0-bundle\0/b\0delete\0"), None);
        assert_eq!(id(b"containerd-shim-runc-v2\0-id\0abc\0start\0"), None);
        assert_eq!(id(b""), None);
    }

    #[test]
    fn shims_of_another_namespace_or_socket_are_not_ours() {
        for (namespace, socket, ours) in
            [("k8s.io", "/s", true), ("moby", "/s", false), ("k8s.io", "/t", false)]
        {
            let line = format!(
                "containerd-shim-runc-v2\0-namespace\0{namespace}\0-id\0abc\0-address\0{socket}\0"
            );
            let shim = of_cmdline(line.as_bytes(), 7).expect("a shim");
            assert_eq!(shim.is_of("/s"), ours, "{namespace} {socket}");
        }
    }

    #[test]
    fn shim_is_reported_once_and_only_after_two_consecutive_scans() {
        let shim = |pid| Shim {
            id: format!("s{pid}"),
            pid,
            socket: "/s".to_owned(),
            namespace: NAMESPACE.to_owned(),
        };
        let mut watch = ShimWatch::default();
        assert_eq!(watch.take([shim(1)].into()), [], "it may be on its way");
        assert_eq!(watch.take([shim(1), shim(2)].into()), [shim(1)]);
        assert_eq!(watch.take([shim(1), shim(2)].into()), [shim(2)]);
        assert_eq!(watch.take([shim(1)].into()), [], "returned before");
        assert_eq!(watch.take([].into()), []);
        assert_eq!(watch.take([shim(1)].into()), [], "gone and there again: from the beginning");
        assert_eq!(watch.take([shim(1)].into()), [shim(1)]);
    }

    #[test]
    fn shim_scans_are_due_in_pairs() {
        let mut watch = ShimWatch::default();
        let due: Vec<bool> = (0..SWEEPS_PER_PAIR + 2).map(|_| watch.is_due()).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 4);
        assert!(due[0] && due[1] && !due[2] && due[SWEEPS_PER_PAIR as usize]);
    }
}
