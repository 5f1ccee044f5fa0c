//! Disk usage of a folder that containers write, counted as `du` does. Effects: reads metadata.
//!
//! Input: an open folder. Output: blocks and inodes beneath it, including its own. A file with
//! several hard links counts once; mounts inside do not count. Only `LINKS_MAX` such files are
//! remembered: each link of further ones counts for its part of the file, which gives the same sum
//! unless some of the links lie elsewhere, and then less. Every step goes through an open folder
//! and follows no link, so a container cannot lead it elsewhere. Of nested folders the `OPEN_MAX`
//! deepest are open. Those above are closed, and opened again on the way back, where reading
//! continues at the old position: 56 bytes each, whatever they hold. Bounds: `OPEN_MAX` folders
//! open, `DEPTH_MAX` nested, `ENTRIES_MAX` entries; beyond them nothing is counted, and the result
//! is marked incomplete.
// k8s: pkg/volume/util/fs/fs.go DiskUsage

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::dir::{Dir, Entry, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Whence, lseek};
use pintle_agent_host::volume::dir_fd::{open_beneath, open_dir};

use super::files::FileUsage;

/// Nested folders that are open; of each there are two descriptors and a page of its list.
const OPEN_MAX: usize = 128;
/// Folders inside each other: 32 times as many as a path can name, in 4 MiB.
const DEPTH_MAX: usize = 1 << 16;
/// Entries of one folder and of all beneath.
const ENTRIES_MAX: u64 = 20_000_000;
/// Entries after which the kernel's position in the list is read.
const MARK_EVERY: u32 = 64;
/// Files with several hard links that are remembered: 1 MiB.
const LINKS_MAX: usize = 1 << 16;
/// Parts that an inode is counted in, so that the parts of several links add up.
const INODE_PARTS: u64 = 1 << 20;
/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;

/// The counts of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walked {
    pub(super) usage: FileUsage,
    /// Nothing was too deep or too much, or was moved away while it was counted.
    pub(super) is_whole: bool,
}

/// Counts a folder.
pub(super) fn usage(path: &Path) -> nix::Result<Walked> {
    let bounds = WalkBounds { open: OPEN_MAX, depth: DEPTH_MAX, entries: ENTRIES_MAX };
    usage_within(path, bounds)
}

fn usage_within(path: &Path, bounds: WalkBounds) -> nix::Result<Walked> {
    let root = open_dir(path)?;
    let stat = fstat(root.as_fd())?;
    let mut count = Count::new(stat.st_dev, LINKS_MAX);
    count.add(&stat);
    let mut walk = FolderWalk { bounds, levels: Vec::new(), closed: 0, is_whole: true };
    walk.enter(FolderLevel::of(root, &stat, stat.st_ino)?)?;
    // Also those that count nothing.
    let mut seen = 1;
    while let Some((folder, list)) = walk.open() {
        let Some(entry) = list.next() else {
            if !walk.leave(stat.st_dev)? {
                break;
            }
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        seen += 1;
        if seen > bounds.entries {
            walk.is_whole = false;
            break;
        }
        let stat = match fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => continue, // removed meanwhile
            stat => stat?,
        };
        if !count.add(&stat) || !is_folder(&stat) {
            continue;
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        match open_beneath(folder, name, flags, ResolveFlag::RESOLVE_NO_XDEV) {
            // Removed, replaced or mounted over meanwhile.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {}
            folder => walk.enter(FolderLevel::of(folder?, &stat, entry.ino())?)?,
        }
    }
    Ok(Walked { usage: count.usage(), is_whole: walk.is_whole })
}

#[derive(Clone, Copy, Debug)]
struct WalkBounds {
    open: usize,
    depth: usize,
    entries: u64,
}

/// The folders from the root to the one that is being read.
struct FolderWalk {
    bounds: WalkBounds,
    levels: Vec<FolderLevel>,
    /// This many of them, from the root on, are closed.
    closed: usize,
    is_whole: bool,
}

struct FolderLevel {
    inode: u64,
    /// The inode as the list of the folder above has it: file systems may differ in the two.
    listed: u64,
    /// Nothing once it is closed.
    open: Option<(OwnedFd, OwningIter)>,
    /// The kernel's position in its list, and its position before the last batch of entries.
    position: (i64, i64),
    read: u32,
}

impl FolderWalk {
    /// The folder that is being read, and the rest of its list.
    fn open(&mut self) -> Option<(&OwnedFd, &mut OwningIter)> {
        let level = self.levels.last_mut()?;
        level.read = level.read.wrapping_add(1);
        if level.read.is_multiple_of(MARK_EVERY) {
            // Before it is left its place is asked for in any case.
            let _ = level.mark();
        }
        level.open.as_mut().map(|(folder, list)| (&*folder, list))
    }

    /// Enters a folder.
    fn enter(&mut self, level: FolderLevel) -> nix::Result<()> {
        if self.levels.len() >= self.bounds.depth {
            self.is_whole = false;
            return Ok(());
        }
        if let Some(above) = self.levels.last_mut() {
            above.mark()?;
        }
        if self.levels.len() - self.closed >= self.bounds.open {
            self.levels[self.closed].open = None;
            self.closed += 1;
        }
        self.levels.push(level);
        Ok(())
    }

    /// Returns to the folder above; false when that was moved, and the rest of it cannot be read.
    fn leave(&mut self, device: u64) -> nix::Result<bool> {
        let Some(below) = self.levels.pop() else { return Ok(true) };
        if self.levels.len() > self.closed {
            return Ok(true);
        }
        let Some(level) = self.levels.last_mut() else { return Ok(true) };
        self.closed -= 1;
        let is_whole = level.reopen(&below, device)?;
        self.is_whole &= is_whole;
        Ok(level.open.is_some())
    }
}

impl FolderLevel {
    fn of(folder: OwnedFd, stat: &FileStat, listed: u64) -> nix::Result<Self> {
        let open = Some(entries(folder)?);
        Ok(Self { inode: stat.st_ino, listed, open, position: (0, 0), read: 0 })
    }

    /// The kernel returns entries in batches: the last read entry lies between its last two
    /// positions.
    fn mark(&mut self) -> nix::Result<()> {
        let Some((folder, _)) = &self.open else { return Ok(()) };
        let place = lseek(folder, 0, Whence::SeekCur)?;
        if place != self.position.1 {
            self.position = (self.position.1, place);
        }
        Ok(())
    }

    /// Opens a closed folder from the one below, up to which its list was read. Returns false when
    /// the rest of the list cannot be read completely. The folder stays closed when it is no longer
    /// the parent of the one below.
    fn reopen(&mut self, below: &Self, device: u64) -> nix::Result<bool> {
        let Some((folder, _)) = &below.open else { return Ok(false) };
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = match openat(folder, "..", flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(false), // removed meanwhile
            folder => folder?,
        };
        let stat = fstat(folder.as_fd())?;
        if (stat.st_dev, stat.st_ino) != (device, self.inode) {
            return Ok(false);
        }
        lseek(&folder, self.position.0, Whence::SeekSet)?;
        let (folder, mut list) = entries(folder)?;
        let is_below = |entry: nix::Result<Entry>| entry.map(|entry| entry.ino() == below.listed);
        let found = list.by_ref().map(is_below).find(|is| !matches!(is, Ok(false)));
        self.open = Some((folder, list));
        found.unwrap_or(Ok(false))
    }
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

    fn usage(&self) -> FileUsage {
        FileUsage { bytes: self.bytes, inodes: (self.inode_parts + INODE_PARTS / 2) / INODE_PARTS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    const BOUNDS: WalkBounds =
        WalkBounds { open: OPEN_MAX, depth: DEPTH_MAX, entries: ENTRIES_MAX };

    /// All that is there.
    fn whole(path: &Path, bounds: WalkBounds) -> FileUsage {
        let walked = usage_within(path, bounds).expect("counted");
        assert!(walked.is_whole, "{walked:?}");
        walked.usage
    }

    /// Counts the same folder by paths.
    fn by_paths(path: &Path) -> FileUsage {
        let meta = fs::symlink_metadata(path).expect("there");
        let own = FileUsage { bytes: meta.blocks() * BLOCK_BYTES, inodes: 1 };
        let below = meta.is_dir().then(|| fs::read_dir(path).expect("there"));
        below.into_iter().flatten().flatten().fold(own, |sum, entry| {
            let of = by_paths(&entry.path());
            FileUsage { bytes: sum.bytes + of.bytes, inodes: sum.inodes + of.inodes }
        })
    }

    /// A folder with so many others inside each other, and a file in the last one.
    fn chain(path: &Path, depth: usize) {
        let deepest = (0..depth).fold(path.to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&deepest).expect("made");
        fs::write(deepest.join("f"), "some").expect("written");
    }

    #[test]
    fn hard_links_beyond_the_remembered_limit_count_proportionally() {
        let dir = tempfile::tempdir().expect("a folder");
        for file in 0..6 {
            let first = dir.path().join(format!("{file}-0"));
            fs::write(&first, vec![1; 12 << 10]).expect("written");
            for name in 1..3 {
                fs::hard_link(&first, dir.path().join(format!("{file}-{name}"))).expect("linked");
            }
        }
        let all = whole(dir.path(), BOUNDS);
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
        let empty = whole(dir.path(), BOUNDS);
        assert_eq!(empty.inodes, 1, "itself");

        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        fs::write(dir.path().join("a/b/f"), vec![1; 100_000]).expect("written");
        fs::hard_link(dir.path().join("a/b/f"), dir.path().join("again")).expect("linked");
        symlink(outside.path(), dir.path().join("out")).expect("linked");
        let full = whole(dir.path(), BOUNDS);
        assert_eq!(full.inodes, 1 + 2 + 1 + 1, "folders, the file, the symbolic link");
        assert!(full.bytes >= 100_000 && full.bytes < 1 << 20, "{full:?}");
    }

    #[test]
    fn folder_beyond_the_entry_limit_yields_a_lower_bound_for_any_entry_type() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = dir.path().join("files");
        fs::create_dir(&files).expect("made");
        fs::write(files.join("0"), "").expect("written");
        for n in 1..8 {
            fs::hard_link(files.join("0"), files.join(n.to_string())).expect("linked");
        }
        let bounds = |entries| WalkBounds { entries, ..BOUNDS };
        assert_eq!(whole(dir.path(), bounds(10)).inodes, 3, "two folders, eight names of a file");
        let some = usage_within(dir.path(), bounds(2)).expect("a lower bound");
        assert_eq!((some.usage.inodes, some.is_whole), (2, false), "both folders");
    }

    #[test]
    fn deep_folders_and_folders_with_many_siblings_are_fully_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = (1..OPEN_MAX).fold(dir.path().to_owned(), |path, _| path.join("d"));
        for sibling in 0..3 * OPEN_MAX {
            chain(&deep.join(sibling.to_string()), sibling % 3);
        }
        chain(&deep, OPEN_MAX * 3);
        assert_eq!(whole(dir.path(), BOUNDS), by_paths(dir.path()));
        assert_eq!(usage(&dir.path().join("none")), Err(Errno::ENOENT));
    }

    #[test]
    fn walk_with_few_open_folders_resumes_each_listing_where_it_stopped() {
        let dir = tempfile::tempdir().expect("a folder");
        for below in ["", "b", "b/b"] {
            for n in 0..2_000 {
                // The kernel returns some hundred of them at once.
                let path = dir.path().join(below).join(format!("{n}-{}", "n".repeat(64)));
                match n % 250 {
                    0 => chain(&path, n / 250),
                    1 => fs::create_dir_all(&path).expect("made"),
                    _ => fs::write(&path, "some").expect("written"),
                }
            }
            fs::create_dir(dir.path().join(below).join("b")).expect("made");
        }
        let all = by_paths(dir.path());
        for open in 1..5 {
            assert_eq!(whole(dir.path(), WalkBounds { open, ..BOUNDS }), all, "{open}");
        }
    }

    #[test]
    fn too_deep_folders_make_usage_incomplete_but_their_siblings_are_counted() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["a", "b", "c"] {
            chain(&dir.path().join(name), 9);
        }
        let bounds = WalkBounds { open: 2, depth: 4, ..BOUNDS };
        let some = usage_within(dir.path(), bounds).expect("a lower bound");
        assert_eq!((some.usage.inodes, some.is_whole), (1 + 3 * 4, false));
    }

    #[test]
    fn folder_moved_during_a_walk_does_not_lead_the_walk_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(dir.path().join("a/b")).expect("made");
        fs::create_dir(dir.path().join("elsewhere")).expect("made");
        let of = |path: &str| {
            let folder = open_dir(&dir.path().join(path)).expect("there");
            let stat = fstat(folder.as_fd()).expect("there");
            (stat.st_dev, FolderLevel::of(folder, &stat, stat.st_ino).expect("a list"))
        };
        let ((device, mut above), (_, below)) = (of("a"), of("a/b"));
        let mut back = |below: &FolderLevel| {
            above.open = None;
            let is_whole = above.reopen(below, device).expect("no error");
            (is_whole, above.open.is_some())
        };
        assert_eq!(back(&below), (true, true));
        let stranger = FolderLevel { listed: 0, ..of("a/b").1 };
        assert_eq!(back(&stranger), (false, true), "the list does not have it any more");
        fs::rename(dir.path().join("a/b"), dir.path().join("elsewhere/b")).expect("moved");
        assert_eq!(back(&below), (false, false));
        fs::remove_dir(dir.path().join("elsewhere/b")).expect("removed");
        assert_eq!(back(&below), (false, false));
    }
}
