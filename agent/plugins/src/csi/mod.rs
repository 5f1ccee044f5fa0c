//! The calls to a CSI driver on this node.
//!
//! Input: the driver's endpoint and CSI's requests. Output: what the driver answered, read into
//! plain values, or a `CallError`, of which `is_final` says whether the call can still be under
//! way. Bounds: a call lasts `CALL_MAX` at most, an answer has `wire::ANSWER_BYTES_MAX` bytes, ids
//! and topology those of `NodeFacts`.
// k8s: pkg/volume/csi/csi_client.go

mod facts;

use std::path::Path;
use std::time::Duration;

use pintle_plugins_v1::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};

use crate::error::CallError;
use crate::wire::{Endpoint, Method};

pub use facts::{Capabilities, NodeFacts, RefusedFacts, Usage, VolumeHealth, VolumeStats};

/// Time limit of a call.
// k8s: pkg/volume/csi/csi_plugin.go csiTimeout
pub const CALL_MAX: Duration = Duration::from_secs(2 * 60);
/// Time limit of a call that only asks what the driver is. The kubelet grants two minutes, during
/// which a driver that hangs is neither registered nor refused.
pub const FACTS_MAX: Duration = Duration::from_secs(15);

macro_rules! methods {
    ($($constant:ident = $name:literal;)*) => {
        $(const $constant: Method =
            Method { name: $name, path: concat!("/csi.v1.Node/", $name) };)*
    };
}

methods! {
    GET_INFO = "NodeGetInfo";
    GET_CAPABILITIES = "NodeGetCapabilities";
    STAGE = "NodeStageVolume";
    UNSTAGE = "NodeUnstageVolume";
    PUBLISH = "NodePublishVolume";
    UNPUBLISH = "NodeUnpublishVolume";
    EXPAND = "NodeExpandVolume";
    STATS = "NodeGetVolumeStats";
}

/// The Node service of a driver. Clones share its connection.
#[derive(Clone, Debug)]
pub struct Node {
    endpoint: Endpoint,
}

impl Node {
    /// The service behind a socket. Nothing is dialled before the first call.
    pub fn new(socket: &Path) -> Self {
        Self { endpoint: Endpoint::new(socket) }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        self.endpoint.path()
    }

    /// NodeGetInfo: what the driver calls the node, its limit and its topology.
    pub async fn info(&self) -> Result<NodeGetInfoResponse, CallError> {
        self.endpoint.call(GET_INFO, &NodeGetInfoRequest {}, FACTS_MAX).await
    }

    /// NodeGetCapabilities.
    pub async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let request = NodeGetCapabilitiesRequest {};
        let answer: NodeGetCapabilitiesResponse =
            self.endpoint.call(GET_CAPABILITIES, &request, FACTS_MAX).await?;
        Ok(Capabilities::read(&answer))
    }

    /// NodeStageVolume.
    pub async fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), CallError> {
        let _: NodeStageVolumeResponse = self.endpoint.call(STAGE, request, CALL_MAX).await?;
        Ok(())
    }

    /// NodeUnstageVolume.
    pub async fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), CallError> {
        let _: NodeUnstageVolumeResponse = self.endpoint.call(UNSTAGE, request, CALL_MAX).await?;
        Ok(())
    }

    /// NodePublishVolume.
    pub async fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), CallError> {
        let _: NodePublishVolumeResponse = self.endpoint.call(PUBLISH, request, CALL_MAX).await?;
        Ok(())
    }

    /// NodeUnpublishVolume.
    pub async fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<(), CallError> {
        let _: NodeUnpublishVolumeResponse =
            self.endpoint.call(UNPUBLISH, request, CALL_MAX).await?;
        Ok(())
    }

    /// NodeExpandVolume; returns the bytes that the volume has now, 0 when the driver does not say.
    pub async fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<u64, CallError> {
        let answer: NodeExpandVolumeResponse =
            self.endpoint.call(EXPAND, request, CALL_MAX).await?;
        Ok(u64::try_from(answer.capacity_bytes).unwrap_or(0))
    }

    /// NodeGetVolumeStats, of a volume at a place where it is published.
    pub async fn volume_stats(&self, handle: &str, path: &Path) -> Result<VolumeStats, CallError> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: path.to_string_lossy().into_owned(),
            // k8s: pkg/volume/csi/csi_client.go NodeGetVolumeStats, which leaves it empty
            staging_target_path: String::new(),
        };
        let answer: NodeGetVolumeStatsResponse =
            self.endpoint.call(STATS, &request, CALL_MAX).await?;
        Ok(VolumeStats::read(&answer))
    }
}
