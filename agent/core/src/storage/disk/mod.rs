//! Disks of a storage network, iSCSI and Fibre Channel: what identifies a disk and where it lies.
//!
//! Input: the source of a pod's volume or of a PersistentVolume. Output: a `csi::Volume` with a
//! `NetworkDisk`, which the state machine stages (attach, mount once) and publishes (bind) as it
//! does volumes of drivers. Names are validated here, before they become arguments or paths.
//! The handle of a disk is its folder below the plugin's, because after a restart the folder is all
//! that is known; `node_names` are the names that Node objects have for it. Pure.
// k8s: pkg/volume/iscsi, pkg/volume/fc

pub mod fc;
pub mod iscsi;
pub mod record;
pub mod session;
mod validate;
mod volume;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use fc::FcDisk;
pub use iscsi::IscsiDisk;
pub use validate::InvalidDisk;
pub use volume::{FS_TYPE, fc_of_pod, iscsi_of_pod, of_claim};

/// The iSCSI plugin.
pub const ISCSI: &str = "kubernetes.io/iscsi";
/// The Fibre Channel plugin.
pub const FC: &str = "kubernetes.io/fc";
/// Folder of iSCSI volumes in a pod's volumes.
pub const ISCSI_DIR: &str = "kubernetes.io~iscsi";
/// Folder of Fibre Channel volumes in a pod's volumes.
pub const FC_DIR: &str = "kubernetes.io~fc";
/// Folder of block volumes below a plugin's folder.
pub const DEVICES_DIR: &str = "volumeDevices";

/// A disk of a storage network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkDisk {
    /// A LUN of an iSCSI target.
    Iscsi(IscsiDisk),
    /// A LUN behind ports of a Fibre Channel fabric.
    Fc(FcDisk),
}

impl NetworkDisk {
    /// The plugin, as `driver` of its volume.
    pub fn plugin(&self) -> &'static str {
        match self {
            Self::Iscsi(_) => ISCSI,
            Self::Fc(_) => FC,
        }
    }

    /// Its folder below the plugin's.
    pub fn handle(&self, is_block: bool) -> String {
        let folder = match self {
            Self::Iscsi(disk) => disk.folder(),
            Self::Fc(disk) => disk.folder(),
        };
        if is_block { format!("{DEVICES_DIR}/{folder}") } else { folder }
    }

    /// The name that the attach-detach controller has for it.
    // k8s: pkg/volume/util/util.go GetUniqueVolumeName
    pub fn node_name(&self) -> String {
        match self {
            Self::Iscsi(disk) => format!("{ISCSI}/{}", disk.node_name),
            Self::Fc(disk) => format!("{FC}/{}", disk.node_name),
        }
    }
}

/// True for the volumes of these plugins.
pub fn is_plugin(driver: &str) -> bool {
    driver == ISCSI || driver == FC
}

/// The folder of a plugin's volumes among those of a pod.
pub fn pod_folder(driver: &str) -> &'static str {
    if driver == FC { FC_DIR } else { ISCSI_DIR }
}

/// Where a disk is mounted for all pods of the node, or where its devices are mapped.
pub fn global_dir(root: &Path, driver: &str, handle: &str) -> PathBuf {
    root.join("plugins").join(driver).join(handle)
}

/// Names that a Node may have for a disk of which only the folder is known.
pub fn node_names(driver: &str, handle: &str) -> Vec<String> {
    let folder = handle.strip_prefix(DEVICES_DIR).map_or(handle, |rest| rest.trim_matches('/'));
    let names = match driver {
        ISCSI => iscsi::node_names(folder),
        FC => fc::node_names(folder),
        _ => Vec::new(),
    };
    names.into_iter().map(|name| format!("{driver}/{name}")).collect()
}

#[cfg(test)]
mod tests;
