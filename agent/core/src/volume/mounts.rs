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

/// The reason for which a container's mount cannot be planned, worded as the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MountError(pub String);

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
                self.mount(container, (index, mount), volume, path, supports_rro)
            })
            .collect()
    }

    fn mount(
        &self,
        container: &Container,
        (index, mount): (usize, &VolumeMount),
        volume: Option<&PodVolume>,
        path: Result<String, String>,
        supports_rro: bool,
    ) -> Result<PlannedMount, MountError> {
        let fail = MountError;
        let Some(volume) = volume else {
            let (volume, container) = (&mount.name, &container.name);
            return Err(fail(format!(
                "cannot find volume {volume:?} to mount into container {container:?}"
            )));
        };
        let path = path.map_err(fail)?;
        let container_path = match mount.mount_path.starts_with('/') {
            true => mount.mount_path.clone(),
            false => format!("/{}", mount.mount_path),
        };
        let rro = recursive_read_only(mount, supports_rro)
            .map_err(|why| fail(format!("failed to resolve recursive read-only mode: {why}")))?;
        let mut planned = PlannedMount {
            volume: volume.name.clone(),
            container_path,
            host_path: PathBuf::new(),
            readonly: mount.read_only == Some(true) || volume.is_read_only(),
            recursive_read_only: rro,
            relabel: volume.is_made_for_the_pod(),
            propagation: propagation_of(mount).map_err(fail)?,
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
) -> Result<String, String> {
    let expr = mount.sub_path_expr.as_deref().unwrap_or_default();
    let path = match expr {
        "" => mount.sub_path.clone().unwrap_or_default(),
        expr => expanded(expr, env, *room)?,
    };
    *room = room.saturating_sub(path.len());
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok(path)
}

/// Expands `$(NAME)`; an unset or empty variable is an error here, unlike in a command line.
// k8s: pkg/kubelet/container/helpers.go ExpandContainerVolumeMounts
fn expanded(
    expr: &str,
    env: &BTreeMap<String, String>,
    bytes_max: usize,
) -> Result<String, String> {
    let mut missing = BTreeSet::new();
    let out = expand::expand(expr, bytes_max, |name| {
        let value = env.get(name).map(String::as_str).unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_owned());
        }
        Some(value)
    });
    if missing.is_empty() {
        return out.map_err(|_| "subPathExpr is too long with what it refers to".to_owned());
    }
    let names: Vec<String> = missing.into_iter().collect();
    Err(format!("missing value for {}", names.join(", ")))
}

// k8s: pkg/kubelet/kubelet_pods.go translateMountPropagation
fn propagation_of(mount: &VolumeMount) -> Result<Propagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

// k8s: pkg/kubelet/kubelet_pods.go resolveRecursiveReadOnly
fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let wanted = format!("volume {:?} requested recursive read-only mode, but it is", mount.name);
    if mount.read_only != Some(true) {
        return Err(format!("{wanted} not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(format!("{wanted} not compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(format!("{wanted} not supported by the runtime")),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

#[cfg(test)]
mod tests;
