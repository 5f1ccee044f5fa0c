//! Reads a container's log and writes it to a client, to its end or for as long as it grows.
//!
//! Effects. Input: the log's path, what to read, the snapshots that tell whether the container
//! runs. Output: chunks of text. Nothing is lost or repeated when the log is rotated: the file at
//! hand is read to its end, then the files that were set aside since, then the new one. Bounds:
//! `CHUNK_BYTES` and the body's chunks for a client that stalls; what it has not taken stays in the
//! files. Reads are of files in the page cache, short ones between two waits.
//! Ends when the client goes, the limit is met, or the container has ended and all is read.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go ReadLogs, waitLogs

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;

use super::watch::{Watch, Watches};
use crate::observed::RunState;
use crate::runtime::log_files::rotated;
use crate::runtime::log_read::{FileId, LogQuery, LogReader};
use crate::server::Views;
use crate::server::body::Sink;

/// Text that is gathered before it is sent.
const CHUNK_BYTES: usize = 16 * 1024;
/// A log is looked at that often without any hint.
// k8s: the same file, logForceCheckPeriod
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a new file appeared the runtime may still write what it had read into the old one.
const SETTLE: Duration = Duration::from_millis(100);

/// One reading of a log.
pub(super) struct Follow {
    pub(super) path: PathBuf,
    pub(super) query: LogQuery,
    /// The container to follow for as long as it runs; `None` reads what is there.
    pub(super) container: Option<String>,
    pub(super) views: Views,
    pub(super) watches: Watches,
}

/// The client is gone.
struct Gone;

impl Follow {
    /// Writes everything that is wanted; an error becomes the last text, as the status is sent.
    pub(super) async fn run(self, sink: Sink) {
        let open = LogReader::open(&self.path, self.query.clone());
        let mut reading = match open {
            Ok(reader) => Reading { reader, aside: stems(&self.path), sink: &sink },
            Err(error) => {
                let text = format!("failed to open log file {:?}: {error}", self.path);
                return drop(sink.send(text.into()).await);
            }
        };
        let ended = match &self.container {
            None => reading.drain().await.map(|read| read.err()),
            Some(container) => self.follow(container, &mut reading).await.map(Result::err),
        };
        if let Ok(Some(error)) = ended {
            let text = format!("failed to read log file {:?}: {error}", self.path);
            let _ = sink.send(text.into()).await;
        }
    }

    async fn follow(
        &self,
        container: &str,
        reading: &mut Reading<'_>,
    ) -> Result<io::Result<()>, Gone> {
        // Before the first read: what is written afterwards wakes this task.
        let mut watch = self.path.parent().and_then(|dir| self.watches.watch(dir));
        loop {
            // Asked before reading: what an ended container wrote is all there by now.
            let runs = self.runs(container);
            if let Err(error) = reading.drain().await? {
                return Ok(Err(error));
            }
            if reading.reader.is_done() {
                return Ok(Ok(()));
            }
            let live = FileId::of(&self.path);
            if live.is_ok_and(|live| live != reading.reader.id()) {
                tokio::time::sleep(SETTLE).await;
                if let Err(error) = reading.advance(&self.path).await? {
                    return Ok(Err(error));
                }
                continue;
            }
            if !runs {
                return Ok(Ok(()));
            }
            tokio::select! {
                () = changed(&mut watch) => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = reading.sink.closed() => return Err(Gone),
            }
        }
    }

    fn runs(&self, container: &str) -> bool {
        let snapshot = self.views.load();
        let observed = snapshot.pods.values().map(|view| &view.observed);
        let mut containers = observed.flat_map(|observed| &observed.containers);
        containers.any(|c| c.id.as_str() == container && c.state == RunState::Running)
    }
}

async fn changed(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

struct Reading<'a> {
    reader: LogReader,
    /// Files that were set aside before the one at hand.
    aside: BTreeSet<PathBuf>,
    sink: &'a Sink,
}

impl Reading<'_> {
    /// Sends everything up to the end of the file at hand.
    async fn drain(&mut self) -> Result<io::Result<()>, Gone> {
        let mut text = Vec::new();
        loop {
            let more = match self.reader.next(&mut text) {
                Ok(more) => more,
                Err(error) => return Ok(Err(error)),
            };
            if !text.is_empty() && (!more || text.len() >= CHUNK_BYTES) {
                let chunk = Bytes::from(std::mem::take(&mut text));
                self.sink.send(chunk).await.map_err(|_| Gone)?;
            }
            if !more {
                return Ok(Ok(()));
            }
        }
    }

    /// Finishes the file at hand and all that were set aside after it, and opens the live one.
    async fn advance(&mut self, log: &Path) -> Result<io::Result<()>, Gone> {
        if let Err(error) = self.drain().await? {
            return Ok(Err(error));
        }
        let (missed, ours_seen) = missed(&rotated(log), &self.aside, self.reader.id());
        for (index, path) in missed.iter().enumerate() {
            // The first one may be the file at hand, compressed meanwhile.
            if self.reader.go_on(path, index == 0 && !ours_seen).is_ok()
                && let Err(error) = self.drain().await?
            {
                return Ok(Err(error));
            }
        }
        self.aside = stems(log);
        match self.reader.go_on(log, false) {
            // Rotated again in this moment: it is there in the next one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(())),
            opened => Ok(opened),
        }
    }
}

/// Files set aside since `before`, oldest first, that were never read; and whether the one that was
/// read is among them as it was.
fn missed(now: &[PathBuf], before: &BTreeSet<PathBuf>, at_hand: FileId) -> (Vec<PathBuf>, bool) {
    let new: Vec<_> = now
        .iter()
        .filter(|path| path.extension().is_none_or(|end| end != "tmp"))
        .filter(|path| !before.contains(&stem(path)))
        .cloned()
        .collect();
    match new.iter().position(|path| FileId::of(path).is_ok_and(|id| id == at_hand)) {
        Some(ours) => (new[ours + 1..].to_vec(), true),
        None => (new, false),
    }
}

/// The names of the files set aside so far, without the ending of compressed ones.
fn stems(log: &Path) -> BTreeSet<PathBuf> {
    rotated(log).iter().map(|path| stem(path)).collect()
}

fn stem(path: &Path) -> PathBuf {
    match path.extension() {
        Some(end) if end == "gz" || end == "tmp" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
