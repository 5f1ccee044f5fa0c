//! Disks of a storage network on this node: attached, mounted once, bound for each pod, detached.
//!
//! ```text
//!   stage ──> iscsi::attach | fabric::attach ──> blkid, mkfs, fsck, mount ──> the disk's folder
//!   publish ──> bind mount, or bound device and link         unpublish ──> the reverse
//!   unstage ──> unmount ──> iscsi::detach | fabric::detach ──> folder removed
//! ```
//! Input: a `csi::Volume` with its `NetworkDisk`, or after a restart its folder. Every step is
//! idempotent. The folder and its record are made before the first login and go last, so that after
//! a crash at any instruction the folder says what may be attached. Programs run as awaited
//! children with time limits; what may wait for the disk runs on the disk's own share of the
//! threads for remote volumes, so a target that hangs delays its own volumes only. Nothing with
//! files in it is ever removed.
// k8s: pkg/volume/iscsi/attacher.go, pkg/volume/fc/attacher.go

mod fabric;
mod iscsi;
pub mod scan;
mod sysfs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_agent_core::storage::Known;
use pintle_agent_core::storage::csi::Volume;
use pintle_agent_core::storage::disk::record::DISK_RECORD_FILE;
use pintle_agent_core::storage::disk::{DEVICES_DIR, NetworkDisk, global_dir, pod_folder, record};
use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking::{Blocked, JobPlace};
use pintle_daemon::{blocking, durable};

use super::device::{DiskMount, format_and_mount, set_bind_options};
use super::device_map::{bind_device, link_device, release_device, remove_file};
use super::dir_fd::make_dir_all;
use super::error::{Cause, Context, IoFailure, or_gone};
use super::layout::{DIR_MODE, PodDirs};
use super::{mount, ownership};

pub use super::plan::GroupPolicy;

/// Mode of a record, as Go's os.Create makes it under the usual umask.
const RECORD_MODE: u32 = 0o644;

/// The node's devices and programs, which tests replace.
#[derive(Clone, Debug)]
pub struct SanHost {
    /// `/dev`.
    pub dev: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// The program of open-iscsi.
    pub iscsiadm: String,
    /// The program of multipath-tools.
    pub multipath: String,
    /// Longest wait for the link to a device.
    // k8s: pkg/volume/iscsi/iscsi_util.go deviceDiscoveryTimeout
    pub link_wait: Duration,
    /// Longest wait for a multipath device where several paths are wanted.
    // k8s: pkg/volume/iscsi/iscsi_util.go multipathDeviceTimeout
    pub multipath_wait: Duration,
}

impl Default for SanHost {
    fn default() -> Self {
        Self {
            dev: "/dev".into(),
            sys: "/sys".into(),
            iscsiadm: "iscsiadm".to_owned(),
            multipath: "multipath".to_owned(),
            link_wait: Duration::from_secs(30),
            multipath_wait: Duration::from_secs(10),
        }
    }
}

/// Why a disk is not staged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// It is not attached.
    #[error("{0}")]
    Attach(Cause),
    /// It is attached, and not mounted.
    #[error("{0}")]
    Mount(Cause),
}

/// When a volume is given to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupChange {
    /// The group.
    pub group: u32,
    /// When.
    pub policy: GroupPolicy,
}

/// Runs a job that may wait for a disk.
async fn on_disk<T: Send + 'static, E: Into<Cause> + Send + 'static>(
    handle: &str,
    job: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Cause> {
    let done = blocking::run(JobPlace::remote(handle), job).await;
    done.map_err(|why: Blocked| Cause::from(why.to_string()))?.map_err(Into::into)
}

impl SanHost {
    /// Attaches the disk, and mounts it for all pods of the node unless it is a block volume.
    ///
    /// # Errors
    /// A sentence of the kubelet; the disk may be attached by some of its paths.
    // k8s: pkg/volume/iscsi/attacher.go WaitForAttach, MountDevice
    pub async fn stage(
        &self,
        root: &Path,
        volume: &Volume,
        secret: &BTreeMap<String, String>,
    ) -> Result<(), StageError> {
        let Some(disk) = volume.disk.as_deref() else { return Ok(()) };
        let global = global_dir(root, &volume.driver, &volume.handle);
        let text = match disk {
            NetworkDisk::Iscsi(disk) => Some(record::text(disk)),
            NetworkDisk::Fc(_) => None,
        };
        let (at, is_block) = (global.clone(), volume.is_block);
        let prepared = on_disk(&volume.handle, move || prepare(&at, text.as_deref(), is_block));
        if prepared.await.map_err(StageError::Attach)? {
            return Ok(());
        }
        let device = self.attach(disk, secret).await.map_err(StageError::Attach)?;
        if volume.is_block {
            return Ok(());
        }
        let mut options = volume.mount_options.clone();
        options.extend(volume.is_read_only.then(|| "ro".to_owned()));
        options.sort();
        options.dedup();
        let fs_type = &*volume.fs_type;
        let disk = DiskMount { device: &device, target: &global, fs_type, options: &options };
        format_and_mount(disk).await.map_err(StageError::Mount)
    }

    async fn attach(
        &self,
        disk: &NetworkDisk,
        secret: &BTreeMap<String, String>,
    ) -> Result<PathBuf, Cause> {
        match disk {
            NetworkDisk::Iscsi(disk) => self.attach_iscsi(disk, secret).await,
            NetworkDisk::Fc(disk) => self.attach_fc(&disk.address).await,
        }
    }

    /// Shows a staged disk to a pod, and gives it to the pod's group.
    ///
    /// # Errors
    /// It may be shown to the pod.
    // k8s: pkg/volume/iscsi/disk_manager.go diskSetUp
    pub async fn publish(
        &self,
        root: &Path,
        pod: &PodUid,
        volume: &Volume,
        group: Option<GroupChange>,
    ) -> Result<(), Cause> {
        if volume.is_block {
            return self.map(root, pod, volume).await;
        }
        let global = global_dir(root, &volume.driver, &volume.handle);
        let dirs = PodDirs::new(root, pod);
        let dir = dirs.volume(pod_folder(&volume.driver), &volume.name);
        let (source, target) = (global.clone(), dir.clone());
        let is_new = on_disk(&volume.handle, move || bind(&source, &target)).await?;
        let options = &volume.mount_options;
        if is_new
            && let Err(why) = set_bind_options(&global, &dir, volume.is_read_only, options).await
        {
            on_disk(&volume.handle, move || unbind(&dir)).await?;
            return Err(why);
        }
        let Some(change) = group.filter(|_| !volume.is_read_only) else { return Ok(()) };
        let is_always = is_new && change.policy == GroupPolicy::Always;
        let give = move || match !is_always && ownership::is_given(&dir, change.group, false) {
            true => Ok(()),
            false => ownership::give_to_group(&dir, change.group, false),
        };
        let given = blocking::run(JobPlace::ownership(pod), give).await;
        Ok(given.map_err(|why| Cause::from(why.to_string()))??)
    }

    // k8s: pkg/volume/util/util.go MapBlockVolume
    async fn map(&self, root: &Path, pod: &PodUid, volume: &Volume) -> Result<(), Cause> {
        let Some(disk) = volume.disk.clone() else { return Ok(()) };
        let global = global_dir(root, &volume.driver, &volume.handle);
        let link = PodDirs::new(root, pod).device(pod_folder(&volume.driver), &volume.name);
        let (host, bound) = (self.clone(), global.join(pod.as_str()));
        on_disk(&volume.handle, move || -> Result<(), Cause> {
            let device = host.device_of(&disk)?;
            make_dir_all(&global, DIR_MODE)?;
            bind_device(&device, &bound)?;
            link_device(&device, &link)?;
            Ok(())
        })
        .await
    }

    /// The device of an attached disk.
    fn device_of(&self, disk: &NetworkDisk) -> Result<PathBuf, Cause> {
        let device = match disk {
            NetworkDisk::Iscsi(disk) => self.iscsi_device(disk)?,
            NetworkDisk::Fc(disk) => self.fabric_device(&disk.address)?,
        };
        device.ok_or_else(|| Cause::Text("the disk has no device on this node".to_owned()))
    }

    /// Takes a disk from a pod.
    ///
    /// # Errors
    /// The pod may have it still.
    pub async fn unpublish(&self, root: &Path, pod: &PodUid, known: &Known) -> Result<(), Cause> {
        let dirs = PodDirs::new(root, pod);
        let folder = pod_folder(&known.driver);
        if !known.is_block {
            let dir = dirs.volume(folder, &known.name);
            return on_disk(&known.handle, move || unbind(&dir)).await;
        }
        let bound = global_dir(root, &known.driver, &known.handle).join(pod.as_str());
        let link = (!known.name.is_empty()).then(|| dirs.device(folder, &known.name));
        on_disk(&known.handle, move || {
            release_device(&bound)?;
            link.map_or(Ok(()), |link| remove_file(&link))
        })
        .await
    }

    /// Unmounts a disk without pods and detaches it.
    ///
    /// # Errors
    /// It may be attached still; its folder and record stay.
    // k8s: pkg/volume/iscsi/iscsi_util.go DetachDisk, pkg/volume/fc/attacher.go UnmountDevice
    pub async fn unstage(&self, root: &Path, known: &Known) -> Result<(), Cause> {
        let global = global_dir(root, &known.driver, &known.handle);
        let at = global.clone();
        let Some(unmounted) = on_disk(&known.handle, move || unmount(&at)).await? else {
            return Ok(());
        };
        let folder = folder_of(&known.handle);
        match record::disk_of(folder, unmounted.record.as_deref()) {
            Some(disk) if known.driver == pintle_agent_core::storage::disk::ISCSI => {
                self.detach_iscsi(root, &disk, folder).await?;
            }
            _ => self.detach_fc(folder, unmounted.device).await?,
        }
        on_disk(&known.handle, move || remove(&global)).await
    }
}

/// A folder below the plugin's, or below that of its block volumes.
fn folder_of(handle: &str) -> &str {
    handle.strip_prefix(DEVICES_DIR).map_or(handle, |rest| rest.trim_start_matches('/'))
}

/// Makes the folder of a disk with its record; true when it is mounted already, which hides both.
fn prepare(global: &Path, record: Option<&str>, is_block: bool) -> Result<bool, IoFailure> {
    if !is_block && mount::is_mounted(global)? {
        return Ok(true);
    }
    make_dir_all(global, DIR_MODE)?;
    if let Some(text) = record {
        let path = global.join(DISK_RECORD_FILE);
        durable::replace(&path, text.as_bytes(), RECORD_MODE).on("write", &path)?;
    }
    Ok(false)
}

/// True when it was not bound before. Without the disk's mount the pod would write to the node's own
/// file system.
fn bind(global: &Path, dir: &Path) -> Result<bool, Cause> {
    make_dir_all(dir, DIR_MODE)?;
    if mount::is_mounted(dir)? {
        return Ok(false);
    }
    if !mount::is_mounted(global)? {
        return Err(Cause::Text(format!("the disk is not mounted at {}", global.display())));
    }
    mount::bind(global, dir)?;
    Ok(true)
}

/// Unmounts a pod's directory with what containers left inside, and removes it.
fn unbind(dir: &Path) -> Result<(), IoFailure> {
    for point in mount::below(dir)? {
        mount::unmount(&point)?;
    }
    or_gone(fs::remove_dir(dir)).on("rmdir", dir)
}

/// What an unmounted folder says.
struct Unmounted {
    /// The device that was mounted.
    device: Option<PathBuf>,
    record: Option<Vec<u8>>,
}

/// Unmounts the folder of a disk; `None` when it does not exist.
fn unmount(global: &Path) -> Result<Option<Unmounted>, IoFailure> {
    let real = match fs::canonicalize(global) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        real => real.on("resolve", global)?,
    };
    let device = mount::source_of(&real)?.map(PathBuf::from);
    for point in mount::below(global)? {
        mount::unmount(&point)?;
    }
    let path = global.join(DISK_RECORD_FILE);
    let record = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.on("read", &path)?),
    };
    Ok(Some(Unmounted { device, record }))
}

/// Removes the folder of a disk. The record goes last; a folder with anything else in it stays.
fn remove(global: &Path) -> Result<(), IoFailure> {
    let path = global.join(DISK_RECORD_FILE);
    let mut entries = fs::read_dir(global).into_iter().flatten().flatten();
    if entries.any(|entry| entry.file_name() != DISK_RECORD_FILE) {
        return Err(IoFailure::new("rmdir", global, nix::errno::Errno::ENOTEMPTY));
    }
    or_gone(fs::remove_file(&path)).on("remove", &path)?;
    or_gone(fs::remove_dir(global)).on("rmdir", global)
}

#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;
