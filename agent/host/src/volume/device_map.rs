//! A block device of a volume, bound into the agent's folders and linked in the pod's.
//!
//! Input: the device's path. Effects: creates or removes a bind mount of it on a file, and a link
//! to it. The kubelet also holds the device open with a loop device; none is created here, and a
//! kubelet's one is detached. Idempotent.
// k8s: pkg/volume/util/volumepathhandler/volume_path_handler_linux.go

use std::fs;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::dir_fd::make_dir_all;
use super::error::{Context, IoFailure, or_gone};
use super::layout::DIR_MODE;
use super::mount;

/// Mode of the file beneath a bound device.
const FILE_MODE: u32 = 0o640;
/// Loop devices of the node.
const BLOCK_DEVICES: &str = "/sys/block";

/// Binds a device on a file, which is made.
pub(crate) fn bind_device(device: &Path, file: &Path) -> Result<(), IoFailure> {
    let is_bound = fs::symlink_metadata(file).is_ok_and(|meta| meta.file_type().is_block_device());
    if is_bound {
        return Ok(());
    }
    let mut open = fs::OpenOptions::new();
    open.create(true).append(true).mode(FILE_MODE).open(file).on("create", file)?;
    mount::bind(device, file)
}

/// Links a device; true when it was not linked before.
pub(crate) fn link_device(device: &Path, link: &Path) -> Result<bool, IoFailure> {
    if fs::read_link(link).is_ok_and(|to| to == device) {
        return Ok(false);
    }
    if let Some(folder) = link.parent() {
        make_dir_all(folder, DIR_MODE)?;
    }
    remove_file(link)?;
    symlink(device, link).on("link", link)?;
    Ok(true)
}

/// Unmounts a bound device and detaches the loop device with which a kubelet holds it.
pub(crate) fn release_device(file: &Path) -> Result<(), IoFailure> {
    if let Some(loop_device) = loop_on(file) {
        let mut losetup = Command::new("losetup");
        losetup.arg("-d").arg(&loop_device).stdin(Stdio::null()).stdout(Stdio::null());
        let _ = losetup.stderr(Stdio::null()).status(); // the unmount says whether it is held
    }
    mount::unmount(file)?;
    remove_file(file)
}

/// Removes a file, if there is one.
pub(crate) fn remove_file(path: &Path) -> Result<(), IoFailure> {
    or_gone(fs::remove_file(path)).on("unlink", path)
}

/// The loop device on this file.
// k8s: pkg/volume/util/volumepathhandler/volume_path_handler_linux.go getLoopDeviceFromSysfs
fn loop_on(path: &Path) -> Option<PathBuf> {
    fs::symlink_metadata(path).ok()?;
    let real = fs::canonicalize(path).ok()?;
    let is_backed = |device: &Path| {
        let text = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        let file = Path::new(text.trim().trim_end_matches("(deleted)").trim());
        file == path || file == real
    };
    let entries = fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    let mut loops = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"));
    let found = loops.find(|entry| is_backed(&entry.path()))?;
    Some(Path::new("/dev").join(found.file_name()))
}
