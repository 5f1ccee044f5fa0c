//! Mounts a disk of the node, which gets a file system when it has nothing on it.
//!
//! Input: a block device, where to mount it, its file system and options. Effects: `blkid`, `mkfs`,
//! `fsck`, `mount` and programs that grow a file system, as the kubelet runs them; no thread waits
//! for them. A disk on which blkid finds anything at all, a partition table included, is never
//! formatted, and neither is one that blkid cannot read.
// k8s: k8s.io/mount-utils mount_linux.go formatAndMountSensitive, getDiskFormat

use std::path::Path;
use std::time::Duration;

use pintle_agent_core::storage::disk::FS_TYPE;

use super::error::Cause;
use super::program::{self, ProgramError};

/// Longest probe or mount of a disk.
const MOUNT_MAX: Duration = Duration::from_secs(110);
/// Longest change of a bind mount's options.
const REMOUNT_MAX: Duration = Duration::from_secs(30);
/// Longest check or format of a disk.
const FORMAT_MAX: Duration = Duration::from_secs(1800);
/// blkid found nothing.
const BLKID_NOTHING: i32 = 2;
/// fsck corrected what it found.
const FSCK_CORRECTED: i32 = 1;
/// fsck found errors that it could not correct.
const FSCK_UNCORRECTED: i32 = 4;

/// A disk to mount.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskMount<'a> {
    /// The block device.
    pub(super) device: &'a Path,
    /// Where it is mounted.
    pub(super) target: &'a Path,
    /// The file system that it should have; [`FS_TYPE`] if empty.
    pub(super) fs_type: &'a str,
    /// Options of the mount.
    pub(super) options: &'a [String],
}

impl DiskMount<'_> {
    /// The same with a file system, also if a user named an empty one.
    fn with_file_system(self) -> Self {
        if self.fs_type.is_empty() { Self { fs_type: FS_TYPE, ..self } } else { self }
    }
}

/// Formats the disk if it is empty, checks it if it is not, and mounts it.
///
/// # Errors
/// A sentence with the program's output.
pub(super) async fn format_and_mount(disk: DiskMount<'_>) -> Result<(), Cause> {
    let disk = disk.with_file_system();
    let is_read_only = disk.options.iter().any(|option| option == "ro");
    let device = disk.device.to_string_lossy();
    let unknown = |why: Cause| format!("failed to get disk format of disk {device}: {why}");
    let format = disk_format(disk.device).await.map_err(unknown)?;
    match format {
        None if is_read_only => {
            return Err(Cause::Text(format!(
                "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            )));
        }
        None => make_file_system(&disk).await?,
        Some(_) if is_read_only => {}
        Some(_) => check(disk.device).await?,
    }
    mount(&disk).await
}

/// The format of the disk; `None` when it is empty.
async fn disk_format(device: &Path) -> Result<Option<String>, Cause> {
    let path = device.to_string_lossy();
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", &path];
    match program::output(device, "blkid", &args, MOUNT_MAX).await {
        Ok(text) => parse_blkid(&text).map(Some),
        Err(ProgramError::Failed { status, .. }) if status.code() == Some(BLKID_NOTHING) => {
            Ok(None)
        }
        Err(error) => Err(error.to_string().into()),
    }
}

/// The type in blkid's answer; a partition table counts as one that is not known.
fn parse_blkid(text: &str) -> Result<String, Cause> {
    let mut fs_type = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some(("PTTYPE", _)) => return Ok("unknown data, probably partitions".to_owned()),
            Some(("TYPE", value)) => fs_type = value.to_owned(),
            Some(_) => {}
            None => return Err(format!("blkid returns invalid output: {text}").into()),
        }
    }
    Ok(fs_type)
}

async fn make_file_system(disk: &DiskMount<'_>) -> Result<(), Cause> {
    let device = disk.device.to_string_lossy();
    let args: Vec<&str> = match disk.fs_type {
        "ext3" | "ext4" => vec!["-F", "-m0", &device],
        "xfs" => vec!["-f", &device],
        _ => vec![&device],
    };
    tracing::info!(%device, fs_type = disk.fs_type, "formatting an empty disk");
    let program = format!("mkfs.{}", disk.fs_type);
    program::run(disk.device, &program, &args, FORMAT_MAX).await.map_err(|error| {
        Cause::Text(format!(
            "format of disk {device:?} failed: type:({:?}) target:({:?}) options:({:?}) \
             errcode:({error}) output:({}) ",
            disk.fs_type,
            disk.target.to_string_lossy(),
            options(disk).join(","),
            error.output()
        ))
    })
}

// k8s: k8s.io/mount-utils mount_linux.go checkAndRepairFilesystem
async fn check(device: &Path) -> Result<(), Cause> {
    let path = device.to_string_lossy();
    match program::run(device, "fsck", &["-a", &path], FORMAT_MAX).await {
        Err(ProgramError::Failed { status, output }) => match status.code() {
            Some(FSCK_UNCORRECTED) => Err(Cause::Text(format!(
                "'fsck' found errors on device {path} but could not correct them: {output}"
            ))),
            Some(FSCK_CORRECTED) => {
                tracing::info!(device = %path, "fsck corrected errors of a disk");
                Ok(())
            }
            _ => {
                tracing::warn!(device = %path, output, "fsck could not check a disk");
                Ok(())
            }
        },
        Err(error) => {
            tracing::warn!(device = %path, %error, "a disk is mounted without a check");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Grows the file system of a mounted disk to the size of the disk.
///
/// # Errors
/// A sentence with the program's output.
// k8s: k8s.io/mount-utils resizefs_linux.go Resize
pub(super) async fn grow_file_system(device: &Path, mounted_at: &Path) -> Result<(), Cause> {
    let (path, at) = (device.to_string_lossy(), mounted_at.to_string_lossy());
    let format = disk_format(device).await.map_err(|why| {
        Cause::Text(format!("ResizeFS.Resize - error checking format for device {path}: {why}"))
    })?;
    let (of, program, args) = match format.as_deref() {
        None | Some("") => return Ok(()),
        Some("ext3" | "ext4") => (&path, "resize2fs", vec![&*path]),
        Some("xfs") => (&at, "xfs_growfs", vec!["-d", &at]),
        Some("btrfs") => (&at, "btrfs", vec!["filesystem", "resize", "max", &at]),
        Some(other) => {
            return Err(Cause::Text(format!(
                "ResizeFS.Resize - resize of format {other} is not supported for device {path} \
                 mounted at {at}"
            )));
        }
    };
    program::run(device, program, &args, FORMAT_MAX).await.map_err(|error| {
        let output = error.output();
        Cause::Text(format!("resize of device {of} failed: {error}. {program} output: {output}"))
    })
}

fn options(disk: &DiskMount<'_>) -> Vec<String> {
    let defaults = ["defaults".to_owned()];
    disk.options.iter().cloned().chain(defaults).collect()
}

async fn mount(disk: &DiskMount<'_>) -> Result<(), Cause> {
    let (device, target) = (disk.device.to_string_lossy(), disk.target.to_string_lossy());
    let options = options(disk).join(",");
    let args = ["-t", disk.fs_type, "-o", &options, &device, &target];
    let done = program::run(disk.target, "mount", &args, MOUNT_MAX).await;
    done.map_err(|error| program::mount_failure(&args, &error).into())
}

/// Sets the options of a bind mount, which has its own only after it was mounted.
///
/// # Errors
/// A sentence with the program's output.
// k8s: k8s.io/mount-utils mount_helper_common.go MakeBindOpts
pub(super) async fn set_bind_options(
    from: &Path,
    target: &Path,
    is_read_only: bool,
    own: &[String],
) -> Result<(), Cause> {
    let mut options = vec!["bind".to_owned(), "remount".to_owned()];
    options.extend(is_read_only.then(|| "ro".to_owned()));
    options.extend(own.iter().cloned());
    if options.len() == 2 {
        return Ok(());
    }
    let options = options.join(",");
    let (source, at) = (from.to_string_lossy(), target.to_string_lossy());
    let args = ["-o", &options, &source, &at];
    let done = program::run(target, "mount", &args, REMOUNT_MAX).await;
    done.map_err(|error| program::mount_failure(&args, &error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_a_named_file_system_gets_ext4() {
        let path = Path::new("/dev/x");
        let named = |fs_type| DiskMount { device: path, target: path, fs_type, options: &[] };
        assert_eq!(named("").with_file_system().fs_type, "ext4");
        assert_eq!(named("xfs").with_file_system().fs_type, "xfs");
    }

    #[test]
    fn disk_with_any_signature_counts_as_formatted() {
        for (text, expected) in [
            ("DEVNAME=/dev/x\nTYPE=ext4\n", Ok("ext4")),
            ("DEVNAME=/dev/x\nPTTYPE=gpt\n", Ok("unknown data, probably partitions")),
            ("TYPE=ext4\nPTTYPE=dos\n", Ok("unknown data, probably partitions")),
            ("DEVNAME=/dev/x\n", Ok("")),
            ("what", Err("blkid returns invalid output: what")),
        ] {
            let found = parse_blkid(text).map_err(|cause| cause.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }
}
