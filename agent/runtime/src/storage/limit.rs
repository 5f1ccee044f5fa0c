//! Whether a pod's volumes do not come because the node is full for their driver.
//!
//! Input: what the pod still waited for when its wait ended. Output: the sentence that it fails with,
//! and a wish to ask the driver for its limit again, so that the scheduler learns of it at once.
//! Bound: one read for each volume that is not attached.
// k8s: pkg/kubelet/volumemanager/volume_manager.go WaitForAttachAndMount

use pintle_agent_core::storage::Waiting;
use pintle_agent_core::storage::csi::attachment_name;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::{PodVolumes, VolumeKind};

use super::{NotReady, Volumes};

impl Volumes {
    /// The sentence of a pod that has to go to another node.
    pub async fn exhausted(
        &self,
        uid: &PodUid,
        late: &NotReady,
        volumes: &PodVolumes,
    ) -> Option<String> {
        let mut is_full = false;
        for waiting in late.waiting.iter().filter(|waiting| !waiting.is_attached) {
            if !is_full && self.is_full_for(uid, waiting, volumes).await {
                self.0.parts.refresher.refresh(&waiting.driver);
                is_full = true;
            }
        }
        is_full.then(|| sentence(late, volumes))
    }

    async fn is_full_for(&self, uid: &PodUid, waiting: &Waiting, volumes: &PodVolumes) -> bool {
        let mut of_pod = volumes.volumes.iter();
        let handle = of_pod.find_map(|volume| match &volume.kind {
            VolumeKind::Csi(csi) if csi.id(uid) == waiting.id => Some(&csi.handle),
            _ => None,
        });
        let Some(handle) = handle else { return false };
        let parts = &self.0.parts;
        let Ok(spec) = parts.objects.driver_spec(&waiting.driver).await else { return false };
        let name = attachment_name(handle, &waiting.driver, &parts.node_name);
        match parts.objects.attachment(uid, &name).await {
            Ok(attachment) => spec.is_exhausted(&attachment),
            Err(why) => {
                tracing::debug!(pod = %uid, name, why, "an attachment cannot be read");
                false
            }
        }
    }
}

/// Volumes by their names in the pod, as the kubelet lists them.
fn sentence(late: &NotReady, volumes: &PodVolumes) -> String {
    let named = |is_listed: &dyn Fn(&Waiting) -> bool| {
        let listed = late.waiting.iter().filter(|waiting| is_listed(waiting));
        let listed: Vec<&str> = listed.map(|waiting| waiting.name.as_str()).collect();
        let of_pod = volumes.volumes.iter();
        let of_pod = of_pod.filter(|volume| listed.contains(&volume.disk_name()));
        let mut names: Vec<&str> = of_pod.map(|volume| volume.name.as_str()).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let (unmounted, unattached) = (named(&|_| true), named(&|waiting| !waiting.is_attached));
    format!(
        "Node has reached its volume attachment limit, rejecting pod. unmounted \
         volumes=[{unmounted}], unattached volumes=[{unattached}], failed to process volumes=[]: \
         {late}"
    )
}
