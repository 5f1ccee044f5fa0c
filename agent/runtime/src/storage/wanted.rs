//! What a pod wants of its drivers: its volumes, with how each driver wants them treated.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::storage::Wanted;
use pintle_agent_core::storage::csi::{Lifecycle, Volume};
use pintle_agent_core::storage::driver::DriverSpec;
use pintle_agent_core::storage::selinux::SeveralLabels;
use pintle_agent_core::types::PodUid;
use pintle_api_types::pod;

use super::Shared;

/// How long the API server is left alone after it did not say how a driver wants its volumes treated.
const RETRY: Duration = Duration::from_secs(1);

impl Shared {
    /// Waits until the API server has said how each driver wants its volumes treated: without that it
    /// is not known whether a volume has to be attached first.
    ///
    /// # Errors
    /// Containers of the pod want one volume with several SELinux labels.
    pub(super) async fn wanted(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        volumes: &[Volume],
    ) -> Result<Vec<Wanted>, SeveralLabels> {
        let security = pod::spec(pod).security_context.as_ref();
        let change = security.and_then(|security| security.se_linux_change_policy.as_deref());
        let group = security.and_then(|security| security.fs_group);
        let fs_group = group.and_then(|group| u32::try_from(group).ok());
        let mut wanted = Vec::new();
        for volume in volumes {
            if volume.disk.is_some() {
                let volume = volume.clone();
                wanted.push(Wanted {
                    pod: uid.clone(),
                    volume,
                    // k8s: pkg/volume/iscsi/attacher.go CanAttach, pkg/volume/fc/attacher.go
                    is_attached_first: self.parts.attaches_by_controller,
                    is_republished: false,
                    fs_group,
                    selinux_label: None,
                });
                continue;
            }
            let spec = self.spec(uid, &volume.driver).await;
            let is_persistent = volume.lifecycle == Lifecycle::Persistent;
            let selinux_label = self.parts.labels.mount_label(volume, &spec, change)?;
            wanted.push(Wanted {
                pod: uid.clone(),
                volume: volume.clone(),
                is_attached_first: spec.is_attach_required && is_persistent,
                is_republished: spec.is_republished,
                fs_group,
                selinux_label,
            });
        }
        Ok(wanted)
    }

    async fn spec(&self, uid: &PodUid, driver: &str) -> DriverSpec {
        loop {
            match self.parts.objects.driver_spec(driver).await {
                Ok(spec) => return spec,
                Err(error) => {
                    tracing::debug!(pod = %uid, driver, error = error.to_string(), "CSIDriver cannot be read");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}
