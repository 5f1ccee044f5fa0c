//! Open directories and resolution beneath them: the only way in which paths that a container can
//! change are walked.
//!
//! Every path is resolved by `openat2`, so the kernel refuses to leave the directory, to follow a
//! `/proc` magic link or, where asked, to cross a mount. There is no check that could be raced.
//! Needs Linux 5.6.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use super::error::{Context, IoFailure};

/// How often a resolution is repeated when a rename elsewhere disturbed it (EAGAIN).
const RESOLVE_ATTEMPTS: u32 = 16;

/// Opens a directory by a path that containers cannot change.
pub fn open_dir(path: &Path) -> nix::Result<OwnedFd> {
    open(path, OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Opens `path` beneath `dir`. `flags` are added to `O_CLOEXEC`.
pub fn open_beneath(
    dir: &OwnedFd,
    path: impl AsRef<OsStr>,
    flags: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let resolve = resolve | ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    let mut attempt = 0;
    loop {
        match openat2(dir, path.as_ref(), how) {
            Err(Errno::EAGAIN | Errno::EINTR) if attempt < RESOLVE_ATTEMPTS => attempt += 1,
            done => return done,
        }
    }
}

/// Opens a regular file beneath a directory for reading, never one outside of it. Links that stay
/// inside are followed. What is not a regular file is refused without being opened.
pub fn open_file_beneath(dir: &Path, path: &str) -> std::io::Result<fs::File> {
    let root = open_dir(dir)?;
    let found = open_beneath(&root, path, OFlag::O_PATH, ResolveFlag::empty())?;
    if !fs::metadata(magic_path(&found))?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    Ok(fs::File::from(open(&magic_path(&found), flags, Mode::empty())?))
}

/// True when something is mounted at `path` itself. False when it does not exist.
pub fn is_mount_point(path: &Path) -> Result<bool, IoFailure> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(true) };
    let parent = match open_dir(parent) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(false),
        Err(errno) => return Err(IoFailure::new("open", parent, errno)),
    };
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    match open_beneath(&parent, name, flags, ResolveFlag::RESOLVE_NO_XDEV) {
        Err(Errno::EXDEV) => Ok(true),
        Ok(_) | Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(IoFailure::new("open", path, errno)),
    }
}

/// Path by which the kernel reaches an open file, even after a rename.
pub fn magic_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Creates a directory with exactly this mode, regardless of the umask; an existing one stays
/// unchanged. Parents must exist.
pub fn make_dir(path: &Path, mode: u32) -> Result<(), IoFailure> {
    use std::os::unix::fs::PermissionsExt;
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).on("chmod", path),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(IoFailure::of("mkdir", path, &e)),
    }
}

/// Creates a directory and its missing parents, all with exactly this mode.
pub fn make_dir_all(path: &Path, mode: u32) -> Result<(), IoFailure> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_dir_all(parent, mode)?;
    }
    make_dir(path, mode)
}
