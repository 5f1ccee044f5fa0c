//! Volumes that a pod does not have in time, by the names that its spec gives them.
//!
//! Input: what the pod still waits for, and the plan of its volumes. Output: the lists of the
//! kubelet's messages. Pure.
// k8s: pkg/kubelet/volumemanager/volume_manager.go getUnmountedVolumes, getUnattachedVolumes

use pintle_agent_core::storage::Waiting;
use pintle_agent_core::storage::csi::Volume;
use pintle_agent_core::volume::PodVolumes;

/// Why a pod's volumes are not there in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// Go: context.DeadlineExceeded, which ends wait.PollUntilContextTimeout
#[error("context deadline exceeded")]
pub struct NotReady {
    /// What is waited for; empty before the drivers' objects were read.
    pub waiting: Vec<Waiting>,
}

/// Names of late volumes, sorted, with spaces between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateNames {
    /// Volumes that are not published.
    pub unmounted: String,
    /// Those among them that are not attached.
    pub unattached: String,
}

impl NotReady {
    /// Names of the late volumes. Before the drivers' objects were read all may be late.
    pub fn names(&self, volumes: &PodVolumes) -> LateNames {
        let late = of_drivers(volumes).map(|(name, volume)| {
            let id = volume.id(&volumes.uid);
            (name, self.waiting.iter().find(|waiting| waiting.id == id))
        });
        let is_listed = |waiting: &Option<&Waiting>| waiting.is_some() || self.waiting.is_empty();
        let mut late: Vec<_> = late.filter(|(_, waiting)| is_listed(waiting)).collect();
        late.sort_unstable_by_key(|(name, _)| *name);
        let unattached = late.iter().filter(|(_, w)| w.is_some_and(|w| !w.is_attached));
        LateNames {
            unattached: unattached.map(|(name, _)| *name).collect::<Vec<_>>().join(" "),
            unmounted: late.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" "),
        }
    }
}

/// A pod's volumes of CSI drivers, by name.
pub(super) fn of_drivers(volumes: &PodVolumes) -> impl Iterator<Item = (&str, &Volume)> {
    volumes.volumes.iter().filter_map(|volume| Some((volume.name.as_str(), volume.kind.staged()?)))
}
