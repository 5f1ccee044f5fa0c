//! What the disk has at start: volumes that an agent before this one staged or published.
//!
//! Input: the records beside volumes. What they name is uncertain: nothing is taken away
//! before its pod is released, and nothing is unstaged before every source of pods has reported.
// k8s: pkg/kubelet/volumemanager/reconciler/reconstruct.go

use serde::{Deserialize, Serialize};

use super::Storage;
use super::volume::{Certainty, Known, State, Use};
use crate::storage::csi::{Lifecycle, VolumeId};
use pintle_api_types::ids::PodUid;

/// A volume that was found on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundVolume {
    /// What the file beside it says.
    pub known: Known,
    /// The pod it was published to; `None` for what is staged.
    pub pod: Option<PodUid>,
}

impl FoundVolume {
    fn id(&self) -> VolumeId {
        match (&self.pod, self.known.lifecycle) {
            (Some(pod), Lifecycle::Ephemeral) => VolumeId::of_pod(pod, &self.known.name),
            _ => VolumeId::shared(&self.known.driver, &self.known.handle),
        }
    }
}

impl Storage {
    /// Takes in volumes of a pod that have no record, unless they are known.
    pub(super) fn recover(&mut self, pod: &PodUid, volumes: Vec<Known>) {
        for known in volumes {
            let found = FoundVolume { known, pod: Some(pod.clone()) };
            let is_known = |state: &State| state.of(pod).is_some();
            if !self.volumes.get(&found.id()).is_some_and(is_known) {
                self.find(vec![found]);
            }
        }
    }

    /// Takes in what was found; nothing is done about it yet.
    pub(super) fn find(&mut self, volumes: Vec<FoundVolume>) {
        for found in volumes {
            let id = found.id();
            let state = self.volumes.entry(id.clone()).or_default();
            match found.pod {
                None => {
                    state.staged = state.staged.max(Certainty::Uncertain);
                    state.known.get_or_insert(found.known);
                }
                Some(pod) => {
                    self.pods.entry(pod.clone()).or_default().insert(id);
                    let of = state.uses.entry(pod).or_insert_with(|| Use::new(found.known));
                    of.published = of.published.max(Certainty::Uncertain);
                    of.is_found = true;
                }
            }
        }
    }
}
