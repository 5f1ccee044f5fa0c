//! Deletes a tree without ever crossing a mount or following a symlink.
//!
//! Input: a directory of ours. Output: it is deleted, or the first obstacle is returned. Each step
//! uses an open directory with `RESOLVE_NO_XDEV`, which detects bind mounts of the same device as
//! well: data behind a left-over mount is never deleted. Bounds:
//! at most `DEPTH_MAX` open directories; deeper ones are moved up and deleted in a later pass, so a
//! container cannot make a tree that overflows the stack.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::dir_fd::{open_beneath, open_dir};
use super::error::{Context, IoFailure};

/// Prefix of a volume's directory under deletion; a directory with it is never used as a volume
/// again.
pub(super) const DELETING: &str = ".deleting~";
/// Open directories at once.
const DEPTH_MAX: usize = 64;
/// Passes over a tree; each one takes `DEPTH_MAX` levels.
const PASSES_MAX: usize = 4096;

/// Removes `path` and everything in it. Succeeds when it does not exist.
pub fn remove_tree(path: &Path) -> Result<(), IoFailure> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(IoFailure::new("remove", path, Errno::EBUSY));
    };
    let parent = match open_dir(parent) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(IoFailure::new("open", parent, errno)),
    };
    match open_child(&parent, name) {
        Ok(root) => Pass::all(&root, path)?,
        Err(Errno::ENOENT) => return Ok(()),
        // Not a directory: a file that once was a mount's target.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            return gone(unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)).on("unlink", path);
        }
        Err(errno) => return Err(IoFailure::new("open", path, errno)),
    }
    gone(unlinkat(&parent, name, UnlinkatFlags::RemoveDir)).on("rmdir", path)
}

fn gone(result: nix::Result<()>) -> nix::Result<()> {
    match result {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

fn open_child(dir: &OwnedFd, name: &std::ffi::OsStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
    let resolve = ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS;
    open_beneath(dir, name, flags, resolve)
}

/// One walk over the tree.
struct Pass<'a> {
    root: &'a OwnedFd,
    path: &'a Path,
    moved: usize,
}

impl<'a> Pass<'a> {
    fn all(root: &'a OwnedFd, path: &'a Path) -> Result<(), IoFailure> {
        let mut pass = Pass { root, path, moved: 0 };
        for _ in 0..PASSES_MAX {
            let before = pass.moved;
            pass.empty(root, 0)?;
            if pass.moved == before {
                return Ok(());
            }
        }
        Err(IoFailure::new("empty", path, Errno::ENOTEMPTY))
    }

    fn empty(&mut self, dir: &OwnedFd, depth: usize) -> Result<(), IoFailure> {
        // A second descriptor: reading a directory moves its offset.
        let listing = dir.try_clone().on("dup", self.path)?;
        let mut listing = Dir::from_fd(listing).on("read", self.path)?;
        for entry in listing.iter() {
            let entry = entry.on("read", self.path)?;
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if entry.file_type() != Some(Type::Directory)
                && let Ok(()) | Err(Errno::ENOENT) = unlinkat(dir, name, UnlinkatFlags::NoRemoveDir)
            {
                continue;
            }
            self.entry(dir, name, depth)?;
        }
        Ok(())
    }

    /// A directory, or something that could not be unlinked.
    fn entry(
        &mut self,
        dir: &OwnedFd,
        name: &std::ffi::OsStr,
        depth: usize,
    ) -> Result<(), IoFailure> {
        let at = self.path.join(name);
        let child = match open_child(dir, name) {
            Ok(child) => child,
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                return gone(unlinkat(dir, name, UnlinkatFlags::NoRemoveDir)).on("unlink", &at);
            }
            Err(errno) => return Err(IoFailure::new("enter", &at, errno)),
        };
        if depth + 1 >= DEPTH_MAX {
            let parked = format!(".deleting~{}", self.moved);
            self.moved += 1;
            match renameat(dir, name, self.root, parked.as_str()) {
                Ok(()) => return Ok(()),
                // A leftover of an earlier pass has that name: it is deleted first, this one in the
                // next pass.
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(()),
                Err(errno) => return Err(IoFailure::new("rename", &at, errno)),
            }
        }
        self.empty(&child, depth + 1)?;
        match gone(unlinkat(dir, name, UnlinkatFlags::RemoveDir)) {
            // Something deeper was moved up or could not be: the next pass sees it again.
            Err(Errno::ENOTEMPTY) if self.moved > 0 => Ok(()),
            other => other.on("rmdir", &at),
        }
    }
}
