//! Checks that only root and this process' user can have written a pair of files.
//!
//! Input: a folder, files in it. Output: nothing, or the fault in words. Effects: reads owners and
//! modes, makes missing folders. Symbolic links are followed once, and their whole target path is
//! checked: the owner of a folder above a file can put another file in its place.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

/// Others may write.
const WRITABLE: u32 = 0o022;
/// All users may read.
const READABLE: u32 = 0o004;
/// Only its owner renames or removes a file in the folder.
const STICKY: u32 = 0o1000;
/// The mode of folders that are made.
const FOLDER_MODE: u32 = 0o755;

/// The use of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// All users may read it.
    Public,
    /// Its readers are trusted as its owner is.
    Secret,
}

/// Makes the folder unless it is there, below folders that can be trusted; one that is there must
/// be such a folder itself.
pub(super) fn folder(dir: &Path) -> Result<(), String> {
    let io = |error: io::Error| error.to_string();
    let dir = &std::path::absolute(dir).map_err(io)?;
    let Some(there) = dir.ancestors().find(|path| path.exists()) else {
        return DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir).map_err(io);
    };
    above(there)?;
    if there != dir {
        return DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir).map_err(io);
    }
    let meta = fs::metadata(dir).map_err(io)?;
    match meta.mode() & WRITABLE {
        0 => Ok(()),
        _ => Err(format!("others may write to {} ({})", dir.display(), mode(&meta))),
    }
}

/// A file in a folder that can be trusted.
pub(super) fn file(path: &Path, used: Use) -> Result<(), String> {
    let shown = path.display();
    let real = fs::canonicalize(path).map_err(|error| format!("{shown}: {error}"))?;
    if let Some(dir) = real.parent() {
        above(dir)?;
    }
    let meta = fs::metadata(&real).map_err(|error| format!("{shown}: {error}"))?;
    owner(&real, &meta)?;
    if !meta.is_file() {
        return Err(format!("{shown} is no file"));
    }
    if meta.mode() & WRITABLE != 0 {
        return Err(format!("others may write to {shown} ({})", mode(&meta)));
    }
    if used == Use::Secret && meta.mode() & READABLE != 0 {
        return Err(format!("all users may read {shown} ({})", mode(&meta)));
    }
    Ok(())
}

/// A folder that is there, and those above it: in a sticky one only its owner replaces a file.
fn above(dir: &Path) -> Result<(), String> {
    let shown = |error: io::Error| format!("{}: {error}", dir.display());
    let real = fs::canonicalize(dir).map_err(shown)?;
    for folder in real.ancestors() {
        let meta = fs::metadata(folder).map_err(shown)?;
        owner(folder, &meta)?;
        if meta.mode() & WRITABLE != 0 && meta.mode() & STICKY == 0 {
            return Err(format!("others may write to {} ({})", folder.display(), mode(&meta)));
        }
    }
    Ok(())
}

fn owner(path: &Path, meta: &Metadata) -> Result<(), String> {
    let own = nix::unistd::geteuid().as_raw();
    match meta.uid() {
        uid if uid == own || uid == 0 => Ok(()),
        uid => Err(format!("{} belongs to user {uid}", path.display())),
    }
}

fn mode(meta: &Metadata) -> String {
    format!("mode {:04o}", meta.mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::fs::{chown, symlink};

    const OTHER: u32 = 12_345;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }

    fn key(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("a.key");
        fs::write(&path, "key").expect("written");
        set(&path, 0o600);
        path
    }

    #[test]
    fn a_file_that_others_may_write_or_read_is_refused_and_so_is_one_in_such_a_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let key = key(dir.path());
        let why = |used| file(&key, used).expect_err("not to be trusted");
        assert_eq!((file(&key, Use::Secret), folder(dir.path())), (Ok(()), Ok(())));
        set(&key, 0o644);
        assert_eq!(file(&key, Use::Public), Ok(()));
        assert!(why(Use::Secret).starts_with("all users may read "), "{}", why(Use::Secret));
        set(&key, 0o660);
        assert!(why(Use::Public).ends_with("a.key (mode 0660)"), "{}", why(Use::Public));
        set(&key, 0o600);
        set(dir.path(), 0o777);
        assert!(why(Use::Secret).ends_with("(mode 0777)"), "{}", why(Use::Secret));
        assert!(folder(dir.path()).is_err() && folder(&dir.path().join("below")).is_err());
        set(dir.path(), 0o1777);
        assert_eq!(file(&key, Use::Secret), Ok(()), "no other user can replace it");
        assert!(folder(dir.path()).is_err(), "a pair that is not there yet may be another's");
        assert_eq!(folder(&dir.path().join("below")), Ok(()));
        assert_eq!(fs::metadata(dir.path().join("below")).expect("made").mode() & WRITABLE, 0);
    }

    #[test]
    fn what_another_user_owns_is_refused_however_one_comes_there() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root gives files away");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).expect("made");
        let ours = key(&theirs);
        chown(&theirs, Some(OTHER), None).expect("given away");
        let says = |done: Result<(), String>| done.expect_err("refused").contains("user 12345");
        assert!(says(file(&ours, Use::Secret)), "its folder's owner can replace it");
        assert!(says(folder(&theirs)) && says(folder(&theirs.join("a/b"))));
        assert!(!theirs.join("a").exists());
        let link = dir.path().join("link");
        symlink(&theirs, &link).expect("linked");
        assert!(says(folder(&link)) && says(file(&link.join("a.key"), Use::Secret)));
        let given = key(dir.path());
        chown(&given, Some(OTHER), None).expect("given away");
        assert!(says(file(&given, Use::Secret)));
    }
}
