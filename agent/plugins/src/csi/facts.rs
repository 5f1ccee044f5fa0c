//! What a driver says about itself and its volumes, read into plain values and bounded.
//!
//! Pure. Input: CSI's answers. Output: capabilities, the node's id, limit and topology, or why
//! these cannot be used, and a volume's usage. Bounds: `NODE_ID_BYTES_MAX`, `TOPOLOGY_MAX`.

use std::collections::BTreeMap;

use pintle_plugins_v1::csi::node_service_capability::Type;
use pintle_plugins_v1::csi::node_service_capability::rpc::Type as Rpc;
use pintle_plugins_v1::csi::volume_usage::Unit;
use pintle_plugins_v1::csi::{
    NodeGetCapabilitiesResponse, NodeGetInfoResponse, NodeGetVolumeStatsResponse, VolumeUsage,
};

use crate::error::cut;

/// What a driver may call the node, in bytes.
// k8s: pkg/apis/storage/validation/validation.go csiNodeIDLongerMaxLength
pub(super) const NODE_ID_BYTES_MAX: usize = 256;
/// Segments of a topology.
pub(super) const TOPOLOGY_MAX: usize = 64;
/// Key of a segment, in bytes: a label's.
const KEY_BYTES_MAX: usize = 253 + 1 + 63;
/// Value of a segment, in bytes: a label's.
const VALUE_BYTES_MAX: usize = 63;

/// What a driver can do on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// STAGE_UNSTAGE_VOLUME.
    pub stages: bool,
    /// GET_VOLUME_STATS.
    pub has_stats: bool,
    /// EXPAND_VOLUME.
    pub expands: bool,
    /// VOLUME_CONDITION.
    pub has_condition: bool,
    /// SINGLE_NODE_MULTI_WRITER: it knows one pod from several.
    pub tells_writers: bool,
    /// VOLUME_MOUNT_GROUP: it gives the files to a group itself.
    pub mounts_for_group: bool,
}

impl Capabilities {
    pub(crate) fn read(answer: &NodeGetCapabilitiesResponse) -> Self {
        let mut read = Self::default();
        for capability in &answer.capabilities {
            let Some(Type::Rpc(rpc)) = &capability.r#type else { continue };
            match Rpc::try_from(rpc.r#type) {
                Ok(Rpc::StageUnstageVolume) => read.stages = true,
                Ok(Rpc::GetVolumeStats) => read.has_stats = true,
                Ok(Rpc::ExpandVolume) => read.expands = true,
                Ok(Rpc::VolumeCondition) => read.has_condition = true,
                Ok(Rpc::SingleNodeMultiWriter) => read.tells_writers = true,
                Ok(Rpc::VolumeMountGroup) => read.mounts_for_group = true,
                Ok(Rpc::Unknown) | Err(_) => {} // a later version's
            }
        }
        read
    }
}

/// What a driver says about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// What the driver calls the node.
    pub node_id: String,
    /// How many of its volumes the node can have; `None` is no limit.
    pub max_volumes: Option<i32>,
    /// Where the node is, label by label.
    pub topology: BTreeMap<String, String>,
}

/// Why a driver's facts cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedFacts {
    /// The node has no name.
    // k8s: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go InstallCSIDriver
    #[error("error adding CSI driver node info: driverNodeID must not be empty")]
    NoNodeId,
    /// Its name is too long.
    #[error("the driver's node id has {0} bytes, the API takes {NODE_ID_BYTES_MAX}")]
    NodeId(usize),
    /// Too many segments.
    #[error("the driver's topology has {0} segments, {TOPOLOGY_MAX} are taken")]
    Topology(usize),
    /// A segment cannot be a label.
    #[error("the driver's topology has a segment that is too long for a label")]
    Segment,
}

impl NodeFacts {
    // k8s: pkg/volume/csi/nodeinfomanager/nodeinfomanager.go installDriverToCSINode
    pub(crate) fn read(answer: NodeGetInfoResponse) -> Result<Self, RefusedFacts> {
        let node_id = answer.node_id;
        match node_id.len() {
            0 => return Err(RefusedFacts::NoNodeId),
            1..=NODE_ID_BYTES_MAX => {}
            bytes => return Err(RefusedFacts::NodeId(bytes)),
        }
        let topology = answer.accessible_topology.unwrap_or_default().segments;
        if topology.len() > TOPOLOGY_MAX {
            return Err(RefusedFacts::Topology(topology.len()));
        }
        let is_long = |(key, value): (&String, &String)| {
            key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX
        };
        if topology.iter().any(is_long) {
            return Err(RefusedFacts::Segment);
        }
        // Zero and what CSI forbids are no limit, what the API cannot say is its largest.
        let limit = answer.max_volumes_per_node;
        let max_volumes = (limit > 0).then(|| i32::try_from(limit).unwrap_or(i32::MAX));
        Ok(Self { node_id, max_volumes, topology })
    }
}

/// What is used of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub total: u64,
    /// What is taken.
    pub used: u64,
    /// What can still be had.
    pub available: u64,
}

impl Usage {
    fn read(usage: &VolumeUsage) -> Self {
        let count = |value| u64::try_from(value).unwrap_or(0); // CSI forbids negative ones
        let (total, used) = (count(usage.total), count(usage.used));
        Self { total, used, available: count(usage.available) }
    }
}

/// What a driver says about a volume's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeHealth {
    /// It is not as it should be.
    pub is_abnormal: bool,
    /// The driver's words.
    pub message: String,
}

/// What a driver says about a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Usage in bytes.
    pub bytes: Option<Usage>,
    /// Usage in inodes.
    pub inodes: Option<Usage>,
    /// Its health, from drivers with that capability.
    pub health: Option<VolumeHealth>,
}

impl VolumeStats {
    pub(crate) fn read(answer: &NodeGetVolumeStatsResponse) -> Self {
        let mut read = Self::default();
        for usage in &answer.usage {
            match usage.unit() {
                Unit::Bytes => read.bytes = Some(Usage::read(usage)),
                Unit::Inodes => read.inodes = Some(Usage::read(usage)),
                Unit::Unknown => {}
            }
        }
        read.health = answer.volume_condition.as_ref().map(|condition| VolumeHealth {
            is_abnormal: condition.abnormal,
            message: cut(&condition.message).to_owned(),
        });
        read
    }
}

#[cfg(test)]
mod tests {
    use pintle_plugins_v1::csi::node_service_capability::Rpc as RpcMessage;
    use pintle_plugins_v1::csi::{NodeServiceCapability, Topology, VolumeCondition};

    use super::*;

    fn info(node_id: &str, limit: i64) -> NodeGetInfoResponse {
        let node_id = node_id.to_owned();
        NodeGetInfoResponse { node_id, max_volumes_per_node: limit, accessible_topology: None }
    }

    fn with_topology(segments: BTreeMap<String, String>) -> NodeGetInfoResponse {
        let accessible_topology = Some(Topology { segments });
        NodeGetInfoResponse { accessible_topology, ..info("n", 0) }
    }

    #[test]
    fn volume_limit_is_clamped_to_i32_and_unset_unless_positive() {
        let limit = |limit| NodeFacts::read(info("n", limit)).expect("usable").max_volumes;
        assert_eq!(limit(0), None);
        assert_eq!(limit(-3), None);
        assert_eq!(limit(7), Some(7));
        assert_eq!(limit(i64::MAX), Some(i32::MAX));
    }

    #[test]
    fn facts_that_no_object_can_hold_are_refused() {
        assert_eq!(NodeFacts::read(info("", 0)), Err(RefusedFacts::NoNodeId));
        let long = "n".repeat(NODE_ID_BYTES_MAX + 1);
        assert_eq!(NodeFacts::read(info(&long, 0)), Err(RefusedFacts::NodeId(257)));
        assert!(NodeFacts::read(info(&long[1..], 0)).is_ok());
        let many = (0..=TOPOLOGY_MAX).map(|at| (at.to_string(), "v".to_owned())).collect();
        assert_eq!(NodeFacts::read(with_topology(many)), Err(RefusedFacts::Topology(65)));
        let long = [("zone".to_owned(), "v".repeat(VALUE_BYTES_MAX + 1))].into();
        assert_eq!(NodeFacts::read(with_topology(long)), Err(RefusedFacts::Segment));
    }

    #[test]
    fn capabilities_of_later_versions_are_passed_over() {
        let capability = |number| NodeServiceCapability {
            r#type: Some(Type::Rpc(RpcMessage { r#type: number })),
        };
        let capabilities = vec![
            capability(1),
            capability(99),
            NodeServiceCapability { r#type: None },
            capability(6),
        ];
        let read = Capabilities::read(&NodeGetCapabilitiesResponse { capabilities });
        let expected = Capabilities { stages: true, mounts_for_group: true, ..Default::default() };
        assert_eq!(read, expected);
    }

    #[test]
    fn usage_below_zero_counts_as_none() {
        let usage =
            |unit: Unit, total| VolumeUsage { available: -1, total, used: 3, unit: unit.into() };
        let condition = VolumeCondition { abnormal: true, message: "scratched".to_owned() };
        let answer = NodeGetVolumeStatsResponse {
            usage: vec![usage(Unit::Inodes, 9), usage(Unit::Unknown, 1), usage(Unit::Bytes, 5)],
            volume_condition: Some(condition),
        };
        let read = VolumeStats::read(&answer);
        assert_eq!(read.bytes, Some(Usage { total: 5, used: 3, available: 0 }));
        assert_eq!(read.inodes.map(|inodes| inodes.total), Some(9));
        assert!(read.health.is_some_and(|health| health.is_abnormal));
    }
}
