//! Notifies followers of logs of a change in a folder: one inotify for all of them.
//!
//! Effects. Followers of one folder share a watch, which ends with the last of them. A hint may be
//! late or lost (`follow` checks again after a while anyway); without inotify there are none.
//! Owner: the server's thread. Bounds: one descriptor, one watch for each followed folder.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// All watches; clones share them.
#[derive(Clone)]
pub(crate) struct Watches(Option<Arc<SharedWatches>>);

struct SharedWatches {
    inotify: AsyncFd<InotifyFd>,
    folders: Mutex<HashMap<WatchDescriptor, WatchedFolder>>,
}

struct WatchedFolder {
    changes: watch::Sender<()>,
    followers: usize,
}

/// A watched folder; dropping it ends the watch.
pub(super) struct FolderWatch {
    shared: Arc<SharedWatches>,
    id: WatchDescriptor,
    changes: watch::Receiver<()>,
}

struct InotifyFd(Inotify);

impl AsRawFd for InotifyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watches {
    /// Starts the task that reads the events. Needs the server's runtime.
    pub(crate) fn start() -> Self {
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let inotify = Inotify::init(flags).map_err(std::io::Error::from);
        #[allow(deprecated)] // the descriptor is its own, and there is no unsafe code here
        let inotify =
            inotify.and_then(|i| AsyncFd::with_interest(InotifyFd(i), Interest::READABLE));
        match inotify {
            Ok(inotify) => {
                let shared = Arc::new(SharedWatches { inotify, folders: Mutex::default() });
                // Without it followed logs are checked once a second.
                pintle_daemon::tasks::serve("log watch", read(Arc::clone(&shared)));
                Self(Some(shared))
            }
            Err(error) => {
                tracing::warn!(%error, "no inotify: followed logs are looked at once a second");
                Self(None)
            }
        }
    }

    /// Watches a folder; `None` when that cannot be.
    pub(super) fn watch(&self, folder: &Path) -> Option<FolderWatch> {
        let shared = Arc::clone(self.0.as_ref()?);
        let events = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE;
        // Held over `add_watch`, so that the last follower of before cannot take it away between.
        let mut folders = shared.folders();
        let id = shared.inotify.get_ref().0.add_watch(folder, events).ok()?;
        let entry = folders.entry(id);
        let entry =
            entry.or_insert_with(|| WatchedFolder { changes: watch::channel(()).0, followers: 0 });
        entry.followers += 1;
        let changes = entry.changes.subscribe();
        drop(folders);
        Some(FolderWatch { shared, id, changes })
    }
}

impl SharedWatches {
    fn folders(&self) -> std::sync::MutexGuard<'_, HashMap<WatchDescriptor, WatchedFolder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(shared: Arc<SharedWatches>) {
    loop {
        let Ok(mut guard) = shared.inotify.readable().await else { return };
        while let Ok(events) = shared.inotify.get_ref().0.read_events() {
            let folders = shared.folders();
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    folders.values().for_each(|folder| folder.changes.send_replace(()));
                } else if let Some(folder) = folders.get(&event.wd) {
                    let _ = folder.changes.send(());
                }
            }
        }
        guard.clear_ready();
    }
}

impl FolderWatch {
    /// Waits for the next change since the last call.
    pub(super) async fn changed(&mut self) {
        // Its sender lives for as long as this watch.
        let _ = self.changes.changed().await;
    }
}

impl Drop for FolderWatch {
    fn drop(&mut self) {
        let mut folders = self.shared.folders();
        if let Some(folder) = folders.get_mut(&self.id) {
            folder.followers -= 1;
            if folder.followers == 0 {
                folders.remove(&self.id);
                let _ = self.shared.inotify.get_ref().0.rm_watch(self.id);
            }
        }
    }
}
