//! Gives a volume to the pod's `fsGroup`: group, group bits and setgid on everything in it.
//!
//! Input: a directory of ours and a group. Output: changed owners and modes. Files that are right
//! already are not written: on a disk with a million files that saves writing all of them, and they
//! keep their change time and file capabilities. The first failure of a directory walk is returned;
//! a file that cannot be changed is skipped, as upstream does. The walk uses open directories and
//! never follows a symlink, because a container may already write there. Children are changed
//! before their directory, so that a root with the right group shows that all below is done.
// k8s: pkg/volume/volume_linux.go changeFilePermission, walkDeep

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, ResolveFlag};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat};
use nix::unistd::{Gid, fchownat};

use super::dir_fd::{magic_path, open_beneath, open_dir};
use super::error::{Context, IoFailure};

/// Directories below each other that are entered; deeper ones keep their owner.
const DEPTH_MAX: usize = 256;
const RW: u32 = 0o660;
const RO: u32 = 0o440;
const EXEC: u32 = 0o110;
const SETGID: u32 = 0o2000;

/// Mode of a file of the group; `read_only` for volumes that containers only read.
pub fn mode_for_group(mode: u32, is_dir: bool, read_only: bool) -> u32 {
    let mask = if read_only { RO } else { RW };
    let dir = if is_dir { EXEC | SETGID } else { 0 };
    (mode & 0o7777) | mask | dir
}

/// True when the root has the group already. The root is changed last, so all below has it too.
// k8s: pkg/volume/volume_linux.go requiresPermissionChange
pub fn is_given(root: &Path, group: u32, read_only: bool) -> bool {
    let Ok(stat) = open_dir(root).and_then(|dir| fstat(&dir)) else { return false };
    let mode = stat.st_mode & 0o7777;
    stat.st_gid == group && mode_for_group(mode, true, read_only) == mode
}

/// Changes `root` and everything below.
pub fn give_to_group(root: &Path, group: u32, read_only: bool) -> Result<(), IoFailure> {
    let dir = open_dir(root).on("open", root)?;
    walk(&dir, root, Gid::from_raw(group), read_only, 0)
}

fn walk(dir: &OwnedFd, path: &Path, group: Gid, ro: bool, depth: usize) -> Result<(), IoFailure> {
    let listing = dir.try_clone().on("dup", path)?;
    let mut listing = Dir::from_fd(listing).on("read", path)?;
    for entry in listing.iter() {
        let entry = entry.on("read", path)?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let Ok(child) = open_beneath(dir, name, flags, ResolveFlag::empty()) else { continue };
        let is_dir = fstat(&child).is_ok_and(|s| is(s.st_mode, SFlag::S_IFDIR));
        if is_dir && depth < DEPTH_MAX {
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
            let at = path.join(name);
            let child = open_beneath(dir, name, flags, ResolveFlag::empty()).on("open", &at)?;
            walk(&child, &at, group, ro, depth + 1)?;
        } else {
            change(&child, group, ro);
        }
    }
    change(dir, group, ro);
    Ok(())
}

fn change(file: &OwnedFd, group: Gid, read_only: bool) {
    let Ok(stat) = fstat(file) else { return };
    let mut failed = None;
    let owned = stat.st_gid == group.as_raw();
    if !owned {
        let chowned = fchownat(file, "", None, Some(group), AtFlags::AT_EMPTY_PATH);
        failed = chowned.err();
    }
    let is_dir = is(stat.st_mode, SFlag::S_IFDIR);
    let mode = mode_for_group(stat.st_mode, is_dir, read_only);
    let is_right = owned && mode == stat.st_mode & 0o7777;
    // A symlink's own mode means nothing and chmod would reach its target. A change of the owner
    // clears setuid and setgid of a file, and they are restored.
    if !is(stat.st_mode, SFlag::S_IFLNK) && !is_right {
        let path = magic_path(file);
        let mode = Mode::from_bits_truncate(mode);
        let at = nix::fcntl::AT_FDCWD;
        failed = fchmodat(at, &path, mode, FchmodatFlags::FollowSymlink).err().or(failed);
    }
    if let Some(errno) = failed {
        tracing::debug!(inode = stat.st_ino, %errno, "fsGroup cannot be applied to a file");
    }
}

fn is(mode: u32, kind: SFlag) -> bool {
    mode & SFlag::S_IFMT.bits() == kind.bits()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn modes_gain_group_permissions_and_lose_no_bits() {
        let table = [
            (0o644, false, false, 0o664),
            (0o600, false, true, 0o640),
            (0o400, false, true, 0o440),
            (0o777, true, false, 0o2777),
            (0o1777, true, false, 0o3777),
            (0o755, true, true, 0o2755),
            (0o100_644, false, false, 0o664),
        ];
        for (mode, is_dir, read_only, expected) in table {
            assert_eq!(mode_for_group(mode, is_dir, read_only), expected, "{mode:o}");
        }
    }

    #[test]
    fn the_root_of_a_volume_gets_its_group_last() {
        let volume = tempfile::tempdir().expect("dir");
        fs::write(volume.path().join("file"), "x").expect("write");
        assert!(!is_given(volume.path(), 4242, false));
        give_to_group(volume.path(), 4242, false).expect("given");
        assert!(is_given(volume.path(), 4242, false) && !is_given(volume.path(), 4243, false));
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(volume.path(), closed).expect("chmod");
        assert!(!is_given(volume.path(), 4242, false), "the group cannot write");
    }

    #[test]
    fn unchanged_owner_and_mode_are_not_written() {
        let volume = tempfile::tempdir().expect("dir");
        let at = |name: &str| volume.path().join(name);
        fs::create_dir(at("sub")).expect("mkdir");
        for name in ["sub/file", "sub/setuid", "sub/other", "sub/closed"] {
            fs::write(at(name), "x").expect("write");
        }
        symlink("file", at("sub/link")).expect("symlink");
        let chmod = |name, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode));
        chmod("sub/setuid", 0o6755).expect("chmod");
        give_to_group(volume.path(), 4242, false).expect("given");
        let mode = |name| fs::metadata(at(name)).expect("stat").mode() & 0o7777;
        assert_eq!(mode("sub/setuid"), 0o6775, "a new owner takes the bits off");
        std::os::unix::fs::chown(at("sub/other"), None, Some(4243)).expect("chown");
        chmod("sub/closed", 0o600).expect("chmod");
        let stamp = |path: &Path| {
            let meta = fs::symlink_metadata(path).expect("stat");
            (meta.ctime(), meta.ctime_nsec())
        };
        let all = ["", "sub", "sub/file", "sub/setuid", "sub/link", "sub/other", "sub/closed"];
        let before = all.map(|name| stamp(&at(name)));
        // Until the clock of the file system is ahead of what was just written.
        let clock = tempfile::NamedTempFile::new_in(volume.path().parent().expect("a parent"));
        let clock = clock.expect("file");
        while Some(&stamp(clock.path())) <= before.iter().max() {
            fs::write(clock.path(), "x").expect("write");
        }
        give_to_group(volume.path(), 4242, false).expect("given");
        let written = all.iter().zip(before).filter(|(name, before)| stamp(&at(name)) != *before);
        let written: Vec<&str> = written.map(|(name, _)| *name).collect();
        assert_eq!(written, ["sub/other", "sub/closed"]);
    }

    #[test]
    fn symlink_in_a_volume_gets_the_group_and_its_target_does_not() {
        let outside = tempfile::NamedTempFile::new().expect("file");
        fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o600)).expect("chmod");
        let volume = tempfile::tempdir().expect("dir");
        fs::create_dir(volume.path().join("sub")).expect("mkdir");
        fs::write(volume.path().join("sub/file"), "x").expect("write");
        symlink(outside.path(), volume.path().join("sub/link")).expect("symlink");
        give_to_group(volume.path(), 4242, false).expect("given");
        for name in ["", "sub", "sub/file", "sub/link"] {
            let meta = fs::symlink_metadata(volume.path().join(name)).expect("stat");
            assert_eq!(meta.gid(), 4242, "{name}");
        }
        let meta = fs::metadata(outside.path()).expect("stat");
        assert_ne!(meta.gid(), 4242);
        assert_eq!(meta.mode() & 0o7777, 0o600);
    }
}
