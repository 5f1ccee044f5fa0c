//! The file of `--lock-file`: of all agents that are given the same one, one runs and the others
//! wait for it. With `--exit-on-lock-contention` the running one ends when another one comes, so
//! that an agent of an installer makes way for the one that the node is to keep.
//!
//! Effects: makes the file; the lock is held until the process ends. Two threads, each blocked in
//! one call of the kernel: one until the lock is free, one until the file is opened or removed.
// k8s: cmd/kubelet/app/server.go run; server_linux.go watchForLockfileContention

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use pintle_agent_config::NodeFlags;
use tokio::sync::oneshot;

/// The lock, with the notice of contention.
pub(super) struct Lock {
    /// Receives a message, or closes, when another process opened the lock; none if that does not
    /// matter.
    contention: Option<oneshot::Receiver<()>>,
}

impl Lock {
    /// Takes the lock that the flags name, however long another process holds it.
    pub(super) async fn take(flags: &NodeFlags) -> Result<Option<Self>> {
        let Some(path) = &flags.lock_file else { return Ok(None) };
        let failed = || format!("--lock-file: cannot lock {}", path.display());
        // It is held until the process has ended, and with it all its work.
        std::mem::forget(lock(path).await.with_context(failed)?);
        let watched = flags.exit_on_lock_contention.then(|| watch(path));
        let contention = watched.transpose().with_context(|| {
            format!("--exit-on-lock-contention: cannot watch {}", path.display())
        })?;
        Ok(Some(Self { contention }))
    }

    /// Ends when another process came for the lock.
    pub(super) async fn contended(lock: &mut Option<Self>) {
        let Some(contention) = lock.as_mut().and_then(|lock| lock.contention.as_mut()) else {
            return std::future::pending().await;
        };
        let _ = contention.await;
        tracing::info!("--exit-on-lock-contention: somebody else wants the lock file; ending");
    }
}

async fn lock(path: &Path) -> Result<Flock<File>> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = match Flock::lock(options.open(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(held) => return Ok(held),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(error.into()),
    };
    tracing::warn!(file = %path.display(), "--lock-file: waiting for who has it locked");
    let (sender, receiver) = oneshot::channel();
    let wait = move || {
        let mut file = file;
        let held = loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Err((again, Errno::EINTR)) => file = again,
                done => break done.map_err(|(_, error)| error),
            }
        };
        let _ = sender.send(held);
    };
    thread::Builder::new().name("lock file".to_owned()).spawn(wait)?;
    Ok(receiver.await??)
}

fn watch(path: &Path) -> Result<oneshot::Receiver<()>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    inotify.add_watch(path, AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DELETE_SELF)?;
    let (sender, receiver) = oneshot::channel();
    let wait = move || {
        while matches!(inotify.read_events(), Err(Errno::EINTR)) {}
        let _ = sender.send(());
    };
    thread::Builder::new().name("lock contention".to_owned()).spawn(wait)?;
    Ok(receiver)
}
