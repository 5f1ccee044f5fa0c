//! The driver's flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// What a driver can do, to be left out by `--without`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Feature {
    /// The Controller service.
    Controller,
    /// NodeStageVolume and NodeUnstageVolume.
    Stage,
    /// ControllerPublishVolume and ControllerUnpublishVolume.
    Attach,
    /// ControllerExpandVolume.
    ControllerExpand,
    /// NodeExpandVolume.
    NodeExpand,
    /// NodeGetVolumeStats.
    Stats,
    /// VolumeCondition.
    Condition,
    /// Snapshots.
    Snapshots,
    /// Clones.
    Clones,
    /// SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
    Writers,
    /// VOLUME_MOUNT_GROUP.
    MountGroup,
    /// The topology of volumes.
    Topology,
}

/// A CSI driver for tests.
#[derive(Clone, Debug, Parser)]
#[command(name = "pintle-csi-driver", version)]
pub struct Settings {
    /// Name of the driver.
    #[arg(long, default_value = "csi.test.pintle.dev")]
    pub name: String,
    /// Socket of the driver's services.
    #[arg(long)]
    pub endpoint: PathBuf,
    /// Folder in which the kubelet looks for plugins; without it the driver does not register.
    #[arg(long)]
    pub registry: Option<PathBuf>,
    /// What the kubelet is to call the endpoint, where it sees it under another path.
    #[arg(long)]
    pub registered_endpoint: Option<PathBuf>,
    /// What the driver calls this node.
    #[arg(long, default_value = "node-1")]
    pub node_id: String,
    /// Folder of volumes, state, faults and log. The drivers of several nodes share it.
    #[arg(long)]
    pub state: PathBuf,
    /// How many volumes this node can have; 0 is no limit.
    #[arg(long, default_value_t = 0)]
    pub max_volumes: i64,
    /// Segment of this node's topology, `KEY=VALUE`; may be repeated.
    #[arg(long, value_parser = segment)]
    pub topology: Vec<Segment>,
    /// Bytes of all volumes together, and of the largest one.
    #[arg(long, default_value_t = 1 << 40)]
    pub capacity_bytes: u64,
    /// Parameter that a VolumeAttributesClass may change; may be repeated.
    #[arg(long, default_value = "iops")]
    pub mutable_parameter: Vec<String>,
    /// A capability that this driver does not have; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<Feature>,
    /// Prints each call as upstream's suites read it, secrets included.
    #[arg(long)]
    pub traces: bool,
}

/// One label of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The label's key.
    pub key: String,
    /// The label's value.
    pub value: String,
}

fn segment(text: &str) -> anyhow::Result<Segment> {
    let parts = text.split_once('=');
    let (key, value) = parts.ok_or_else(|| anyhow::anyhow!("{text:?} is not KEY=VALUE"))?;
    Ok(Segment { key: key.to_owned(), value: value.to_owned() })
}

impl Settings {
    /// Returns whether the driver has a capability.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        !self.without.contains(&feature)
    }

    pub(crate) fn segments(&self) -> BTreeMap<String, String> {
        let pairs = self.topology.iter();
        pairs.map(|segment| (segment.key.clone(), segment.value.clone())).collect()
    }

    pub(crate) fn registration_socket(&self) -> Option<PathBuf> {
        Some(self.registry.as_ref()?.join(format!("{}-reg.sock", self.name)))
    }

    /// All sockets of the process.
    pub fn sockets(&self) -> Vec<PathBuf> {
        // The registration goes first: without it no call comes.
        self.registration_socket().into_iter().chain([self.endpoint.clone()]).collect()
    }
}
