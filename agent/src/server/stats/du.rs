//! What a folder that containers write takes on disk, counted as `du` does. Effects: reads metadata.
//!
//! Input: an open folder. Output: blocks and inodes beneath it, itself among them; a file of several
//! names counts once; what is mounted inside counts nothing. Every step goes through an open folder
//! and follows no link, so a container cannot lead it elsewhere. Bounds: `DEPTH_MAX` open folders,
//! `ENTRIES_MAX` entries; beyond them there is no answer.
// k8s: pkg/volume/util/fs/fs.go DiskUsage

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};

use super::files::Usage;
use crate::volume::dir_fd::{open_beneath, open_dir};

/// Folders inside each other.
const DEPTH_MAX: usize = 128;
/// Entries of one folder and of all beneath.
const ENTRIES_MAX: u64 = 20_000_000;
/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;

/// Counts a folder.
pub(super) fn usage(path: &Path) -> nix::Result<Usage> {
    usage_within(path, ENTRIES_MAX)
}

fn usage_within(path: &Path, entries_max: u64) -> nix::Result<Usage> {
    let root = open_dir(path)?;
    let stat = fstat(root.as_fd())?;
    let mut count = Count { device: stat.st_dev, links: HashSet::new(), usage: Usage::default() };
    count.add(&stat);
    let mut open = vec![entries(root)?];
    // Also those that count nothing.
    let mut seen = 1;
    while let Some((dir, list)) = open.last_mut() {
        let Some(entry) = list.next() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        seen += 1;
        if seen > entries_max {
            return Err(Errno::EOVERFLOW);
        }
        let stat = match fstatat(dir.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => continue, // removed meanwhile
            stat => stat?,
        };
        if !count.add(&stat) || !is_folder(&stat) {
            continue;
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        match open_beneath(dir, name, flags, ResolveFlag::RESOLVE_NO_XDEV) {
            // Removed, replaced or mounted over meanwhile.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {}
            Ok(_) if open.len() >= DEPTH_MAX => return Err(Errno::ENAMETOOLONG),
            folder => open.push(entries(folder?)?),
        }
    }
    Ok(count.usage)
}

/// A folder to look names up in, and their list.
fn entries(folder: OwnedFd) -> nix::Result<(OwnedFd, OwningIter)> {
    let list = Dir::from_fd(folder.try_clone().map_err(|e| Errno::from_raw(errno(&e)))?)?;
    Ok((folder, list.into_iter()))
}

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn is_folder(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

struct Count {
    device: u64,
    /// Files of several names that were counted.
    links: HashSet<u64>,
    usage: Usage,
}

impl Count {
    /// Adds an entry; false when it belongs to another file system.
    fn add(&mut self, stat: &FileStat) -> bool {
        if stat.st_dev != self.device {
            return false;
        }
        if stat.st_nlink > 1 && !is_folder(stat) && !self.links.insert(stat.st_ino) {
            return true;
        }
        self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES;
        self.usage.inodes += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn everything_beneath_counts_once_and_links_lead_nowhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("big"), vec![1; 1 << 20]).expect("written");
        let empty = usage(dir.path()).expect("counted");
        assert_eq!(empty.inodes, 1, "itself");

        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        fs::write(dir.path().join("a/b/f"), vec![1; 100_000]).expect("written");
        fs::hard_link(dir.path().join("a/b/f"), dir.path().join("again")).expect("linked");
        symlink(outside.path(), dir.path().join("out")).expect("linked");
        let full = usage(dir.path()).expect("counted");
        assert_eq!(full.inodes, 1 + 2 + 1 + 1, "folders, the file, the symbolic link");
        assert!(full.bytes >= 100_000 && full.bytes < 1 << 20, "{full:?}");
    }

    #[test]
    fn a_folder_with_too_many_entries_has_no_answer_whatever_they_are() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = dir.path().join("files");
        fs::create_dir(&files).expect("made");
        fs::write(files.join("0"), "").expect("written");
        for n in 1..8 {
            fs::hard_link(files.join("0"), files.join(n.to_string())).expect("linked");
        }
        let counted = usage_within(dir.path(), 10).expect("two folders, eight names of a file");
        assert_eq!(counted.inodes, 3);
        assert_eq!(usage_within(dir.path(), 9), Err(Errno::EOVERFLOW));
    }

    #[test]
    fn a_folder_that_is_too_deep_or_missing_has_no_answer() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut path = dir.path().to_owned();
        (0..DEPTH_MAX).for_each(|_| path.push("d"));
        fs::create_dir_all(&path).expect("made");
        assert_eq!(usage(dir.path()), Err(Errno::ENAMETOOLONG));
        assert_eq!(usage(&dir.path().join("none")), Err(Errno::ENOENT));
    }
}
