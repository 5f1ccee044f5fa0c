//! A file that is replaced in one step: after a crash there is the old one or the new one.
//!
//! Input: path, bytes, mode. The new file is written beside the old one as `.NAME.new`, synced and
//! renamed. Blocks. The folder is the caller's to sync, where the name itself has to survive a
//! power loss: several files of one folder share that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Replaces or makes `path`. Removes the leftovers of an interrupted call, so that the file has
/// `mode` (less the umask) from its first byte on.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".new");
    let beside = path.with_file_name(beside);
    let _ = fs::remove_file(&beside);
    let written = write(&beside, bytes, mode).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // On a full disk half a file must not take the room that the next attempt needs.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn full_disk_keeps_the_old_file_and_no_part_of_the_new_file() {
        xtask::disk::with_private_mounts(|| {
            let dir = tempfile::tempdir().expect("a folder");
            xtask::disk::small(dir.path(), 64 << 10);
            let file = dir.path().join("state");
            replace(&file, b"old", 0o600).expect("there is room");
            let error = replace(&file, &vec![b'x'; 128 << 10], 0o600).expect_err("no room");
            assert_eq!(error.raw_os_error(), Some(nix::libc::ENOSPC));
            assert_eq!(fs::read(&file).expect("a file"), b"old");
            replace(&file, &vec![b'y'; 48 << 10], 0o600).expect("the room is there again");
        });
    }

    #[test]
    fn secret_is_never_written_through_a_leftover_symlink() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, elsewhere) = (dir.path().join("key"), dir.path().join("elsewhere"));
        fs::write(&elsewhere, "theirs").expect("written");
        symlink(&elsewhere, dir.path().join(".key.new")).expect("linked");
        replace(&file, b"secret", 0o600).expect("replaced");
        assert_eq!(fs::read_to_string(&elsewhere).expect("a file"), "theirs");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "secret");
        let meta = fs::symlink_metadata(&file).expect("a file");
        assert!(meta.is_file());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert!(fs::symlink_metadata(dir.path().join(".key.new")).is_err(), "nothing is left");
    }
}
