//! Volumes of drivers that were once part of Kubernetes, as the drivers that took their place see
//! them.
//!
//! Input: a volume, of a pod or of the API, or a class. Output: the driver that attaches it now and
//! the name that it has there, and the nodes that it can be on. Pure. Seven plugins have migrated
//! to CSI; the scheduler translates five of them: VolumeBinding and NodeVolumeLimits use volumes of
//! Azure files and vSphere untranslated.
// k8s: staging/src/k8s.io/csi-translation-lib/plugins

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Volume,
};
use k8s_openapi::api::storage::v1::CSINode;

use super::annotation;

/// Annotation of a CSINode: migrated plugins, by their in-tree names.
// k8s: staging/src/k8s.io/api/core/v1/annotation_key_constants.go MigratedPluginsAnnotationKey
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Separator between the zones of a volume.
const SEPARATOR: &str = "__";
/// Project or zone of a Google disk that specifies none.
const UNSPECIFIED: &str = "UNSPECIFIED";
/// Migrated plugins that the scheduler does not translate.
const NOT_FOLLOWED: [&str; 2] = ["kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"];

/// A former in-tree plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InTree {
    AwsEbs,
    GcePd,
    AzureDisk,
    Cinder,
    Portworx,
}

/// A translated volume: the CSI driver, and its volume handle.
pub(super) type Handle = (&'static str, String);

impl InTree {
    /// Returns its in-tree name, as classes and nodes use it.
    const fn name(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::Cinder => "kubernetes.io/cinder",
            Self::Portworx => "kubernetes.io/portworx-volume",
        }
    }

    /// Returns the CSI driver that replaced it.
    pub(super) const fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::Portworx => "pxd.portworx.com",
        }
    }

    /// Returns the driver's zone label of nodes, if its volumes have zones.
    const fn topology(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::AzureDisk | Self::Portworx => None,
        }
    }

    /// Returns the plugin of a volume.
    pub(super) fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let all = [
            (spec.aws_elastic_block_store.is_some(), Self::AwsEbs),
            (spec.gce_persistent_disk.is_some(), Self::GcePd),
            (spec.azure_disk.is_some(), Self::AzureDisk),
            (spec.cinder.is_some(), Self::Cinder),
            (spec.portworx_volume.is_some(), Self::Portworx),
        ];
        all.into_iter().find(|(is_it, _)| *is_it).map(|(_, plugin)| plugin)
    }

    /// Does the node report that the plugin has migrated?
    // k8s: volumebinding/binder.go isPluginMigratedToCSIOnNode
    pub(super) fn has_moved(self, node: &CSINode) -> bool {
        moved(node).is_some_and(|all| all.split(',').any(|name| name == self.name()))
    }
}

/// Returns the migrated plugins of a node.
pub(super) fn moved(node: &CSINode) -> Option<&str> {
    annotation(&node.metadata, MIGRATED)
}

/// The driver that attaches volumes of a class; `None` if its volumes are not counted.
// k8s: nodevolumelimits/csi.go getCSIDriverInfoFromSC
pub(super) fn driver_of(provisioner: &str) -> Option<&str> {
    use InTree::{AwsEbs, AzureDisk, Cinder, GcePd, Portworx};
    let followed = [AwsEbs, GcePd, AzureDisk, Cinder, Portworx];
    match followed.into_iter().find(|plugin| plugin.name() == provisioner) {
        Some(plugin) => Some(plugin.driver()),
        None => Some(provisioner).filter(|name| !NOT_FOLLOWED.contains(name)),
    }
}

/// Returns an inline volume of a pod; `None` for other plugins, or if it cannot be translated.
// k8s: the TranslateInTreeInlineVolumeToCSI functions
pub(super) fn of_pod(volume: &Volume) -> Option<Handle> {
    let handle = |plugin: InTree, handle: String| Some((plugin.driver(), handle));
    if let Some(aws) = &volume.aws_elastic_block_store {
        return handle(InTree::AwsEbs, aws_id(&aws.volume_id)?);
    }
    if let Some(gce) = &volume.gce_persistent_disk {
        return handle(InTree::GcePd, gce_id("zones", UNSPECIFIED, &gce.pd_name));
    }
    if let Some(azure) = &volume.azure_disk {
        let is_managed = azure.kind.as_deref().is_none_or(is_managed);
        return handle(InTree::AzureDisk, is_managed.then(|| azure.disk_uri.clone())?);
    }
    if let Some(cinder) = &volume.cinder {
        return handle(InTree::Cinder, cinder.volume_id.clone());
    }
    let portworx = volume.portworx_volume.as_ref()?;
    handle(InTree::Portworx, portworx.volume_id.clone())
}

/// Returns a PersistentVolume; `None` for other plugins, or if it cannot be translated.
// k8s: the TranslateInTreePVToCSI functions
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<Handle> {
    let plugin = InTree::of(volume)?;
    let spec = volume.spec.as_ref()?;
    let handle = match plugin {
        InTree::AwsEbs => aws_id(&spec.aws_elastic_block_store.as_ref()?.volume_id)?,
        InTree::GcePd => gce_handle(volume, &spec.gce_persistent_disk.as_ref()?.pd_name)?,
        InTree::AzureDisk => {
            let azure = spec.azure_disk.as_ref()?;
            let is_managed = azure.kind.as_deref().is_none_or(is_managed);
            is_managed.then(|| azure.disk_uri.clone())?
        }
        InTree::Cinder => spec.cinder.as_ref()?.volume_id.clone(),
        InTree::Portworx => spec.portworx_volume.as_ref()?.volume_id.clone(),
    };
    Some((plugin.driver(), handle))
}

fn is_managed(kind: &str) -> bool {
    kind.eq_ignore_ascii_case("managed")
}

/// Returns the driver's id of an AWS disk; the in-tree id may contain the zone.
// k8s: csi-translation-lib/plugins/aws_ebs.go KubernetesVolumeIDToEBSVolumeID
fn aws_id(id: &str) -> Option<String> {
    let Some(rest) = id.strip_prefix("aws://") else { return Some(id.to_owned()) };
    let path = rest.split(['?', '#']).next()?.split_once('/').map_or("", |(_, path)| path);
    let id = path.trim_matches('/');
    (id.starts_with("vol-") && !id.contains('/')).then(|| id.to_owned())
}

fn gce_id(kind: &str, place: &str, disk: &str) -> String {
    format!("projects/{UNSPECIFIED}/{kind}/{place}/disks/{disk}")
}

/// Returns the driver's id of a Google disk: one with several zones is regional.
// k8s: csi-translation-lib/plugins/gce_pd.go TranslateInTreePVToCSI
fn gce_handle(volume: &PersistentVolume, disk: &str) -> Option<String> {
    let zones = label(volume, OLD_ZONE).filter(|zones| !zones.is_empty());
    let zones = zones.or_else(|| label(volume, ZONE)).unwrap_or_default();
    if !zones.contains(SEPARATOR) {
        let zone = if zones.is_empty() { UNSPECIFIED } else { zones };
        return Some(gce_id("zones", zone, disk));
    }
    let region = |zone: &str| {
        let parts: Vec<&str> = zone.split('-').collect();
        (parts.len() == 3).then(|| format!("{}-{}", parts[0], parts[1]))
    };
    let regions: Option<BTreeSet<String>> = zones.split(SEPARATOR).map(region).collect();
    let regions = regions.filter(|regions| regions.len() == 1)?;
    Some(gce_id("regions", regions.first()?, disk))
}

fn label<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    volume.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the node selector terms of a volume as its driver reports them: zones under the driver's
/// label, including zones found only in the volume's labels. `terms` are those of the volume
/// itself.
// k8s: csi-translation-lib/plugins/in_tree_volume.go translateTopologyFromInTreeToCSI
pub(super) fn terms(
    plugin: InTree,
    volume: &PersistentVolume,
    mut terms: Vec<NodeSelectorTerm>,
) -> Vec<NodeSelectorTerm> {
    let Some(topology) = plugin.topology() else { return terms };
    let has = |key: &str| requirements(&terms).any(|r| r.key == key);
    let is_old = match (has(ZONE), has(OLD_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        _ => label(volume, ZONE).is_none() && label(volume, OLD_ZONE).is_some(),
    };
    let zone = if is_old { OLD_ZONE } else { ZONE };
    if has_values(&terms, zone) {
        rename(&mut terms, zone, topology);
    } else if let Some(zones) = label(volume, zone) {
        let zones = zones.split(SEPARATOR).map(str::trim).filter(|zone| !zone.is_empty());
        let zones: BTreeSet<&str> = zones.collect();
        if !zones.is_empty() {
            add(&mut terms, topology, zones);
        }
    }
    if is_old && has_values(&terms, OLD_REGION) {
        rename(&mut terms, OLD_REGION, REGION);
    }
    terms
}

fn requirements(terms: &[NodeSelectorTerm]) -> impl Iterator<Item = &NodeSelectorRequirement> {
    terms.iter().flat_map(|term| term.match_expressions.iter().flatten())
}

fn has_values(terms: &[NodeSelectorTerm], key: &str) -> bool {
    let mut of_key = requirements(terms).filter(|r| r.key == key);
    of_key.any(|r| r.values.as_ref().is_some_and(|values| !values.is_empty()))
}

fn rename(terms: &mut [NodeSelectorTerm], from: &str, to: &str) {
    for term in terms {
        for requirement in term.match_expressions.iter_mut().flatten() {
            if requirement.key == from {
                to.clone_into(&mut requirement.key);
            }
        }
    }
}

/// Adds a requirement for one of these values to each term.
fn add(terms: &mut Vec<NodeSelectorTerm>, key: &str, values: BTreeSet<&str>) {
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
    for term in terms {
        term.match_expressions.get_or_insert_default().push(NodeSelectorRequirement {
            key: key.to_owned(),
            operator: "In".to_owned(),
            values: Some(values.clone()),
        });
    }
}
