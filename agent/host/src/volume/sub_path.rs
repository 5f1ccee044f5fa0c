//! Binds a part of a volume to a path of its own, without ever leaving the volume.
//!
//! A container can change the volume while this runs, so nothing is checked and then used by name:
//! the part is opened beneath the volume's open directory by the kernel (`RESOLVE_BENEATH`) and the
//! bind mount's source is that open file. Symlinks that stay inside are followed, also absolute
//! ones; everything else is refused. A missing part is made, each directory with the volume's mode.
// k8s: pkg/volume/util/subpath/subpath_linux.go doBindSubPath, doSafeMakeDir

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, lstat, mkdirat};

use super::dir_fd::{is_mount_point, magic_path, make_dir_all, open_beneath, open_dir};
use super::error::{Context, IoFailure};
use super::layout::DIR_MODE;
use super::mount;
use super::mounts::SubPath;

/// Mode of the file beneath a bind-mounted file.
const TARGET_FILE_MODE: u32 = 0o640;
/// Components of a sub-path.
const COMPONENTS_MAX: usize = 512;

/// Where it failed; upstream words the two differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubPathError {
    /// The missing part could not be made.
    Create(IoFailure),
    /// It could not be opened beneath the volume, or not be bound.
    Prepare(IoFailure),
}

/// Makes the part when missing and binds it to `target`. Idempotent.
pub fn prepare(part: &SubPath, target: &Path) -> Result<(), SubPathError> {
    let root =
        open_dir(&part.volume_root).on("open", &part.volume_root).map_err(SubPathError::Prepare)?;
    let opened = match resolve(&root, part) {
        Err(Errno::ENOENT) => create(&root, part).map_err(SubPathError::Create)?,
        other => other.on("open subpath", &full(part)).map_err(SubPathError::Prepare)?,
    };
    bind(&opened, target).map_err(SubPathError::Prepare)
}

fn full(part: &SubPath) -> PathBuf {
    part.volume_root.join(&part.path)
}

/// Opens the part beneath the volume.
fn resolve(root: &OwnedFd, part: &SubPath) -> nix::Result<OwnedFd> {
    let path = relative(&part.path);
    match open_beneath(root, &path, OFlag::O_PATH, ResolveFlag::empty()) {
        // An absolute link leaves in the kernel's eyes even when it points back inside.
        Err(Errno::EXDEV) => {
            let inside =
                fs::canonicalize(full(part)).ok().zip(fs::canonicalize(&part.volume_root).ok());
            let inside =
                inside.and_then(|(to, base)| to.strip_prefix(&base).ok().map(Path::to_owned));
            let inside = inside.ok_or(Errno::EXDEV)?;
            let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { &inside };
            open_beneath(root, inside, OFlag::O_PATH, ResolveFlag::RESOLVE_NO_SYMLINKS)
        }
        other => other,
    }
}

fn relative(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}

/// Makes the missing directories one by one, each opened before the next is made in it.
fn create(root: &OwnedFd, part: &SubPath) -> Result<OwnedFd, IoFailure> {
    let mode = fstat(root).on("stat", &part.volume_root)?.st_mode & 0o7777;
    let mode = Mode::from_bits_truncate(mode);
    let path = relative(&part.path);
    let parts: Vec<&str> = path.split('/').collect();
    let at = full(part);
    if parts.len() > COMPONENTS_MAX {
        return Err(IoFailure::new("mkdir", &at, Errno::ENAMETOOLONG));
    }
    let open = |path: &str| {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY;
        open_beneath(root, path, flags, ResolveFlag::empty())
    };
    let mut dir = root.try_clone().on("dup", &part.volume_root)?;
    for (index, name) in parts.iter().enumerate() {
        let prefix = parts[..=index].join("/");
        dir = match open(&prefix) {
            Ok(existing) => existing,
            Err(Errno::ENOENT) => make_in(&dir, name, mode).on("mkdir", &at)?,
            Err(errno) => return Err(IoFailure::new("open", &at, errno)),
        };
    }
    Ok(dir)
}

fn make_in(dir: &OwnedFd, name: &str, mode: Mode) -> nix::Result<OwnedFd> {
    match mkdirat(dir, name, mode) {
        // EEXIST: a container was faster, or the name is a dangling link, which the open refuses.
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
    let made = open_beneath(dir, name, flags, ResolveFlag::RESOLVE_NO_SYMLINKS)?;
    // The mode given to mkdir is cut by the umask.
    fchmod(&made, mode)?;
    Ok(made)
}

fn bind(part: &OwnedFd, target: &Path) -> Result<(), IoFailure> {
    let source = fstat(part).on("stat", target)?;
    if is_mount_point(target)? {
        let mounted = lstat(target).on("stat", target)?;
        if (mounted.st_dev, mounted.st_ino) == (source.st_dev, source.st_ino) {
            return Ok(());
        }
        mount::unmount(target)?;
    }
    make_target(target, is_dir(&source))?;
    mount::bind(&magic_path(part), target)
}

fn make_target(target: &Path, dir: bool) -> Result<(), IoFailure> {
    if let Some(parent) = target.parent() {
        make_dir_all(parent, DIR_MODE)?;
    }
    // A file where a directory was before, or the other way round: the target holds no data.
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() != dir => match found.is_dir() {
            true => fs::remove_dir(target).on("rmdir", target)?,
            false => fs::remove_file(target).on("unlink", target)?,
        },
        Ok(_) => return Ok(()),
        Err(_) => {}
    }
    if dir {
        return make_dir_all(target, DIR_MODE);
    }
    use std::os::unix::fs::OpenOptionsExt;
    let mut open = fs::OpenOptions::new();
    open.create(true).append(true).mode(TARGET_FILE_MODE).open(target).on("create", target)?;
    Ok(())
}

fn is_dir(stat: &FileStat) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits()
}
