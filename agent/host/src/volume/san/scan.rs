//! What the disk says about network disks, at start: pods' folders and the plugins' folders.
//!
//! Input: the root directory and the list of mounts. Output: every disk that may be attached or
//! shown to a pod, and pods' folders of which the disk is unknown, each with a reason. Nothing is
//! changed. Bounds: `DISKS_MAX` disks; links are not followed.
// k8s: pkg/volume/iscsi/iscsi.go ConstructVolumeSpec, ConstructBlockVolumeSpec; pkg/volume/fc/fc.go

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use pintle_agent_core::storage::csi::Lifecycle;
use pintle_agent_core::storage::disk::record::DISK_RECORD_FILE;
use pintle_agent_core::storage::disk::{DEVICES_DIR, FC, ISCSI, global_dir, pod_folder};
use pintle_agent_core::storage::{FoundVolume, Known};
use pintle_agent_core::types::PodUid;

use crate::csi::scan::Found;
use crate::volume::error::{Cause, IoFailure};
use crate::volume::layout::{PodDirs, pods_dir};
use crate::volume::mount;

/// More disks than a node can have.
const DISKS_MAX: usize = 1 << 14;

/// Looks at everything below the root directory.
pub fn scan(root: &Path) -> Found {
    let mut found = Found::default();
    let pods: Vec<PodUid> = pods(root);
    for driver in [ISCSI, FC] {
        for pod in &pods {
            add_mounts(&mut found, root, driver, pod);
        }
        for handle in handles(root, driver) {
            add_disk(&mut found, root, driver, &handle);
        }
    }
    found
}

/// Folders of iSCSI disks, of file systems and of block volumes.
pub(super) fn iscsi_folders(root: &Path) -> Result<Vec<String>, IoFailure> {
    let handles = handles(root, ISCSI).into_iter();
    Ok(handles.map(|handle| super::folder_of(&handle).to_owned()).collect())
}

fn pods(root: &Path) -> Vec<PodUid> {
    folders(&pods_dir(root)).iter().filter_map(|name| PodUid::parse(name)).collect()
}

/// Folders of a plugin's disks below its own.
fn handles(root: &Path, driver: &str) -> Vec<String> {
    let mut handles = Vec::new();
    for part in ["", DEVICES_DIR] {
        let parent = global_dir(root, driver, part);
        let prefix = if part.is_empty() { String::new() } else { format!("{part}/") };
        for name in folders(&parent).into_iter().filter(|name| name != DEVICES_DIR) {
            if driver == FC {
                handles.push(format!("{prefix}{name}"));
                continue;
            }
            let disks = folders(&parent.join(&name)).into_iter();
            handles.extend(disks.map(|disk| format!("{prefix}{name}/{disk}")));
        }
    }
    handles.truncate(DISKS_MAX);
    handles
}

fn known(driver: &str, handle: &str, name: &str) -> Known {
    Known {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
        name: name.to_owned(),
        lifecycle: Lifecycle::Persistent,
        is_block: handle.starts_with(&format!("{DEVICES_DIR}/")),
        is_migrated: false,
        selinux_label: None,
    }
}

/// A pod's directories that are mounted: the disk is the one that is mounted below the plugin's
/// folder as well.
fn add_mounts(found: &mut Found, root: &Path, driver: &str, pod: &PodUid) {
    let volumes = PodDirs::new(root, pod).volumes().join(pod_folder(driver));
    for name in folders(&volumes) {
        let dir = volumes.join(&name);
        match mounted_disk(root, driver, &dir) {
            Ok(None) => {}
            Ok(Some(handle)) => {
                let known = known(driver, &handle, &name);
                found.volumes.push(FoundVolume { known, pod: Some(pod.clone()) });
            }
            Err(why) => found.unreadable.push((dir, why.to_string())),
        }
    }
}

/// The disk's folder; `None` when nothing is mounted.
fn mounted_disk(root: &Path, driver: &str, dir: &Path) -> Result<Option<String>, Cause> {
    if !mount::is_mounted(dir)? {
        return Ok(None);
    }
    let plugin = global_dir(root, driver, "");
    let real = fs::canonicalize(&plugin).unwrap_or(plugin);
    let others = mount::others_of(dir)?;
    let mut below = others.iter().filter_map(|point| point.strip_prefix(&real).ok());
    let handle = below.find_map(|handle| handle.to_str());
    let why = || Cause::Text("its disk is mounted nowhere below the plugin's folder".to_owned());
    handle.map(|handle| Some(handle.to_owned())).ok_or_else(why)
}

fn add_disk(found: &mut Found, root: &Path, driver: &str, handle: &str) {
    let own = known(driver, handle, "");
    if own.is_block {
        let global = global_dir(root, driver, handle);
        for entry in fs::read_dir(&global).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pod = name.to_str().filter(|name| *name != DISK_RECORD_FILE);
            let Some(pod) = pod.and_then(PodUid::parse) else { continue };
            let volume = linked_name(root, driver, &pod, &entry.path()).unwrap_or_default();
            let known = known(driver, handle, &volume);
            found.volumes.push(FoundVolume { known, pod: Some(pod) });
        }
    }
    found.volumes.push(FoundVolume { known: own, pod: None });
}

/// The name of the pod's link to the device that is bound at a path.
// k8s: pkg/volume/util/volumepathhandler FindGlobalMapPathUUIDFromPod
fn linked_name(root: &Path, driver: &str, pod: &PodUid, bound: &Path) -> Option<String> {
    let device = fs::metadata(bound).ok()?.rdev();
    let links = PodDirs::new(root, pod).devices().join(pod_folder(driver));
    let mut entries = fs::read_dir(links).into_iter().flatten().flatten();
    let is_own = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.rdev() == device);
    let link = entries.find(|entry| device != 0 && is_own(entry.path()))?;
    Some(link.file_name().to_string_lossy().into_owned())
}

/// Names of the folders in a folder, in order.
fn folders(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
