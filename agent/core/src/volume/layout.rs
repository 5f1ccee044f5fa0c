//! Where a pod's files are on the node: paths only, identical to the kubelet's, so that either
//! agent finds the other's.
//!
//! Input: the root directory and a pod uid. Output: paths. Nothing here touches the disk.
// k8s: pkg/kubelet/kubelet_getters.go

use std::path::{Path, PathBuf};

use pintle_api_types::ids::PodUid;

/// Directory of the empty-dir plugin, as every local volume's bookkeeping is kept there.
pub const EMPTY_DIR_PLUGIN: &str = "kubernetes.io~empty-dir";
/// Directory of volumes that a server of the network has.
pub const NFS_PLUGIN: &str = "kubernetes.io~nfs";
/// Directory of disks and folders of this node.
pub const LOCAL_PLUGIN: &str = "kubernetes.io~local-volume";
/// Plugin directories of volumes that this agent sets up and tears down. Data behind a mount in
/// them is never deleted.
pub const OWN_PLUGINS: [&str; 7] = [
    NFS_PLUGIN,
    LOCAL_PLUGIN,
    EMPTY_DIR_PLUGIN,
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~downward-api",
    "kubernetes.io~projected",
];
/// Mode of every directory above volumes.
pub const DIR_MODE: u32 = 0o750;

/// The directory of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDirs {
    root: PathBuf,
    uid: PodUid,
    pod: PathBuf,
}

impl PodDirs {
    /// `<root>/pods/<uid>`.
    pub fn new(root: &Path, uid: &PodUid) -> Self {
        let pod = pods_dir(root).join(uid.as_str());
        Self { root: root.to_owned(), uid: uid.clone(), pod }
    }

    /// The agent's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The pod.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The pod's own directory.
    pub fn pod(&self) -> &Path {
        &self.pod
    }

    /// `etc-hosts`.
    pub fn etc_hosts(&self) -> PathBuf {
        self.pod.join("etc-hosts")
    }

    /// `volumes`.
    pub fn volumes(&self) -> PathBuf {
        self.pod.join("volumes")
    }

    /// `plugins`.
    pub fn plugins(&self) -> PathBuf {
        self.pod.join("plugins")
    }

    /// `volumes/<plugin>/<volume>`.
    pub fn volume(&self, plugin: &str, volume: &str) -> PathBuf {
        self.volumes().join(plugin).join(volume)
    }

    /// `volumeDevices`.
    pub fn devices(&self) -> PathBuf {
        self.pod.join("volumeDevices")
    }

    /// `volumeDevices/<plugin>/<volume>`: a link to the device of a block volume.
    pub fn device(&self, plugin: &str, volume: &str) -> PathBuf {
        self.devices().join(plugin).join(volume)
    }

    /// Directory of the ready marker of an emptyDir; payload volumes are `wrapped_<volume>`.
    pub fn ready_dir(&self, volume: &str) -> PathBuf {
        self.plugins().join(EMPTY_DIR_PLUGIN).join(volume)
    }

    /// `volume-subpaths`.
    pub fn sub_paths(&self) -> PathBuf {
        self.pod.join("volume-subpaths")
    }

    /// Bind target of the `index`-th volume mount of a container.
    // k8s: pkg/volume/util/subpath/subpath_linux.go getSubpathBindTarget
    pub fn sub_path(&self, volume: &str, container: &str, index: usize) -> PathBuf {
        self.sub_paths().join(volume).join(container).join(index.to_string())
    }

    /// `containers/<container>`, where its termination logs are.
    pub fn container(&self, name: &str) -> PathBuf {
        self.pod.join("containers").join(name)
    }
}

/// `<root>/pods`.
pub fn pods_dir(root: &Path) -> PathBuf {
    root.join("pods")
}

/// Where a local disk is mounted for all pods of this node.
// k8s: pkg/volume/local/local.go generateBlockDeviceBaseGlobalPath
pub fn local_mount(root: &Path, volume: &str) -> PathBuf {
    root.join("plugins/kubernetes.io/local-volume/mounts").join(volume)
}

/// Where the devices of a block volume are bound for its pods, one file each by uid.
// k8s: pkg/kubelet/kubelet_getters.go getVolumeDevicePluginDir
pub fn device_map(root: &Path, plugin: &str, volume: &str) -> PathBuf {
    root.join("plugins").join(plugin).join("volumeDevices").join(volume)
}
