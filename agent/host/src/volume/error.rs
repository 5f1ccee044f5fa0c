//! Failures of volumes, worded as the kubelet's `FailedMount` event where it has one.
//!
//! Every failure names the volume or container, the path and the errno. `VolumeError`'s Display is
//! the event's message.

use std::fmt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use pintle_agent_core::storage::expansion::failed_at_start;

use super::mounts::MountError;

/// A failed file operation: what, on which path, which errno.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct IoFailure {
    /// The operation, as a user would name it: `mkdir`, `mount tmpfs on`, …
    pub operation: &'static str,
    /// Subject.
    pub path: PathBuf,
    /// Cause.
    pub errno: Errno,
}

impl fmt::Display for IoFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, path) = (self.operation, self.path.display());
        write!(f, "{operation} {path}: {} ({:?})", self.errno.desc().to_lowercase(), self.errno)
    }
}

impl IoFailure {
    /// From a system call's errno.
    pub fn new(operation: &'static str, path: &Path, errno: Errno) -> Self {
        Self { operation, path: path.to_owned(), errno }
    }

    /// From a file operation's error; one without errno (a broken invariant of the data, such as a
    /// name with a zero byte) reads as EINVAL.
    pub fn of(operation: &'static str, path: &Path, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw);
        Self::new(operation, path, errno)
    }
}

/// Adds operation and path to a result's error.
pub trait Context<T> {
    /// Adds the operation and its path.
    fn on(self, operation: &'static str, path: &Path) -> Result<T, IoFailure>;
}

impl<T> Context<T> for nix::Result<T> {
    fn on(self, operation: &'static str, path: &Path) -> Result<T, IoFailure> {
        self.map_err(|errno| IoFailure::new(operation, path, errno))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn on(self, operation: &'static str, path: &Path) -> Result<T, IoFailure> {
        self.map_err(|error| IoFailure::of(operation, path, &error))
    }
}

/// Treats a missing file as removed.
pub(crate) fn or_gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The cause of a failed set-up or teardown, without the volume's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] IoFailure),
    /// A hostPath is not of its type.
    // k8s: pkg/volume/hostpath/host_path.go checkTypeInternal
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPathType {
        /// The path.
        path: String,
        /// `a directory`, `a file`, …
        expected: &'static str,
    },
    /// An error in the spec or the content, as a sentence.
    #[error("{0}")]
    Text(String),
}

/// A failure with its volume or container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// A volume could not be set up.
    // k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    SetUp {
        /// Name within the pod.
        volume: String,
        /// The cause.
        cause: Cause,
    },
    /// A step before the set-up failed or refused the volume.
    // k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc
    #[error("{step} failed for volume {volume:?} : {cause}")]
    Step {
        /// The step, as `MountVolume.MountDevice`.
        step: &'static str,
        /// Name on the disk.
        volume: String,
        /// The cause.
        cause: Cause,
    },
    /// A volume could not be expanded before its pod starts.
    #[error("{}", failed_at_start(volume, *is_block, &cause.to_string()))]
    Expansion {
        /// Name on the disk.
        volume: String,
        /// Containers have it as a device.
        is_block: bool,
        /// The cause.
        cause: Cause,
    },
    /// A block volume could not be mapped.
    // k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMapVolumeFunc
    #[error("MapVolume.MapBlockVolume failed for volume {volume:?} : {cause}")]
    Map {
        /// Name on the disk.
        volume: String,
        /// The cause.
        cause: Cause,
    },
    /// An unsupported kind of volume.
    #[error("MountVolume.SetUp failed for volume {volume:?} : no volume plugin matched: {kind}")]
    Unsupported {
        /// Name within the pod.
        volume: String,
        /// The field of the spec.
        kind: &'static str,
    },
    /// The set-up did not finish.
    // k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{names}], unattached \
         volumes=[{unattached}], failed to process volumes=[{unresolved}]: {why}"
    )]
    NotMounted {
        /// Names within the pod.
        names: String,
        /// Those among them that the node does not have yet.
        unattached: String,
        /// Those among them with an unresolved claim.
        unresolved: String,
        /// The cause.
        why: String,
    },
    /// A container's volume mount cannot be made; the detail is only logged, because it could
    /// disclose the host's file system to a user.
    // k8s: pkg/kubelet/kubelet_pods.go makeMounts
    #[error("{0}")]
    Container(String),
    /// A volume could not be torn down.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {cause}")]
    TearDown {
        /// Name of its directory.
        volume: String,
        /// The cause.
        cause: Cause,
    },
    /// The pod's directories could not be made or removed.
    #[error("pod directory: {0}")]
    PodDir(IoFailure),
    /// A volume of an unsupported plugin is mounted; it is not touched.
    #[error(
        "{about} is still mounted at {}: this agent cannot unpublish it, and the pod ends once it \
         is unmounted",
        point.display()
    )]
    Foreign {
        /// The volume.
        about: ForeignVolume,
        /// Where it is mounted.
        point: PathBuf,
    },
    /// A volume of an unsupported plugin is not mounted, but its directory has files.
    #[error("{about} still has files in {}, which are not deleted: {error}", dir.display())]
    ForeignFiles {
        /// The volume.
        about: ForeignVolume,
        /// Its directory.
        dir: PathBuf,
        /// Error of the removal.
        error: String,
    },
}

/// A volume that a kubelet's plugin created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignVolume {
    /// Name of its directory.
    pub volume: String,
    /// The CSI driver, else the plugin.
    pub driver: String,
}

impl std::fmt::Display for ForeignVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {:?} of driver {:?}", self.volume, self.driver)
    }
}

impl VolumeError {
    /// Volumes that are not mounted in time.
    pub fn not_mounted(names: String, why: String) -> Self {
        let (unattached, unresolved) = (String::new(), String::new());
        Self::NotMounted { names, unattached, unresolved, why }
    }

    /// Volumes that cannot be processed: their claims or sources are wrong.
    pub fn unresolved(names: String, why: String) -> Self {
        let (unattached, unresolved) = (String::new(), names.clone());
        Self::NotMounted { names, unattached, unresolved, why }
    }

    /// A set-up failure.
    pub fn set_up(volume: &str, cause: impl Into<Cause>) -> Self {
        Self::SetUp { volume: volume.to_owned(), cause: cause.into() }
    }

    /// A teardown failure.
    pub fn tear_down(volume: &str, cause: impl Into<Cause>) -> Self {
        Self::TearDown { volume: volume.to_owned(), cause: cause.into() }
    }

    /// Reason of the event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SetUp { .. }
            | Self::Step { .. }
            | Self::Expansion { is_block: false, .. }
            | Self::Unsupported { .. }
            | Self::NotMounted { .. } => "FailedMount",
            Self::Map { .. } | Self::Expansion { is_block: true, .. } => "FailedMapVolume",
            Self::Container(_) => "CreateContainerConfigError",
            Self::TearDown { .. }
            | Self::PodDir(_)
            | Self::Foreign { .. }
            | Self::ForeignFiles { .. } => "FailedUnMount",
        }
    }
}

/// An event about a volume that is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountNotice {
    /// Reason of the event.
    pub reason: &'static str,
    /// A warning.
    pub is_warning: bool,
    /// Message.
    pub text: String,
}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<MountError> for VolumeError {
    fn from(error: MountError) -> Self {
        Self::Container(error.to_string())
    }
}
