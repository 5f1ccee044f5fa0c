//! The folder of the flight recorder: its key, its segments, and what is appended to them.
//!
//! ```text
//!   ROOT/flight/            0700
//!     key                   0600, 32 bytes of chance under which values are redacted
//!     0000000017.segment    0600, the oldest that is kept
//!     …
//!     0000000024.segment    appended to
//! ```
//! Input: batches that `pintle_agent_core::flight` made. Everything here blocks. Bounds: as many
//! segments as the folder was opened for; what is older is removed before a new one begins.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pintle_agent_core::flight::Written;
use pintle_daemon::durable;

/// Name of the folder below the root folder.
pub const FOLDER: &str = "flight";
const KEY: &str = "key";
const KEY_BYTES: usize = 32;
const SUFFIX: &str = ".segment";

/// See the module's header.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    segments_max: u64,
    /// The segment that is appended to, and its file.
    open: Option<(u64, File)>,
}

/// What was found when the folder was opened.
#[derive(Debug)]
pub struct Found {
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

impl Folder {
    /// Makes the folder and its key where they are missing.
    pub fn open(root: &Path, segments_max: u64) -> io::Result<(Self, Found)> {
        let dir = root.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let key = key(&dir.join(KEY))?;
        let folder = Self { dir, segments_max, open: None };
        let next = folder.numbers()?.into_iter().max().map_or(0, |last| last + 1);
        Ok((folder, Found { key, next }))
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Appends a batch and has it on the disk when it returns.
    pub fn append(&mut self, written: &Written) -> io::Result<()> {
        let appended = self.append_durably(written);
        if appended.is_err() {
            self.open = None;
        }
        appended
    }

    fn append_durably(&mut self, written: &Written) -> io::Result<()> {
        let begins = self.open.as_ref().is_none_or(|(number, _)| *number != written.segment);
        if begins {
            self.open = None;
            self.remove_below(written.oldest_kept(self.segments_max))?;
            self.open = Some((written.segment, self.create(written.segment)?));
        }
        let Some((_, file)) = &mut self.open else { return Ok(()) };
        file.write_all(&written.bytes)?;
        file.sync_data()?;
        if begins {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }

    fn create(&self, number: u64) -> io::Result<File> {
        let path = self.dir.join(segment_name(number));
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    }

    fn remove_below(&self, oldest: u64) -> io::Result<()> {
        for number in self.numbers()?.into_iter().filter(|number| *number < oldest) {
            fs::remove_file(self.dir.join(segment_name(number)))?;
        }
        Ok(())
    }

    fn numbers(&self) -> io::Result<Vec<u64>> {
        let entries = fs::read_dir(&self.dir)?.collect::<io::Result<Vec<_>>>()?;
        let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter_map(|name| segment_number(&name)).collect())
    }
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

    use super::*;

    fn written(segment: u64, bytes: &[u8]) -> Written {
        Written { segment, bytes: bytes.to_vec() }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn numbers_go_on_where_an_earlier_agent_ended_and_the_key_stays() {
        let root = tempfile::tempdir().expect("a folder");
        let (mut folder, first) = Folder::open(root.path(), 3).expect("opened");
        assert_eq!(first.next, 0);
        folder.append(&written(0, b"a")).expect("appended");
        folder.append(&written(0, b"b")).expect("appended");
        folder.append(&written(7, b"c")).expect("appended");
        let (_, second) = Folder::open(root.path(), 3).expect("opened");
        assert_eq!(second.next, 8);
        assert_eq!(second.key, first.key);
        assert_eq!(second.key.len(), KEY_BYTES);
    }

    #[test]
    fn only_its_owner_reads_it_and_the_oldest_segments_go() {
        let root = tempfile::tempdir().expect("a folder");
        let (mut folder, _) = Folder::open(root.path(), 3).expect("opened");
        (0..6).for_each(|number| folder.append(&written(number, b"x")).expect("appended"));
        let dir = root.path().join(FOLDER);
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        let segments = [3, 4, 5].map(segment_name);
        assert_eq!(names, [&segments[..], &[KEY.to_owned()]].concat());
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(&segments[0])), 0o600);
        assert_eq!(mode(&dir.join(KEY)), 0o600);
    }

    #[test]
    fn half_a_key_is_replaced() {
        let root = tempfile::tempdir().expect("a folder");
        Folder::open(root.path(), 3).expect("opened");
        fs::write(root.path().join(FOLDER).join(KEY), "short").expect("written");
        let (_, found) = Folder::open(root.path(), 3).expect("opened");
        assert_eq!(found.key.len(), KEY_BYTES);
    }

    #[test]
    fn a_full_disk_is_an_error_and_the_next_segment_is_written_when_there_is_room() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            crate::volume::mount::tmpfs(root.path(), Some(64 << 10)).expect("tmpfs");
            let (mut folder, _) = Folder::open(root.path(), 2).expect("opened");
            folder.append(&written(0, &[1; 16 << 10])).expect("there is room");
            let error = folder.append(&written(0, &[2; 64 << 10])).expect_err("no room");
            assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC));
            // The one that is cut fills the disk until it is the oldest.
            folder.append(&written(2, &[3; 4 << 10])).expect("the oldest made room");
        });
    }
}
