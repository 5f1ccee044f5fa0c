//! The runtime's images, and those of them that containers use, running or not.
//!
//! Effects: lists of images and containers, and the status of each container, which alone shows
//! mounted images. Each of these calls has the runtime's usual time limit, and each answer advances
//! the step counter for waiting callers: on a slow disk all of them together take long. An error is
//! the whole look's: half a look would take images from their users.
// k8s: pkg/kubelet/images/image_gc_manager.go detectImages, handleImageVolumes

use std::collections::BTreeSet;

use pintle_agent_core::garbage::images::ImageFacts;
use pintle_cri::{Client, Code, v1};

use super::{CollectError, Steps};
use crate::observed::all_containers;

/// An image that the runtime has.
#[derive(Clone, Debug)]
pub(super) struct RuntimeImage {
    pub(super) image: ImageFacts,
    /// Its id and digests: a start may know it by any of these.
    pub(super) names: Vec<String>,
    /// Its name for users.
    pub(super) shown: String,
}

/// All images; containers are listed after them, so that none is used that is not seen.
pub(super) async fn look(
    client: &Client,
    steps: &Steps,
) -> Result<Vec<RuntimeImage>, CollectError> {
    let images = client.list_images(v1::ListImagesRequest { filter: None }).await;
    let images = images.map_err(CollectError::Runtime)?.images;
    steps.one_more();
    let used = used(client, steps).await?;
    let found = images.into_iter().map(|image| {
        let mut names = vec![image.id.clone()];
        names.extend(image.repo_digests);
        let in_use = names.iter().chain(&image.repo_tags).any(|name| used.contains(name));
        let shown = image.repo_tags.first().or(names.get(1)).unwrap_or(&image.id).clone();
        let (id, bytes, pinned) = (image.id, image.size, image.pinned);
        RuntimeImage { image: ImageFacts { id, bytes, pinned, in_use }, names, shown }
    });
    Ok(found.collect())
}

/// The names by which containers refer to their images.
async fn used(client: &Client, steps: &Steps) -> Result<BTreeSet<String>, CollectError> {
    let containers = all_containers(client).await;
    let mut used = BTreeSet::new();
    for container in containers.map_err(CollectError::Runtime)? {
        let (id, named) = (container.image_id, container.image.map(|spec| spec.image));
        used.extend([id, container.image_ref].into_iter().chain(named));
        let request = v1::ContainerStatusRequest { container_id: container.id, verbose: false };
        let status = match client.container_status(request).await {
            Ok(answer) => answer.status.unwrap_or_default(),
            // It went meanwhile.
            Err(error) if error.code == Code::NotFound => continue,
            Err(error) => return Err(CollectError::ContainerStatus(error)),
        };
        steps.one_more();
        let mounted = status.mounts.into_iter().filter_map(|mount| mount.image);
        used.extend(mounted.map(|spec| spec.image));
    }
    Ok(used)
}
