//! Where a driver's volumes lie on the node: paths only, those of the kubelet.
//!
//! Input: the root directory, the volume, the pod. Output: paths. Nothing here touches the disk.
// k8s: pkg/volume/csi/csi_attacher.go makeDeviceMountPath, csi_block.go, csi_mounter.go

use std::path::{Path, PathBuf};

use pintle_api_types::ids::PodUid;

use super::layout::PodDirs;
use crate::storage::csi::sha256;

/// Directory of the plugin below a pod's `volumes`.
pub const PLUGIN_DIR: &str = "kubernetes.io~csi";
/// File with the record of a volume.
pub const RECORD_FILE: &str = "vol_data.json";
/// Directory in which the driver publishes, below the volume's directory.
pub const MOUNT: &str = "mount";
/// Directory in which the driver stages, below the volume's global directory.
const GLOBAL_MOUNT: &str = "globalmount";

/// The directories of drivers' volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDirs {
    root: PathBuf,
}

impl CsiDirs {
    /// Below the agent's root directory.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// `<root>/plugins/kubernetes.io/csi`.
    pub fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    /// The global directory of a volume: its file and what is staged.
    pub fn global(&self, driver: &str, handle: &str) -> PathBuf {
        self.plugin().join(driver).join(sha256(&[handle]))
    }

    /// Where a file system is staged.
    pub fn staging(&self, driver: &str, handle: &str) -> PathBuf {
        self.global(driver, handle).join(GLOBAL_MOUNT)
    }

    /// The directory of a pod's volume, where its file is.
    pub fn volume(&self, pod: &PodUid, name: &str) -> PathBuf {
        PodDirs::new(&self.root, pod).volume(PLUGIN_DIR, &escaped(name))
    }

    /// Where a file system is published.
    pub fn target(&self, pod: &PodUid, name: &str) -> PathBuf {
        self.volume(pod, name).join(MOUNT)
    }

    /// `<root>/plugins/kubernetes.io/csi/volumeDevices`.
    pub fn devices(&self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    /// Where a device is staged.
    pub fn device_staging(&self, name: &str) -> PathBuf {
        self.devices().join("staging").join(name)
    }

    /// Where a device is published: an entry for each pod.
    pub fn device_publish(&self, name: &str) -> PathBuf {
        self.devices().join("publish").join(name)
    }

    /// Where a device is published to a pod: the driver makes the file.
    pub fn device_target(&self, pod: &PodUid, name: &str) -> PathBuf {
        self.device_publish(name).join(pod.as_str())
    }

    /// Where the file of a device is.
    pub fn device_data(&self, name: &str) -> PathBuf {
        self.devices().join(escaped(name)).join("data")
    }

    /// The global map of a device: one bind mount for each pod.
    pub fn device_map(&self, name: &str) -> PathBuf {
        self.devices().join(escaped(name)).join("dev")
    }

    /// The pod's link to its device.
    pub fn device_link(&self, pod: &PodUid, name: &str) -> PathBuf {
        let pod = PodDirs::new(&self.root, pod).pod().join("volumeDevices");
        pod.join(PLUGIN_DIR).join(name)
    }
}

/// A name that has slashes, as a folder's name.
// k8s: k8s.io/utils/strings EscapeQualifiedName
pub fn escaped(name: &str) -> String {
    name.replace('/', "~")
}
