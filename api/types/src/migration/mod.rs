//! Volumes of plugins that were once part of Kubernetes, as the CSI drivers in their place have them.
//!
//! ```text
//!   PersistentVolume ─> csi_volume ────────┐
//!   volume of a pod ──> csi_volume_of_pod ─┴─> PersistentVolume with a CSI source
//!       source: driver, handle, attributes, secrets    topology: the driver's labels of nodes
//! ```
//! Input: objects of the API. Output: the same volume under its driver's name, or upstream's sentence
//! about why the driver cannot have it. Both the scheduler and the agent read it, so that they agree
//! on the driver and the handle of a volume. Pure; bounded by the objects.
// k8s: staging/src/k8s.io/csi-translation-lib

mod aws_id;
mod source;
mod topology;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorTerm, PersistentVolume, PersistentVolumeSpec, Volume,
    VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use self::aws_id::UrlError;
pub use self::topology::csi_terms;

/// The annotation of a CSINode that lists the plugins whose volumes its drivers have.
// k8s: staging/src/k8s.io/api/core/v1/annotation_key_constants.go MigratedPluginsAnnotationKey
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Why a driver cannot have a volume, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The name of a disk of Amazon's is a URL that cannot be parsed.
    #[error(
        "failed to translate Kubernetes ID to EBS Volume ID Invalid disk name ({id}): parse {part:?}: \
         {why}"
    )]
    AwsUrl {
        /// The name.
        id: String,
        /// What of it cannot be parsed.
        part: String,
        /// What is wrong with it.
        why: UrlError,
    },
    /// The URL of a disk of Amazon's names no disk.
    #[error(
        "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})"
    )]
    AwsFormat {
        /// The name.
        id: String,
    },
    /// A zone of a disk of Google's has no region.
    #[error(
        "failed to get region from zones: zone in unexpected format, expected: \
         {{locale}}-{{region}}-{{zone}}, got: {zone}"
    )]
    Zone {
        /// The zone.
        zone: String,
    },
    /// The zones of a disk of Google's are in several regions.
    #[error("failed to get region from zones: multiple or no regions gotten from zones, got: {0}")]
    Regions(String),
    /// A disk of Azure's is not a managed one.
    #[error("kind({kind}) is not supported in csi migration")]
    AzureKind {
        /// Its kind.
        kind: String,
    },
    /// The secret of an Azure file share is in an unknown namespace.
    #[error("could not find a secret namespace in PersistentVolumeSource or ClaimRef")]
    SecretNamespace,
}

/// A plugin that was once part of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTree {
    /// `awsElasticBlockStore`.
    AwsEbs,
    /// `azureDisk`.
    AzureDisk,
    /// `azureFile`.
    AzureFile,
    /// `cinder`.
    Cinder,
    /// `gcePersistentDisk`.
    GcePd,
    /// `portworxVolume`.
    Portworx,
    /// `vsphereVolume`.
    Vsphere,
}

impl InTree {
    /// All of them, in the order of their names.
    pub const ALL: [Self; 7] = [
        Self::AwsEbs,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Cinder,
        Self::GcePd,
        Self::Portworx,
        Self::Vsphere,
    ];

    /// Name of the plugin, as classes and nodes have it.
    pub const fn plugin(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::AzureFile => "kubernetes.io/azure-file",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
            Self::Vsphere => "kubernetes.io/vsphere-volume",
        }
    }

    /// The driver in its place.
    pub const fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Portworx => "pxd.portworx.com",
            Self::Vsphere => "csi.vsphere.vmware.com",
        }
    }

    /// The plugin of this name.
    pub fn named(plugin: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.plugin() == plugin)
    }

    /// The plugin of a PersistentVolume.
    pub fn of_volume(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        first([
            (spec.aws_elastic_block_store.is_some(), Self::AwsEbs),
            (spec.azure_disk.is_some(), Self::AzureDisk),
            (spec.azure_file.is_some(), Self::AzureFile),
            (spec.cinder.is_some(), Self::Cinder),
            (spec.gce_persistent_disk.is_some(), Self::GcePd),
            (spec.portworx_volume.is_some(), Self::Portworx),
            (spec.vsphere_volume.is_some(), Self::Vsphere),
        ])
    }

    /// The plugin of a volume that a pod's spec describes.
    pub fn of_pod(volume: &Volume) -> Option<Self> {
        first([
            (volume.aws_elastic_block_store.is_some(), Self::AwsEbs),
            (volume.azure_disk.is_some(), Self::AzureDisk),
            (volume.azure_file.is_some(), Self::AzureFile),
            (volume.cinder.is_some(), Self::Cinder),
            (volume.gce_persistent_disk.is_some(), Self::GcePd),
            (volume.portworx_volume.is_some(), Self::Portworx),
            (volume.vsphere_volume.is_some(), Self::Vsphere),
        ])
    }
}

fn first(of: [(bool, InTree); 7]) -> Option<InTree> {
    of.into_iter().find(|(is_set, _)| *is_set).map(|(_, plugin)| plugin)
}

/// A PersistentVolume as its driver has it; one of another plugin as it is.
///
/// # Errors
/// The driver cannot have it.
// k8s: csi-translation-lib/translate.go TranslateInTreePVToCSI
pub fn csi_volume(mut volume: PersistentVolume) -> Result<PersistentVolume, TranslateError> {
    let Some(plugin) = InTree::of_volume(&volume) else { return Ok(volume) };
    let source = source::of_volume(&volume)?;
    let labels = volume.metadata.labels.as_ref();
    let Some(spec) = &mut volume.spec else { return Ok(volume) };
    let affinity = spec.node_affinity.as_ref();
    let terms = affinity.and_then(|a| Some(a.required.as_ref()?.node_selector_terms.clone()));
    let terms = csi_terms(plugin, labels, terms.unwrap_or_default());
    if !terms.is_empty() {
        require(spec, terms);
    }
    if plugin == InTree::GcePd {
        spec.access_modes = spec.access_modes.take().map(|modes| vec![single_mode(&modes)]);
    }
    take_source(spec);
    spec.csi = Some(source);
    Ok(volume)
}

fn require(spec: &mut PersistentVolumeSpec, terms: Vec<NodeSelectorTerm>) {
    let affinity = spec.node_affinity.get_or_insert_with(VolumeNodeAffinity::default);
    affinity.required = Some(NodeSelector { node_selector_terms: terms });
}

fn take_source(spec: &mut PersistentVolumeSpec) {
    spec.aws_elastic_block_store = None;
    spec.azure_disk = None;
    spec.azure_file = None;
    spec.cinder = None;
    spec.gce_persistent_disk = None;
    spec.portworx_volume = None;
    spec.vsphere_volume = None;
}

/// The one mode in which the plugin of Google's disks attached them, whatever the volume says.
// k8s: csi-translation-lib/plugins/gce_pd.go backwardCompatibleAccessModes
fn single_mode(modes: &[String]) -> String {
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let writes = has("ReadWriteOnce") || has("ReadWriteMany");
    let is_read_only = has("ReadOnlyMany") && !writes;
    if is_read_only { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()
}

/// A volume of a pod's spec as the PersistentVolume that its driver has; `None` for one of another
/// plugin. Its name is that of the volume on the disk.
///
/// # Errors
/// The driver cannot have it.
// k8s: csi-translation-lib/translate.go TranslateInTreeInlineVolumeToCSI
pub fn csi_volume_of_pod(
    volume: &Volume,
    namespace: &str,
) -> Result<Option<PersistentVolume>, TranslateError> {
    let Some(found) = source::of_pod(volume, namespace)? else { return Ok(None) };
    let metadata = ObjectMeta { name: Some(found.name), ..ObjectMeta::default() };
    let spec = PersistentVolumeSpec {
        access_modes: Some(vec![found.mode.to_owned()]),
        volume_mode: Some("Filesystem".to_owned()),
        csi: Some(found.source),
        ..PersistentVolumeSpec::default()
    };
    Ok(Some(PersistentVolume { metadata, spec: Some(spec), status: None }))
}

/// The driver's name for a PersistentVolume; `None` for one of another plugin.
///
/// # Errors
/// The driver cannot have it.
pub fn handle_of_volume(volume: &PersistentVolume) -> Result<Option<String>, TranslateError> {
    match InTree::of_volume(volume) {
        Some(_) => source::of_volume(volume).map(|source| Some(source.volume_handle)),
        None => Ok(None),
    }
}

/// The driver's name for a volume of a pod's spec; `None` for one of another plugin.
///
/// # Errors
/// The driver cannot have it.
pub fn handle_of_pod(volume: &Volume, namespace: &str) -> Result<Option<String>, TranslateError> {
    Ok(source::of_pod(volume, namespace)?.map(|found| found.source.volume_handle))
}

#[cfg(test)]
mod tests;
