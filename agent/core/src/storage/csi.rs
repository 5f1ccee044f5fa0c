//! A volume of a CSI driver, as a claim or a pod's spec describes it: plain data.
//!
//! Input: a PersistentVolume or a `csi` source of a pod. Output: what the calls to the driver are
//! made of, without secrets, which are read when a call is made. Bounded by the API's own limits.
// k8s: pkg/volume/csi/csi_plugin.go, csi_util.go

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaimStatus, Pod,
    SecretReference, Volume as PodVolume,
};
use serde::{Deserialize, Serialize};

use super::disk::{self, NetworkDisk};
use super::selinux::LabelParts;
use crate::image::pull_credential::sha256_hex;
use pintle_api_types::ids::PodUid;
use pintle_api_types::migration::{InTree, csi_volume_of_pod};
use pintle_api_types::pod;
use pintle_api_types::quantity::Amount;

/// Name of the plugin in paths and names of volumes.
pub const PLUGIN: &str = "kubernetes.io/csi";
/// The only resource of claims and volumes.
pub(super) const STORAGE: &str = "storage";

/// Names a volume on this node, as `volumesInUse` and `volumesAttached` of a Node do.
// k8s: pkg/volume/util/util.go GetUniqueVolumeName, GetUniqueVolumeNameFromSpecWithPod
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeId(String);

impl VolumeId {
    /// One of a driver or of a plugin of disks, by its handle: pods may share it.
    pub fn shared(driver: &str, handle: &str) -> Self {
        if disk::is_plugin(driver) {
            return Self(format!("{driver}/{handle}"));
        }
        Self(format!("{PLUGIN}/{driver}^{handle}"))
    }

    /// One that a pod's spec describes: of this pod alone.
    pub fn of_pod(pod: &PodUid, name: &str) -> Self {
        Self(format!("{PLUGIN}/{pod}-{name}"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a volume outlives the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifecycle {
    /// It is that of a PersistentVolume.
    Persistent,
    /// It is made for the pod and goes with it.
    Ephemeral,
}

impl Lifecycle {
    /// The API's text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        }
    }
}

/// An access mode of a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// One node reads and writes.
    ReadWriteOnce,
    /// Many nodes read.
    ReadOnlyMany,
    /// Many nodes read and write.
    ReadWriteMany,
    /// One pod reads and writes.
    ReadWriteOncePod,
}

impl AccessMode {
    /// Reads the API's text.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "ReadWriteOnce" => Self::ReadWriteOnce,
            "ReadOnlyMany" => Self::ReadOnlyMany,
            "ReadWriteMany" => Self::ReadWriteMany,
            "ReadWriteOncePod" => Self::ReadWriteOncePod,
            _ => return None,
        })
    }

    /// True where one node alone writes: the kubelet gives such a volume to the pod's group.
    // k8s: pkg/volume/csi/csi_util.go hasReadWriteOnce
    pub fn is_single_writer(self) -> bool {
        matches!(self, Self::ReadWriteOnce | Self::ReadWriteOncePod)
    }
}

/// Names a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The secrets that calls carry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// Of NodeStageVolume.
    pub stage: Option<SecretKey>,
    /// Of NodePublishVolume.
    pub publish: Option<SecretKey>,
    /// Of NodeExpandVolume.
    pub expand: Option<SecretKey>,
}

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The driver's name.
    pub driver: String,
    /// The driver's name for the volume.
    pub handle: String,
    /// Name on the disk: that of the PersistentVolume, or of the volume in the pod.
    pub name: String,
    /// Whether it outlives the pod.
    pub lifecycle: Lifecycle,
    /// Containers get a device instead of a file system.
    pub is_block: bool,
    /// It is mounted read-only.
    pub is_read_only: bool,
    /// File system; empty for the driver's choice.
    pub fs_type: String,
    /// What the driver put into the volume for itself.
    pub attributes: BTreeMap<String, String>,
    /// In the order of the PersistentVolume; calls to the driver carry the first one.
    pub access_modes: Vec<AccessMode>,
    /// Options of the mount.
    pub mount_options: Vec<String>,
    /// Secrets of the calls.
    pub secrets: Secrets,
    /// The claim and both sizes; `None` for what cannot be expanded.
    pub size: Option<ClaimSize>,
    /// What the agent attaches itself; `None` for the volumes of CSI drivers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Box<NetworkDisk>>,
    /// Its plugin was once part of Kubernetes: metrics say so.
    // k8s: pkg/volume/plugins.go Spec.Migrated
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_migrated: bool,
    /// SELinux options of the containers that mount it, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelParts>,
}

/// The sizes of a volume and of its claim. The volume's grows first; the claim's once the file
/// system on the node has grown as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSize {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// `spec.capacity` of the PersistentVolume, as it is written there.
    pub volume: String,
    /// `status.capacity` of the claim, in bytes.
    pub claimed_bytes: u64,
}

impl ClaimSize {
    /// Of a volume that is bound, if both say how large they are.
    pub fn of(volume: &PersistentVolume, claimed: Option<&str>) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let claim = spec.claim_ref.as_ref()?;
        Some(Self {
            namespace: claim.namespace.clone().unwrap_or_default(),
            name: claim.name.clone().unwrap_or_default(),
            volume: spec.capacity.as_ref()?.get(STORAGE)?.0.clone(),
            claimed_bytes: bytes(claimed?)?,
        })
    }

    /// Bytes of the PersistentVolume.
    pub fn volume_bytes(&self) -> u64 {
        bytes(&self.volume).unwrap_or(0)
    }
}

/// `status.capacity` of a claim.
pub fn claim_capacity(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    status.capacity.as_ref()?.get(STORAGE).map(|quantity| quantity.0.as_str())
}

/// Whole bytes of a quantity.
pub(crate) fn bytes(quantity: &str) -> Option<u64> {
    Amount::parse(quantity).and_then(|amount| u64::try_from(amount.units()).ok())
}

impl Volume {
    /// That of a PersistentVolume, if a driver has it. `is_read_only` is what the pod asks for,
    /// `claimed` is the claim's capacity.
    // k8s: pkg/volume/csi/csi_mounter.go SetUpAt
    pub fn of_claim(
        volume: &PersistentVolume,
        is_read_only: bool,
        claimed: Option<&str>,
    ) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let source = spec.csi.as_ref()?;
        let modes = spec.access_modes.iter().flatten();
        Some(Self {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: volume.metadata.name.clone().unwrap_or_default(),
            lifecycle: Lifecycle::Persistent,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            is_read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: modes.filter_map(|mode| AccessMode::parse(mode)).collect(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            secrets: secrets(source),
            size: ClaimSize::of(volume, claimed),
            disk: None,
            is_migrated: false,
            labels: Vec::new(),
        })
    }

    /// One that a pod's spec describes.
    // k8s: pkg/volume/csi/csi_plugin.go makeVolumeHandle
    pub fn of_pod(source: &CSIVolumeSource, name: &str, pod: &PodUid, namespace: &str) -> Self {
        let key = |name: &str| SecretKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let publish = source.node_publish_secret_ref.as_ref().map(|secret| key(&secret.name));
        Self {
            driver: source.driver.clone(),
            handle: format!("csi-{}", sha256(&[pod.as_str(), name])),
            name: name.to_owned(),
            lifecycle: Lifecycle::Ephemeral,
            is_block: false,
            is_read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            secrets: Secrets { publish, ..Secrets::default() },
            size: None,
            disk: None,
            is_migrated: false,
            labels: Vec::new(),
        }
    }

    /// The name that Node objects have for it, where that is not its name on this node.
    pub fn node_name(&self) -> Option<String> {
        self.disk.as_ref().map(|disk| disk.node_name())
    }

    /// The one that a driver has by the pod's spec alone: an inline one, or one of a plugin that was
    /// once part of Kubernetes; `None` for every other volume.
    pub fn of_spec(pod: &Pod, volume: &PodVolume) -> Option<Self> {
        let namespace = pod::namespace(pod);
        if let Some(source) = &volume.csi {
            return Some(Self::of_pod(source, &volume.name, &pod::uid(pod), namespace));
        }
        InTree::of_pod(volume)?;
        let translated = csi_volume_of_pod(volume, namespace).ok().flatten()?;
        Self::of_claim(&translated, false, None).map(Self::migrated)
    }

    /// The same as a volume of a plugin that was once part of Kubernetes.
    #[must_use]
    pub fn migrated(self) -> Self {
        Self { is_migrated: true, ..self }
    }

    /// Its name on this node, when this pod uses it.
    pub fn id(&self, pod: &PodUid) -> VolumeId {
        match self.lifecycle {
            Lifecycle::Persistent => VolumeId::shared(&self.driver, &self.handle),
            Lifecycle::Ephemeral => VolumeId::of_pod(pod, &self.name),
        }
    }

    /// The mode that calls to the driver carry.
    pub fn access_mode(&self) -> AccessMode {
        self.access_modes.first().copied().unwrap_or(AccessMode::ReadWriteOnce)
    }

    /// True when the agent has to change the group of the files, by the driver's policy.
    // k8s: pkg/volume/csi/csi_mounter.go supportsFSGroup
    pub fn is_given_to_group(&self, policy: GroupPolicy) -> bool {
        if self.is_read_only || self.is_block {
            return false;
        }
        match policy {
            GroupPolicy::None => false,
            GroupPolicy::File => true,
            GroupPolicy::ReadWriteOnceWithFsType => {
                let single = self.access_modes.iter().any(|mode| mode.is_single_writer());
                !self.fs_type.is_empty() && (single || self.lifecycle == Lifecycle::Ephemeral)
            }
        }
    }
}

fn secrets(source: &CSIPersistentVolumeSource) -> Secrets {
    let key = |secret: &Option<SecretReference>| {
        let secret = secret.as_ref()?;
        let namespace = secret.namespace.clone().unwrap_or_default();
        Some(SecretKey { namespace, name: secret.name.clone().unwrap_or_default() })
    };
    Secrets {
        stage: key(&source.node_stage_secret_ref),
        publish: key(&source.node_publish_secret_ref),
        expand: key(&source.node_expand_secret_ref),
    }
}

/// `fsGroupPolicy` of a CSIDriver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupPolicy {
    /// Where one node writes and the file system is named.
    #[default]
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

impl GroupPolicy {
    /// Reads the API's text; an unknown one counts as the default.
    pub fn parse(text: &str) -> Self {
        match text {
            "File" => Self::File,
            "None" => Self::None,
            _ => Self::ReadWriteOnceWithFsType,
        }
    }
}

/// Name of the VolumeAttachment of a volume on a node.
// k8s: pkg/volume/csi/csi_attacher.go getAttachmentName
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
}

/// Hexadecimal SHA-256 of the texts, one after the other.
pub(crate) fn sha256(texts: &[&str]) -> String {
    sha256_hex(texts.concat().as_bytes())
}

#[cfg(test)]
#[path = "csi_tests.rs"]
mod tests;
