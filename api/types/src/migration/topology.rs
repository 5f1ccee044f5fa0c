//! Nodes of a volume as its driver says it: by the labels that the driver gives to nodes.
//!
//! Input: the plugin, labels and terms of a PersistentVolume. Output: terms with zones under the
//! driver's label, also zones that only a label of the volume names. Pure.
// k8s: csi-translation-lib/plugins/in_tree_volume.go, vsphere_volume.go

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use super::InTree;

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Label of nodes for their region, by the driver of vSphere.
const VSPHERE_REGION: &str = "topology.csi.vmware.com/region";
/// What is between the zones of a volume.
pub(super) const SEPARATOR: &str = "__";

/// Labels of a PersistentVolume.
type Labels<'a> = Option<&'a BTreeMap<String, String>>;

impl InTree {
    /// The label that the driver gives to nodes for their zone, where volumes have one.
    const fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::Vsphere => Some("topology.csi.vmware.com/zone"),
            Self::AzureDisk | Self::AzureFile | Self::Portworx => None,
        }
    }
}

/// The terms of a volume for its driver. `terms` are those of the volume itself.
// k8s: in_tree_volume.go translateTopologyFromInTreeToCSI; vsphere_volume.go
// translateTopologyFromInTreevSphereToCSI
pub fn csi_terms(
    plugin: InTree,
    labels: Labels<'_>,
    mut terms: Vec<NodeSelectorTerm>,
) -> Vec<NodeSelectorTerm> {
    let Some(zone_key) = plugin.zone_key() else { return terms };
    let is_old = uses_old_labels(labels, &terms);
    let zone = if is_old { OLD_ZONE } else { ZONE };
    if plugin == InTree::Vsphere {
        let region = if is_old { OLD_REGION } else { REGION };
        for (from, to) in [(zone, zone_key), (region, VSPHERE_REGION)] {
            if !rename(&mut terms, from, to) {
                add(&mut terms, to, label(labels, from).into_iter());
            }
        }
        return terms;
    }
    if !rename(&mut terms, zone, zone_key) {
        let zones = label(labels, zone).into_iter().flat_map(|zones| zones.split(SEPARATOR));
        add(&mut terms, zone_key, zones);
    }
    if is_old {
        rename(&mut terms, OLD_REGION, REGION);
    }
    terms
}

pub(super) fn label<'a>(labels: Labels<'a>, key: &str) -> Option<&'a str> {
    labels?.get(key).map(String::as_str)
}

/// True where a volume names its zone by the label from before 1.17, and not by the newer one.
// k8s: in_tree_volume.go getTopologyLabel
fn uses_old_labels(labels: Labels<'_>, terms: &[NodeSelectorTerm]) -> bool {
    let has = |key: &str| requirements(terms).any(|r| r.key == key);
    match (has(ZONE), has(OLD_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        _ => label(labels, ZONE).is_none() && label(labels, OLD_ZONE).is_some(),
    }
}

fn requirements(terms: &[NodeSelectorTerm]) -> impl Iterator<Item = &NodeSelectorRequirement> {
    terms.iter().flat_map(|term| term.match_expressions.iter().flatten())
}

/// Renames a key that has values somewhere; returns false where it has none.
// k8s: in_tree_volume.go getTopologyValues, replaceTopology
fn rename(terms: &mut [NodeSelectorTerm], from: &str, to: &str) -> bool {
    let has_values = |r: &NodeSelectorRequirement| r.values.as_ref().is_some_and(|v| !v.is_empty());
    if !requirements(terms).any(|r| r.key == from && has_values(r)) {
        return false;
    }
    for term in terms {
        let all = term.match_expressions.iter_mut().flatten();
        all.filter(|r| r.key == from).for_each(|r| to.clone_into(&mut r.key));
    }
    true
}

/// Demands one of these values in each term; empty ones do not count.
// k8s: in_tree_volume.go addTopology
fn add<'a>(terms: &mut Vec<NodeSelectorTerm>, key: &str, values: impl Iterator<Item = &'a str>) {
    let values = values.map(str::trim).filter(|value| !value.is_empty());
    let values: BTreeSet<&str> = values.collect();
    if values.is_empty() {
        return;
    }
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
