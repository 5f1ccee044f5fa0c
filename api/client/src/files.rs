//! Bytes of a file, or of the kubeconfig itself.
//!
//! A file is read again when it was replaced or changed, and is checked at most once in
//! `CHECK_EVERY`. Bounds: `FILE_BYTES_MAX` for each file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest certificate, key or token file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Shortest time between two checks of files.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Where bytes are.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum FileSource {
    /// In a file.
    File(PathBuf),
    /// In the kubeconfig.
    Inline(Vec<u8>),
}

impl FileSource {
    /// The bytes as they are now.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Inline(bytes) => Ok(bytes.clone()),
            Self::File(path) => read(path),
        }
    }

    /// The file, if it is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Inline(_) => None,
        }
    }
}

/// A whole file, unless it is larger than a certificate or token ever is.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Distinguishes one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of a file, or of a link's target.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Self { inode: meta.ino(), bytes: meta.len(), changed })
    }
}

/// Detects changes of files.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    paths: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    checked_at: Instant,
    /// The last change could not be used.
    unused: bool,
}

impl WatchedFiles {
    /// Detects changes from the files' present state on.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let stamps = paths.iter().map(|path| Stamp::of(path)).collect();
        Self { paths, stamps, checked_at: Instant::now(), unused: false }
    }

    /// Marks the new content as unusable, so that the next check reports a change again.
    pub(crate) fn look_again(&mut self) {
        self.unused = true;
    }

    /// Moves the time of the last check back.
    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration) {
        self.checked_at -= by;
    }

    /// Returns true if a file changed since the last check, or if the last change could not be
    /// used. Returns false within `CHECK_EVERY` of the last check.
    pub(crate) fn changed(&mut self, now: Instant) -> bool {
        if self.paths.is_empty() || now.duration_since(self.checked_at) < CHECK_EVERY {
            return false;
        }
        self.checked_at = now;
        let stamps: Vec<_> = self.paths.iter().map(|path| Stamp::of(path)).collect();
        let changed = stamps != self.stamps;
        self.stamps = stamps;
        std::mem::take(&mut self.unused) || changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_noticed_once_and_not_too_often() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("token");
        fs::write(&path, "a").expect("written");
        let mut watched = WatchedFiles::new(vec![path.clone(), dir.path().join("none")]);
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(!watched.changed(later(10)));
        fs::write(&path, "other").expect("written");
        assert!(!watched.changed(later(10)), "the last check was a moment ago");
        assert!(watched.changed(later(20)));
        assert!(!watched.changed(later(30)));
        watched.look_again();
        assert!(watched.changed(later(40)), "the new content could not be used");
        assert!(!watched.changed(later(50)));
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("large");
        let size = usize::try_from(FILE_BYTES_MAX + 1).expect("small enough");
        fs::write(&path, vec![0_u8; size]).expect("written");
        assert!(read(&path).is_err());
    }
}
