//! Volumes of drivers that were once part of Kubernetes, as far as the scheduler follows them.
//!
//! Input: a volume, of a pod or of the API, or a class. Output: the driver that attaches it now and
//! the name that it has there, and the nodes that it can be on. Pure. Seven plugins have migrated
//! to CSI; the scheduler translates five of them: VolumeBinding and NodeVolumeLimits use volumes of
//! Azure files and vSphere untranslated.
// k8s: pkg/scheduler/framework/plugins/nodevolumelimits/utils.go isCSIMigrationOn

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, Volume};
use k8s_openapi::api::storage::v1::CSINode;
pub(super) use pintle_api_types::migration::InTree;
use pintle_api_types::migration::{self, MIGRATED_PLUGINS};

use super::annotation;

/// A volume of a pod as its driver has it: the driver, and its name there.
pub(super) type Handle = (&'static str, String);

fn is_followed(plugin: InTree) -> bool {
    !matches!(plugin, InTree::AzureFile | InTree::Vsphere)
}

/// The plugin of a volume.
pub(super) fn plugin_of(volume: &PersistentVolume) -> Option<InTree> {
    InTree::of_volume(volume).filter(|plugin| is_followed(*plugin))
}

/// Whether a node says that a plugin has moved there.
// k8s: volumebinding/binder.go isPluginMigratedToCSIOnNode
pub(super) fn has_moved(plugin: InTree, node: &CSINode) -> bool {
    moved(node).is_some_and(|all| all.split(',').any(|name| name == plugin.plugin()))
}

/// The plugins that have moved on a node, as it says so.
pub(super) fn moved(node: &CSINode) -> Option<&str> {
    annotation(&node.metadata, MIGRATED_PLUGINS)
}

/// The driver that attaches volumes of a class; `None` for one whose volumes are not counted.
// k8s: nodevolumelimits/csi.go getCSIDriverInfoFromSC
pub(super) fn driver_of(provisioner: &str) -> Option<&str> {
    match InTree::named(provisioner) {
        Some(plugin) => is_followed(plugin).then(|| plugin.driver()),
        None => Some(provisioner),
    }
}

/// A volume that a pod names itself; `None` for one of no such plugin, or that its driver cannot have.
pub(super) fn of_pod(volume: &Volume) -> Option<Handle> {
    let plugin = InTree::of_pod(volume).filter(|plugin| is_followed(*plugin))?;
    // The namespace is in names of Azure's files alone.
    Some((plugin.driver(), migration::handle_of_pod(volume, "").ok()??))
}

/// A volume of the API; `None` for one of no such plugin, or that its driver cannot have.
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<Handle> {
    let plugin = plugin_of(volume)?;
    Some((plugin.driver(), migration::handle_of_volume(volume).ok()??))
}

/// Nodes of a volume as its driver says it. `terms` are those of the volume itself.
pub(super) fn terms(
    plugin: InTree,
    volume: &PersistentVolume,
    terms: Vec<NodeSelectorTerm>,
) -> Vec<NodeSelectorTerm> {
    migration::csi_terms(plugin, volume.metadata.labels.as_ref(), terms)
}
