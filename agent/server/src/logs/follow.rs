//! Reads a container's log and writes it to a client, to its end or for as long as the container
//! runs.
//!
//! Effects. Input: the log's path, the options, the snapshots that show whether the container runs.
//! Output: chunks of text. Nothing is lost or repeated when the log is rotated: the current file is
//! read to its end, then the files that were rotated since, then the new file. Bounds:
//! `CHUNK_BYTES` and the body's pieces for a client that stalls; unsent text stays in the files.
//! Files are read on other threads, with a share for each pod, `LOOK_BYTES` at a time: a client
//! that filters a large log, or reads from a disk that hangs, delays at most the pod's own readers.
//! Ends when the client disconnects, the limit is met, or the container has ended and all is read.
// k8s: staging/src/k8s.io/cri-client/pkg/logs/logs.go ReadLogs, waitLogs

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pintle_agent_core::observed::RunState;
use pintle_agent_core::types::PodUid;
use pintle_agent_runtime::logs::log_files::rotated;
use pintle_agent_runtime::logs::log_read::{FileId, LogQuery, LogReader, ReadStep};
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};
use pintle_daemon::serve::body::StreamSink;

use super::watch::{FolderWatch, Watches};
use crate::Views;

/// Text that is gathered before it is sent. A client that stalls has a few such pieces in memory.
const CHUNK_BYTES: usize = 4 * 1024;
/// Bytes of a log that one job reads, including the lines that the query leaves out.
const LOOK_BYTES: u64 = 1 << 20;
/// Pause before another attempt while too many of a pod's readers wait.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which a log is checked without any hint.
// k8s: the same file, logForceCheckPeriod
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Wait after a rotation, because the runtime may still write buffered lines into the old file.
const SETTLE: Duration = Duration::from_millis(100);

/// A request to read a log.
pub(super) struct Follow {
    pub(super) uid: PodUid,
    pub(super) path: PathBuf,
    pub(super) query: LogQuery,
    /// The container to follow for as long as it runs; `None` reads the existing lines.
    pub(super) container: Option<String>,
    pub(super) views: Views,
    pub(super) watches: Watches,
}

/// The client is gone.
struct ClientGone;

/// A reader that jobs on other threads use in turn.
type Shared = Arc<Mutex<LogReader>>;

impl Follow {
    /// Writes all text of the query. An error becomes the last text, because the HTTP status has
    /// already been sent.
    pub(super) async fn run(self, sink: &StreamSink) {
        let (path, query) = (self.path.clone(), self.query.clone());
        let open = move || LogReader::open(&path, query).map(|reader| (reader, stems(&path)));
        let mut reading = match run_blocking(&self.uid, sink, open).await {
            Err(ClientGone) => return,
            Ok(Ok((reader, aside))) => {
                let (reader, uid) = (Arc::new(Mutex::new(reader)), self.uid.clone());
                Reading { reader, aside, uid, sink }
            }
            Ok(Err(error)) => {
                let text = format!("failed to open log file {:?}: {error}", self.path);
                let _ = sink.send(text.into()).await;
                return;
            }
        };
        let ended = match &self.container {
            None => reading.whole().await.map(Result::err),
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
    ) -> Result<io::Result<()>, ClientGone> {
        // The watch begins before the first read, so that every later write wakes this task.
        let mut watch = self.path.parent().and_then(|dir| self.watches.watch(dir));
        loop {
            // Determined before the read: a container that has ended has written all its lines.
            let runs = self.runs(container);
            if let Err(error) = reading.drain().await? {
                return Ok(Err(error));
            }
            match reading.state(&self.path).await? {
                Err(error) => return Ok(Err(error)),
                Ok(State::Done) => return Ok(Ok(())),
                Ok(State::Replaced) => {
                    tokio::time::sleep(SETTLE).await;
                    if let Err(error) = reading.advance(&self.path).await? {
                        return Ok(Err(error));
                    }
                    continue;
                }
                Ok(State::Current) => {}
            }
            if !runs {
                return Ok(Ok(()));
            }
            tokio::select! {
                () = changed(&mut watch) => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = reading.sink.closed() => return Err(ClientGone),
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

async fn changed(watch: &mut Option<FolderWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Runs `look` on a thread that may block on the disk, in the pod's share. If too many readers of
/// the pod wait, it tries again later. Returns at once if the client disconnects.
async fn run_blocking<T: Send + 'static>(
    uid: &PodUid,
    sink: &StreamSink,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<io::Result<T>, ClientGone> {
    let look = Arc::new(Mutex::new(Some(look)));
    loop {
        let once = Arc::clone(&look);
        let job = move || lock(&once).take().map(|look| look());
        let done = tokio::select! {
            done = blocking::run(JobPlace::serve(uid), job) => done,
            () = sink.closed() => return Err(ClientGone),
        };
        match done {
            Ok(Some(read)) => return Ok(read),
            Err(Blocked::Full) => tokio::time::sleep(FULL_PAUSE).await,
            Ok(None) => return Ok(Err(Blocked::Panicked.into())),
            Err(error) => return Ok(Err(error.into())),
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Reading<'a> {
    reader: Shared,
    /// Rotated files from before the current file was opened, as `stems` names them.
    aside: BTreeSet<PathBuf>,
    uid: PodUid,
    sink: &'a StreamSink,
}

/// The relation of the current file to the log.
enum State {
    /// The query's limit is met.
    Done,
    /// The log's path names another file.
    Replaced,
    /// The log's path names the current file, or none.
    Current,
}

impl Reading<'_> {
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut LogReader) -> io::Result<T> + Send + 'static,
    ) -> Result<io::Result<T>, ClientGone> {
        let reader = Arc::clone(&self.reader);
        run_blocking(&self.uid, self.sink, move || look(&mut lock(&reader))).await
    }

    /// Sends everything up to the end of the current file.
    async fn drain(&mut self) -> Result<io::Result<()>, ClientGone> {
        loop {
            let (text, last) = match self.look(gather).await? {
                Ok(read) => read,
                Err(error) => return Ok(Err(error)),
            };
            if !text.is_empty() {
                self.sink.send(text.into()).await.map_err(|_| ClientGone)?;
            }
            if last == ReadStep::End {
                return Ok(Ok(()));
            }
        }
    }

    /// Sends everything up to the end of the current file, including an unfinished last line.
    async fn whole(&mut self) -> Result<io::Result<()>, ClientGone> {
        if let Err(error) = self.drain().await? {
            return Ok(Err(error));
        }
        let rest = |reader: &mut LogReader| {
            let mut text = Vec::new();
            reader.finish(&mut text);
            Ok(text)
        };
        match self.look(rest).await? {
            Ok(text) if text.is_empty() => Ok(Ok(())),
            Ok(text) => self.sink.send(text.into()).await.map(Ok).map_err(|_| ClientGone),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn state(&self, log: &Path) -> Result<io::Result<State>, ClientGone> {
        let log = log.to_owned();
        let look = move |reader: &mut LogReader| {
            Ok(match FileId::of(&log) {
                _ if reader.is_done() => State::Done,
                Ok(live) if live != reader.id() => State::Replaced,
                _ => State::Current,
            })
        };
        self.look(look).await
    }

    /// Sends the rest of the current file and the files that were rotated after it, and opens the
    /// live file.
    async fn advance(&mut self, log: &Path) -> Result<io::Result<()>, ClientGone> {
        if let Err(error) = self.drain().await? {
            return Ok(Err(error));
        }
        let (path, aside) = (log.to_owned(), self.aside.clone());
        let look = move |reader: &mut LogReader| Ok(missed(&rotated(&path), &aside, reader.id()));
        let (missed, ours_seen) = match self.look(look).await? {
            Ok(missed) => missed,
            Err(error) => return Ok(Err(error)),
        };
        for (index, path) in missed.into_iter().enumerate() {
            // The first file may be the current file, which was compressed in the meantime.
            let skip_known = index == 0 && !ours_seen;
            let opened = self.look(move |reader| reader.go_on(&path, skip_known)).await?;
            if opened.is_ok()
                && let Err(error) = self.drain().await?
            {
                return Ok(Err(error));
            }
        }
        let path = log.to_owned();
        let look = move |reader: &mut LogReader| {
            let aside = stems(&path);
            match reader.go_on(&path, false) {
                // The log is being rotated again: its new file is opened in the next round.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(aside),
                opened => opened.map(|()| aside),
            }
        };
        Ok(self.look(look).await?.map(|aside| self.aside = aside))
    }
}

/// Reads until a chunk is full, `LOOK_BYTES` were read, or the file ends.
fn gather(reader: &mut LogReader) -> io::Result<(Vec<u8>, ReadStep)> {
    let (mut text, begun) = (Vec::new(), reader.bytes_read());
    loop {
        let step = reader.step(&mut text)?;
        let looked = reader.bytes_read() - begun;
        if step == ReadStep::End || text.len() >= CHUNK_BYTES || looked >= LOOK_BYTES {
            // The text may wait long for its client, and up to half of its capacity is unused.
            text.shrink_to_fit();
            return Ok((text, step));
        }
    }
}

/// The files rotated since `before` that were never read, oldest first; and whether the file that
/// was being read is still uncompressed among the rotated files.
fn missed(now: &[PathBuf], before: &BTreeSet<PathBuf>, current: FileId) -> (Vec<PathBuf>, bool) {
    let new: Vec<_> = now
        .iter()
        .filter(|path| path.extension().is_none_or(|end| end != "tmp"))
        .filter(|path| !before.contains(&stem(path)))
        .cloned()
        .collect();
    match new.iter().position(|path| FileId::of(path).is_ok_and(|id| id == current)) {
        Some(ours) => (new[ours + 1..].to_vec(), true),
        None => (new, false),
    }
}

/// The paths of the rotated files, without the extension of compressed files.
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
