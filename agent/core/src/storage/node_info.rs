//! What the API has about the CSI drivers of a node: CSINode, an annotation and labels of the Node.
//!
//! Pure. Input: an object and a driver. Output: the object changed, and whether it has. Bounds:
//! those of the driver's facts, which were checked when it registered.
// k8s: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINodeDriver, VolumeNodeResources};

/// Annotation of a Node: what each driver calls the node, as JSON.
pub const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// A driver that is registered on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverOnNode {
    /// Its name.
    pub name: String,
    /// What it calls the node.
    pub node_id: String,
    /// How many of its volumes the node can have; `None` is no limit.
    pub max_volumes: Option<i32>,
    /// Where the node is, label by label.
    pub topology: BTreeMap<String, String>,
}

/// Why a driver cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeInfoError {
    /// The annotation is not ours to repair.
    #[error("failed to parse node's {NODE_IDS:?} annotation value ({0:?})")]
    Annotation(String),
    /// The node has a label already, with another value.
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing label \
         is {key:?}:{existing:?}"
    )]
    Collision {
        /// The label's key.
        key: String,
        /// The driver's value.
        reported: String,
        /// The node's value.
        existing: String,
    },
}

/// How a driver differs from its entry in CSINode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Not at all.
    Same,
    /// There was none, or only its limit was another.
    Written,
    /// In a field that the API does not allow to change: the entry has to be removed first.
    Replaced,
}

/// Writes a driver into the list of a CSINode.
// k8s: installDriverToCSINode; pkg/apis/storage/validation/validation.go ValidateCSINodeUpdate
pub fn install(drivers: &mut Vec<CSINodeDriver>, driver: &DriverOnNode) -> Entry {
    let keys: Vec<String> = driver.topology.keys().cloned().collect();
    let allocatable = driver.max_volumes.map(|count| VolumeNodeResources { count: Some(count) });
    let found = drivers.iter().position(|entry| entry.name == driver.name);
    let result = match found.map(|at| &drivers[at]) {
        None => Entry::Written,
        Some(entry) => {
            let known: BTreeSet<&String> = entry.topology_keys.iter().flatten().collect();
            let is_same_node = entry.node_id == driver.node_id && known == keys.iter().collect();
            let limit = entry.allocatable.as_ref().and_then(|allocatable| allocatable.count);
            match is_same_node {
                true if limit == driver.max_volumes => return Entry::Same,
                true => Entry::Written,
                false => Entry::Replaced,
            }
        }
    };
    let entry = CSINodeDriver {
        allocatable,
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: Some(keys),
    };
    match found {
        Some(at) => drivers[at] = entry,
        None => drivers.push(entry),
    }
    result
}

/// Removes a driver from the list of a CSINode; returns whether it was there.
// k8s: tryUninstallDriverFromCSINode
pub fn uninstall(drivers: &mut Vec<CSINodeDriver>, name: &str) -> bool {
    let before = drivers.len();
    drivers.retain(|entry| entry.name != name);
    drivers.len() != before
}

/// Writes what a driver calls the node, and where it is, into the Node; returns whether it changed.
///
/// # Errors
/// The annotation is not readable, or the node is somewhere else by its labels; nothing is changed.
// k8s: updateNodeIDInNode, updateTopologyLabels
pub fn mark(node: &mut Node, driver: &DriverOnNode) -> Result<bool, NodeInfoError> {
    let mut ids = node_ids(node)?;
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, reported) in &driver.topology {
        if let Some(existing) = labels.get(key).filter(|existing| *existing != reported) {
            let (key, reported, existing) = (key.clone(), reported.clone(), existing.clone());
            return Err(NodeInfoError::Collision { key, reported, existing });
        }
    }
    let mut has_changed = false;
    for (key, value) in &driver.topology {
        has_changed |= labels.insert(key.clone(), value.clone()).is_none();
    }
    if ids.get(&driver.name) != Some(&driver.node_id) {
        ids.insert(driver.name.clone(), driver.node_id.clone());
        annotate(node, &ids);
        has_changed = true;
    }
    Ok(has_changed)
}

/// Removes what a driver calls the node; returns whether the Node changed. Labels stay: volumes
/// that were made for them are still reachable here.
///
/// # Errors
/// The annotation is not readable.
// k8s: removeNodeIDFromNode
pub fn unmark(node: &mut Node, name: &str) -> Result<bool, NodeInfoError> {
    let mut ids = node_ids(node)?;
    if ids.remove(name).is_none() {
        return Ok(false);
    }
    annotate(node, &ids);
    Ok(true)
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, NodeInfoError> {
    let annotations = node.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(NODE_IDS)).map(String::as_str) {
        None | Some("" | "null") => Ok(BTreeMap::new()),
        Some(text) => {
            serde_json::from_str(text).map_err(|_| NodeInfoError::Annotation(text.to_owned()))
        }
    }
}

fn annotate(node: &mut Node, ids: &BTreeMap<String, String>) {
    let annotations = node.metadata.annotations.get_or_insert_default();
    if ids.is_empty() {
        annotations.remove(NODE_IDS);
    } else {
        let text = serde_json::to_string(ids).expect("texts are JSON");
        annotations.insert(NODE_IDS.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str, node_id: &str, limit: Option<i32>) -> DriverOnNode {
        DriverOnNode {
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            max_volumes: limit,
            topology: [("zone".to_owned(), "a".to_owned())].into(),
        }
    }

    fn names(drivers: &[CSINodeDriver]) -> Vec<&str> {
        drivers.iter().map(|driver| driver.name.as_str()).collect()
    }

    #[test]
    fn entry_is_written_changed_or_replaced_as_the_api_allows() {
        let mut drivers = Vec::new();
        assert_eq!(install(&mut drivers, &driver("a", "n", None)), Entry::Written);
        assert_eq!(install(&mut drivers, &driver("b", "n", Some(3))), Entry::Written);
        assert_eq!(install(&mut drivers, &driver("a", "n", None)), Entry::Same);
        assert_eq!(install(&mut drivers, &driver("a", "n", Some(7))), Entry::Written);
        let count = drivers[0].allocatable.as_ref().and_then(|allocatable| allocatable.count);
        assert_eq!(count, Some(7));
        assert_eq!(install(&mut drivers, &driver("a", "other", Some(7))), Entry::Replaced);
        let moved = DriverOnNode { topology: BTreeMap::new(), ..driver("b", "n", Some(3)) };
        assert_eq!(install(&mut drivers, &moved), Entry::Replaced);
        assert_eq!(names(&drivers), ["a", "b"]);
        assert!(uninstall(&mut drivers, "a") && !uninstall(&mut drivers, "a"));
        assert_eq!(names(&drivers), ["b"]);
    }

    #[test]
    fn node_has_the_ids_of_all_its_drivers_and_keeps_its_labels() {
        let mut node = Node::default();
        assert_eq!(mark(&mut node, &driver("b", "2", None)), Ok(true));
        assert_eq!(mark(&mut node, &driver("a", "1", None)), Ok(true));
        assert_eq!(mark(&mut node, &driver("a", "1", None)), Ok(false));
        let text = |node: &Node| {
            let annotations = node.metadata.annotations.clone().unwrap_or_default();
            annotations.get(NODE_IDS).cloned()
        };
        assert_eq!(text(&node).as_deref(), Some(r#"{"a":"1","b":"2"}"#));
        assert_eq!(unmark(&mut node, "a"), Ok(true));
        assert_eq!(unmark(&mut node, "a"), Ok(false));
        assert_eq!(unmark(&mut node, "b"), Ok(true));
        assert_eq!(text(&node), None);
        assert_eq!(node.metadata.labels.expect("labels")["zone"], "a");
    }

    #[test]
    fn node_that_is_elsewhere_or_unreadable_is_left_alone() {
        let mut node = Node::default();
        node.metadata.labels = Some([("zone".to_owned(), "b".to_owned())].into());
        let before = node.clone();
        let refused = mark(&mut node, &driver("a", "1", None)).expect_err("a collision");
        let text = "detected topology value collision: driver reported \"zone\":\"a\" but existing \
                    label is \"zone\":\"b\"";
        assert_eq!(refused.to_string(), text);
        assert_eq!(node, before);
        let annotations = [(NODE_IDS.to_owned(), "{".to_owned())];
        node.metadata.annotations = Some(annotations.into());
        assert!(matches!(unmark(&mut node, "a"), Err(NodeInfoError::Annotation(_))));
    }
}
