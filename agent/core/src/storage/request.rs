//! CSI's requests from a volume, its pod and what was read for the call: pure.
//!
//! Input: a `Wanted` volume, paths, and the `Extras` that only the edge has (secrets, tokens, what the
//! attacher said). Output: the message that the kubelet would send. Secrets pass through and are kept
//! nowhere.
// k8s: pkg/volume/csi/csi_client.go, csi_attacher.go MountDevice, csi_mounter.go SetUpAt, csi_block.go

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::pod;
use pintle_plugins_v1::csi::volume_capability::access_mode::Mode;
use pintle_plugins_v1::csi::volume_capability::{AccessType, BlockVolume, MountVolume};
use pintle_plugins_v1::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability, volume_capability,
};

use super::csi::{AccessMode, Lifecycle, Volume};
use super::selinux::mount_option;
use super::{Known, Wanted};

/// Key of the tokens in attributes or secrets.
pub const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// What a call needs besides the volume.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// What the attacher said about the attachment.
    pub publish_context: BTreeMap<String, String>,
    /// Values of the secret of the call.
    pub secrets: BTreeMap<String, String>,
    /// The driver knows one writer from several.
    pub tells_writers: bool,
    /// The driver gives files to the pod's group itself.
    pub mounts_for_group: bool,
}

/// NodeStageVolume.
pub fn stage(wanted: &Wanted, staging: &Path, extras: Extras) -> NodeStageVolumeRequest {
    let volume = &wanted.volume;
    NodeStageVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: extras.publish_context.clone(),
        staging_target_path: shown(staging),
        volume_capability: Some(capability(wanted, &extras)),
        secrets: extras.secrets,
        volume_context: volume.attributes.clone(),
    }
}

/// NodePublishVolume. `staging` is the path of what is staged, if the driver stages; `more` is
/// added to the volume's attributes.
pub fn publish(
    wanted: &Wanted,
    staging: Option<&Path>,
    target: &Path,
    more: BTreeMap<String, String>,
    extras: Extras,
) -> NodePublishVolumeRequest {
    let volume = &wanted.volume;
    let mut volume_context = volume.attributes.clone();
    volume_context.extend(more);
    NodePublishVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: extras.publish_context.clone(),
        staging_target_path: staging.map(shown).unwrap_or_default(),
        target_path: shown(target),
        volume_capability: Some(capability(wanted, &extras)),
        readonly: volume.is_read_only,
        secrets: extras.secrets,
        volume_context,
    }
}

/// Where a volume that is expanded is.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Where it is staged, or would be.
    pub staging: &'a Path,
    /// Where a pod has it.
    pub target: &'a Path,
}

/// NodeExpandVolume to these bytes. It names no group.
// k8s: pkg/volume/csi/expander.go nodeExpandWithClient
pub fn expand(
    wanted: &Wanted,
    bytes: u64,
    places: Places<'_>,
    extras: Extras,
) -> NodeExpandVolumeRequest {
    let required_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let extras = Extras { mounts_for_group: false, ..extras };
    NodeExpandVolumeRequest {
        volume_id: wanted.volume.handle.clone(),
        volume_path: shown(places.target),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        staging_target_path: shown(places.staging),
        volume_capability: Some(capability(wanted, &extras)),
        secrets: extras.secrets,
    }
}

/// NodeUnpublishVolume.
pub fn unpublish(known: &Known, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: known.handle.clone(), target_path: shown(target) }
}

/// NodeUnstageVolume.
pub fn unstage(known: &Known, staging: &Path) -> NodeUnstageVolumeRequest {
    let staging_target_path = shown(staging);
    NodeUnstageVolumeRequest { volume_id: known.handle.clone(), staging_target_path }
}

/// The pod's part of the attributes.
// k8s: pkg/volume/csi/csi_util.go getPodInfoAttrs
pub fn pod_info(pod: &Pod, lifecycle: Lifecycle) -> BTreeMap<String, String> {
    let account = pod::spec(pod).service_account_name.clone().unwrap_or_default();
    [
        ("csi.storage.k8s.io/pod.name", pod::name(pod).to_owned()),
        ("csi.storage.k8s.io/pod.namespace", pod::namespace(pod).to_owned()),
        ("csi.storage.k8s.io/pod.uid", pod::uid(pod).to_string()),
        ("csi.storage.k8s.io/serviceAccount.name", account),
        ("csi.storage.k8s.io/ephemeral", (lifecycle == Lifecycle::Ephemeral).to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn capability(wanted: &Wanted, extras: &Extras) -> VolumeCapability {
    let volume = &wanted.volume;
    let access_type = match volume.is_block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(mount(wanted, volume, extras.mounts_for_group)),
    };
    let mode = mode(volume.access_mode(), extras.tells_writers);
    let access_mode = Some(volume_capability::AccessMode { mode: mode.into() });
    VolumeCapability { access_type: Some(access_type), access_mode }
}

fn mount(wanted: &Wanted, volume: &Volume, mounts_for_group: bool) -> MountVolume {
    let group = wanted.fs_group.filter(|_| mounts_for_group);
    let label = wanted.selinux_label.as_deref().map(mount_option);
    MountVolume {
        fs_type: volume.fs_type.clone(),
        mount_flags: volume.mount_options.iter().cloned().chain(label).collect(),
        volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
    }
}

// k8s: pkg/volume/csi/csi_client.go asCSIAccessModeV1, asSingleNodeMultiWriterCapableCSIAccessModeV1
fn mode(mode: AccessMode, tells_writers: bool) -> Mode {
    match (mode, tells_writers) {
        (AccessMode::ReadWriteOnce, false) => Mode::SingleNodeWriter,
        (AccessMode::ReadWriteOnce, true) => Mode::SingleNodeMultiWriter,
        (AccessMode::ReadOnlyMany, _) => Mode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteMany, _) => Mode::MultiNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, false) => Mode::SingleNodeWriter,
        (AccessMode::ReadWriteOncePod, true) => Mode::SingleNodeSingleWriter,
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_with_single_node_multi_writer_gets_the_precise_access_mode() {
        let rows = [
            (AccessMode::ReadWriteOnce, Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            (AccessMode::ReadOnlyMany, Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            (AccessMode::ReadWriteMany, Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            (AccessMode::ReadWriteOncePod, Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
        ];
        for (access, plain, telling) in rows {
            assert_eq!(mode(access, false), plain, "{access:?}");
            assert_eq!(mode(access, true), telling, "{access:?}");
        }
    }
}
