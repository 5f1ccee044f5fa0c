//! The mounts that a container has of its pod's volumes. Pure.
//!
//! Input: the planned volumes, the container, its environment. Output: `PlannedMount`s in the order
//! of the spec, for the CRI request and for `execute::prepare_container`, or why a mount cannot be,
//! in the kubelet's words.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::csi_dirs::escaped;
use super::plan::{PodVolume, PodVolumes, VolumeKind};
use crate::env::expand;
use crate::env::variables::ENVIRONMENT_BYTES_MAX;

/// One mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMount {
    /// Volume.
    pub volume: String,
    /// Path inside.
    pub container_path: String,
    /// Path on the node; empty for an image.
    pub host_path: PathBuf,
    /// Read-only, by the mount or by the kind of volume.
    pub readonly: bool,
    /// Recursively read-only.
    pub recursive_read_only: bool,
    /// Its content belongs to the pod: the runtime may relabel it with the pod's SELinux label.
    pub relabel: bool,
    /// Propagation.
    pub propagation: Propagation,
    /// The bind mount that `host_path` is, when there is a sub-path.
    pub sub_path: Option<SubPath>,
    /// Image reference, and the path within it.
    pub image: Option<(String, String)>,
}

/// A part of a volume that is bound to a path of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// The volume's directory.
    pub volume_root: PathBuf,
    /// Relative path below it.
    pub path: String,
}

/// Mount propagation, as CRI has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// `None`.
    #[default]
    Private,
    /// `HostToContainer`.
    HostToContainer,
    /// `Bidirectional`.
    Bidirectional,
}

/// A mount of a container, by its place in the list.
#[derive(Clone, Copy)]
struct NumberedMount<'a> {
    index: usize,
    mount: &'a VolumeMount,
}

/// The reason for which a container's mount or device cannot be planned, worded as the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The pod has no such volume.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// The volume's name.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// The pod has no such volume that is a device.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoDevice {
        /// The volume's name.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// The path of a device within the container is relative.
    #[error("error DevicePath `{0}` must be an absolute path")]
    RelativeDevice(String),
    /// A sub-path is absolute.
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    /// A sub-path leaves the volume.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    LeavingSubPath(String),
    /// The variables of a sub-path are longer than the environment may be.
    #[error("subPathExpr is too long with what it refers to")]
    LongSubPath,
    /// Variables of a sub-path are unset or empty.
    #[error("missing value for {}", .0.join(", "))]
    NoValue(Vec<String>),
    /// No such mode of propagation.
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    /// It cannot be mounted recursively read-only.
    #[error("failed to resolve recursive read-only mode: {0}")]
    RecursiveReadOnly(#[from] ReadOnlyError),
}

/// The reason for which a mount cannot be recursively read-only.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadOnlyError {
    /// The mount is writable.
    #[error("volume {0:?} requested recursive read-only mode, but it is not read-only")]
    Writable(String),
    /// The mount propagates mounts.
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not compatible with \
         propagation {propagation:?}"
    )]
    Propagates {
        /// The volume's name.
        volume: String,
        /// The mode of propagation.
        propagation: String,
    },
    /// The runtime cannot do it.
    #[error(
        "volume {0:?} requested recursive read-only mode, but it is not supported by the runtime"
    )]
    Unsupported(String),
    /// No such mode.
    #[error("unknown recursive read-only mode {0:?}")]
    Mode(String),
}

impl PodVolumes {
    /// Mounts of a container. `env` is its environment, for `subPathExpr`; `supports_rro` is true
    /// if the runtime handler supports recursive read-only mounts.
    // k8s: pkg/kubelet/kubelet_pods.go makeMounts
    pub fn mounts(
        &self,
        container: &Container,
        env: &BTreeMap<String, String>,
        supports_rro: bool,
    ) -> Result<Vec<PlannedMount>, MountError> {
        let volumes: HashMap<&str, &PodVolume> =
            self.volumes.iter().map(|volume| (&*volume.name, volume)).collect();
        let mut room = ENVIRONMENT_BYTES_MAX;
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        mounts
            .map(|(index, mount)| {
                let path = sub_path_of(mount, env, &mut room);
                let volume = volumes.get(&*mount.name).copied();
                let mount = NumberedMount { index, mount };
                self.mount(container, mount, volume, path, supports_rro)
            })
            .collect()
    }

    fn mount(
        &self,
        container: &Container,
        mount: NumberedMount<'_>,
        volume: Option<&PodVolume>,
        path: Result<String, MountError>,
        supports_rro: bool,
    ) -> Result<PlannedMount, MountError> {
        let NumberedMount { index, mount } = mount;
        let Some(volume) = volume else {
            let (volume, container) = (mount.name.clone(), container.name.clone());
            return Err(MountError::NoVolume { volume, container });
        };
        let path = path?;
        let container_path = match mount.mount_path.starts_with('/') {
            true => mount.mount_path.clone(),
            false => format!("/{}", mount.mount_path),
        };
        let rro = recursive_read_only(mount, supports_rro)?;
        let mut planned = PlannedMount {
            volume: volume.name.clone(),
            container_path,
            host_path: PathBuf::new(),
            readonly: mount.read_only == Some(true) || volume.is_read_only(),
            recursive_read_only: rro,
            relabel: volume.is_made_for_the_pod(),
            propagation: propagation_of(mount)?,
            sub_path: None,
            image: None,
        };
        if let VolumeKind::Image { reference, .. } = &volume.kind {
            planned.image = Some((reference.clone(), path));
        } else if let Some(dir) = volume.host_dir(&self.dirs) {
            planned.host_path = dir.clone();
            if !path.is_empty() {
                let name = escaped(volume.disk_name());
                planned.host_path = self.dirs.sub_path(&name, &container.name, index);
                planned.sub_path = Some(SubPath { volume_root: dir, path });
            }
        }
        Ok(planned)
    }
}

/// The sub-path, with its references replaced; it is taken from the room that is left.
fn sub_path_of(
    mount: &VolumeMount,
    env: &BTreeMap<String, String>,
    room: &mut usize,
) -> Result<String, MountError> {
    let expr = mount.sub_path_expr.as_deref().unwrap_or_default();
    let path = match expr {
        "" => mount.sub_path.clone().unwrap_or_default(),
        expr => expanded(expr, env, *room)?,
    };
    *room = room.saturating_sub(path.len());
    if path.starts_with('/') {
        return Err(MountError::AbsoluteSubPath(path));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(MountError::LeavingSubPath(path));
    }
    Ok(path)
}

/// Expands `$(NAME)`; an unset or empty variable is an error here, unlike in a command line.
// k8s: pkg/kubelet/container/helpers.go ExpandContainerVolumeMounts
fn expanded(
    expr: &str,
    env: &BTreeMap<String, String>,
    bytes_max: usize,
) -> Result<String, MountError> {
    let mut missing = BTreeSet::new();
    let out = expand::expand(expr, bytes_max, |name| {
        let value = env.get(name).map(String::as_str).unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_owned());
        }
        Some(value)
    });
    if missing.is_empty() {
        return out.map_err(|_| MountError::LongSubPath);
    }
    Err(MountError::NoValue(missing.into_iter().collect()))
}

// k8s: pkg/kubelet/kubelet_pods.go translateMountPropagation
fn propagation_of(mount: &VolumeMount) -> Result<Propagation, MountError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(MountError::Propagation(other.to_owned())),
    }
}

// k8s: pkg/kubelet/kubelet_pods.go resolveRecursiveReadOnly
fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, ReadOnlyError> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let volume = mount.name.clone();
    if mount.read_only != Some(true) {
        return Err(ReadOnlyError::Writable(volume));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        let propagation = propagation.to_owned();
        return Err(ReadOnlyError::Propagates { volume, propagation });
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(ReadOnlyError::Unsupported(volume)),
        other => Err(ReadOnlyError::Mode(other.to_owned())),
    }
}

#[cfg(test)]
mod tests;
