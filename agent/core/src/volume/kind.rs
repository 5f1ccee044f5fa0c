//! Kinds of volumes and their plugins: one row of facts for each plugin.
//!
//! Input: none. Output: `VolumeKind`, which `plan` makes of a pod's spec and `claim` of a
//! PersistentVolume, and [`VolumePlugin`], its row. Set-up, mounts, teardown and statistics read
//! the row instead of matching on kinds, so that a new kind is a row and a set-up. Pure.
// k8s: pkg/volume/*/ (CanSupport, SupportsMountOption, GetAttributes, MetricsProvider)

use std::net::Ipv6Addr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{LocalVolumeSource, NFSVolumeSource};

use super::layout::{EMPTY_DIR_PLUGIN, LOCAL_PLUGIN, NFS_PLUGIN};
use super::payload::PayloadSources;
use crate::storage::csi;
use crate::storage::disk;
use crate::volume::csi_dirs::PLUGIN_DIR;

/// How the use of a volume is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageSource {
    /// It is not.
    None,
    /// Its files are counted: they are the pod's own.
    Files,
    /// The file system's own figures, or the size of the device.
    FileSystem,
    /// The driver is asked.
    Driver,
}

/// Facts of a volume plugin that the stages need.
#[derive(Debug, PartialEq, Eq)]
pub struct VolumePlugin {
    /// The kubelet's name: `kubernetes.io/nfs`.
    pub name: &'static str,
    /// Its folder among a pod's volumes; `None` where the pod has none.
    pub folder: Option<&'static str>,
    /// The agent writes the files, containers never do.
    pub is_payload: bool,
    /// No other pod has the files: the runtime may give them the pod's SELinux label.
    pub takes_label: bool,
    /// A PersistentVolume of it may have mount options.
    pub takes_options: bool,
    /// Containers may get it as a device.
    pub takes_devices: bool,
    /// How its use is found.
    pub usage: UsageSource,
}

/// A row with what most plugins have.
const fn row(name: &'static str, folder: Option<&'static str>) -> VolumePlugin {
    VolumePlugin {
        name,
        folder,
        is_payload: false,
        takes_label: false,
        takes_options: false,
        takes_devices: false,
        usage: UsageSource::None,
    }
}

const fn payload(name: &'static str, folder: &'static str) -> VolumePlugin {
    let row = row(name, Some(folder));
    VolumePlugin { is_payload: true, takes_label: true, usage: UsageSource::Files, ..row }
}

/// `emptyDir`.
pub static EMPTY_DIR: VolumePlugin = VolumePlugin {
    takes_label: true,
    usage: UsageSource::Files,
    ..row("kubernetes.io/empty-dir", Some(EMPTY_DIR_PLUGIN))
};
/// `configMap`.
pub static CONFIG_MAP: VolumePlugin = payload("kubernetes.io/configmap", "kubernetes.io~configmap");
/// `secret`.
pub static SECRET: VolumePlugin = payload("kubernetes.io/secret", "kubernetes.io~secret");
/// `downwardAPI`.
pub static DOWNWARD_API: VolumePlugin =
    payload("kubernetes.io/downward-api", "kubernetes.io~downward-api");
/// `projected`.
pub static PROJECTED: VolumePlugin = payload("kubernetes.io/projected", "kubernetes.io~projected");
/// `hostPath`.
pub static HOST_PATH: VolumePlugin = row("kubernetes.io/host-path", None);
/// `image`.
pub static IMAGE: VolumePlugin =
    VolumePlugin { is_payload: true, ..row("kubernetes.io/image", None) };
/// `nfs`.
pub static NFS: VolumePlugin = VolumePlugin {
    takes_options: true,
    usage: UsageSource::FileSystem,
    ..row("kubernetes.io/nfs", Some(NFS_PLUGIN))
};
/// `local` of a PersistentVolume.
pub static LOCAL: VolumePlugin = VolumePlugin {
    takes_label: true,
    takes_options: true,
    takes_devices: true,
    usage: UsageSource::FileSystem,
    ..row("kubernetes.io/local-volume", Some(LOCAL_PLUGIN))
};

/// Volumes of CSI drivers.
pub static CSI: VolumePlugin = VolumePlugin {
    takes_label: true,
    takes_options: true,
    takes_devices: true,
    usage: UsageSource::Driver,
    ..row("kubernetes.io/csi", Some(PLUGIN_DIR))
};

/// `iscsi`.
pub static ISCSI: VolumePlugin = VolumePlugin {
    takes_label: true,
    takes_options: true,
    takes_devices: true,
    usage: UsageSource::FileSystem,
    ..row(disk::ISCSI, Some(disk::ISCSI_DIR))
};

/// `fc`. The kubelet has no figures of its use either.
// k8s: pkg/volume/fc/fc.go fcDisk, which has MetricsNil
pub static FC: VolumePlugin = VolumePlugin {
    takes_label: true,
    takes_options: true,
    takes_devices: true,
    ..row(disk::FC, Some(disk::FC_DIR))
};

impl VolumeKind {
    /// The volume that the state machine of storage owns: of a driver, or a network disk.
    pub fn staged(&self) -> Option<&csi::Volume> {
        match self {
            Self::Csi(volume) | Self::NetworkDisk(volume) => Some(volume),
            _ => None,
        }
    }

    /// The plugin's row; `None` for what no plugin here serves.
    pub fn plugin(&self) -> Option<&'static VolumePlugin> {
        Some(match self {
            Self::EmptyDir(_) => &EMPTY_DIR,
            Self::HostPath { .. } => &HOST_PATH,
            Self::Payload { plugin, .. } => plugin,
            Self::Nfs(_) => &NFS,
            Self::Local(_) => &LOCAL,
            Self::Csi(_) => &CSI,
            Self::NetworkDisk(volume) if volume.driver == disk::FC => &FC,
            Self::NetworkDisk(_) => &ISCSI,
            Self::Image { .. } => &IMAGE,
            Self::Claim(_) | Self::Untranslatable(_) | Self::Unsupported(_) => return None,
        })
    }
}

/// The type of file that must be at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathType {
    /// Anything; not even its existence is checked.
    Unset,
    /// A directory, created when missing.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, created when missing.
    FileOrCreate,
    /// A file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A type of file that no host path can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is an invalid volume type")]
pub struct UnknownHostPathType(pub String);

/// The reason for which an emptyDir cannot be on huge pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HugePageError {
    /// A size that no page has.
    #[error("medium {medium}: {size:?} is not a page size")]
    NoSize {
        /// The medium.
        medium: String,
        /// The size.
        size: String,
    },
    /// The medium names no size, and containers request several.
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    SeveralSizes(String),
    /// No container requests huge pages.
    #[error(
        "medium {0}: hugePages storage requested, but there is no resource request for huge pages"
    )]
    NoRequest(String),
}

impl HostPathType {
    /// Reads the API's text.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// The kind of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeKind {
    /// A directory of the pod.
    EmptyDir(EmptyDir),
    /// A path of the node.
    HostPath {
        /// The path.
        path: PathBuf,
        /// The type of file that must be there.
        kind: Result<HostPathType, UnknownHostPathType>,
    },
    /// Files written by the agent, on a wrapped emptyDir.
    Payload {
        /// The volume plugin.
        plugin: &'static VolumePlugin,
        /// The directory beneath.
        wrapped: EmptyDir,
        /// Content.
        sources: PayloadSources,
    },
    /// A directory of a file server.
    Nfs(Nfs),
    /// A disk or folder of this node that a PersistentVolume names.
    Local(Local),
    /// A volume of a CSI driver.
    Csi(Box<csi::Volume>),
    /// A disk of iSCSI or Fibre Channel.
    NetworkDisk(Box<csi::Volume>),
    /// An image, mounted by the runtime.
    Image {
        /// Reference.
        reference: String,
        /// Pull policy.
        pull_policy: String,
    },
    /// A claim that is not resolved.
    Claim(String),
    /// One of a plugin that was once part of Kubernetes, and why its driver cannot have it.
    Untranslatable(String),
    /// A kind that no plugin here serves: the field's name.
    Unsupported(&'static str),
}

/// A directory of a file server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs {
    /// `server:/path`.
    pub source: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// Options of the mount, of a PersistentVolume.
    pub options: Vec<String>,
}

impl Nfs {
    /// From a pod's spec or a PersistentVolume. With a claim, the claim decides whether it is
    /// read-only.
    // k8s: pkg/volume/nfs/nfs.go getServerFromSource, getVolumeSource
    pub fn of(source: &NFSVolumeSource, is_read_only: bool, options: Vec<String>) -> Self {
        let server = match source.server.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{}]", source.server),
            Err(_) => source.server.clone(),
        };
        let source = format!("{server}:{}", source.path);
        Self { source, read_only: is_read_only, options }
    }

    /// The server of `server:/path`.
    pub fn server(&self) -> &str {
        self.source.rsplit_once(":/").map_or(&*self.source, |(server, _)| server)
    }
}

/// A disk or folder of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The folder, or the block device.
    pub path: PathBuf,
    /// File system of a device.
    pub fs_type: String,
    /// Options of the mount.
    pub options: Vec<String>,
    /// Mounted read-only.
    pub read_only: bool,
    /// Containers get the device itself.
    pub is_block: bool,
    /// Sizes of the volume and its claim.
    pub size: Option<csi::ClaimSize>,
}

impl Local {
    /// Of a PersistentVolume.
    // k8s: pkg/volume/local/local.go getVolumeSourceFSType
    pub fn of(source: &LocalVolumeSource) -> Self {
        let fs_type = source.fs_type.clone().unwrap_or_else(|| disk::FS_TYPE.to_owned());
        let path = PathBuf::from(&source.path);
        Self { path, fs_type, options: Vec::new(), read_only: false, is_block: false, size: None }
    }
}

/// An emptyDir, decided in full.
#[derive(Clone, Debug, PartialEq)]
pub struct EmptyDir {
    /// The storage medium.
    pub medium: Medium,
    /// `sizeLimit`: the owner of evictions compares usage with it.
    pub size_limit: Option<u64>,
}

/// The storage medium of an emptyDir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// A tmpfs of that many bytes; the kernel's default when the node's memory is not known.
    Memory(Option<u64>),
    /// Huge pages of that size, or why they cannot be.
    HugePages(Result<u64, HugePageError>),
    /// No such medium.
    Unknown(String),
}
