//! Keeps container logs at their limit: one task, woken by writes.
//!
//! ```text
//!   LogCommand ──> ┌──────────────────────────────────────────────┐ ──> Reopen (the runtime)
//!   first write ─> │ one Pace per log; fstat of an open descriptor│ ──> open, rename, delete
//!   its deadline ─>└──────────────────────────────────────────────┘ ──> gzip
//! ```
//! Owner: this task alone touches rotated logs. A silent log costs an inotify watch that fires once
//! (`IN_ONESHOT`); a growing one is checked when its `Pace` is due, by `fstat` of a descriptor kept
//! open (about 1 µs). Bounds: `ROTATIONS_MAX` rotations at once, so that a runtime call that hangs
//! holds up its own log only; one compression at a time; after a failed rotation the log is tried
//! again after `RETRY`. Every name is opened, renamed and removed in the pool for blocking work
//! (`blocking`), as a pod that mounts the folder can put anything there. A watch is a hint:
//! `BACKSTOP` stands behind it. Without inotify every log is checked each `POLL`. It never writes
//! to a log.

pub mod log_files;
pub mod log_read;
pub mod log_rotate;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use pintle_agent_core::logs::pace::{LogStep, Pace};
use pintle_agent_core::types::{ContainerId, PodUid};
use pintle_agent_host::volume::error::IoFailure;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::regular_file;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::Instant;

use log_rotate::RotatePolicy;

/// Rotations at once; each is a rename and one call of the runtime.
const ROTATIONS_MAX: usize = 8;
/// Look again after a rotation that failed; doubled with each further failure.
const RETRY: Duration = Duration::from_secs(1);
/// Doublings of `RETRY`.
const RETRY_DOUBLINGS: u32 = 6;
/// Free bytes below which a refused reopen is taken for a full disk.
const FULL_BELOW: u64 = 1 << 20;
/// How often every log is checked where inotify is unavailable.
const POLL: Duration = Duration::from_secs(1);
/// How often a silent log is checked, should its watch have missed a write.
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

/// Reason why a log is not rotated; a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RotateError {
    /// The runtime does not open the log again.
    #[error("{0}")]
    Reopen(String),
    /// A file cannot be moved, read or removed.
    #[error("{0}")]
    Files(String),
}

/// The runtime's ReopenContainerLog.
pub trait Reopen {
    /// Has the runtime open the container's log by its name.
    fn reopen(&self, id: &ContainerId) -> impl Future<Output = Result<(), RotateError>>;
}

/// Keeps logs at their limit.
pub struct Rotator<R> {
    reopen: Rc<R>,
    policy: RotatePolicy,
    logs: BTreeMap<ContainerId, RotatedLog>,
    /// The logs in the order of their next check; as `RotatedLog::due` says.
    due: BTreeSet<(Instant, ContainerId)>,
    inotify: Option<AsyncFd<InotifyHandle>>,
    watched: HashMap<WatchDescriptor, ContainerId>,
    started: Instant,
    /// Rotations under way.
    rotations: usize,
}

struct RotatedLog {
    path: PathBuf,
    /// The live file; `None` until it can be opened.
    file: Option<File>,
    pace: Pace,
    /// When to look; `None` while it is being opened or rotated.
    due: Option<Instant>,
    /// The watch for the next write.
    watch: Option<WatchDescriptor>,
    /// It is being opened or rotated.
    busy: bool,
    /// There is no regular file by its name.
    missing: bool,
    /// Failed rotations in a row.
    failures: u32,
}

/// The action for a log after a check.
enum LogAction {
    Open,
    Rotate,
}

/// The result of the action.
enum LogOutcome {
    Opened(Option<File>),
    Rotated(Result<(), RotateError>),
}

type Work = LocalBoxFuture<'static, (ContainerId, LogOutcome)>;

/// Inotify's descriptor, as `AsyncFd` wants it.
struct InotifyHandle(Inotify);

impl AsRawFd for InotifyHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsFd for InotifyHandle {
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
        let inotify =
            inotify.and_then(|i| AsyncFd::with_interest(InotifyHandle(i), Interest::READABLE));
        if let Err(error) = &inotify {
            tracing::warn!(%error, "no inotify: container logs are looked at once a second");
        }
        Self {
            reopen: Rc::new(reopen),
            policy,
            logs: BTreeMap::new(),
            due: BTreeSet::new(),
            inotify: inotify.ok(),
            watched: HashMap::new(),
            started: Instant::now(),
            rotations: 0,
        }
    }

    /// Until `commands` is closed. Not `Send`: it belongs to the thread of decisions.
    pub async fn run(mut self, mut commands: mpsc::Receiver<LogCommand>) {
        let mut work: FuturesUnordered<Work> = FuturesUnordered::new();
        loop {
            for (id, wanted) in self.due() {
                work.extend(self.begin(id, &wanted));
            }
            let next = self.next_deadline(self.rotations < ROTATIONS_MAX);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
                Some((id, done)) = work.next() => self.finish(&id, done),
                () = self.wait_for_writes() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn command(&mut self, command: LogCommand) {
        match command {
            LogCommand::Watch { id, path } => {
                if self.logs.get(&id).is_some_and(|log| log.path == path) {
                    return;
                }
                let pace = Pace::new(self.policy.max_bytes, 0, self.started.elapsed());
                let (due, watch, file) = (None, None, None);
                let (busy, missing) = (false, false);
                let log = RotatedLog { path, file, pace, due, watch, busy, missing, failures: 0 };
                self.forget(&id);
                self.logs.insert(id.clone(), log);
                self.set_due(&id, Some(Instant::now()));
            }
            LogCommand::Forget { id } => self.forget(&id),
        }
    }

    /// Checks every log that is due and returns the actions.
    fn due(&mut self) -> Vec<(ContainerId, LogAction)> {
        let now = Instant::now();
        let due = self.due.iter().take_while(|(at, _)| *at <= now);
        let ids: Vec<ContainerId> = due.map(|(_, id)| id.clone()).collect();
        let mut room = ROTATIONS_MAX.saturating_sub(self.rotations);
        let mut wanted = Vec::new();
        for id in ids {
            match self.look(&id) {
                None => wanted.push((id, LogAction::Open)),
                Some(LogStep::Rotate) if room > 0 => {
                    room -= 1;
                    wanted.push((id, LogAction::Rotate));
                }
                // No room: it stays due and is taken when a rotation ends.
                Some(LogStep::Rotate) => {}
                Some(LogStep::Look(after)) => self.set_due(&id, Some(now + after)),
                Some(LogStep::Sleep) => self.sleep(&id),
            }
        }
        wanted
    }

    /// `None` when it has to be opened first.
    fn look(&mut self, id: &ContainerId) -> Option<LogStep> {
        let now = self.started.elapsed();
        let Some(log) = self.logs.get_mut(id) else { return Some(LogStep::Sleep) };
        match log.size() {
            Some(size) => Some(log.pace.observe(size, now)),
            // The runtime reopens it; a file in its place is moved aside.
            None if log.missing => Some(LogStep::Rotate),
            None => None,
        }
    }

    fn set_due(&mut self, id: &ContainerId, due: Option<Instant>) {
        self.change(id, |log| log.due = due);
    }

    /// Changes a log and enters when it is due then.
    fn change<T>(
        &mut self,
        id: &ContainerId,
        change: impl FnOnce(&mut RotatedLog) -> T,
    ) -> Option<T> {
        let log = self.logs.get_mut(id)?;
        let before = log.due;
        let changed = change(log);
        if before != log.due {
            self.due.extend(log.due.map(|at| (at, id.clone())));
            if let Some(at) = before {
                self.due.remove(&(at, id.clone()));
            }
        }
        Some(changed)
    }

    fn forget(&mut self, id: &ContainerId) {
        let Some(log) = self.logs.remove(id) else { return };
        if let Some(at) = log.due {
            self.due.remove(&(at, id.clone()));
        }
        self.unwatch(log.watch);
    }

    /// Waits for the next write of a log that is silent.
    fn sleep(&mut self, id: &ContainerId) {
        let watch = self.watch(id);
        let Some(log) = self.logs.get_mut(id) else { return };
        let before = std::mem::replace(&mut log.watch, watch);
        // Writes before the watch was set are seen now.
        let wait = match watch {
            Some(_) if log.size() != Some(log.pace.size()) => Duration::ZERO,
            Some(_) => BACKSTOP,
            None => POLL,
        };
        self.set_due(id, Some(Instant::now() + wait));
        if before != watch {
            self.unwatch(before);
        }
    }

    fn watch(&mut self, id: &ContainerId) -> Option<WatchDescriptor> {
        let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
        let (inotify, file) = (self.inotify.as_ref()?, self.logs.get(id)?.file.as_ref()?);
        // The open file itself: its name may lead elsewhere by now.
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify.get_ref().0.add_watch(file.as_str(), flags).ok()?;
        self.watched.insert(watch, id.clone());
        Some(watch)
    }

    fn unwatch(&mut self, watch: Option<WatchDescriptor>) {
        let (Some(inotify), Some(watch)) = (&self.inotify, watch) else { return };
        if self.watched.remove(&watch).is_some() {
            // Gone already when the file was deleted.
            let _ = inotify.get_ref().0.rm_watch(watch);
        }
    }

    async fn wait_for_writes(&mut self) {
        let events = {
            let Some(inotify) = &self.inotify else { return std::future::pending().await };
            let Ok(mut ready) = inotify.readable().await else {
                return std::future::pending().await;
            };
            match inotify.get_ref().0.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return ready.clear_ready(),
                Err(_) => Vec::new(),
            }
        };
        let now = self.started.elapsed();
        for event in events {
            let Some(id) = self.watched.remove(&event.wd) else { continue };
            self.change(&id, |log| {
                log.watch = None;
                if !log.busy
                    && let LogStep::Look(after) = log.pace.woken(now)
                {
                    log.due = Some(Instant::now() + after);
                }
            });
        }
    }

    fn next_deadline(&self, room: bool) -> Option<Instant> {
        // With no room for a rotation, a due log waits for one to end.
        let now = Instant::now();
        match self.due.first()? {
            (at, _) if room || *at > now => Some(*at),
            // There are as many as came due at once.
            _ => self.due.iter().map(|(at, _)| *at).find(|at| *at > now),
        }
    }

    /// Touches nothing of `self` until it ends, so many run at once.
    fn begin(&mut self, id: ContainerId, wanted: &LogAction) -> Option<Work> {
        let path = self.change(&id, |log| {
            (log.busy, log.due) = (true, None);
            log.path.clone()
        })?;
        match wanted {
            LogAction::Open => {
                Some(Box::pin(async move { (id, LogOutcome::Opened(open(path).await)) }))
            }
            LogAction::Rotate => {
                self.rotations += 1;
                let (reopen, policy) = (Rc::clone(&self.reopen), self.policy);
                Some(Box::pin(async move {
                    let done = rotate(&*reopen, &id, &path, policy).await;
                    if done.is_ok() {
                        tidy_in_background(path, policy.max_files);
                    }
                    (id, LogOutcome::Rotated(done))
                }))
            }
        }
    }

    fn finish(&mut self, id: &ContainerId, outcome: LogOutcome) {
        if matches!(outcome, LogOutcome::Rotated(_)) {
            self.rotations = self.rotations.saturating_sub(1);
        }
        let now = self.started.elapsed();
        self.change(id, |log| {
            log.busy = false;
            match outcome {
                LogOutcome::Opened(file) => {
                    log.missing = file.is_none();
                    log.file = file;
                    // To be checked in its current state.
                    log.due = Some(Instant::now());
                }
                LogOutcome::Rotated(done) => log.rotated(id, done, now),
            }
        });
    }
}

impl RotatedLog {
    /// Size of the live file; `None` when there is none, or none by that name any more.
    fn size(&self) -> Option<u64> {
        let meta = self.file.as_ref().and_then(|file| file.metadata().ok());
        meta.filter(|meta| meta.nlink() > 0).map(|meta| meta.len())
    }

    fn rotated(&mut self, id: &ContainerId, done: Result<(), RotateError>, now: Duration) {
        self.file = None;
        self.missing = false;
        match done {
            Ok(()) => {
                self.failures = 0;
                if let LogStep::Look(after) = self.pace.rotated(0, now) {
                    self.due = Some(Instant::now() + after);
                }
            }
            Err(error) => {
                // Logged once, not with every attempt: a container that just ended refuses too.
                if self.failures == 0 {
                    let path = self.path.display();
                    tracing::warn!(container = %id, %path, %error, "cannot rotate a log");
                }
                let wait = RETRY * (1 << self.failures.min(RETRY_DOUBLINGS));
                self.due = Some(Instant::now() + wait);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The pod that a log is of, by its folder: each pod has its own share of the pool.
fn owner(log: &Path) -> PodUid {
    let folder = log.parent().and_then(Path::parent).and_then(Path::file_name);
    let folder = folder.unwrap_or_default().to_string_lossy();
    PodUid::from(log_files::uid_of_pod_dir(&folder))
}

/// `None` when there is no regular file by that name, or it is unknown.
async fn open(log: PathBuf) -> Option<File> {
    let place = JobPlace::logs(&owner(&log));
    blocking::run(place, move || regular_file::open_log(&log).ok()).await.ok().flatten()
}

/// A step of a rotation.
async fn step<T: Send + 'static>(
    log: &Path,
    work: impl FnOnce(&Path) -> Result<T, IoFailure> + Send + 'static,
) -> Result<T, RotateError> {
    let (place, log) = (JobPlace::logs(&owner(log)), log.to_owned());
    match blocking::run(place, move || log_files::beside(&log, work)).await {
        Ok(done) => done.map_err(|failure| RotateError::Files(failure.to_string())),
        Err(blocked) => Err(RotateError::Files(blocked.to_string())),
    }
}

/// Moves the log aside and has the runtime open a new one; back again when that fails.
// k8s: pkg/kubelet/logs/container_log_manager.go rotateLatestLog, processContainer
async fn rotate<R: Reopen>(
    reopen: &R,
    id: &ContainerId,
    log: &Path,
    policy: RotatePolicy,
) -> Result<(), RotateError> {
    let now = jiff::Timestamp::now();
    let Some(aside) = step(log, move |log| set_aside(log, now)).await? else {
        return reopen.reopen(id).await;
    };
    let mut reopened = reopen.reopen(id).await;
    if reopened.is_err() && step(log, |log| Ok(is_disk_full(log))).await? {
        step(log, log_rotate::drop_oldest).await?;
        reopened = reopen.reopen(id).await;
    }
    if let Err(error) = reopened {
        step(log, move |log| {
            let aside = log.with_file_name(&aside);
            log_rotate::put_back(log, &aside)
        })
        .await?;
        return Err(error);
    }
    step(log, move |log| log_rotate::drop_excess(log, policy.max_files).map(drop)).await
}

/// The new name of the log; `None` when there is none to move.
fn set_aside(log: &Path, now: jiff::Timestamp) -> Result<Option<OsString>, IoFailure> {
    if std::fs::symlink_metadata(log).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let aside = match log_rotate::set_aside(log, now) {
        // A directory that cannot take one more name: the oldest log makes room.
        Err(failure) if log_rotate::is_full(failure.errno) => {
            log_rotate::drop_oldest(log)?;
            log_rotate::set_aside(log, now)?
        }
        result => result?,
    };
    Ok(aside.file_name().map(OsString::from))
}

fn is_disk_full(log: &Path) -> bool {
    let Some(Ok(stat)) = log.parent().map(nix::sys::statvfs::statvfs) else { return false };
    stat.blocks_available().saturating_mul(stat.fragment_size()) < FULL_BELOW
        || (stat.files() > 0 && stat.files_available() == 0)
}

/// Compression takes its time and space: after the rotation, one log at a time.
fn tidy_in_background(log: PathBuf, max_files: usize) {
    pintle_daemon::tasks::spawn("rotated logs", async move {
        let (place, path) = (JobPlace::compression(&owner(&log)), log.clone());
        let tidy = move || log_files::beside(&path, |log| log_rotate::tidy(log, max_files));
        if let Ok(Err(failure)) = blocking::run(place, tidy).await {
            tracing::warn!(path = %log.display(), error = %failure, "cannot tidy up rotated logs");
        }
    });
}

#[cfg(test)]
mod tests;
