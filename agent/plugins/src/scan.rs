//! One look at the folder of registration sockets.
//!
//! Input: the folder. Output: the sockets below it in the order of their paths, and the folders
//! that were read, each with the time of its last change. A tenant may write there: links are never
//! followed, what is no socket is passed over, names that begin with a dot are hidden as they are
//! for the kubelet. Bounds: `DEPTH_MAX`, `ENTRIES_MAX`, `SOCKETS_MAX`; what is beyond them is not
//! seen.
// k8s: pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go traversePluginDir

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};

use crate::wire::SOCKET_PATH_BYTES_MAX;

/// Folders below each other.
const DEPTH_MAX: usize = 8;
/// Files and folders that are looked at.
pub(crate) const ENTRIES_MAX: usize = 4096;
/// Sockets that are kept.
pub(crate) const SOCKETS_MAX: usize = 256;

/// Nanoseconds since the epoch.
pub(crate) type Nanos = i128;

/// A socket's file, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    /// When it was made: connections and changes of owner or mode leave this time alone.
    made: Nanos,
}

#[cfg(test)]
impl FileId {
    /// A file of tests.
    pub(crate) fn made_up(made: Nanos) -> Self {
        Self { device: 1, inode: 1, made }
    }
}

/// A socket in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Which file it is.
    pub(crate) file: FileId,
    /// When the file last changed, by a clock that no owner of the file can set.
    pub(crate) changed: Nanos,
}

/// What a look has found.
#[derive(Debug, Default)]
pub(crate) struct ScannedSockets {
    pub(crate) sockets: Vec<Socket>,
    /// Folders, each with the time of its last change.
    pub(crate) folders: Vec<(PathBuf, Nanos)>,
    /// Files and folders that were looked at.
    entries: usize,
}

/// Looks at a folder and those below it. Only the first one has to be readable.
pub(crate) fn scan(root: &Path) -> io::Result<ScannedSockets> {
    let mut found = ScannedSockets::default();
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let folder = Dir::open(root, flags, Mode::empty())?;
    found.read(folder, root, 0)?;
    found.sockets.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

impl ScannedSockets {
    fn read(&mut self, mut folder: Dir, path: &Path, depth: usize) -> Result<(), Errno> {
        let mut below = Vec::new();
        // Read first: what changes during the look changes it again.
        let changed = changed(&fstat(&folder)?);
        self.folders.push((path.to_owned(), changed));
        let left = ENTRIES_MAX - self.entries;
        let entries: Vec<_> = folder.iter().filter_map(Result::ok).take(left).collect();
        self.entries += entries.len();
        for entry in &entries {
            let name = entry.file_name();
            if name.to_bytes().starts_with(b".") {
                continue;
            }
            // One that is gone again is none.
            let Ok(stat) = fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFSOCK => self.add(path, &stat),
                SFlag::S_IFDIR if depth < DEPTH_MAX => below.push((name, path)),
                _ => {}
            }
        }
        for (name, path) in below {
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let Ok(next) = Dir::openat(&folder, name, flags, Mode::empty()) else { continue };
            let _ = self.read(next, &path, depth + 1); // gone again, or not ours to read
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, stat: &FileStat) {
        let fits = path.as_os_str().len() < SOCKET_PATH_BYTES_MAX;
        if !fits || self.sockets.len() == SOCKETS_MAX {
            tracing::debug!(path = %path.display(), "a registration socket is passed over");
            return;
        }
        let made = nanos(stat.st_mtime, stat.st_mtime_nsec);
        let file = FileId { device: stat.st_dev, inode: stat.st_ino, made };
        self.sockets.push(Socket { path, file, changed: changed(stat) });
    }
}

/// When a file last changed.
pub(crate) fn changed(stat: &FileStat) -> Nanos {
    nanos(stat.st_ctime, stat.st_ctime_nsec)
}

/// The clock of files.
pub(crate) fn now() -> Nanos {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Nanos::try_from(now.as_nanos()).unwrap_or(Nanos::MAX)
}

fn nanos(seconds: i64, nanos: i64) -> Nanos {
    Nanos::from(seconds) * 1_000_000_000 + Nanos::from(nanos)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn paths(root: &Path) -> Vec<String> {
        let sockets = scan(root).expect("readable").sockets;
        let below = |socket: &Socket| {
            let below = socket.path.strip_prefix(root).expect("below the root");
            below.display().to_string()
        };
        sockets.iter().map(below).collect()
    }

    #[test]
    fn scan_finds_visible_sockets_in_folders_but_no_files_or_links() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path();
        let elsewhere = tempfile::tempdir().expect("a folder");
        let outside = elsewhere.path().join("s");
        let _outside = UnixListener::bind(&outside).expect("a socket");
        fs::create_dir(root.join("below")).expect("a folder");
        fs::create_dir(root.join(".hidden")).expect("a folder");
        let socket = |name: &str| UnixListener::bind(root.join(name)).expect("a socket");
        let _sockets = ["b.sock", "a.sock", ".dot", "below/c", ".hidden/d"].map(socket);
        fs::write(root.join("file"), "").expect("a file");
        symlink(&outside, root.join("link")).expect("a link to a socket");
        symlink(elsewhere.path(), root.join("folder")).expect("a link to a folder");
        assert_eq!(paths(root), ["a.sock", "b.sock", "below/c"]);
    }

    #[test]
    fn recreated_socket_is_a_new_file_and_a_socket_with_a_new_mode_is_not() {
        let temp = tempfile::tempdir().expect("a folder");
        let path = temp.path().join("s");
        let file = || scan(temp.path()).expect("readable").sockets[0].file;
        let _first = UnixListener::bind(&path).expect("a socket");
        let first = file();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        assert_eq!(file(), first);
        fs::remove_file(&path).expect("ours");
        let _second = UnixListener::bind(&path).expect("a socket");
        assert_ne!(file(), first);
    }

    #[test]
    fn a_flood_of_files_and_folders_is_seen_in_part() {
        let temp = tempfile::tempdir().expect("a folder");
        let mut deep = temp.path().to_owned();
        for _ in 0..DEPTH_MAX + 3 {
            deep.push("d");
            fs::create_dir(&deep).expect("a folder");
        }
        assert_eq!(scan(temp.path()).expect("readable").folders.len(), DEPTH_MAX + 1);
        for at in 0..ENTRIES_MAX + 10 {
            fs::write(temp.path().join(format!("f{at}")), "").expect("a file");
        }
        assert!(scan(temp.path()).expect("readable").entries <= ENTRIES_MAX);
        assert!(scan(&temp.path().join("none")).is_err());
    }
}
