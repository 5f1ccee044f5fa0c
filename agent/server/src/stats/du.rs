//! What a folder that containers write takes on disk, counted as `du` does. Effects: reads metadata.
//!
//! Input: an open folder. Output: blocks and inodes beneath it, itself among them; a file with several
//! hard links counts once; what is mounted inside counts nothing. Only `LINKS_MAX` such files are
//! remembered: each link of further ones counts for its part of the file, which comes to the same
//! unless some of the links lie elsewhere, and then to less. Every step goes through an open folder
//! and follows no link, so a container cannot lead it elsewhere. Bounds: `DEPTH_MAX` folders open
//! inside each other, `DEEPER_MAX` further down that wait until these are closed, `ENTRIES_MAX`
//! entries. What lies beyond counts nothing: who holds too much to be counted holds at least the rest.
// k8s: pkg/volume/util/fs/fs.go DiskUsage

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, SFlag, fstat, fstatat};
use pintle_agent_host::volume::dir_fd::{open_beneath, open_dir};

use super::files::Usage;

/// Folders inside each other that are open.
const DEPTH_MAX: usize = 128;
/// Folders inside these that are counted later.
const DEEPER_MAX: usize = 128;
/// Entries of one folder and of all beneath.
const ENTRIES_MAX: u64 = 20_000_000;
/// Files with several hard links that are remembered: 1 MiB.
const LINKS_MAX: usize = 1 << 16;
/// Parts that an inode is counted in, so that the parts of several links add up.
const INODE_PARTS: u64 = 1 << 20;
/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;

/// Counts a folder.
pub(super) fn usage(path: &Path) -> nix::Result<Usage> {
    usage_within(path, ENTRIES_MAX)
}

fn usage_within(path: &Path, entries_max: u64) -> nix::Result<Usage> {
    let root = open_dir(path)?;
    let stat = fstat(root.as_fd())?;
    let mut count = Count::new(stat.st_dev, LINKS_MAX);
    count.add(&stat);
    let (mut open, mut deeper) = (vec![entries(root)?], Vec::new());
    // Also those that count nothing.
    let mut seen = 1;
    while let Some((dir, list)) = open.last_mut() {
        let Some(entry) = list.next() else {
            open.pop();
            if open.is_empty()
                && let Some(folder) = deeper.pop()
            {
                open.push(entries(folder)?);
            }
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        seen += 1;
        if seen > entries_max {
            break;
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
            Ok(folder) if open.len() >= DEPTH_MAX => {
                if deeper.len() < DEEPER_MAX {
                    deeper.push(folder);
                }
            }
            folder => open.push(entries(folder?)?),
        }
    }
    Ok(count.usage())
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
    /// Files with several hard links that were counted.
    links: HashSet<u64>,
    links_max: usize,
    bytes: u64,
    inode_parts: u64,
}

impl Count {
    fn new(device: u64, links_max: usize) -> Self {
        Self { device, links: HashSet::new(), links_max, bytes: 0, inode_parts: 0 }
    }

    /// Adds an entry; false when it belongs to another file system.
    fn add(&mut self, stat: &FileStat) -> bool {
        if stat.st_dev != self.device {
            return false;
        }
        let names = if is_folder(stat) { 1 } else { stat.st_nlink.max(1) };
        let mut parts = 1;
        if names > 1 && !self.links.contains(&stat.st_ino) {
            match self.links.len() < self.links_max {
                true => drop(self.links.insert(stat.st_ino)),
                false => parts = names,
            }
        } else if names > 1 {
            return true;
        }
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
        self.bytes = self.bytes.saturating_add(bytes / parts);
        self.inode_parts += INODE_PARTS / parts;
        true
    }

    fn usage(&self) -> Usage {
        Usage { bytes: self.bytes, inodes: (self.inode_parts + INODE_PARTS / 2) / INODE_PARTS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_beyond_what_is_remembered_count_for_their_part() {
        let dir = tempfile::tempdir().expect("a folder");
        for file in 0..6 {
            let first = dir.path().join(format!("{file}-0"));
            fs::write(&first, vec![1; 12 << 10]).expect("written");
            for name in 1..3 {
                fs::hard_link(&first, dir.path().join(format!("{file}-{name}"))).expect("linked");
            }
        }
        let all = usage(dir.path()).expect("counted");
        let folder = fstat(open_dir(dir.path()).expect("there").as_fd()).expect("there");
        for max in [0, 2] {
            let mut count = Count::new(folder.st_dev, max);
            count.add(&folder);
            for entry in fs::read_dir(dir.path()).expect("there").flatten() {
                count.add(&nix::sys::stat::lstat(&entry.path()).expect("there"));
            }
            let counted = count.usage();
            assert_eq!((counted.inodes, count.links.len()), (all.inodes, max));
            assert!(counted.bytes.abs_diff(all.bytes) < 100, "{counted:?} {all:?}");
        }
    }

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
    fn of_a_folder_with_too_many_entries_some_are_counted_whatever_they_are() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = dir.path().join("files");
        fs::create_dir(&files).expect("made");
        fs::write(files.join("0"), "").expect("written");
        for n in 1..8 {
            fs::hard_link(files.join("0"), files.join(n.to_string())).expect("linked");
        }
        let counted = usage_within(dir.path(), 10).expect("two folders, eight names of a file");
        assert_eq!(counted.inodes, 3);
        let some = usage_within(dir.path(), 2).expect("a lower bound");
        assert_eq!(some.inodes, 2, "both folders");
    }

    #[test]
    fn nothing_hides_in_a_folder_for_being_deep_and_one_that_is_missing_has_no_answer() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut path = dir.path().to_owned();
        (0..DEPTH_MAX * 3).for_each(|_| path.push("d"));
        fs::create_dir_all(&path).expect("made");
        fs::write(path.join("f"), vec![1; 100_000]).expect("written");
        let counted = usage(dir.path()).expect("counted");
        assert_eq!(counted.inodes, 1 + u64::try_from(DEPTH_MAX).expect("small") * 3 + 1);
        assert!(counted.bytes >= 100_000, "{counted:?}");
        assert_eq!(usage(&dir.path().join("none")), Err(Errno::ENOENT));
    }
}
