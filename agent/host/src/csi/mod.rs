//! The files beside volumes of CSI drivers: made before a call, removed after it, read at start.
//!
//! Input: paths of `volume::csi_dirs` and the text of `storage::record`. Output: the folders and files
//! that the kubelet makes, so that either agent finds the other's. What a driver mounted is the
//! driver's to unmount: nothing here does, and no folder with something in it is removed. The record
//! goes last, since nothing else names the volume.
// k8s: pkg/volume/csi/csi_mounter.go removeMountDir

pub mod device;
pub mod scan;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use pintle_daemon::durable;

use crate::volume::dir_fd::{is_mount_point, make_dir_all};
use crate::volume::error::{Context, IoFailure, or_gone};
use pintle_agent_core::storage::record::{RECORD_BYTES_MAX, Record, RecordError};
use pintle_agent_core::volume::csi_dirs::RECORD_FILE;
use pintle_agent_core::volume::layout::DIR_MODE;

/// Mode of a record, as Go's os.Create makes it under the usual umask.
const RECORD_MODE: u32 = 0o644;

/// What is beside a record while it is written: an agent that dies then leaves it.
// The name is that of `durable::replace`.
pub const UNFINISHED_RECORD_FILE: &str = ".vol_data.json.new";

/// Why a volume's folder stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// The driver says that it has unmounted it, and the kernel that it has not.
    #[error("the driver answered that it is done, and something is still mounted at {0}")]
    Mounted(String),
}

/// Makes the folder of a volume, with its record. A record that says the same is left as it is.
pub fn write_record(folder: &Path, text: &str) -> Result<(), IoFailure> {
    make_dir_all(folder, DIR_MODE)?;
    let path = folder.join(RECORD_FILE);
    if fs::read(&path).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(());
    }
    durable::replace(&path, text.as_bytes(), RECORD_MODE).on("write", &path)
}

/// Why a record says nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// The file is no record.
    #[error("{}: {error}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: RecordError,
    },
}

/// Reads the record in a folder; `None` without one.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read_record(folder: &Path) -> Result<Option<Record>, ReadError> {
    let path = folder.join(RECORD_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(IoFailure::of("open", &path, &error).into()),
    };
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut text).on("read", &path)?;
    let record = Record::parse(&text).map_err(|error| ReadError::Record { path, error })?;
    Ok(Some(record))
}

/// Makes a folder for a driver to mount on.
pub fn make_target(target: &Path) -> Result<(), IoFailure> {
    make_dir_all(target, DIR_MODE)
}

/// Removes what the driver left of a target, then the record and the folder.
///
/// # Errors
/// Something is mounted at the target, or there are files in a folder: both stay, with the record.
pub fn remove_volume(folder: &Path, target: &Path) -> Result<(), RemoveError> {
    remove_target(target)?;
    let record = folder.join(RECORD_FILE);
    or_gone(fs::remove_file(&record)).on("remove", &record)?;
    remove_unfinished(folder)?;
    or_gone(fs::remove_dir(folder)).on("rmdir", folder)?;
    Ok(())
}

/// Removes the record that an agent had begun to write when it died. Nothing was asked of the driver
/// before it was complete.
pub fn remove_unfinished(folder: &Path) -> Result<(), IoFailure> {
    let record = folder.join(UNFINISHED_RECORD_FILE);
    or_gone(fs::remove_file(&record)).on("remove", &record)
}

/// Removes what the driver left of a target.
///
/// # Errors
/// Something is mounted there, or the folder is not empty.
pub fn remove_target(target: &Path) -> Result<(), RemoveError> {
    if is_mount_point(target)? {
        return Err(RemoveError::Mounted(target.display().to_string()));
    }
    // A driver of devices makes a file.
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    or_gone(removed).on("remove", target)?;
    Ok(())
}

/// Removes an empty folder.
pub fn remove_folder(folder: &Path) -> Result<(), IoFailure> {
    or_gone(fs::remove_dir(folder)).on("rmdir", folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::mount;

    #[test]
    fn csi_volume_that_is_still_mounted_keeps_its_record() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("a folder");
            let folder = root.path().join("pods/u/volumes/kubernetes.io~csi/pv");
            let target = folder.join("mount");
            write_record(&folder, "{}\n").expect("written");
            make_target(&target).expect("made");
            mount::tmpfs(&target, Some(64 << 10)).expect("mounted");
            let refused = remove_volume(&folder, &target).expect_err("it is mounted");
            assert!(matches!(refused, RemoveError::Mounted(_)), "{refused}");
            assert!(folder.join(RECORD_FILE).exists());
            mount::unmount(&target).expect("unmounted");
            remove_volume(&folder, &target).expect("removed");
            assert!(!folder.exists());
            remove_volume(&folder, &target).expect("nothing is there");
        });
    }

    #[test]
    fn unfinished_record_has_the_name_of_the_file_that_is_written_first() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("pv");
        fs::create_dir_all(folder.join(UNFINISHED_RECORD_FILE)).expect("made");
        write_record(&folder, "{}\n").expect_err("its place is taken");
    }

    #[test]
    fn unfinished_csi_record_is_removed_with_its_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("pv");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(UNFINISHED_RECORD_FILE), "{").expect("written");
        remove_volume(&folder, &folder.join("mount")).expect("removed");
        assert!(!folder.exists());
    }

    #[test]
    fn csi_volume_folder_with_files_is_kept_with_its_record() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("pv");
        let target = folder.join("mount");
        write_record(&folder, "{}\n").expect("written");
        make_target(&target).expect("made");
        fs::write(target.join("data"), "kept").expect("written");
        remove_volume(&folder, &target).expect_err("it has files");
        assert_eq!(fs::read(target.join("data")).expect("there"), b"kept");
        assert!(folder.join(RECORD_FILE).exists());
    }
}
