//! Images that containers mount as volumes: pulled once for a sync, before its first container.
//!
//! An effect of `StartContainer`. All image volumes of the pod are pulled when the first container
//! of a sync starts; a failed one holds up the containers that mount it. The runtime mounts them.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go getImageVolumes, toKubeContainerImageVolumes

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use pintle_agent_cluster::objects::KeyringError;
use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::volume::plan::VolumeKind;
use pintle_agent_core::worker::Failure;
use pintle_api_types::pod;
use pintle_cri::v1;

use crate::execute::{Executor, ImageVolumes};
use crate::image::ImageRequest;
use crate::start::ContainerStart;

impl Executor {
    /// Ids of the images that the container mounts, by their reference.
    pub(crate) async fn image_volumes(
        &self,
        start: &ContainerStart<'_>,
        container: &Container,
        sandbox: &v1::PodSandboxConfig,
        keyring: &Result<Keyring, KeyringError>,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut volumes = pod::spec(start.pod).volumes.iter().flatten();
        if !volumes.any(|volume| volume.image.is_some()) {
            return Ok(BTreeMap::new());
        }
        let planned = self.volumes(start.pod).volumes;
        if start.image_volumes.get().is_none() {
            let mut pulled = ImageVolumes::new();
            for volume in &planned {
                let VolumeKind::Image { reference, pull_policy } = &volume.kind else { continue };
                let wanted = ImageRequest {
                    uid: &start.order.uid,
                    pod: start.pod,
                    container: None,
                    image: reference,
                    policy: pull_policy,
                    sandbox,
                    keyring,
                };
                let found = self.images.ensure(&wanted).await;
                pulled.insert(volume.name.clone(), found);
            }
            // One container of a sync starts after the other: it is set only here.
            let _ = start.image_volumes.set(pulled);
        }
        let (mut images, mut failure) = (BTreeMap::new(), None);
        for mount in container.volume_mounts.iter().flatten() {
            match start.image_volumes.get().and_then(|pulled| pulled.get(&mount.name)) {
                Some(Ok(image)) => {
                    let reference = planned.iter().find(|v| v.name == mount.name);
                    if let Some(VolumeKind::Image { reference, .. }) = reference.map(|v| &v.kind) {
                        images.insert(reference.clone(), image.id.clone());
                    }
                }
                Some(Err(error)) => {
                    let text = format!("Error: {}", error.reason);
                    let uid = &start.order.uid;
                    self.recorder.event(uid, true, "Failed", &text, Some(start.name));
                    failure = Some(error.clone());
                }
                None => {}
            }
        }
        failure.map_or(Ok(images), Err)
    }
}
