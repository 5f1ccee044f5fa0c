//! What a driver is told of a volume: its name there, file system, attributes, secrets.
//!
//! Input: a PersistentVolume, or a volume of a pod's spec, of one of the seven plugins. Output: the
//! `csi` source in its place. One function for each plugin and side, because each reads other fields
//! of another type. Pure.
// k8s: csi-translation-lib/plugins (TranslateInTreePVToCSI, TranslateInTreeInlineVolumeToCSI)

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, CSIPersistentVolumeSource, PersistentVolume, SecretReference, Volume,
};

use super::aws_id::ebs_id;
use super::topology::{OLD_ZONE, SEPARATOR, ZONE, label};
use super::{InTree, TranslateError};

/// What a disk of Google's says of its project and zone where it says nothing.
const UNSPECIFIED: &str = "UNSPECIFIED";
/// The only kind of Azure's disks that the driver has.
const MANAGED: &str = "Managed";
/// Annotation of an Azure file share: the resource group of its account.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
/// Annotations of a volume of Portworx: the secret of all calls.
const AUTH_SECRET: [&str; 2] =
    ["openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace"];

const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_ONLY_MANY: &str = "ReadOnlyMany";
const READ_WRITE_MANY: &str = "ReadWriteMany";

type Source = CSIPersistentVolumeSource;

/// A volume of a pod's spec.
pub(super) struct PodSource {
    /// Name of the volume on the disk.
    pub(super) name: String,
    /// Access mode of the calls.
    pub(super) mode: &'static str,
    pub(super) source: Source,
}

/// A source with these attributes; `read_only` and the file system as the API leaves them out.
fn new(plugin: InTree, handle: String, attributes: &[(&str, &str)]) -> Source {
    let attributes: BTreeMap<String, String> =
        attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Source {
        driver: plugin.driver().to_owned(),
        volume_handle: handle,
        volume_attributes: Some(attributes).filter(|all| !all.is_empty()),
        ..Source::default()
    }
}

impl InTree {
    fn pod_source(self, source: Source, mode: &'static str) -> PodSource {
        let name = format!("{}-{}", self.driver(), source.volume_handle);
        PodSource { name, mode, source }
    }
}

fn set(flag: Option<bool>) -> Option<bool> {
    flag.filter(|is_set| *is_set)
}

/// The source of a PersistentVolume of one of the plugins.
pub(super) fn of_volume(volume: &PersistentVolume) -> Result<Source, TranslateError> {
    let Some(spec) = &volume.spec else { return Ok(Source::default()) };
    if let Some(aws) = &spec.aws_elastic_block_store {
        let partition = aws.partition.unwrap_or(0).to_string();
        let attributes = [("partition", &*partition)];
        let source = new(InTree::AwsEbs, ebs_id(&aws.volume_id)?, &attributes);
        return Ok(Source {
            read_only: set(aws.read_only),
            fs_type: aws.fs_type.clone(),
            ..source
        });
    }
    if let Some(disk) = &spec.azure_disk {
        return azure_disk(disk, disk.caching_mode.as_deref());
    }
    if spec.azure_file.is_some() {
        return azure_share(volume);
    }
    if let Some(cinder) = &spec.cinder {
        let source = new(InTree::Cinder, cinder.volume_id.clone(), &[]);
        let (read_only, fs_type) = (set(cinder.read_only), cinder.fs_type.clone());
        return Ok(Source { read_only, fs_type, ..source });
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let partition = partition_of_gce(disk.partition);
        let handle = gce_handle(volume, &disk.pd_name)?;
        let source = new(InTree::GcePd, handle, &[("partition", &partition)]);
        let (read_only, fs_type) = (set(disk.read_only), disk.fs_type.clone());
        return Ok(Source { read_only, fs_type, ..source });
    }
    if let Some(portworx) = &spec.portworx_volume {
        let source = new(InTree::Portworx, portworx.volume_id.clone(), &[]);
        let secret = portworx_secret(volume);
        return Ok(Source {
            fs_type: portworx.fs_type.clone(),
            controller_publish_secret_ref: secret.clone(),
            controller_expand_secret_ref: secret.clone(),
            node_stage_secret_ref: secret.clone(),
            node_publish_secret_ref: secret.clone(),
            node_expand_secret_ref: secret,
            ..source
        });
    }
    let Some(vsphere) = &spec.vsphere_volume else { return Ok(Source::default()) };
    let policy = vsphere.storage_policy_name.as_deref();
    let source = new(InTree::Vsphere, vsphere.volume_path.clone(), &policy_attribute(policy));
    Ok(Source { fs_type: vsphere.fs_type.clone(), ..source })
}

/// The source of a volume of a pod's spec; `None` for one of another plugin.
pub(super) fn of_pod(
    volume: &Volume,
    namespace: &str,
) -> Result<Option<PodSource>, TranslateError> {
    if let Some(aws) = &volume.aws_elastic_block_store {
        let partition = aws.partition.unwrap_or(0).to_string();
        let attributes = [("partition", &*partition)];
        let source = new(InTree::AwsEbs, ebs_id(&aws.volume_id)?, &attributes);
        let source =
            Source { read_only: set(aws.read_only), fs_type: aws.fs_type.clone(), ..source };
        return Ok(Some(InTree::AwsEbs.pod_source(source, READ_WRITE_ONCE)));
    }
    if let Some(disk) = &volume.azure_disk {
        let caching = disk.caching_mode.as_deref().filter(|mode| !mode.is_empty());
        let source = azure_disk(disk, caching)?;
        return Ok(Some(PodSource { name: disk.disk_uri.clone(), mode: READ_WRITE_ONCE, source }));
    }
    if let Some(share) = &volume.azure_file {
        let namespace = if namespace.is_empty() { "default" } else { namespace };
        let account = storage_account(&share.secret_name);
        let handle = format!("#{account}#{}#{}#{namespace}", share.share_name, volume.name);
        let attributes = [("sharename", &*share.share_name)];
        let source = new(InTree::AzureFile, handle.clone(), &attributes);
        let source = Source {
            read_only: set(share.read_only),
            node_stage_secret_ref: Some(secret(&share.secret_name, namespace)),
            ..source
        };
        return Ok(Some(PodSource { name: handle, mode: READ_WRITE_MANY, source }));
    }
    if let Some(cinder) = &volume.cinder {
        let source = new(InTree::Cinder, cinder.volume_id.clone(), &[]);
        let (read_only, fs_type) = (set(cinder.read_only), cinder.fs_type.clone());
        let source = Source { read_only, fs_type, ..source };
        return Ok(Some(InTree::Cinder.pod_source(source, READ_WRITE_ONCE)));
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        let partition = partition_of_gce(disk.partition);
        let handle = gce_path(DiskPlace::Zone, UNSPECIFIED, &disk.pd_name);
        let source = new(InTree::GcePd, handle, &[("partition", &partition)]);
        let (read_only, fs_type) = (set(disk.read_only), disk.fs_type.clone());
        let name = format!("{}-{}", InTree::GcePd.driver(), disk.pd_name);
        let source = Source { read_only, fs_type, ..source };
        return Ok(Some(PodSource { name, mode: mode(disk.read_only), source }));
    }
    if let Some(portworx) = &volume.portworx_volume {
        let source = new(InTree::Portworx, portworx.volume_id.clone(), &[]);
        let source = Source { fs_type: portworx.fs_type.clone(), ..source };
        return Ok(Some(InTree::Portworx.pod_source(source, mode(portworx.read_only))));
    }
    let Some(vsphere) = &volume.vsphere_volume else { return Ok(None) };
    // Upstream dereferences nil where a policy is named.
    let policy = vsphere.storage_policy_name.as_deref();
    let source = new(InTree::Vsphere, vsphere.volume_path.clone(), &policy_attribute(policy));
    let source = Source { fs_type: vsphere.fs_type.clone(), ..source };
    Ok(Some(InTree::Vsphere.pod_source(source, READ_WRITE_ONCE)))
}

fn mode(read_only: Option<bool>) -> &'static str {
    if read_only == Some(true) { READ_ONLY_MANY } else { READ_WRITE_ONCE }
}

fn policy_attribute(policy: Option<&str>) -> Vec<(&'static str, &str)> {
    let policy = policy.filter(|policy| !policy.is_empty());
    policy.map(|policy| ("storagepolicyname", policy)).into_iter().collect()
}

fn secret(name: &str, namespace: &str) -> SecretReference {
    SecretReference { name: Some(name.to_owned()), namespace: Some(namespace.to_owned()) }
}

// k8s: csi-translation-lib/plugins/azure_disk.go
fn azure_disk(
    disk: &AzureDiskVolumeSource,
    caching: Option<&str>,
) -> Result<Source, TranslateError> {
    if let Some(kind) = disk.kind.as_deref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(TranslateError::AzureKind { kind: kind.to_owned() });
    }
    let of = |key, value: Option<&str>| value.map(|value| (key, value.to_owned()));
    let fs_type = disk.fs_type.as_deref();
    let attributes = [of("cachingmode", caching), of("fstype", fs_type), of("kind", Some(MANAGED))];
    let attributes: Vec<(&str, &str)> =
        attributes.iter().flatten().map(|(key, value)| (*key, &**value)).collect();
    let source = new(InTree::AzureDisk, disk.disk_uri.clone(), &attributes);
    Ok(Source { read_only: set(disk.read_only), fs_type: disk.fs_type.clone(), ..source })
}

// k8s: csi-translation-lib/plugins/azure_file.go TranslateInTreePVToCSI
fn azure_share(volume: &PersistentVolume) -> Result<Source, TranslateError> {
    let spec = volume.spec.as_ref();
    let Some(share) = spec.and_then(|spec| spec.azure_file.as_ref()) else {
        return Ok(Source::default());
    };
    let of_claim = || spec?.claim_ref.as_ref()?.namespace.as_deref();
    let namespace = share.secret_namespace.as_deref().or_else(of_claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err(TranslateError::SecretNamespace);
    }
    let group = label(volume.metadata.annotations.as_ref(), RESOURCE_GROUP).unwrap_or_default();
    let account = storage_account(&share.secret_name);
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let handle = format!("{group}#{account}#{}#{name}#{namespace}", share.share_name);
    let source = new(InTree::AzureFile, handle, &[("sharename", &share.share_name)]);
    let node_stage_secret_ref = Some(secret(&share.secret_name, namespace));
    Ok(Source { read_only: set(share.read_only), node_stage_secret_ref, ..source })
}

/// The account that a secret's name has in the middle; the name itself where it has none.
// k8s: csi-translation-lib/plugins/azure_file.go getStorageAccountName
fn storage_account(secret: &str) -> &str {
    let account = || {
        let (_, rest) = secret.split_once("azure-storage-account-")?;
        let (account, _) = rest.rsplit_once("-secret")?;
        Some(account).filter(|account| !account.is_empty())
    };
    account().unwrap_or(secret)
}

fn partition_of_gce(partition: Option<i32>) -> String {
    let partition = partition.filter(|partition| *partition != 0);
    partition.map(|partition| partition.to_string()).unwrap_or_default()
}

/// Where a disk of Google's is.
enum DiskPlace {
    Zone,
    Region,
}

fn gce_path(kind: DiskPlace, place: &str, disk: &str) -> String {
    let kind = match kind {
        DiskPlace::Zone => "zones",
        DiskPlace::Region => "regions",
    };
    format!("projects/{UNSPECIFIED}/{kind}/{place}/disks/{disk}")
}

/// The driver's name of a disk of Google's: one of several zones is its region's.
// k8s: csi-translation-lib/plugins/gce_pd.go TranslateInTreePVToCSI
fn gce_handle(volume: &PersistentVolume, disk: &str) -> Result<String, TranslateError> {
    let labels = volume.metadata.labels.as_ref();
    let zones = label(labels, OLD_ZONE).filter(|zones| !zones.is_empty());
    let zones = zones.or_else(|| label(labels, ZONE)).unwrap_or_default();
    if !zones.contains(SEPARATOR) {
        let zone = if zones.is_empty() { UNSPECIFIED } else { zones };
        return Ok(gce_path(DiskPlace::Zone, zone, disk));
    }
    let regions: Result<BTreeSet<String>, _> = zones.split(SEPARATOR).map(region).collect();
    let regions = regions?;
    match regions.first() {
        Some(region) if regions.len() == 1 => Ok(gce_path(DiskPlace::Region, region, disk)),
        _ => {
            let all: Vec<String> = regions.iter().map(|region| format!("{region}:{{}}")).collect();
            Err(TranslateError::Regions(format!("map[{}]", all.join(" "))))
        }
    }
}

// k8s: csi-translation-lib/plugins/gce_pd.go gceGetRegionFromZones
fn region(zone: &str) -> Result<String, TranslateError> {
    match zone.split('-').collect::<Vec<_>>()[..] {
        [locale, region, _] => Ok(format!("{locale}-{region}")),
        _ => Err(TranslateError::Zone { zone: zone.to_owned() }),
    }
}

// k8s: csi-translation-lib/plugins/portworx.go TranslateInTreePVToCSI
fn portworx_secret(volume: &PersistentVolume) -> Option<SecretReference> {
    let [name, namespace] = AUTH_SECRET.map(|key| label(volume.metadata.annotations.as_ref(), key));
    Some(secret(name?, namespace?))
}
