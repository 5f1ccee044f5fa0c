//! Removes directories of pods that no longer exist, left by a crash or by another agent.
//!
//! Input: the root directory and the uids that must stay: every pod that is desired, known to a
//! worker, or has a sandbox or container in the runtime. Output: what was removed and what could
//! not be, with its reason. Owner: the housekeeping loop; it calls only once all sources are ready.
//! Bounds: `SWEEP_MAX` directories a call, so that one call stays short; the next call continues.
//! The caller logs one line for all failures, by `pintle_daemon::log_once`.
// k8s: pkg/kubelet/kubelet_volumes.go cleanupOrphanedPodDirs

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use pintle_agent_core::types::PodUid;
use pintle_daemon::log_once;

use super::error::{Context, IoFailure, VolumeError};
use super::execute::{remove_pod_dir, unmount_all};
use super::layout::{PodDirs, pods_dir};
use super::{block, local, project};

/// Directories removed in one call.
pub const SWEEP_MAX: usize = 64;

/// The outcome of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Pods with a removed directory.
    pub removed: Vec<PodUid>,
    /// Pods with a directory that could not be removed, and the first reason.
    pub kept: Vec<(PodUid, String)>,
}

impl Swept {
    /// One sentence about the directories that stay, for a log line or event; `None` without any.
    pub fn warning(&self) -> Option<String> {
        log_once::stays("orphaned pod directories", &self.kept)
    }
}

/// Removes the directories of all pods that are not in `keep`.
pub fn sweep(root: &Path, keep: &BTreeSet<PodUid>) -> Result<Swept, IoFailure> {
    sweep_unless(root, |uid| keep.contains(uid))
}

/// Removes the directories of all pods that `is_kept` does not know, asked right before each
/// removal: a pod may become known while others are being removed.
pub fn sweep_unless(root: &Path, is_kept: impl Fn(&PodUid) -> bool) -> Result<Swept, IoFailure> {
    let pods = pods_dir(root);
    let entries = match fs::read_dir(&pods) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Swept::default()),
        Err(e) => return Err(IoFailure::of("read", &pods, &e)),
    };
    let mut swept = Swept::default();
    for entry in entries {
        let entry = entry.on("read", &pods)?;
        // A directory without a UID as its name is not a pod's.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(uid) = PodUid::parse(&name) else { continue };
        if is_kept(&uid) || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        if swept.removed.len() >= SWEEP_MAX {
            break;
        }
        match remove(&PodDirs::new(root, &uid)) {
            Ok(()) => swept.removed.push(uid),
            Err(error) => swept.kept.push((uid, error.to_string())),
        }
    }
    project::sweep(&pods);
    block::sweep(root, is_kept);
    local::sweep(root);
    Ok(swept)
}

fn remove(dirs: &PodDirs) -> Result<(), VolumeError> {
    unmount_all(dirs).map_err(|mut errors| errors.swap_remove(0))?;
    remove_pod_dir(dirs)
}
