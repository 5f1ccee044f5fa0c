//! Block volumes: a link to the device in the pod's directory, and a bind mount of the device in
//! the volume's directory, one per pod, with the kubelet's layout.
//!
//! Input: the device's path. Effects: `plugins/<plugin>/volumeDevices/<volume>/<uid>`, a bind mount
//! of the device, and `pods/<uid>/volumeDevices/<plugin>/<volume>`, a link to it. All of it is
//! idempotent; teardown reads the disk, not the spec.
// k8s: pkg/volume/util/util.go MapBlockVolume, UnmapBlockVolume, pkg/volume/util/volumepathhandler

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;

use super::device_map::{bind_device, link_device, release_device, remove_file};
use super::dir_fd::make_dir_all;
use super::error::{Cause, Context, ForeignVolume, IoFailure, MountNotice, VolumeError};
use super::keyed_lock;
use super::kind::Local;
use super::layout::{DIR_MODE, LOCAL_PLUGIN, PodDirs, device_map};
use super::plan::{PodVolume, PodVolumes};

/// Maps a local disk for a pod. Returns the kubelet's events when it was not mapped before.
// k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMapVolumeFunc
pub(super) async fn set_up(
    pod: &PodVolumes,
    volume: &PodVolume,
    local: &Local,
) -> Result<Vec<MountNotice>, VolumeError> {
    let name = volume.disk_name().to_owned();
    let _guard = keyed_lock::lock(&name).await;
    let fail = |cause| VolumeError::Map { volume: name.clone(), cause };
    let (dirs, path, own) = (pod.dirs.clone(), local.path.clone(), name.clone());
    let job = move || map(&dirs, &own, &path);
    let mapped = blocking::run(JobPlace::foreign(&pod.uid), job).await;
    let is_new = mapped.map_err(|why| fail(why.to_string().into()))?.map_err(fail)?;
    let global = device_map(pod.dirs.root(), LOCAL_PLUGIN, &name);
    let links = pod.dirs.devices().join(LOCAL_PLUGIN);
    let paths = [("globalMapPath", global), ("volumeMapPath", links)];
    let notice = |(what, path): (&str, PathBuf)| MountNotice {
        reason: "SuccessfulMountVolume",
        is_warning: false,
        text: format!(
            "MapVolume.MapPodDevice succeeded for volume {name:?} {what} {:?}",
            path.to_string_lossy()
        ),
    };
    Ok(paths.map(notice).into_iter().filter(|_| is_new).collect())
}

/// True when it was not mapped before.
fn map(dirs: &PodDirs, name: &str, path: &Path) -> Result<bool, Cause> {
    let device = fs::canonicalize(path).on("resolve", path)?;
    if !fs::metadata(&device).on("stat", &device)?.file_type().is_block_device() {
        return Err(Cause::Text(format!("{} is not a block device", path.display())));
    }
    let folder = device_map(dirs.root(), LOCAL_PLUGIN, name);
    make_dir_all(&folder, DIR_MODE)?;
    let global = folder.join(dirs.uid().as_str());
    bind_device(&device, &global)?;
    Ok(link_device(&device, &dirs.device(LOCAL_PLUGIN, name))?)
}

/// Tears down the block volumes of a pod; volumes of unsupported plugins are reported.
pub(super) fn tear_down(dirs: &PodDirs) -> Vec<VolumeError> {
    let mut failures = Vec::new();
    for plugin in children(&dirs.devices()) {
        let is_ours = plugin.ends_with(LOCAL_PLUGIN);
        for link in children(&plugin) {
            match is_ours {
                true => failures.extend(unmap(dirs, &link).err()),
                false => failures.push(foreign(&plugin, &link)),
            }
        }
        // One that is not empty keeps the pod's directory, which is reported.
        let _ = fs::remove_dir(&plugin);
    }
    let _ = fs::remove_dir(dirs.devices());
    failures
}

fn foreign(plugin: &Path, link: &Path) -> VolumeError {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let about = ForeignVolume { volume: name(link), driver: name(plugin).replace('~', "/") };
    VolumeError::Foreign { about, point: link.to_owned() }
}

fn unmap(dirs: &PodDirs, link: &Path) -> Result<(), VolumeError> {
    let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let fail = |failure: IoFailure| VolumeError::tear_down(&name, failure);
    let folder = device_map(dirs.root(), LOCAL_PLUGIN, &name);
    release_device(&folder.join(dirs.uid().as_str())).map_err(fail)?;
    // Other pods' devices keep it.
    let _ = fs::remove_dir(&folder);
    remove_file(link).map_err(fail)
}

/// Releases devices of unknown pods, which a crash between two steps left.
pub(super) fn sweep(root: &Path, is_kept: impl Fn(&PodUid) -> bool) {
    let volumes = device_map(root, LOCAL_PLUGIN, "x");
    let volumes = volumes.parent().unwrap_or(root);
    for volume in children(volumes) {
        let pods: BTreeSet<PathBuf> = children(&volume).into_iter().collect();
        for global in pods {
            let uid = global.file_name().and_then(|name| PodUid::parse(name.to_str()?));
            if uid.is_none_or(|uid| is_kept(&uid)) {
                continue;
            }
            if let Err(error) = release_device(&global) {
                tracing::warn!(path = %global.display(), %error, "cannot release a device");
            }
        }
        // Devices of pods keep it.
        let _ = fs::remove_dir(&volume);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}
