//! Devices of drivers: mapped for a pod after they are published, unmapped before they are taken back.
// k8s: pkg/volume/util/util.go MapBlockVolume, UnmapBlockVolume

use std::path::PathBuf;

use pintle_agent_core::storage::{Failure, Known, Outcome, Wanted};
use pintle_agent_core::types::PodUid;
use pintle_agent_host::csi::device;
use pintle_daemon::blocking::JobPlace;

use super::Shared;

impl Shared {
    /// Binds the published device beside those of other pods, and links it in the pod's folder.
    pub(super) async fn map_device(&self, wanted: &Wanted, published: PathBuf) -> Outcome {
        let (dirs, pod) = (self.dirs.clone(), wanted.pod.clone());
        let name = wanted.volume.name.clone();
        let mapped = self.disk(JobPlace::change(&wanted.pod), move || {
            device::map(&dirs, &pod, &name, &published)
        });
        // It is published: whatever fails here, it has to be taken back.
        mapped.await.map_err(|failure| super::calls::uncertain(failure.text))
    }

    pub(super) async fn unmap_device(&self, pod: &PodUid, known: &Known) -> Result<(), Failure> {
        let (dirs, uid, name) = (self.dirs.clone(), pod.clone(), known.name.clone());
        self.disk(JobPlace::removal(pod), move || device::unmap(&dirs, &uid, &name)).await
    }

    pub(super) async fn remove_device_folders(&self, known: &Known) -> Outcome {
        let (dirs, name) = (self.dirs.clone(), known.name.clone());
        self.disk(JobPlace::remote(&known.driver), move || device::remove_folders(&dirs, &name))
            .await
    }
}
