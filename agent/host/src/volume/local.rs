//! Volumes on disks and folders of this node: a bind mount for each pod.
//!
//! Input: the volume of the PersistentVolume. Effects: a folder is bound to the pod's volume
//! directory. A block device is mounted once for the node, below `plugins`, and bound from there;
//! it is unmounted with the last pod. All of it is idempotent, and mounts are read from the
//! kernel's list. Nothing is ever deleted in such a volume: directories of ours are removed by
//! `rmdir`. The administrator chooses the path, which may lead anywhere, so it is accessed in the
//! pool's class for user paths.
// k8s: pkg/volume/local/local.go

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};

use super::device::{DiskMount, format_and_mount, grow_file_system, set_bind_options};
use super::dir_fd::make_dir_all;
use super::error::{Cause, Context, IoFailure, MountNotice, VolumeError};
use super::keyed_lock;
use super::kind::Local;
use super::layout::{DIR_MODE, LOCAL_PLUGIN, PodDirs, local_mount, pods_dir};
use super::mount;
use super::ownership;
use super::plan::{GroupPolicy, PodVolume, PodVolumes};

/// The kind of file at a local volume's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalSource {
    Folder,
    Disk,
}

/// One volume to set up.
struct LocalSetup<'a> {
    uid: &'a PodUid,
    root: &'a Path,
    /// The pod's volume directory.
    dir: PathBuf,
    /// Name of the PersistentVolume.
    name: &'a str,
    local: &'a Local,
    group: Option<u32>,
    policy: GroupPolicy,
}

/// Sets up a volume that containers mount; returns events for the user.
pub(super) async fn set_up(
    pod: &PodVolumes,
    volume: &PodVolume,
    local: &Local,
) -> Result<Vec<MountNotice>, VolumeError> {
    let name = volume.disk_name();
    let dir = pod.dirs.volume(LOCAL_PLUGIN, name);
    let (uid, root) = (&pod.uid, pod.dirs.root());
    let (group, policy) = (pod.fs_group, pod.group_policy);
    let job = LocalSetup { uid, root, dir, name, local, group, policy };
    let _guard = keyed_lock::lock(name).await;
    let step = |step: &'static str| {
        move |cause: Cause| VolumeError::Step { step, volume: name.to_owned(), cause }
    };
    let source = job.look().await.map_err(step("MountVolume.NewMounter initialization"))?;
    let from = match source {
        LocalSource::Folder => local.path.clone(),
        LocalSource::Disk => {
            let mounted = job.mount_disk().await;
            mounted.map_err(step("MountVolume.MountDevice"))?
        }
    };
    job.bind(from).await.map_err(|cause| VolumeError::set_up(name, cause))
}

/// Grows the file system of a volume's disk to the size of the disk. A folder has what is around it,
/// and a device that containers get has no file system of ours.
///
/// # Errors
/// The disk cannot be read, or the program failed.
// k8s: pkg/volume/local/local.go NodeExpand
pub async fn expand(uid: &PodUid, root: &Path, name: &str, local: &Local) -> Result<(), Cause> {
    if local.is_block {
        return Ok(());
    }
    let _guard = keyed_lock::lock(name).await;
    let path = local.path.clone();
    match foreign(uid, move || look(&path)).await? {
        LocalSource::Folder => Ok(()),
        LocalSource::Disk => grow_file_system(&local.path, &local_mount(root, name)).await,
    }
}

async fn foreign<T: Send + 'static>(
    uid: &PodUid,
    job: impl FnOnce() -> Result<T, Cause> + Send + 'static,
) -> Result<T, Cause> {
    let done = blocking::run(JobPlace::foreign(uid), job).await;
    done.map_err(|why: Blocked| Cause::from(why.to_string()))?
}

impl LocalSetup<'_> {
    async fn foreign<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Cause> + Send + 'static,
    ) -> Result<T, Cause> {
        foreign(self.uid, job).await
    }

    async fn look(&self) -> Result<LocalSource, Cause> {
        let path = self.local.path.clone();
        self.foreign(move || look(&path)).await
    }

    /// Mounts the disk for all pods of the node; returns where.
    // k8s: pkg/volume/local/local.go mountLocalBlockDevice
    async fn mount_disk(&self) -> Result<PathBuf, Cause> {
        let target = local_mount(self.root, self.name);
        let at = target.clone();
        let is_there = move || -> Result<bool, Cause> {
            make_dir_all(&at, DIR_MODE)?;
            Ok(mount::is_mounted(&at)?)
        };
        if self.foreign(is_there).await? {
            return Ok(target);
        }
        let mut options = self.local.options.clone();
        if self.local.read_only {
            options.push("ro".to_owned());
        }
        let (device, fs_type) = (&self.local.path, &*self.local.fs_type);
        let disk = DiskMount { device, target: &target, fs_type, options: &options };
        let Err(why) = format_and_mount(disk).await else { return Ok(target) };
        let at = target.clone();
        // A disk that is mounted nevertheless stays mounted for the next attempt.
        let remove = move || {
            let _ = fs::remove_dir(at);
            Ok(())
        };
        let _ = self.foreign(remove).await;
        Err(Cause::Text(format!(
            "local: failed to mount device {} at {} (fstype: {fs_type}), error {why}",
            device.display(),
            target.display()
        )))
    }

    /// Binds the folder to the pod's directory and gives it to the pod's group.
    // k8s: pkg/volume/local/local.go SetUpAt
    async fn bind(&self, from: PathBuf) -> Result<Vec<MountNotice>, Cause> {
        let (root, dir, source) = (self.root.to_owned(), self.dir.clone(), from.clone());
        let is_shared = self.foreign(move || Ok(is_shared(&root, &source, &dir)?)).await?;
        let (source, target) = (from.clone(), self.dir.clone());
        let is_new = self.foreign(move || Ok(bind(&source, &target)?)).await?;
        if let Err(why) =
            set_bind_options(&from, &self.dir, self.local.read_only, &self.local.options).await
        {
            let dir = self.dir.clone();
            let undo = move || {
                mount::unmount(&dir)?;
                Ok(remove_empty(&dir)?)
            };
            self.foreign(undo).await?;
            return Err(why);
        }
        match (is_shared, self.group) {
            (true, Some(group)) if is_new => self.compare_group(from, group).await,
            (false, Some(group)) if !self.local.read_only => {
                self.give_to_group(group, is_new).await?;
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Leaves the ownership of a shared volume unchanged; returns a warning if its group differs.
    async fn compare_group(&self, from: PathBuf, group: u32) -> Result<Vec<MountNotice>, Cause> {
        let owner = self.foreign(move || Ok(fs::metadata(&from).on("stat", &from)?.gid())).await?;
        let name = self.name;
        let text = format!(
            "The requested fsGroup is {group}, but the volume {name} has GID {owner}. The volume \
             may not be shareable."
        );
        let notice = MountNotice { reason: "AlreadyMountedVolume", is_warning: true, text };
        Ok((owner != group).then_some(notice).into_iter().collect())
    }

    /// Gives the volume to the group of its only pod. The pod's next set-up repeats an interrupted
    /// walk, because the root is changed last.
    async fn give_to_group(&self, group: u32, is_new: bool) -> Result<(), Cause> {
        let dir = self.dir.clone();
        let is_always = is_new && self.policy == GroupPolicy::Always;
        let give = move || match !is_always && ownership::is_given(&dir, group, false) {
            true => Ok(()),
            false => Ok(ownership::give_to_group(&dir, group, false)?),
        };
        self.foreign(give).await
    }
}

/// True when other pods have mounted the folder.
fn is_shared(root: &Path, source: &Path, dir: &Path) -> Result<bool, IoFailure> {
    let pods = real_pods(root);
    let own = dir.strip_prefix(pods_dir(root)).map_or(dir.to_owned(), |below| pods.join(below));
    let others = mount::others_of(source)?;
    Ok(others.iter().any(|point| point.starts_with(&pods) && *point != own))
}

/// The pods' directory as the kernel prints it.
fn real_pods(root: &Path) -> PathBuf {
    let pods = pods_dir(root);
    fs::canonicalize(&pods).unwrap_or(pods)
}

/// Returns the kind of file at the path.
// k8s: pkg/volume/local/local.go getGlobalLocalPath
fn look(path: &Path) -> Result<LocalSource, Cause> {
    if path.components().any(|part| part == Component::ParentDir) {
        let text = format!("invalid path: {} must not contain '..'", path.display());
        return Err(Cause::Text(text));
    }
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Cause::Text(format!("path {:?} does not exist", path.to_string_lossy())));
        }
        done => done.on("stat", path)?,
    };
    if found.is_dir() {
        return Ok(LocalSource::Folder);
    }
    if found.file_type().is_block_device() {
        return Ok(LocalSource::Disk);
    }
    Err(Cause::Text("only directory and block device are supported".to_owned()))
}

/// True when it was not mounted before.
fn bind(source: &Path, target: &Path) -> Result<bool, IoFailure> {
    make_dir_all(target, DIR_MODE)?;
    if mount::is_mounted(target)? {
        return Ok(false);
    }
    mount::bind(source, target)?;
    Ok(true)
}

/// Removes a directory of ours that is not mounted any more.
fn remove_empty(dir: &Path) -> Result<(), IoFailure> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(IoFailure::of("rmdir", dir, &error))
        }
        _ => Ok(()),
    }
}

/// Tears down a pod's volume, and the mount of its disk with the last pod.
// k8s: pkg/volume/local/local.go TearDownAt, UnmountDevice
pub(super) fn tear_down(dirs: &PodDirs, dir: &Path) -> Result<(), VolumeError> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fail = |failure: IoFailure| VolumeError::tear_down(&name, failure);
    let Some(_guard) = keyed_lock::try_lock(&name) else {
        return Err(VolumeError::tear_down(&name, "it is being set up for another pod".to_owned()));
    };
    // A container with bidirectional propagation may have left mounts inside.
    for point in mount::below(dir).map_err(fail)? {
        mount::unmount(&point).map_err(fail)?;
    }
    remove_empty(dir).map_err(fail)?;
    unmount_disk(dirs.root(), &name).map_err(fail)
}

/// Unmounts a disk that no pod has mounted.
fn unmount_disk(root: &Path, name: &str) -> Result<(), IoFailure> {
    let global = local_mount(root, name);
    if !mount::is_mounted(&global)? {
        return remove_empty(&global);
    }
    let pods = real_pods(root);
    if mount::others_of(&global)?.iter().any(|point| point.starts_with(&pods)) {
        return Ok(());
    }
    mount::unmount(&global)?;
    remove_empty(&global)
}

/// Unmounts disks without pods, left by a crash between two steps.
pub(super) fn sweep(root: &Path) {
    let mounts = local_mount(root, "x");
    let mounts = mounts.parent().unwrap_or(root);
    for entry in fs::read_dir(mounts).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(_guard) = keyed_lock::try_lock(&name) else { continue };
        if let Err(error) = unmount_disk(root, &name) {
            tracing::warn!(volume = name, %error, "cannot unmount a disk that no pod uses");
        }
    }
}
