//! Sets up and tears down a pod's volumes; the entry points for the pod's worker.
//!
//! ```text
//!   make_pod_dirs -> mount_all -> (per container) prepare_container -> … -> unmount_all -> remove_pod_dir
//! ```
//! Input: `PodVolumes` of `plan`, content by `content::Content`. Output: the directories that the
//! CRI requests name, or every failure at once. All of it is idempotent and may be killed anywhere.
//! `mount_all` and `prepare_container` do their file operations in the pool for blocking work
//! (`blocking`), and in the class for user paths where the pod chooses the path: when a file system
//! hangs, only that pod waits. The other functions are called in such a job.
//! Teardown reads the disk, not the spec, so that the same code cleans up pods with an unknown
//! spec.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use pintle_agent_core::types::PodUid;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};
use pintle_daemon::regular_file;
use tokio::task::JoinSet;

use super::content::{ContentSource, Fetched, LayoutError, POD_BYTES_MAX, fetch};
use super::dir_fd::{is_mount_point, make_dir, make_dir_all};
use super::error::{Cause, Context, IoFailure, VolumeError};
use super::layout::{
    DIR_MODE, EMPTY_DIR_PLUGIN, LOCAL_PLUGIN, NFS_PLUGIN, OWN_PLUGINS, PodDirs, pods_dir,
};
use super::mounts::PlannedMount;
use super::payload::Payload;
use super::plan::{PodVolume, PodVolumes, VolumeKind};
use super::project::{self, UsageMeasure};
use super::remove::DELETING;
use super::sub_path::{self, SubPathError};
use super::{atomic, block, empty_dir, foreign, host_path, local, mount, nfs, ownership, remove};

/// Mode of directories made inside a payload volume for other volumes' mounts.
const NESTED_MODE: u32 = 0o755;
/// Mode of a termination log: every user of the container may write it.
const TERMINATION_LOG_MODE: u32 = 0o666;
/// Content that is held in memory before it is written.
const PART_BYTES: usize = 4 << 20;
/// Mode of a pod's hosts file.
const HOSTS_MODE: u32 = 0o644;

/// Creates the agent's root directory and the pods' directory, and lets mounts propagate below it;
/// once, at start. Without the right to mount, volumes that need propagation fail later.
// k8s: pkg/kubelet/kubelet.go setupDataDirs
pub fn prepare_root(root: &Path) -> Result<(), IoFailure> {
    make_dir_all(root, DIR_MODE)?;
    make_dir(&pods_dir(root), DIR_MODE)?;
    if let Err(failure) = mount::share(root) {
        tracing::warn!(error = %failure, "mounts of containers will not propagate to the node");
    }
    Ok(())
}

/// Makes the pod's directory and those that every pod has.
// k8s: pkg/kubelet/kubelet_pods.go makePodDataDirs
pub fn make_pod_dirs(dirs: &PodDirs) -> Result<(), VolumeError> {
    make_dir_all(dirs.pod(), DIR_MODE).map_err(VolumeError::PodDir)?;
    for dir in [dirs.volumes(), dirs.plugins()] {
        make_dir(&dir, DIR_MODE).map_err(VolumeError::PodDir)?;
    }
    Ok(())
}

/// Creates the directory of a container, also of a rejected one.
// k8s: pkg/kubelet/kubelet_pods.go GenerateRunContainerOptions
pub fn make_container_dir(dirs: &PodDirs, container: &str) -> Result<(), IoFailure> {
    make_dir_all(&dirs.container(container), DIR_MODE)
}

/// Creates an empty termination log in the directory of a container, and the directory if it is
/// missing; returns the log's path. `name` is eight random hex digits.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go makeMounts
pub fn make_termination_log(
    dirs: &PodDirs,
    container: &str,
    name: &str,
) -> Result<PathBuf, IoFailure> {
    make_container_dir(dirs, container)?;
    let path = dirs.container(container).join(name);
    // The name is new and random: an existing file is not ours, and the creation fails.
    regular_file::create_at(&path, TERMINATION_LOG_MODE).on("create", &path)?;
    Ok(path)
}

/// Writes the hosts file of a pod in place, because running containers have it mounted.
// k8s: pkg/kubelet/kubelet_pods.go ensureHostsFile
pub fn write_hosts(dirs: &PodDirs, text: &str) -> Result<(), IoFailure> {
    let path = dirs.etc_hosts();
    let name = path.strip_prefix(dirs.pod()).expect("it lies in the pod's directory");
    regular_file::overwrite_in(dirs.pod(), name, text.as_bytes(), HOSTS_MODE).on("write", &path)
}

/// Sets up all volumes; called before containers start. Every volume is tried, and all failures are
/// returned. A volume with an earlier version of its content counts as set up: its failure is
/// returned in `Ok` and does not prevent a restart of containers. Volumes are written in parts, so
/// that only a part of a large content is in memory.
// k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount: a failed remount leaves
// the volume mounted
pub async fn mount_all(
    uid: &PodUid,
    volumes: &PodVolumes,
    measure: UsageMeasure,
    content: &impl ContentSource,
    now: jiff::Timestamp,
) -> Result<Vec<VolumeError>, Vec<VolumeError>> {
    let leads_away = volumes.volumes.iter().any(|v| matches!(v.kind, VolumeKind::HostPath { .. }));
    let place = if leads_away { JobPlace::foreign(uid) } else { JobPlace::change(uid) };
    let mut mounting = Mounting { room: POD_BYTES_MAX, ..Mounting::default() };
    let (mut pod, mut part, mut bytes) = (None, Vec::new(), 0);
    for (at, volume) in volumes.volumes.iter().enumerate() {
        let fetched = match &volume.kind {
            VolumeKind::Payload { sources, .. } => fetch(sources, content).await,
            _ => Fetched::default(),
        };
        bytes += fetched.bytes;
        part.push(fetched);
        if bytes < PART_BYTES && at + 1 < volumes.volumes.len() {
            continue;
        }
        let pod = Arc::clone(pod.get_or_insert_with(|| Arc::new(volumes.clone())));
        let fetched = std::mem::take(&mut part);
        let from = at + 1 - fetched.len();
        let mut done = std::mem::take(&mut mounting);
        let job = move || {
            for (volume, fetched) in pod.volumes[from..].iter().zip(fetched) {
                done.volume(&pod, volume, &fetched, measure, now);
            }
            done
        };
        mounting = match blocking::run(place.clone(), job).await {
            Ok(done) => done,
            Err(why) => return Err(vec![never_mounted(volumes, why)]),
        };
        bytes = 0;
    }
    let Mounting { mut failures, outdated, .. } = mounting;
    failures.extend(mount_remote(uid, volumes).await);
    if failures.is_empty() {
        return Ok(outdated);
    }
    failures.extend(outdated);
    Err(failures)
}

/// Progress of a pod's set-up.
#[derive(Default)]
struct Mounting {
    failures: Vec<VolumeError>,
    /// Failures of volumes with an earlier version of their content.
    outdated: Vec<VolumeError>,
    /// Bytes left of `POD_BYTES_MAX`.
    room: usize,
}

impl Mounting {
    fn volume(
        &mut self,
        pod: &PodVolumes,
        volume: &PodVolume,
        fetched: &Fetched,
        measure: UsageMeasure,
        now: jiff::Timestamp,
    ) {
        let payload = match &volume.kind {
            VolumeKind::Payload { sources, .. } => {
                fetched.lay_out(sources).and_then(|payload| self.admit(payload))
            }
            _ => Ok(Payload::new()),
        };
        let error = match payload {
            Ok(payload) => set_up(pod, volume, &payload, measure, now).err(),
            Err(error) => Some(VolumeError::set_up(volume.disk_name(), error.to_string())),
        };
        let Some(error) = error else { return };
        let outdated = shows_something(pod, volume);
        let list = if outdated { &mut self.outdated } else { &mut self.failures };
        list.push(error);
    }

    fn admit(&mut self, payload: Payload) -> Result<Payload, LayoutError> {
        let bytes = payload.values().map(|file| file.data.len()).sum();
        let left = self.room.checked_sub(bytes);
        self.room = left.ok_or(LayoutError::TooLarge)?;
        Ok(payload)
    }
}

/// Mounts the volumes of file servers, at the same time; no thread waits for them.
async fn mount_remote(uid: &PodUid, volumes: &PodVolumes) -> Vec<VolumeError> {
    let mut mounts = JoinSet::new();
    for volume in &volumes.volumes {
        let VolumeKind::Nfs(source) = &volume.kind else { continue };
        let name = volume.disk_name().to_owned();
        let dir = volumes.dirs.volume(NFS_PLUGIN, &name);
        let (uid, source) = (uid.clone(), source.clone());
        mounts.spawn(async move {
            let done = nfs::HOST.set_up(&uid, &dir, &source).await;
            done.err().map(|cause| VolumeError::set_up(&name, cause))
        });
    }
    if mounts.is_empty() {
        return Vec::new();
    }
    let patience = JobPlace::change(uid).patience();
    match tokio::time::timeout(patience, mounts.join_all()).await {
        Ok(failures) => failures.into_iter().flatten().collect(),
        Err(_) => vec![never_mounted(volumes, Blocked::TimedOut(patience))],
    }
}

/// Tears down the pod's NFS volumes, before `unmount_all`: only volumes of the same server wait for
/// one that does not answer. Returns a sentence for each volume that lost data or was detached.
/// Requires that no container of the pod runs.
pub async fn unmount_remote(uid: &PodUid, dirs: &PodDirs) -> Result<Vec<String>, VolumeError> {
    let plugin = dirs.volumes().join(NFS_PLUGIN);
    let list = move || nfs::mounted(children(&plugin));
    let lost = |why: Blocked| VolumeError::tear_down("nfs", why.to_string());
    let mounted = blocking::run(JobPlace::removal(uid), list).await.map_err(lost)?;
    let mut given_up = Vec::new();
    for remote in mounted.map_err(VolumeError::PodDir)? {
        let name = remote.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let dir = remote.dir;
        let done =
            blocking::run(JobPlace::remote(&remote.server), move || nfs::tear_down(&dir)).await;
        let done = done.map_err(|why| VolumeError::tear_down(&name, why.to_string()))?;
        let text = done.map_err(|failure| VolumeError::tear_down(&name, failure))?;
        given_up.extend(text.map(|text| format!("Volume {name:?} was unmounted by force: {text}")));
    }
    Ok(given_up)
}

fn never_mounted(volumes: &PodVolumes, why: Blocked) -> VolumeError {
    let names = volumes.volumes.iter().map(|volume| volume.name.as_str());
    let names = names.collect::<Vec<_>>().join(" ");
    let why = match why {
        Blocked::TimedOut(_) => "timed out waiting for the condition".to_owned(),
        other => other.to_string(),
    };
    VolumeError::not_mounted(names, why)
}

/// Rewrites payload volumes with changed content; does not touch other volumes.
pub async fn refresh(
    uid: &PodUid,
    volumes: &PodVolumes,
    content: &impl ContentSource,
    now: jiff::Timestamp,
) -> Result<(), Vec<VolumeError>> {
    let mut written = volumes.clone();
    written.volumes.retain(|volume| matches!(volume.kind, VolumeKind::Payload { .. }));
    match mount_all(uid, &written, UsageMeasure::Walk, content, now).await {
        Ok(failures) if failures.is_empty() => Ok(()),
        Ok(failures) | Err(failures) => Err(failures),
    }
}

/// True for a payload volume with a published version.
fn shows_something(pod: &PodVolumes, volume: &PodVolume) -> bool {
    let VolumeKind::Payload { .. } = &volume.kind else { return false };
    volume.host_dir(&pod.dirs).is_some_and(|dir| atomic::is_published(&dir))
}

fn set_up(
    pod: &PodVolumes,
    volume: &PodVolume,
    payload: &Payload,
    measure: UsageMeasure,
    now: jiff::Timestamp,
) -> Result<(), VolumeError> {
    let name = volume.disk_name();
    let result = match &volume.kind {
        VolumeKind::Unsupported(kind) => {
            return Err(VolumeError::Unsupported { volume: name.to_owned(), kind });
        }
        VolumeKind::Untranslatable(why) => {
            return Err(VolumeError::unresolved(volume.name.clone(), why.clone()));
        }
        VolumeKind::Image { .. } => Ok(()),
        // These wait for programs and drivers: see `mount_remote` and `claimed`; a driver's volumes
        // have an owner of their own.
        VolumeKind::Nfs(_)
        | VolumeKind::Local(_)
        | VolumeKind::Csi(_)
        | VolumeKind::NetworkDisk(_) => Ok(()),
        // The caller reports it.
        VolumeKind::Claim(_) => Ok(()),
        VolumeKind::HostPath { path, kind } => match kind {
            Ok(kind) => host_path::check(path, *kind),
            Err(error) => Err(error.to_string().into()),
        },
        VolumeKind::EmptyDir(empty) => {
            let dir = pod.dirs.volume(EMPTY_DIR_PLUGIN, name);
            empty_dir::set_up(&dir, &pod.dirs.ready_dir(name), empty, pod.fs_group, measure)
        }
        VolumeKind::Payload { wrapped, .. } => {
            let dir = volume.host_dir(&pod.dirs).unwrap_or_default();
            let ready = pod.dirs.ready_dir(&format!("wrapped_{name}"));
            empty_dir::set_up(&dir, &ready, wrapped, pod.fs_group, UsageMeasure::Walk)
                .and_then(|()| write_payload(&dir, volume, payload, pod.fs_group, now))
        }
    };
    result.map_err(|cause| VolumeError::set_up(name, cause))
}

// k8s: pkg/volume/projected/projected.go SetUpAt
fn write_payload(
    dir: &Path,
    volume: &PodVolume,
    payload: &Payload,
    group: Option<u32>,
    now: jiff::Timestamp,
) -> Result<(), Cause> {
    for nested in volume.nested.iter().flat_map(|list| list.iter()) {
        make_dir_all(&dir.join(nested), NESTED_MODE)?;
    }
    let set_perms = || match group {
        Some(group) => ownership::give_to_group(dir, group, true),
        None => Ok(()),
    };
    atomic::write(dir, payload, &atomic::stamp(now), set_perms)?;
    Ok(())
}

/// Binds the sub-paths of a container's mounts.
// k8s: pkg/kubelet/kubelet_pods.go makeMounts
pub async fn prepare_container(
    uid: &PodUid,
    container: &str,
    mounts: &[PlannedMount],
) -> Result<(), VolumeError> {
    let parts = mounts.iter().filter(|mount| mount.sub_path.is_some());
    let parts: Vec<PlannedMount> = parts.cloned().collect();
    if parts.is_empty() {
        return Ok(());
    }
    let container = container.to_owned();
    // Containers of the pod, or a hostPath, control the files on this path.
    let name = container.clone();
    let bound = move || parts.iter().try_for_each(|mount| bind_sub_path(&container, mount));
    blocking::run(JobPlace::foreign(uid), bound).await.unwrap_or_else(|why| {
        let text = format!("failed to prepare subPaths of container {name:?}: {why}");
        Err(VolumeError::Container(text))
    })
}

fn bind_sub_path(container: &str, mount: &PlannedMount) -> Result<(), VolumeError> {
    let Some(part) = &mount.sub_path else { return Ok(()) };
    let Err(error) = sub_path::prepare(part, &mount.host_path) else { return Ok(()) };
    // The detail could disclose the host's file system to a user.
    let (what, detail) = match error {
        SubPathError::Create(detail) => ("create subPath directory", detail),
        SubPathError::Prepare(detail) => ("prepare subPath", detail),
    };
    let volume = &mount.volume;
    tracing::warn!(container, volume, error = %detail, "subPath cannot be used");
    Err(VolumeError::Container(format!(
        "failed to {what} for volumeMount {volume:?} of container {container:?}"
    )))
}

/// Tears down every volume of the pod that a supported plugin created. Each volume is tried, all
/// failures are returned, and the next call retries what is left.
pub fn unmount_all(dirs: &PodDirs) -> Result<(), Vec<VolumeError>> {
    let mut failures = Vec::new();
    failures.extend(remove_sub_paths(dirs).err());
    failures.extend(block::tear_down(dirs));
    let volumes = dirs.volumes();
    for plugin in children(&volumes) {
        let is_ours = plugin.file_name().is_some_and(|n| OWN_PLUGINS.iter().any(|own| n == *own));
        let found = children(&plugin);
        if !is_ours && !found.is_empty() {
            failures.extend(foreign::tear_down(&plugin, &found));
            continue;
        }
        for dir in found {
            failures.extend(tear_down(dirs, &dir).err());
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// Removes the pod's directory. Call it only after `unmount_all` succeeded and no container runs;
/// data in a volume that still exists is never touched.
// k8s: pkg/kubelet/kubelet_volumes.go cleanupOrphanedPodDirs
pub fn remove_pod_dir(dirs: &PodDirs) -> Result<(), VolumeError> {
    let volumes = dirs.volumes();
    for plugin in children(&volumes) {
        // If one is not empty, the removal of `volumes` fails, which is reported.
        let _ = fs::remove_dir(&plugin);
    }
    match fs::remove_dir(&volumes) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(VolumeError::PodDir(IoFailure::of("rmdir", &volumes, &e))),
    }
    remove::remove_tree(dirs.pod()).map_err(VolumeError::PodDir)
}

/// Tears down one volume: marker first, so that a half-removed volume never counts as ready.
// k8s: pkg/volume/emptydir/empty_dir.go TearDownAt
fn tear_down(dirs: &PodDirs, dir: &Path) -> Result<(), VolumeError> {
    let file_name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = file_name.strip_prefix(DELETING).unwrap_or(&file_name);
    let fail = |failure: IoFailure| VolumeError::tear_down(name, failure);
    if dir.parent().is_some_and(|plugin| plugin.ends_with(NFS_PLUGIN)) {
        // Its content belongs to the server: never delete it, and do not even stat it.
        return nfs::tear_down(dir).map(drop).map_err(fail);
    }
    if dir.parent().is_some_and(|plugin| plugin.ends_with(LOCAL_PLUGIN)) {
        return local::tear_down(dirs, dir);
    }
    for ready in [dirs.ready_dir(name), dirs.ready_dir(&format!("wrapped_{name}"))] {
        remove::remove_tree(&ready).map_err(fail)?;
    }
    let doomed = dir.with_file_name(format!("{DELETING}{name}"));
    let removed = take_away(dir, &doomed).or_else(|failure| {
        // A container with bidirectional propagation left a mount inside, which blocks the
        // removal. The list of all the node's mounts is long, so it is read only in this case.
        if !matches!(failure.errno, Errno::EXDEV | Errno::EBUSY) {
            return Err(failure);
        }
        for point in mount::below(dir)?.into_iter().chain(mount::below(&doomed)?) {
            mount::unmount(&point)?;
        }
        take_away(dir, &doomed)
    });
    removed.map_err(fail)?;
    if dir.parent().is_some_and(|plugin| plugin.ends_with(EMPTY_DIR_PLUGIN)) {
        // Regardless of the gate: another agent or setting may have assigned the project.
        project::release(&dir.with_file_name(name));
    }
    Ok(())
}

/// Unmounts a volume's directory and removes it, under a name that is no volume's.
fn take_away(dir: &Path, doomed: &Path) -> Result<(), IoFailure> {
    if is_mount_point(dir)? {
        mount::unmount(dir)?;
    }
    if dir != doomed {
        remove::remove_tree(doomed)?;
        match fs::rename(dir, doomed) {
            // An earlier attempt has renamed it.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            renamed => renamed.on("rename", dir)?,
        }
    }
    remove::remove_tree(doomed)
}

/// Unmounts sub-paths and removes their targets, which hold no data. A CSI driver cannot unstage a
/// volume while a sub-path of it is mounted.
// k8s: pkg/volume/util/subpath/subpath_linux.go doCleanSubPaths
pub fn remove_sub_paths(dirs: &PodDirs) -> Result<(), VolumeError> {
    let root = dirs.sub_paths();
    for volume in children(&root) {
        let name = volume.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fail = |failure: IoFailure| VolumeError::tear_down(&name, failure);
        for target in children(&volume).iter().flat_map(|container| children(container)) {
            mount::unmount(&target).map_err(fail)?;
        }
        remove::remove_tree(&volume).map_err(fail)?;
    }
    remove::remove_tree(&root).map_err(VolumeError::PodDir)
}

/// Entries of a directory; none when it cannot be read, which the removal of the directory reports.
fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}
