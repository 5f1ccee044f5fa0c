//! Sets up the volumes of a pod that are shared by pods of this node: local disks and folders.
//!
//! Input: the planned volumes. Output: events for the user, and every failure. Volumes are set up
//! at the same time, each within the pod's patience, beside `execute::mount_all`, which does those
//! that are the pod's own. A volume that was refused before is not among them.

use std::sync::Arc;

use pintle_daemon::blocking::JobPlace;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::{MountNotice, VolumeError};
use super::plan::{PodVolumes, VolumeKind};
use super::{block, local};

/// The outcome for all of them.
#[derive(Debug, Default)]
pub struct ClaimedMounts {
    /// Events about volumes that are set up.
    pub notices: Vec<MountNotice>,
    /// Volumes that are not.
    pub failures: Vec<VolumeError>,
}

/// Sets up the pod's shared volumes.
pub async fn mount_claimed(volumes: &PodVolumes) -> ClaimedMounts {
    let mut outcome = ClaimedMounts::default();
    let is_local = |kind: &VolumeKind| matches!(kind, VolumeKind::Local(_));
    if !volumes.volumes.iter().any(|volume| is_local(&volume.kind)) {
        return outcome;
    }
    let pod = Arc::new(volumes.clone());
    let mut mounts = JoinSet::new();
    for at in 0..volumes.volumes.len() {
        let pod = Arc::clone(&pod);
        if !is_local(&pod.volumes[at].kind) {
            continue;
        }
        mounts.spawn(async move {
            let volume = &pod.volumes[at];
            let VolumeKind::Local(local) = &volume.kind else { return Ok(Vec::new()) };
            let set_up = async {
                match volume.is_block() {
                    true => block::set_up(&pod, volume, local).await,
                    false => local::set_up(&pod, volume, local).await,
                }
            };
            let why = || "timed out waiting for the condition".to_owned();
            let late = || VolumeError::not_mounted(volume.name.clone(), why());
            let done = timeout(JobPlace::change(&pod.uid).patience(), set_up).await;
            done.unwrap_or_else(|_| Err(late()))
        });
    }
    for done in mounts.join_all().await {
        match done {
            Ok(notices) => outcome.notices.extend(notices),
            Err(error) => outcome.failures.push(error),
        }
    }
    outcome
}
