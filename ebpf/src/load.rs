//! Loads the eBPF programs and keeps their maps in step with the pods that the caller tracks.
//!
//! Input: the object compiled by build.rs, the kernel's BTF, the hierarchy to follow. Output:
//! attached programs, each on its own (one that the kernel refuses is named and left out), and a
//! [`Ring`] of events. Owner: [`crate::EventSource`]. Bounds: [`CGROUPS_MAX`], of them
//! [`CGROUPS_PER_POD_MAX`] of one pod, [`INITS_MAX`], [`RING_BYTES`].
//!
//! Tracking: the pod's cgroup id is put into a map; the mkdir program adds children by itself.
//! Existing children are added here, a directory before its children are listed: a child that is
//! created later has a tracked parent and is added by the kernel program, and one created earlier
//! is in the list. So none is missed in between.
//!
//! Dropping the value detaches everything: the links live in this process only, nothing is pinned.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};

use crate::decode::Slot;
use crate::hierarchy::Mounted;
use crate::ring::Ring;
use crate::{KernelProgram, Programs, TrackError, Watched};

/// Cgroups followed at once: 1,000 pods of 15 containers with one spare each.
pub const CGROUPS_MAX: u32 = 16_384;
/// Cgroups of one pod: so many that are there when it is tracked, and so many that are made later.
/// A container that can make cgroups leaves room for those of other pods.
pub const CGROUPS_PER_POD_MAX: u32 = 256;
/// Pods that are followed at once.
const PODS_MAX: u32 = 4_096;
/// First processes named by [`crate::EventSource::watch_init`] at once.
pub const INITS_MAX: u32 = 4_096;
/// Size of the event ring: 14,500 events, more than a second of the worst burst measured.
pub const RING_BYTES: u32 = 1 << 20;

const OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pods.bpf.o"));
/// Inode of the host's pid namespace: PROC_PID_INIT_INO, part of the kernel's interface.
const HOST_PID_NAMESPACE: u32 = 0xEFFF_FFFC;
const MAP_CREATE_ONLY: u64 = 1; // BPF_NOEXIST
const COUNTER_RING_FULL: u32 = 0;
const COUNTER_MAP_FULL: u32 = 1;
/// Passes over the map to forget a pod: a child made during one pass is found by the next.
const UNTRACK_PASSES_MAX: u32 = 3;
/// How the lines begin that follow the verifier's reason in its log.
const VERIFIER_STATISTICS: [&str; 3] = ["processed", "stack depth", "verification time"];
const REFUSAL_CHARS_MAX: usize = 240;

/// `struct tracked`: slot and state.
type Entry = [u64; 2];
/// The container's entry point has started.
const STATE_STARTED: u64 = 1;
/// Its first process was named.
const STATE_NAMED: u64 = 2;
/// The mkdir program counted it for its pod.
const STATE_COUNTED: u64 = 4;

/// The reason for which the kernel source is not available at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the kernel offers no BTF type information")]
    Btf(#[source] aya::BtfError),
    #[error("the eBPF object was refused")]
    Object(#[source] Box<aya::EbpfError>),
    #[error("the program for process exits was refused: {0}")]
    NoExit(String),
    #[error("map {name} is unusable")]
    Map { name: &'static str, source: MapError },
    #[error("the event ring cannot be polled")]
    Poll(#[source] io::Error),
}

struct TrackedPod {
    dir: PathBuf,
    root: u64,
    inits: Vec<u32>,
}

pub(crate) struct Kernel {
    pub(crate) ring: Ring,
    /// Holds the programs and their links.
    _ebpf: Ebpf,
    tracked: HashMap<MapData, u64, Entry>,
    shares: HashMap<MapData, u64, u64>,
    inits: HashMap<MapData, u32, u64>,
    counters: PerCpuArray<MapData, u64>,
    programs: Programs,
    mounted: Mounted,
    pods: BTreeMap<Slot, TrackedPod>,
}

/// The attached programs, and the kernel's errors for the others.
pub(crate) struct Attached {
    pub(crate) programs: Programs,
    pub(crate) refusals: Vec<(KernelProgram, String)>,
}

impl Kernel {
    /// Must be called on a tokio runtime with I/O enabled.
    pub(crate) fn open(
        mounted: Mounted,
        wanted: Programs,
        ring_bytes: u32,
    ) -> Result<(Self, Attached), LoadError> {
        // The kernel's types take tens of megabytes while they are parsed. Memory that the
        // allocator caches for a thread is freed with the thread.
        let (mut ebpf, attached) = std::thread::scope(|scope| {
            let loading = scope.spawn(|| load(&mounted, wanted, ring_bytes));
            loading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let ring: RingBuf<MapData> = take(&mut ebpf, "events")?;
        let kernel = Self {
            ring: Ring::new(ring).map_err(LoadError::Poll)?,
            tracked: take(&mut ebpf, "tracked")?,
            shares: take(&mut ebpf, "shares")?,
            inits: take(&mut ebpf, "inits")?,
            counters: take(&mut ebpf, "counters")?,
            _ebpf: ebpf,
            programs: attached.programs,
            mounted,
            pods: BTreeMap::new(),
        };
        Ok((kernel, attached))
    }

    pub(crate) fn track(&mut self, slot: Slot, dir: &Path) -> Result<(), TrackError> {
        let root = self.mounted.cgroup_id(dir)?;
        if self.pods.get(&slot).is_some_and(|pod| pod.root != root) {
            self.untrack(slot)?;
        }
        let inits = self.pods.remove(&slot).map(|pod| pod.inits).unwrap_or_default();
        self.pods.insert(slot, TrackedPod { dir: dir.to_owned(), root, inits });
        match self.shares.insert(slot.0, 0, MAP_CREATE_ONLY) {
            Err(error) if errno(&error) != Some(libc::EEXIST) => {
                return Err(full(error, PODS_MAX));
            }
            _ => {}
        }
        self.insert_tree(slot, root, dir)
    }

    pub(crate) fn untrack(&mut self, slot: Slot) -> Result<(), TrackError> {
        let Some(pod) = self.pods.remove(&slot) else { return Ok(()) };
        for pid in pod.inits {
            // The number may have passed to a process of another pod since.
            if self.inits.get(&pid, 0).is_ok_and(|owner| owner == slot.0) {
                absent_is_fine(self.inits.remove(&pid))?;
            }
        }
        let root = self.tracked.remove(&pod.root);
        absent_is_fine(self.shares.remove(&slot.0))?;
        match root {
            Ok(()) => {}
            // The directory was removed, so its children were removed before it, and the kernel has
            // dropped all entries.
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for _ in 0..UNTRACK_PASSES_MAX {
            let mine: Vec<u64> = self
                .tracked
                .iter()
                .filter_map(Result::ok)
                .filter(|(_, [owner, _])| *owner == slot.0)
                .map(|(id, _)| id)
                .collect();
            if mine.is_empty() {
                break;
            }
            for id in mine {
                absent_is_fine(self.tracked.remove(&id))?;
            }
        }
        Ok(())
    }

    pub(crate) fn watch_init(&mut self, slot: Slot, pid: u32) -> Result<Watched, TrackError> {
        let pod = self.pods.get_mut(&slot).ok_or(TrackError::NotTracked(slot))?;
        pod.inits.retain(|&known| known != pid && process_lives(known));
        pod.inits.push(pid);
        let (dir, root) = (pod.dir.clone(), pod.root);
        self.inits.insert(pid, slot.0, 0).map_err(|error| full(error, INITS_MAX))?;
        if !self.programs.contains(KernelProgram::CgroupCreated) {
            self.insert_tree(slot, root, &dir)?;
        }
        if let Some(id) = self.mounted.container_of(&dir, pid) {
            let counted = self.tracked.get(&id, 0).map_or(0, |[_, state]| state & STATE_COUNTED);
            let state = STATE_STARTED | STATE_NAMED | counted;
            self.tracked.insert(id, [slot.0, state], 0).map_err(|e| full(e, CGROUPS_MAX))?;
        }
        if process_lives(pid) {
            return Ok(Watched::Yes);
        }
        // It ended before the kernel knew of it: without this its number would be taken for an init
        // again.
        absent_is_fine(self.inits.remove(&pid))?;
        Ok(Watched::Gone)
    }

    /// Events that the kernel could not deliver: ring full, and cgroups it could not follow: map
    /// full.
    pub(crate) fn dropped(&self) -> u64 {
        let sum = |index: u32| -> u64 {
            self.counters.get(&index, 0).map_or(0, |per_cpu| per_cpu.iter().sum())
        };
        sum(COUNTER_RING_FULL) + sum(COUNTER_MAP_FULL)
    }

    /// The containers' cgroups come before those within them, so that a pod with too many of those
    /// is followed as far as containers go.
    fn insert_tree(&mut self, slot: Slot, root: u64, dir: &Path) -> Result<(), TrackError> {
        self.insert(slot, root)?;
        let mut left = CGROUPS_PER_POD_MAX;
        let mut unread = VecDeque::from([dir.to_owned()]);
        while let Some(dir) = unread.pop_front() {
            // A directory that vanished meanwhile has nothing to track.
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            for child in entries.flatten() {
                if child.file_type().is_ok_and(|kind| kind.is_dir()) {
                    left = left
                        .checked_sub(1)
                        .ok_or(TrackError::Full { limit: CGROUPS_PER_POD_MAX })?;
                    self.insert(slot, child.ino())?;
                    unread.push_back(child.path());
                }
            }
        }
        Ok(())
    }

    /// Keeps an entry of the same pod as it is: the kernel may already have noted its start there.
    fn insert(&mut self, slot: Slot, id: u64) -> Result<(), TrackError> {
        match self.tracked.insert(id, [slot.0, 0], MAP_CREATE_ONLY) {
            Ok(()) => return Ok(()),
            Err(error) if errno(&error) != Some(libc::EEXIST) => {
                return Err(full(error, CGROUPS_MAX));
            }
            Err(_) => {}
        }
        if self.tracked.get(&id, 0).is_ok_and(|[owner, _]| owner == slot.0) {
            return Ok(());
        }
        self.tracked.insert(id, [slot.0, 0], 0).map_err(|error| full(error, CGROUPS_MAX))
    }
}

/// The programs, loaded and attached as far as the kernel allows.
fn load(
    mounted: &Mounted,
    wanted: Programs,
    ring_bytes: u32,
) -> Result<(Ebpf, Attached), LoadError> {
    let btf = Btf::from_sys_fs().map_err(LoadError::Btf)?;
    raise_locked_memory();
    let (controller, pid_namespace) = (mounted.controller(), pid_namespace());
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        .override_global("cfg_controller", &controller, true)
        .override_global("cfg_hierarchy", &mounted.id, true)
        .override_global("cfg_pid_namespace", &pid_namespace, true)
        .override_global("cfg_pod_cgroups", &CGROUPS_PER_POD_MAX, true)
        .map_max_entries("tracked", CGROUPS_MAX)
        .map_max_entries("shares", PODS_MAX)
        .map_max_entries("inits", INITS_MAX)
        .map_max_entries("events", ring_bytes)
        .load(OBJECT)
        .map_err(|source| LoadError::Object(Box::new(source)))?;
    let attached = attach_all(&mut ebpf, &btf, wanted);
    if !attached.programs.contains(KernelProgram::Exit) {
        let why = attached.refusals.iter().find(|(program, _)| *program == KernelProgram::Exit);
        let why = why.map_or_else(|| "not asked for".to_owned(), |(_, why)| why.clone());
        return Err(LoadError::NoExit(why));
    }
    Ok((ebpf, attached))
}

/// One after the other, so that each may fail alone. OOM first: which exit program is right depends
/// on it.
fn attach_all(ebpf: &mut Ebpf, btf: &Btf, wanted: Programs) -> Attached {
    let mut attached = Attached { programs: Programs::NONE, refusals: Vec::new() };
    let mut at_exit = wanted.contains(KernelProgram::OomAtExit);
    for program in KernelProgram::IN_ORDER.into_iter().filter(|p| wanted.contains(*p)) {
        let (name, tracepoint) = match program {
            KernelProgram::Oom if at_exit => continue,
            KernelProgram::Oom => ("pod_oom", "mark_victim"),
            KernelProgram::Exit if at_exit => ("pod_exit_oom", "sched_process_exit"),
            KernelProgram::Exit => ("pod_exit", "sched_process_exit"),
            KernelProgram::Exec => ("pod_exec", "sched_process_exec"),
            KernelProgram::CgroupCreated => ("pod_mkdir", "cgroup_mkdir"),
            KernelProgram::CgroupRemoved => ("pod_rmdir", "cgroup_rmdir"),
            KernelProgram::Populated => ("pod_populated", "cgroup_notify_populated"),
            KernelProgram::OomAtExit => continue, // part of Exit
        };
        match attach(ebpf, btf, name, tracepoint) {
            Ok(()) => attached.programs = attached.programs.with(program),
            Err(error) => {
                at_exit |= program == KernelProgram::Oom;
                attached.refusals.push((program, refusal(&error)));
            }
        }
    }
    if at_exit && attached.programs.contains(KernelProgram::Exit) {
        attached.programs = attached.programs.with(KernelProgram::OomAtExit);
    }
    attached
}

fn attach(ebpf: &mut Ebpf, btf: &Btf, name: &str, tracepoint: &str) -> Result<(), ProgramError> {
    let program: &mut BtfTracePoint = ebpf
        .program_mut(name)
        .expect("every name is a program of the embedded object")
        .try_into()
        .expect("every program of the embedded object is a tp_btf one");
    program.load(tracepoint, btf)?;
    program.attach().map(drop)
}

/// One line: the error, and of the verifier's log the last line that says something.
fn refusal(error: &ProgramError) -> String {
    let text = match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let said = log.lines().map(str::trim).rfind(|line| {
                !line.is_empty() && !VERIFIER_STATISTICS.iter().any(|word| line.starts_with(word))
            });
            format!("{io_error}: {}", said.unwrap_or("the verifier said nothing"))
        }
        other => other.to_string(),
    };
    text.replace('\n', " ").chars().take(REFUSAL_CHARS_MAX).collect()
}

fn take<T: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, LoadError> {
    let map = ebpf.take_map(name).expect("every name is a map of the embedded object");
    T::try_from(map).map_err(|source| LoadError::Map { name, source })
}

/// Inode of the agent's pid namespace, 0 for the host's: there process ids need no translation.
fn pid_namespace() -> u32 {
    let inode = fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino());
    match u32::try_from(inode) {
        Ok(HOST_PID_NAMESPACE) | Err(_) => 0,
        Ok(inode) => inode,
    }
}

/// Before kernel 5.11 maps count against this limit. Without the right to raise it the maps may
/// still fit.
fn raise_locked_memory() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// A zombie does not live: it has passed the exit program already.
pub(crate) fn process_lives(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may hold anything, so the state is what follows the last of them.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(syscall) => syscall.io_error.raw_os_error(),
        _ => None,
    }
}

fn is_absent(error: &MapError) -> bool {
    matches!(error, MapError::KeyNotFound | MapError::ElementNotFound)
        || errno(error) == Some(libc::ENOENT)
}

fn absent_is_fine(result: Result<(), MapError>) -> Result<(), TrackError> {
    match result {
        Err(error) if !is_absent(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

fn full(error: MapError, limit: u32) -> TrackError {
    match errno(&error) {
        Some(libc::E2BIG) => TrackError::Full { limit },
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_lives_and_an_ended_unreaped_child_does_not() {
        assert!(process_lives(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("spawn");
        let pid = child.id();
        // A zombie until it is waited for; the pipe-free way to know that it has ended is to look.
        while process_lives(pid) {
            std::thread::yield_now();
        }
        child.wait().expect("wait");
        assert!(!process_lives(pid));
    }
}
