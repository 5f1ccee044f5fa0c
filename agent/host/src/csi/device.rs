//! Devices that a driver has published: bound beside those of other pods, linked in the pod's folder.
//!
//! Input: where the driver has put the device. Effects: `volumeDevices/<volume>/dev/<uid>`, a bind
//! mount of it, and `pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>`, a link to it. Idempotent;
//! the record goes last, with the volume's folder.
// k8s: pkg/volume/util/util.go MapBlockVolume, UnmapBlockVolume; pkg/volume/csi/csi_block.go

use std::path::Path;

use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::csi_dirs::CsiDirs;

use super::{make_target, remove_folder};
use crate::volume::device_map::{bind_device, link_device, release_device, remove_file};
use crate::volume::error::IoFailure;

/// Maps a published device for a pod.
pub fn map(dirs: &CsiDirs, pod: &PodUid, name: &str, published: &Path) -> Result<(), IoFailure> {
    let map = dirs.device_map(name);
    make_target(&map)?;
    bind_device(published, &map.join(pod.as_str()))?;
    link_device(published, &dirs.device_link(pod, name)).map(drop)
}

/// Unmaps a device of a pod, before its driver takes it back.
pub fn unmap(dirs: &CsiDirs, pod: &PodUid, name: &str) -> Result<(), IoFailure> {
    release_device(&dirs.device_map(name).join(pod.as_str()))?;
    remove_file(&dirs.device_link(pod, name))
}

/// Removes what is left of a device without pods: all of it is empty but for the record.
// k8s: pkg/volume/csi/csi_block.go cleanupOrphanDeviceFiles
pub fn remove_folders(dirs: &CsiDirs, name: &str) -> Result<(), IoFailure> {
    remove_folder(&dirs.device_publish(name))?;
    remove_folder(&dirs.device_map(name))?;
    let data = dirs.device_data(name);
    data.parent().map_or(Ok(()), remove_folder)
}
