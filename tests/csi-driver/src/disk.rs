//! The content of volumes, and where it is mounted: folders, files, bind mounts.
//!
//! Nothing is removed across a mount: a target is removed as an empty folder or file after its
//! mount is gone. A volume's content is removed only by its deletion.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::unistd::{Whence, lseek};

/// Makes the content of a volume.
pub(crate) fn create(path: &Path, is_block: bool, size_bytes: u64) -> io::Result<()> {
    match is_block {
        true => File::create(path)?.set_len(size_bytes),
        false => {
            fs::create_dir(path)?;
            // Containers of any user write into it, unless a group is given the files.
            fs::set_permissions(path, fs::Permissions::from_mode(0o777))
        }
    }
}

/// Makes the content of a volume larger, never smaller.
pub(crate) fn grow(path: &Path, is_block: bool, size_bytes: u64) -> io::Result<()> {
    if is_block {
        let file = File::options().write(true).open(path)?;
        if file.metadata()?.len() < size_bytes {
            file.set_len(size_bytes)?;
        }
    }
    Ok(()) // a folder has no size
}

/// Removes the content of a volume or snapshot; what is gone already is removed.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(file) if file.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Copies content, with owners and modes.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let file = fs::symlink_metadata(from)?;
    if file.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    if file.is_dir() {
        if !to.is_dir() {
            fs::create_dir(to)?;
        }
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        fs::set_permissions(to, file.permissions())?;
    } else if file.is_file() {
        copy_file(from, to)?;
        fs::set_permissions(to, file.permissions())?;
    } else {
        return Ok(()); // pipes, sockets and devices are no content
    }
    chown(to, Some(file.uid()), Some(file.gid()))
}

/// Copies the data of a file and leaves its holes out: a device's file is hardly ever full.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while let Some(begin) = seek(&from, at, Whence::SeekData)? {
        let end = seek(&from, begin, Whence::SeekHole)?.unwrap_or(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        io::copy(&mut (&mut from).take(end - begin), &mut to)?;
        at = end;
    }
    Ok(())
}

/// The next data or hole; `None` at the end of the file.
fn seek(file: &File, from: u64, whence: Whence) -> io::Result<Option<u64>> {
    let from = i64::try_from(from).map_err(io::Error::other)?;
    match lseek(file, from, whence) {
        Ok(at) => Ok(u64::try_from(at).ok()),
        Err(Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Gives a file or folder to a group, as CSI's volume_mount_group wants.
pub(crate) fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let file = fs::symlink_metadata(path)?;
    if file.is_symlink() {
        return Ok(());
    }
    chown(path, None, Some(group))?;
    let bits = if file.is_dir() { 0o2770 } else { 0o660 };
    fs::set_permissions(path, fs::Permissions::from_mode(file.mode() & 0o7777 | bits))?;
    if file.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to_group(&entry?.path(), group)?;
        }
    }
    Ok(())
}

/// Bytes that a folder's files take.
pub(crate) fn used_bytes(path: &Path) -> io::Result<u64> {
    let file = fs::symlink_metadata(path)?;
    let mut bytes = file.blocks() * 512;
    if file.is_dir() {
        for entry in fs::read_dir(path)? {
            bytes += used_bytes(&entry?.path())?;
        }
    }
    Ok(bytes)
}

/// Returns whether something is mounted exactly there.
pub(crate) fn is_mounted(path: &Path) -> io::Result<bool> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut points = text.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.any(|point| Path::new(&unescaped(point)) == wanted))
}

/// A path of mountinfo, where space, tab, newline and backslash are octal.
fn unescaped(text: &str) -> String {
    let mut out = text.to_owned();
    for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(escape, character);
    }
    out
}

/// Makes a volume appear at a path, which is created as folder or file.
pub(crate) fn bind(
    from: &Path,
    to: &Path,
    options: &[String],
    is_read_only: bool,
) -> io::Result<()> {
    if !to.exists() {
        match fs::metadata(from)?.is_dir() {
            true => fs::create_dir(to)?,
            false => drop(File::create(to)?),
        }
    }
    if is_mounted(to)? {
        return Ok(()); // by a call that lost its answer
    }
    let none: Option<&str> = None;
    mount(Some(from), to, none, MsFlags::MS_BIND, none)?;
    let mut flags = flags(options);
    flags.set(MsFlags::MS_RDONLY, is_read_only || flags.contains(MsFlags::MS_RDONLY));
    if !flags.is_empty() {
        mount(none, to, none, flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT, none)?;
    }
    Ok(())
}

/// Flags of a bind mount; options that are none have no effect on a folder.
fn flags(options: &[String]) -> MsFlags {
    let flag = |option: &String| match option.as_str() {
        "ro" => MsFlags::MS_RDONLY,
        "noexec" => MsFlags::MS_NOEXEC,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noatime" => MsFlags::MS_NOATIME,
        _ => MsFlags::empty(),
    };
    options.iter().map(flag).collect()
}

/// Takes a mount away. The folder stays.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    if is_mounted(path)? {
        umount(path)?;
    }
    Ok(())
}

/// Takes a mount and the empty folder or file below it away.
pub(crate) fn unbind(path: &Path) -> io::Result<()> {
    unmount(path)?;
    let removed = match fs::symlink_metadata(path) {
        Ok(file) if file.is_dir() => fs::remove_dir(path), // never what is in it
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_keeps_content_modes_and_links() {
        let temp = tempfile::tempdir().expect("a folder");
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        fs::create_dir_all(from.join("a")).expect("a folder");
        fs::write(from.join("a/b"), "text").expect("a file");
        fs::set_permissions(from.join("a/b"), fs::Permissions::from_mode(0o640)).expect("ours");
        std::os::unix::fs::symlink("/elsewhere", from.join("link")).expect("a link");
        copy(&from, &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("a/b")).expect("a file"), "text");
        assert_eq!(fs::metadata(to.join("a/b")).expect("a file").mode() & 0o777, 0o640);
        assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("/elsewhere"));
        assert!(used_bytes(&to).expect("a folder") > 0);
        remove(&to).expect("removed");
        remove(&to).expect("removed twice");
    }

    #[test]
    fn copy_of_a_device_keeps_its_holes() {
        let temp = tempfile::tempdir().expect("a folder");
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        create(&from, true, 1 << 40).expect("a file");
        let file = File::options().write(true).open(&from).expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1 << 30).expect("written");
        copy(&from, &to).expect("copied");
        let copied = fs::metadata(&to).expect("a file");
        assert!(copied.len() == 1 << 40 && copied.blocks() * 512 < 1 << 20, "{copied:?}");
        let mut text = [0; 4];
        let copied = File::open(&to).expect("a file");
        std::os::unix::fs::FileExt::read_exact_at(&copied, &mut text, 1 << 30).expect("data");
        assert_eq!(&text, b"data");
    }

    #[test]
    fn paths_of_the_mount_table_are_read() {
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
        assert!(is_mounted(Path::new("/proc")).expect("readable"));
        assert!(!is_mounted(Path::new("/proc/self/none")).expect("readable"));
    }
}
