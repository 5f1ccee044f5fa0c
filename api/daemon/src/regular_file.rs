//! Opens files in places where a container, or a pod that mounts the place, could have put
//! anything.
//!
//! Input: a folder of ours that is trusted, and a path below it. Output: an open regular file, or
//! an error that names the kind of file there. Nothing waits: a FIFO has no writer for ever,
//! opening a device can have effects, a link leads elsewhere. So the name is first opened as a bare
//! reference (`O_PATH`, which has no effect on the file), checked, and only a regular file is then
//! opened through that reference. No link is followed and no mount crossed below the folder.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat};

/// Attempts of a resolution that a concurrent rename disturbed (EAGAIN).
const RESOLVE_ATTEMPTS: u32 = 16;
/// Directories of a log's path below the folder of all logs: the pod's, the container's.
const LOG_DEPTH: usize = 3;

/// Opens `path` below `base` for reading.
pub fn open_in(base: &Path, path: &Path) -> io::Result<File> {
    reopen(&reference(base, path)?, OFlag::O_RDONLY)
}

/// Opens a file for reading; its folder is trusted.
pub fn open_at(path: &Path) -> io::Result<File> {
    let (base, name) = split(path, 1)?;
    open_in(base, name)
}

/// Opens a container's log; paths below the folder of all logs are not trusted.
pub fn open_log(path: &Path) -> io::Result<File> {
    let (base, below) = split(path, LOG_DEPTH)?;
    open_in(base, below)
}

/// Works on the files beside a log. `work` gets a name of the log that stays in its present folder,
/// also when the folder is renamed.
pub fn beside_log<T>(log: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (base, below) = split(folder, LOG_DEPTH - 1)?;
    let folder = resolve(base, below, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
    work(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// Reads at most the last `bytes_max` of a file.
pub fn read_end(file: &mut File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a file that must not exist. The error of any existing entry is `AlreadyExists`, also of a
/// dangling link.
pub fn create_in(base: &Path, path: &Path, mode: u32) -> io::Result<File> {
    let mode = mode_bits(mode);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let file = File::from(resolve(base, path, flags, mode)?);
    // The umask took bits away.
    fchmod(&file, mode)?;
    Ok(file)
}

/// Makes a file that must not exist in a trusted folder, as `create_in`.
pub fn create_at(path: &Path, mode: u32) -> io::Result<File> {
    let (base, name) = split(path, 1)?;
    create_in(base, name, mode)
}

/// Replaces a file's content in place, so that containers that mount the file see it; creates the
/// file if it is missing.
pub fn overwrite_in(base: &Path, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = match reference(base, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_in(base, path, mode)?,
        found => reopen(&found?, OFlag::O_WRONLY)?,
    };
    // The old content goes last: on a full disk its blocks are still the file's to write into.
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    Ok(fchmod(&file, mode_bits(mode))?)
}

fn mode_bits(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode)
}

/// The last `depth` components, and the path before them; fewer where there are fewer.
fn split(path: &Path, depth: usize) -> io::Result<(&Path, &Path)> {
    let base = path.ancestors().take(depth + 1).last().filter(|base| *base != path);
    let base = base.ok_or(io::ErrorKind::InvalidInput)?;
    let below = path.strip_prefix(base).map_err(|_| io::ErrorKind::InvalidInput)?;
    let base = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    Ok((base, below))
}

/// A reference to a regular file.
fn reference(base: &Path, path: &Path) -> io::Result<OwnedFd> {
    let found = resolve(base, path, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&found)?.st_mode & SFlag::S_IFMT.bits());
    let what = match kind {
        SFlag::S_IFREG => return Ok(found),
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFBLK | SFlag::S_IFCHR => "a device",
        _ => "something else",
    };
    Err(io::Error::other(format!("not a regular file but {what}")))
}

fn reopen(found: &OwnedFd, flags: OFlag) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    Ok(File::from(open(path.as_str(), flags, Mode::empty())?))
}

fn resolve(base: &Path, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
    let folder = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let base = open(base, folder, Mode::empty())?;
    let within = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(within);
    let mut attempt = 0;
    loop {
        use nix::errno::Errno;
        match openat2(&base, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) if attempt < RESOLVE_ATTEMPTS => attempt += 1,
            // A link at the end: openat2 refuses it before it can be checked.
            Err(Errno::ELOOP) => {
                return Err(io::Error::other("not a regular file but a symbolic link"));
            }
            Err(Errno::EXDEV) => {
                return Err(io::Error::other("something is mounted there"));
            }
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn non_regular_files_are_rejected_and_left_unchanged() {
        for (what, put) in xtask::disk::STRANGE {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("file");
            put(&path);
            let name = Path::new("file");
            let refused = [
                open_at(&path).map(drop),
                open_in(dir.path(), name).map(drop),
                overwrite_in(dir.path(), name, b"x", 0o644),
                create_in(dir.path(), name, 0o644).map(drop),
            ];
            for (at, result) in refused.into_iter().enumerate() {
                assert!(result.is_err(), "{what}: operation {at}");
            }
            let meta = fs::symlink_metadata(&path).expect("it is still there");
            assert!(!meta.is_file(), "{what} is left as it is");
        }
    }

    #[test]
    fn error_names_the_actual_file_type() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
        let error = open_at(&path).expect_err("refused");
        assert_eq!(error.to_string(), "not a regular file but a FIFO");
        let missing = open_at(&dir.path().join("none")).expect_err("nothing there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_folder_on_the_way_to_a_log_may_be_a_link() {
        let logs = tempfile::tempdir().expect("a folder");
        let other = tempfile::tempdir().expect("a folder");
        fs::write(other.path().join("0.log"), "secret").expect("written");
        let pod = logs.path().join("ns_pod_uid");
        fs::create_dir(&pod).expect("made");
        symlink(other.path(), pod.join("c")).expect("linked");
        let error = open_log(&pod.join("c/0.log")).expect_err("refused");
        assert_eq!(error.to_string(), "not a regular file but a symbolic link");
        fs::remove_file(pod.join("c")).expect("removed");
        fs::create_dir(pod.join("c")).expect("made");
        fs::write(pod.join("c/0.log"), "text").expect("written");
        open_log(&pod.join("c/0.log")).expect("opened");
    }

    #[test]
    fn a_file_is_overwritten_in_place_with_its_mode() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("hosts");
        let name = Path::new("hosts");
        overwrite_in(dir.path(), name, b"a longer text", 0o644).expect("made");
        let inode = fs::metadata(&path).expect("a file").ino();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
        overwrite_in(dir.path(), name, b"short", 0o644).expect("replaced");
        assert_eq!(fs::read(&path).expect("a file"), b"short");
        let meta = fs::metadata(&path).expect("a file");
        assert_eq!((meta.ino(), meta.permissions().mode() & 0o777), (inode, 0o644));
    }

    #[test]
    fn a_file_is_overwritten_on_a_full_disk() {
        xtask::disk::with_private_mounts(|| {
            let dir = tempfile::tempdir().expect("a folder");
            xtask::disk::small(dir.path(), 64 << 10);
            let name = Path::new("hosts");
            overwrite_in(dir.path(), name, b"127.0.0.1 localhost", 0o644).expect("made");
            fs::write(dir.path().join("full"), vec![0; 128 << 10]).expect_err("the disk is full");
            overwrite_in(dir.path(), name, b"127.0.0.1 other", 0o644).expect("replaced");
            assert_eq!(fs::read(dir.path().join("hosts")).expect("read"), b"127.0.0.1 other");
        });
    }

    #[test]
    fn reading_the_end_of_a_sparse_file_reads_only_its_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("sparse");
        let mut file = fs::File::create(&path).expect("made");
        file.set_len(1 << 40).expect("sparse");
        file.seek(SeekFrom::End(0)).expect("end");
        file.write_all(b"end").expect("written");
        let end = read_end(&mut open_at(&path).expect("opened"), 5).expect("read");
        assert_eq!(end, b"\0\0end");
    }
}
