//! The folder of the flight recorder: its key, its segments, and their appended batches.
//!
//! ```text
//!   ROOT/flight/            0700
//!     key                   0600, 32 bytes of chance under which values are redacted
//!     0000000017.segment    0600, the oldest that is kept
//!     …
//!     0000000024.segment    appended to
//! ```
//! Input: batches that `pintle_agent_core::flight` made; each is written and synced by one linked
//! submission to the ring of the agent's own files. Bounds: `ANSWER_MAX` an operation, as many
//! segments as the folder was opened for; older ones are removed before a new one begins.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::Mode;
use pintle_agent_core::flight::SegmentBytes;
use pintle_daemon::blocking::{self, JobPlace};
use pintle_daemon::durable;
use pintle_ring::{Batch, Chain, Done, FileError, How, PathStart, run, run_one};

/// Name of the folder below the root folder.
pub const FOLDER: &str = "flight";
const KEY: &str = "key";
const KEY_BYTES: usize = 32;
const SUFFIX: &str = ".segment";
/// How long an operation on the folder is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// See the module's header.
#[derive(Debug)]
pub struct FlightFolder {
    dir: PathBuf,
    segments_max: u64,
    /// The segments that are there.
    numbers: Vec<u64>,
    /// The one that is appended to.
    open: Option<SegmentLog>,
}

/// A segment's file and how long it is.
#[derive(Debug)]
struct SegmentLog {
    number: u64,
    file: Arc<OwnedFd>,
    length: u64,
}

/// The state of the folder when it was opened.
#[derive(Debug)]
pub struct FolderState {
    /// The node's key.
    pub key: Vec<u8>,
    /// The number of the next segment: greater than that of any that is there.
    pub next: u64,
}

/// The name of a segment's file.
pub fn segment_name(number: u64) -> String {
    format!("{number:010}{SUFFIX}")
}

/// The number in the name of a segment's file.
pub fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(SUFFIX)?.parse().ok()
}

impl FlightFolder {
    /// Makes the folder and its key where they are missing. Blocks.
    pub fn open(root: &Path, segments_max: u64) -> io::Result<(Self, FolderState)> {
        let dir = root.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let key = key(&dir.join(KEY))?;
        let numbers = numbers(&dir)?;
        let next = numbers.iter().max().map_or(0, |last| last + 1);
        Ok((Self { dir, segments_max, numbers, open: None }, FolderState { key, next }))
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends a batch and has it on the disk when it returns. After a failure nothing may be
    /// appended to the same segment.
    pub async fn append(&mut self, written: &SegmentBytes) -> io::Result<()> {
        let appended = match &self.open {
            Some(log) if log.number == written.segment => self.append_to_open(&written.bytes).await,
            _ => self.begin(written).await,
        };
        match &appended {
            Ok(()) => {}
            Err(FileError::Blocked(_)) => {
                // The kernel may still write to it: it is left as it is.
                self.open = None;
            }
            Err(_) => self.leave_open().await,
        }
        Ok(appended?)
    }

    /// Removes the remains of a failed write: on a full disk they would take the room that the next
    /// attempt needs, and an empty segment would count as a kept one.
    async fn leave_open(&mut self) {
        let Some(SegmentLog { number, file, length }) = self.open.take() else { return };
        let path = self.dir.join(segment_name(number));
        if length == 0 {
            self.numbers.retain(|other| *other != number);
        }
        // A disk that fails this as well is reported by the next attempt.
        let tidy = move || match length {
            0 => fs::remove_file(path),
            _ => File::from(file.try_clone()?).set_len(length),
        };
        let _ = blocking::try_run(place(), tidy).await;
    }

    async fn append_to_open(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let Some(log) = &mut self.open else { return Ok(()) };
        let chain = Chain::append(&log.file, log.length, bytes.to_vec());
        run_one(place(), chain).await?;
        log.length += bytes.len() as u64;
        Ok(())
    }

    async fn begin(&mut self, written: &SegmentBytes) -> Result<(), FileError> {
        self.open = None;
        self.make_room().await?;
        let (number, path) = (written.segment, self.dir.join(segment_name(written.segment)));
        let mut create = Chain::new();
        create.open_held(PathStart::path(path)?, How::create_new(Mode::S_IRUSR | Mode::S_IWUSR));
        let file = run_one(place(), create).await?.pop().and_then(Done::file);
        self.numbers.push(number);
        self.open = file.map(|file| SegmentLog { number, file: Arc::new(file), length: 0 });
        self.append_to_open(&written.bytes).await?;
        run_one(place(), Chain::sync_dir(PathStart::path(&self.dir)?)).await.map(drop)
    }

    /// Removes the oldest segments, by their count: numbers are skipped where a disk failed.
    async fn make_room(&mut self) -> Result<(), FileError> {
        self.numbers.sort_unstable();
        let kept = usize::try_from(self.segments_max.saturating_sub(1)).unwrap_or(usize::MAX);
        let mut batch = Batch::new();
        for number in self.numbers.drain(..self.numbers.len().saturating_sub(kept)) {
            let mut unlink = Chain::new();
            unlink.unlink(PathStart::path(self.dir.join(segment_name(number)))?);
            batch.push(unlink);
        }
        // A file removed by another process is gone as well.
        run(place(), batch).await.map(drop).map_err(FileError::from)
    }
}

/// The blocking place for the folder: one operation at a time, and a disk without an answer within
/// `ANSWER_MAX` counts as hanging.
pub fn place() -> JobPlace {
    JobPlace::own("flight recorder").within(ANSWER_MAX)
}

/// Appends a batch with plain calls, for an agent without running tasks. The batch being written
/// may appear twice then; a reader skips the second one.
pub fn append_last(dir: &Path, written: &SegmentBytes) -> io::Result<()> {
    let path = dir.join(segment_name(written.segment));
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(&written.bytes)?;
    file.sync_data()
}

fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| segment_number(&name)).collect())
}

/// The key in this file; a new one where there is none or it is not whole. Without the old one
/// equal values before and after have other digests, which a replay does not mind.
fn key(path: &Path) -> io::Result<Vec<u8>> {
    match read_key(path) {
        Ok(key) if key.len() == KEY_BYTES => Ok(key),
        Ok(_) => new_key(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_key(path),
        Err(error) => Err(error),
    }
}

fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let mut key = Vec::new();
    File::open(path)?.take(KEY_BYTES as u64 + 1).read_to_end(&mut key)?;
    Ok(key)
}

fn new_key(path: &Path) -> io::Result<Vec<u8>> {
    let mut key = vec![0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    durable::replace(path, &key, 0o600)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use pintle_ring::RingFiles;

    use super::*;

    fn written(segment: u64, bytes: &[u8]) -> SegmentBytes {
        SegmentBytes { segment, bytes: bytes.to_vec() }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    /// Appends these one after the other, by a ring and by plain calls.
    fn append_all(folder: &mut FlightFolder, all: &[SegmentBytes]) -> Vec<io::Result<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let mut results = Vec::new();
            for written in all {
                results.push(folder.append(written).await);
            }
            results
        })
    }

    fn open(root: &Path, segments_max: u64) -> (FlightFolder, FolderState) {
        FlightFolder::open(root, segments_max).expect("opened")
    }

    #[test]
    fn segment_numbers_continue_and_the_key_stays_after_an_agent_restart() {
        for files in [RingFiles::ring(false).ok(), Some(RingFiles::direct())].into_iter().flatten()
        {
            files.for_thread();
            let root = tempfile::tempdir().expect("a folder");
            let (mut folder, first) = open(root.path(), 3);
            assert_eq!(first.next, 0);
            let all = [written(0, b"a"), written(0, b"b"), written(7, b"c")];
            assert!(append_all(&mut folder, &all).iter().all(Result::is_ok));
            let text = |number| fs::read(root.path().join(FOLDER).join(segment_name(number)));
            assert_eq!(text(7).expect("the last"), b"c");
            assert_eq!(text(0).expect("numbers between them were passed over"), b"ab");
            let (_, second) = open(root.path(), 3);
            assert_eq!(second.next, 8);
            assert_eq!(second.key, first.key);
            assert_eq!(second.key.len(), KEY_BYTES);
        }
    }

    #[test]
    fn recording_is_readable_only_by_its_owner_and_the_oldest_segments_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let (mut folder, _) = open(root.path(), 3);
        let all: Vec<_> = (0..6).flat_map(|at| [written(at, b"x"), written(at, b"y")]).collect();
        assert!(append_all(&mut folder, &all).iter().all(Result::is_ok));
        let dir = root.path().join(FOLDER);
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        let segments = [3, 4, 5].map(segment_name);
        assert_eq!(names, [&segments[..], &[KEY.to_owned()]].concat());
        assert_eq!(fs::read(dir.join(&segments[2])).expect("a file"), b"xy");
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(&segments[0])), 0o600);
        assert_eq!(mode(&dir.join(KEY)), 0o600);
    }

    #[test]
    fn half_a_key_is_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        open(root.path(), 3);
        fs::write(root.path().join(FOLDER).join(KEY), "short").expect("written");
        assert_eq!(open(root.path(), 3).1.key.len(), KEY_BYTES);
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_later_segment_is_written_when_there_is_room() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            crate::volume::mount::tmpfs(root.path(), Some(64 << 10)).expect("tmpfs");
            for files in
                [RingFiles::ring(false).ok(), Some(RingFiles::direct())].into_iter().flatten()
            {
                files.for_thread();
                let (mut folder, found) = open(root.path(), 2);
                let at = |add| found.next + add;
                let all = [
                    written(at(0), &[1; 16 << 10]),
                    written(at(0), &[2; 64 << 10]),
                    // The one that is cut fills the disk until it is the oldest.
                    written(at(2), &[3; 4 << 10]),
                ];
                let results = append_all(&mut folder, &all);
                let codes = results.iter().map(|r| r.as_ref().err().map(io::Error::raw_os_error));
                let full = Some(Some(nix::libc::ENOSPC));
                assert_eq!(codes.collect::<Vec<_>>(), [None, full, None]);
            }
        });
    }

    #[test]
    fn earlier_recording_survives_repeated_writes_to_a_full_disk() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            crate::volume::mount::tmpfs(root.path(), Some(64 << 10)).expect("tmpfs");
            RingFiles::direct().for_thread();
            let (mut folder, _) = open(root.path(), 2);
            let before = [written(0, b"a"), written(1, b"b")];
            assert!(append_all(&mut folder, &before).iter().all(Result::is_ok));
            let refused: Vec<_> = (3..20).map(|at| written(at, &[1; 128 << 10])).collect();
            assert!(append_all(&mut folder, &refused).iter().all(Result::is_err));
            assert_eq!(numbers(folder.dir()).expect("a folder"), [1]);
            assert!(append_all(&mut folder, &[written(20, b"c")]).iter().all(Result::is_ok));
            let mut left = numbers(folder.dir()).expect("a folder");
            left.sort_unstable();
            assert_eq!(left, [1, 20]);
        });
    }

    #[test]
    fn last_records_of_a_crashing_agent_are_appended_to_the_recording() {
        let root = tempfile::tempdir().expect("a folder");
        let (mut folder, _) = open(root.path(), 3);
        assert!(append_all(&mut folder, &[written(0, b"a")]).iter().all(Result::is_ok));
        append_last(folder.dir(), &written(0, b"b")).expect("appended");
        append_last(folder.dir(), &written(1, b"c")).expect("appended");
        let text = |number| fs::read(folder.dir().join(segment_name(number))).expect("a file");
        assert_eq!((text(0), text(1)), (b"ab".to_vec(), b"c".to_vec()));
    }
}
