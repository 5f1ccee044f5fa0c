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
pub(super) enum FileUse {
    /// All users may read it.
    Public,
    /// Its readers are trusted as its owner is.
    Secret,
}

/// Reason why a path cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TrustError {
    #[error("{0}")]
    Folder(String),
    #[error("{path}: {error}")]
    Unreadable { path: String, error: String },
    #[error("{0} is no file")]
    NoFile(String),
    #[error("others may write to {path} (mode {mode:04o})")]
    Writable { path: String, mode: u32 },
    #[error("all users may read {path} (mode {mode:04o})")]
    Readable { path: String, mode: u32 },
    #[error("{path} belongs to user {uid}")]
    Owner { path: String, uid: u32 },
}

/// Makes the folder unless it is there, below folders that can be trusted; one that is there must
/// be such a folder itself.
pub(super) fn folder(dir: &Path) -> Result<(), TrustError> {
    let io = |error: io::Error| TrustError::Folder(error.to_string());
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
        _ => Err(writable(dir, &meta)),
    }
}

/// A file in a folder that can be trusted.
pub(super) fn file(path: &Path, used: FileUse) -> Result<(), TrustError> {
    let shown = path.display().to_string();
    let real = fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
    if let Some(dir) = real.parent() {
        above(dir)?;
    }
    let meta = fs::metadata(&real).map_err(|error| unreadable(path, &error))?;
    owner(&real, &meta)?;
    if !meta.is_file() {
        return Err(TrustError::NoFile(shown));
    }
    if meta.mode() & WRITABLE != 0 {
        return Err(writable(path, &meta));
    }
    if used == FileUse::Secret && meta.mode() & READABLE != 0 {
        return Err(TrustError::Readable { path: shown, mode: mode(&meta) });
    }
    Ok(())
}

/// A folder that is there, and those above it: in a sticky one only its owner replaces a file.
fn above(dir: &Path) -> Result<(), TrustError> {
    let shown = |error: io::Error| unreadable(dir, &error);
    let real = fs::canonicalize(dir).map_err(shown)?;
    for folder in real.ancestors() {
        let meta = fs::metadata(folder).map_err(shown)?;
        owner(folder, &meta)?;
        if meta.mode() & WRITABLE != 0 && meta.mode() & STICKY == 0 {
            return Err(writable(folder, &meta));
        }
    }
    Ok(())
}

fn owner(path: &Path, meta: &Metadata) -> Result<(), TrustError> {
    let own = nix::unistd::geteuid().as_raw();
    match meta.uid() {
        uid if uid == own || uid == 0 => Ok(()),
        uid => Err(TrustError::Owner { path: path.display().to_string(), uid }),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> TrustError {
    TrustError::Unreadable { path: path.display().to_string(), error: error.to_string() }
}

fn writable(path: &Path, meta: &Metadata) -> TrustError {
    TrustError::Writable { path: path.display().to_string(), mode: mode(meta) }
}

fn mode(meta: &Metadata) -> u32 {
    meta.mode() & 0o7777
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
    fn file_or_folder_accessible_to_other_users_is_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let key = key(dir.path());
        let why = |used| file(&key, used).expect_err("not to be trusted").to_string();
        assert_eq!((file(&key, FileUse::Secret), folder(dir.path())), (Ok(()), Ok(())));
        set(&key, 0o644);
        assert_eq!(file(&key, FileUse::Public), Ok(()));
        assert!(
            why(FileUse::Secret).starts_with("all users may read "),
            "{}",
            why(FileUse::Secret)
        );
        set(&key, 0o660);
        assert!(why(FileUse::Public).ends_with("a.key (mode 0660)"), "{}", why(FileUse::Public));
        set(&key, 0o600);
        set(dir.path(), 0o777);
        assert!(why(FileUse::Secret).ends_with("(mode 0777)"), "{}", why(FileUse::Secret));
        assert!(folder(dir.path()).is_err() && folder(&dir.path().join("below")).is_err());
        set(dir.path(), 0o1777);
        assert_eq!(file(&key, FileUse::Secret), Ok(()), "no other user can replace it");
        assert!(folder(dir.path()).is_err(), "a pair that is not there yet may be another's");
        assert_eq!(folder(&dir.path().join("below")), Ok(()));
        assert_eq!(fs::metadata(dir.path().join("below")).expect("made").mode() & WRITABLE, 0);
    }

    #[test]
    fn path_owned_by_another_user_is_rejected_also_through_a_link() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root gives files away");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).expect("made");
        let ours = key(&theirs);
        chown(&theirs, Some(OTHER), None).expect("given away");
        let says = |done: Result<(), TrustError>| {
            done.expect_err("refused").to_string().contains("user 12345")
        };
        assert!(says(file(&ours, FileUse::Secret)), "its folder's owner can replace it");
        assert!(says(folder(&theirs)) && says(folder(&theirs.join("a/b"))));
        assert!(!theirs.join("a").exists());
        let link = dir.path().join("link");
        symlink(&theirs, &link).expect("linked");
        assert!(says(folder(&link)) && says(file(&link.join("a.key"), FileUse::Secret)));
        let given = key(dir.path());
        chown(&given, Some(OTHER), None).expect("given away");
        assert!(says(file(&given, FileUse::Secret)));
    }
}
