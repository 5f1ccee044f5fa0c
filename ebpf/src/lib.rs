//! Kernel events of pods' processes and cgroups.
//!
//! Input: the cgroup directory of each pod, under a number ([`Slot`]) that the caller chooses.
//! Output: a stream of [`KernelEvent`]s: a container's entry point started, its first process ended
//! (with code or signal), the OOM killer chose a process, a cgroup was made, removed, filled or
//! emptied. An event arrives some 20 µs after the fact. It is a hint to read the state again, also
//! for ends that the runtime may have lost, and never a state itself.
//!
//! ```text
//! bpf/pods.bpf.c -> load (maps, programs) -> ring -> decode ─┐
//! pidfd, cgroup.events ────────────────────> fallback ───────┴─> EventSource -> the caller's loop
//! ```
//!
//! [`EventSource::open`] selects the best of three modes that works here: eBPF, else pidfds, else no
//! events, and then the caller lists everything once a second. It logs the mode once, with the
//! reason that a better one failed.
//!
//! Owner: one task of the caller on a tokio runtime with I/O enabled; there is no thread of our
//! own. Bounds: [`CGROUPS_MAX`], [`INITS_MAX`], [`RING_BYTES`], [`BATCH_MAX`], [`PIDFDS_MAX`].
//! Beyond them a call returns an error or [`EventSource::dropped`] grows; when it grows, the caller must
//! list everything once.
#![deny(unsafe_code)] // allowed for registering two descriptors with tokio, and for two system calls

mod decode;
mod fallback;
mod hierarchy;
mod load;
mod process;
mod ring;

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};

use aya::maps::MapError;
use nix::errno::Errno;

pub use process::Process;

pub use decode::{
    Clocks, Comm, DecodeError, EVENT_BYTES, EventKind, Exit, ExitStatus, KernelEvent, Monotonic,
    Slot, decode,
};
pub use fallback::PIDFDS_MAX;
pub use hierarchy::{Controller, Hierarchy, HierarchyError};
pub use load::{CGROUPS_MAX, CGROUPS_PER_POD_MAX, INITS_MAX, RING_BYTES};
pub use ring::BATCH_MAX;

/// Options of a source. [`Options::new`] enables everything.
#[derive(Clone, Debug)]
pub struct Options {
    /// The hierarchy that the pods' cgroups are in.
    pub hierarchy: Hierarchy,
    /// Programs to try; with none, the pidfd mode is used directly.
    pub programs: Programs,
    /// True if the pidfd mode may be used.
    pub pidfd: bool,
    /// Size of the event ring in bytes: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
}

impl Options {
    /// Every program, with fallbacks.
    pub fn new(hierarchy: Hierarchy) -> Self {
        Self { hierarchy, programs: Programs::ALL, pidfd: true, ring_bytes: RING_BYTES }
    }
}

/// One eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KernelProgram {
    /// A container's entry point started.
    Exec = 1,
    /// A container's first process ended; the eBPF mode needs at least this one.
    Exit = 2,
    /// The OOM killer chose a process.
    Oom = 4,
    /// A cgroup was made; also tracks it. Without it, `watch_init` looks for new ones.
    CgroupCreated = 8,
    /// A cgroup was removed.
    CgroupRemoved = 16,
    /// A cgroup was filled or emptied.
    Populated = 32,
    /// The OOM killer chose a process, reported when it ends. Takes the place of [`Self::Oom`]
    /// where the kernel refuses that (some before 6.8), or where it is asked for instead.
    OomAtExit = 64,
}

impl KernelProgram {
    /// As they are loaded: OOM first, because the form of the exit program depends on it.
    const IN_ORDER: [Self; 7] = [
        Self::Oom,
        Self::Exit,
        Self::Exec,
        Self::CgroupCreated,
        Self::CgroupRemoved,
        Self::Populated,
        Self::OomAtExit,
    ];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Exit => "exit",
            Self::Oom => "oom",
            Self::CgroupCreated => "cgroup-created",
            Self::CgroupRemoved => "cgroup-removed",
            Self::Populated => "populated",
            Self::OomAtExit => "oom-at-exit",
        }
    }
}

/// A set of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Programs(u8);

impl Programs {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Every program, each in its best form.
    pub const ALL: Self = Self(63);

    /// True if the set contains the program.
    pub const fn contains(self, program: KernelProgram) -> bool {
        self.0 & program as u8 != 0
    }

    /// The same set with one more.
    pub const fn with(self, program: KernelProgram) -> Self {
        Self(self.0 | program as u8)
    }

    /// The same set without one.
    pub const fn without(self, program: KernelProgram) -> Self {
        Self(self.0 & !(program as u8))
    }
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = KernelProgram::IN_ORDER.into_iter().filter(|p| self.contains(*p));
        for (i, program) in names.enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}", program.name())?;
        }
        Ok(())
    }
}

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Programs in the kernel.
    Ebpf {
        /// Those that are attached.
        programs: Programs,
    },
    /// Exits without a code, and on cgroup v2 whether a pod has processes.
    Pidfd,
    /// No events: the caller lists everything once a second.
    Relist,
}

impl Mode {
    /// The value of the mode's metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ebpf { .. } => "ebpf",
            Self::Pidfd => "pidfd",
            Self::Relist => "relist",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ebpf { programs } => write!(f, "ebpf({programs})"),
            other => f.write_str(other.name()),
        }
    }
}

/// The outcome of watching a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Its exit will be an event.
    Yes,
    /// It had exited already: there will be no event, read its state instead.
    Gone,
    /// This mode has no events at all.
    Never,
}

/// The reason for which a pod or process could not be followed. The caller's relist still sees it.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// The directory is not a cgroup of the followed hierarchy, or was removed.
    #[error(transparent)]
    Hierarchy(#[from] HierarchyError),
    /// A limit is reached.
    #[error("the limit of {limit} entries is reached")]
    Full {
        /// [`CGROUPS_MAX`], [`CGROUPS_PER_POD_MAX`], [`INITS_MAX`] or [`PIDFDS_MAX`].
        limit: u32,
    },
    /// A process was named of a pod that is not tracked.
    #[error("no pod is tracked under {0:?}")]
    NotTracked(Slot),
    /// The kernel refused a map operation.
    #[error("changing an eBPF map")]
    Map(#[from] MapError),
    /// The process could not be opened.
    #[error("opening a pidfd of process {pid}: {errno}")]
    Pidfd {
        /// Its id.
        pid: u32,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The file could not be watched.
    #[error("watching {}: {errno}", path.display())]
    Watch {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
}

enum Backend {
    Ebpf(Box<load::Kernel>),
    Pidfd(fallback::ProcessWatch),
    Relist,
}

/// The stream of events.
pub struct EventSource {
    backend: Backend,
    mode: Mode,
    reasons: Vec<String>,
    pending: VecDeque<KernelEvent>,
}

impl EventSource {
    /// Opens the best mode that works here and logs it in one line. Panics outside of a tokio
    /// runtime with I/O.
    pub fn open(options: &Options) -> Self {
        let mut reasons = Vec::new();
        let (backend, mode) = open_best(options, &mut reasons);
        let why = reasons.join("; ");
        tracing::info!(%mode, hierarchy = ?options.hierarchy, why, "kernel event source");
        Self { backend, mode, reasons, pending: VecDeque::new() }
    }

    /// The active mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The reasons for which a better mode failed or programs were refused; empty without any.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// Follows a pod's cgroup, the ones in it and all to come. What ended before has no event: read
    /// the pod's state after this call. Again with the same directory does nothing; with another it
    /// replaces the first.
    pub fn track(&mut self, slot: Slot, cgroup_dir: &Path) -> Result<(), TrackError> {
        match &mut self.backend {
            Backend::Ebpf(kernel) => kernel.track(slot, cgroup_dir),
            Backend::Pidfd(watch) => watch.track(slot, cgroup_dir),
            Backend::Relist => Ok(()),
        }
    }

    /// Forgets a pod. Events already on their way may still arrive.
    pub fn untrack(&mut self, slot: Slot) -> Result<(), TrackError> {
        match &mut self.backend {
            Backend::Ebpf(kernel) => kernel.untrack(slot),
            Backend::Pidfd(watch) => {
                watch.untrack(slot);
                Ok(())
            }
            Backend::Relist => Ok(()),
        }
    }

    /// Registers a container's first process, from the runtime's status. The pidfd mode needs it
    /// for every container. eBPF needs it only where containers share a PID namespace, because it
    /// finds PID 1 of a namespace by itself; elsewhere the call is harmless.
    pub fn watch_init(&mut self, slot: Slot, pid: u32) -> Result<Watched, TrackError> {
        match &mut self.backend {
            Backend::Ebpf(kernel) => kernel.watch_init(slot, pid),
            Backend::Pidfd(watch) => watch.watch_init(slot, pid),
            Backend::Relist => Ok(Watched::Never),
        }
    }

    /// The next event; never, in [`Mode::Relist`]. Cancel-safe.
    pub async fn next(&mut self) -> KernelEvent {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            let mut batch = Vec::new();
            self.wait(&mut batch).await;
            self.pending = batch.into();
        }
    }

    /// Waits for at least one event and appends up to [`BATCH_MAX`] to `out`; for none when the
    /// source has ended, which `mode` shows. Cancel-safe.
    pub async fn next_batch(&mut self, out: &mut Vec<KernelEvent>) {
        if self.pending.is_empty() {
            self.wait(out).await;
        } else {
            out.extend(self.pending.drain(..));
        }
    }

    /// Events and cgroups lost since the start because a limit was reached. When it grows, list
    /// everything.
    pub fn dropped(&self) -> u64 {
        match &self.backend {
            Backend::Ebpf(kernel) => kernel.dropped() + kernel.ring.malformed(),
            Backend::Pidfd(_) | Backend::Relist => 0,
        }
    }

    async fn wait(&mut self, out: &mut Vec<KernelEvent>) {
        let result = match &mut self.backend {
            Backend::Ebpf(kernel) => kernel.ring.next_batch(out).await,
            Backend::Pidfd(watch) => watch.next_batch(out).await,
            Backend::Relist => std::future::pending().await,
        };
        if let Err(error) = result {
            tracing::error!(%error, "the kernel event source has ended");
            self.reasons.push(format!("{}: {error}", self.mode.name()));
            (self.backend, self.mode) = (Backend::Relist, Mode::Relist);
        }
    }
}

fn open_best(options: &Options, reasons: &mut Vec<String>) -> (Backend, Mode) {
    let mounted = match hierarchy::Mounted::find(options.hierarchy) {
        Ok(mounted) => mounted,
        Err(error) => {
            reasons.push(chain(&error));
            return (Backend::Relist, Mode::Relist);
        }
    };
    if options.programs == Programs::NONE {
        reasons.push("ebpf: switched off".to_owned());
    } else {
        match load::Kernel::open(mounted, options.programs, options.ring_bytes) {
            Ok((kernel, attached)) => {
                let said = attached.refusals.iter().map(|(p, why)| format!("{}: {why}", p.name()));
                reasons.extend(said);
                let mode = Mode::Ebpf { programs: attached.programs };
                return (Backend::Ebpf(Box::new(kernel)), mode);
            }
            Err(error) => reasons.push(format!("ebpf: {}", chain(&error))),
        }
    }
    if !options.pidfd {
        reasons.push("pidfd: switched off".to_owned());
        return (Backend::Relist, Mode::Relist);
    }
    match fallback::ProcessWatch::open(mounted) {
        Ok(watch) => (Backend::Pidfd(watch), Mode::Pidfd),
        Err(error) => {
            reasons.push(format!("pidfd: {error}"));
            (Backend::Relist, Mode::Relist)
        }
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_displayed_as_a_single_word() {
        let programs = Programs::ALL.without(KernelProgram::Exec).without(KernelProgram::Populated);
        let mode = Mode::Ebpf { programs };
        assert_eq!(mode.to_string(), "ebpf(oom,exit,cgroup-created,cgroup-removed)");
        assert_eq!(Mode::Pidfd.to_string(), "pidfd");
        assert_eq!(Mode::Relist.to_string(), "relist");
    }

    #[test]
    fn all_is_every_program_but_the_substitute() {
        let all = KernelProgram::IN_ORDER.into_iter().fold(Programs::NONE, Programs::with);
        assert_eq!(all, Programs::ALL.with(KernelProgram::OomAtExit));
    }
}
