//! Whether a pod's volumes do not come because the node is full for their driver.
//!
//! Input: what the pod still waited for when its wait ended. Output: the sentence that it fails with,
//! and a wish to ask the driver for its limit again, so that the scheduler learns of it at once.
//! Bound: one read for each volume that is not attached.
// k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount

use pintle_agent_core::storage::Waiting;
use pintle_agent_core::storage::csi::attachment_name;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::PodVolumes;

use super::late::{LateNames, of_drivers};
use super::{NotReady, Volumes};

impl Volumes {
    /// The sentence of a pod that fails because another node has to run it.
    pub async fn exhausted(
        &self,
        uid: &PodUid,
        late: &NotReady,
        volumes: &PodVolumes,
    ) -> Option<String> {
        for waiting in late.waiting.iter().filter(|waiting| !waiting.is_attached) {
            if self.is_full_for(uid, waiting, volumes).await {
                self.0.parts.refresher.refresh(&waiting.driver);
                return Some(sentence(late, volumes));
            }
        }
        None
    }

    async fn is_full_for(&self, uid: &PodUid, waiting: &Waiting, volumes: &PodVolumes) -> bool {
        let found = of_drivers(volumes).find(|(_, volume)| volume.id(uid) == waiting.id);
        // A disk of a storage network has no limit that its plugin knows.
        let Some((_, volume)) = found.filter(|(_, volume)| volume.disk.is_none()) else {
            return false;
        };
        let parts = &self.0.parts;
        let Ok(spec) = parts.objects.driver_spec(&waiting.driver).await else { return false };
        let name = attachment_name(&volume.handle, &waiting.driver, &parts.node_name);
        match parts.objects.attachment(uid, &name).await {
            Ok(attachment) => spec.is_exhausted(&attachment),
            Err(why) => {
                tracing::debug!(pod = %uid, name, %why, "an attachment cannot be read");
                false
            }
        }
    }
}

fn sentence(late: &NotReady, volumes: &PodVolumes) -> String {
    let LateNames { unmounted, unattached } = late.names(volumes);
    format!(
        "Node has reached its volume attachment limit, rejecting pod. unmounted \
         volumes=[{unmounted}], unattached volumes=[{unattached}], failed to process volumes=[]: \
         {late}"
    )
}
