//! The files of a record: which folder has them, and one segment after the other.
//!
//! Input: a folder of segments, or a root directory of an agent that has one. Output: segments,
//! oldest first. Effects: reads, and changes nothing; a running agent may write and remove
//! meanwhile. Bounds: `SEGMENTS_MAX` files, `FILE_BYTES_MAX` of each, one of them at a time.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use pintle_agent_core::flight::segment::{BATCH_BYTES_MAX, FRAME_BYTES_MAX, SEGMENT_BYTES};
use pintle_agent_core::flight::{ReadError, Segment, read};
use pintle_agent_host::flight::{FOLDER, segment_name, segment_number};

/// Most files that are taken for one record: far more than any agent keeps.
const SEGMENTS_MAX: usize = 10_000;
/// Longest file: a segment that was one byte short of full, and batches of the longest frames.
const FILE_BYTES_MAX: u64 = SEGMENT_BYTES + 2 * (BATCH_BYTES_MAX + FRAME_BYTES_MAX) as u64;

/// Reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FlightRecordError {
    /// No segments.
    #[error(
        "{path} has no record: neither in it nor in its folder {FOLDER} is a file NUMBER.segment; \
         name the root directory of an agent, or the folder that holds its record",
        path = path.display()
    )]
    Empty {
        /// The folder that was named.
        path: PathBuf,
    },
    /// The folder or a file.
    #[error("{path} cannot be read: {error}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Something else under a segment's name.
    #[error("{path} is no segment of a record: {why}", path = path.display())]
    NoSegment {
        /// The file.
        path: PathBuf,
        /// The actual kind of file.
        why: &'static str,
    },
    /// Written by a newer agent.
    #[error("{path}: {error}", path = path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        error: ReadError,
    },
    /// The record has not the pod that was asked for.
    #[error("the record in {path} has no pod {pod}{}", listed(more), path = path.display())]
    UnknownPod {
        /// The folder.
        path: PathBuf,
        /// The name as given.
        pod: String,
        /// Similar names.
        more: Vec<String>,
    },
    /// Several pods of the record may be meant.
    #[error("several pods may be meant by {pod}; say which{}", listed(pods))]
    AmbiguousPod {
        /// The name as given.
        pod: String,
        /// They.
        pods: Vec<String>,
    },
}

fn listed(more: &[String]) -> String {
    more.iter().map(|line| format!("\n  {line}")).collect()
}

/// A record's folder and its segments.
#[derive(Clone, Debug)]
pub(super) struct RecordFolder {
    /// The folder that has the segments.
    pub(super) path: PathBuf,
    /// Their numbers, in order.
    pub(super) numbers: Vec<u64>,
}

impl RecordFolder {
    /// The record in this folder or below it.
    pub(super) fn open(dir: &Path) -> Result<Self, FlightRecordError> {
        for path in [dir.to_owned(), dir.join(FOLDER)] {
            match numbers(&path) {
                Ok(numbers) if numbers.is_empty() => {}
                Ok(numbers) => return Ok(Self { path, numbers }),
                // The named path must exist; folders below it need not.
                Err(error) if path != dir && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(FlightRecordError::Unreadable { path, error }),
            }
        }
        Err(FlightRecordError::Empty { path: dir.to_owned() })
    }

    /// One segment, and the length of its file; `None` when the agent has removed it meanwhile.
    pub(super) fn segment(&self, number: u64) -> Result<Option<(Segment, u64)>, FlightRecordError> {
        let path = self.path.join(segment_name(number));
        let bytes = match bytes(&path) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(why)) => return Err(FlightRecordError::NoSegment { path, why }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FlightRecordError::Unreadable { path, error }),
        };
        let segment = read(&bytes).map_err(|error| FlightRecordError::Newer { path, error })?;
        Ok(Some((segment, bytes.len() as u64)))
    }
}

/// The numbers of the segments in a folder, in order.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        numbers.extend(entry?.file_name().to_str().and_then(number));
        if numbers.len() > SEGMENTS_MAX {
            let text = format!("it has more than {SEGMENTS_MAX} segments");
            return Err(io::Error::other(text));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn number(name: &str) -> Option<u64> {
    // A name that this number would not be written as is another file.
    segment_number(name).filter(|number| segment_name(*number) == name)
}

fn bytes(path: &Path) -> io::Result<Result<Vec<u8>, &'static str>> {
    // Opening a pipe must not block.
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Err("it is no plain file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > FILE_BYTES_MAX { Err("it is far too long") } else { Ok(bytes) })
}
