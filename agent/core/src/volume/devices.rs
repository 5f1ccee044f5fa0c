//! The devices that a container gets of its pod's block volumes. Pure.
//!
//! Input: the planned volumes and the container. Output: `PlannedDevice`s in the order of the spec,
//! for the CRI request, or why one cannot be, in the kubelet's words. The path on the node is the
//! link in the pod's `volumeDevices`, which the runtime resolves.
// k8s: pkg/kubelet/kubelet_pods.go makeBlockVolumes

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Container;

use super::mounts::MountError;
use super::plan::{PodVolume, PodVolumes};

/// A device of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDevice {
    /// The link on the node.
    pub host_path: PathBuf,
    /// Path inside.
    pub container_path: String,
    /// As the runtime has them: `mrw` or `r`.
    pub permissions: &'static str,
}

impl PodVolume {
    /// The link to its device.
    pub fn device_link(&self, volumes: &PodVolumes) -> Option<PathBuf> {
        let folder = self.kind.plugin().filter(|plugin| plugin.takes_devices)?.folder?;
        self.is_block().then(|| volumes.dirs.device(folder, self.disk_name()))
    }
}

impl PodVolumes {
    /// Devices of a container.
    ///
    /// # Errors
    /// A path is not absolute, or a volume is none that has a device.
    pub fn devices(&self, container: &Container) -> Result<Vec<PlannedDevice>, MountError> {
        let devices = container.volume_devices.iter().flatten();
        let plan = |device: &k8s_openapi::api::core::v1::VolumeDevice| {
            if !device.device_path.starts_with('/') {
                return Err(MountError::RelativeDevice(device.device_path.clone()));
            }
            let volume = self.volumes.iter().find(|volume| volume.name == device.name);
            let link = volume.and_then(|volume| Some((volume, volume.device_link(self)?)));
            let Some((volume, host_path)) = link else {
                let (volume, container) = (device.name.clone(), container.name.clone());
                return Err(MountError::NoDevice { volume, container });
            };
            Ok(PlannedDevice {
                host_path,
                container_path: device.device_path.clone(),
                permissions: if volume.is_read_only() { "r" } else { "mrw" },
            })
        };
        devices.map(plan).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::claim::{ClaimedVolume, Claims};
    use super::*;
    use crate::types::NodeFacts;

    #[test]
    fn device_is_mapped_from_the_pods_link_with_the_permissions_of_its_claim() {
        let pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {
            "containers": [{"name": "c", "volumeDevices": [
                {"name": "disk", "devicePath": "/dev/x"},
                {"name": "shown", "devicePath": "/dev/y"}]}],
            "volumes": [
                {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
                {"name": "shown", "persistentVolumeClaim": {"claimName": "shown"}}],
        }}))
        .expect("a pod");
        let mut claims = Claims::default();
        for (name, is_read_only) in [("disk", false), ("shown", true)] {
            let volume = json!({"metadata": {"name": format!("pv-{name}")},
                "spec": {"volumeMode": "Block", "local": {"path": "/dev/loop1"}}});
            let volume = serde_json::from_value(volume).expect("a volume");
            let claim = name.to_owned();
            claims.insert(
                name,
                ClaimedVolume { claim, is_read_only, capacity: None, volume, is_migrated: false },
            );
        }
        let facts = NodeFacts::default();
        let planned = PodVolumes::plan(Path::new("/root"), &facts, &pod, &claims);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        let device = |volume: &str, path: &str, permissions| PlannedDevice {
            host_path: PathBuf::from("/root/pods/u1/volumeDevices/kubernetes.io~local-volume")
                .join(volume),
            container_path: path.to_owned(),
            permissions,
        };
        let want = [device("pv-disk", "/dev/x", "mrw"), device("pv-shown", "/dev/y", "r")];
        assert_eq!(planned.devices(container).expect("planned"), want);
        let refuse = |device: serde_json::Value, why: &str| {
            let container = json!({"name": "c", "volumeDevices": [device]});
            let container = serde_json::from_value(container).expect("a container");
            assert_eq!(planned.devices(&container).expect_err("refused").to_string(), why);
        };
        refuse(
            json!({"name": "disk", "devicePath": "x"}),
            "error DevicePath `x` must be an absolute path",
        );
        refuse(
            json!({"name": "none", "devicePath": "/x"}),
            "cannot find volume \"none\" to pass into container \"c\"",
        );
    }
}
