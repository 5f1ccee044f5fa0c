//! The state file, and the end of the lock. Effects: one file, replaced in one step.
//!
//! The record for a later agent is on the disk before the machine is released.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::sys::stat::Mode;
use pintle_agent_core::shutdown::{STATE_FILE, ShutdownRecord};
use pintle_daemon::blocking::JobPlace;
use pintle_ring::durable::{self, NewFile};
use tokio::sync::watch;

use super::DelayLock;

/// Longest file that is read.
const FILE_BYTES_MAX: usize = 64 << 10;

pub(super) fn load(root: &Path) -> Option<ShutdownRecord> {
    let path = root.join(STATE_FILE);
    let text = match pintle_daemon::files::try_read(&path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the last shutdown is not known");
            return None;
        }
    };
    ShutdownRecord::of_text(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "the last shutdown is not known");
        None
    })
}

/// Keeps the file, and releases the lock when the last group is over. While that is written the
/// shutdown may be given up: then the lock is for the next one.
pub(super) async fn keep(
    root: PathBuf,
    mut progress: watch::Receiver<Option<ShutdownRecord>>,
    lock: Rc<DelayLock>,
) {
    while progress.changed().await.is_ok() {
        let Some(record) = progress.borrow_and_update().clone() else { continue };
        let mode = Mode::from_bits_truncate(0o644);
        let bytes = record.text().into_bytes();
        let file = NewFile { name: STATE_FILE.to_owned(), bytes, mode };
        let written = durable::replace(JobPlace::own("shutdown state"), &root, &[file]).await;
        if let Err(error) = written {
            tracing::warn!(%error, root = %root.display(), "--root-dir: how far the shutdown has \
                come cannot be written; an agent that starts now begins it anew");
        }
        let is_last = !progress.has_changed().unwrap_or(false) && lock.preparing.get();
        if record.ended_at.is_some() && !record.cancelled && is_last {
            tracing::info!("the pods have ended; the machine may shut down");
            lock.held.borrow_mut().take();
        }
    }
}
