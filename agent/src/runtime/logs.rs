//! Keeps container logs at their limit: one task, woken by writes.
//!
//! ```text
//!   LogCommand ──> ┌──────────────────────────────────────────────┐ ──> Reopen (the runtime)
//!   first write ─> │ one Pace per log; fstat of an open descriptor│ ──> rename, delete
//!   its deadline ─>└──────────────────────────────────────────────┘ ──> gzip on a blocking thread
//! ```
//! Owner: this task alone touches rotated logs. A silent log costs an inotify watch that fires once
//! (`IN_ONESHOT`); a growing one is looked at when its `Pace` says so, by `fstat` of a descriptor
//! kept open (about 1 µs). Bounds: `ROTATIONS_MAX` rotations at once, so that a runtime call that
//! hangs holds up its own log only; one compression at a time; after a failed rotation the log
//! is tried again after `RETRY`. A watch is a hint: `BACKSTOP` stands behind it. Without inotify
//! every log is looked at each `POLL`.
//! It never writes to a log.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use super::log_pace::{Next, Pace};
use super::log_rotate::{self, RotatePolicy};
use crate::types::ContainerId;
use crate::volume::error::IoFailure;

/// Rotations at once; each is a rename and one call of the runtime.
const ROTATIONS_MAX: usize = 8;
/// Look again after a rotation that failed; doubled with each further failure.
const RETRY: Duration = Duration::from_secs(1);
/// Doublings of `RETRY`.
const RETRY_DOUBLINGS: u32 = 6;
/// Free bytes below which a refused reopen is taken for a full disk.
const FULL_BELOW: u64 = 1 << 20;
/// Look at every log that often where inotify cannot be had.
const POLL: Duration = Duration::from_secs(1);
/// Look at a silent log that often, should its watch have missed a write.
const BACKSTOP: Duration = Duration::from_secs(60);
/// Commands waiting for the task.
pub const COMMANDS_MAX: usize = 256;

/// Which logs to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogCommand {
    /// A container runs and writes here. Known ones are left as they are.
    Watch {
        /// Container.
        id: ContainerId,
        /// Its live log.
        path: PathBuf,
    },
    /// A container ended: its log is not rotated any more.
    Forget {
        /// Container.
        id: ContainerId,
    },
}

/// The runtime's ReopenContainerLog.
pub trait Reopen {
    /// Has the runtime open the container's log by its name. The error is a sentence.
    fn reopen(&self, id: &ContainerId) -> impl Future<Output = Result<(), String>>;
}

/// Keeps logs at their limit.
pub struct Rotator<R> {
    reopen: Rc<R>,
    policy: RotatePolicy,
    logs: BTreeMap<ContainerId, Log>,
    inotify: Option<AsyncFd<Watches>>,
    watched: HashMap<WatchDescriptor, ContainerId>,
    started: Instant,
    compressing: Rc<Semaphore>,
}

struct Log {
    path: PathBuf,
    /// The live file; `None` until it can be opened.
    file: Option<File>,
    pace: Pace,
    /// When to look; `None` while it is being rotated.
    due: Option<Instant>,
    rotating: bool,
    /// Failed rotations in a row.
    failures: u32,
}

/// Inotify's descriptor, as `AsyncFd` wants it.
struct Watches(Inotify);

impl AsRawFd for Watches {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<R: Reopen + 'static> Rotator<R> {
    /// Within a runtime, for its timers and its readiness.
    pub fn new(policy: RotatePolicy, reopen: R) -> Self {
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let inotify = Inotify::init(flags).map_err(std::io::Error::from);
        #[allow(deprecated, reason = "its successor is unsafe; `Watches` owns its one descriptor")]
        let inotify = inotify.and_then(|i| AsyncFd::with_interest(Watches(i), Interest::READABLE));
        if let Err(error) = &inotify {
            tracing::warn!(%error, "no inotify: container logs are looked at once a second");
        }
        Self {
            reopen: Rc::new(reopen),
            policy,
            logs: BTreeMap::new(),
            inotify: inotify.ok(),
            watched: HashMap::new(),
            started: Instant::now(),
            compressing: Rc::new(Semaphore::new(1)),
        }
    }

    /// Until `commands` is closed. Not `Send`: it belongs to the thread of decisions.
    pub async fn run(mut self, mut commands: mpsc::Receiver<LogCommand>) {
        let mut rotations = FuturesUnordered::new();
        loop {
            for id in self.due(ROTATIONS_MAX.saturating_sub(rotations.len())) {
                if let Some(path) = self.begin(&id) {
                    rotations.push(self.rotation(id, path));
                }
            }
            let next = self.next_deadline(rotations.len() < ROTATIONS_MAX);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some((id, done)) = rotations.next() => self.finish(&id, done),
                () = self.wait_for_writes() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn command(&mut self, command: LogCommand) {
        match command {
            LogCommand::Watch { id, path } => {
                if self.logs.get(&id).is_some_and(|log| log.path == path) {
                    return;
                }
                let pace = Pace::new(self.policy.max_bytes, 0, self.now());
                let due = Some(Instant::now());
                let log = Log { path, file: None, pace, due, rotating: false, failures: 0 };
                self.logs.insert(id, log);
            }
            LogCommand::Forget { id } => {
                self.logs.remove(&id);
                self.unwatch(&id);
            }
        }
    }

    /// Looks at every log that is due and returns those to rotate, at most `room`.
    fn due(&mut self, room: usize) -> Vec<ContainerId> {
        let now = Instant::now();
        let due = |log: &Log| log.due.is_some_and(|due| due <= now) && !log.rotating;
        let ids: Vec<ContainerId> =
            self.logs.iter().filter(|(_, log)| due(log)).map(|(id, _)| id.clone()).collect();
        let mut full = Vec::new();
        for id in ids {
            match self.look(&id) {
                Next::Rotate if full.len() < room => full.push(id),
                // No room: it stays due and is taken when a rotation ends.
                Next::Rotate => {}
                Next::Look(after) => self.set_due(&id, Some(now + after)),
                Next::Sleep => self.sleep(&id),
            }
        }
        full
    }

    fn look(&mut self, id: &ContainerId) -> Next {
        let now = self.started.elapsed();
        let Some(log) = self.logs.get_mut(id) else { return Next::Sleep };
        match log.size() {
            Some(size) => log.pace.observe(size, now),
            // Its name is gone: the runtime is asked to open it again.
            None => Next::Rotate,
        }
    }

    fn set_due(&mut self, id: &ContainerId, due: Option<Instant>) {
        if let Some(log) = self.logs.get_mut(id) {
            log.due = due;
        }
    }

    /// Waits for the next write of a log that is silent.
    fn sleep(&mut self, id: &ContainerId) {
        let Some(log) = self.logs.get_mut(id) else { return };
        let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        let watch = self.inotify.as_ref().map(|i| i.get_ref().0.add_watch(&log.path, flags));
        match watch {
            Some(Ok(watch)) => {
                log.due = Some(Instant::now() + BACKSTOP);
                self.watched.insert(watch, id.clone());
                // What was written before the watch stood is seen now.
                let size = log.size();
                if size != Some(log.pace.size()) {
                    log.due = Some(Instant::now());
                }
            }
            _ => log.due = Some(Instant::now() + POLL),
        }
    }

    fn unwatch(&mut self, id: &ContainerId) {
        let Some(inotify) = &self.inotify else { return };
        self.watched.retain(|watch, of| {
            if of == id {
                // Gone already when it fired or the file was deleted.
                let _ = inotify.get_ref().0.rm_watch(*watch);
            }
            of != id
        });
    }

    async fn wait_for_writes(&mut self) {
        let Some(inotify) = &self.inotify else { return std::future::pending().await };
        let Ok(mut ready) = inotify.readable().await else {
            return std::future::pending().await;
        };
        let events = match inotify.get_ref().0.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => {
                ready.clear_ready();
                return;
            }
            Err(_) => Vec::new(),
        };
        let now = self.started.elapsed();
        for event in events {
            let Some(id) = self.watched.remove(&event.wd) else { continue };
            let Some(log) = self.logs.get_mut(&id).filter(|log| !log.rotating) else { continue };
            if let Next::Look(after) = log.pace.woken(now) {
                log.due = Some(Instant::now() + after);
            }
        }
    }

    fn next_deadline(&self, room: bool) -> Option<Instant> {
        // With no room for a rotation, what is due waits for one to end.
        let now = Instant::now();
        let waits = |log: &&Log| !log.rotating && (room || log.due.is_some_and(|due| due > now));
        self.logs.values().filter(waits).filter_map(|log| log.due).min()
    }

    fn begin(&mut self, id: &ContainerId) -> Option<PathBuf> {
        let log = self.logs.get_mut(id)?;
        log.rotating = true;
        log.due = None;
        Some(log.path.clone())
    }

    /// One rotation; touches nothing of `self`, so many run at once.
    fn rotation(
        &self,
        id: ContainerId,
        path: PathBuf,
    ) -> impl Future<Output = (ContainerId, Result<(), String>)> + use<R> {
        let (reopen, policy) = (Rc::clone(&self.reopen), self.policy);
        let compressing = Rc::clone(&self.compressing);
        async move {
            let done = rotate(&*reopen, &id, &path, policy).await;
            if done.is_ok() {
                tidy_in_background(compressing, path, policy.max_files);
            }
            (id, done)
        }
    }

    fn finish(&mut self, id: &ContainerId, done: Result<(), String>) {
        let now = self.started.elapsed();
        let Some(log) = self.logs.get_mut(id) else { return };
        log.rotating = false;
        log.file = None;
        match done {
            Ok(()) => {
                log.failures = 0;
                let size = log.size().unwrap_or(0);
                if let Next::Look(after) = log.pace.rotated(size, now) {
                    log.due = Some(Instant::now() + after);
                }
            }
            Err(error) => {
                // Said once, not with every attempt: a container that just ended refuses too.
                if log.failures == 0 {
                    let path = log.path.display();
                    tracing::warn!(container = %id, %path, error, "log is not rotated");
                }
                log.due = Some(Instant::now() + RETRY * (1 << log.failures.min(RETRY_DOUBLINGS)));
                log.failures = log.failures.saturating_add(1);
            }
        }
    }
}

impl Log {
    /// Size of the live file; `None` when there is none by that name.
    fn size(&mut self) -> Option<u64> {
        let known = self.file.as_ref().and_then(|f| f.metadata().ok()).filter(|m| m.nlink() > 0);
        if let Some(meta) = known {
            return Some(meta.len());
        }
        self.file = File::open(&self.path).ok();
        self.file.as_ref()?.metadata().ok().map(|meta| meta.len())
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Moves the log aside and has the runtime open a new one; back again when that fails.
// k8s: pkg/kubelet/logs/container_log_manager.go rotateLatestLog, processContainer
async fn rotate<R: Reopen>(
    reopen: &R,
    id: &ContainerId,
    log: &Path,
    policy: RotatePolicy,
) -> Result<(), String> {
    let text = |failure: IoFailure| failure.to_string();
    if !log.exists() {
        return reopen.reopen(id).await;
    }
    let aside = match log_rotate::set_aside(log, jiff::Timestamp::now()) {
        // A directory that cannot take one more name: the oldest log makes room.
        Err(failure) if log_rotate::is_full(failure.errno) => {
            log_rotate::drop_oldest(log).map_err(text)?;
            log_rotate::set_aside(log, jiff::Timestamp::now()).map_err(text)?
        }
        result => result.map_err(text)?,
    };
    let mut reopened = reopen.reopen(id).await;
    if reopened.is_err() && is_disk_full(log) {
        log_rotate::drop_oldest(log).map_err(text)?;
        reopened = reopen.reopen(id).await;
    }
    if let Err(error) = reopened {
        log_rotate::put_back(log, &aside).map_err(text)?;
        return Err(error);
    }
    log_rotate::drop_excess(log, policy.max_files).map_err(text)?;
    Ok(())
}

fn is_disk_full(log: &Path) -> bool {
    let Some(Ok(stat)) = log.parent().map(nix::sys::statvfs::statvfs) else { return false };
    stat.blocks_available().saturating_mul(stat.fragment_size()) < FULL_BELOW
        || (stat.files() > 0 && stat.files_available() == 0)
}

/// Compression takes its time and space: after the rotation, one log at a time.
fn tidy_in_background(one: Rc<Semaphore>, log: PathBuf, max_files: usize) {
    tokio::task::spawn_local(async move {
        let Ok(_turn) = one.acquire().await else { return };
        let path = log.clone();
        let done = tokio::task::spawn_blocking(move || log_rotate::tidy(&path, max_files)).await;
        if let Ok(Err(failure)) = done {
            tracing::warn!(path = %log.display(), error = %failure, "rotated logs are not tidied");
        }
    });
}

#[cfg(test)]
mod tests;
