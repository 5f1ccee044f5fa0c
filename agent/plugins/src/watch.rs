//! Watches the folder of registration sockets, on a thread of its own.
//!
//! Input: the folder. Output: the sockets in it, whenever they change, in a channel that holds the
//! newest list. An inotify event only starts a scan of the whole folder, so a late, doubled or lost
//! event decides nothing; every `CHECK_EVERY` the times of the folders are compared, which repairs
//! a lost one. A disk that hangs holds up this thread alone. It makes the folder where there is
//! none, as the kubelet does, and never writes otherwise. Bounds: those of `scan`, one look every
//! `LOOK_EVERY`, however many events a tenant makes.
// k8s: pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::stat::stat;
use tokio::sync::watch;

use crate::scan::{self, Nanos, ScannedSockets, Socket};

/// How often the folders' times are compared.
// k8s: pkg/kubelet/pluginmanager/plugin_manager.go loopSleepDuration
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks at folders that are new, in one go.
const ROUNDS_MAX: usize = 4;
/// Granularity of change times in the kernel.
const GRANULARITY: Nanos = 20_000_000;

/// The thread, for as long as this is held.
#[derive(Debug)]
pub(crate) struct WatchThread {
    sockets: watch::Receiver<Vec<Socket>>,
    _stop: OwnedFd,
}

impl WatchThread {
    /// Starts to watch a folder.
    pub(crate) fn start(root: &Path) -> io::Result<Self> {
        Self::start_by(root, Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok())
    }

    fn start_by(root: &Path, inotify: Option<Inotify>) -> io::Result<Self> {
        if inotify.is_none() {
            tracing::warn!("no inotify: plugins are looked for once a second");
        }
        let (stopped, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let (sender, sockets) = watch::channel(Vec::new());
        let watcher = Watcher {
            root: root.to_owned(),
            inotify,
            watched: HashMap::new(),
            times: Vec::new(),
            sender,
        };
        let thread = std::thread::Builder::new().name("plugins".to_owned());
        thread.stack_size(256 * 1024).spawn(move || watcher.run(&stopped))?;
        Ok(Self { sockets, _stop: stop })
    }

    /// The sockets, and when they change.
    pub(crate) fn sockets(&self) -> watch::Receiver<Vec<Socket>> {
        self.sockets.clone()
    }
}

struct Watcher {
    root: PathBuf,
    inotify: Option<Inotify>,
    watched: HashMap<PathBuf, WatchDescriptor>,
    /// The folders of the last look.
    times: Vec<(PathBuf, Nanos)>,
    sender: watch::Sender<Vec<Socket>>,
}

/// Why the thread goes on.
#[derive(PartialEq, Eq)]
enum WatchWake {
    Stop,
    Event,
    Clock,
}

impl Watcher {
    fn run(mut self, stopped: &OwnedFd) {
        if let Err(error) = std::fs::create_dir_all(&self.root) {
            tracing::warn!(%error, path = %self.root.display(), "no folder for plugins");
        }
        loop {
            let began = Instant::now();
            self.look();
            let mut wake = self.wait(stopped);
            while wake == WatchWake::Clock && !self.is_outdated() {
                wake = self.wait(stopped);
            }
            if wake == WatchWake::Stop {
                return;
            }
            // Events that come meanwhile are part of the next look.
            std::thread::sleep(LOOK_EVERY.saturating_sub(began.elapsed()));
            self.drain();
        }
    }

    /// Scans the folders and publishes changes.
    fn look(&mut self) {
        let now = scan::now();
        let mut found = self.scan();
        // A folder may have changed between its scan and its watch. If new folders keep appearing,
        // the next look finds them.
        for _ in 0..ROUNDS_MAX {
            if !self.watch(&found) {
                break;
            }
            found = self.scan();
        }
        self.times = found.folders;
        // A change right after the look would have the same time.
        let young = |time: &Nanos| *time > now - GRANULARITY;
        self.times.iter_mut().filter(|(_, time)| young(time)).for_each(|(_, time)| *time = 0);
        self.sender.send_if_modified(|last| {
            let is_other = *last != found.sockets;
            *last = found.sockets;
            is_other
        });
    }

    fn scan(&self) -> ScannedSockets {
        scan::scan(&self.root).unwrap_or_else(|error| {
            tracing::debug!(%error, path = %self.root.display(), "cannot look for plugins");
            ScannedSockets::default()
        })
    }

    /// Watches the folders that were found and no others; returns whether there are new ones.
    fn watch(&mut self, found: &ScannedSockets) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let is_there = |path: &PathBuf| found.folders.iter().any(|(folder, _)| folder == path);
        self.watched.retain(|path, id| {
            let stays = is_there(path);
            if !stays {
                let _ = inotify.rm_watch(*id); // the kernel's own is gone with the folder
            }
            stays
        });
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let mut has_new = false;
        for (path, _) in &found.folders {
            // The same watch again, unless another folder has taken the name.
            let Ok(id) = inotify.add_watch(path, flags) else { continue };
            has_new |= self.watched.insert(path.clone(), id) != Some(id);
        }
        has_new
    }

    fn wait(&self, stopped: &OwnedFd) -> WatchWake {
        let mut descriptors = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        if let Some(inotify) = &self.inotify {
            descriptors.push(PollFd::new(inotify.as_fd(), PollFlags::POLLIN));
        }
        let timeout = PollTimeout::try_from(CHECK_EVERY).expect("a second fits");
        match poll(&mut descriptors, timeout) {
            Ok(0) | Err(Errno::EINTR) => WatchWake::Clock,
            // Its other end was dropped.
            Ok(_) if descriptors[0].any() == Some(true) => WatchWake::Stop,
            Ok(_) => WatchWake::Event,
            Err(error) => {
                tracing::error!(%error, "plugins are no longer looked for");
                WatchWake::Stop
            }
        }
    }

    /// Takes the events away; the next look sees what they tell of.
    fn drain(&self) {
        let Some(inotify) = &self.inotify else { return };
        while inotify.read_events().is_ok() {}
    }

    /// Returns whether a folder has changed since the last look.
    fn is_outdated(&self) -> bool {
        let changed = |path: &Path| stat(path).ok().map(|stat| scan::changed(&stat));
        match self.times.is_empty() {
            true => changed(&self.root).is_some(),
            false => self.times.iter().any(|(path, time)| changed(path) != Some(*time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Longer than anything here takes, so that a failure is one and no hang.
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn until(watch: &WatchThread, count: usize) -> Vec<Socket> {
        let mut sockets = watch.sockets();
        let wait = sockets.wait_for(|sockets| sockets.len() == count);
        let found = tokio::time::timeout(PATIENCE, wait).await.expect("seen in time");
        found.expect("the thread runs").clone()
    }

    async fn sockets_come_and_go(watch: &WatchThread, root: &Path) {
        until(watch, 0).await;
        let _first = UnixListener::bind(root.join("first")).expect("a socket");
        until(watch, 1).await;
        fs::create_dir_all(root.join("a/b")).expect("a folder");
        let _second = UnixListener::bind(root.join("a/b/second")).expect("a socket");
        let two = until(watch, 2).await;
        assert_eq!(two[0].path, root.join("a/b/second"));
        fs::rename(root.join("a"), root.join(".a")).expect("moved");
        until(watch, 1).await;
        fs::remove_file(root.join("first")).expect("removed");
        until(watch, 0).await;
    }

    #[tokio::test]
    async fn watch_creates_a_missing_folder_and_observes_sockets_added_and_removed_there() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path().join("registry");
        let watch = WatchThread::start(&root).expect("it starts");
        while !root.exists() {
            tokio::task::yield_now().await;
        }
        sockets_come_and_go(&watch, &root).await;
    }

    #[tokio::test]
    async fn without_inotify_changes_are_found_by_the_folders_times() {
        let temp = tempfile::tempdir().expect("a folder");
        let watch = WatchThread::start_by(temp.path(), None).expect("it starts");
        sockets_come_and_go(&watch, temp.path()).await;
    }

    #[tokio::test]
    async fn a_folder_that_is_removed_and_made_again_is_watched_again() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path().join("registry");
        fs::create_dir(&root).expect("a folder");
        let _first = UnixListener::bind(root.join("first")).expect("a socket");
        let watch = WatchThread::start(&root).expect("it starts");
        until(&watch, 1).await;
        fs::remove_dir_all(&root).expect("removed");
        until(&watch, 0).await;
        fs::create_dir(&root).expect("a folder");
        let _second = UnixListener::bind(root.join("second")).expect("a socket");
        until(&watch, 1).await;
    }

    #[tokio::test]
    async fn watch_thread_ends_when_its_watch_is_dropped() {
        let temp = tempfile::tempdir().expect("a folder");
        let watch = WatchThread::start(temp.path()).expect("it starts");
        let mut sockets = watch.sockets();
        drop(watch);
        let ended = async { while sockets.changed().await.is_ok() {} };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    }
}
