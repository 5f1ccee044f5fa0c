//! A file that is replaced in one step: after a crash there is the old one or the new one.
//!
//! Input: path, bytes, mode. The new file is written beside the old one as `.NAME.new`, synced and
//! renamed. Blocks. The folder is the caller's to sync, where the name itself has to survive a
//! power loss: several files of one folder share that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Replaces or makes `path`. What an interrupted call left beside it is removed, so that the file
/// has `mode` (less the umask) from its first byte on.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".new");
    let beside = path.with_file_name(beside);
    let _ = fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_secret_is_never_written_into_what_was_left_beside_it() {
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
